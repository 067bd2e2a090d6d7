// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Where the rows of combine's sums lie: the sources that `sum_rows` adds up.
#pragma once

#include <eptransport/core/config.hpp>
#include <eptransport/kernels/call.hpp>
#include <eptransport/kernels/layout.hpp>

#include <cstddef>
#include <cstdint>

namespace eptransport::detail {

/// The expert rows of one received token (`sum_rows`' source).
struct expert_rows {
  static constexpr bool weighted = true;

  const std::byte* y;
  std::uint64_t bytes;
  const place_entry* places;  ///< null: row `single` alone
  std::int64_t single;
  std::int32_t choices;
  weighting weights;

  [[nodiscard]] EPT_HOST_DEVICE std::int32_t count() const { return choices; }
  [[nodiscard]] EPT_HOST_DEVICE const std::byte* row(std::int32_t i) const {
    const std::int64_t position = places == nullptr ? single : places[i].position;
    return position < 0 ? nullptr : y + static_cast<std::uint64_t>(position) * bytes;
  }
  [[nodiscard]] EPT_HOST_DEVICE float weight(std::int32_t i) const {
    return weights == weighting::at_expert && places != nullptr ? places[i].weight : 1.0F;
  }
  [[nodiscard]] EPT_HOST_DEVICE static const std::byte* bias() { return nullptr; }
};

/// The rows that came back for one token, in rank order (`sum_rows`' source).
struct returned_rows {
  static constexpr bool weighted = false;

  const std::byte* window;
  const geometry* geo;
  const route_entry* routes;
  const std::int64_t* base;  ///< [R] first row of each rank's returns; null: slotted
  const std::byte* added;    ///< the bias row, or null
  const std::byte* own;      ///< the own rank's rows in y, or null: they lie in the zone as well

  [[nodiscard]] EPT_HOST_DEVICE std::int32_t count() const { return geo->top_k; }
  [[nodiscard]] EPT_HOST_DEVICE const std::byte* row(std::int32_t i) const {
    if (!exists(i)) return nullptr;
    if (own != nullptr && routes[i].rank == geo->rank) {
      return own + static_cast<std::uint64_t>(routes[i].slot) * geo->value_bytes;
    }
    return zone_row(i);
  }
  [[nodiscard]] EPT_HOST_DEVICE bool exists(std::int32_t i) const {
    return routes[i].rank >= 0 && routes[i].slot >= 0;
  }
  /// The row in the combine zone.
  [[nodiscard]] EPT_HOST_DEVICE const std::byte* zone_row(std::int32_t i) const {
    const std::int32_t rank = routes[i].rank;
    const std::int64_t first = base != nullptr ? base[rank] : rank * geo->max_tokens;
    return window + geo->return_row(first + routes[i].slot);
  }
  [[nodiscard]] EPT_HOST_DEVICE static float weight(std::int32_t) { return 1.0F; }
  [[nodiscard]] EPT_HOST_DEVICE const std::byte* bias() const { return added; }
};

/// The same rows where the experts' ranks keep them (`sum_rows`' source).
template <class View>
struct pulled_rows {
  static constexpr bool weighted = false;

  const View* view;
  const geometry* geo;
  const route_entry* routes;
  const std::int64_t* base;     ///< [R] first of the own rows at each rank
  const message_header* ready;  ///< [R] where each rank's y lies
  const std::byte* added;

  [[nodiscard]] EPT_HOST_DEVICE std::int32_t count() const { return geo->top_k; }
  EPT_NO_EXEC_CHECK
  [[nodiscard]] EPT_HOST_DEVICE const std::byte* row(std::int32_t i) const {
    const std::int32_t rank = routes[i].rank;
    if (rank < 0 || routes[i].slot < 0) return nullptr;
    const auto at = static_cast<std::uint64_t>(base[rank] + routes[i].slot);
    return view->peer_pointer(rank, ready[rank].value + at * geo->value_bytes, geo->value_bytes);
  }
  [[nodiscard]] EPT_HOST_DEVICE static float weight(std::int32_t) { return 1.0F; }
  [[nodiscard]] EPT_HOST_DEVICE const std::byte* bias() const { return added; }
};

}  // namespace eptransport::detail
