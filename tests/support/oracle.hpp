// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief What dispatch and combine must produce, computed from all ranks' inputs without a wire.
///
/// It shares no code with the library: placement, prefix rules, sums and conversions are written
/// again here and in numbers.hpp, in the plainest way, from the documentation of the calls. Only
/// names and row sizes come from `call.hpp`.
#pragma once

#include <eptransport/kernels/call.hpp>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "support/numbers.hpp"

namespace eptransport::support {

/// What all ranks agree on.
struct problem {
  int ranks = 1;
  int experts = 1;
  int top_k = 1;
  std::int64_t hidden = 1;
  std::int64_t max_tokens = 1;
  std::uint64_t row_bytes = 0;  ///< of rows as they arrive
  std::uint64_t scale_bytes = 0;
  std::vector<std::int32_t> placement{};  ///< rank of each expert; empty: contiguous
  std::int64_t counted_tokens = 0;
  std::int64_t counted_rows = 0;  ///< rows that a rank can take in a counted call
  quantisation quantise = quantisation::none;
  element values = element::bf16;
  element returns = element::bf16;
};

/// Rows that a rank can receive in any call.
[[nodiscard]] std::int64_t most_rows(const problem& p);

/// What one rank brings. Indices are wide here, whatever type the library is given.
struct rank_input {
  std::int64_t tokens = 0;
  std::vector<std::byte> x;         ///< [T, row_bytes] as they arrive
  std::vector<std::byte> scales;    ///< [T, scale_bytes] as they arrive
  std::vector<std::int64_t> index;  ///< [T, k]; outside [0, experts): the choice is skipped
  std::vector<float> weight;        ///< [T, k]; empty: all 1
  std::vector<std::byte> raw{};     ///< quantised: [T, hidden] bf16, which become `x` and `scales`
};

/// A row as the experts see it.
struct row_view {
  const std::byte* row = nullptr;
  const std::byte* scales = nullptr;
};

/// Writes y [hidden] for one row and one global expert; values exact in every element type.
using expert_function = std::function<void(const row_view&, int expert, float* y)>;

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
  /// Counted: rows that each rank can take. Of a rank's rows in rank-major order, the first that
  /// fit are kept. Empty: all.
  std::vector<std::int64_t> room{};
};

/// One output row.
struct expected_row {
  std::int64_t position = 0;  ///< index of the row in the output
  std::int32_t source_rank = 0;
  std::int64_t source_token = 0;
  std::int32_t expert = -1;  ///< expert layouts: local expert
  float weight = 0;          ///< expert layouts
  std::int32_t choice = -1;  ///< expert layouts: which choice of the token
};

/// Everything that one rank receives.
struct expected_dispatch {
  output_spec spec;
  std::int64_t total = 0;                   ///< n, alignment padding included
  std::int64_t landed = 0;                  ///< rows that arrive, one per token
  std::int64_t dropped = 0;                 ///< rows that do not
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

/// For each rank, the tokens that go to its node: one row each where relays pass them on.
[[nodiscard]] std::vector<std::int64_t> expect_node_rows(const problem& p, const rank_input& own,
                                                         std::span<const int> nodes);

/// Rows that all ranks together send to each rank.
[[nodiscard]] std::vector<std::int64_t> expect_totals(const problem& p,
                                                      std::span<const rank_input> inputs);

/// Rows of `source` that each rank keeps, if it has room for `room` rows; empty room: all.
[[nodiscard]] std::vector<std::int64_t> expect_kept(const problem& p,
                                                    std::span<const rank_input> inputs, int source,
                                                    std::span<const std::int64_t> room);

/// Choices outside [-1, experts).
[[nodiscard]] std::uint64_t count_bad_indices(const problem& p, const rank_input& own);

/// What else decides what combine returns.
struct combine_spec {
  /// True: the library sums a rank's experts and rounds to `returns`. False: the experts did, and
  /// rounded to `values`.
  bool per_expert = true;
  std::span<const std::int64_t> kept{};  ///< `expect_kept` of the source; empty: all
  std::span<const std::byte> bias{};     ///< [T, hidden] `values`, or empty
  /// Node of each rank, where relays add up what another node returns; empty: no relays.
  std::span<const int> nodes{};
  int rank = 0;  ///< with nodes: the source
};

/// What combine returns to a rank, [T, hidden] `values`.
///
/// Per (token, rank): fp32 sum from +0 over that rank's choices, in choice order, of weight * y,
/// product and sum each rounded to fp32; rounded once. Per token: fp32 sum from +0 of those rows in
/// ascending rank order, then of the bias, rounded once. Duplicate experts count twice. With relays
/// the rows of another node are first summed in ascending rank order, in fp32 from +0, rounded once
/// to the type of rows on the wire; the sum counts as the row of the rank there whose index among
/// its node's ranks is the source's, modulo their number.
///
/// @param weights  none: every weight is 1
[[nodiscard]] std::vector<std::byte> expect_combine(const problem& p, const rank_input& own,
                                                    weighting weights,
                                                    const expert_function& expert,
                                                    const combine_spec& how = {});

/// The float that runs return for a choice; not 0, not NaN.
[[nodiscard]] float choice_value(int source, std::int64_t token, std::int64_t choice) noexcept;

/// The floats that come back per choice, [T, k]: `choice_value` where the choice is used and its
/// row was kept, else 0.
[[nodiscard]] std::vector<float> expect_choice_values(const problem& p, int rank,
                                                      const rank_input& own,
                                                      std::span<const std::int64_t> kept);

}  // namespace eptransport::support
