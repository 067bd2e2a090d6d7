// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief From landed slots to the output that the experts read, in each layout.
#pragma once

#include <eptransport/core/config.hpp>
#include <eptransport/kernels/lane.hpp>
#include <eptransport/kernels/layout.hpp>
#include <eptransport/kernels/receive.hpp>

#include <cstdint>

namespace eptransport::detail {

/// True for the layouts with one row per (token, local expert).
[[nodiscard]] EPT_HOST_DEVICE constexpr bool per_expert(output_layout layout) noexcept {
  return layout == output_layout::expert_major || layout == output_layout::padded;
}

/// Raises a capacity fault if `needed` rows do not fit; expert -1 = the whole output.
EPT_NO_EXEC_CHECK
template <class Context>
EPT_HOST_DEVICE void expect_room(const Context& ctx, std::int64_t capacity, std::int64_t needed) {
  if (capacity == 0 || needed <= capacity || ctx.worker.thread() != 0) return;
  raise(ctx, {.kind = fault_kind::capacity,
              .where = stage::dispatch_recv,
              .peer = ctx.geo.rank,
              .expected = static_cast<std::uint64_t>(capacity),
              .seen = static_cast<std::uint64_t>(needed)});
}

/// rank_major and in_place: row i of the output is received row i.
EPT_NO_EXEC_CHECK
template <class Context>
EPT_HOST_DEVICE void emit_rank_major(const Context& ctx, const dispatch_output& out,
                                     const handle_parts& handle, std::int64_t rows) {
  const auto& worker = ctx.worker;
  const geometry& geo = ctx.geo;
  const share mine = share_of(worker, rows);
  row_cursor cursor(geo, handle.received, mine.begin);
  for (std::int64_t row = mine.begin; row < mine.end; ++row, cursor.next()) {
    emit_row(ctx, out, *cursor, row);
    const slot_choice* choices = choices_of(geo, landed(ctx, *cursor));
    for (std::int32_t j = static_cast<std::int32_t>(worker.thread()); j < geo.top_k;
         j += static_cast<std::int32_t>(worker.threads())) {
      const std::int32_t local = local_expert(geo, choices[j].expert);
      const std::int64_t to = row * geo.top_k + j;
      if (out.topk_index != nullptr) out.topk_index[to] = local;
      if (out.topk_weight != nullptr) out.topk_weight[to] = local >= 0 ? choices[j].weight : 0.0F;
    }
  }
}

/// Output rows that local expert e takes, alignment included.
EPT_NO_EXEC_CHECK
template <class Context>
[[nodiscard]] EPT_HOST_DEVICE std::int64_t expert_room(const Context& ctx,
                                                       const dispatch_output& out,
                                                       std::int64_t expert) {
  if (out.layout == output_layout::padded) {
    const std::int64_t worst =
        static_cast<std::int64_t>(ctx.geo.ranks) * ctx.geo.max_tokens * ctx.geo.top_k;
    return out.capacity != 0 ? out.capacity : worst;
  }
  return (ctx.lane.totals[expert] + out.alignment - 1) / out.alignment * out.alignment;
}

/// First output row of local expert e; for e = local_experts, the end of the output.
EPT_NO_EXEC_CHECK
template <class Context>
[[nodiscard]] EPT_HOST_DEVICE std::int64_t expert_start(const Context& ctx,
                                                        const dispatch_output& out,
                                                        std::int64_t expert) {
  std::int64_t start = 0;
  for (std::int64_t e = 0; e < expert; ++e) start += expert_room(ctx, out, e);
  return start;
}

/// Adds each expert's first row to this worker's starts: from counts to output rows.
EPT_NO_EXEC_CHECK
template <class Context>
EPT_HOST_DEVICE void shift_starts(const Context& ctx, const dispatch_output& out,
                                  std::int64_t* next) {
  const auto& worker = ctx.worker;
  std::int64_t start = 0;
  for (std::int64_t e = 0; e < ctx.geo.local_experts; ++e) {
    if (e % worker.threads() == worker.thread()) next[e] += start;
    start += expert_room(ctx, out, e);
  }
  worker.sync();
}

/// Counts, offsets and padding marks of the expert layouts; one thread per expert.
EPT_NO_EXEC_CHECK
template <class Context>
EPT_HOST_DEVICE void emit_expert_metadata(const Context& ctx, const dispatch_output& out) {
  const auto& worker = ctx.worker;
  const std::int64_t experts = ctx.geo.local_experts;
  const std::int64_t threads = worker.threads();
  for (std::int64_t e = worker.worker() * threads + worker.thread(); e < experts;
       e += worker.workers() * threads) {
    const std::int64_t start = expert_start(ctx, out, e);
    const std::int64_t count = ctx.lane.totals[e];
    if (out.expert_offset != nullptr) out.expert_offset[e] = start;
    if (out.row_expert == nullptr) continue;
    const std::int64_t end =
        out.layout == output_layout::padded ? start + count : expert_start(ctx, out, e + 1);
    for (std::int64_t row = start; row < end; ++row) {
      out.row_expert[row] = row < start + count ? static_cast<std::int32_t>(e) : -1;
    }
  }
}

/// Copies one received row to each of its local experts and notes where, for combine.
EPT_NO_EXEC_CHECK
template <class Context>
EPT_HOST_DEVICE void emit_to_experts(const Context& ctx, const dispatch_output& out,
                                     const received_row& row, place_entry* places,
                                     std::int64_t* next) {
  const auto& worker = ctx.worker;
  const geometry& geo = ctx.geo;
  const slot_choice* choices = choices_of(geo, landed(ctx, row));
  for (std::int32_t j = 0; j < geo.top_k; ++j) {
    const std::int32_t local = local_expert(geo, choices[j].expert);
    const std::int64_t position = local >= 0 ? next[local] : -1;
    worker.sync();  // everybody has read next[local]
    if (worker.thread() == 0) {
      places[j] = {.position = position, .weight = choices[j].weight, .unused = 0};
      if (local >= 0) {
        ++next[local];
        if (out.row_weight != nullptr) out.row_weight[position] = choices[j].weight;
      }
    }
    worker.sync();
    if (local >= 0) emit_row(ctx, out, row, position);
  }
}

/// expert_major and padded: count, scan, place.
EPT_NO_EXEC_CHECK
template <class Context>
EPT_HOST_DEVICE void emit_per_expert(const Context& ctx, const dispatch_output& out,
                                     const handle_parts& handle, std::int64_t rows) {
  const auto& worker = ctx.worker;
  const geometry& geo = ctx.geo;
  if (ctx.ok()) count_experts(ctx, handle.received, rows);
  ctx.barrier(stage::dispatch_recv);
  if (ctx.ok()) scan_columns(ctx, geo.local_experts);
  ctx.barrier(stage::dispatch_recv);
  if (ctx.ok()) {
    if (out.layout == output_layout::expert_major) {
      expect_room(ctx, out.capacity, expert_start(ctx, out, geo.local_experts));
    } else {
      for (std::int64_t e = 0; e < geo.local_experts; ++e) {
        expect_room(ctx, out.capacity, ctx.lane.totals[e]);
      }
    }
  }
  ctx.barrier(stage::dispatch_recv);
  if (!ctx.ok()) return;
  emit_expert_metadata(ctx, out);
  const share mine = share_of(worker, rows);
  std::int64_t* next = ctx.lane.starts + worker.worker() * ctx.lane.width;
  shift_starts(ctx, out, next);
  row_cursor cursor(geo, handle.received, mine.begin);
  for (std::int64_t row = mine.begin; row < mine.end; ++row, cursor.next()) {
    emit_to_experts(ctx, out, *cursor, handle.places + row * geo.top_k, next);
  }
}

/// rank_major and in_place: rows per local expert, for those who ask; then the rows.
EPT_NO_EXEC_CHECK
template <class Context>
EPT_HOST_DEVICE void emit_per_row(const Context& ctx, const dispatch_output& out,
                                  const handle_parts& handle, std::int64_t rows) {
  const bool counts = out.expert_count != nullptr || out.host_counts != nullptr;
  if (counts && ctx.ok()) count_experts(ctx, handle.received, rows);
  ctx.barrier(stage::dispatch_recv);
  if (counts && ctx.ok()) scan_columns(ctx, ctx.geo.local_experts);
  if (ctx.ok()) {
    expect_room(ctx, out.layout == output_layout::in_place ? 0 : out.capacity, rows);
  }
  ctx.barrier(stage::dispatch_recv);
  if (ctx.ok()) emit_rank_major(ctx, out, handle, rows);
}

/// Totals and counts, once everything is known.
EPT_NO_EXEC_CHECK
template <class Context>
EPT_HOST_DEVICE void emit_counts(const Context& ctx, const dispatch_output& out,
                                 std::int64_t rows) {
  if (ctx.worker.worker() != 0) return;
  const std::int64_t experts = ctx.geo.local_experts;
  std::int64_t all = rows;
  if (per_expert(out.layout)) {
    all = 0;
    for (std::int64_t e = 0; e < experts; ++e) {
      all += out.layout == output_layout::padded ? ctx.lane.totals[e] : expert_room(ctx, out, e);
    }
  }
  for (std::int64_t e = ctx.worker.thread(); e < experts; e += ctx.worker.threads()) {
    if (out.expert_count != nullptr) out.expert_count[e] = ctx.lane.totals[e];
    if (out.host_counts != nullptr) out.host_counts[1 + e] = ctx.lane.totals[e];
  }
  if (ctx.worker.thread() != 0) return;
  if (out.total != nullptr) *out.total = all;
  if (out.host_counts != nullptr) *out.host_counts = all;
}

/// The receive half.
EPT_NO_EXEC_CHECK
template <class Context>
EPT_HOST_DEVICE void dispatch_receive(const Context& ctx, const dispatch_output& out,
                                      const handle_parts& handle) {
  if (ctx.ok()) await_exchange(ctx, handle.received);
  ctx.barrier(stage::dispatch_recv);
  const std::int64_t rows = ctx.ok() ? received_rows(ctx.geo, handle.received) : 0;
  if (per_expert(out.layout)) {
    emit_per_expert(ctx, out, handle, rows);
  } else {
    emit_per_row(ctx, out, handle, rows);
  }
  if (ctx.ok()) emit_counts(ctx, out, rows);
}

}  // namespace eptransport::detail
