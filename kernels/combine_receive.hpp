// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The receive half of combine: wait for what the peers return, add it up.
#pragma once

#include <eptransport/core/config.hpp>
#include <eptransport/core/transport.hpp>
#include <eptransport/kernels/combine_rows.hpp>
#include <eptransport/kernels/lane.hpp>
#include <eptransport/kernels/layout.hpp>
#include <eptransport/kernels/pieces.hpp>
#include <eptransport/kernels/receive.hpp>
#include <eptransport/kernels/relay_combine.hpp>
#include <eptransport/kernels/rows.hpp>

#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace eptransport::detail {

/// What the receive half knows of the send half.
struct combine_round {
  std::uint64_t number;  ///< combines before this one
  std::uint64_t next;    ///< the epoch of the lane's next exchange
  bool pull;
  const std::byte* own;      ///< see `own_rows`
  const std::int64_t* sent;  ///< [R] rows to each rank: the handle's, or a copy
  bool slotted;              ///< the rows came by a slotted dispatch
  bool valid;                ///< lane and handle are fit for the call; the same in every worker
};

/// Messages of a combine that `peer` owes this rank.
[[nodiscard]] EPT_HOST_DEVICE inline std::int64_t owed_by(const geometry& geo,
                                                          const std::int64_t* sent,
                                                          std::int32_t peer, bool pull) noexcept {
  return peer == geo.rank ? 0 : pull ? 1 : geo.return_messages(sent[peer]);
}

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
EPT_HOST_DEVICE void await_returns(const Context& ctx, const combine_round& round) {
  const geometry& geo = ctx.geo;
  const bool summed = geo.sources == 1;
  awaited what{.signal = geo.combine_signal(0),
               .target = 0,
               .where = stage::combine_recv,
               .peer = -1,
               .next = round.next};
  const auto owed = [&](std::int32_t peer) { return owed_by(geo, round.sent, peer, round.pull); };
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

/// Waits, as one member of a crew, for this member's share of what the peers return by stores. What
/// has been consumed is noted when the last worker leaves: every crew reads it.
EPT_NO_EXEC_CHECK
template <class Context>
[[nodiscard]] EPT_HOST_DEVICE bool await_stored(const Context& ctx, const combine_round& round) {
  const geometry& geo = ctx.geo;
  const auto& worker = ctx.worker;
  const bool summed = geo.sources == 1;
  std::int64_t all = 0;
  // The last member begins: the first waits for the other crews.
  const auto members = static_cast<std::int32_t>(worker.members());
  const std::int32_t turn = members - 1 - static_cast<std::int32_t>(worker.member());
  for (std::int32_t peer = summed ? 0 : turn; peer < geo.ranks; peer += summed ? 1 : members) {
    const std::int64_t messages = owed_by(geo, round.sent, peer, false);
    all += messages;
    if (summed || messages == 0) continue;
    const std::uint32_t signal = geo.combine_signal(peer);
    if (!wait_for(ctx, {.signal = signal,
                        .target = ctx.lane.base[signal - geo.first_signal] +
                                  ctx.lane.returns_due[peer] + static_cast<std::uint64_t>(messages),
                        .where = stage::combine_recv,
                        .peer = peer,
                        .next = round.next})) {
      return false;
    }
    expect_transfer(ctx, round, peer, peer);
  }
  if (!summed || turn != 0 || all == 0) return true;
  const std::uint32_t signal = geo.combine_signal(0);
  if (!wait_for(ctx, {.signal = signal,
                      .target = ctx.lane.base[signal - geo.first_signal] + ctx.lane.returns_due[0] +
                                static_cast<std::uint64_t>(all),
                      .where = stage::combine_recv,
                      .peer = -1,
                      .next = round.next})) {
    return false;
  }
  for (std::int32_t peer = 0; peer < geo.ranks; ++peer) {
    if (owed_by(geo, round.sent, peer, false) > 0) expect_transfer(ctx, round, peer, -1);
  }
  return true;
}

/// Waits for what the peers return and for the own rank's workers, by every crew for itself; the
/// same for the workers of a crew. False: the lane has a fault now.
EPT_NO_EXEC_CHECK
template <class Context>
[[nodiscard]] EPT_HOST_DEVICE bool complete_returns(const Context& ctx, const combine_round& round,
                                                    const arrival& stored) {
  const bool came = round.valid && await_stored(ctx, round);
  return ctx.worker.crew_all(complete_arrival(ctx, stored, stage::combine_send) && came);
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

/// Adds up what came back, this worker's share.
EPT_NO_EXEC_CHECK
template <class View, class W>
EPT_HOST_DEVICE void sum_returns(const lane_context<View, W>& ctx, const combine_output& out,
                                 const handle_parts& handle, const combine_round& round) {
  const geometry& geo = ctx.geo;
  const std::int64_t tokens = handle.header->tokens;
  if (tokens > 0 && !expect_pointer(ctx, out.out, stage::combine_recv)) return;
  const auto* ready = reinterpret_cast<const message_header*>(ctx.view.local() + geo.ready_zone(0));
  for_pieces(ctx.worker, tokens, units_of(geo.hidden, unit_values), [&](const piece& part) {
    const extent columns = covered(part, unit_values, geo.hidden);
    const std::uint64_t at = static_cast<std::uint64_t>(part.row) * geo.value_bytes;
    std::byte* row = static_cast<std::byte*>(out.out) + at;
    const auto* bias = out.bias == nullptr ? nullptr : static_cast<const std::byte*>(out.bias) + at;
    const route_entry* routes =
        (through_relays(ctx) ? handle.returned : handle.routes) + part.row * geo.top_k;
    const returned_rows returned{
        ctx.view.local(), &geo, routes, round.slotted ? nullptr : handle.sent_base, bias,
        round.own};
    if (round.pull) {
      sum_rows(ctx.worker, row, columns.begin, columns.end,
               pulled_rows<View>{&ctx.view, &geo, routes, handle.place_base, ready, bias},
               geo.values, geo.values);
      return;
    }
    sum_rows(ctx.worker, row, columns.begin, columns.end, returned, geo.wire, geo.values);
    if (part.begins() && out.choice_value != nullptr && geo.return_values != 0) {
      gather_choice_values(ctx, returned, out.choice_value + part.row * geo.top_k);
    }
  });
}

/// The receive half, but where rows come by stores.
EPT_NO_EXEC_CHECK
template <class Context>
EPT_HOST_DEVICE void combine_receive(const Context& ctx, const combine_output& out,
                                     const handle_parts& handle, const combine_round& round) {
  const bool relays = through_relays(ctx);
  if constexpr (has_relays<std::remove_cvref_t<decltype(ctx.view)>>) {
    if (relays) relay_returns(ctx, handle, round.next);
    if (relays && ctx.ok()) await_node_returns(ctx, handle, round.next);
  }
  if (!relays && ctx.ok()) await_returns(ctx, round);
  ctx.barrier(stage::combine_recv);
  if (ctx.ok()) sum_returns(ctx, out, handle, round);
}

}  // namespace eptransport::detail
