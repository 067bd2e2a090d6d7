// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Combine by push: reduce this rank's experts, return one row per (token, rank), add up.
///
/// The row goes to the slot that the source chose at dispatch, so no metadata travels back. One
/// zone and one cumulative counter suffice because a rank returns nothing of combine(e) before it
/// has every D message of dispatch(e), which proves that combine(e-1) is over everywhere. A combine
/// without a dispatch before it on its lane therefore runs an empty exchange first.
#pragma once

#include <eptransport/core/config.hpp>
#include <eptransport/core/transport.hpp>
#include <eptransport/kernels/dispatch.hpp>
#include <eptransport/kernels/lane.hpp>
#include <eptransport/kernels/layout.hpp>
#include <eptransport/kernels/receive.hpp>
#include <eptransport/kernels/rows.hpp>

#include <cstddef>
#include <cstdint>

namespace eptransport {

namespace detail {

/// The expert rows of one received token (`sum_rows`' source).
struct expert_rows {
  const std::byte* y;
  std::uint64_t bytes;
  const place_entry* places;  ///< null: row `single` alone
  std::int64_t single;
  std::int32_t choices;
  weighting weights;

  [[nodiscard]] EPT_HOST_DEVICE std::int32_t count() const { return choices; }
  [[nodiscard]] EPT_HOST_DEVICE const std::byte* row(std::int32_t i) const {
    const std::int64_t position = places == nullptr ? single : places[i].position;
    return position < 0 ? nullptr : y + static_cast<std::uint64_t>(position) * bytes;
  }
  [[nodiscard]] EPT_HOST_DEVICE float weight(std::int32_t i) const {
    return weights == weighting::at_expert && places != nullptr ? places[i].weight : 1.0F;
  }
};

/// The rows that came back for one token, in rank order (`sum_rows`' source).
struct returned_rows {
  const std::byte* window;
  const geometry* geo;
  const route_entry* routes;

  [[nodiscard]] EPT_HOST_DEVICE std::int32_t count() const { return geo->top_k; }
  [[nodiscard]] EPT_HOST_DEVICE const std::byte* row(std::int32_t i) const {
    return routes[i].rank < 0 ? nullptr : window + geo->return_row(routes[i].rank, routes[i].slot);
  }
  [[nodiscard]] EPT_HOST_DEVICE static float weight(std::int32_t) { return 1.0F; }
};

/// Raises a misuse unless the handle is of a finished dispatch whose layout suits the weights.
EPT_NO_EXEC_CHECK
template <class Context>
[[nodiscard]] EPT_HOST_DEVICE bool expect_combinable(const Context& ctx, const handle_parts& handle,
                                                     weighting weights) {
  if (!expect_handle(ctx, stage::combine_send, handle)) return false;
  const bool weighable = weights == weighting::none || per_expert(handle.header->layout);
  if (handle.header->received_valid != 0 && weighable) return true;
  if (ctx.worker.worker() == 0 && ctx.worker.thread() == 0) {
    raise(ctx, {.kind = fault_kind::misuse,
                .where = stage::combine_send,
                .expected = 1,
                .seen = handle.header->received_valid});
  }
  return false;
}

/// An exchange without rows: opens the combine zone for a combine that follows no dispatch.
EPT_NO_EXEC_CHECK
template <class Context>
EPT_HOST_DEVICE void empty_exchange(const Context& ctx) {
  announce_all(ctx, nullptr);
  ctx.barrier(stage::combine_send);
  if (ctx.ok()) await_exchange(ctx, nullptr);
  ctx.barrier(stage::combine_send);
}

/// Reduces and sends one received row.
EPT_NO_EXEC_CHECK
template <class Context>
EPT_HOST_DEVICE void return_row(const Context& ctx, const expert_rows& rows,
                                const received_row& to) {
  const geometry& geo = ctx.geo;
  std::byte* window = ctx.view.local();
  const std::uint64_t place = geo.return_row(geo.rank, to.slot);
  std::byte* dst = to.source == geo.rank ? window + place
                   : geo.message == message_shape::direct
                       ? ctx.view.peer_pointer(to.source, place, geo.return_bytes)
                       : window + geo.staged_return(ctx.combines, to.source, to.slot);
  if (dst == nullptr) {
    (void)sent(ctx, op_status::failed, stage::combine_send, to.source);
    return;
  }
  sum_rows(ctx.worker, dst, geo.hidden, rows);
  if (to.source == geo.rank || geo.message != message_shape::per_row) return;
  const put_request request{.peer = to.source,
                            .dst_offset = place,
                            .src = dst,
                            .bytes = geo.return_bytes,
                            .signal = geo.combine_signal(geo.rank)};
  (void)sent(ctx, ctx.view.put(ctx.worker, ctx.channel, request, ctx.deadline), stage::combine_send,
             to.source);
}

/// per_peer and direct: tells `peer` that its `rows` rows are there, or sends them.
EPT_NO_EXEC_CHECK
template <class Context>
EPT_HOST_DEVICE void return_all(const Context& ctx, std::int32_t peer, std::int64_t rows) {
  const geometry& geo = ctx.geo;
  const std::uint32_t signal = geo.combine_signal(geo.rank);
  if (rows == 0) return;
  if (geo.message == message_shape::direct) {
    (void)sent(ctx, ctx.view.signal(ctx.worker, ctx.channel, peer, signal, ctx.deadline),
               stage::combine_send, peer);
  }
  for (std::int64_t row = 0; row < rows && geo.message == message_shape::per_peer;
       row += geo.returns_per_message) {
    const std::int64_t left = rows - row;
    const std::int64_t count = left < geo.returns_per_message ? left : geo.returns_per_message;
    const put_request request{.peer = peer,
                              .dst_offset = geo.return_row(geo.rank, row),
                              .src = ctx.view.local() + geo.staged_return(ctx.combines, peer, row),
                              .bytes = static_cast<std::uint64_t>(count) * geo.return_bytes,
                              .signal = signal};
    if (!sent(ctx, ctx.view.put(ctx.worker, ctx.channel, request, ctx.deadline),
              stage::combine_send, peer)) {
      return;
    }
  }
  ctx.view.submit(ctx.worker, ctx.channel);
}

/// The send half, after the exchange.
EPT_NO_EXEC_CHECK
template <class Context>
EPT_HOST_DEVICE void combine_send(const Context& ctx, const combine_input& in,
                                  const handle_parts& handle) {
  const geometry& geo = ctx.geo;
  const std::int64_t rows = ctx.ok() ? received_rows(geo, handle.received) : 0;
  const bool readable = rows == 0 || expect_pointer(ctx, in.y, stage::combine_send);
  const bool expert_wise = per_expert(handle.header->layout);
  const share mine = share_of(ctx.worker, rows);
  row_cursor cursor(geo, handle.received, mine.begin);
  for (std::int64_t row = mine.begin; row < mine.end && readable && ctx.ok();
       ++row, cursor.next()) {
    return_row(ctx,
               expert_rows{.y = static_cast<const std::byte*>(in.y),
                           .bytes = geo.return_bytes,
                           .places = expert_wise ? handle.places + row * geo.top_k : nullptr,
                           .single = row,
                           .choices = expert_wise ? geo.top_k : 1,
                           .weights = in.weights},
               *cursor);
  }
  ctx.view.submit(ctx.worker, ctx.channel);
  ctx.barrier(stage::combine_send);
  if (geo.message == message_shape::per_row) return;
  for (std::int32_t peer = static_cast<std::int32_t>(ctx.worker.worker()); peer < geo.ranks;
       peer += static_cast<std::int32_t>(ctx.worker.workers())) {
    if (ctx.ok() && peer != geo.rank) return_all(ctx, peer, handle.received[peer]);
  }
}

/// Waits for the rows that `peer` returns (summed: that all return).
EPT_NO_EXEC_CHECK
template <class Context>
EPT_HOST_DEVICE void await_returns(const Context& ctx, std::int32_t peer, std::int64_t messages,
                                   std::uint64_t next) {
  const geometry& geo = ctx.geo;
  if (messages == 0) return;
  std::uint64_t* due = ctx.lane.returns_due + geo.word(peer);
  const std::uint32_t signal = geo.combine_signal(peer);
  const std::uint64_t target = *due + static_cast<std::uint64_t>(messages);
  if (!wait_for(ctx, {.signal = signal,
                      .target = ctx.lane.base[signal - geo.first_signal] + target,
                      .where = stage::combine_recv,
                      .peer = geo.sources == 1 ? -1 : peer,
                      .next = next})) {
    return;
  }
  ctx.worker.sync();
  if (ctx.worker.thread() == 0) *due = target;
}

/// The receive half. `next`: the epoch of the lane's next exchange.
EPT_NO_EXEC_CHECK
template <class Context>
EPT_HOST_DEVICE void combine_receive(const Context& ctx, const combine_output& out,
                                     const handle_parts& handle, std::uint64_t next) {
  const geometry& geo = ctx.geo;
  const auto& worker = ctx.worker;
  std::int64_t all = 0;
  for (std::int32_t peer = 0; peer < geo.ranks && ctx.ok(); ++peer) {
    if (peer == geo.rank) continue;
    const std::int64_t messages = geo.return_messages(handle.sent[peer]);
    all += messages;
    const bool mine = static_cast<std::uint32_t>(peer) % worker.workers() == worker.worker();
    if (geo.sources != 1 && mine) await_returns(ctx, peer, messages, next);
  }
  if (geo.sources == 1 && worker.worker() == 0 && ctx.ok()) await_returns(ctx, 0, all, next);
  ctx.barrier(stage::combine_recv);
  if (!ctx.ok()) return;
  const std::int64_t tokens = handle.header->tokens;
  if (tokens > 0 && !expect_pointer(ctx, out.out, stage::combine_recv)) return;
  const share mine = share_of(worker, tokens);
  for (std::int64_t t = mine.begin; t < mine.end; ++t) {
    std::byte* row =
        static_cast<std::byte*>(out.out) + static_cast<std::uint64_t>(t) * geo.return_bytes;
    sum_rows(worker, row, geo.hidden,
             returned_rows{ctx.view.local(), &geo, handle.routes + t * geo.top_k});
  }
}

/// State changes of the lane when the last worker of a combine leaves.
struct finish_combine {
  call_parts parts;
  bool exchanged;

  EPT_HOST_DEVICE void operator()(lane_state& state) const {
    if (state.status != 0) return;
    if (has(parts, call_parts::send)) {
      state.phase = lane_phase::combine_sent;
      state.combines += 1;
      if (exchanged) state.epoch += 1;
    }
    if (has(parts, call_parts::receive)) state.phase = lane_phase::combined;
  }
};

}  // namespace detail

/// One launch of combine: the body that every worker of the rank runs.
template <class View>
struct combine_call {
  View view;
  geometry geo;
  lane_memory lane;
  std::byte* handle;
  combine_input in;
  combine_output out;
  call_parts parts;
  bool refused = false;  ///< tell the peers to stop, and touch nothing else

  [[nodiscard]] EPT_HOST_DEVICE worker_words* words() const noexcept { return &lane.state->words; }

  EPT_NO_EXEC_CHECK
  template <class W>
  EPT_HOST_DEVICE void operator()(const W& worker) const {
    const auto ctx = detail::enter(view, worker, geo, lane);
    if (refused) return detail::refuse(ctx, stage::combine_send);
    const handle_parts parts_of_handle = handle_parts::of(handle, geo);
    const lane_phase phase = lane.state->phase;
    const bool send = detail::has(parts, call_parts::send);
    const bool exchange = send && phase != lane_phase::dispatched;
    if (send) {
      (void)detail::expect(ctx, stage::combine_send,
                           phase != lane_phase::dispatch_sent && phase != lane_phase::combine_sent,
                           lane_phase::dispatched);
    } else {
      (void)detail::expect(ctx, stage::combine_recv, phase == lane_phase::combine_sent,
                           lane_phase::combine_sent);
    }
    (void)detail::expect_combinable(ctx, parts_of_handle, in.weights);
    ctx.barrier(stage::combine_send);
    if (exchange) detail::empty_exchange(ctx);
    if (send) detail::combine_send(ctx, in, parts_of_handle);
    ctx.barrier(stage::combine_recv);
    if (detail::has(parts, call_parts::receive)) {
      detail::combine_receive(ctx, out, parts_of_handle, ctx.epoch + (exchange ? 1 : 0));
    }
    detail::leave(ctx, detail::finish_combine{parts, exchange});
  }
};

}  // namespace eptransport
