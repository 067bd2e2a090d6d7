// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief From the caller's tensors to a slot: the row, quantised if asked, and its side.
#pragma once

#include <eptransport/core/config.hpp>
#include <eptransport/kernels/lane.hpp>
#include <eptransport/kernels/layout.hpp>
#include <eptransport/kernels/quantise.hpp>
#include <eptransport/kernels/route.hpp>

#include <cstddef>
#include <cstdint>

namespace eptransport::detail {

/// Writes token t's row to `row` and its side (scales, token index, choices) to `side`.
EPT_NO_EXEC_CHECK
template <class Context>
EPT_HOST_DEVICE void write_token(const Context& ctx, const dispatch_input& in, std::int64_t t,
                                 std::byte* row, std::byte* side) {
  const auto& worker = ctx.worker;
  const geometry& geo = ctx.geo;
  const auto token = static_cast<std::uint64_t>(t);
  const auto* x = static_cast<const std::byte*>(in.x);
  if (geo.quantise != quantisation::none) {
    quantise_row(worker, row, side, x + token * static_cast<std::uint64_t>(geo.hidden) * 2,
                 geo.hidden, geo.quantise);
  } else {
    worker.copy(row, x + token * geo.row_bytes, geo.row_bytes);
    if (geo.scale_bytes != 0) {
      worker.copy(side, static_cast<const std::byte*>(in.scales) + token * geo.scale_bytes,
                  geo.scale_bytes);
    }
  }
  std::byte* info = side + (geo.choice_offset - geo.scale_offset);
  if (worker.thread() == 0) *reinterpret_cast<std::int64_t*>(info) = t;
  auto* choices = reinterpret_cast<slot_choice*>(info + sizeof(std::int64_t));
  for (std::int32_t j = static_cast<std::int32_t>(worker.thread()); j < geo.top_k;
       j += static_cast<std::int32_t>(worker.threads())) {
    const std::int64_t expert = read_index(in, t * geo.top_k + j);
    const bool used = rank_of(geo, expert) >= 0;
    const float weight = in.topk_weight == nullptr ? 1.0F : in.topk_weight[t * geo.top_k + j];
    choices[j] = {.expert = used ? static_cast<std::int32_t>(expert) : -1,
                  .weight = used ? weight : 0.0F};
  }
}

/// Writes token t's slot.
EPT_NO_EXEC_CHECK
template <class Context>
EPT_HOST_DEVICE void write_slot(const Context& ctx, const dispatch_input& in, std::int64_t t,
                                std::byte* slot) {
  write_token(ctx, in, t, slot, slot + ctx.geo.scale_offset);
}

}  // namespace eptransport::detail
