// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief D messages: what one rank tells another once per dispatch.
#pragma once

#include <eptransport/core/config.hpp>
#include <eptransport/core/transport.hpp>
#include <eptransport/kernels/lane.hpp>
#include <eptransport/kernels/layout.hpp>

#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace eptransport::detail {

/// Marks that D messages of this epoch go out: a stop may only be the next one. By every worker
/// that sends one, before it does.
EPT_NO_EXEC_CHECK
template <class Context>
EPT_HOST_DEVICE void begin_announcing(const Context& ctx) {
  using memory = typename std::remove_reference_t<decltype(ctx.worker)>::memory;
  if (ctx.worker.thread() == 0) {
    // Read in stop_peers(), leave.hpp, by the last worker to leave.
    memory::store_relaxed(&ctx.lane.state->announced, ctx.epoch + 1);
  }
}

/// The header of a slotted D message.
EPT_NO_EXEC_CHECK
template <class Context>
[[nodiscard]] EPT_HOST_DEVICE message_header slotted_header(const Context& ctx, std::int64_t rows) {
  const geometry& geo = ctx.geo;
  const std::int64_t first = rows < geo.rows_per_message ? rows : geo.rows_per_message;
  return {.stamp = stamp_of(ctx.epoch),
          .config = geo.config_of(dispatch_mode::slotted),
          .rows = rows,
          .more = geo.message == message_shape::per_row ? rows
                  : geo.message == message_shape::per_peer
                      ? geometry::pieces(rows - first, geo.rows_per_message)
                      : 0};
}

/// Writes a header to where the D message for `peer` is made: its staging, or the own zone.
EPT_NO_EXEC_CHECK
template <class Context>
[[nodiscard]] EPT_HOST_DEVICE std::byte* place_header(const Context& ctx, std::int32_t peer,
                                                      const message_header& header) {
  const geometry& geo = ctx.geo;
  std::byte* message = ctx.view.local() + (peer == geo.rank ? geo.zone(ctx.epoch, geo.rank)
                                                            : geo.staged_message(ctx.epoch, peer));
  if (ctx.worker.thread() == 0) *reinterpret_cast<message_header*>(message) = header;
  ctx.worker.sync();
  return message;
}

/// Sends `header` (and the bytes that lie after it) as the D message of `epoch` to `peer`.
EPT_NO_EXEC_CHECK
template <class Context>
EPT_HOST_DEVICE bool send_d(const Context& ctx, std::byte* header, std::uint64_t bytes,
                            std::uint64_t epoch, std::int32_t peer) {
  const put_request request{.peer = peer,
                            .dst_offset = ctx.geo.zone(epoch, ctx.geo.rank),
                            .src = header,
                            .bytes = bytes,
                            .signal = ctx.geo.d_signal(epoch, ctx.geo.rank)};
  return put(ctx, request, stage::dispatch_send);
}

/// Stores the D message for `peer`, a header, straight into its zone, and signals it; the own one
/// just lands. For direct.
EPT_NO_EXEC_CHECK
template <class Context>
EPT_HOST_DEVICE void announce_stored(const Context& ctx, std::int32_t peer,
                                     const message_header& header) {
  const geometry& geo = ctx.geo;
  const std::uint64_t place = geo.zone(ctx.epoch, geo.rank);
  std::byte* to = ctx.view.peer_pointer(peer, place, sizeof header);
  if (to == nullptr) {
    (void)sent(ctx, op_status::failed, stage::dispatch_send, peer);
    return;
  }
  if (ctx.worker.thread() == 0) *reinterpret_cast<message_header*>(to) = header;
  if (peer == geo.rank) return;
  (void)sent(ctx,
             ctx.view.signal(ctx.worker, ctx.channel, peer, geo.d_signal(ctx.epoch, geo.rank),
                             ctx.deadline),
             stage::dispatch_send, peer);
}

}  // namespace eptransport::detail
