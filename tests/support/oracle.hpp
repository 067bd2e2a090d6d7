// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief What dispatch and combine must produce, computed from all ranks' inputs without a wire.
///
/// It shares no code with the library: placement, prefix rules, sums and bf16 conversions are
/// written again here, in the plainest way, from the documentation of the calls. Only the names of
/// layouts come from `call.hpp`.
#pragma once

#include <eptransport/kernels/call.hpp>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace eptransport::support {

/// What all ranks agree on.
struct problem {
  int ranks = 1;
  int experts = 1;
  int top_k = 1;
  std::int64_t hidden = 1;
  std::int64_t max_tokens = 1;
  std::uint64_t row_bytes = 0;
  std::uint64_t scale_bytes = 0;
  std::vector<std::int32_t> placement{};  ///< rank of each expert; empty: contiguous
};

/// What one rank brings. Indices are wide here, whatever type the library is given.
struct rank_input {
  std::int64_t tokens = 0;
  std::vector<std::byte> x;         ///< [T, row_bytes]
  std::vector<std::byte> scales;    ///< [T, scale_bytes]
  std::vector<std::int64_t> index;  ///< [T, k]; outside [0, experts): the choice is skipped
  std::vector<float> weight;        ///< [T, k]; empty: all 1
};

/// A row as the experts see it.
struct row_view {
  const std::byte* row = nullptr;
  const std::byte* scales = nullptr;
};

/// Writes y [hidden] bf16 for one row and one global expert.
using expert_function = std::function<void(const row_view&, int expert, std::uint16_t* y)>;

/// The oracle's own writing of the expert stage that `experts.hpp` defines.
[[nodiscard]] expert_function reference_expert(const problem& p);

/// Rank of every expert.
[[nodiscard]] std::vector<std::int32_t> owners(const problem& p);

/// Global indices of a rank's experts, in the order of the placement table.
[[nodiscard]] std::vector<std::int32_t> experts_of(const problem& p, int rank);

/// How the output is wanted.
struct output_spec {
  output_layout layout = output_layout::rank_major;
  std::int64_t alignment = 1;  ///< expert_major
  std::int64_t capacity = 0;   ///< padded: rows per local expert; 0 = the worst case
};

/// One output row.
struct expected_row {
  std::int64_t position = 0;  ///< index of the row in the output
  std::int32_t source_rank = 0;
  std::int64_t source_token = 0;
  std::int32_t expert = -1;  ///< expert layouts: local expert
  float weight = 0;          ///< expert layouts
};

/// Everything that one rank receives.
struct expected_dispatch {
  output_spec spec;
  std::int64_t total = 0;                   ///< n, alignment padding included
  std::vector<std::int64_t> expert_count;   ///< [local_experts] rows without padding
  std::vector<std::int64_t> expert_offset;  ///< [local_experts]; empty for rank layouts
  std::vector<expected_row> rows;           ///< by ascending position
  std::vector<std::int32_t> topk_index;     ///< [n, k]; rank layouts
  std::vector<float> topk_weight;           ///< [n, k]; rank layouts
};

/// What `rank` receives when all ranks dispatch `inputs`.
[[nodiscard]] expected_dispatch expect_dispatch(const problem& p,
                                                std::span<const rank_input> inputs, int rank,
                                                const output_spec& spec);

/// Rows that `rank` sends to each rank: one per (token, rank).
[[nodiscard]] std::vector<std::int64_t> expect_sent(const problem& p, const rank_input& own);

/// Choices outside [-1, experts).
[[nodiscard]] std::uint64_t count_bad_indices(const problem& p, const rank_input& own);

/// What combine returns to a rank, [T, hidden] bf16.
///
/// Per (token, rank): fp32 sum from +0 over that rank's choices, in choice order, of weight * y,
/// product and sum each rounded to fp32; rounded once to bf16. Per token: fp32 sum from +0 of those
/// rows in ascending rank order, rounded once to bf16. Duplicate experts count twice.
///
/// @param weights  none: every weight is 1
[[nodiscard]] std::vector<std::uint16_t> expect_combine(const problem& p, const rank_input& own,
                                                        weighting weights,
                                                        const expert_function& expert);

/// The oracle's bf16 conversions: exact, and round to nearest with ties to even.
[[nodiscard]] float reference_from_bf16(std::uint16_t bits) noexcept;
[[nodiscard]] std::uint16_t reference_to_bf16(float value) noexcept;

}  // namespace eptransport::support
