// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Waiting for counted rows, by the rank's workers together or by every crew for itself.
#pragma once

#include <eptransport/core/config.hpp>
#include <eptransport/kernels/lane.hpp>
#include <eptransport/kernels/layout.hpp>
#include <eptransport/kernels/receive.hpp>

#include <cstdint>

namespace eptransport::detail {

/// Waits for the counted messages of all sources; worker w for w, w + workers, ..
EPT_NO_EXEC_CHECK
template <class Context>
EPT_HOST_DEVICE void await_counted(const Context& ctx, const handle_parts& handle) {
  const geometry& geo = ctx.geo;
  const bool summed = geo.sources == 1;
  std::int64_t all = 0;
  for (std::int32_t peer = 0; peer < geo.ranks && ctx.ok(); ++peer) {
    if (peer == geo.rank) continue;
    const std::int64_t messages = geo.counted_messages(handle.received[peer]);
    all += messages;
    const bool mine =
        static_cast<std::uint32_t>(peer) % ctx.worker.workers() == ctx.worker.worker();
    if (!summed && mine) {
      (void)await_due(ctx, ctx.lane.counted_due,
                      {.signal = geo.counted_signal(peer),
                       .where = stage::rows,
                       .peer = peer,
                       .next = ctx.epoch + 1},
                      messages);
    }
  }
  if (summed && ctx.worker.worker() == 0 && ctx.ok()) {
    (void)await_due(
        ctx, ctx.lane.counted_due,
        {.signal = geo.counted_signal(0), .where = stage::rows, .peer = -1, .next = ctx.epoch + 1},
        all);
  }
}

/// Waits, as one member of a crew, for this member's share of what the peers store. What has been
/// consumed is noted when the last worker leaves: every crew reads it.
EPT_NO_EXEC_CHECK
template <class Context>
[[nodiscard]] EPT_HOST_DEVICE bool await_stored_rows(const Context& ctx,
                                                     const handle_parts& handle) {
  const geometry& geo = ctx.geo;
  const bool summed = geo.sources == 1;
  const auto members = static_cast<std::int32_t>(ctx.worker.members());
  const std::int32_t turn = members - 1 - static_cast<std::int32_t>(ctx.worker.member());
  awaited what{.signal = geo.counted_signal(0), .where = stage::rows, .next = ctx.epoch + 1};
  std::int64_t all = 0;
  for (std::int32_t peer = summed ? 0 : turn; peer < geo.ranks; peer += summed ? 1 : members) {
    const std::int64_t messages =
        peer == geo.rank ? 0 : geo.counted_messages(handle.received[peer]);
    all += messages;
    if (summed || messages == 0) continue;
    what.peer = peer;
    what.signal = geo.counted_signal(peer);
    what.target = ctx.lane.base[what.signal - geo.first_signal] + ctx.lane.counted_due[peer] +
                  static_cast<std::uint64_t>(messages);
    if (!wait_for(ctx, what)) return false;
  }
  if (!summed || turn != 0 || all == 0) return true;
  what.target = ctx.lane.base[what.signal - geo.first_signal] + ctx.lane.counted_due[0] +
                static_cast<std::uint64_t>(all);
  return wait_for(ctx, what);
}

}  // namespace eptransport::detail
