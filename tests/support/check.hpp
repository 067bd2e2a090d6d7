// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Compares what the library wrote with what the oracle expects.
///
/// Each check returns the first difference as a line that names the rank, the row, the column, what
/// was expected and what came; or an empty string.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "support/oracle.hpp"
#include "support/received.hpp"

namespace eptransport::support {

/// Total, counts and offsets, and the host's copy of them. Run it first: the others trust it.
[[nodiscard]] std::string check_counts(int rank, const expected_dispatch& expected,
                                       const received& got);

/// Row bytes and scale bytes of every row, bit for bit.
[[nodiscard]] std::string check_rows(const problem& p, std::span<const rank_input> inputs, int rank,
                                     const expected_dispatch& expected, const received& got);

/// Source rank and token, local top-k indices and weights, expert and weight per row.
[[nodiscard]] std::string check_metadata(const problem& p, int rank,
                                         const expected_dispatch& expected, const received& got);

/// The output buffers of rows and scales beyond what must be written still hold their poison:
/// after the last row, and for padded after each expert's last row.
///
/// @param rows, scales  the whole buffers
[[nodiscard]] std::string check_slack(const problem& p, int rank, const expected_dispatch& expected,
                                      std::span<const std::byte> rows,
                                      std::span<const std::byte> scales, std::byte poison);

/// Counts, rows and metadata, in this order.
[[nodiscard]] std::string check_dispatch(const problem& p, std::span<const rank_input> inputs,
                                         int rank, const expected_dispatch& expected,
                                         const received& got);

/// The combined tokens [T, hidden] of `values`, bit for bit; any NaN equals any NaN.
[[nodiscard]] std::string check_combined(const problem& p, int rank,
                                         std::span<const std::byte> expected,
                                         std::span<const std::byte> got);

/// The same for contiguous containers of values or of bytes.
template <class Expected, class Got>
[[nodiscard]] std::string check_combine(const problem& p, int rank, const Expected& expected,
                                        const Got& got) {
  return check_combined(p, rank, std::as_bytes(std::span(expected)), std::as_bytes(std::span(got)));
}

/// The floats returned per choice, [T, k].
[[nodiscard]] std::string check_choice_values(const problem& p, int rank,
                                              std::span<const float> expected, const float* got);

/// Units [begin, end) of `unit` bytes each still hold their poison.
[[nodiscard]] std::string check_left_alone(int rank, const char* what,
                                           std::span<const std::byte> buffer, std::uint64_t unit,
                                           std::uint64_t begin, std::uint64_t end,
                                           std::byte poison);

}  // namespace eptransport::support
