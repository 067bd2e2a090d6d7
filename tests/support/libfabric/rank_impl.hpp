// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief What a rank over libfabric and a rank over a pair of wires have in common.
///
/// Included by the *rank.cpp files alone, so that the kernels are compiled once per transport.
#pragma once

#include <eptransport/backends/libfabric/libfabric.hpp>
#include <eptransport/kernels/kernels.hpp>

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "support/libfabric/rank.hpp"
#include "support/rank_run.hpp"
#include "support/runner_impl.hpp"
#include "support/runner_wires.hpp"

namespace eptransport::support {

/// What `host_rig` asks of a world, of the one rank that is here.
struct lone_rank {
  libfabric& own;
  std::uint32_t comms;

  template <class Value>
  [[nodiscard]] std::uint64_t sum(const Value& value) const {
    std::uint64_t total = 0;
    for (std::uint32_t k = 0; k < comms; ++k) total += value(own.statistics(k));
    return total;
  }
  [[nodiscard]] std::uint64_t commands() const {
    return sum([](const proxy::engine_statistics& s) { return s.commands.get() - s.local.get(); });
  }
  [[nodiscard]] std::uint64_t messages(int) const {
    return sum([](const proxy::engine_statistics& s) {
      return s.writes.get() + s.messages.get() + s.credit_writes.get();
    });
  }
  [[nodiscard]] std::uint64_t bytes(int) const {
    return sum([](const proxy::engine_statistics& s) { return s.bytes.get(); });
  }
  void advance(int, std::uint64_t) const {}
};

/// What a run makes of a configuration.
struct rank_needs {
  router routes;
  std::uint64_t window_bytes = 0;
  std::uint32_t signals = 0;
};

/// @param nodes  of each rank, where rows may travel through relays
template <class Transport>
[[nodiscard]] result<rank_needs> needs_of(const run_config& config,
                                          const std::vector<std::int32_t>& nodes = {}) {
  if (const std::string wrong = wrong_with(config); !wrong.empty()) {
    return failure{errc::invalid_argument, "run_rank", wrong};
  }
  auto routes = routes_of(config);
  if (!routes) return routes.error();
  const problem p = problem_of(config);
  const auto sizes =
      group<Transport>::sizes(shape_of(config, p), config.ranks, config.workers, nodes);
  if (!sizes) return sizes.error();
  return rank_needs{std::move(*routes), window_bytes_of(config, *sizes),
                    config.first_signal + sizes->signals};
}

[[nodiscard]] inline proxied_options options_of(const run_config& config, const rank_needs& needs) {
  proxied_options o;
  o.window_bytes = needs.window_bytes;
  o.signals = needs.signals;
  o.channels = std::max(config.channels, config.proxy.comms);
  o.comms = config.proxy.comms;
  o.nodes = config.nodes;
  o.workers = config.workers;
  o.counter_start = config.counter_start;
  o.ring_slots = config.proxy.ring_slots;
  o.engine = config.proxy.engine;
  o.drive = config.proxy.drive == proxy_drive::shared ? proxy_drive::shared : proxy_drive::threads;
  o.driver_threads = config.proxy.driver_threads;
  o.driver.idle = proxy::polite;
  o.driver.stall_ns = config.proxy.stall_ns;
  return o;
}

/// Runs it over `own`, whose messages go through `world.own`.
template <class Setting>
void run_over(typename Setting::transport& own, typename Setting::world& world,
              const run_config& config, const router& routes, rank_outcome& out) {
  host_rig<Setting> rig(config, world, own);
  rank_run<host_rig<Setting>>(config, routes, rig, out.report, out.verdict)();
  libfabric& fabric = world.own;
  fabric.quiet();
  if (const result<void> fault = own.fault(); !fault) out.fault = fault.error().message();
  out.intact = fabric.intact();
  out.commands = world.commands();
  out.messages = world.lone_rank::messages(0);
  out.slot_bytes = fabric.engine_options().slot_bytes;
  out.statistics = fabric.statistics(0).json();
  out.affinity = fabric.affinity().front();
  out.provider = fabric.ports().provider();
  out.node = own.view().node(own.view().rank());
}

/// Runs the rank over shared memory inside its node and libfabric between nodes.
[[nodiscard]] rank_outcome run_pair(const run_config& config, bootstrap& meeting,
                                    const proxy::fabric_options& fabric);

}  // namespace eptransport::support
