// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The setting of a proxied wire.
#pragma once

#include <eptransport/backends/proxied/proxied.hpp>

#include <cstdint>

#include "support/runner_impl.hpp"

namespace eptransport::support {

/// Ranks of one process behind proxy engines, over `Wire`.
template <class Wire>
struct proxied_setting {
  using transport = proxied<Wire>;
  using world = proxied_world<Wire>;
  static constexpr bool counts = false;  // several puts may share a message

  [[nodiscard]] static proxied_options options_of(const run_config& config,
                                                  std::uint64_t window_bytes,
                                                  std::uint32_t signals) {
    proxied_options o;
    o.ranks = config.ranks;
    o.window_bytes = window_bytes;
    o.signals = signals;
    o.channels = std::max(config.channels, config.proxy.comms);
    o.comms = config.proxy.comms;
    o.nodes = config.nodes;
    o.workers = config.workers;
    o.counter_start = config.counter_start;
    o.ring_slots = config.proxy.ring_slots;
    o.engine = config.proxy.engine;
    o.wire.post_ns = config.proxy.post_ns;
    o.srd = config.proxy.srd;
    o.drive = config.proxy.drive;
    if (config.schedule == run_mode::free && o.drive == proxy_drive::baton) {
      o.drive = proxy_drive::threads;
    }
    o.driver_threads = config.proxy.driver_threads;
    o.driver.idle = proxy::polite;
    o.driver.stall_ns = config.proxy.stall_ns;
    o.seed = config.seed;
    return o;
  }
  [[nodiscard]] static wire_charge charge(const run_config& config) {
    return config.charge.value_or(Wire::caps.charge);
  }
  static void observe(world& everything, run_result& out) {
    out.slot_bytes = everything.engine_options().slot_bytes;
    const auto affinity = everything.affinity();
    for (int rank = 0; rank < static_cast<int>(out.ranks.size()); ++rank) {
      out.commands += everything.commands(rank);
      out.proxy_messages += everything.messages(rank);
    }
    out.proxy_threads.push_back("rank 0, comm 0: " + everything.statistics(0, 0).json());
    for (std::size_t i = 0; i < affinity.size(); ++i) {
      if (i != 0 && affinity[i] == affinity[i - 1]) continue;
      out.proxy_threads.push_back("proxy threads from " + std::to_string(i) +
                                  " on may run on CPUs " + affinity[i]);
    }
  }
};

}  // namespace eptransport::support
