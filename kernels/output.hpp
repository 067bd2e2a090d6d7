// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief From landed rows to the output that the experts read, in each layout.
#pragma once

#include <eptransport/core/config.hpp>
#include <eptransport/kernels/lane.hpp>
#include <eptransport/kernels/layout.hpp>
#include <eptransport/kernels/receive.hpp>

#include <cstddef>
#include <cstdint>

namespace eptransport::detail {

/// True for the layouts with one row per (token, local expert).
[[nodiscard]] EPT_HOST_DEVICE constexpr bool per_expert(output_layout layout) noexcept {
  return layout == output_layout::expert_major || layout == output_layout::padded;
}

/// Rows that one local expert has in a padded output.
[[nodiscard]] EPT_HOST_DEVICE inline std::int64_t padded_rows(const geometry& geo,
                                                              const dispatch_output& out) noexcept {
  if (out.capacity != 0) return out.capacity;
  const std::int64_t slotted = geo.max_tokens * geo.ranks;
  return (slotted > geo.counted_rows ? slotted : geo.counted_rows) * geo.top_k;
}

/// Copies a row's scales as those of output row `to`.
EPT_NO_EXEC_CHECK
template <class Context>
EPT_HOST_DEVICE void emit_scales(const Context& ctx, const dispatch_output& out,
                                 const std::byte* scales, std::int64_t to) {
  const geometry& geo = ctx.geo;
  auto* all = static_cast<std::byte*>(out.scales);
  if (out.scale_stride == 0) {
    ctx.worker.copy(all + static_cast<std::uint64_t>(to) * geo.scale_bytes, scales,
                    geo.scale_bytes);
    return;
  }
  const auto units = static_cast<std::int64_t>(geo.scale_bytes / 4);
  const std::int64_t rows = padded_rows(geo, out);
  const std::int64_t block =
      out.layout == output_layout::padded ? to / rows * units * out.scale_stride : 0;
  const std::int64_t row = out.layout == output_layout::padded ? to % rows : to;
  for (std::int64_t u = ctx.worker.thread(); u < units; u += ctx.worker.threads()) {
    const std::int64_t at = block + u * out.scale_stride + row;
    reinterpret_cast<std::uint32_t*>(all)[at] = reinterpret_cast<const std::uint32_t*>(scales)[u];
  }
}

/// Copies a row and says where it came from, as output row `to`.
EPT_NO_EXEC_CHECK
template <class Context>
EPT_HOST_DEVICE void emit_row(const Context& ctx, const dispatch_output& out,
                              const landed_rows& landed, const received_row& row, std::int64_t to) {
  const geometry& geo = ctx.geo;
  const std::byte* from = landed.row(row);
  std::byte* rows = static_cast<std::byte*>(out.rows);
  const bool stays = out.layout == output_layout::in_place || rows == nullptr ||
                     (rows + static_cast<std::uint64_t>(to) * geo.row_bytes == from);
  if (!stays)
    ctx.worker.copy(rows + static_cast<std::uint64_t>(to) * geo.row_bytes, from, geo.row_bytes);
  if (geo.scale_bytes != 0 && out.scales != nullptr) {
    emit_scales(ctx, out, landed.side(row), to);
  }
  if (ctx.worker.thread() != 0) return;
  if (out.source_rank != nullptr) out.source_rank[to] = row.source;
  if (out.source_token != nullptr) out.source_token[to] = landed.token(row);
  if (out.row_offset != nullptr && out.layout == output_layout::in_place) {
    out.row_offset[to] = static_cast<std::uint64_t>(from - landed.window);
  }
}

/// This worker's (row, choice) pairs per local expert, into the lane's counts.
///
/// The first choice that names an expert counts all of its token, so that no two threads meet.
EPT_NO_EXEC_CHECK
template <class Context>
EPT_HOST_DEVICE void count_experts(const Context& ctx, const landed_rows& landed,
                                   const std::int64_t* received, std::int64_t rows) {
  const auto& worker = ctx.worker;
  const geometry& geo = ctx.geo;
  std::int64_t* counts = ctx.lane.counts + worker.worker() * ctx.lane.width;
  for (std::int64_t e = worker.thread(); e < geo.local_experts; e += worker.threads()) {
    counts[e] = 0;
  }
  worker.sync();
  const share mine = share_of(worker, rows);
  row_cursor cursor(geo, received, mine.begin);
  for (std::int64_t row = mine.begin; row < mine.end; ++row, cursor.next()) {
    const slot_choice* choices = landed.choices(*cursor);
    for (std::int32_t j = static_cast<std::int32_t>(worker.thread()); j < geo.top_k;
         j += static_cast<std::int32_t>(worker.threads())) {
      const std::int32_t local = local_expert(geo, choices[j].expert);
      if (local < 0) continue;
      std::int64_t same = 0;
      for (std::int32_t i = 0; i < geo.top_k; ++i) {
        if (choices[i].expert != choices[j].expert) continue;
        if (i < j) {
          same = 0;
          break;
        }
        ++same;
      }
      if (same != 0) counts[local] += same;  // adding 0 would race with the first
    }
    worker.sync();
  }
}

/// rank_major and in_place: row i of the output is received row i.
EPT_NO_EXEC_CHECK
template <class Context>
EPT_HOST_DEVICE void emit_rank_major(const Context& ctx, const dispatch_output& out,
                                     const landed_rows& landed, const std::int64_t* received,
                                     std::int64_t rows) {
  const auto& worker = ctx.worker;
  const geometry& geo = ctx.geo;
  const share mine = share_of(worker, rows);
  row_cursor cursor(geo, received, mine.begin);
  for (std::int64_t row = mine.begin; row < mine.end; ++row, cursor.next()) {
    emit_row(ctx, out, landed, *cursor, row);
    const slot_choice* choices = landed.choices(*cursor);
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
  if (out.layout == output_layout::padded) return padded_rows(ctx.geo, out);
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
        out.layout == output_layout::padded ? start + count : start + expert_room(ctx, out, e);
    for (std::int64_t row = start; row < end; ++row) {
      out.row_expert[row] = row < start + count ? static_cast<std::int32_t>(e) : -1;
    }
  }
}

/// Copies one received row to each of its local experts and notes where, for combine.
EPT_NO_EXEC_CHECK
template <class Context>
EPT_HOST_DEVICE void emit_to_experts(const Context& ctx, const dispatch_output& out,
                                     const landed_rows& landed, const received_row& row,
                                     place_entry* places, std::int64_t* next) {
  const auto& worker = ctx.worker;
  const geometry& geo = ctx.geo;
  const slot_choice* choices = landed.choices(row);
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
    if (local >= 0) emit_row(ctx, out, landed, row, position);
  }
}

/// expert_major and padded: count, scan, place.
EPT_NO_EXEC_CHECK
template <class Context>
EPT_HOST_DEVICE void emit_per_expert(const Context& ctx, const dispatch_output& out,
                                     const landed_rows& landed, const handle_parts& handle,
                                     std::int64_t rows) {
  const auto& worker = ctx.worker;
  const geometry& geo = ctx.geo;
  if (ctx.ok()) count_experts(ctx, landed, handle.received, rows);
  ctx.barrier(stage::dispatch_recv);
  if (ctx.ok()) scan_columns(ctx, geo.local_experts);
  ctx.barrier(stage::dispatch_recv);
  if (ctx.ok() && out.layout == output_layout::expert_major) {
    expect_room(ctx, out.capacity, expert_start(ctx, out, geo.local_experts), -1);
  } else if (ctx.ok()) {
    for (std::int32_t e = 0; e < geo.local_experts; ++e) {
      expect_room(ctx, out.capacity, ctx.lane.totals[e], e);
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
    emit_to_experts(ctx, out, landed, *cursor, handle.places + row * geo.top_k, next);
  }
}

/// rank_major and in_place: rows per local expert, for those who ask; then the rows.
EPT_NO_EXEC_CHECK
template <class Context>
EPT_HOST_DEVICE void emit_per_row(const Context& ctx, const dispatch_output& out,
                                  const landed_rows& landed, const handle_parts& handle,
                                  std::int64_t rows) {
  const bool counts = out.expert_count != nullptr || out.host_counts != nullptr;
  if (counts && ctx.ok()) count_experts(ctx, landed, handle.received, rows);
  ctx.barrier(stage::dispatch_recv);
  if (counts && ctx.ok()) scan_columns(ctx, ctx.geo.local_experts);
  if (ctx.ok()) {
    expect_room(ctx, out.layout == output_layout::in_place ? 0 : out.capacity, rows, -1);
  }
  ctx.barrier(stage::dispatch_recv);
  if (ctx.ok()) emit_rank_major(ctx, out, landed, handle.received, rows);
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

/// Lays out what has landed.
EPT_NO_EXEC_CHECK
template <class Context>
EPT_HOST_DEVICE void emit(const Context& ctx, const dispatch_input& in, const dispatch_output& out,
                          const handle_parts& handle) {
  const landed_rows where = landed(ctx, in);
  const std::int64_t rows = ctx.ok() ? received_rows(ctx.geo, handle.received) : 0;
  // Only a counted rank_major dispatch may leave rows where they are: elsewhere they would be lost.
  if (rows > 0 && in.mode == dispatch_mode::slotted && out.layout == output_layout::rank_major) {
    (void)expect_pointer(ctx, out.rows, stage::dispatch_recv);
  }
  if (per_expert(out.layout)) {
    emit_per_expert(ctx, out, where, handle, rows);
  } else {
    emit_per_row(ctx, out, where, handle, rows);
  }
  if (ctx.ok()) emit_counts(ctx, out, rows);
  if (in.mode == dispatch_mode::slotted && out.dropped != nullptr && ctx.worker.worker() == 0 &&
      ctx.worker.thread() == 0) {
    *out.dropped = 0;
  }
}

}  // namespace eptransport::detail
