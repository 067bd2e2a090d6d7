// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The GPU-initiated transport over emulated NICs as a backend of the conformance suite.
#pragma once

#include <eptransport/backends/gdaki/gdaki.hpp>

#include <cstdint>
#include <functional>
#include <string>

#include "harness.hpp"
#include "loopback_backend.hpp"

namespace conformance {

[[nodiscard]] inline eptransport::gdaki_options to_gdaki_options(const world_request& request) {
  eptransport::gdaki_options o;
  o.ranks = request.ranks;
  o.window_bytes = request.window_bytes;
  o.signals = request.signals;
  o.channels = request.channels;
  o.workers = request.workers;
  o.counter_start = request.counter_start;
  o.seed = request.seed;
  o.first_index = request.seed * 0x3fffffffffffffd1U;  // indices wrap in every few seeds
  o.queue_slots = 64;
  o.ring_every = 1U << request.seed % 3;
  if (request.queue_depth != 0) {
    o.queue_slots = request.queue_depth == 3 ? 4 : request.queue_depth;
    o.max_batch = 2;
  }
  if (request.broken_rank >= 0) {
    for (int peer = 0; peer < request.ranks; ++peer) {
      eptransport::gdaki_fault broken;
      broken.rank = request.broken_rank;
      broken.peer = peer;
      broken.status = 13;
      o.faults.push_back(broken);
    }
  }
  return o;
}

/// `Wire` over emulated NICs that `kDrive` drives.
template <class Wire, eptransport::nic_drive kDrive>
struct gdaki_backend {
  using wire = Wire;
  using transport = eptransport::gdaki_transport<Wire>;
  static constexpr bool baton = kDrive == eptransport::nic_drive::baton;
  static constexpr std::uint64_t seeds = baton ? baton_seeds / 4 : 6;
  static constexpr std::uint64_t patience_ns = baton ? 1'000'000'000 : 60'000'000'000;
  static constexpr bool one_process = true;
  static constexpr bool can_start_counters = true;
  static constexpr bool can_limit_queues = true;
  static constexpr bool can_break = true;
  static constexpr bool tells_later = true;  ///< the NIC reports after the put has returned

  static void run(const world_request& request, const std::function<void(transport&)>& per_rank,
                  report& out) {
    eptransport::gdaki_options options = to_gdaki_options(request);
    options.drive = kDrive;
    const std::uint64_t first = run_once(options, per_rank, out);
    if (!baton || !out.empty()) return;
    if (first != run_once(options, per_rank, out)) out.add("the same seed made other decisions");
  }

  static std::uint64_t run_once(const eptransport::gdaki_options& options,
                                const std::function<void(transport&)>& per_rank, report& out) {
    auto world = eptransport::gdaki_world<Wire>::create(options);
    if (!world) {
      out.add(world.error().message());
      return 0;
    }
    (*world)->run(per_rank);
    if (const std::string text = (*world)->violations(); !text.empty()) out.add(text);
    return (*world)->trace_hash();
  }
};

}  // namespace conformance
