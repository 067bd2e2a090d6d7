// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Counted dispatch: exchange the counts, then every row goes straight to its final place.
///
/// The D messages carry each rank's rows for all ranks, its choices per expert, the rows it can
/// take and where. Having them all, every rank computes every total: an overflow is known
/// everywhere before a row moves (INV-7). Row i of rank s for rank d lands at place (rows of ranks
/// below s for d) + i.
///
/// | shape    | rows                    | sides (scales, token, choices) | counted signals      |
/// |----------|-------------------------|--------------------------------|----------------------|
/// | per_row  | one put each            | packed, as few puts as fit     | rows + puts of sides |
/// | per_peer | packed                  | packed                         | puts of both         |
/// | direct   | stored through pointers | stored through pointers        | one, after all       |
/// | per_node | direct in the node, relay_counted.hpp for others          | one, after all       |
#pragma once

#include <eptransport/core/config.hpp>
#include <eptransport/core/transport.hpp>
#include <eptransport/kernels/counted_wait.hpp>
#include <eptransport/kernels/lane.hpp>
#include <eptransport/kernels/layout.hpp>
#include <eptransport/kernels/messages.hpp>
#include <eptransport/kernels/pieces.hpp>
#include <eptransport/kernels/receive.hpp>
#include <eptransport/kernels/relay_counted.hpp>
#include <eptransport/kernels/write.hpp>

#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace eptransport::detail {

/// What rank `source` announced: rows per rank [R], then choices per expert [E].
template <class Context>
[[nodiscard]] EPT_HOST_DEVICE const std::int64_t* counts_from(const Context& ctx,
                                                              std::int32_t source) {
  return reinterpret_cast<const std::int64_t*>(&header_of(ctx, ctx.epoch, source) + 1);
}

/// Rows that rank `to` can take.
template <class Context>
[[nodiscard]] EPT_HOST_DEVICE std::int64_t room_at(const Context& ctx, std::int32_t to) {
  return static_cast<std::int64_t>(header_of(ctx, ctx.epoch, to).limit);
}

/// Rows for `to` of all ranks below `source`.
EPT_NO_EXEC_CHECK
template <class Context>
[[nodiscard]] EPT_HOST_DEVICE std::int64_t rows_below(const Context& ctx, std::int32_t source,
                                                      std::int32_t to) {
  std::int64_t rows = 0;
  for (std::int32_t s = 0; s < source; ++s) rows += counts_from(ctx, s)[to];
  return rows;
}

/// Rows of `source` for `to` that are sent: all, or those that fit.
EPT_NO_EXEC_CHECK
template <class Context>
[[nodiscard]] EPT_HOST_DEVICE std::int64_t kept_rows(const Context& ctx, std::int32_t source,
                                                     std::int32_t to) {
  const std::int64_t wanted = counts_from(ctx, source)[to];
  if (ctx.geo.overflow == overflow_policy::error) return wanted;
  const std::int64_t left = room_at(ctx, to) - rows_below(ctx, source, to);
  return left < 0 ? 0 : left < wanted ? left : wanted;
}

/// Sends the counts. After the routing's barriers.
EPT_NO_EXEC_CHECK
template <class Context>
EPT_HOST_DEVICE void announce_counts(const Context& ctx, const dispatch_input& in,
                                     const handle_parts& handle) {
  if (!ctx.ok()) return;
  const auto& worker = ctx.worker;
  const geometry& geo = ctx.geo;
  begin_announcing(ctx);
  const std::uint64_t bytes = in.cached ? sizeof(message_header) : geo.counts_bytes();
  std::int64_t node_rows = 0;
  if constexpr (has_relays<std::remove_cvref_t<decltype(ctx.view)>>) {
    if (through_relays(ctx)) {
      announce_counts_to_nodes(ctx, in, handle);
      node_rows = node_rows_below(handle, geo.relay.table.nodes);
    }
  }
  for (std::int32_t i = static_cast<std::int32_t>(worker.worker()); i < geo.ranks;
       i += static_cast<std::int32_t>(worker.workers())) {
    const std::int32_t peer = peer_at(geo, i);
    if (geo.relayed(peer)) continue;
    std::byte* message = place_header(
        ctx, peer,
        {.stamp = stamp_of(ctx.epoch),
         .config = geo.config_of(dispatch_mode::counted, in.cached),
         .rows = handle.sent[peer],
         .limit =
             static_cast<std::uint64_t>(in.landing_rows != 0 ? in.landing_rows : geo.counted_rows),
         .value = in.landing != 0 ? in.landing : geo.rows,
         .node_rows = static_cast<std::uint64_t>(node_rows)});
    auto* counts = reinterpret_cast<std::int64_t*>(message + sizeof(message_header));
    for (std::int64_t c = worker.thread(); c < geo.ranks + geo.experts && !in.cached;
         c += worker.threads()) {
      counts[c] = ctx.lane.totals[c];
    }
    worker.sync();
    if (peer != geo.rank && !send_d(ctx, message, bytes, ctx.epoch, peer)) return;
  }
  ctx.view.submit(worker, ctx.channel);
}

/// From everybody's counts to this rank's bases, and the overflow check. One thread per rank.
EPT_NO_EXEC_CHECK
template <class Context>
EPT_HOST_DEVICE void plan_counted(const Context& ctx, const handle_parts& handle) {
  using memory = typename std::remove_reference_t<decltype(ctx.worker)>::memory;
  const auto& worker = ctx.worker;
  const geometry& geo = ctx.geo;
  const auto threads = static_cast<std::int32_t>(worker.threads());
  for (std::int32_t r = static_cast<std::int32_t>(worker.worker()) * threads +
                        static_cast<std::int32_t>(worker.thread());
       r < geo.ranks; r += static_cast<std::int32_t>(worker.workers()) * threads) {
    const std::int64_t total = rows_below(ctx, geo.ranks, r);
    if (total > room_at(ctx, r) && geo.overflow == overflow_policy::error) {
      raise(ctx, {.kind = fault_kind::capacity,
                  .where = stage::dispatch_recv,
                  .peer = r,
                  .expected = static_cast<std::uint64_t>(room_at(ctx, r)),
                  .seen = static_cast<std::uint64_t>(total)});
      // All ranks find this in the same counts. A stop that overtakes the counts of a late rank
      // would only hide the fault from the others; read in leave().
      memory::store_release(&ctx.lane.state->stop_sent, 1);
    }
    std::int64_t sent_base = 0;
    std::int64_t return_base = 0;
    for (std::int32_t below = 0; below < r; ++below) {
      sent_base += kept_rows(ctx, geo.rank, below);
    }
    for (std::int32_t below = 0; below < geo.rank; ++below) {
      return_base += kept_rows(ctx, r, below);
    }
    handle.sent[r] = kept_rows(ctx, geo.rank, r);
    handle.received[r] = kept_rows(ctx, r, geo.rank);
    handle.sent_base[r] = sent_base;
    handle.return_base[r] = return_base;
    handle.place_base[r] = rows_below(ctx, geo.rank, r);
    if (through_relays(ctx)) {
      relay_bases(ctx, handle, r, [&ctx](std::int32_t source, std::int32_t to) {
        return kept_rows(ctx, source, to);
      });
    }
  }
}

/// Publishes what the counts already say, before a row moves: frameworks may allocate by it.
EPT_NO_EXEC_CHECK
template <class Context>
EPT_HOST_DEVICE void publish_early(const Context& ctx, const dispatch_output& out) {
  const auto& worker = ctx.worker;
  const geometry& geo = ctx.geo;
  if (worker.worker() != 0) return;
  const std::int64_t total = rows_below(ctx, geo.ranks, geo.rank);
  const std::int64_t room = room_at(ctx, geo.rank);
  if (worker.thread() == 0 && out.dropped != nullptr)
    *out.dropped = total > room ? total - room : 0;
  if (out.host_counts == nullptr || geo.overflow == overflow_policy::drop) return;
  for (std::int64_t e = worker.thread(); e < geo.experts; e += worker.threads()) {
    if (geo.placement[e].rank != geo.rank) continue;
    std::int64_t count = 0;
    for (std::int32_t s = 0; s < geo.ranks; ++s) count += counts_from(ctx, s)[geo.ranks + e];
    out.host_counts[1 + geo.placement[e].local] = count;
  }
}

/// Where a counted row and its side go at one destination.
struct counted_place {
  std::byte* row;
  std::byte* side;
};

/// The destination itself (own rank, or direct), or its staging. Null: the pointer was refused.
EPT_NO_EXEC_CHECK
template <class Context>
[[nodiscard]] EPT_HOST_DEVICE counted_place place_of(const Context& ctx, const handle_parts& handle,
                                                     const route_entry& to, std::int64_t token) {
  const geometry& geo = ctx.geo;
  std::byte* window = ctx.view.local();
  const auto at = static_cast<std::uint64_t>(handle.place_base[to.rank] + to.slot);
  const std::uint64_t row = header_of(ctx, ctx.epoch, to.rank).value + at * geo.row_bytes;
  const std::uint64_t side = geo.sides + at * geo.side_bytes;
  if (to.rank == geo.rank) return {window + row, window + side};
  if (geo.stores(to.rank)) {
    return {ctx.view.peer_pointer(to.rank, row, geo.row_bytes),
            ctx.view.peer_pointer(to.rank, side, geo.side_bytes)};
  }
  const auto packed = static_cast<std::uint64_t>(handle.sent_base[to.rank] + to.slot);
  const auto row_index =
      geo.message == message_shape::per_row ? static_cast<std::uint64_t>(token) : packed;
  return {window + geo.staged_rows + row_index * geo.row_bytes,
          window + geo.staged_sides + packed * geo.side_bytes};
}

/// True if a row is sent: false if it was dropped now, or when the handle was filled.
[[nodiscard]] EPT_HOST_DEVICE inline bool travels(const handle_parts& handle,
                                                  const route_entry& to) noexcept {
  return to.slot >= 0 && to.slot < handle.sent[to.rank];
}

/// Stages one token's rows, or stores them where they are the own rank's, and sends those that
/// travel alone.
EPT_NO_EXEC_CHECK
template <class Context>
EPT_HOST_DEVICE void send_counted(const Context& ctx, const dispatch_input& in,
                                  const handle_parts& handle, std::int64_t token) {
  const geometry& geo = ctx.geo;
  const route_entry* routes = handle.routes + token * geo.top_k;
  const std::byte* staged_side = nullptr;  // per_row: of the staged row, which all puts share
  for (std::int32_t i = 0; i < geo.top_k && routes[i].rank >= 0; ++i) {
    const route_entry to = routes[i];
    if (!travels(handle, to) || geo.relayed(to.rank)) continue;  // a node's go in one message
    const counted_place place = place_of(ctx, handle, to, token);
    if (place.row == nullptr || place.side == nullptr) {
      (void)sent(ctx, op_status::failed, stage::dispatch_send, to.rank);
      return;
    }
    const bool alone = to.rank != geo.rank && geo.message == message_shape::per_row;
    if (alone && staged_side != nullptr) {
      ctx.worker.copy(place.side, staged_side, geo.side_bytes);
    } else {
      write_token(ctx, in, token, place.row, place.side);
    }
    if (!alone) continue;
    staged_side = place.side;
    const auto at = static_cast<std::uint64_t>(handle.place_base[to.rank] + to.slot);
    if (!put(ctx,
             {.peer = to.rank,
              .dst_offset = header_of(ctx, ctx.epoch, to.rank).value + at * geo.row_bytes,
              .src = place.row,
              .bytes = geo.row_bytes,
              .signal = geo.counted_signal(geo.rank)},
             stage::dispatch_send)) {
      return;
    }
  }
}

/// Where a token's row goes by its routes `first`, `first + 1`, .., each looked up by a thread of
/// its own. False: a place was refused.
EPT_NO_EXEC_CHECK
template <class Context>
[[nodiscard]] EPT_HOST_DEVICE bool find_places(const Context& ctx, const handle_parts& handle,
                                               std::int64_t token, std::int32_t first, fan& rows,
                                               fan& sides) {
  const auto& worker = ctx.worker;
  const route_entry* routes = handle.routes + token * ctx.geo.top_k;
  const auto threads = static_cast<std::int32_t>(worker.threads());
  const std::int32_t end = first + fan::most < ctx.geo.top_k ? first + fan::most : ctx.geo.top_k;
  const auto address = [](const std::byte* at) {
    return static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(at));
  };
  const auto pointer = [](std::int64_t at) {
    return reinterpret_cast<std::byte*>(static_cast<std::uintptr_t>(at));
  };
  for (std::int32_t base = first; base < end; base += threads) {
    const std::int32_t mine = base + static_cast<std::int32_t>(worker.thread());
    counted_place place{nullptr, nullptr};
    bool refused = false;
    if (mine < end) {
      const route_entry to = routes[mine];
      if (to.rank >= 0 && travels(handle, to)) {
        place = place_of(ctx, handle, to, token);
        refused = place.row == nullptr || place.side == nullptr;
        if (refused) raise_unsent(ctx, op_status::failed, stage::dispatch_send, to.rank);
      }
    }
    if (worker.any(refused)) return false;
    const std::int32_t here = end - base < threads ? end - base : threads;
    EPT_ROLLED
    for (std::int32_t t = 0; t < here; ++t) {
      const auto from = static_cast<std::uint32_t>(t);
      const std::int64_t row = worker.pick(address(place.row), from);
      const std::int64_t side = worker.pick(address(place.side), from);
      if (row == 0) continue;
      rows.add(pointer(row));
      sides.add(pointer(side));
    }
  }
  return true;
}

/// Stores this worker's share of the tokens at their final places everywhere.
EPT_NO_EXEC_CHECK
template <class Context>
EPT_HOST_DEVICE void store_counted(const Context& ctx, const dispatch_input& in,
                                   const handle_parts& handle, std::int64_t tokens) {
  const geometry& geo = ctx.geo;
  for_pieces(ctx.worker, tokens, row_units(geo), [&](const piece& part) {
    for (std::int32_t first = 0; first < geo.top_k; first += fan::most) {
      fan rows;
      fan sides;
      if (!find_places(ctx, handle, part.row, first, rows, sides)) return;
      write_piece(ctx, in, part, rows, sides);
    }
  });
}

/// Notes in the routes of this worker's share which rows were dropped. After a barrier: until then
/// others read the entries.
EPT_NO_EXEC_CHECK
template <class Context>
EPT_HOST_DEVICE void note_dropped(const Context& ctx, const handle_parts& handle,
                                  std::int64_t tokens) {
  if (ctx.geo.overflow == overflow_policy::error) return;
  const share mine = share_of(ctx.worker, tokens * ctx.geo.top_k);
  for (std::int64_t i = mine.begin + ctx.worker.thread(); i < mine.end; i += ctx.worker.threads()) {
    route_entry& to = handle.routes[i];
    if (to.rank < 0 || to.slot < handle.sent[to.rank]) continue;
    to.slot = -1;
    if (through_relays(ctx)) drop_returned(ctx, handle, i / ctx.geo.top_k, to.rank);
  }
}

/// What is packed for `peer`, or the signal that releases what was stored. After a barrier.
EPT_NO_EXEC_CHECK
template <class Context>
EPT_HOST_DEVICE void send_packed(const Context& ctx, const handle_parts& handle,
                                 std::int32_t peer) {
  const geometry& geo = ctx.geo;
  const std::int64_t rows = handle.sent[peer];
  const std::uint32_t signal = geo.counted_signal(geo.rank);
  if (rows == 0) return;
  if (geo.stores(peer)) {
    (void)sent(ctx, ctx.view.signal(ctx.worker, ctx.channel, peer, signal, ctx.deadline),
               stage::dispatch_send, peer);
    return;
  }
  const auto from = static_cast<std::uint64_t>(handle.sent_base[peer]);
  const auto to = static_cast<std::uint64_t>(handle.place_base[peer]);
  if (geo.message == message_shape::per_peer &&
      !put_pieces(ctx,
                  {.peer = peer,
                   .dst_offset = header_of(ctx, ctx.epoch, peer).value + to * geo.row_bytes,
                   .src = ctx.view.local() + geo.staged_rows + from * geo.row_bytes,
                   .bytes = geo.row_bytes,
                   .signal = signal},
                  rows, geo.counted_per_message, stage::dispatch_send)) {
    return;
  }
  (void)put_pieces(ctx,
                   {.peer = peer,
                    .dst_offset = geo.sides + to * geo.side_bytes,
                    .src = ctx.view.local() + geo.staged_sides + from * geo.side_bytes,
                    .bytes = geo.side_bytes,
                    .signal = signal},
                   rows, geo.sides_per_message, stage::dispatch_send);
  ctx.view.submit(ctx.worker, ctx.channel);
}

/// Stores the rows, and waits for the peers' by every crew for itself. Returns the rows per source,
/// the same for the workers of a crew; null: the lane has a fault.
EPT_NO_EXEC_CHECK
template <class Context>
[[nodiscard]] EPT_HOST_DEVICE const std::int64_t* exchange_stored_rows(const Context& ctx,
                                                                       const dispatch_input& in,
                                                                       const handle_parts& handle,
                                                                       std::int64_t tokens) {
  const auto& worker = ctx.worker;
  const bool sound = ctx.ok();
  if (sound) store_counted(ctx, in, handle, tokens);
  const arrival stored = worker.arrive();
  if (stored.last && ctx.ok()) {
    for (auto i = static_cast<std::int32_t>(worker.member()); i < ctx.geo.ranks;
         i += static_cast<std::int32_t>(worker.members())) {
      const std::int32_t peer = peer_at(ctx.geo, i);
      if (peer != ctx.geo.rank) send_packed(ctx, handle, peer);
    }
  }
  const bool came = sound && await_stored_rows(ctx, handle);
  return worker.crew_all(complete_arrival(ctx, stored, stage::rows) && came) ? handle.received
                                                                             : nullptr;
}

/// The second half of a counted dispatch, up to the arrival of all rows. Returns the rows per
/// source; null: the lane has a fault.
EPT_NO_EXEC_CHECK
template <class Context>
[[nodiscard]] EPT_HOST_DEVICE const std::int64_t* exchange_counted_rows(
    const Context& ctx, const dispatch_input& in, const dispatch_output& out,
    const handle_parts& handle) {
  const auto& worker = ctx.worker;
  const geometry& geo = ctx.geo;
  if (ctx.ok() && !in.cached) plan_counted(ctx, handle);
  if (ctx.ok() && in.cached) {
    for (std::int32_t r = 0; r < geo.ranks; ++r) {  // what this rank sends fits; all ranks look
      const std::int64_t end = handle.sent[r] > 0 ? handle.place_base[r] + handle.sent[r] : 0;
      if (end > room_at(ctx, r) && worker.thread() == 0) {
        raise(ctx, {.kind = fault_kind::capacity,
                    .where = stage::dispatch_recv,
                    .peer = r,
                    .expected = static_cast<std::uint64_t>(room_at(ctx, r)),
                    .seen = static_cast<std::uint64_t>(end)});
      }
    }
    expect_room(ctx, room_at(ctx, geo.rank), received_rows(geo, handle.received), -1);
  }
  ctx.barrier(stage::dispatch_recv);
  const std::int64_t tokens = in.cached || in.device_tokens == nullptr
                                  ? (in.cached ? handle.header->tokens : in.tokens)
                                  : *in.device_tokens;
  if (ctx.ok() && !in.cached) publish_early(ctx, out);
  if (geo.message == message_shape::direct) {
    const std::int64_t* received = exchange_stored_rows(ctx, in, handle, tokens);
    if (received != nullptr) note_dropped(ctx, handle, tokens);
    return received;
  }
  if constexpr (has_relays<std::remove_cvref_t<decltype(ctx.view)>>) {
    if (through_relays(ctx)) {
      stage_node_rows(ctx, in, handle, tokens);
      ctx.barrier(stage::dispatch_recv);
      if (ctx.ok()) send_node_rows(ctx, handle);
    }
  }
  const share mine = share_of(worker, tokens);
  for (std::int64_t t = mine.begin; t < mine.end && ctx.ok(); ++t) {
    send_counted(ctx, in, handle, t);
  }
  ctx.view.submit(worker, ctx.channel);
  ctx.barrier(stage::dispatch_recv);
  if (ctx.ok()) note_dropped(ctx, handle, tokens);
  for (std::int32_t i = static_cast<std::int32_t>(worker.worker()); i < geo.ranks;
       i += static_cast<std::int32_t>(worker.workers())) {
    const std::int32_t peer = peer_at(geo, i);
    if (ctx.ok() && peer != geo.rank && !geo.relayed(peer)) send_packed(ctx, handle, peer);
  }
  if constexpr (has_relays<std::remove_cvref_t<decltype(ctx.view)>>) {
    if (through_relays(ctx)) {
      relay_rows(ctx, handle, [&](std::int32_t source, std::int32_t index, std::int32_t i) {
        const std::int32_t to = geo.relay.table.rank_at(geo.relay.table.node[geo.rank], i);
        // A cached exchange carries no counts: the head has what the source keeps.
        return in.cached ? node_count(ctx, index, i) : kept_rows(ctx, source, to);
      });
    }
  }
  if (ctx.ok()) await_counted(ctx, handle);
  ctx.barrier(stage::rows);
  return ctx.ok() ? handle.received : nullptr;
}

}  // namespace eptransport::detail
