// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The simulator as a backend of the conformance suite.
#pragma once

#include <eptransport/backends/loopback/loopback.hpp>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "harness.hpp"

namespace conformance {

// Under the thread sanitizer one thread at a time has little to show: fewer seeds there.
#if defined(__SANITIZE_THREAD__)
inline constexpr std::uint64_t baton_seeds = 10;
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
inline constexpr std::uint64_t baton_seeds = 10;
#else
inline constexpr std::uint64_t baton_seeds = 100;
#endif
#else
inline constexpr std::uint64_t baton_seeds = 100;
#endif

/// A profile with limits that a test can reach.
struct narrow {
  static constexpr const char* name = "narrow";
  static constexpr int ranks_per_node = 2;
  static constexpr eptransport::capabilities caps{
      .max_signals = 8,
      .max_message = 2048,
      .inline_bytes = 16,
      .needs_registered_source = true,
      .charge = {.issue_ns = 10, .arrive_ns = 5, .latency_ns = 100, .channel_bytes_per_s = 1e9}};
};

[[nodiscard]] inline eptransport::loopback_options to_options(const world_request& request) {
  eptransport::loopback_options options;
  options.ranks = request.ranks;
  options.window_bytes = request.window_bytes;
  options.signals = request.signals;
  options.channels = request.channels;
  options.workers = request.workers;
  options.queue_depth = request.queue_depth;
  options.counter_start = request.counter_start;
  options.seed = request.seed;
  options.max_chunks = 1 + static_cast<std::uint32_t>(request.seed % 6);
  if (request.broken_rank >= 0) {
    options.faults.push_back(
        {.kind = eptransport::loopback_fault_kind::hard_error, .rank = request.broken_rank});
  }
  return options;
}

/// How one world ended.
struct outcome {
  std::uint64_t hash = 0;
  double modelled_ns = 0;
};

/// Builds a world, runs it, and reports violations. `Wrapped` is made of a `loopback<Profile>&`,
/// or is a reference to it.
template <class Profile, class Wrapped>
outcome run_world(const eptransport::loopback_options& options,
                  const std::function<void(Wrapped&)>& per_rank, report& out) {
  auto world = eptransport::loopback_world<Profile>::create(options);
  if (!world) {
    out.add(world.error().message());
    return {};
  }
  (*world)->run([&](eptransport::loopback<Profile>& rank) {
    if constexpr (std::is_same_v<Wrapped, eptransport::loopback<Profile>>) {
      per_rank(rank);
    } else {
      Wrapped wrapped(rank);
      per_rank(wrapped);
    }
  });
  if (const std::string text = (*world)->violations(); !text.empty()) out.add(text);
  outcome end{(*world)->trace_hash(), 0};
  for (int rank = 0; rank < options.ranks; ++rank) end.modelled_ns += (*world)->modelled_ns(rank);
  return end;
}

/// One thread at a time, everything shuffled, each seed twice: the two runs must be the same.
template <class Profile>
struct loopback_baton {
  using profile = Profile;
  using transport = eptransport::loopback<Profile>;
  static constexpr std::uint64_t seeds = baton_seeds;
  static constexpr std::uint64_t patience_ns = 1'000'000'000;
  static constexpr bool one_process = true;
  static constexpr bool can_start_counters = true;
  static constexpr bool can_limit_queues = true;
  static constexpr bool can_break = true;

  static void run(const world_request& request, const std::function<void(transport&)>& per_rank,
                  report& out) {
    eptransport::loopback_options options = to_options(request);
    options.order = eptransport::delivery::shuffled;
    options.max_delay_ns = request.seed % 2 * 5000;
    const outcome first = run_world<Profile, transport>(options, per_rank, out);
    const outcome again = run_world<Profile, transport>(options, per_rank, out);
    if (first.hash != again.hash) out.add("the same seed made other decisions");
    // Equal to the bit: nothing but the seed goes into it.
    if (first.modelled_ns < again.modelled_ns || first.modelled_ns > again.modelled_ns) {
      out.add("the same seed took another modelled time");
    }
  }
};

/// Real threads; odd seeds shuffle, even ones deliver at issue.
template <class Profile>
struct loopback_free {
  using profile = Profile;
  using transport = eptransport::loopback<Profile>;
  static constexpr std::uint64_t seeds = 24;
  static constexpr std::uint64_t patience_ns = 60'000'000'000;
  static constexpr bool one_process = true;
  static constexpr bool can_start_counters = true;
  static constexpr bool can_limit_queues = true;
  static constexpr bool can_break = true;

  static void run(const world_request& request, const std::function<void(transport&)>& per_rank,
                  report& out) {
    eptransport::loopback_options options = to_options(request);
    options.mode = eptransport::run_mode::free;
    if (request.seed % 2 == 1) options.order = eptransport::delivery::shuffled;
    options.max_delay_ns = request.seed % 3 * 10000;
    run_world<Profile, transport>(options, per_rank, out);
  }
};

}  // namespace conformance
