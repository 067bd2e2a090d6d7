// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Slotted dispatch through relays: one message per other node, fanned out by its relay.
///
/// Order of work: send to the nodes, then inside the own node; forward what came from other nodes;
/// only then wait for one's own rows. A rank that waited first could wait for a relay that waits
/// for it. The D word of a source in another node is counted by the relay, when it has stored the
/// header and the rows: the receiver sees what it would see without a relay, and gates as ever on
/// all R - 1 D messages, which is what frees the relay's zones by parity as well (INV-3).
#pragma once

#include <eptransport/core/config.hpp>
#include <eptransport/core/transport.hpp>
#include <eptransport/kernels/lane.hpp>
#include <eptransport/kernels/layout.hpp>
#include <eptransport/kernels/messages.hpp>
#include <eptransport/kernels/receive.hpp>
#include <eptransport/kernels/relay_route.hpp>
#include <eptransport/kernels/write.hpp>

#include <cstddef>
#include <cstdint>

namespace eptransport::detail {

/// Where a node slot's positions lie.
[[nodiscard]] EPT_HOST_DEVICE inline std::int64_t* positions_of(const geometry& geo,
                                                                std::byte* slot) {
  return reinterpret_cast<std::int64_t*>(slot + geo.slot_bytes);
}

/// Writes a token's node slot for node n: the row, its side, and where each choice's rank puts it.
EPT_NO_EXEC_CHECK
template <class Context>
EPT_HOST_DEVICE void write_node_slot(const Context& ctx, const dispatch_input& in,
                                     const handle_parts& handle, std::int64_t t, std::int32_t n,
                                     std::byte* slot) {
  const geometry& geo = ctx.geo;
  const bool counted = in.mode == dispatch_mode::counted;
  const route_entry* routes = handle.routes + t * geo.top_k;
  write_slot(ctx, in, t, slot);
  std::int64_t* positions = positions_of(geo, slot);
  for (std::int32_t j = static_cast<std::int32_t>(ctx.worker.thread()); j < geo.top_k;
       j += static_cast<std::int32_t>(ctx.worker.threads())) {
    const std::int32_t rank = rank_of(geo, read_index(in, t * geo.top_k + j));
    const bool here = rank >= 0 && geo.relay.table.node[rank] == n && leads(geo, in, t, j, rank);
    std::int64_t position = here ? slot_at(geo, routes, rank) : -1;
    if (counted && here && position >= 0) {
      position = position < handle.sent[rank] ? handle.place_base[rank] + position : -1;
    }
    positions[j] = position;
  }
}

/// Writes a token's rows for other nodes behind what is staged for them.
EPT_NO_EXEC_CHECK
template <class Context>
EPT_HOST_DEVICE void stage_for_nodes(const Context& ctx, const dispatch_input& in,
                                     const handle_parts& handle, std::int64_t t) {
  const geometry& geo = ctx.geo;
  const relay_layout& relay = geo.relay;
  const route_entry* returned = handle.returned + t * geo.top_k;
  const bool counted = in.mode == dispatch_mode::counted;
  for (std::int32_t i = 0; i < geo.top_k && returned[i].rank >= 0; ++i) {
    if (geo.near(returned[i].rank)) continue;
    const std::int32_t n = relay.table.node[returned[i].rank];
    const std::uint64_t place =
        counted ? relay.staged_rows +
                      static_cast<std::uint64_t>(node_rows_below(handle, n) + returned[i].slot) *
                          relay.slot_bytes
                : relay.staged(ctx.epoch, n) + relay.slot(returned[i].slot);
    write_node_slot(ctx, in, handle, t, n, ctx.view.local() + place);
  }
}

/// Sends the message for node n: head (header, rows for each of its ranks), then `body` bytes that
/// lie behind it, then what exceeds the first message.
///
/// In a message to a relay the header's `rows` is those of the message, and `node_rows` is where
/// they return to in the own combine zone.
EPT_NO_EXEC_CHECK
template <class Context>
EPT_HOST_DEVICE void announce_node(const Context& ctx, std::int32_t n, const message_header& header,
                                   const std::int64_t* sent, std::uint64_t body) {
  const geometry& geo = ctx.geo;
  const relay_layout& relay = geo.relay;
  const auto& worker = ctx.worker;
  const std::int32_t to = relay.table.rail(geo.rank, n);
  std::byte* message = ctx.view.local() + relay.staged(ctx.epoch, n);
  auto* rows = reinterpret_cast<std::int64_t*>(message + sizeof(message_header));
  if (worker.thread() == 0) *reinterpret_cast<message_header*>(message) = header;
  for (std::int64_t i = worker.thread(); i < relay.table.size(n); i += worker.threads()) {
    rows[i] = sent == nullptr ? 0 : sent[relay.table.rank_at(n, static_cast<std::int32_t>(i))];
  }
  worker.sync();
  const std::uint64_t zone = relay.zone(ctx.epoch, relayed_index(relay.table, geo.rank, n));
  if (!put(ctx,
           {.peer = to,
            .dst_offset = zone,
            .src = message,
            .bytes = relay.head_bytes + body,
            .signal = geo.relay_signal(ctx.epoch, geo.rank)},
           stage::dispatch_send)) {
    return;
  }
  const std::int64_t first =
      header.rows < relay.rows_per_message ? header.rows : relay.rows_per_message;
  const bool slotted = header.config == geo.config_of(dispatch_mode::slotted);
  (void)put_pieces(ctx,
                   {.peer = to,
                    .dst_offset = zone + relay.slot(first),
                    .src = message + relay.slot(first),
                    .bytes = relay.slot_bytes,
                    .signal = geo.row_signal(ctx.epoch, geo.rank)},
                   slotted ? header.rows - first : 0, relay.rows_per_message, stage::dispatch_send);
  ctx.view.submit(worker, ctx.channel);
}

/// Sends the slotted messages to this worker's share of the other nodes; `handle` null: an empty
/// exchange. After a barrier.
EPT_NO_EXEC_CHECK
template <class Context>
EPT_HOST_DEVICE void announce_nodes(const Context& ctx, const handle_parts* handle) {
  const geometry& geo = ctx.geo;
  const relay_layout& relay = geo.relay;
  const node_table& table = relay.table;
  begin_announcing(ctx);
  for (std::int32_t i = static_cast<std::int32_t>(ctx.worker.worker()); i + 1 < table.nodes;
       i += static_cast<std::int32_t>(ctx.worker.workers())) {
    const std::int32_t n = (table.node[geo.rank] + 1 + i) % table.nodes;
    const std::int64_t rows = handle == nullptr ? 0 : handle->node_sent[n];
    const std::int64_t first = rows < relay.rows_per_message ? rows : relay.rows_per_message;
    const message_header header{
        .stamp = stamp_of(ctx.epoch),
        .config = geo.config_of(dispatch_mode::slotted),
        .rows = rows,
        .more = geometry::pieces(rows - first, relay.rows_per_message),
        .node_rows = static_cast<std::uint64_t>(table.rail(geo.rank, n) * geo.max_tokens)};
    if (!ctx.ok()) return;
    announce_node(ctx, n, header, handle == nullptr ? nullptr : handle->sent,
                  static_cast<std::uint64_t>(first) * relay.slot_bytes);
  }
}

/// The first part of a slotted send half: rows for other nodes. Ends after they are on their way.
EPT_NO_EXEC_CHECK
template <class Context>
EPT_HOST_DEVICE void send_to_nodes(const Context& ctx, const dispatch_input& in,
                                   const handle_parts& handle, std::int64_t tokens) {
  const share mine = share_of(ctx.worker, tokens);
  for (std::int64_t t = mine.begin; t < mine.end && ctx.ok(); ++t) {
    stage_for_nodes(ctx, in, handle, t);
  }
  ctx.barrier(stage::dispatch_send);
  if (ctx.ok()) announce_nodes(ctx, &handle);
}

/// The head of the message that the relayed source with that index sent in this epoch.
template <class Context>
[[nodiscard]] EPT_HOST_DEVICE const message_header& node_header(const Context& ctx,
                                                                std::int32_t index) {
  return *reinterpret_cast<const message_header*>(ctx.view.local() +
                                                  ctx.geo.relay.zone(ctx.epoch, index));
}

/// Rows that such a message has for the node's i-th rank.
template <class Context>
[[nodiscard]] EPT_HOST_DEVICE std::int64_t node_count(const Context& ctx, std::int32_t index,
                                                      std::int32_t i) {
  return reinterpret_cast<const std::int64_t*>(&node_header(ctx, index) + 1)[i];
}

/// Checks the head that `source` sent. False: the lane has a fault now.
EPT_NO_EXEC_CHECK
template <class Context>
[[nodiscard]] EPT_HOST_DEVICE bool accept_node_header(const Context& ctx, std::int32_t source,
                                                      std::int32_t index,
                                                      const dispatch_input& in) {
  const message_header& header = node_header(ctx, index);
  const std::uint64_t config = ctx.geo.config_of(in.mode, in.cached);
  const bool fresh = header.stamp == stamp_of(ctx.epoch);
  if (fresh && header.config == config && header.rows >= 0 && header.rows <= ctx.geo.relay.tokens) {
    return true;
  }
  if (ctx.worker.thread() == 0) {
    raise(ctx, {.kind = fault_kind::mismatch,
                .where = stage::dispatch_recv,
                .peer = source,
                .expected = fresh ? config : stamp_of(ctx.epoch),
                .seen = fresh ? header.config : header.stamp});
  }
  return false;
}

/// The value that the relay word of `source` reaches in this epoch.
EPT_NO_EXEC_CHECK
template <class Context>
[[nodiscard]] EPT_HOST_DEVICE std::uint64_t relay_target(const Context& ctx, std::int32_t source) {
  const geometry& geo = ctx.geo;
  const std::uint64_t base = ctx.lane.base[geo.relay_signal(ctx.epoch, source) - geo.first_signal];
  const auto served = static_cast<std::uint64_t>(relayed_count(geo.relay.table, geo.rank));
  return base + (ctx.epoch / 2 + 1) * (geo.sources == 1 ? served : 1);
}

/// Waits for the message of `source`, or with summed words of all sources. The source cannot have
/// stopped after it: a stop in its place lies in the own landing zone of this epoch.
EPT_NO_EXEC_CHECK
template <class Context>
[[nodiscard]] EPT_HOST_DEVICE bool await_node_message(const Context& ctx, std::int32_t source) {
  return wait_for(ctx, {.signal = ctx.geo.relay_signal(ctx.epoch, source),
                        .target = relay_target(ctx, source),
                        .where = stage::dispatch_recv,
                        .peer = ctx.geo.sources == 1 ? -1 : source,
                        .next = ctx.epoch});
}

/// Waits until `more` further puts are counted on a word, beyond what `due` says; every worker may.
EPT_NO_EXEC_CHECK
template <class Context>
[[nodiscard]] EPT_HOST_DEVICE bool await_more(const Context& ctx, const std::uint64_t* due,
                                              awaited what, std::int64_t more) {
  if (more == 0) return true;
  const std::uint64_t target = *due + static_cast<std::uint64_t>(more);
  what.target = ctx.lane.base[what.signal - ctx.geo.first_signal] + target;
  return wait_for(ctx, what);
}

/// Notes a relayed row's ranks for combine, ascending, and where they will put its partial.
EPT_NO_EXEC_CHECK
template <class Context>
EPT_HOST_DEVICE void note_relayed(const Context& ctx, const std::int64_t* positions,
                                  const slot_choice* choices, std::int64_t first,
                                  route_entry* entries) {
  const geometry& geo = ctx.geo;
  std::int64_t found = 0;
  for (std::int32_t j = static_cast<std::int32_t>(ctx.worker.thread()); j < geo.top_k;
       j += static_cast<std::int32_t>(ctx.worker.threads())) {
    if (positions[j] < 0) continue;
    const std::int32_t rank = geo.placement[choices[j].expert].rank;
    std::int32_t position = 0;
    for (std::int32_t i = 0; i < geo.top_k; ++i) {
      if (positions[i] >= 0 && geo.placement[choices[i].expert].rank < rank) ++position;
    }
    entries[position] = {.slot = first + positions[j], .rank = rank, .unused = 0};
    ++found;
  }
  found = ctx.worker.sum(found);
  for (std::int64_t p = found + ctx.worker.thread(); p < geo.top_k; p += ctx.worker.threads()) {
    entries[p] = {.slot = 0, .rank = -1, .unused = 0};
  }
}

/// Stores a slotted row of `source` into the landing zones of its ranks.
EPT_NO_EXEC_CHECK
template <class Context>
EPT_HOST_DEVICE void forward_slot(const Context& ctx, std::int32_t source, std::byte* slot,
                                  route_entry* entries) {
  const geometry& geo = ctx.geo;
  const std::int64_t* positions = positions_of(geo, slot);
  const auto* choices =
      reinterpret_cast<const slot_choice*>(slot + geo.choice_offset + sizeof(std::int64_t));
  note_relayed(ctx, positions, choices, source * geo.max_tokens, entries);
  for (std::int32_t j = 0; j < geo.top_k; ++j) {
    if (positions[j] < 0) continue;
    const std::int32_t to = geo.placement[choices[j].expert].rank;
    std::byte* dst = ctx.view.peer_pointer(to, geo.zone(ctx.epoch, source) + geo.slot(positions[j]),
                                           geo.slot_bytes);
    if (dst == nullptr) {
      (void)sent(ctx, op_status::failed, stage::dispatch_recv, to);
      return;
    }
    ctx.worker.copy(dst, slot, geo.slot_bytes);
  }
}

/// Counts a D message of `source` at the node's i-th rank, its header stored before; counts (of all
/// ranks and experts) go with it if it has them.
EPT_NO_EXEC_CHECK
template <class Context>
EPT_HOST_DEVICE void forward_header(const Context& ctx, std::int32_t source, std::int32_t index,
                                    std::int32_t i, std::uint64_t counts) {
  const geometry& geo = ctx.geo;
  const message_header& from = node_header(ctx, index);
  const std::int32_t to = geo.relay.table.rank_at(geo.relay.table.node[geo.rank], i);
  std::byte* dst =
      ctx.view.peer_pointer(to, geo.zone(ctx.epoch, source), sizeof(message_header) + counts);
  if (dst == nullptr) {
    (void)sent(ctx, op_status::failed, stage::dispatch_recv, to);
    return;
  }
  if (ctx.worker.thread() == 0) {
    *reinterpret_cast<message_header*>(dst) = {.stamp = from.stamp,
                                               .config = from.config,
                                               .rows = node_count(ctx, index, i),
                                               .limit = from.limit,
                                               .value = from.value};
  }
  const auto* body = reinterpret_cast<const std::byte*>(&from) + geo.relay.head_bytes;
  ctx.worker.copy(dst + sizeof(message_header), body, counts);
  ctx.worker.sync();
  (void)sent(
      ctx,
      ctx.view.signal(ctx.worker, ctx.channel, to, geo.d_signal(ctx.epoch, source), ctx.deadline),
      stage::dispatch_recv, to);
}

/// With summed words: waits for the messages of all relayed sources, then for their further puts.
EPT_NO_EXEC_CHECK
template <class Context>
[[nodiscard]] EPT_HOST_DEVICE bool await_nodes_summed(const Context& ctx, const dispatch_input& in,
                                                      const std::uint64_t* due,
                                                      const awaited& more_of) {
  relayed_sources at(ctx.geo.relay.table, ctx.geo.rank);
  if (at.done()) return true;
  if (!await_node_message(ctx, at.source())) return false;
  std::int64_t more = 0;
  for (; !at.done(); at.next()) {
    if (!accept_node_header(ctx, at.source(), at.index(), in)) return false;
    more += node_header(ctx, at.index()).more;
  }
  return await_more(ctx, due, more_of, more);
}

/// Passes on what other nodes sent through this rank: slotted rows and D messages, or D messages
/// with counts. All workers call. `handle` null: an empty exchange, which no handle remembers.
EPT_NO_EXEC_CHECK
template <class Context>
EPT_HOST_DEVICE void relay_forward(const Context& ctx, const dispatch_input& in,
                                   const handle_parts* handle) {
  const geometry& geo = ctx.geo;
  const auto& worker = ctx.worker;
  const node_table& table = geo.relay.table;
  const bool summed = geo.sources == 1;
  const bool slotted = in.mode == dispatch_mode::slotted;
  std::uint64_t* due = ctx.lane.rows_due + (ctx.epoch & 1u) * geo.sources;
  awaited more_of{.signal = geo.row_signal(ctx.epoch, 0),
                  .target = 0,
                  .where = stage::rows,
                  .peer = -1,
                  .next = ctx.epoch + 1};
  bool whole = ctx.ok() && (!summed || await_nodes_summed(ctx, in, due, more_of));
  for (relayed_sources at(table, geo.rank); !at.done() && whole && ctx.ok(); at.next()) {
    if (!summed) {
      more_of.peer = at.source();
      more_of.signal = geo.row_signal(ctx.epoch, at.source());
      whole =
          await_node_message(ctx, at.source()) &&
          accept_node_header(ctx, at.source(), at.index(), in) &&
          await_more(ctx, due + geo.word(at.source()), more_of, node_header(ctx, at.index()).more);
      if (!whole) break;
    }
    if (handle == nullptr) continue;
    const message_header& header = node_header(ctx, at.index());
    if (worker.worker() == 0 && worker.thread() == 0) {
      handle->relay_rows[at.index()] = header.rows;
      handle->relay_base[at.index()] = static_cast<std::int64_t>(header.node_rows);
    }
    if (!slotted) continue;
    const share mine = share_of(worker, header.rows);
    std::byte* zone = ctx.view.local() + geo.relay.zone(ctx.epoch, at.index());
    for (std::int64_t row = mine.begin; row < mine.end; ++row) {
      const std::int64_t entry = (at.index() * geo.relay.tokens + row) * geo.top_k;
      forward_slot(ctx, at.source(), zone + geo.relay.slot(row), handle->relayed + entry);
    }
  }
  ctx.barrier(stage::dispatch_recv);
  if (!ctx.ok()) return;
  const std::uint64_t counts =
      slotted || in.cached ? 0 : geo.counts_bytes() - sizeof(message_header);
  const std::int32_t size = table.size(table.node[geo.rank]);
  for (relayed_sources at(table, geo.rank); !at.done() && ctx.ok(); at.next()) {
    for (std::int32_t i = 0; i < size; ++i) {
      const auto turn = static_cast<std::uint32_t>(at.index() * size + i);
      if (turn % worker.workers() != worker.worker()) continue;
      forward_header(ctx, at.source(), at.index(), i, counts);
    }
    if (worker.worker() == 0 && worker.thread() == 0) {
      due[geo.word(at.source())] += static_cast<std::uint64_t>(node_header(ctx, at.index()).more);
    }
  }
  ctx.view.submit(worker, ctx.channel);
}

}  // namespace eptransport::detail
