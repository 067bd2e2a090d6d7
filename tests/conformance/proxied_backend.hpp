// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The proxied transport over in-process wires as a backend of the conformance suite.
#pragma once

#include <eptransport/backends/proxied/proxied.hpp>

#include <cstdint>
#include <functional>
#include <string>

#include "harness.hpp"
#include "loopback_backend.hpp"

namespace conformance {

[[nodiscard]] inline eptransport::proxied_options to_proxied_options(const world_request& request) {
  eptransport::proxied_options o;
  o.ranks = request.ranks;
  o.window_bytes = request.window_bytes;
  o.signals = request.signals;
  o.channels = request.channels;
  o.workers = request.workers;
  o.counter_start = request.counter_start;
  o.broken_rank = request.broken_rank;
  o.seed = request.seed;
  o.first_position = request.seed * 0x4000000000000001U;  // the rings wrap in every few seeds
  o.ring_slots = 64;
  o.wire.operations = 64;  // small worlds: thousands of them are built
  o.wire.completions = 256;
  o.engine.peer_queue = 32;
  o.driver.idle = eptransport::proxy::polite;
  if (request.queue_depth != 0) {
    o.ring_slots = 4;
    o.engine.operations = request.queue_depth;
    o.engine.peer_queue = 2;
    o.engine.writes_per_peer = 2;
    o.engine.slots_per_peer = 2;
    o.engine.send_buffers = request.queue_depth;
  }
  return o;
}

/// What `Wire`, `kComms` and `kEager` make of a world; `kDrive` steps its engines.
template <class Wire, std::uint32_t kComms, std::uint64_t kEager, eptransport::proxy_drive kDrive>
struct proxied_backend {
  using wire = Wire;
  using transport = eptransport::proxied<Wire>;
  static constexpr bool baton = kDrive == eptransport::proxy_drive::baton;
  static constexpr std::uint32_t comms = kComms;
  static constexpr std::uint64_t eager = kEager;
  static constexpr std::uint64_t seeds = baton ? baton_seeds / 4 : 6;
  static constexpr std::uint64_t patience_ns = baton ? 1'000'000'000 : 60'000'000'000;
  static constexpr bool one_process = true;
  static constexpr bool can_start_counters = true;
  static constexpr bool can_limit_queues = true;
  static constexpr bool can_break = true;

  static void run(const world_request& request, const std::function<void(transport&)>& per_rank,
                  report& out) {
    eptransport::proxied_options options = to_proxied_options(request);
    options.comms = kComms;
    options.engine.eager = kEager;
    if (kEager > 4096) options.engine.slot_bytes = 2 * kEager;
    options.drive = kDrive;
    options.srd.rail_delay = 10;
    const std::uint64_t first = run_once(options, per_rank, out);
    if (!baton || !out.empty()) return;
    if (first != run_once(options, per_rank, out)) out.add("the same seed made other decisions");
  }

  static std::uint64_t run_once(const eptransport::proxied_options& options,
                                const std::function<void(transport&)>& per_rank, report& out) {
    auto world = eptransport::proxied_world<Wire>::create(options);
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
