// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Dispatch: route, announce, send; wait, then lay the rows out.
///
/// Every rank sends every other rank exactly one D message per dispatch, empty or not (INV-3):
///
/// | shape    | rows                                    | D message                            |
/// |----------|-----------------------------------------|--------------------------------------|
/// | per_row  | one put each, counted on the row signal | the header, as soon as counts stand  |
/// | per_peer | packed behind the header                | header and rows (more on row signal) |
/// | direct   | stored through pointers                 | the header, released after the rows  |
/// | per_node | direct in the node; relay_dispatch.hpp  | the same, a relay's for other nodes  |
///
/// Direct rows go by pieces and without barriers (direct.hpp). Counted dispatch (counted.hpp)
/// announces counts, and moves rows in its second half.
#pragma once

#include <eptransport/core/config.hpp>
#include <eptransport/core/transport.hpp>
#include <eptransport/kernels/counted.hpp>
#include <eptransport/kernels/direct.hpp>
#include <eptransport/kernels/few.hpp>
#include <eptransport/kernels/lane.hpp>
#include <eptransport/kernels/layout.hpp>
#include <eptransport/kernels/leave.hpp>
#include <eptransport/kernels/messages.hpp>
#include <eptransport/kernels/output.hpp>
#include <eptransport/kernels/output_few.hpp>
#include <eptransport/kernels/relay_dispatch.hpp>
#include <eptransport/kernels/relay_route.hpp>
#include <eptransport/kernels/route.hpp>
#include <eptransport/kernels/write.hpp>

#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace eptransport {

/// Which halves of an operation a launch runs.
enum class call_parts : std::uint32_t { send = 1, receive = 2, both = 3 };

namespace detail {

[[nodiscard]] EPT_HOST_DEVICE constexpr bool has(call_parts parts, call_parts one) noexcept {
  return (static_cast<std::uint32_t>(parts) & static_cast<std::uint32_t>(one)) != 0;
}

/// Stages one token's rows, and sends them where each travels alone.
EPT_NO_EXEC_CHECK
template <class View, class W>
EPT_HOST_DEVICE void send_token(const lane_context<View, W>& ctx, const dispatch_input& in,
                                std::int64_t t, const route_entry* routes) {
  const geometry& geo = ctx.geo;
  std::byte* window = ctx.view.local();
  const bool packed = geo.message == message_shape::per_peer;
  bool staged = false;
  for (std::int32_t i = 0; i < geo.top_k && routes[i].rank >= 0; ++i) {
    const std::int32_t peer = routes[i].rank;
    const std::uint64_t place = geo.zone(ctx.epoch, geo.rank) + geo.slot(routes[i].slot);
    if (geo.relayed(peer)) continue;  // went out in the message to its node
    const bool stores = peer != geo.rank && geo.stores(peer);
    const bool alone = peer != geo.rank && !packed && !stores;
    std::byte* slot = peer == geo.rank ? window + place
                      : stores         ? ctx.view.peer_pointer(peer, place, geo.slot_bytes)
                      : packed
                          ? window + geo.staged_message(ctx.epoch, peer) + geo.slot(routes[i].slot)
                          : window + geo.staged_token(ctx.epoch, t);
    if (slot == nullptr) {
      (void)sent(ctx, op_status::failed, stage::dispatch_send, peer);
      return;
    }
    if (!alone || !staged) write_slot(ctx, in, t, slot);
    if (!alone) continue;
    staged = true;
    const put_request request{.peer = peer,
                              .dst_offset = place,
                              .src = slot,
                              .bytes = geo.slot_bytes,
                              .signal = geo.row_signal(ctx.epoch, geo.rank)};
    if (!put(ctx, request, stage::dispatch_send)) return;
  }
}

/// Sends the slotted D message for `peer`, and for per_peer the rows that did not fit into it.
EPT_NO_EXEC_CHECK
template <class Context>
EPT_HOST_DEVICE void announce(const Context& ctx, std::int32_t peer, std::int64_t rows) {
  const geometry& geo = ctx.geo;
  const bool packed = geo.message == message_shape::per_peer;
  const std::int64_t first = !packed                       ? 0
                             : rows < geo.rows_per_message ? rows
                                                           : geo.rows_per_message;
  if (geo.message == message_shape::direct) {
    announce_stored(ctx, peer, slotted_header(ctx, rows));
    return;
  }
  std::byte* message = place_header(ctx, peer, slotted_header(ctx, rows));
  if (peer == geo.rank || !send_d(ctx, message, geo.slot(first), ctx.epoch, peer)) return;
  (void)put_pieces(ctx,
                   {.peer = peer,
                    .dst_offset = geo.zone(ctx.epoch, geo.rank) + geo.slot(first),
                    .src = message + geo.slot(first),
                    .bytes = geo.slot_bytes,
                    .signal = geo.row_signal(ctx.epoch, geo.rank)},
                   packed ? rows - first : 0, geo.rows_per_message, stage::dispatch_send);
  ctx.view.submit(ctx.worker, ctx.channel);
}

/// Announces to the ranks `first`, `first + step`, .. in serving order; `rows` null = an empty
/// exchange. After a barrier.
EPT_NO_EXEC_CHECK
template <class Context>
EPT_HOST_DEVICE void announce_some(const Context& ctx, const std::int64_t* rows,
                                   std::uint32_t first, std::uint32_t step) {
  if (!ctx.ok()) return;
  begin_announcing(ctx);
  if constexpr (has_relays<std::remove_cvref_t<decltype(ctx.view)>>) {
    if (through_relays(ctx) && rows == nullptr) announce_nodes(ctx, nullptr);
  }
  for (auto i = static_cast<std::int32_t>(first); i < ctx.geo.ranks;
       i += static_cast<std::int32_t>(step)) {
    const std::int32_t peer = peer_at(ctx.geo, i);
    if (!ctx.geo.relayed(peer)) announce(ctx, peer, rows == nullptr ? 0 : rows[peer]);
  }
}

/// Announces to this worker's share of the ranks.
EPT_NO_EXEC_CHECK
template <class Context>
EPT_HOST_DEVICE void announce_all(const Context& ctx, const std::int64_t* rows) {
  announce_some(ctx, rows, ctx.worker.worker(), ctx.worker.workers());
}

/// The tokens of this call; raises a fault if they are more than agreed.
EPT_NO_EXEC_CHECK
template <class Context>
[[nodiscard]] EPT_HOST_DEVICE std::int64_t tokens_of(const Context& ctx, const dispatch_input& in,
                                                     const handle_parts& handle) {
  const std::int64_t tokens = in.cached                     ? handle.header->tokens
                              : in.device_tokens != nullptr ? *in.device_tokens
                                                            : in.tokens;
  const std::int64_t most =
      in.mode == dispatch_mode::counted ? ctx.geo.counted_tokens : ctx.geo.max_tokens;
  if (tokens >= 0 && tokens <= most) {
    const bool readable =
        tokens == 0 || (expect_pointer(ctx, in.x, stage::dispatch_send) &&
                        expect_pointer(ctx, in.topk_index, stage::dispatch_send) &&
                        (ctx.geo.scale_bytes == 0 || ctx.geo.quantise != quantisation::none ||
                         expect_pointer(ctx, in.scales, stage::dispatch_send)));
    return readable ? tokens : 0;
  }
  if (ctx.worker.worker() == 0 && ctx.worker.thread() == 0) {
    raise(ctx, {.kind = fault_kind::too_many_tokens,
                .where = stage::dispatch_send,
                .expected = static_cast<std::uint64_t>(most),
                .seen = static_cast<std::uint64_t>(tokens)});
  }
  return 0;
}

/// Routes the tokens into the handle; a cached handle has its routes. Ends in a barrier after which
/// `handle.sent` stands; the routes of a worker's own share stand as well.
EPT_NO_EXEC_CHECK
template <class Context>
EPT_HOST_DEVICE void route(const Context& ctx, const dispatch_input& in, const handle_parts& handle,
                           std::int64_t tokens) {
  const geometry& geo = ctx.geo;
  const bool counted = in.mode == dispatch_mode::counted;
  if (!in.cached) count_routes(ctx, in, tokens, counted);
  const bool nodes = through_relays(ctx) && !in.cached;
  if (nodes) count_nodes(ctx, in, tokens);
  ctx.barrier(stage::dispatch_send);
  if (!in.cached && ctx.ok()) {
    scan_columns(ctx, geo.ranks + (counted ? geo.experts : 0));
    for (std::int64_t r = ctx.worker.worker(); r < geo.ranks; r += ctx.worker.workers()) {
      if (ctx.worker.thread() == 0) handle.sent[r] = ctx.lane.totals[r];
    }
  }
  if (nodes && ctx.ok()) {
    const std::int64_t first = node_column(geo);
    scan_columns(ctx, first + geo.relay.table.nodes, first);
    for (std::int64_t n = ctx.worker.worker(); n < geo.relay.table.nodes;
         n += ctx.worker.workers()) {
      if (ctx.worker.thread() == 0) handle.node_sent[n] = ctx.lane.totals[first + n];
    }
  }
  ctx.barrier(stage::dispatch_send);
  if (!in.cached && ctx.ok()) assign_routes(ctx, in, tokens, handle);
  if (nodes && ctx.ok()) assign_returners(ctx, in, tokens, handle);
}

/// The send half. `valid`: the lane and the handle are fit for it; the same in every worker.
EPT_NO_EXEC_CHECK
template <class Context>
EPT_HOST_DEVICE void dispatch_send(const Context& ctx, const dispatch_input& in,
                                   const handle_parts& handle, bool valid) {
  const geometry& geo = ctx.geo;
  const std::int64_t tokens = valid ? tokens_of(ctx, in, handle) : 0;
  route(ctx, in, handle, tokens);
  if (in.mode == dispatch_mode::counted) {
    announce_counts(ctx, in, handle);
    return;
  }
  if constexpr (has_relays<std::remove_cvref_t<decltype(ctx.view)>>) {
    if (through_relays(ctx)) send_to_nodes(ctx, in, handle, tokens);
  }
  const bool early = geo.message == message_shape::per_row;  // rows are counted on their own
  if (early) announce_all(ctx, handle.sent);
  const share mine = share_of(ctx.worker, tokens);
  for (std::int64_t t = mine.begin; t < mine.end && ctx.ok(); ++t) {
    send_token(ctx, in, t, handle.routes + t * geo.top_k);
  }
  ctx.view.submit(ctx.worker, ctx.channel);
  ctx.barrier(stage::dispatch_send);
  if (!early) announce_all(ctx, handle.sent);
}

/// True if rows are stored into the peers' slots.
[[nodiscard]] EPT_HOST_DEVICE constexpr bool stored_slots(const geometry& geo,
                                                          const dispatch_input& in) noexcept {
  return in.mode == dispatch_mode::slotted && geo.message == message_shape::direct;
}

/// The send half where many rows are stored into the peers' slots.
EPT_NO_EXEC_CHECK
template <class Context>
[[nodiscard]] EPT_HOST_DEVICE arrival dispatch_store(const Context& ctx, const dispatch_input& in,
                                                     const handle_parts& handle, bool valid) {
  const auto& worker = ctx.worker;
  const std::int64_t tokens = valid ? tokens_of(ctx, in, handle) : 0;
  if (!in.cached) {
    route(ctx, in, handle, tokens);
    ctx.barrier(stage::dispatch_send);  // a row's pieces may be other workers' than its routes
  }
  if (valid && ctx.ok()) store_routed(ctx, in, handle, tokens);
  const arrival stored = worker.arrive();
  if (stored.last) announce_some(ctx, handle.sent, worker.member(), worker.members());
  return stored;
}

/// The receive half; `in` is the input of the send half, `stored` what it returned in this launch.
EPT_NO_EXEC_CHECK
template <class Context>
EPT_HOST_DEVICE void dispatch_receive(const Context& ctx, const dispatch_input& in,
                                      const dispatch_output& out, const handle_parts& handle,
                                      const arrival& stored) {
  if (stored_slots(ctx.geo, in)) {
    emit(ctx, in, out, handle, await_direct(ctx, in, handle, stored));
    return;
  }
  const bool counted = in.mode == dispatch_mode::counted;
  if constexpr (has_relays<std::remove_cvref_t<decltype(ctx.view)>>) {
    if (through_relays(ctx)) relay_forward(ctx, in, &handle);
  }
  if (ctx.ok()) await_exchange(ctx, &handle, in);
  ctx.barrier(stage::dispatch_recv);
  const std::int64_t* received = ctx.ok() ? handle.received : nullptr;
  if (counted) {
    received = exchange_counted_rows(ctx, in, out, handle);
  } else if (received != nullptr) {
    note_slotted_bases(ctx, handle);
  }
  emit(ctx, in, out, handle, received);
}

/// Whatever is not `dispatch_few`. Out of line, so that the few do not step over it.
EPT_NO_EXEC_CHECK
template <class Context>
EPT_NOINLINE EPT_HOST_DEVICE void dispatch_many(const Context& ctx, const dispatch_input& in,
                                                const dispatch_output& out,
                                                const handle_parts& handle, call_parts parts,
                                                bool fit) {
  arrival stored{};
  const bool send = has(parts, call_parts::send);
  if (send && stored_slots(ctx.geo, in)) {
    stored = dispatch_store(ctx, in, handle, fit);
  } else if (send) {
    dispatch_send(ctx, in, handle, fit);
  }
  if (fit && has(parts, call_parts::receive)) dispatch_receive(ctx, in, out, handle, stored);
}

/// A slotted dispatch of few tokens over stores (few.hpp): no worker waits before rows are stored,
/// and then once for its own rank and once for the peers.
EPT_NO_EXEC_CHECK
template <class Context>
EPT_HOST_DEVICE void dispatch_few(const Context& ctx, const dispatch_input& in,
                                  const dispatch_output& out, const handle_parts& handle,
                                  call_parts parts, bool fit) {
  const auto& worker = ctx.worker;
  const std::int32_t rank = ctx.geo.rank;
  const few_scratch scratch = few_scratch::of(worker, ctx.geo);
  const bool routes = has(parts, call_parts::send) && !in.cached;
  arrival stored{};
  std::int64_t tokens = 0;
  if (has(parts, call_parts::send)) {
    if (fit) tokens = tokens_of(ctx, in, handle);
    if (routes) look_at_tokens(ctx, in, tokens, scratch);
    if (fit && ctx.sound && routes) store_few(ctx, in, handle, tokens, scratch);
    if (fit && ctx.sound && !routes) store_routed(ctx, in, handle, tokens);
    stored = worker.arrive();
    if (stored.last) announce_few(ctx, handle, tokens, scratch, routes);
  }
  if (!fit || !has(parts, call_parts::receive)) return;
  std::int64_t own = 0;
  if (worker.member() == 0) {
    own = routes ? count_bits(worker, scratch.masks, tokens, rank) : handle.sent[rank];
  }
  if (await_few(ctx, in, handle, scratch, own, stored)) {
    emit_few(ctx, out, landed(ctx, in), handle, scratch);
  }
}

/// State changes of the lane when the last worker of a dispatch leaves.
struct finish_dispatch {
  call_parts parts;
  const handle_parts& handle;
  const dispatch_input& in;
  output_layout layout;
  std::uint64_t config;
  const geometry* stored;  ///< counted rows came by stores; else null
  std::uint64_t* counted_due;

  EPT_NO_EXEC_CHECK
  template <class W>
  EPT_HOST_DEVICE void operator()(const W& worker, lane_state& state) const {
    if (worker.thread() != 0) return;
    if (has(parts, call_parts::send)) {
      state.phase = lane_phase::dispatch_sent;
      state.handle = reinterpret_cast<std::uintptr_t>(handle.header);
      if (!in.cached) {
        *handle.header = {.magic = handle_magic ^ config,
                          .tokens = in.device_tokens != nullptr ? *in.device_tokens : in.tokens};
      }
      handle.header->in = in;
    }
    if (has(parts, call_parts::receive)) {
      for (std::int32_t peer = 0; stored != nullptr && peer < stored->ranks; ++peer) {
        if (peer == stored->rank) continue;
        counted_due[stored->word(peer)] +=
            static_cast<std::uint64_t>(stored->counted_messages(handle.received[peer]));
      }
      handle.header->layout = layout;
      handle.header->received_valid = 1;
      state.epoch += 1;
      state.phase = lane_phase::dispatched;
    }
  }
};

}  // namespace detail

/// One launch of dispatch: the body that every worker of the rank runs.
template <class View>
struct dispatch_call {
  View view;
  geometry geo;
  lane_memory lane;
  std::byte* handle;
  dispatch_input in;
  dispatch_output out;
  call_parts parts;
  bool refused = false;  ///< tell the peers to stop, and touch nothing else

  [[nodiscard]] EPT_HOST_DEVICE worker_words* words() const noexcept { return &lane.state->words; }

  EPT_NO_EXEC_CHECK
  template <class W>
  EPT_HOST_DEVICE void operator()(const W& worker) const {
    const auto ctx = detail::enter(view, worker, geo, lane);
    if (refused) return detail::refuse(ctx, stage::dispatch_send);
    const handle_parts parts_of_handle = handle_parts::of(handle, geo);
    const lane_phase phase = lane.state->phase;
    const bool send = detail::has(parts, call_parts::send);
    const bool fit =  // the same in every worker
        send ? detail::expect(
                   ctx, stage::dispatch_send,
                   phase != lane_phase::dispatch_sent && phase != lane_phase::combine_sent,
                   lane_phase::combined) &&
                   (!in.cached || detail::expect_cached(ctx, parts_of_handle, in.mode))
             : detail::expect(ctx, stage::dispatch_recv, phase == lane_phase::dispatch_sent,
                              lane_phase::dispatch_sent) &&
                   detail::expect_same_handle(ctx, stage::dispatch_recv, parts_of_handle);
    const dispatch_input& input = send || !fit ? in : parts_of_handle.header->in;
    if (detail::stored_slots(geo, input) && detail::few(geo)) {
      if (send || fit) detail::dispatch_few(ctx, input, out, parts_of_handle, parts, fit);
    } else if (send || fit) {
      detail::dispatch_many(ctx, input, out, parts_of_handle, parts, fit);
    }
    const bool by_stores = fit && detail::has(parts, call_parts::receive) &&
                           input.mode == dispatch_mode::counted &&
                           geo.message == message_shape::direct;
    detail::leave(ctx,
                  detail::finish_dispatch{parts, parts_of_handle, input, out.layout, geo.config,
                                          by_stores ? &geo : nullptr, lane.counted_due});
  }
};

}  // namespace eptransport
