// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief From the caller's tensors to a slot: the row, quantised if asked, and its side.
#pragma once

#include <eptransport/core/config.hpp>
#include <eptransport/kernels/lane.hpp>
#include <eptransport/kernels/layout.hpp>
#include <eptransport/kernels/pieces.hpp>
#include <eptransport/kernels/quantise.hpp>
#include <eptransport/kernels/route.hpp>

#include <cstddef>
#include <cstdint>

namespace eptransport::detail {

/// Units in which a dispatch row is cut for several workers.
[[nodiscard]] EPT_HOST_DEVICE inline std::int64_t row_units(const geometry& geo) noexcept {
  return geo.quantise != quantisation::none
             ? units_of(geo.hidden, unit_values)
             : units_of(static_cast<std::int64_t>(geo.row_bytes), unit_bytes);
}

/// Writes what goes with token t's row, but for in-kernel scales, to all `sides`.
EPT_NO_EXEC_CHECK
template <class Context>
EPT_NOINLINE EPT_HOST_DEVICE void write_sides(const Context& ctx, const dispatch_input& in,
                                              std::int64_t t, const fan& sides) {
  const auto& worker = ctx.worker;
  const geometry& geo = ctx.geo;
  if (geo.quantise == quantisation::none && geo.scale_bytes != 0) {
    worker.fan_out(
        sides, 0,
        static_cast<const std::byte*>(in.scales) + static_cast<std::uint64_t>(t) * geo.scale_bytes,
        geo.scale_bytes);
  }
  const std::uint64_t info = geo.choice_offset - geo.scale_offset;
  for (std::int32_t j = static_cast<std::int32_t>(worker.thread()); j < geo.top_k;
       j += static_cast<std::int32_t>(worker.threads())) {
    const std::int64_t expert = read_index(in, t * geo.top_k + j);
    const float weight = in.topk_weight == nullptr ? 1.0F : in.topk_weight[t * geo.top_k + j];
    const bool used = rank_of(geo, expert) >= 0;
    const slot_choice choice{.expert = used ? static_cast<std::int32_t>(expert) : -1,
                             .weight = used ? weight : 0.0F};
    EPT_ROLLED
    for (int d = 0; d < sides.count; ++d) {
      auto* token = reinterpret_cast<std::int64_t*>(sides.to[d] + info);
      if (j == 0) *token = t;
      reinterpret_cast<slot_choice*>(token + 1)[j] = choice;
    }
  }
}

/// Writes a piece of a token's row to all `rows`; in-kernel scales to all `sides`.
EPT_NO_EXEC_CHECK
template <class Context>
EPT_NOINLINE EPT_HOST_DEVICE void write_values(const Context& ctx, const dispatch_input& in,
                                               const piece& part, const fan& rows,
                                               const fan& sides) {
  const geometry& geo = ctx.geo;
  const auto token = static_cast<std::uint64_t>(part.row);
  const auto* x = static_cast<const std::byte*>(in.x);
  if (geo.quantise != quantisation::none) {
    constexpr std::int64_t each = unit_values / fp8_block;
    const std::int64_t blocks = (geo.hidden + fp8_block - 1) / fp8_block;
    quantise_blocks(ctx.worker, rows, sides, x + token * static_cast<std::uint64_t>(geo.hidden) * 2,
                    geo.hidden, covered(part, each, blocks), geo.quantise);
  } else {
    const extent bytes = covered(part, unit_bytes, static_cast<std::int64_t>(geo.row_bytes));
    const auto first = static_cast<std::uint64_t>(bytes.begin);
    ctx.worker.fan_out(rows, first, x + token * geo.row_bytes + first,
                       static_cast<std::uint64_t>(bytes.end - bytes.begin));
  }
}

/// The same, and with the piece that begins the row what goes with it.
EPT_NO_EXEC_CHECK
template <class Context>
EPT_HOST_DEVICE void write_piece(const Context& ctx, const dispatch_input& in, const piece& part,
                                 const fan& rows, const fan& sides) {
  write_values(ctx, in, part, rows, sides);
  if (part.begins()) write_sides(ctx, in, part.row, sides);
}

/// Writes token t's row to `row` and its side (scales, token index, choices) to `side`.
EPT_NO_EXEC_CHECK
template <class Context>
EPT_HOST_DEVICE void write_token(const Context& ctx, const dispatch_input& in, std::int64_t t,
                                 std::byte* row, std::byte* side) {
  fan rows;
  fan sides;
  rows.add(row);
  sides.add(side);
  write_piece(ctx, in, {t, 0, row_units(ctx.geo)}, rows, sides);
}

/// Writes token t's slot.
EPT_NO_EXEC_CHECK
template <class Context>
EPT_HOST_DEVICE void write_slot(const Context& ctx, const dispatch_input& in, std::int64_t t,
                                std::byte* slot) {
  write_token(ctx, in, t, slot, slot + ctx.geo.scale_offset);
}

}  // namespace eptransport::detail
