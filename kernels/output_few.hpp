// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Outputs of few rows without barriers: every worker looks at all rows for its own.
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

/// True if a call brings so few rows that every worker may look at all of them. A property of the
/// shape, so that all workers agree.
[[nodiscard]] EPT_HOST_DEVICE inline bool few_received(const geometry& geo, dispatch_mode mode) {
  constexpr std::int64_t most_choices = 2048;
  return mode == dispatch_mode::slotted && geo.message == message_shape::direct &&
         geo.max_tokens <= most_choices / geo.top_k / geo.ranks;
}

/// Rows per local expert, and in expert layouts where they begin, without a barrier: an expert is
/// one worker's, which looks at all rows. The last workers begin: they have the least to copy.
EPT_NO_EXEC_CHECK
template <class Context>
EPT_NOINLINE EPT_HOST_DEVICE void count_each_expert(const Context& ctx, const dispatch_output& out,
                                                    const landed_rows& landed,
                                                    const std::int64_t* received,
                                                    std::int64_t rows) {
  const auto& worker = ctx.worker;
  const geometry& geo = ctx.geo;
  const std::int64_t workers = worker.workers();
  // The last one, behind the last expert, finds the end of the output.
  for (std::int64_t e = workers - 1 - worker.worker(); e <= geo.local_experts; e += workers) {
    std::int64_t count = 0;
    std::int64_t below = 0;
    for (std::int64_t row = worker.thread(); row < rows; row += worker.threads()) {
      const row_cursor cursor(geo, received, row);
      const slot_choice* choices = landed.choices(*cursor);
      EPT_ROLLED
      for (std::int32_t first = 0; first < geo.top_k; first += fan::most) {
        const local_choices some(geo, choices, first);
        EPT_UNROLL
        for (int n = 0; n < fan::most; ++n) {
          count += some.local[n] == e ? 1 : 0;
          below += some.local[n] >= 0 && some.local[n] < e ? 1 : 0;
        }
      }
    }
    count = worker.sum(count);
    below = worker.sum(below);
    if (worker.thread() != 0) continue;
    if (e == geo.local_experts) {
      if (per_expert(out.layout)) emit_total(out, below);
      continue;
    }
    if (out.expert_count != nullptr) out.expert_count[e] = count;
    if (out.host_counts != nullptr) out.host_counts[1 + e] = count;
    if (out.expert_offset == nullptr || !per_expert(out.layout)) continue;
    out.expert_offset[e] = out.layout == output_layout::padded ? e * padded_rows(geo, out) : below;
  }
}

/// Output rows of the choices `first`, `first + 1`, .. of a received row, found by looking at all
/// rows: those of lower experts come before, and those of the same expert in lower rows. For an
/// output without alignment. Noted in `places` [k], unless that is null. `all`: how many choices of
/// local experts there are.
EPT_NO_EXEC_CHECK
template <class Context>
[[nodiscard]] EPT_NOINLINE EPT_HOST_DEVICE positions
place_alone(const Context& ctx, const dispatch_output& out, const landed_rows& landed,
            const std::int64_t* received, std::int64_t rows, const received_row& row,
            std::int32_t first, place_entry* places, std::int64_t& all) {
  const bool notes = places != nullptr;
  const auto& worker = ctx.worker;
  const geometry& geo = ctx.geo;
  const slot_choice* own = landed.choices(row);
  const local_choices mine(geo, own, first);
  std::uint64_t before[fan::most];  // of lower experts << 32 | of the same
  EPT_UNROLL
  for (int n = 0; n < fan::most; ++n) before[n] = 0;
  all = 0;
  for (std::int64_t at = worker.thread(); at < rows; at += worker.threads()) {
    const row_cursor cursor(geo, received, at);
    const slot_choice* choices = landed.choices(*cursor);
    EPT_ROLLED
    for (std::int32_t from = 0; from < geo.top_k; from += fan::most) {
      const local_choices some(geo, choices, from);
      EPT_UNROLL
      for (int j = 0; j < fan::most; ++j) {
        const std::int32_t other = some.local[j];
        if (other < 0) continue;
        ++all;
        EPT_UNROLL
        for (int n = 0; n < fan::most; ++n) {
          const bool earlier = at < row.index || (at == row.index && from + j < first + n);
          before[n] += other < mine.local[n] ? std::uint64_t{1} << 32 : 0;
          before[n] += other == mine.local[n] && earlier ? 1 : 0;
        }
      }
    }
  }
  all = worker.sum(all);
  positions found;
  EPT_UNROLL
  for (int n = 0; n < fan::most; ++n) {
    const auto sum = static_cast<std::uint64_t>(worker.sum(static_cast<std::int64_t>(before[n])));
    const std::int64_t start = out.layout == output_layout::padded
                                   ? mine.local[n] * padded_rows(geo, out)
                                   : static_cast<std::int64_t>(sum >> 32);
    const std::int64_t position = start + static_cast<std::int64_t>(sum & 0xffff'ffffu);
    if (mine.local[n] >= 0) found.add(position);
    if (!notes || first + n >= geo.top_k || worker.thread() != 0) continue;
    const slot_choice choice = own[first + n];
    places[first + n] = {
        .position = mine.local[n] < 0 ? -1 : position, .weight = choice.weight, .unused = 0};
    if (mine.local[n] < 0 || (out.capacity != 0 && position >= out.capacity)) continue;
    if (out.row_weight != nullptr) out.row_weight[position] = choice.weight;
    if (out.row_expert != nullptr) out.row_expert[position] = mine.local[n];
  }
  return found;
}

/// True if expert layouts need no barrier: few rows, and no room to check that depends on one
/// expert alone. The same in every worker.
[[nodiscard]] EPT_HOST_DEVICE inline bool few_to_place(const geometry& geo,
                                                       const dispatch_output& out,
                                                       dispatch_mode mode) {
  return few_received(geo, mode) &&
         (out.layout == output_layout::padded ? out.capacity == 0 : out.alignment == 1);
}

/// expert_major and padded, few rows: every worker finds the places of its own.
EPT_NO_EXEC_CHECK
template <class Context>
EPT_HOST_DEVICE void emit_few(const Context& ctx, const dispatch_output& out,
                              const landed_rows& landed, const handle_parts& handle,
                              const std::int64_t* received, std::int64_t rows) {
  const geometry& geo = ctx.geo;
  const std::int64_t units = units_of(static_cast<std::int64_t>(geo.row_bytes), unit_bytes);
  for_pieces(ctx.worker, rows, units, [&](const piece& part) {
    const row_cursor cursor(geo, received, part.row);
    for (std::int32_t first = 0; first < geo.top_k; first += fan::most) {
      std::int64_t all = 0;
      place_entry* places = part.begins() ? handle.places + part.row * geo.top_k : nullptr;
      const positions at =
          place_alone(ctx, out, landed, received, rows, *cursor, first, places, all);
      if (out.capacity != 0 && all > out.capacity) {
        if (ctx.worker.thread() == 0) raise_capacity(ctx, out.capacity, all, -1);
        return;
      }
      emit_piece(ctx, out, landed, *cursor, part, at);
    }
  });
  count_each_expert(ctx, out, landed, received, rows);
}

}  // namespace eptransport::detail
