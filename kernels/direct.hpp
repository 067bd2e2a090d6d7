// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Slotted dispatch where stores reach every peer: no worker waits before rows are stored.
///
///     each worker   its pieces of the rows, stored everywhere
///     last crew     whichever arrives last knows that all rows are stored: one D message per peer
///     each crew     waits for the D messages and for its own rank's workers by itself
///
/// Few tokens (few.hpp) every crew routes by itself; of many, all workers route a share first. So
/// between the first instruction and the last stand two hand-overs, from a rank's workers to its
/// last crew and from rank to rank, and neither is waited for before there is nothing else to do.
#pragma once

#include <eptransport/core/config.hpp>
#include <eptransport/core/transport.hpp>
#include <eptransport/kernels/few.hpp>
#include <eptransport/kernels/lane.hpp>
#include <eptransport/kernels/layout.hpp>
#include <eptransport/kernels/messages.hpp>
#include <eptransport/kernels/pieces.hpp>
#include <eptransport/kernels/receive.hpp>
#include <eptransport/kernels/route.hpp>
#include <eptransport/kernels/write.hpp>

#include <cstddef>
#include <cstdint>

namespace eptransport::detail {

/// Where the slots of a token lie at some of its destinations.
struct stored_places {
  fan rows;
  fan sides;
};

/// Finds the slots of a token. False: a place was refused.
EPT_NO_EXEC_CHECK
template <class Context>
EPT_HOST_DEVICE bool find_slots(const Context& ctx, const destinations& to, stored_places& at) {
  const geometry& geo = ctx.geo;
  EPT_ROLLED
  for (int i = 0; i < to.count; ++i) {
    const std::uint64_t place = geo.zone(ctx.epoch, geo.rank) + geo.slot(to.slot[i]);
    std::byte* slot = ctx.view.peer_pointer(to.rank[i], place, geo.slot_bytes);
    if (slot == nullptr) return sent(ctx, op_status::failed, stage::dispatch_send, to.rank[i]);
    at.rows.add(slot);
    at.sides.add(slot + geo.scale_offset);
  }
  return true;
}

/// Stores this worker's share of few tokens, and notes their routes. The unit behind a row's last
/// is what goes with it: another worker's, where there are enough.
EPT_NO_EXEC_CHECK
template <class Context>
EPT_HOST_DEVICE void store_few(const Context& ctx, const dispatch_input& in,
                               const handle_parts& handle, std::int64_t tokens,
                               const few_scratch& scratch) {
  const geometry& geo = ctx.geo;
  const auto& worker = ctx.worker;
  const std::int64_t units = row_units(geo);
  for_pieces(worker, tokens, units + 1, [&](const piece& part) {
    const bool side = part.end > units;
    const piece values{part.row, part.begin, side ? units : part.end};
    route_entry* routes = handle.routes + part.row * geo.top_k;
    std::int32_t noted = 0;
    std::uint64_t left = scratch.masks[part.row];
    EPT_ROLLED
    while (left != 0) {
      const destinations to = take_destinations(ctx, scratch, part.row, left);
      stored_places at;
      if (!find_slots(ctx, to, at)) return;
      if (values.begin < values.end) write_values(ctx, in, values, at.rows, at.sides);
      if (side) {
        write_sides(ctx, in, part.row, at.sides);
        for (int i = static_cast<int>(worker.thread()); i < to.count;
             i += static_cast<int>(worker.threads())) {
          routes[noted + i] = {.slot = to.slot[i], .rank = to.rank[i], .unused = 0};
        }
      }
      noted += to.count;
    }
    if (!side) return;
    for (std::int32_t i = noted + static_cast<std::int32_t>(worker.thread()); i < geo.top_k;
         i += static_cast<std::int32_t>(worker.threads())) {
      routes[i] = {.slot = 0, .rank = -1, .unused = 0};
    }
  });
}

/// Stores this worker's share of tokens whose routes stand in the handle.
EPT_NO_EXEC_CHECK
template <class Context>
EPT_HOST_DEVICE void store_routed(const Context& ctx, const dispatch_input& in,
                                  const handle_parts& handle, std::int64_t tokens) {
  const geometry& geo = ctx.geo;
  for_pieces(ctx.worker, tokens, row_units(geo), [&](const piece& part) {
    routed(ctx, handle.routes + part.row * geo.top_k, [&](const destinations& to) {
      stored_places at;
      if (find_slots(ctx, to, at)) write_piece(ctx, in, part, at.rows, at.sides);
    });
  });
}

/// Tells this member's share of the peers how many rows each of them has, of few tokens. By the
/// last crew to arrive.
///
/// @param routed  the masks stand; else the handle says how many rows go where
EPT_NO_EXEC_CHECK
template <class Context>
EPT_HOST_DEVICE void announce_few(const Context& ctx, const handle_parts& handle,
                                  std::int64_t tokens, const few_scratch& scratch, bool routed) {
  const geometry& geo = ctx.geo;
  const auto& worker = ctx.worker;
  if (!ctx.ok()) return;
  begin_announcing(ctx);
  for (auto i = static_cast<std::int32_t>(worker.member()); i < geo.ranks;
       i += static_cast<std::int32_t>(worker.members())) {
    const std::int32_t peer = peer_at(geo, i);
    const std::int64_t rows =
        routed ? count_bits(worker, scratch.masks, tokens, peer) : handle.sent[peer];
    if (routed && worker.thread() == 0) handle.sent[peer] = rows;
    announce_stored(ctx, peer, slotted_header(ctx, rows));
  }
}

/// Waits, as one member of a crew, for this member's share of the D messages, and notes the rows of
/// each source in `received`, which the crew shares. False: the lane has a fault now.
EPT_NO_EXEC_CHECK
template <class Context>
[[nodiscard]] EPT_HOST_DEVICE bool await_sources(const Context& ctx, const dispatch_input& in,
                                                 std::int64_t* received) {
  const geometry& geo = ctx.geo;
  const auto& worker = ctx.worker;
  if (geo.sources == 1 && geo.ranks > 1 &&
      !wait_for(ctx, {.signal = geo.d_signal(ctx.epoch, 0),
                      .target = d_target(ctx, ctx.epoch, 0),
                      .where = stage::dispatch_recv,
                      .peer = -1,
                      .next = ctx.epoch + 1})) {
    return false;
  }
  // The last member begins: the first waits for the other crews.
  for (std::int32_t peer = static_cast<std::int32_t>(worker.members() - 1 - worker.member());
       peer < geo.ranks; peer += static_cast<std::int32_t>(worker.members())) {
    if (peer == geo.rank) continue;
    if (await_header(ctx, peer, in) < 0) return false;
    if (worker.thread() == 0) received[peer] = header_of(ctx, ctx.epoch, peer).rows;
  }
  return true;
}

/// As `await_direct`, into the crew's scratch. `own`: rows of this rank for itself. False: the lane
/// has a fault; the same for the workers of a crew.
EPT_NO_EXEC_CHECK
template <class Context>
[[nodiscard]] EPT_HOST_DEVICE bool await_few(const Context& ctx, const dispatch_input& in,
                                             const handle_parts& handle, const few_scratch& scratch,
                                             std::int64_t own, const arrival& stored) {
  const geometry& geo = ctx.geo;
  const auto& worker = ctx.worker;
  std::int64_t* received = scratch.received;
  if (worker.member() == 0 && worker.thread() == 0) received[geo.rank] = own;
  bool came = ctx.sound && await_sources(ctx, in, received);
  came = complete_arrival(ctx, stored, stage::dispatch_send) && came;
  if (!worker.crew_all(came)) return false;
  if (worker.worker() != 0) return true;
  for (std::int64_t r = worker.thread(); r < geo.ranks; r += worker.threads()) {
    handle.received[r] = received[r];
    handle.sent_base[r] = r * geo.max_tokens;
    handle.return_base[r] = geo.rank * geo.max_tokens;
  }
  return true;
}

/// The receive half up to the arrival of all rows, by every crew for itself. Returns the rows per
/// source, the same for the workers of a crew; null: the lane has a fault.
///
/// @param stored  of the send half, if it ran in this launch
EPT_NO_EXEC_CHECK
template <class Context>
[[nodiscard]] EPT_HOST_DEVICE const std::int64_t* await_direct(const Context& ctx,
                                                               const dispatch_input& in,
                                                               const handle_parts& handle,
                                                               const arrival& stored) {
  const geometry& geo = ctx.geo;
  const auto& worker = ctx.worker;
  // A crew's own copy, in columns of the scratch that slotted calls leave free.
  std::int64_t* received =
      ctx.lane.counts + (worker.worker() - worker.member()) * ctx.lane.width + geo.experts;
  bool came = ctx.ok() && await_sources(ctx, in, received);
  came = complete_arrival(ctx, stored, stage::dispatch_send) && came;
  if (worker.member() == 0 && worker.thread() == 0) received[geo.rank] = handle.sent[geo.rank];
  if (!worker.crew_all(came)) return nullptr;
  if (worker.worker() != 0) return received;
  for (std::int64_t r = worker.thread(); r < geo.ranks; r += worker.threads()) {
    handle.received[r] = received[r];
    handle.sent_base[r] = r * geo.max_tokens;
    handle.return_base[r] = geo.rank * geo.max_tokens;
  }
  return received;
}

}  // namespace eptransport::detail
