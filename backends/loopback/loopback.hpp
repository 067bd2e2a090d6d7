// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The simulator: R virtual ranks in one process, behind the transport contract.
///
/// It is the reference model of the contract and the test bench of everything above it. A world is
/// built for a *profile* (profiles.hpp) and behaves as weakly, or as well, as that wire. See
/// options.hpp for schedules, delivery and faults, and detail/scheduler.hpp, detail/wire.hpp and
/// detail/timing.hpp for how it works.
#pragma once

#include <eptransport/backends/loopback/detail/engine.hpp>
#include <eptransport/backends/loopback/options.hpp>
#include <eptransport/backends/loopback/profiles.hpp>
#include <eptransport/backends/loopback/view.hpp>
#include <eptransport/core/config.hpp>
#include <eptransport/core/host_executor.hpp>
#include <eptransport/core/result.hpp>
#include <eptransport/core/transport.hpp>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace eptransport {

/// One virtual rank; lives in its world.
///
/// @par Threads  One host thread at a time: under `run_mode::baton`, the one that `run` started.
template <class Profile>
class loopback {
 public:
  using transport_concept = transport_tag;
  using view_type = loopback_view<Profile>;
  using executor_type = host_executor;
  static constexpr capabilities caps = Profile::caps;

  /// @param inner  the wire inside the node, in a world that has two
  loopback(loopback_detail::engine& world, int rank, bool inner = false)
      : world_(world), rank_(rank), inner_(inner), executor_(world.options().workers, hooks()) {}
  loopback(const loopback&) = delete;
  loopback& operator=(const loopback&) = delete;

  [[nodiscard]] view_type view() const noexcept { return {world_, rank_, inner_}; }
  [[nodiscard]] executor_type& executor() noexcept { return executor_; }
  [[nodiscard]] std::span<std::byte> window() const noexcept {
    const loopback_detail::window& memory = world_.state(rank_).memory;
    return {memory.data(), memory.bytes()};
  }
  [[nodiscard]] std::uint32_t signals() const noexcept { return world_.options().signals; }

  /// Names the ranks that did not come, when it times out.
  [[nodiscard]] result<void> barrier(std::uint64_t timeout_ns) {
    return world_.barrier(rank_, timeout_ns);
  }
  [[nodiscard]] result<void> fault() const { return world_.fault(rank_); }

 private:
  static loopback& from(void* context) noexcept { return *static_cast<loopback*>(context); }

  /// Makes the threads of a launch actors of the scheduler. Free threads need no hooks.
  [[nodiscard]] host_thread_hooks hooks() noexcept {
    if (!world_.baton()) return {};
    host_thread_hooks out;
    out.context = this;
    out.enter = [](void* c, std::uint32_t worker) { from(c).world_.enter(from(c).rank_, worker); };
    out.leave = [](void* c) { from(c).world_.leave(); };
    out.spawn = [](void* c, std::uint32_t helpers) {
      from(c).world_.spawn(from(c).rank_, helpers);
    };
    out.join = [](void* c) { from(c).world_.join(); };
    out.relax.context = this;
    out.relax.function = [](void* c, const std::uint64_t* word, std::uint64_t at_least,
                            std::uint64_t deadline_ns) {
      from(c).world_.wait_word(from(c).rank_, {.why = loopback_detail::blocked_on::word,
                                               .deadline_ns = deadline_ns,
                                               .word = word,
                                               .at_least = at_least});
    };
    return out;
  }

  loopback_detail::engine& world_;
  int rank_;
  bool inner_;
  executor_type executor_;
};

/// All ranks of one simulated machine, and what an observer sees of them.
///
/// @par Threads  `run` from one thread at a time; the observers also from inside it.
template <class Profile>
class loopback_world {
 public:
  /// @par Errors  `invalid_argument` with both numbers, `out_of_memory` with the size
  [[nodiscard]] static result<std::unique_ptr<loopback_world>> create(
      const loopback_options& options) {
    const result<void> checked = loopback_detail::check(options, Profile::caps);
    if (!checked) return checked.error();
    std::vector<int> nodes = options.nodes;
    for (int rank = 0; nodes.size() < static_cast<std::size_t>(options.ranks); ++rank) {
      nodes.push_back(rank / Profile::ranks_per_node);
    }
    std::unique_ptr<loopback_world> world(new loopback_world(options, std::move(nodes)));
    if (!world->engine_.valid()) {
      return failure{errc::out_of_memory, "loopback_world::create",
                     std::to_string(options.ranks) + " windows of " +
                         std::to_string(options.window_bytes) + " bytes"};
    }
    return result<std::unique_ptr<loopback_world>>(std::move(world));
  }

  [[nodiscard]] loopback<Profile>& rank(int index) {
    return *ranks_[static_cast<std::size_t>(index)];
  }

  /// Calls `function` once per rank, each in a thread of its own, and joins them. Afterwards
  /// everything in flight lands.
  void run(const std::function<void(loopback<Profile>&)>& function) {
    engine_.run([&](int index) { function(rank(index)); });
  }

  /// Spends time on the rank's clock, as a computation between two calls would.
  void advance(int rank, std::uint64_t ns) { engine_.advance(rank, ns); }

  /// Puts and signals sent to other ranks since the statistics were reset.
  [[nodiscard]] std::uint64_t messages(int rank) { return engine_.traffic(rank).messages; }
  /// Bytes put into other ranks' windows, and asked for through `peer_pointer`.
  [[nodiscard]] std::uint64_t bytes(int rank) { return engine_.traffic(rank).bytes; }
  /// Both, with the part that left the node.
  [[nodiscard]] loopback_traffic traffic(int rank) { return engine_.traffic(rank); }

  /// What the rank's clock gained since the statistics were reset. Only under `run_mode::baton`.
  [[nodiscard]] double modelled_ns(int rank) { return engine_.modelled_ns(rank); }

  /// Zeroes the statistics; all clocks meet at the latest one, and the wires are idle.
  void reset_statistics() { engine_.reset_statistics(); }

  /// Hash of every scheduling and delivery decision. Under `run_mode::baton` the same options and
  /// functions give the same hash.
  [[nodiscard]] std::uint64_t trace_hash() { return engine_.trace_hash(); }

  /// What went wrong without stopping anybody: requests out of bounds, double writes, damaged
  /// guard zones; one line each, empty if nothing.
  [[nodiscard]] std::string violations() { return engine_.violations(); }

 private:
  loopback_world(const loopback_options& options, std::vector<int> nodes)
      : engine_(Profile::caps, options, std::move(nodes)) {
    for (int index = 0; index < options.ranks; ++index) {
      ranks_.push_back(std::make_unique<loopback<Profile>>(engine_, index));
    }
  }

  loopback_detail::engine engine_;
  std::vector<std::unique_ptr<loopback<Profile>>> ranks_;
};

static_assert(check_transport<loopback<profiles::nvlink>>());
static_assert(check_transport<loopback<profiles::ib_gpu>>());
static_assert(check_transport<loopback<profiles::efa_gpu>>());
static_assert(check_transport<loopback<profiles::efa_proxy>>());

}  // namespace eptransport
