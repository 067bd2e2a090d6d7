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

/// The combined tokens [T, hidden] bf16, bit for bit.
[[nodiscard]] std::string check_combine(const problem& p, int rank,
                                        std::span<const std::uint16_t> expected,
                                        std::span<const std::uint16_t> got);

}  // namespace eptransport::support
