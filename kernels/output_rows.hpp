// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief One received row and its output rows, in every layout.
#pragma once

#include <eptransport/core/config.hpp>
#include <eptransport/kernels/lane.hpp>
#include <eptransport/kernels/layout.hpp>
#include <eptransport/kernels/pieces.hpp>
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

/// Output rows that an expert with `count` of them takes, alignment included.
[[nodiscard]] EPT_HOST_DEVICE inline std::int64_t expert_room(const geometry& geo,
                                                              const dispatch_output& out,
                                                              std::int64_t count) noexcept {
  if (out.layout == output_layout::padded) return padded_rows(geo, out);
  return (count + out.alignment - 1) / out.alignment * out.alignment;
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

/// The rows of an output, where they are asked for. One thread.
EPT_HOST_DEVICE inline void emit_total(const dispatch_output& out, std::int64_t rows) {
  if (out.total != nullptr) *out.total = rows;
  if (out.host_counts != nullptr) *out.host_counts = rows;
}

/// Raises a capacity fault of this rank's output. One thread.
template <class Context>
EPT_HOST_DEVICE void raise_capacity(const Context& ctx, std::int64_t capacity, std::int64_t needed,
                                    std::int32_t expert) {
  raise(ctx, {.kind = fault_kind::capacity,
              .where = stage::dispatch_recv,
              .peer = ctx.geo.rank,
              .expert = expert,
              .expected = static_cast<std::uint64_t>(capacity),
              .seen = static_cast<std::uint64_t>(needed)});
}

/// The local experts of a few choices of a row, from `first` on; -1 = none. One thread, which has
/// the loads of all of them in flight.
struct local_choices {
  std::int32_t local[fan::most];

  EPT_HOST_DEVICE local_choices(const geometry& geo, const slot_choice* choices,
                                std::int32_t first) {
    std::int32_t expert[fan::most];
    expert_place place[fan::most];
    EPT_UNROLL
    for (std::int32_t j = 0; j < fan::most; ++j) {
      expert[j] = choices[first + j < geo.top_k ? first + j : geo.top_k - 1].expert;
    }
    EPT_UNROLL
    for (std::int32_t j = 0; j < fan::most; ++j) {
      const bool used = expert[j] >= 0 && expert[j] < geo.experts;
      place[j] = geo.placement[used ? expert[j] : 0];
      if (!used || first + j >= geo.top_k) place[j].rank = -1;
    }
    EPT_UNROLL
    for (std::int32_t j = 0; j < fan::most; ++j) {
      local[j] = place[j].rank == geo.rank ? place[j].local : -1;
    }
  }
};

/// What goes with a row besides its bytes, as output row `to`: scales, and where it came from.
EPT_NO_EXEC_CHECK
template <class Context>
EPT_HOST_DEVICE void emit_about(const Context& ctx, const dispatch_output& out,
                                const landed_rows& landed, const received_row& row,
                                std::int64_t to) {
  if (ctx.geo.scale_bytes != 0 && out.scales != nullptr) {
    emit_scales(ctx, out, landed.side(row), to);
  }
  if (ctx.worker.thread() != 0) return;
  if (out.source_rank != nullptr) out.source_rank[to] = row.source;
  if (out.source_token != nullptr) out.source_token[to] = landed.token(row);
  if (out.row_offset != nullptr && out.layout == output_layout::in_place) {
    out.row_offset[to] = static_cast<std::uint64_t>(landed.row(row) - landed.window);
  }
}

/// A few of the output rows that a received row becomes.
struct positions {
  EPT_HOST_DEVICE void add(std::int64_t row) noexcept { to[count++] = row; }

  int count = 0;
  std::int64_t to[fan::most];
};

/// Copies a piece of a received row to its output rows.
EPT_NO_EXEC_CHECK
template <class Context>
EPT_NOINLINE EPT_HOST_DEVICE void emit_values(const Context& ctx, const dispatch_output& out,
                                              const landed_rows& landed, const received_row& row,
                                              const piece& part, const positions& at) {
  const geometry& geo = ctx.geo;
  const std::byte* from = landed.row(row);
  auto* rows = static_cast<std::byte*>(out.rows);
  const bool stays = out.layout == output_layout::in_place || rows == nullptr;
  const extent bytes = covered(part, unit_bytes, static_cast<std::int64_t>(geo.row_bytes));
  const auto first = static_cast<std::uint64_t>(bytes.begin);
  fan places;
  EPT_ROLLED
  for (int i = 0; i < at.count && !stays; ++i) {
    std::byte* to = rows + static_cast<std::uint64_t>(at.to[i]) * geo.row_bytes;
    if (to != from) places.add(to);
  }
  if (places.count == 0) return;
  ctx.worker.fan_out(places, first, from + first,
                     static_cast<std::uint64_t>(bytes.end - bytes.begin));
}

/// The same, and what is about the row with the piece that begins it.
EPT_NO_EXEC_CHECK
template <class Context>
EPT_HOST_DEVICE void emit_piece(const Context& ctx, const dispatch_output& out,
                                const landed_rows& landed, const received_row& row,
                                const piece& part, const positions& at) {
  emit_values(ctx, out, landed, row, part, at);
  if (!part.begins()) return;
  EPT_ROLLED
  for (int i = 0; i < at.count; ++i) emit_about(ctx, out, landed, row, at.to[i]);
}

/// rank_major and in_place: the choices of a received row, which is output row `row.index`.
EPT_NO_EXEC_CHECK
template <class Context>
EPT_HOST_DEVICE void emit_choices(const Context& ctx, const dispatch_output& out,
                                  const landed_rows& landed, const received_row& row) {
  if (out.topk_index == nullptr && out.topk_weight == nullptr) return;
  const geometry& geo = ctx.geo;
  const slot_choice* choices = landed.choices(row);
  for (std::int32_t j = static_cast<std::int32_t>(ctx.worker.thread()); j < geo.top_k;
       j += static_cast<std::int32_t>(ctx.worker.threads())) {
    const std::int32_t local = local_expert(geo, choices[j].expert);
    const std::int64_t to = row.index * geo.top_k + j;
    if (out.topk_index != nullptr) out.topk_index[to] = local;
    if (out.topk_weight != nullptr) out.topk_weight[to] = local >= 0 ? choices[j].weight : 0.0F;
  }
}

/// The output rows of the choices `first`, `first + 1`, .., each looked up by a thread of its own.
EPT_NO_EXEC_CHECK
template <class Context>
EPT_HOST_DEVICE void find_positions(const Context& ctx, const place_entry* places,
                                    std::int32_t first, positions& at) {
  const auto& worker = ctx.worker;
  const auto threads = static_cast<std::int32_t>(worker.threads());
  const std::int32_t end = first + fan::most < ctx.geo.top_k ? first + fan::most : ctx.geo.top_k;
  for (std::int32_t base = first; base < end; base += threads) {
    const std::int32_t mine = base + static_cast<std::int32_t>(worker.thread());
    const std::int64_t found = mine < end ? places[mine].position : -1;
    const std::int32_t here = end - base < threads ? end - base : threads;
    EPT_ROLLED
    for (std::int32_t t = 0; t < here; ++t) {
      const std::int64_t position = worker.pick(found, static_cast<std::uint32_t>(t));
      if (position >= 0) at.add(position);
    }
  }
}

/// Copies this worker's share of the received rows to the output: to the places that stand in
/// `places` [rows, k], or, if that is null, each to the row of its own index.
EPT_NO_EXEC_CHECK
template <class Context>
EPT_HOST_DEVICE void emit_pieces(const Context& ctx, const dispatch_output& out,
                                 const landed_rows& landed, const std::int64_t* received,
                                 std::int64_t rows, const place_entry* places) {
  const geometry& geo = ctx.geo;
  const std::int64_t units = units_of(static_cast<std::int64_t>(geo.row_bytes), unit_bytes);
  for_pieces(ctx.worker, rows, units, [&](const piece& part) {
    const row_cursor cursor(geo, received, part.row);
    const std::int32_t choices = places == nullptr ? 1 : geo.top_k;
    for (std::int32_t first = 0; first < choices; first += fan::most) {
      positions at;
      if (places == nullptr) {
        at.add(part.row);
      } else {
        find_positions(ctx, places + part.row * geo.top_k, first, at);
      }
      emit_piece(ctx, out, landed, *cursor, part, at);
    }
    if (places == nullptr && part.begins()) emit_choices(ctx, out, landed, *cursor);
  });
}

}  // namespace eptransport::detail
