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
#include <eptransport/kernels/combine_receive.hpp>
#include <eptransport/kernels/combine_rows.hpp>
#include <eptransport/kernels/dispatch.hpp>
#include <eptransport/kernels/few.hpp>
#include <eptransport/kernels/lane.hpp>
#include <eptransport/kernels/layout.hpp>
#include <eptransport/kernels/leave.hpp>
#include <eptransport/kernels/pieces.hpp>
#include <eptransport/kernels/receive.hpp>
#include <eptransport/kernels/relay_combine.hpp>
#include <eptransport/kernels/relay_dispatch.hpp>
#include <eptransport/kernels/rows.hpp>

#include <cstddef>
#include <cstdint>

namespace eptransport {

namespace detail {

/// Raises a misuse unless the handle is of a finished dispatch that suits the combine. Returns the
/// same in every worker.
EPT_NO_EXEC_CHECK
template <class Context>
[[nodiscard]] EPT_HOST_DEVICE bool expect_combinable(const Context& ctx, const handle_parts& handle,
                                                     const combine_input& in) {
  if (!expect_handle(ctx, stage::combine_send, handle)) return false;
  const bool expert_wise = per_expert(handle.header->layout);
  const bool counted = handle.header->in.mode == dispatch_mode::counted;
  const bool suits = (in.weights == weighting::none || expert_wise) &&
                     (in.transfer == combine_transfer::push || (counted && !expert_wise));
  if (handle.header->received_valid != 0 && suits) return true;
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
                                                        const std::int64_t* received,
                                                        call_parts parts) {
  const geometry& geo = ctx.geo;
  if (parts != call_parts::both || in.y == nullptr) return nullptr;
  if (!returns_unchanged(geo, handle)) return nullptr;
  const auto y = reinterpret_cast<std::uintptr_t>(in.y);
  const auto result = reinterpret_cast<std::uintptr_t>(out.out);
  const auto rows = static_cast<std::uint64_t>(received_rows(geo, received));
  const auto tokens = static_cast<std::uint64_t>(handle.header->tokens);
  const bool apart = result + tokens * geo.value_bytes <= y || y + rows * geo.value_bytes <= result;
  if (!apart) return nullptr;
  std::int64_t first = 0;
  for (std::int32_t r = 0; r < geo.rank; ++r) first += received[r];
  return static_cast<const std::byte*>(in.y) + static_cast<std::uint64_t>(first) * geo.value_bytes;
}

/// Reduces a piece of a received row, and sends the row if it travels alone. `stays`: the own rank
/// reads its rows in y.
EPT_NO_EXEC_CHECK
template <class Context>
EPT_NOINLINE EPT_HOST_DEVICE void return_piece(const Context& ctx, const combine_input& in,
                                               const handle_parts& handle, const received_row& to,
                                               const piece& part, bool stays) {
  const geometry& geo = ctx.geo;
  const bool expert_wise = per_expert(handle.header->layout);
  const expert_rows rows{.y = static_cast<const std::byte*>(in.y),
                         .bytes = geo.value_bytes,
                         .places = expert_wise ? handle.places + to.index * geo.top_k : nullptr,
                         .single = to.index,
                         .choices = expert_wise ? geo.top_k : 1,
                         .weights = in.weights};
  std::byte* window = ctx.view.local();
  const bool slotted =
      geo.message == message_shape::direct && handle.header->in.mode == dispatch_mode::slotted;
  const std::int64_t base = slotted ? geo.rank * geo.max_tokens : handle.return_base[to.source];
  const std::uint64_t place = geo.return_row(base + to.slot);
  std::byte* dst = to.source == geo.rank ? window + place
                   : geo.stores(to.source)
                       ? ctx.view.peer_pointer(to.source, place, geo.return_bytes)
                       : window + return_place(geo, handle, to);
  if (dst == nullptr) {
    (void)sent(ctx, op_status::failed, stage::combine_send, to.source);
    return;
  }
  const extent columns = covered(part, unit_values, geo.hidden);
  const bool unchanged = returns_unchanged(geo, handle);
  if (unchanged && !(stays && to.source == geo.rank)) {
    const auto each = static_cast<std::int64_t>(bytes_of(geo.values));
    const auto first = static_cast<std::uint64_t>(columns.begin * each);
    ctx.worker.copy(dst + first, rows.row(0) + first,
                    static_cast<std::uint64_t>((columns.end - columns.begin) * each));
  } else if (!unchanged) {
    sum_rows(ctx.worker, dst, columns.begin, columns.end, rows, geo.values, geo.wire);
  }
  if (part.begins()) write_choice_values(ctx, in, rows, dst);
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

/// Sends, or releases, the rows for the peers `first`, `first + step`, .. in serving order.
EPT_NO_EXEC_CHECK
template <class Context>
EPT_HOST_DEVICE void return_some(const Context& ctx, const handle_parts& handle,
                                 std::uint32_t first, std::uint32_t step) {
  const geometry& geo = ctx.geo;
  if (!ctx.ok()) return;
  for (auto i = static_cast<std::int32_t>(first); i + 1 < geo.ranks;
       i += static_cast<std::int32_t>(step)) {
    const std::int32_t peer = peer_at(geo, i);
    std::int64_t rows = 0;
    for (std::int32_t below = 0; below < peer; ++below) rows += handle.received[below];
    return_all(ctx, handle, peer, rows);
  }
}

/// Push: reduces and sends this worker's share of the received rows; where each row travels alone,
/// whole rows.
EPT_NO_EXEC_CHECK
template <class Context>
EPT_HOST_DEVICE void return_rows(const Context& ctx, const combine_input& in,
                                 const handle_parts& handle, const std::int64_t* received,
                                 std::int64_t rows, bool stays) {
  const geometry& geo = ctx.geo;
  const std::int64_t all = units_of(geo.hidden, unit_values);
  const bool alone = geo.message == message_shape::per_row;
  for_pieces(ctx.worker, rows, alone ? 1 : all, [&](const piece& part) {
    const row_cursor cursor(geo, received, part.row);
    return_piece(ctx, in, handle, *cursor, alone ? piece{part.row, 0, all} : part, stays);
  });
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
  if (!pull && readable) return_rows(ctx, in, handle, handle.received, rows, stays);
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
  return_some(ctx, handle, ctx.worker.worker(), ctx.worker.workers());
}

/// True if combine's rows are stored into the peers' zones, and nothing else is to be exchanged.
[[nodiscard]] EPT_HOST_DEVICE inline bool stored_returns(const geometry& geo,
                                                         combine_transfer transfer,
                                                         bool exchange) noexcept {
  return geo.message == message_shape::direct && transfer == combine_transfer::push && !exchange;
}

/// How many rows went where, in the crew's scratch if they fit there: read often, by all its
/// workers.
struct row_counts {
  const std::int64_t* received;  ///< [R]
  const std::int64_t* sent;      ///< [R]

  /// By the whole crew. `valid`: the handle is; the same in every worker.
  EPT_NO_EXEC_CHECK
  template <class Context>
  [[nodiscard]] EPT_HOST_DEVICE static row_counts of(const Context& ctx, const handle_parts& handle,
                                                     bool valid) {
    const std::int64_t ranks = ctx.geo.ranks;
    if (ranks * 16 > std::int64_t{crew_scratch_bytes}) return {handle.received, handle.sent};
    auto* words = reinterpret_cast<std::int64_t*>(ctx.worker.scratch());
    for_crew(ctx.worker, valid ? ranks : 0, [&](std::int64_t r) {
      words[r] = handle.received[r];
      words[ranks + r] = handle.sent[r];
    });
    (void)ctx.worker.crew_all(true);
    return {words, words + ranks};
  }
};

/// A combine whose rows are stored into the peers' zones: whichever crew arrives last knows that
/// all are, and tells the peers; every crew waits for itself.
EPT_NO_EXEC_CHECK
template <class Context>
EPT_HOST_DEVICE void combine_stored(const Context& ctx, const combine_input& in,
                                    const combine_output& out, const handle_parts& handle,
                                    call_parts parts, bool valid) {
  const geometry& geo = ctx.geo;
  const auto& worker = ctx.worker;
  const row_counts counts = row_counts::of(ctx, handle, valid);
  const bool send = has(parts, call_parts::send);
  const bool fit = valid && ctx.sound;
  const std::byte* own = fit ? own_rows(ctx, in, out, handle, counts.received, parts) : nullptr;
  arrival stored{};
  if (send) {
    const std::int64_t rows = fit ? received_rows(geo, counts.received) : 0;
    if (rows == 0 || expect_pointer(ctx, in.y, stage::combine_send)) {
      return_rows(ctx, in, handle, counts.received, rows, own != nullptr);
    }
    stored = worker.arrive();
    for (auto i = static_cast<std::int32_t>(worker.member());
         stored.last && i + 1 < geo.ranks && ctx.ok();
         i += static_cast<std::int32_t>(worker.members())) {
      const std::int32_t peer = peer_at(geo, i);
      if (counts.received[peer] == 0) continue;
      (void)sent(
          ctx,
          ctx.view.signal(worker, ctx.channel, peer, geo.combine_signal(geo.rank), ctx.deadline),
          stage::combine_send, peer);
    }
  }
  if (!has(parts, call_parts::receive)) return;
  const combine_round round{.number = ctx.combines - (send ? 0 : 1),
                            .next = ctx.epoch,
                            .pull = false,
                            .own = own,
                            .sent = counts.sent,
                            .slotted = valid && handle.header->in.mode == dispatch_mode::slotted,
                            .valid = fit};
  if (complete_returns(ctx, round, stored)) sum_returns(ctx, out, handle, round);
}

/// Whatever is not `combine_stored`. Out of line, so that stores do not step over it.
EPT_NO_EXEC_CHECK
template <class Context>
EPT_NOINLINE EPT_HOST_DEVICE void combine_sent(const Context& ctx, const combine_input& in,
                                               const combine_output& out,
                                               const handle_parts& handle, call_parts parts,
                                               bool valid, bool exchange) {
  const bool send = has(parts, call_parts::send);
  const combine_transfer transfer = send || !valid ? in.transfer : handle.header->transfer;
  ctx.barrier(stage::combine_send);
  if (exchange) empty_exchange(ctx);
  const std::byte* own =
      valid && ctx.sound ? own_rows(ctx, in, out, handle, handle.received, parts) : nullptr;
  if (send) combine_send(ctx, in, handle, own != nullptr);
  ctx.barrier(stage::combine_recv);
  if (!has(parts, call_parts::receive)) return;
  combine_receive(ctx, out, handle,
                  {.number = ctx.combines - (send ? 0 : 1),
                   .next = ctx.epoch + (exchange ? 1 : 0),
                   .pull = transfer == combine_transfer::pull,
                   .own = own,
                   .sent = handle.sent,
                   .slotted = false,
                   .valid = valid && ctx.sound});
}

/// State changes of the lane when the last worker of a combine leaves.
struct finish_combine {
  call_parts parts;
  bool exchanged;
  const handle_parts& handle;
  combine_transfer transfer;
  const geometry* stored;  ///< the peers' rows came by stores; else null
  std::uint64_t* returns_due;

  EPT_NO_EXEC_CHECK
  template <class W>
  EPT_HOST_DEVICE void operator()(const W& worker, lane_state& state) const {
    if (stored != nullptr && stored->sources != 1) {
      for (std::int64_t peer = worker.thread(); peer < stored->ranks; peer += worker.threads()) {
        returns_due[peer] += owed(static_cast<std::int32_t>(peer));
      }
    }
    if (worker.thread() != 0) return;
    for (std::int32_t peer = 0; stored != nullptr && stored->sources == 1 && peer < stored->ranks;
         ++peer) {
      returns_due[0] += owed(peer);
    }
    if (has(parts, call_parts::send)) {
      state.phase = lane_phase::combine_sent;
      handle.header->transfer = transfer;
      state.handle = reinterpret_cast<std::uintptr_t>(handle.header);
      state.combines += 1;
      if (exchanged) state.epoch += 1;
    }
    if (has(parts, call_parts::receive)) state.phase = lane_phase::combined;
  }

 private:
  [[nodiscard]] EPT_HOST_DEVICE std::uint64_t owed(std::int32_t peer) const {
    return static_cast<std::uint64_t>(owed_by(*stored, handle.sent, peer, false));
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
    bool valid = false;  // the same in every worker
    if (send) {
      valid =
          detail::expect(ctx, stage::combine_send,
                         phase != lane_phase::dispatch_sent && phase != lane_phase::combine_sent,
                         lane_phase::dispatched);
    } else {
      valid = detail::expect(ctx, stage::combine_recv, phase == lane_phase::combine_sent,
                             lane_phase::combine_sent) &&
              detail::expect_same_handle(ctx, stage::combine_recv, parts_of_handle);
    }
    valid = detail::expect_combinable(ctx, parts_of_handle, in) && valid;
    const combine_transfer transfer =
        send || !valid ? in.transfer : parts_of_handle.header->transfer;
    const bool by_stores = detail::stored_returns(geo, transfer, exchange);
    if (by_stores) {
      detail::combine_stored(ctx, in, out, parts_of_handle, parts, valid);
    } else {
      detail::combine_sent(ctx, in, out, parts_of_handle, parts, valid, exchange);
    }
    const bool receive = detail::has(parts, call_parts::receive);
    detail::leave(ctx,
                  detail::finish_combine{parts, exchange, parts_of_handle, transfer,
                                         receive && by_stores ? &geo : nullptr, lane.returns_due});
  }
};

}  // namespace eptransport
