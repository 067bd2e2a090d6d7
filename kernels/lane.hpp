// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief What every part of a call does alike: entry, bounded waits, faults.
///
/// Barriers among a rank's workers are unconditional and work is conditional on `ok()`: a worker
/// that finds a fault raises it and keeps arriving, so that nobody waits for it.
#pragma once

#include <eptransport/core/config.hpp>
#include <eptransport/core/transport.hpp>
#include <eptransport/kernels/layout.hpp>

#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace eptransport::detail {

/// One worker's view of a call.
template <class View, class W>
struct lane_context {
  const View& view;
  const W& worker;
  const geometry& geo;
  const lane_memory& lane;
  std::uint64_t epoch;     ///< of the exchange that this call works on
  std::uint64_t combines;  ///< combines before this call
  std::uint64_t start;     ///< the clock when this worker entered
  std::uint64_t deadline;  ///< of every wait of this call
  std::uint32_t channel;
  bool sound;  ///< had no fault at this worker's entry

  /// The same for all threads of the worker, which call together: they branch on it and meet again.
  EPT_NO_EXEC_CHECK
  [[nodiscard]] EPT_HOST_DEVICE bool ok() const {
    // Pairs with raise(): a worker that sees the fault skips its work.
    return worker.first(static_cast<std::int64_t>(W::memory::load_acquire(&lane.state->status))) ==
           0;
  }
  EPT_NO_EXEC_CHECK
  EPT_HOST_DEVICE void barrier(stage where) const;
};

/// A deadline `ns` after `now`; far ones saturate.
[[nodiscard]] EPT_HOST_DEVICE inline std::uint64_t later(std::uint64_t now,
                                                         std::uint64_t ns) noexcept {
  return now + ns < now ? no_deadline : now + ns;
}

/// Reads the lane's state at the entry of a kernel. Only the last worker to leave changes it.
EPT_NO_EXEC_CHECK
template <class View, class W>
[[nodiscard]] EPT_HOST_DEVICE lane_context<View, W> enter(const View& view, const W& worker,
                                                          const geometry& geo,
                                                          const lane_memory& lane) {
  const lane_state& state = *lane.state;
  const std::uint64_t epoch = state.epoch;
  const std::uint64_t combines = state.combines;
  const std::uint64_t timeout = state.timeout_ns;
  // A fault of this launch may be seen or not: whoever reads on after it meets `ok()`.
  const auto status =
      worker.first(static_cast<std::int64_t>(W::memory::load_relaxed(&state.status)));
  const auto now =
      static_cast<std::uint64_t>(worker.first(static_cast<std::int64_t>(view.now_ns())));
  return {view,
          worker,
          geo,
          lane,
          epoch,
          combines,
          now,
          later(now, timeout),
          worker.worker() % view.channels(),
          status == 0};
}

/// The body of `raise`, out of line: it stands in many places and runs in none.
EPT_NO_EXEC_CHECK
template <class Memory>
EPT_NOINLINE EPT_HOST_DEVICE void record_fault(lane_state* state, lane_report* report,
                                               const fault_record& fault) {
  if (!Memory::claim(&state->status, static_cast<std::uint64_t>(fault.kind))) return;
  state->fault = fault;
  report->fault = fault;
  // Pairs with the acquire in group::status(): the host sees the whole record.
  Memory::signal_store(&report->status, static_cast<std::uint64_t>(fault.kind));
}

/// Leaves the first fault of a lane for the host and poisons the lane. Any thread, not collective.
EPT_NO_EXEC_CHECK
template <class Context>
EPT_HOST_DEVICE void raise(const Context& ctx, fault_record fault) {
  using memory = typename std::remove_reference_t<decltype(ctx.worker)>::memory;
  fault.rank = ctx.geo.rank;
  if (fault.epoch == 0) fault.epoch = ctx.epoch;
  record_fault<memory>(ctx.lane.state, ctx.lane.report, fault);
}

EPT_NO_EXEC_CHECK
template <class View, class W>
EPT_HOST_DEVICE void lane_context<View, W>::barrier(stage where) const {
  // The deadline of a wait inside the phase may fall on the deadline itself: allow twice.
  if (!worker.barrier(view, later(deadline, lane.state->timeout_ns)) && worker.thread() == 0) {
    raise(*this, {.kind = fault_kind::expired, .where = where});
  }
}

/// The second half of a barrier whose first half was `at`, for one member of each crew; then
/// `crew_all`. False: the lane has a fault.
EPT_NO_EXEC_CHECK
template <class Context>
[[nodiscard]] EPT_HOST_DEVICE bool complete_arrival(const Context& ctx, const arrival& at,
                                                    stage where) {
  const auto& worker = ctx.worker;
  if (worker.member() != 0) return true;
  // Twice, as in `barrier`.
  const std::uint64_t deadline = later(ctx.deadline, ctx.lane.state->timeout_ns);
  const bool met = worker.complete(at, ctx.view, deadline);
  if (!met && worker.thread() == 0) raise(ctx, {.kind = fault_kind::expired, .where = where});
  worker.sync();
  return ctx.ok();
}

/// The i-th peer to serve, own rank last: no two ranks begin with the same one.
[[nodiscard]] EPT_HOST_DEVICE inline std::int32_t peer_at(const geometry& geo, std::int32_t i) {
  return (geo.rank + 1 + i) % geo.ranks;
}

/// The part of [0, count) that belongs to the worker.
struct share {
  std::int64_t begin;
  std::int64_t end;
};

/// a / b of numbers that are not negative; in 32 bits where they fit, which is a GPU's fast case.
[[nodiscard]] EPT_HOST_DEVICE constexpr std::int64_t divided(std::int64_t a,
                                                             std::int64_t b) noexcept {
  if (((a | b) >> 32) != 0) return a / b;
  return static_cast<std::uint32_t>(a) / static_cast<std::uint32_t>(b);
}

/// Splits [0, count) into contiguous parts, in worker order.
EPT_NO_EXEC_CHECK
template <class W>
[[nodiscard]] EPT_HOST_DEVICE share share_of(const W& worker, std::int64_t count) {
  const std::int64_t workers = worker.workers();
  const std::int64_t chunk = divided(count + workers - 1, workers);
  const std::int64_t begin = chunk * worker.worker();
  const std::int64_t end = begin + chunk;
  return {begin < count ? begin : count, end < count ? end : count};
}

/// The value that the D word of `peer` reaches with its message of `epoch`.
EPT_NO_EXEC_CHECK
template <class Context>
[[nodiscard]] EPT_HOST_DEVICE std::uint64_t d_target(const Context& ctx, std::uint64_t epoch,
                                                     std::int32_t peer) {
  const geometry& geo = ctx.geo;
  const std::uint64_t base = ctx.lane.base[geo.d_signal(epoch, peer) - geo.first_signal];
  const std::uint64_t each = epoch / 2 + 1;
  return base + (geo.sources == 1 ? each * static_cast<std::uint64_t>(geo.ranks - 1) : each);
}

/// True if the word has reached `target`, modulo 2^64.
[[nodiscard]] EPT_HOST_DEVICE inline bool reached(std::uint64_t word, std::uint64_t target) {
  return static_cast<std::int64_t>(word - target) >= 0;
}

/// The header that `peer` sent in `epoch`.
template <class Context>
[[nodiscard]] EPT_HOST_DEVICE const message_header& header_of(const Context& ctx,
                                                              std::uint64_t epoch,
                                                              std::int32_t peer) {
  return *reinterpret_cast<const message_header*>(ctx.view.local() + ctx.geo.zone(epoch, peer));
}

/// Turns a peer's stop message into this lane's fault.
EPT_NO_EXEC_CHECK
template <class Context>
EPT_HOST_DEVICE void raise_stopped(const Context& ctx, const message_header& header, stage where,
                                   std::int32_t peer) {
  if (ctx.worker.thread() != 0) return;
  raise(ctx, {.kind = fault_kind::peer_stopped,
              .where = where,
              .peer = peer,
              .expected = header.limit,
              .seen = header.value,
              .cause = header.stop,
              .culprit = header.culprit});
}

/// The relay through which `peer` reaches this rank, or -1.
template <class Context>
[[nodiscard]] EPT_HOST_DEVICE std::int32_t relay_of(const Context& ctx, std::int32_t peer) {
  const geometry& geo = ctx.geo;
  if (peer < 0 || !geo.relayed(peer)) return -1;
  const std::int32_t relay = geo.relay.table.rail(peer, geo.relay.table.node[geo.rank]);
  return relay == geo.rank ? -1 : relay;
}

/// While waiting for `peer` in an exchange or combine: has it sent a stop in the next D message?
EPT_NO_EXEC_CHECK
template <class Context>
[[nodiscard]] EPT_HOST_DEVICE bool stopped(const Context& ctx, std::uint64_t next, stage where,
                                           std::int32_t peer) {
  if (ctx.geo.sources == 1 || peer < 0) return false;  // a summed word does not say whose it was
  if (!reached(ctx.view.read_signal(ctx.geo.d_signal(next, peer)), d_target(ctx, next, peer))) {
    return false;
  }
  const message_header& header = header_of(ctx, next, peer);
  if (header.stamp != stamp_of(next) || header.stop == fault_kind::none) return false;
  raise_stopped(ctx, header, where, peer);
  return true;
}

/// What is waited for.
struct awaited {
  std::uint32_t signal = 0;
  std::uint64_t target = 0;
  stage where = stage::none;
  std::int32_t peer = -1;  ///< -1: several
  std::uint64_t next = 0;  ///< epoch whose D message from `peer` would be a stop
};

/// After a wait on a summed word expired: the first peer whose D message of this epoch is missing.
template <class Context>
[[nodiscard]] EPT_HOST_DEVICE std::int32_t late_peer(const Context& ctx) {
  for (std::int32_t peer = 0; peer < ctx.geo.ranks; ++peer) {
    if (peer != ctx.geo.rank && header_of(ctx, ctx.epoch, peer).stamp != stamp_of(ctx.epoch))
      return peer;
  }
  return -1;
}

/// Waits until the word has reached the target. False: the lane has a fault now.
///
/// The wait is cut into slices that double, so that a stop message or a fault of another worker
/// ends it long before the deadline, and a virtual clock needs few steps.
EPT_NO_EXEC_CHECK
template <class Context>
[[nodiscard]] EPT_NOINLINE EPT_HOST_DEVICE bool wait_for(const Context& ctx, const awaited& what) {
  std::uint64_t slice = std::uint64_t{1} << 20;
  // What is there already needs no look at the clock; an old time only makes the first slice short.
  for (std::uint64_t now = ctx.start;; now = static_cast<std::uint64_t>(ctx.worker.first(
                                           static_cast<std::int64_t>(ctx.view.now_ns())))) {
    const bool last = now + slice >= ctx.deadline;
    const op_status status = ctx.view.wait_signal(ctx.worker, what.signal, what.target,
                                                  last ? ctx.deadline : now + slice);
    if (status == op_status::ok) return true;
    // One thread looks: several could see different values, and only the first raises.
    const bool stop =
        ctx.worker.thread() == 0 && (stopped(ctx, what.next, what.where, what.peer) ||
                                     stopped(ctx, what.next, what.where, relay_of(ctx, what.peer)));
    if (ctx.worker.any(stop) || !ctx.ok()) return false;
    if (status == op_status::failed || last) {
      const auto seen = static_cast<std::uint64_t>(
          ctx.worker.first(static_cast<std::int64_t>(ctx.view.read_signal(what.signal))));
      if (status != op_status::failed &&
          reached(seen, what.target)) {  // it came at the last moment
        ctx.worker.sync();  // the first thread acquired it; the others may have looked earlier
        return true;
      }
      if (ctx.worker.thread() == 0) {
        const std::int32_t peer =
            what.peer >= 0 || what.where != stage::dispatch_recv ? what.peer : late_peer(ctx);
        const std::int32_t relay = relay_of(ctx, peer);
        const bool silent = relay >= 0 && header_of(ctx, ctx.epoch, relay).stamp !=
                                              stamp_of(ctx.epoch);  // nothing came from it either
        raise(ctx, {.kind = status == op_status::failed ? fault_kind::transport_failed
                                                        : fault_kind::expired,
                    .where = what.where,
                    .peer = silent ? relay : peer,
                    .signal = static_cast<std::int32_t>(what.signal),
                    .expected = what.target,
                    .seen = seen,
                    .culprit = silent ? -1 : relay});
      }
      return false;
    }
    slice *= 2;
  }
}

/// Raises the fault that a put's or signal's status means. One thread.
EPT_NO_EXEC_CHECK
template <class Context>
EPT_HOST_DEVICE void raise_unsent(const Context& ctx, op_status status, stage where,
                                  std::int32_t peer) {
  raise(ctx,
        {.kind = status == op_status::failed ? fault_kind::transport_failed : fault_kind::expired,
         .where = where,
         .peer = peer,
         .channel = static_cast<std::int32_t>(ctx.channel)});
}

/// True if a put or signal was ok; else raises what its status means.
EPT_NO_EXEC_CHECK
template <class Context>
EPT_HOST_DEVICE bool sent(const Context& ctx, op_status status, stage where, std::int32_t peer) {
  if (status == op_status::ok) return true;
  if (ctx.worker.thread() == 0) raise_unsent(ctx, status, where, peer);
  return false;
}

/// A put of this worker; false if it raised a fault.
EPT_NO_EXEC_CHECK
template <class Context>
EPT_HOST_DEVICE bool put(const Context& ctx, const put_request& request, stage where) {
  return sent(ctx, ctx.view.put(ctx.worker, ctx.channel, request, ctx.deadline), where,
              request.peer);
}

/// Puts `count` units of `first.bytes` bytes each that lie one after the other, `each` at a time;
/// every put counts once on `first.signal`. False if one raised a fault.
EPT_NO_EXEC_CHECK
template <class Context>
EPT_HOST_DEVICE bool put_pieces(const Context& ctx, const put_request& first, std::int64_t count,
                                std::int64_t each, stage where) {
  for (std::int64_t at = 0; at < count; at += each) {
    const std::int64_t left = count - at;
    put_request piece = first;
    const std::uint64_t skipped = static_cast<std::uint64_t>(at) * first.bytes;
    piece.dst_offset += skipped;
    piece.src += skipped;
    piece.bytes = static_cast<std::uint64_t>(left < each ? left : each) * first.bytes;
    if (!put(ctx, piece, where)) return false;
  }
  return true;
}

/// Phase check at the entry of a part (INV-4): raises a misuse unless `allowed`, which it returns.
EPT_NO_EXEC_CHECK
template <class Context>
[[nodiscard]] EPT_HOST_DEVICE bool expect(const Context& ctx, stage where, bool allowed,
                                          lane_phase wanted) {
  if (allowed || ctx.worker.worker() != 0 || ctx.worker.thread() != 0) return allowed;
  raise(ctx, {.kind = fault_kind::misuse,
              .where = where,
              .expected = static_cast<std::uint64_t>(wanted),
              .seen = static_cast<std::uint64_t>(ctx.lane.state->phase)});
  return false;
}

/// Raises a misuse unless the handle was filled by a dispatch of this group's shape.
EPT_NO_EXEC_CHECK
template <class Context>
[[nodiscard]] EPT_HOST_DEVICE bool expect_handle(const Context& ctx, stage where,
                                                 const handle_parts& handle) {
  const std::uint64_t wanted = handle_magic ^ ctx.geo.config;
  const std::uint64_t seen = handle.header->magic;
  if (seen == wanted) return true;
  if (ctx.worker.worker() == 0 && ctx.worker.thread() == 0) {
    raise(ctx, {.kind = fault_kind::misuse, .where = where, .expected = wanted, .seen = seen});
  }
  return false;
}

/// Raises a misuse unless a cached dispatch finds the routing of a finished one of its own mode.
EPT_NO_EXEC_CHECK
template <class Context>
[[nodiscard]] EPT_HOST_DEVICE bool expect_cached(const Context& ctx, const handle_parts& handle,
                                                 dispatch_mode mode) {
  if (!expect_handle(ctx, stage::dispatch_send, handle)) return false;
  if (handle.header->received_valid != 0 && handle.header->in.mode == mode) return true;
  if (ctx.worker.worker() == 0 && ctx.worker.thread() == 0) {
    raise(ctx, {.kind = fault_kind::misuse,
                .where = stage::dispatch_send,
                .expected = static_cast<std::uint64_t>(mode),
                .seen = static_cast<std::uint64_t>(handle.header->in.mode)});
  }
  return false;
}

/// Raises a misuse unless a second half is given the handle of its first half.
EPT_NO_EXEC_CHECK
template <class Context>
[[nodiscard]] EPT_HOST_DEVICE bool expect_same_handle(const Context& ctx, stage where,
                                                      const handle_parts& handle) {
  const auto seen = reinterpret_cast<std::uintptr_t>(handle.header);
  if (ctx.lane.state->handle == seen) return true;
  if (ctx.worker.worker() == 0 && ctx.worker.thread() == 0) {
    raise(ctx, {.kind = fault_kind::misuse,
                .where = where,
                .expected = ctx.lane.state->handle,
                .seen = seen});
  }
  return false;
}

/// Raises a refusal if rows are to be read or written through a null pointer.
EPT_NO_EXEC_CHECK
template <class Context>
[[nodiscard]] EPT_HOST_DEVICE bool expect_pointer(const Context& ctx, const void* pointer,
                                                  stage where) {
  if (pointer != nullptr) return true;
  if (ctx.worker.worker() == 0 && ctx.worker.thread() == 0) {
    raise(ctx, {.kind = fault_kind::refused, .where = where, .expected = 1, .seen = 0});
  }
  return false;
}

/// Turns per-worker counts into per-worker starts and totals, column by column from `first` on.
/// Between barriers.
///
/// counts, starts [workers, width] -> starts[w][c] = counts[0..w)[c] summed, totals[c] = all.
EPT_NO_EXEC_CHECK
template <class Context>
EPT_NOINLINE EPT_HOST_DEVICE void scan_columns(const Context& ctx, std::int64_t columns,
                                               std::int64_t first = 0) {
  const auto& worker = ctx.worker;
  const std::int64_t workers = worker.workers();
  const std::int64_t width = ctx.lane.width;
  for (std::int64_t c = first + worker.worker(); c < columns; c += workers) {
    std::int64_t sum = 0;
    for (std::int64_t w0 = 0; w0 < workers; w0 += worker.threads()) {
      const std::int64_t w = w0 + worker.thread();
      const std::int64_t count = w < workers ? ctx.lane.counts[w * width + c] : 0;
      const std::int64_t below = worker.prefix(count);
      if (w < workers) ctx.lane.starts[w * width + c] = sum + below;
      sum += worker.sum(count);
    }
    if (worker.thread() == 0) ctx.lane.totals[c] = sum;
  }
}

}  // namespace eptransport::detail
