// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief One run on one simulated wire of the CPU: a thread per rank.
///
/// Included by the runner_*.cpp files alone, so that the library's templates are compiled once per
/// wire.
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

/// A rank of the CPU simulator: kernels run in the caller's thread, in memory that all reach.
template <class Profile>
class host_rig {
 public:
  using transport = loopback<Profile>;
  static constexpr bool counts = true;

  host_rig(const run_config& config, loopback_world<Profile>& everything, transport& own)
      : config_(config), world_(everything), own_(own) {}

  [[nodiscard]] transport& own() { return own_; }
  [[nodiscard]] std::byte* window() { return own_.window().data(); }
  [[nodiscard]] memory_twins* twins() { return nullptr; }
  void push(std::span<const std::byte>) {}
  [[nodiscard]] rank_meter meter() {
    const int rank = own_.view().rank();
    return {own_.view().now_ns(), {world_.messages(rank), world_.bytes(rank)}};
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
  loopback_world<Profile>& world_;
  transport& own_;
};

/// The world's options for a run.
[[nodiscard]] inline loopback_options options_of(const run_config& config,
                                                 const group_sizes& sizes) {
  loopback_options options;
  options.ranks = config.ranks;
  options.window_bytes = window_bytes_of(config, sizes);
  options.signals = config.first_signal + sizes.signals;
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

/// Runs `config` on the wire of `Profile`.
template <class Profile>
run_result run_on_wire(const run_config& config, const router& routes) {
  using world = loopback_world<Profile>;
  run_result out;
  const auto refuse = [&out](const failure& why) {
    out.error = why.message();
    out.code = why.code;
    return out;
  };
  const problem p = problem_of(config);
  const auto sizes =
      group<loopback<Profile>>::sizes(shape_of(config, p), config.ranks, config.workers);
  if (!sizes) return refuse(sizes.error());
  auto made = world::create(options_of(config, *sizes));
  if (!made) return refuse(made.error());
  world& everything = **made;
  const auto ranks = static_cast<std::size_t>(config.ranks);
  out.ranks.resize(ranks);
  std::vector<rank_verdict> verdicts(ranks);
  const auto start = std::chrono::steady_clock::now();
  everything.run([&](loopback<Profile>& own) {
    const auto rank = static_cast<std::size_t>(own.view().rank());
    host_rig<Profile> rig(config, everything, own);
    rank_run<host_rig<Profile>>(config, routes, rig, out.ranks[rank], verdicts[rank])();
  });
  const std::chrono::duration<double, std::nano> wall = std::chrono::steady_clock::now() - start;
  out.wall_ns = wall.count();
  out.trace_hash = everything.trace_hash();
  out.violations = everything.violations();
  out.charge = config.charge.value_or(Profile::caps.charge);
  for (int rank = 0; rank < config.ranks; ++rank) {
    out.nodes.push_back(everything.rank(rank).view().node(rank));
  }
  sum_up(config, verdicts, config.schedule == run_mode::free, out);
  return out;
}

}  // namespace eptransport::support
