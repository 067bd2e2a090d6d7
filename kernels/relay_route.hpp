// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Routing by node: a token's row in each node's message, and who returns what.
///
/// row(token, node) = number of earlier tokens that go to that node, as slots are found in
/// route.hpp. The columns of nodes lie behind those of ranks and experts.
#pragma once

#include <eptransport/core/config.hpp>
#include <eptransport/kernels/lane.hpp>
#include <eptransport/kernels/layout.hpp>
#include <eptransport/kernels/route.hpp>

#include <cstdint>
#include <type_traits>

namespace eptransport::detail {

/// True if views of this type may reach a node through a relay: others compile nothing of it.
template <class View>
inline constexpr bool has_relays = requires { requires View::node_reach; };

template <class Context>
[[nodiscard]] EPT_HOST_DEVICE bool through_relays(const Context& ctx) {
  if constexpr (has_relays<std::remove_cvref_t<decltype(ctx.view)>>) {
    return ctx.geo.message == message_shape::per_node;
  } else {
    return false;
  }
}

/// First column of the nodes.
[[nodiscard]] EPT_HOST_DEVICE inline std::int64_t node_column(const geometry& geo) noexcept {
  return geo.ranks + geo.experts;
}

/// The rank that returns choice j's row to this rank, if j is the token's first choice there; else
/// -1. In the own node: the choice's rank; in another: this rank's rail.
[[nodiscard]] EPT_HOST_DEVICE inline std::int32_t returner(const geometry& geo,
                                                           const dispatch_input& in,
                                                           std::int64_t token, std::int32_t j) {
  const std::int32_t rank = rank_of(geo, read_index(in, token * geo.top_k + j));
  if (rank < 0) return -1;
  if (geo.near(rank)) return leads(geo, in, token, j, rank) ? rank : -1;
  const std::int32_t* node = geo.relay.table.node;
  for (std::int32_t i = 0; i < j; ++i) {
    const std::int32_t other = rank_of(geo, read_index(in, token * geo.top_k + i));
    if (other >= 0 && node[other] == node[rank]) return -1;
  }
  return geo.relay.table.rail(geo.rank, node[rank]);
}

/// First pass: this worker's tokens per other node.
EPT_NO_EXEC_CHECK
template <class Context>
EPT_HOST_DEVICE void count_nodes(const Context& ctx, const dispatch_input& in,
                                 std::int64_t tokens) {
  const auto& worker = ctx.worker;
  const geometry& geo = ctx.geo;
  const node_table& table = geo.relay.table;
  std::int64_t* counts = ctx.lane.counts + worker.worker() * ctx.lane.width + node_column(geo);
  for (std::int64_t n = worker.thread(); n < table.nodes; n += worker.threads()) counts[n] = 0;
  worker.sync();
  const share mine = share_of(worker, tokens);
  for (std::int64_t t = mine.begin; t < mine.end; ++t) {
    for (std::int32_t j = static_cast<std::int32_t>(worker.thread()); j < geo.top_k;
         j += static_cast<std::int32_t>(worker.threads())) {
      const std::int32_t back = returner(geo, in, t, j);
      // First choices of one token have different nodes: no two threads meet in a counter.
      if (back >= 0 && !geo.near(back)) ++counts[table.node[back]];
    }
    worker.sync();
  }
}

/// The slot of the token's row at `rank`.
[[nodiscard]] EPT_HOST_DEVICE inline std::int64_t slot_at(const geometry& geo,
                                                          const route_entry* routes,
                                                          std::int32_t rank) {
  for (std::int32_t i = 0; i < geo.top_k && routes[i].rank >= 0; ++i) {
    if (routes[i].rank == rank) return routes[i].slot;
  }
  return -1;
}

/// Second pass, after that of route.hpp: who returns the rows of this worker's tokens, ascending by
/// rank; the slot is that at a rank of the node, or the row in the message to another node.
EPT_NO_EXEC_CHECK
template <class Context>
EPT_HOST_DEVICE void assign_returners(const Context& ctx, const dispatch_input& in,
                                      std::int64_t tokens, const handle_parts& handle) {
  const auto& worker = ctx.worker;
  const geometry& geo = ctx.geo;
  const node_table& table = geo.relay.table;
  std::int64_t* next = ctx.lane.starts + worker.worker() * ctx.lane.width + node_column(geo);
  const share mine = share_of(worker, tokens);
  for (std::int64_t t = mine.begin; t < mine.end; ++t) {
    const route_entry* routes = handle.routes + t * geo.top_k;
    route_entry* returned = handle.returned + t * geo.top_k;
    std::int64_t found = 0;
    for (std::int32_t j = static_cast<std::int32_t>(worker.thread()); j < geo.top_k;
         j += static_cast<std::int32_t>(worker.threads())) {
      const std::int32_t back = returner(geo, in, t, j);
      if (back < 0) continue;
      std::int32_t position = 0;
      for (std::int32_t i = 0; i < geo.top_k; ++i) {
        const std::int32_t other = returner(geo, in, t, i);
        if (other >= 0 && other < back) ++position;
      }
      const std::int64_t slot =
          geo.near(back) ? slot_at(geo, routes, back) : next[table.node[back]]++;
      returned[position] = {.slot = slot, .rank = back, .unused = 0};
      ++found;
    }
    found = worker.sum(found);
    for (std::int64_t p = found + worker.thread(); p < geo.top_k; p += worker.threads()) {
      returned[p] = {.slot = 0, .rank = -1, .unused = 0};
    }
    worker.sync();
  }
}

/// A row for a rank of the own node was dropped: it does not come back.
EPT_NO_EXEC_CHECK
template <class Context>
EPT_HOST_DEVICE void drop_returned(const Context& ctx, const handle_parts& handle,
                                   std::int64_t token, std::int32_t rank) {
  route_entry* returned = handle.returned + token * ctx.geo.top_k;
  for (std::int32_t i = 0; i < ctx.geo.top_k; ++i) {
    if (returned[i].rank == rank && ctx.geo.near(rank)) returned[i].slot = -1;
  }
}

/// Rows in the messages to nodes below n: counted rows are staged, and returned, in that order.
[[nodiscard]] EPT_HOST_DEVICE inline std::int64_t node_rows_below(const handle_parts& handle,
                                                                  std::int32_t n) {
  std::int64_t rows = 0;
  for (std::int32_t below = 0; below < n; ++below) rows += handle.node_sent[below];
  return rows;
}

}  // namespace eptransport::detail
