// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief From landed rows to the output that the experts read, in each layout.
#pragma once

#include <eptransport/core/config.hpp>
#include <eptransport/kernels/lane.hpp>
#include <eptransport/kernels/layout.hpp>
#include <eptransport/kernels/output_rows.hpp>
#include <eptransport/kernels/pieces.hpp>
#include <eptransport/kernels/receive.hpp>

#include <cstddef>
#include <cstdint>

namespace eptransport::detail {

/// How often a row names the expert of choice j, if j is the first to name it; else 0.
[[nodiscard]] EPT_HOST_DEVICE inline std::int64_t repeats(const slot_choice* choices,
                                                          std::int32_t top_k, std::int32_t j) {
  std::int64_t count = 0;
  for (std::int32_t i = 0; i < top_k; ++i) {
    if (choices[i].expert != choices[j].expert) continue;
    if (i < j) return 0;
    ++count;
  }
  return count;
}

/// This worker's (row, choice) pairs per local expert, into the lane's counts.
///
/// The first choice that names an expert counts all of its token, so that no two threads meet.
EPT_NO_EXEC_CHECK
template <class Context>
EPT_NOINLINE EPT_HOST_DEVICE void count_experts(const Context& ctx, const landed_rows& landed,
                                                const std::int64_t* received, std::int64_t rows) {
  const auto& worker = ctx.worker;
  const geometry& geo = ctx.geo;
  std::int64_t* counts = ctx.lane.counts + worker.worker() * ctx.lane.width;
  for (std::int64_t e = worker.thread(); e < geo.local_experts; e += worker.threads()) {
    counts[e] = 0;
  }
  worker.sync();
  const share mine = share_of(worker, rows);
  if (mine.begin == mine.end) return;
  row_cursor cursor(geo, received, mine.begin);
  for (std::int64_t row = mine.begin; row < mine.end; ++row, cursor.next()) {
    const slot_choice* choices = landed.choices(*cursor);
    for (std::int32_t j = static_cast<std::int32_t>(worker.thread()); j < geo.top_k;
         j += static_cast<std::int32_t>(worker.threads())) {
      const std::int32_t local = local_expert(geo, choices[j].expert);
      if (local < 0) continue;
      const std::int64_t named = repeats(choices, geo.top_k, j);
      if (named != 0) counts[local] += named;  // adding 0 would race with the first
    }
    worker.sync();
  }
}

/// Calls `body(expert, its count, its first output row)` for each local expert, in one thread of
/// the worker each, and returns the end of the output. The counts stand in the lane's totals.
EPT_NO_EXEC_CHECK
template <class Context, class Body>
EPT_HOST_DEVICE std::int64_t for_experts(const Context& ctx, const dispatch_output& out,
                                         const Body& body) {
  const auto& worker = ctx.worker;
  const std::int64_t experts = ctx.geo.local_experts;
  std::int64_t start = 0;
  for (std::int64_t base = 0; base < experts; base += worker.threads()) {
    const std::int64_t e = base + worker.thread();
    const std::int64_t count = e < experts ? ctx.lane.totals[e] : 0;
    const std::int64_t room = e < experts ? expert_room(ctx.geo, out, count) : 0;
    const std::int64_t below = worker.prefix(room);
    if (e < experts) body(e, count, start + below);
    start += worker.sum(room);
  }
  return start;
}

/// Raises a capacity fault if the experts' rows do not fit; true if they do. The same in every
/// worker.
EPT_NO_EXEC_CHECK
template <class Context>
[[nodiscard]] EPT_HOST_DEVICE bool experts_fit(const Context& ctx, const dispatch_output& out) {
  if (out.capacity == 0) return true;
  const bool padded = out.layout == output_layout::padded;
  bool fits = true;
  const std::int64_t end =
      for_experts(ctx, out, [&](std::int64_t e, std::int64_t count, std::int64_t) {
        if (!padded || count <= out.capacity) return;
        fits = false;
        raise_capacity(ctx, out.capacity, count, static_cast<std::int32_t>(e));
      });
  if (!padded && end > out.capacity) {
    fits = false;
    if (ctx.worker.thread() == 0) raise_capacity(ctx, out.capacity, end, -1);
  }
  return !ctx.worker.any(!fits);
}

/// Rows per local expert, from the lane's totals; by worker 0.
EPT_NO_EXEC_CHECK
template <class Context>
EPT_HOST_DEVICE void emit_expert_counts(const Context& ctx, const dispatch_output& out) {
  if (ctx.worker.worker() != 0) return;
  for (std::int64_t e = ctx.worker.thread(); e < ctx.geo.local_experts; e += ctx.worker.threads()) {
    if (out.expert_count != nullptr) out.expert_count[e] = ctx.lane.totals[e];
    if (out.host_counts != nullptr) out.host_counts[1 + e] = ctx.lane.totals[e];
  }
}

/// Offsets of the experts, marks of alignment rows, and all rows; by worker 0.
EPT_NO_EXEC_CHECK
template <class Context>
EPT_HOST_DEVICE void emit_expert_metadata(const Context& ctx, const dispatch_output& out) {
  if (ctx.worker.worker() != 0) return;
  const bool padded = out.layout == output_layout::padded;
  std::int64_t counted = 0;
  const std::int64_t end =
      for_experts(ctx, out, [&](std::int64_t e, std::int64_t count, std::int64_t start) {
        counted += count;
        if (out.expert_offset != nullptr) out.expert_offset[e] = start;
        if (out.row_expert == nullptr || padded) return;
        const std::int64_t last = start + expert_room(ctx.geo, out, count);
        for (std::int64_t row = start + count; row < last; ++row) out.row_expert[row] = -1;
      });
  counted = ctx.worker.sum(counted);
  if (ctx.worker.thread() == 0) emit_total(out, padded ? counted : end);
}

/// Gives the choices of one received row their output rows: those that `next` [local experts] says,
/// which it advances. `places` [k] of the row.
EPT_NO_EXEC_CHECK
template <class Context>
EPT_NOINLINE EPT_HOST_DEVICE void place_row(const Context& ctx, const dispatch_output& out,
                                            const slot_choice* choices, place_entry* places,
                                            std::int64_t* next) {
  const auto& worker = ctx.worker;
  const geometry& geo = ctx.geo;
  const auto threads = static_cast<std::int32_t>(worker.threads());
  for (auto j = static_cast<std::int32_t>(worker.thread()); j < geo.top_k; j += threads) {
    const std::int32_t local = local_expert(geo, choices[j].expert);
    std::int64_t before = 0;  // choices of this row that name the same expert
    for (std::int32_t i = 0; i < j; ++i) before += choices[i].expert == choices[j].expert ? 1 : 0;
    const std::int64_t position = local >= 0 ? next[local] + before : -1;
    places[j] = {.position = position, .weight = choices[j].weight, .unused = 0};
    if (local < 0) continue;
    if (out.row_weight != nullptr) out.row_weight[position] = choices[j].weight;
    if (out.row_expert != nullptr) out.row_expert[position] = local;
  }
  worker.sync();  // everybody has read `next`
  for (auto j = static_cast<std::int32_t>(worker.thread()); j < geo.top_k; j += threads) {
    const std::int32_t local = local_expert(geo, choices[j].expert);
    const std::int64_t named = local >= 0 ? repeats(choices, geo.top_k, j) : 0;
    if (named != 0) next[local] += named;
  }
  worker.sync();
}

/// expert_major and padded: count, scan, place, copy.
EPT_NO_EXEC_CHECK
template <class Context>
EPT_HOST_DEVICE void emit_per_expert(const Context& ctx, const dispatch_output& out,
                                     const landed_rows& landed, const handle_parts& handle,
                                     const std::int64_t* received, std::int64_t rows) {
  const auto& worker = ctx.worker;
  const geometry& geo = ctx.geo;
  if (ctx.ok()) count_experts(ctx, landed, received, rows);
  ctx.barrier(stage::dispatch_recv);
  if (ctx.ok()) scan_columns(ctx, geo.local_experts);
  ctx.barrier(stage::dispatch_recv);
  const bool fits = ctx.ok() && experts_fit(ctx, out);
  if (fits) {
    emit_expert_metadata(ctx, out);
    std::int64_t* next = ctx.lane.starts + worker.worker() * ctx.lane.width;
    (void)for_experts(ctx, out, [&](std::int64_t e, std::int64_t, std::int64_t start) {
      next[e] += start;  // from counts to output rows
    });
    worker.sync();
    const share mine = share_of(worker, rows);
    row_cursor cursor(geo, received, mine.begin);
    for (std::int64_t row = mine.begin; row < mine.end; ++row, cursor.next()) {
      place_row(ctx, out, landed.choices(*cursor), handle.places + row * geo.top_k, next);
    }
  }
  ctx.barrier(stage::dispatch_recv);
  if (!fits || !ctx.ok()) return;  // a worker that missed the barrier has not placed its rows
  emit_pieces(ctx, out, landed, received, rows, handle.places);
  emit_expert_counts(ctx, out);
}

/// rank_major and in_place: the rows; and how many each local expert has, for those who ask.
EPT_NO_EXEC_CHECK
template <class Context>
EPT_HOST_DEVICE void emit_per_row(const Context& ctx, const dispatch_output& out,
                                  const landed_rows& landed, const std::int64_t* received,
                                  std::int64_t rows) {
  const std::int64_t room = out.layout == output_layout::in_place ? 0 : out.capacity;
  if (room != 0 && rows > room) {
    if (ctx.worker.thread() == 0) raise_capacity(ctx, room, rows, -1);
  } else {
    emit_pieces(ctx, out, landed, received, rows, nullptr);
  }
  if (out.expert_count == nullptr && out.host_counts == nullptr) return;
  count_experts(ctx, landed, received, rows);
  ctx.barrier(stage::dispatch_recv);
  if (ctx.ok()) scan_columns(ctx, ctx.geo.local_experts);
  ctx.barrier(stage::dispatch_recv);
  if (ctx.ok()) emit_expert_counts(ctx, out);
}

/// Lays out what has landed. `received`: rows per source, or null: the lane has a fault.
EPT_NO_EXEC_CHECK
template <class Context>
EPT_HOST_DEVICE void emit(const Context& ctx, const dispatch_input& in, const dispatch_output& out,
                          const handle_parts& handle, const std::int64_t* received) {
  const landed_rows where = landed(ctx, in);
  std::int64_t rows = received != nullptr ? received_rows(ctx.geo, received) : 0;
  // Only a counted rank_major dispatch may leave rows where they are: elsewhere they would be lost.
  if (rows > 0 && in.mode == dispatch_mode::slotted && out.layout == output_layout::rank_major &&
      !expect_pointer(ctx, out.rows, stage::dispatch_recv)) {
    rows = 0;
  }
  if (per_expert(out.layout)) {
    emit_per_expert(ctx, out, where, handle, received, rows);
  } else {
    emit_per_row(ctx, out, where, received, rows);
  }
  if (received == nullptr || ctx.worker.worker() != 0) return;
  if (ctx.worker.thread() == 0 && !per_expert(out.layout)) emit_total(out, rows);
  if (in.mode == dispatch_mode::slotted && out.dropped != nullptr && ctx.worker.thread() == 0) {
    *out.dropped = 0;
  }
}

}  // namespace eptransport::detail
