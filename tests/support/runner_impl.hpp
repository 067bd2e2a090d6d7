// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief One run in one world of the CPU: a thread per rank.
///
/// A *setting* says what world: `Setting::transport`, `Setting::world`, `options_of(config, bytes,
/// signals)` for `world::create`, `charge(config)`, and `counts`: whether a message is a put of the
/// kernels. A world runs a function per rank, and tells `messages(rank)`, `bytes(rank)`,
/// `trace_hash()` and `violations()`.
///
/// Included by the runner_*.cpp files alone, so that the library's templates are compiled once per
/// wire, and what does not depend on the wire once per family.
#pragma once

#include <eptransport/backends/loopback/loopback.hpp>
#include <eptransport/kernels/kernels.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <thread>
#include <vector>

#include "support/rank_run.hpp"
#include "support/runner.hpp"
#include "support/verdict.hpp"

namespace eptransport::support {

/// A rank of a world on the CPU: kernels run in the caller's thread, in memory that all reach.
template <class Setting>
class host_rig {
 public:
  using transport = typename Setting::transport;
  using world = typename Setting::world;
  static constexpr bool counts = Setting::counts;
  static constexpr bool groups = !Setting::counts;

  host_rig(const run_config& config, world& everything, transport& own)
      : config_(config), world_(everything), own_(own) {}

  [[nodiscard]] transport& own() { return own_; }
  [[nodiscard]] std::byte* window() { return own_.window().data(); }
  [[nodiscard]] memory_twins* twins() { return nullptr; }
  void push(std::span<const std::byte>) {}
  [[nodiscard]] rank_meter meter() {
    const int rank = own_.view().rank();
    rank_meter now{own_.view().now_ns(), {world_.messages(rank), world_.bytes(rank)}};
    if constexpr (requires { world_.traffic(rank).inter_bytes; }) {
      now.sent.inter_messages = world_.traffic(rank).inter_messages;
      now.sent.inter_bytes = world_.traffic(rank).inter_bytes;
    }
    return now;
  }
  void made(const geometry&, lane_run&, call_part) {}
  [[nodiscard]] auto stream(int) { return typename transport::executor_type::stream_type{}; }
  void pause(std::uint64_t ns) {
    if (config_.schedule == run_mode::baton) {
      world_.advance(own_.view().rank(), ns);
    } else {
      std::this_thread::sleep_for(std::chrono::nanoseconds(ns));
    }
  }

 private:
  const run_config& config_;
  world& world_;
  transport& own_;
};

/// Runs `config` in the world of `Setting`.
template <class Setting>
run_result run_in(const run_config& config, const router& routes) {
  using world = typename Setting::world;
  using transport = typename Setting::transport;
  run_result out;
  const auto refuse = [&out](const failure& why) {
    out.error = why.message();
    out.code = why.code;
    return out;
  };
  const problem p = problem_of(config);
  std::vector<std::int32_t> nodes(config.nodes.begin(), config.nodes.end());
  const auto sizes =
      group<transport>::sizes(shape_of(config, p), config.ranks, config.workers, nodes);
  if (!sizes) return refuse(sizes.error());
  auto made = world::create(Setting::options_of(config, window_bytes_of(config, *sizes),
                                                config.first_signal + sizes->signals));
  if (!made) return refuse(made.error());
  world& everything = **made;
  const auto ranks = static_cast<std::size_t>(config.ranks);
  out.ranks.resize(ranks);
  std::vector<rank_verdict> verdicts(ranks);
  const auto start = std::chrono::steady_clock::now();
  everything.run([&](transport& own) {
    const auto rank = static_cast<std::size_t>(own.view().rank());
    host_rig<Setting> rig(config, everything, own);
    rank_run<host_rig<Setting>>(config, routes, rig, out.ranks[rank], verdicts[rank])();
  });
  const std::chrono::duration<double, std::nano> wall = std::chrono::steady_clock::now() - start;
  out.wall_ns = wall.count();
  out.trace_hash = everything.trace_hash();
  out.violations = everything.violations();
  out.charge = Setting::charge(config);
  for (int rank = 0; rank < config.ranks; ++rank) {
    out.nodes.push_back(everything.rank(rank).view().node(rank));
  }
  sum_up(config, verdicts, config.schedule == run_mode::free, out);
  if constexpr (requires { Setting::observe(everything, out); }) Setting::observe(everything, out);
  return out;
}

/// The simulator, as a profile's wire.
template <class Profile>
struct loopback_setting {
  using transport = loopback<Profile>;
  using world = loopback_world<Profile>;
  static constexpr bool counts = true;

  [[nodiscard]] static loopback_options options_of(const run_config& config,
                                                   std::uint64_t window_bytes,
                                                   std::uint32_t signals) {
    loopback_options options;
    options.ranks = config.ranks;
    options.window_bytes = window_bytes;
    options.signals = signals;
    options.channels = config.channels;
    options.nodes = config.nodes;
    options.mode = config.schedule;
    options.order = config.order;
    options.seed = config.seed;
    options.max_chunks = config.max_chunks;
    options.counter_start = config.counter_start;
    options.workers = config.workers;
    options.max_delay_ns = config.max_delay_ns;
    options.faults = config.faults;
    options.queue_depth = config.queue_depth;
    options.charge = config.charge;
    return options;
  }
  [[nodiscard]] static wire_charge charge(const run_config& config) {
    return config.charge.value_or(Profile::caps.charge);
  }
};

/// Runs `config` on the simulated wire of `Profile`.
template <class Profile>
run_result run_on_wire(const run_config& config, const router& routes) {
  return run_in<loopback_setting<Profile>>(config, routes);
}

}  // namespace eptransport::support
