// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief A worker's even share of many rows, cut within rows: few rows keep all workers busy.
///
/// `n` rows of `u` units are `n * u` units in a line; worker w takes the w-th part of the line:
///
///     rows   |---- 0 ----|---- 1 ----|---- 2 ----|
///     share  |----- 0 -----|----- 1 -----|-- 2 --|      of 3 workers, 4 pieces
#pragma once

#include <eptransport/core/config.hpp>
#include <eptransport/kernels/lane.hpp>

#include <cstdint>

namespace eptransport::detail {

/// A part of a row: units [begin, end). Every row has one piece that begins it.
struct piece {
  std::int64_t row;
  std::int64_t begin;
  std::int64_t end;

  [[nodiscard]] EPT_HOST_DEVICE bool begins() const noexcept { return begin == 0; }
};

/// Calls `body(piece)` for the pieces of this worker's share, rows ascending. All its threads call.
///
/// @param units  of a row, at least 1
EPT_NO_EXEC_CHECK
template <class W, class Body>
EPT_HOST_DEVICE void for_pieces(const W& worker, std::int64_t rows, std::int64_t units,
                                const Body& body) {
  const share mine = share_of(worker, rows * units);
  std::int64_t row = divided(mine.begin, units);
  for (std::int64_t at = mine.begin; at < mine.end; ++row) {
    const std::int64_t first = row * units;
    const std::int64_t end = mine.end - first < units ? mine.end - first : units;
    body(piece{row, at - first, end});
    at = first + end;
  }
}

/// Bytes of a unit of a row that is copied: what a warp moves at once.
inline constexpr std::int64_t unit_bytes = 512;
/// Values of a unit of a row that is quantised or summed.
inline constexpr std::int64_t unit_values = 256;

/// Units of `unit` that `count` takes.
[[nodiscard]] EPT_HOST_DEVICE constexpr std::int64_t units_of(std::int64_t count,
                                                              std::int64_t unit) noexcept {
  return count <= unit ? 1 : (count + unit - 1) / unit;
}

/// A part of a row in bytes or values: [begin, end).
struct extent {
  std::int64_t begin;
  std::int64_t end;
};

/// What a piece covers of `count` bytes or values in units of `unit`.
[[nodiscard]] EPT_HOST_DEVICE constexpr extent covered(const piece& part, std::int64_t unit,
                                                       std::int64_t count) noexcept {
  const std::int64_t end = part.end * unit;
  return {part.begin * unit, end < count ? end : count};
}

}  // namespace eptransport::detail
