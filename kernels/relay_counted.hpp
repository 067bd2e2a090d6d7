// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Counted dispatch through relays: counts fan out as D messages, rows follow in node slots.
///
/// A node slot carries the place of its row at each rank, which the source knows from everybody's
/// counts; the relay stores row and side there. The combine zone of a rank begins with what other
/// nodes return, in order of node, because only the rank itself knows those counts when it tells
/// the relays where to return to; the rows of its own node follow.
#pragma once

#include <eptransport/core/config.hpp>
#include <eptransport/core/transport.hpp>
#include <eptransport/kernels/lane.hpp>
#include <eptransport/kernels/layout.hpp>
#include <eptransport/kernels/receive.hpp>
#include <eptransport/kernels/relay_dispatch.hpp>
#include <eptransport/kernels/relay_route.hpp>

#include <cstddef>
#include <cstdint>

namespace eptransport::detail {

/// Sends the counts to this worker's share of the other nodes. After the routing's barriers.
EPT_NO_EXEC_CHECK
template <class Context>
EPT_HOST_DEVICE void announce_counts_to_nodes(const Context& ctx, const dispatch_input& in,
                                              const handle_parts& handle) {
  const auto& worker = ctx.worker;
  const geometry& geo = ctx.geo;
  const relay_layout& relay = geo.relay;
  const node_table& table = relay.table;
  const std::uint64_t bytes = in.cached ? 0 : geo.counts_bytes() - sizeof(message_header);
  for (std::int32_t i = static_cast<std::int32_t>(worker.worker()); i + 1 < table.nodes;
       i += static_cast<std::int32_t>(worker.workers())) {
    const std::int32_t n = (table.node[geo.rank] + 1 + i) % table.nodes;
    std::byte* body = ctx.view.local() + relay.staged(ctx.epoch, n) + relay.head_bytes;
    for (std::int64_t c = worker.thread(); c < geo.ranks + geo.experts && bytes != 0;
         c += worker.threads()) {
      reinterpret_cast<std::int64_t*>(body)[c] = ctx.lane.totals[c];
    }
    if (!ctx.ok()) return;
    announce_node(ctx, n,
                  {.stamp = stamp_of(ctx.epoch),
                   .config = geo.config_of(dispatch_mode::counted, in.cached),
                   .rows = handle.node_sent[n],
                   .limit = static_cast<std::uint64_t>(in.landing_rows != 0 ? in.landing_rows
                                                                            : geo.counted_rows),
                   .value = in.landing != 0 ? in.landing : geo.rows,
                   .node_rows = static_cast<std::uint64_t>(node_rows_below(handle, n))},
                  handle.sent, bytes);
  }
}

/// Where combine rows will lie, once it is known what is kept: replaces what plan_counted() noted
/// for rank r. `kept(source, to)`: rows that are sent.
EPT_NO_EXEC_CHECK
template <class Context, class Kept>
EPT_HOST_DEVICE void relay_bases(const Context& ctx, const handle_parts& handle, std::int32_t r,
                                 const Kept& kept) {
  const geometry& geo = ctx.geo;
  const node_table& table = geo.relay.table;
  if (!geo.near(r)) {
    handle.sent_base[r] = node_rows_below(handle, table.node[r]);
    handle.return_base[r] = 0;  // its relay knows
    return;
  }
  std::int64_t sent_base = node_rows_below(handle, table.nodes);
  auto return_base =
      r == geo.rank ? sent_base : static_cast<std::int64_t>(header_of(ctx, ctx.epoch, r).node_rows);
  for (std::int32_t below = 0; below < geo.ranks; ++below) {
    if (!geo.near(below)) continue;
    if (below < r) sent_base += kept(geo.rank, below);
    if (below < geo.rank) return_base += kept(r, below);
  }
  handle.sent_base[r] = sent_base;
  handle.return_base[r] = return_base;
}

/// Stages this worker's share of the rows for other nodes. A barrier and `send_node_rows` follow.
EPT_NO_EXEC_CHECK
template <class Context>
EPT_HOST_DEVICE void stage_node_rows(const Context& ctx, const dispatch_input& in,
                                     const handle_parts& handle, std::int64_t tokens) {
  const share mine = share_of(ctx.worker, tokens);
  for (std::int64_t t = mine.begin; t < mine.end && ctx.ok(); ++t) {
    stage_for_nodes(ctx, in, handle, t);
  }
}

/// Sends the staged rows to this worker's share of the other nodes.
EPT_NO_EXEC_CHECK
template <class Context>
EPT_HOST_DEVICE void send_node_rows(const Context& ctx, const handle_parts& handle) {
  const geometry& geo = ctx.geo;
  const relay_layout& relay = geo.relay;
  const node_table& table = relay.table;
  for (std::int32_t i = static_cast<std::int32_t>(ctx.worker.worker()); i + 1 < table.nodes;
       i += static_cast<std::int32_t>(ctx.worker.workers())) {
    const std::int32_t n = (table.node[geo.rank] + 1 + i) % table.nodes;
    if (!ctx.ok()) return;
    const auto first = static_cast<std::uint64_t>(node_rows_below(handle, n));
    (void)put_pieces(ctx,
                     {.peer = table.rail(geo.rank, n),
                      .dst_offset = relay.rows + relay.at(relayed_index(table, geo.rank, n), 0,
                                                          relay.slot_bytes),
                      .src = ctx.view.local() + relay.staged_rows + first * relay.slot_bytes,
                      .bytes = relay.slot_bytes,
                      .signal = geo.relay_rows_signal(geo.rank)},
                     handle.node_sent[n], relay.counted_per_message, stage::dispatch_send);
  }
  ctx.view.submit(ctx.worker, ctx.channel);
}

/// Stores a counted row and its side to their final places at each of its ranks.
EPT_NO_EXEC_CHECK
template <class Context>
EPT_HOST_DEVICE void forward_counted(const Context& ctx, std::byte* slot, route_entry* entries) {
  const geometry& geo = ctx.geo;
  const std::int64_t* positions = positions_of(geo, slot);
  const auto* choices =
      reinterpret_cast<const slot_choice*>(slot + geo.choice_offset + sizeof(std::int64_t));
  note_relayed(ctx, positions, choices, 0, entries);
  for (std::int32_t j = 0; j < geo.top_k; ++j) {
    if (positions[j] < 0) continue;
    const std::int32_t to = geo.placement[choices[j].expert].rank;
    const auto at = static_cast<std::uint64_t>(positions[j]);
    std::byte* row = ctx.view.peer_pointer(
        to, header_of(ctx, ctx.epoch, to).value + at * geo.row_bytes, geo.row_bytes);
    std::byte* side = ctx.view.peer_pointer(to, geo.sides + at * geo.side_bytes, geo.side_bytes);
    if (row == nullptr || side == nullptr) {
      (void)sent(ctx, op_status::failed, stage::rows, to);
      return;
    }
    ctx.worker.copy(row, slot, geo.row_bytes);
    ctx.worker.copy(side, slot + geo.scale_offset, geo.side_bytes);
  }
}

/// Passes on the counted rows that other nodes sent through this rank. All workers call. `kept(s,
/// to)`: rows of source s that are sent to a rank of this node.
EPT_NO_EXEC_CHECK
template <class Context, class Kept>
EPT_HOST_DEVICE void relay_rows(const Context& ctx, const handle_parts& handle, const Kept& kept) {
  const geometry& geo = ctx.geo;
  const auto& worker = ctx.worker;
  const relay_layout& relay = geo.relay;
  const node_table& table = relay.table;
  const bool summed = geo.sources == 1;
  std::uint64_t* due = ctx.lane.relay_due + geo.sources;
  const auto messages = [&](std::int32_t index) {
    return geometry::pieces(handle.relay_rows[index], relay.counted_per_message);
  };
  awaited what{.signal = geo.relay_rows_signal(0),
               .target = 0,
               .where = stage::rows,
               .peer = -1,
               .next = ctx.epoch + 1};
  bool whole = ctx.ok();
  if (whole && summed) {
    std::int64_t all = 0;
    for (relayed_sources at(table, geo.rank); !at.done(); at.next()) all += messages(at.index());
    whole = await_more(ctx, due, what, all);
  }
  for (relayed_sources at(table, geo.rank); !at.done() && whole && ctx.ok(); at.next()) {
    if (!summed) {
      what.peer = at.source();
      what.signal = geo.relay_rows_signal(at.source());
      whole = await_more(ctx, due + at.source(), what, messages(at.index()));
      if (!whole) break;
    }
    const share mine = share_of(worker, handle.relay_rows[at.index()]);
    for (std::int64_t row = mine.begin; row < mine.end; ++row) {
      const std::int64_t entry = (at.index() * relay.tokens + row) * geo.top_k;
      forward_counted(ctx,
                      ctx.view.local() + relay.rows + relay.at(at.index(), row, relay.slot_bytes),
                      handle.relayed + entry);
    }
  }
  ctx.barrier(stage::rows);
  if (!ctx.ok()) return;
  const std::int32_t own = table.node[geo.rank];
  const std::int32_t size = table.size(own);
  for (relayed_sources at(table, geo.rank); !at.done() && ctx.ok(); at.next()) {
    for (std::int32_t i = 0; i < size; ++i) {
      const auto turn = static_cast<std::uint32_t>(at.index() * size + i);
      const std::int32_t to = table.rank_at(own, i);
      if (turn % worker.workers() != worker.worker() || kept(at.source(), at.index(), i) == 0) {
        continue;
      }
      (void)sent(
          ctx,
          ctx.view.signal(worker, ctx.channel, to, geo.counted_signal(at.source()), ctx.deadline),
          stage::rows, to);
    }
    if (worker.worker() == 0 && worker.thread() == 0) {
      due[geo.word(at.source())] += static_cast<std::uint64_t>(messages(at.index()));
    }
  }
  ctx.view.submit(worker, ctx.channel);
}

}  // namespace eptransport::detail
