// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The end of a kernel: the lane's state changes, or the peers are told to stop.
#pragma once

#include <eptransport/core/config.hpp>
#include <eptransport/core/transport.hpp>
#include <eptransport/kernels/lane.hpp>
#include <eptransport/kernels/layout.hpp>
#include <eptransport/kernels/messages.hpp>

#include <cstddef>
#include <cstdint>

namespace eptransport::detail {

/// Tells `peer` that this rank cannot go on, in the D message of `epoch`.
EPT_NO_EXEC_CHECK
template <class Context>
EPT_HOST_DEVICE void stop_peer(const Context& ctx, std::uint64_t epoch, std::int32_t peer) {
  auto* header = reinterpret_cast<message_header*>(
      ctx.view.local() + ctx.geo.stop + static_cast<std::uint64_t>(peer) * sizeof(message_header));
  if (ctx.worker.thread() == 0) {
    const fault_record& fault = ctx.lane.state->fault;
    const bool relayed = fault.kind == fault_kind::peer_stopped;
    *header = {.stamp = stamp_of(epoch),
               .config = ctx.geo.config_of(dispatch_mode::slotted),
               .stop = relayed ? fault.cause : fault.kind,
               .culprit = relayed ? fault.culprit : (fault.peer >= 0 ? fault.peer : ctx.geo.rank),
               .limit = fault.expected,
               .value = fault.seen};
  }
  ctx.worker.sync();
  (void)send_d(ctx, reinterpret_cast<std::byte*>(header), sizeof(message_header), epoch, peer);
  ctx.view.submit(ctx.worker, ctx.channel);
}

/// Waits, until a time or not at all (0), for the D message of `peer` before `epoch`. It proves
/// (INV-3) that the peer has finished with what a message of `epoch` overwrites.
EPT_NO_EXEC_CHECK
template <class Context>
[[nodiscard]] EPT_HOST_DEVICE bool may_stop(const Context& ctx, std::uint64_t epoch,
                                            std::int32_t peer, std::uint64_t until) {
  if (epoch == 0) return true;
  const std::uint32_t signal = ctx.geo.d_signal(epoch - 1, peer);
  const std::uint64_t target = d_target(ctx, epoch - 1, peer);
  const bool there = ctx.worker.thread() == 0 && reached(ctx.view.read_signal(signal), target);
  if (ctx.worker.any(there)) return true;
  return until != 0 && ctx.view.wait_signal(ctx.worker, signal, target, until) == op_status::ok;
}

/// How long a call that failed may wait for peers to tell them.
inline constexpr std::uint64_t longest_stop_ns = 1'000'000'000;

/// Tells every peer that this rank cannot go on, in the D message that it would send next.
///
/// First those that may be told at once, then the others as they come, for a part of the time-out;
/// but nobody waits for a peer after a fault that says that some peer or the wire is gone. Called
/// by the last worker to leave, once per poisoned lane.
EPT_NO_EXEC_CHECK
template <class Context>
EPT_NOINLINE EPT_HOST_DEVICE void stop_peers(const Context& ctx) {
  const std::uint64_t epoch = ctx.lane.state->announced;
  const fault_kind kind = ctx.lane.state->fault.kind;
  const bool patient = kind != fault_kind::peer_stopped && kind != fault_kind::expired &&
                       kind != fault_kind::transport_failed;
  const auto now =
      static_cast<std::uint64_t>(ctx.worker.first(static_cast<std::int64_t>(ctx.view.now_ns())));
  const std::uint64_t part = ctx.lane.state->timeout_ns / 8;
  const std::uint64_t most = later(now, part < longest_stop_ns ? part : longest_stop_ns);
  const std::uint64_t until = most < ctx.deadline ? most : ctx.deadline;
  std::int32_t told = 0;
  for (const bool wait : {false, true}) {
    if (wait && (!patient || told + 1 == ctx.geo.ranks)) return;
    for (std::int32_t peer = 0; peer < ctx.geo.ranks; ++peer) {
      const auto& before = *reinterpret_cast<const message_header*>(
          ctx.view.local() + ctx.geo.stop +
          static_cast<std::uint64_t>(peer) * sizeof(message_header));
      if (peer == ctx.geo.rank || (wait && before.stamp == stamp_of(epoch))) continue;
      if (!may_stop(ctx, epoch, peer, wait ? until : 0)) continue;
      stop_peer(ctx, epoch, peer);
      ++told;
    }
  }
}

/// Ends a kernel: the last worker runs the state change of the call, or tells the peers to stop.
///
/// `Finish` is a small value whose `operator()(worker, lane_state&)` the last worker's threads run,
/// unless the lane has a fault.
EPT_NO_EXEC_CHECK
template <class Context, class Finish>
EPT_HOST_DEVICE void leave(const Context& ctx, const Finish& finish) {
  ctx.worker.sync();
  if (!ctx.worker.last_to_leave()) return;
  // All have departed: nobody raises any more.
  if (ctx.lane.state->status == 0) {
    finish(ctx.worker, *ctx.lane.state);
    return;
  }
  if (ctx.lane.state->stop_sent != 0) return;
  stop_peers(ctx);
  ctx.worker.sync();
  if (ctx.worker.thread() == 0) ctx.lane.state->stop_sent = 1;
}

/// Leaves the lane's state as it is.
struct finish_nothing {
  template <class W>
  EPT_HOST_DEVICE void operator()(const W&, lane_state&) const {}
};

/// The whole kernel of a call whose arguments the host refused: poison the lane, stop the peers.
EPT_NO_EXEC_CHECK
template <class Context>
EPT_HOST_DEVICE void refuse(const Context& ctx, stage where) {
  if (ctx.worker.worker() == 0 && ctx.worker.thread() == 0) {
    raise(ctx, {.kind = fault_kind::refused, .where = where});
  }
  leave(ctx, finish_nothing{});
}

}  // namespace eptransport::detail
