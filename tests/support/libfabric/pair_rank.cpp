// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief A rank over two wires: shared memory inside its node, libfabric between nodes.
#include <eptransport/backends/hybrid/hybrid.hpp>
#include <eptransport/backends/libfabric/libfabric.hpp>
#include <eptransport/backends/shared_memory/shared_memory.hpp>

#include <cstdint>
#include <vector>

#include "support/libfabric/rank_impl.hpp"

namespace eptransport::support {
namespace {

using pair = hybrid<shared_memory, libfabric>;

/// The rank that is here, and what of its messages stays inside the node.
struct pair_world : lone_rank {
  const shared_memory& inside;

  struct split {
    std::uint64_t inter_messages;
    std::uint64_t inter_bytes;
  };
  [[nodiscard]] split traffic(int rank) const {
    return {lone_rank::messages(rank), lone_rank::bytes(rank)};
  }
  [[nodiscard]] std::uint64_t messages(int rank) const {
    return lone_rank::messages(rank) + inside.messages();
  }
  [[nodiscard]] std::uint64_t bytes(int rank) const {
    return lone_rank::bytes(rank) + inside.bytes();
  }
};

struct pair_setting {
  using transport = pair;
  using world = pair_world;
  static constexpr bool counts = false;
};

/// @returns why it could not begin
[[nodiscard]] result<void> build_and_run(const run_config& config, bootstrap& meeting,
                                         const proxy::fabric_options& fabric, rank_outcome& out) {
  const auto map = node_map::from_numbers(meeting.nodes());
  if (!map) return map.error();
  const auto needs = needs_of<pair>(config, map->node());
  if (!needs) return needs.error();
  proxied_options options = options_of(config, *needs);
  const auto inside = shared_memory::create(meeting, {.window_bytes = options.window_bytes,
                                                      .signals = options.signals,
                                                      .channels = options.channels,
                                                      .workers = options.workers,
                                                      .counter_start = options.counter_start});
  if (!inside) return inside.error();
  options.window = (*inside)->window();
  options.window_owner = (*inside)->window_owner();
  options.nodes = meeting.nodes();
  options.counter_start = 0;
  const auto between = libfabric::create(meeting, options, fabric);
  if (!between) return between.error();
  const auto both = pair::create(**inside, **between, *map);
  if (!both) return both.error();
  pair_world world{{**between, config.proxy.comms}, **inside};
  run_over<pair_setting>(**both, world, config, needs->routes, out);
  out.intact = (*inside)->intact();
  return {};
}

}  // namespace

rank_outcome run_pair(const run_config& config, bootstrap& meeting,
                      const proxy::fabric_options& fabric) {
  rank_outcome out;
  if (const result<void> ran = build_and_run(config, meeting, fabric, out); !ran) {
    out.error = ran.error().message();
    meeting.abort(out.error);
  }
  return out;
}

}  // namespace eptransport::support
