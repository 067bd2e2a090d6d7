// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Combine through relays: a node's partial rows are added up before one message goes back.
///
/// A rank keeps its partial rows for other nodes in its own window and tells every rank of its node
/// once that they, and what it stored for that rank itself, are there. A relay reads the partials
/// of the rows that it passed on, adds them in rank order in fp32, rounds once to the wire's type
/// and returns the sums of a source together. Order of work: write partials; reduce and return;
/// only then wait for one's own. Partials stay until the rank's next combine, which follows an
/// exchange: that proves that the relay has read them (INV-3).
#pragma once

#include <eptransport/core/config.hpp>
#include <eptransport/core/transport.hpp>
#include <eptransport/kernels/lane.hpp>
#include <eptransport/kernels/layout.hpp>
#include <eptransport/kernels/receive.hpp>
#include <eptransport/kernels/relay_route.hpp>
#include <eptransport/kernels/rows.hpp>

#include <cstddef>
#include <cstdint>

namespace eptransport::detail {

/// Where the partial, or the staged return, of a received row lies; offset in the window. A relay
/// must find it from source and slot alone: slotted rows have a place for every slot.
[[nodiscard]] EPT_HOST_DEVICE inline std::uint64_t return_place(const geometry& geo,
                                                                const handle_parts& handle,
                                                                const received_row& row) {
  const bool slotted = handle.header->in.mode == dispatch_mode::slotted;
  if (geo.message != message_shape::per_node || !slotted) return geo.staged_return(row.index);
  return geo.staged_return(row.source * geo.max_tokens + row.slot);
}

/// The last part of a send half: tells this worker's share of the node's other ranks.
EPT_NO_EXEC_CHECK
template <class Context>
EPT_HOST_DEVICE void signal_node(const Context& ctx) {
  const geometry& geo = ctx.geo;
  const node_table& table = geo.relay.table;
  const std::int32_t own = table.node[geo.rank];
  for (std::int32_t i = static_cast<std::int32_t>(ctx.worker.worker()); i < table.size(own);
       i += static_cast<std::int32_t>(ctx.worker.workers())) {
    const std::int32_t peer = table.rank_at(own, i);
    if (peer == geo.rank || !ctx.ok()) continue;
    (void)sent(
        ctx,
        ctx.view.signal(ctx.worker, ctx.channel, peer, geo.node_signal(geo.rank), ctx.deadline),
        stage::combine_send, peer);
  }
  ctx.view.submit(ctx.worker, ctx.channel);
}

/// Waits until the other ranks of the node have told this one; worker w for i = w, w + workers, ..
EPT_NO_EXEC_CHECK
template <class Context>
EPT_HOST_DEVICE void await_node(const Context& ctx, std::uint64_t next) {
  const geometry& geo = ctx.geo;
  const node_table& table = geo.relay.table;
  const std::int32_t own = table.node[geo.rank];
  const std::int32_t size = table.size(own);
  awaited what{.signal = geo.node_signal(0),
               .target = 0,
               .where = stage::combine_recv,
               .peer = -1,
               .next = next};
  if (geo.sources == 1) {
    if (ctx.worker.worker() == 0) (void)await_due(ctx, ctx.lane.relay_due, what, size - 1);
    return;
  }
  for (std::int32_t i = static_cast<std::int32_t>(ctx.worker.worker()); i < size && ctx.ok();
       i += static_cast<std::int32_t>(ctx.worker.workers())) {
    what.peer = table.rank_at(own, i);
    what.signal = geo.node_signal(what.peer);
    if (what.peer != geo.rank && !await_due(ctx, ctx.lane.relay_due, what, 1)) return;
  }
}

/// The partials of one relayed row, in rank order (`sum_rows`' source).
template <class View>
class partial_rows {
 public:
  static constexpr bool weighted = false;

  EPT_NO_EXEC_CHECK
  EPT_HOST_DEVICE partial_rows(const View& view, const geometry& geo, const route_entry* entries)
      : view_(&view), geo_(&geo), entries_(entries) {
    EPT_UNROLL
    for (int i = 0; i < held; ++i) held_[i] = i < geo.top_k ? look_up(i) : nullptr;
  }
  [[nodiscard]] EPT_HOST_DEVICE std::int32_t count() const { return geo_->top_k; }
  EPT_NO_EXEC_CHECK
  [[nodiscard]] EPT_HOST_DEVICE const std::byte* row(std::int32_t i) const {
    return i < held ? held_[i] : look_up(i);
  }
  [[nodiscard]] EPT_HOST_DEVICE static float weight(std::int32_t) { return 1.0F; }
  [[nodiscard]] EPT_HOST_DEVICE static const std::byte* bias() { return nullptr; }

 private:
  static constexpr int held = 8;

  EPT_NO_EXEC_CHECK
  [[nodiscard]] EPT_HOST_DEVICE const std::byte* look_up(std::int32_t i) const {
    if (entries_[i].rank < 0) return nullptr;
    return view_->peer_pointer(entries_[i].rank, geo_->staged_return(entries_[i].slot),
                               geo_->return_bytes);
  }

  const View* view_;
  const geometry* geo_;
  const route_entry* entries_;
  const std::byte* held_[held];
};

/// Adds up one relayed row.
EPT_NO_EXEC_CHECK
template <class View, class W>
EPT_HOST_DEVICE void reduce_partials(const lane_context<View, W>& ctx, const route_entry* entries,
                                     std::byte* dst) {
  const geometry& geo = ctx.geo;
  const partial_rows<View> rows(ctx.view, geo, entries);
  sum_rows(ctx.worker, dst, 0, geo.hidden, rows, geo.wire, geo.wire);
  if (geo.return_values == 0) return;
  for (std::int32_t j = static_cast<std::int32_t>(ctx.worker.thread()); j < geo.top_k;
       j += static_cast<std::int32_t>(ctx.worker.threads())) {
    float sum = 0;
    for (std::int32_t i = 0; i < geo.top_k; ++i) {
      const std::byte* row = rows.row(i);
      if (row != nullptr) sum += reinterpret_cast<const float*>(row + geo.return_values)[j];
    }
    reinterpret_cast<float*>(dst + geo.return_values)[j] = sum;
  }
}

/// The relay's part of a receive half: reduce, then return to each source. All workers call.
EPT_NO_EXEC_CHECK
template <class Context>
EPT_HOST_DEVICE void relay_returns(const Context& ctx, const handle_parts& handle,
                                   std::uint64_t next) {
  const geometry& geo = ctx.geo;
  const relay_layout& relay = geo.relay;
  const auto& worker = ctx.worker;
  if (ctx.ok()) await_node(ctx, next);
  ctx.barrier(stage::combine_recv);
  for (relayed_sources at(relay.table, geo.rank); !at.done() && ctx.ok(); at.next()) {
    const share mine = share_of(worker, handle.relay_rows[at.index()]);
    for (std::int64_t row = mine.begin; row < mine.end; ++row) {
      reduce_partials(
          ctx, handle.relayed + (at.index() * relay.tokens + row) * geo.top_k,
          ctx.view.local() + relay.returns + relay.at(at.index(), row, geo.return_bytes));
    }
  }
  ctx.barrier(stage::combine_recv);
  for (relayed_sources at(relay.table, geo.rank); !at.done() && ctx.ok(); at.next()) {
    if (static_cast<std::uint32_t>(at.index()) % worker.workers() != worker.worker()) continue;
    (void)put_pieces(
        ctx,
        {.peer = at.source(),
         .dst_offset = geo.return_row(handle.relay_base[at.index()]),
         .src = ctx.view.local() + relay.returns + relay.at(at.index(), 0, geo.return_bytes),
         .bytes = geo.return_bytes,
         .signal = geo.combine_signal(geo.rank)},
        handle.relay_rows[at.index()], geo.returns_per_message, stage::combine_recv);
  }
  ctx.view.submit(worker, ctx.channel);
}

/// Waits for what the relays of other nodes return; what the own node stored is there already.
EPT_NO_EXEC_CHECK
template <class Context>
EPT_HOST_DEVICE void await_node_returns(const Context& ctx, const handle_parts& handle,
                                        std::uint64_t next) {
  const geometry& geo = ctx.geo;
  const node_table& table = geo.relay.table;
  const bool summed = geo.sources == 1;
  awaited what{.signal = geo.combine_signal(0),
               .target = 0,
               .where = stage::combine_recv,
               .peer = -1,
               .next = next};
  std::int64_t all = 0;
  for (std::int32_t n = 0; n < table.nodes && ctx.ok(); ++n) {
    if (n == table.node[geo.rank]) continue;
    const std::int64_t messages = geo.return_messages(handle.node_sent[n]);
    all += messages;
    if (summed || static_cast<std::uint32_t>(n) % ctx.worker.workers() != ctx.worker.worker()) {
      continue;
    }
    what.peer = table.rail(geo.rank, n);
    what.signal = geo.combine_signal(what.peer);
    if (!await_due(ctx, ctx.lane.returns_due, what, messages)) return;
  }
  what.peer = -1;
  what.signal = geo.combine_signal(0);
  if (summed && ctx.worker.worker() == 0 && ctx.ok()) {
    (void)await_due(ctx, ctx.lane.returns_due, what, all);
  }
}

}  // namespace eptransport::detail
