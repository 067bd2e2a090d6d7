// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The setting of a GPU-initiated wire over emulated NICs.
#pragma once

#include <eptransport/backends/gdaki/gdaki.hpp>

#include <cstdint>

#include "support/runner_impl.hpp"

namespace eptransport::support {

/// Ranks of one process that post to emulated NICs of `Wire`.
template <class Wire>
struct gdaki_setting {
  using transport = gdaki_transport<Wire>;
  using world = gdaki_world<Wire>;
  static constexpr bool counts = true;

  [[nodiscard]] static gdaki_options options_of(const run_config& config,
                                                std::uint64_t window_bytes, std::uint32_t signals) {
    gdaki_options o;
    o.ranks = config.ranks;
    o.window_bytes = window_bytes;
    o.signals = signals;
    o.channels = config.channels;
    o.nodes = config.nodes;
    o.workers = config.workers;
    o.counter_start = config.counter_start;
    o.queue_slots = config.gdaki.queue_slots;
    o.ring_every = config.gdaki.ring_every;
    o.first_index = config.gdaki.first_index;
    o.schedule.chunk_bytes = config.gdaki.chunk_bytes;
    o.drive = config.schedule == run_mode::free ? nic_drive::thread : nic_drive::baton;
    o.seed = config.seed;
    o.faults = config.gdaki.faults;
    o.deaths = config.gdaki.deaths;
    return o;
  }
  [[nodiscard]] static wire_charge charge(const run_config& config) {
    return config.charge.value_or(Wire::caps.charge);
  }
  static void observe(world& everything, run_result& out) {
    for (int rank = 0; rank < static_cast<int>(out.ranks.size()); ++rank) {
      const result<void> sound = everything.rank(rank).fault();
      out.transport_faults.push_back(sound ? std::string() : sound.error().message());
    }
    out.nic_requests = everything.device_counts().fetched;
  }
};

}  // namespace eptransport::support
