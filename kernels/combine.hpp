// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Combine: reduce this rank's experts, return one row per (token, rank), add up.
///
/// *Push*: the row goes to the place that the source's dispatch implies, so no metadata travels
/// back. One zone and one cumulative counter suffice because a rank returns nothing of combine(e)
/// before it has every D message of dispatch(e), which proves that combine(e-1) is over everywhere.
/// A combine without a dispatch before it on its lane therefore runs an empty exchange first.
/// *Pull*: one message per peer says that y is ready and where; the source reads the rows that it
/// placed itself. No zone, no staging.
#pragma once

#include <eptransport/core/config.hpp>
#include <eptransport/core/transport.hpp>
#include <eptransport/kernels/combine_rows.hpp>
#include <eptransport/kernels/dispatch.hpp>
#include <eptransport/kernels/lane.hpp>
#include <eptransport/kernels/layout.hpp>
#include <eptransport/kernels/leave.hpp>
#include <eptransport/kernels/receive.hpp>
#include <eptransport/kernels/relay_combine.hpp>
#include <eptransport/kernels/relay_dispatch.hpp>
#include <eptransport/kernels/rows.hpp>

#include <cstddef>
#include <cstdint>

namespace eptransport {

namespace detail {

/// Raises a misuse unless the handle is of a finished dispatch that suits the combine.
EPT_NO_EXEC_CHECK
template <class Context>
EPT_HOST_DEVICE void expect_combinable(const Context& ctx, const handle_parts& handle,
                                       const combine_input& in) {
  if (!expect_handle(ctx, stage::combine_send, handle)) return;
  const bool expert_wise = per_expert(handle.header->layout);
  const bool counted = handle.header->in.mode == dispatch_mode::counted;
  const bool suits = (in.weights == weighting::none || expert_wise) &&
                     (in.transfer == combine_transfer::push || (counted && !expert_wise));
  if (handle.header->received_valid != 0 && suits) return;
  if (ctx.worker.worker() == 0 && ctx.worker.thread() == 0) {
    raise(ctx, {.kind = fault_kind::misuse,
                .where = stage::combine_send,
                .expected = 1,
                .seen = handle.header->received_valid});
  }
}

/// An exchange without rows: opens the combine zone for a combine that follows no dispatch.
EPT_NO_EXEC_CHECK
template <class Context>
EPT_HOST_DEVICE void empty_exchange(const Context& ctx) {
  announce_all(ctx, nullptr);
  ctx.barrier(stage::combine_send);
  if constexpr (has_relays<std::remove_cvref_t<decltype(ctx.view)>>) {
    if (through_relays(ctx)) relay_forward(ctx, dispatch_input{}, nullptr);
  }
  if (ctx.ok()) await_exchange(ctx, nullptr, dispatch_input{});
  ctx.barrier(stage::combine_send);
}

/// The floats that go back with a row, one per choice.
EPT_NO_EXEC_CHECK
template <class Context>
EPT_HOST_DEVICE void write_choice_values(const Context& ctx, const combine_input& in,
                                         const expert_rows& rows, std::byte* dst) {
  const geometry& geo = ctx.geo;
  if (geo.return_values == 0) return;
  auto* values = reinterpret_cast<float*>(dst + geo.return_values);
  for (std::int32_t j = static_cast<std::int32_t>(ctx.worker.thread()); j < geo.top_k;
       j += static_cast<std::int32_t>(ctx.worker.threads())) {
    float value = 0;
    if (in.choice_value != nullptr && rows.places == nullptr) {
      value = in.choice_value[rows.single * geo.top_k + j];
    } else if (in.choice_value != nullptr && rows.places[j].position >= 0) {
      value = in.choice_value[rows.places[j].position];
    }
    values[j] = value;
  }
}

/// True if a received row goes back as it lies in y.
[[nodiscard]] EPT_HOST_DEVICE inline bool returns_unchanged(const geometry& geo,
                                                            const handle_parts& handle) {
  return !per_expert(handle.header->layout) && geo.values == geo.wire;
}

/// Where a combine finds the own rank's rows without a way through the zone: in y, if both halves
/// run in one launch, so that y still stands, and the result is not written over it. Null: in the
/// zone.
EPT_NO_EXEC_CHECK
template <class Context>
[[nodiscard]] EPT_HOST_DEVICE const std::byte* own_rows(const Context& ctx, const combine_input& in,
                                                        const combine_output& out,
                                                        const handle_parts& handle,
                                                        call_parts parts) {
  const geometry& geo = ctx.geo;
  if (parts != call_parts::both || in.y == nullptr || !ctx.ok()) return nullptr;
  if (!returns_unchanged(geo, handle)) return nullptr;
  const auto y = reinterpret_cast<std::uintptr_t>(in.y);
  const auto result = reinterpret_cast<std::uintptr_t>(out.out);
  const auto rows = static_cast<std::uint64_t>(received_rows(geo, handle.received));
  const auto tokens = static_cast<std::uint64_t>(handle.header->tokens);
  const bool apart = result + tokens * geo.value_bytes <= y || y + rows * geo.value_bytes <= result;
  if (!apart) return nullptr;
  std::int64_t first = 0;
  for (std::int32_t r = 0; r < geo.rank; ++r) first += handle.received[r];
  return static_cast<const std::byte*>(in.y) + static_cast<std::uint64_t>(first) * geo.value_bytes;
}

/// Reduces and sends one received row. `stays`: the own rank reads its rows in y.
EPT_NO_EXEC_CHECK
template <class Context>
EPT_HOST_DEVICE void return_row(const Context& ctx, const combine_input& in,
                                const handle_parts& handle, const received_row& to, bool stays) {
  const geometry& geo = ctx.geo;
  const bool expert_wise = per_expert(handle.header->layout);
  const expert_rows rows{.y = static_cast<const std::byte*>(in.y),
                         .bytes = geo.value_bytes,
                         .places = expert_wise ? handle.places + to.index * geo.top_k : nullptr,
                         .single = to.index,
                         .choices = expert_wise ? geo.top_k : 1,
                         .weights = in.weights};
  std::byte* window = ctx.view.local();
  const std::uint64_t place = geo.return_row(handle.return_base[to.source] + to.slot);
  std::byte* dst = to.source == geo.rank ? window + place
                   : geo.stores(to.source)
                       ? ctx.view.peer_pointer(to.source, place, geo.return_bytes)
                       : window + return_place(geo, handle, to);
  if (dst == nullptr) {
    (void)sent(ctx, op_status::failed, stage::combine_send, to.source);
    return;
  }
  const bool unchanged = returns_unchanged(geo, handle);
  if (unchanged && !(stays && to.source == geo.rank)) {
    ctx.worker.copy(dst, rows.row(0), geo.value_bytes);
  } else if (!unchanged) {
    sum_rows(ctx.worker, dst, geo.hidden, rows, geo.values, geo.wire);
  }
  write_choice_values(ctx, in, rows, dst);
  if (to.source == geo.rank || geo.message != message_shape::per_row) return;
  (void)put(ctx,
            {.peer = to.source,
             .dst_offset = place,
             .src = dst,
             .bytes = geo.return_bytes,
             .signal = geo.combine_signal(geo.rank)},
            stage::combine_send);
}

/// per_peer and direct: sends the rows for `peer`, of which the first is received row `first`, or
/// releases those that were stored.
EPT_NO_EXEC_CHECK
template <class Context>
EPT_HOST_DEVICE void return_all(const Context& ctx, const handle_parts& handle, std::int32_t peer,
                                std::int64_t first) {
  const geometry& geo = ctx.geo;
  const std::int64_t rows = handle.received[peer];
  const std::uint32_t signal = geo.combine_signal(geo.rank);
  if (rows == 0) return;
  if (geo.message == message_shape::direct) {
    (void)sent(ctx, ctx.view.signal(ctx.worker, ctx.channel, peer, signal, ctx.deadline),
               stage::combine_send, peer);
    return;
  }
  (void)put_pieces(ctx,
                   {.peer = peer,
                    .dst_offset = geo.return_row(handle.return_base[peer]),
                    .src = ctx.view.local() + geo.staged_return(first),
                    .bytes = geo.return_bytes,
                    .signal = signal},
                   rows, geo.returns_per_message, stage::combine_send);
  ctx.view.submit(ctx.worker, ctx.channel);
}

/// Push: reduces and sends this worker's share of the received rows.
EPT_NO_EXEC_CHECK
template <class Context>
EPT_HOST_DEVICE void return_rows(const Context& ctx, const combine_input& in,
                                 const handle_parts& handle, std::int64_t rows, bool stays) {
  const share mine = share_of(ctx.worker, rows);
  if (mine.begin == mine.end) return;
  row_cursor cursor(ctx.geo, handle.received, mine.begin);
  for (std::int64_t row = mine.begin; row < mine.end && ctx.ok(); ++row, cursor.next()) {
    return_row(ctx, in, handle, *cursor, stays);
  }
}

/// Pull: tells this worker's share of the peers where y lies.
EPT_NO_EXEC_CHECK
template <class Context>
EPT_HOST_DEVICE void offer(const Context& ctx, const combine_input& in) {
  const geometry& geo = ctx.geo;
  for (std::int32_t i = static_cast<std::int32_t>(ctx.worker.worker()); i < geo.ranks;
       i += static_cast<std::int32_t>(ctx.worker.workers())) {
    const std::int32_t peer = peer_at(geo, i);
    if (!ctx.ok()) return;
    const std::uint64_t mine = geo.ready_zone(geo.rank);
    std::byte* message =
        ctx.view.local() + (peer == geo.rank ? mine : geo.ready_zone(geo.ranks + peer));
    if (ctx.worker.thread() == 0) {
      *reinterpret_cast<message_header*>(message) = {
          .stamp = stamp_of(ctx.combines),
          .config = geo.config,
          .value = in.y == nullptr ? 0
                                   : static_cast<std::uint64_t>(
                                         static_cast<const std::byte*>(in.y) - ctx.view.local())};
    }
    ctx.worker.sync();
    if (peer != geo.rank && !put(ctx,
                                 {.peer = peer,
                                  .dst_offset = mine,
                                  .src = message,
                                  .bytes = sizeof(message_header),
                                  .signal = geo.combine_signal(geo.rank)},
                                 stage::combine_send)) {
      return;
    }
  }
  ctx.view.submit(ctx.worker, ctx.channel);
}

/// The send half, after the exchange.
EPT_NO_EXEC_CHECK
template <class Context>
EPT_HOST_DEVICE void combine_send(const Context& ctx, const combine_input& in,
                                  const handle_parts& handle, bool stays) {
  const geometry& geo = ctx.geo;
  const std::int64_t rows = ctx.ok() ? received_rows(geo, handle.received) : 0;
  const bool readable = rows == 0 || expect_pointer(ctx, in.y, stage::combine_send);
  const bool pull = in.transfer == combine_transfer::pull;
  if (!pull && readable) return_rows(ctx, in, handle, rows, stays);
  if (pull && readable && rows > 0) {
    const auto at =
        static_cast<std::uint64_t>(static_cast<const std::byte*>(in.y) - ctx.view.local());
    const auto bytes = static_cast<std::uint64_t>(rows) * geo.value_bytes;
    // y that runs past the window would read as zeros elsewhere.
    (void)expect_pointer(ctx, ctx.view.peer_pointer(geo.rank, at, bytes), stage::combine_send);
  }
  ctx.view.submit(ctx.worker, ctx.channel);
  ctx.barrier(stage::combine_send);
  if (pull) offer(ctx, in);
  if constexpr (has_relays<std::remove_cvref_t<decltype(ctx.view)>>) {
    if (through_relays(ctx)) return signal_node(ctx);
  }
  if (pull || geo.message == message_shape::per_row) return;
  for (std::int32_t i = static_cast<std::int32_t>(ctx.worker.worker()); i + 1 < geo.ranks;
       i += static_cast<std::int32_t>(ctx.worker.workers())) {
    const std::int32_t peer = peer_at(geo, i);
    std::int64_t first = 0;
    for (std::int32_t below = 0; below < peer; ++below) first += handle.received[below];
    if (ctx.ok()) return_all(ctx, handle, peer, first);
  }
}

/// What the receive half knows of the send half.
struct combine_round {
  std::uint64_t number;  ///< combines before this one
  std::uint64_t next;    ///< the epoch of the lane's next exchange
  bool pull;
  const std::byte* own;  ///< see `own_rows`
};

/// Raises a mismatch if `peer` offered its rows where this rank counts on a push, or the reverse. A
/// ready message of this combine is there only if the peer offers. `named`: the peer, or -1 where
/// what was counted need not be its.
EPT_NO_EXEC_CHECK
template <class Context>
EPT_HOST_DEVICE void expect_transfer(const Context& ctx, const combine_round& round,
                                     std::int32_t peer, std::int32_t named) {
  const auto& ready =
      *reinterpret_cast<const message_header*>(ctx.view.local() + ctx.geo.ready_zone(peer));
  const bool offered = ready.stamp == stamp_of(round.number) && ready.config == ctx.geo.config;
  if (offered == round.pull || ctx.worker.thread() != 0) return;
  raise(ctx, {.kind = fault_kind::mismatch,
              .where = stage::combine_recv,
              .peer = named,
              .expected = static_cast<std::uint64_t>(round.pull ? combine_transfer::pull
                                                                : combine_transfer::push),
              .seen = static_cast<std::uint64_t>(round.pull ? combine_transfer::push
                                                            : combine_transfer::pull)});
}

/// Waits for what the peers return, or offer.
EPT_NO_EXEC_CHECK
template <class Context>
EPT_HOST_DEVICE void await_returns(const Context& ctx, const handle_parts& handle,
                                   const combine_round& round) {
  const geometry& geo = ctx.geo;
  const bool summed = geo.sources == 1;
  awaited what{.signal = geo.combine_signal(0),
               .target = 0,
               .where = stage::combine_recv,
               .peer = -1,
               .next = round.next};
  const auto owed = [&](std::int32_t peer) -> std::int64_t {
    return peer == geo.rank ? 0 : round.pull ? 1 : geo.return_messages(handle.sent[peer]);
  };
  std::int64_t all = 0;
  for (std::int32_t peer = 0; peer < geo.ranks && ctx.ok(); ++peer) {
    const std::int64_t messages = owed(peer);
    all += messages;
    const bool mine =
        static_cast<std::uint32_t>(peer) % ctx.worker.workers() == ctx.worker.worker();
    what.peer = peer;
    what.signal = geo.combine_signal(peer);
    if (summed || !mine || messages == 0) continue;
    if (await_due(ctx, ctx.lane.returns_due, what, messages))
      expect_transfer(ctx, round, peer, peer);
  }
  what.peer = -1;
  what.signal = geo.combine_signal(0);
  if (summed && ctx.worker.worker() == 0 && ctx.ok()) {
    const bool came = await_due(ctx, ctx.lane.returns_due, what, all);
    for (std::int32_t peer = 0; peer < geo.ranks && came; ++peer) {
      if (owed(peer) > 0) expect_transfer(ctx, round, peer, -1);  // others' messages count here too
    }
  }
}

/// Adds up the floats that came back for one token's choices.
EPT_NO_EXEC_CHECK
template <class Context>
EPT_HOST_DEVICE void gather_choice_values(const Context& ctx, const returned_rows& rows,
                                          float* out) {
  const geometry& geo = ctx.geo;
  for (std::int32_t j = static_cast<std::int32_t>(ctx.worker.thread()); j < geo.top_k;
       j += static_cast<std::int32_t>(ctx.worker.threads())) {
    float sum = 0;
    for (std::int32_t i = 0; i < rows.count(); ++i) {
      if (!rows.exists(i)) continue;
      sum += reinterpret_cast<const float*>(rows.zone_row(i) + geo.return_values)[j];
    }
    out[j] = sum;
  }
}

/// The receive half.
EPT_NO_EXEC_CHECK
template <class View, class W>
EPT_HOST_DEVICE void combine_receive(const lane_context<View, W>& ctx, const combine_output& out,
                                     const handle_parts& handle, const combine_round& round) {
  const geometry& geo = ctx.geo;
  const auto& worker = ctx.worker;
  const bool relays = through_relays(ctx);
  if constexpr (has_relays<View>) {
    if (relays) relay_returns(ctx, handle, round.next);
    if (relays && ctx.ok()) await_node_returns(ctx, handle, round.next);
  }
  if (!relays && ctx.ok()) await_returns(ctx, handle, round);
  ctx.barrier(stage::combine_recv);
  if (!ctx.ok()) return;
  const std::int64_t tokens = handle.header->tokens;
  if (tokens > 0 && !expect_pointer(ctx, out.out, stage::combine_recv)) return;
  const share mine = share_of(worker, tokens);
  const auto* ready = reinterpret_cast<const message_header*>(ctx.view.local() + geo.ready_zone(0));
  for (std::int64_t t = mine.begin; t < mine.end; ++t) {
    const std::uint64_t at = static_cast<std::uint64_t>(t) * geo.value_bytes;
    std::byte* row = static_cast<std::byte*>(out.out) + at;
    const auto* bias = out.bias == nullptr ? nullptr : static_cast<const std::byte*>(out.bias) + at;
    const route_entry* routes = (relays ? handle.returned : handle.routes) + t * geo.top_k;
    const returned_rows returned{ctx.view.local(), &geo, routes, handle.sent_base, bias, round.own};
    if (round.pull) {
      sum_rows(worker, row, geo.hidden,
               pulled_rows<View>{&ctx.view, &geo, routes, handle.place_base, ready, bias},
               geo.values, geo.values);
      continue;
    }
    sum_rows(worker, row, geo.hidden, returned, geo.wire, geo.values);
    if (out.choice_value != nullptr && geo.return_values != 0) {
      gather_choice_values(ctx, returned, out.choice_value + t * geo.top_k);
    }
  }
}

/// State changes of the lane when the last worker of a combine leaves.
struct finish_combine {
  call_parts parts;
  bool exchanged;
  handle_header* header;
  combine_transfer transfer;

  EPT_HOST_DEVICE void operator()(lane_state& state) const {
    if (state.status != 0) return;
    if (has(parts, call_parts::send)) {
      state.phase = lane_phase::combine_sent;
      header->transfer = transfer;
      state.handle = reinterpret_cast<std::uintptr_t>(header);
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
      (void)(detail::expect(ctx, stage::combine_recv, phase == lane_phase::combine_sent,
                            lane_phase::combine_sent) &&
             detail::expect_same_handle(ctx, stage::combine_recv, parts_of_handle));
    }
    detail::expect_combinable(ctx, parts_of_handle, in);
    const combine_transfer transfer = send ? in.transfer : parts_of_handle.header->transfer;
    ctx.barrier(stage::combine_send);
    if (exchange) detail::empty_exchange(ctx);
    const std::byte* own = detail::own_rows(ctx, in, out, parts_of_handle, parts);
    if (send) detail::combine_send(ctx, in, parts_of_handle, own != nullptr);
    ctx.barrier(stage::combine_recv);
    if (detail::has(parts, call_parts::receive)) {
      const detail::combine_round round{.number = ctx.combines - (send ? 0 : 1),
                                        .next = ctx.epoch + (exchange ? 1 : 0),
                                        .pull = transfer == combine_transfer::pull,
                                        .own = own};
      detail::combine_receive(ctx, out, parts_of_handle, round);
    }
    detail::leave(ctx, detail::finish_combine{parts, exchange, parts_of_handle.header, transfer});
  }
};

}  // namespace eptransport
