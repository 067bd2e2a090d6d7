// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The expert stage of tests and benchmarks: it runs on the received rows as they lie.
///
/// y(row, expert) depends on every byte, its position, the column and the expert, so that swapped
/// rows, a wrong expert, a wrong weight or one flipped bit change the result. In arithmetic modulo
/// 2^32, with b = the row bytes followed by the scale bytes:
///
///     digest = sum over i of (b[i] + 1) * (i + 1) * 2654435761
///     h      = digest + b[c mod row_bytes] * 0x9E3779B1 + (c + 1) * 0x85EBCA77
///                     + (expert + 1) * 0xC2B2AE3D
///     h      = (h xor (h >> 15)) * 0x27D4EB2F
///     y[c]   = ((h >> 24) - 128) / 32        a multiple of 1/32 in [-4, 4): exact in bf16, fp16
///
/// `reference_expert` in oracle.cpp is a second, independent writing of the same definition.
#pragma once

#include <eptransport/kernels/call.hpp>

#include <cstddef>
#include <cstdint>
#include <span>

#include "support/received.hpp"

namespace eptransport::support {

/// What the experts of one rank must know.
struct expert_stage {
  std::int64_t hidden = 0;
  int top_k = 0;
  std::uint64_t row_bytes = 0;
  std::uint64_t scale_bytes = 0;
  output_layout layout = output_layout::rank_major;
  weighting weights = weighting::none;      ///< rank layouts: applied here, before the sum
  std::span<const std::int32_t> experts{};  ///< global index of each local expert
  element values = element::bf16;           ///< of y
};

/// Computes y for one row and one global expert, [hidden].
void compute_expert(const expert_stage& stage, const std::byte* row, const std::byte* scales,
                    std::int32_t expert, float* y);

/// Runs this rank's experts over what it received.
///
/// rank_major, in_place: y[i] = the sum over row i's local choices, in choice order, in fp32,
/// rounded once. Expert layouts: y[i] = the expert's result, unweighted; padding is not touched.
///
/// @param in  needs `total`, `topk_index`, `topk_weight`, or `expert_count`, `expert_offset`
/// @param y   [rows, hidden] of `stage.values`, where the layout's rows lie
void run_experts(const expert_stage& stage, const received& in, void* y);

}  // namespace eptransport::support
