// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The expert stage, written so that compilers vectorise it.
#include "support/experts.hpp"

#include <bit>
#include <cstring>
#include <vector>

#include "support/numbers.hpp"

namespace eptransport::support {
namespace {

std::uint32_t weigh(const std::byte* bytes, std::uint64_t count, std::uint64_t first) {
  std::uint32_t sum = 0;
  for (std::uint64_t i = 0; i < count; ++i) {
    const auto place = static_cast<std::uint32_t>(first + i + 1);
    sum += (static_cast<std::uint32_t>(bytes[i]) + 1U) * (place * 2654435761U);
  }
  return sum;
}

std::uint16_t round_to_bf16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t nan = (bits & 0x7FFFFFFFU) > 0x7F800000U ? 0x8000U : 0;
  return static_cast<std::uint16_t>((bits + 0x7FFFU + (((bits >> 16U) & 1U) | nan)) >> 16U);
}

/// Rounds a row to the type of y.
void store_row(element values, const std::vector<float>& row, std::byte* y) {
  if (values == element::bf16) {
    for (std::size_t c = 0; c < row.size(); ++c) {
      const std::uint16_t bits = round_to_bf16(row[c]);
      std::memcpy(y + c * 2, &bits, 2);
    }
    return;
  }
  for (std::size_t c = 0; c < row.size(); ++c) reference_store(values, y, c, row[c]);
}

/// acc[c] += weight * y[c]; the product is exact in a double, so no compiler fuses the two.
void accumulate(float weight, const std::vector<float>& y, std::vector<float>& acc) {
  for (std::size_t c = 0; c < acc.size(); ++c) {
    const auto product = static_cast<float>(static_cast<double>(weight) * y[c]);
    acc[c] = static_cast<float>(static_cast<double>(acc[c]) + product);
  }
}

std::uint32_t digest_of(const expert_stage& stage, const std::byte* row, const std::byte* scales) {
  return weigh(row, stage.row_bytes, 0) + weigh(scales, stage.scale_bytes, stage.row_bytes);
}

/// y for a row whose digest is known.
void compute_columns(const expert_stage& stage, const std::byte* row, std::uint32_t digest,
                     std::int32_t expert, float* y) {
  const std::uint32_t base = digest + static_cast<std::uint32_t>(expert + 1) * 0xC2B2AE3DU;
  const auto hidden = static_cast<std::uint64_t>(stage.hidden);
  for (std::uint64_t begin = 0; begin < hidden; begin += stage.row_bytes) {
    const std::uint64_t left = hidden - begin;
    const std::uint64_t count = left < stage.row_bytes ? left : stage.row_bytes;
    for (std::uint64_t i = 0; i < count; ++i) {
      const auto column = static_cast<std::uint32_t>(begin + i);
      std::uint32_t h =
          base + static_cast<std::uint32_t>(row[i]) * 0x9E3779B1U + (column + 1U) * 0x85EBCA77U;
      h = (h ^ (h >> 15U)) * 0x27D4EB2FU;
      y[begin + i] = static_cast<float>(static_cast<std::int32_t>(h >> 24U) - 128) * 0.03125F;
    }
  }
}

void run_by_row(const expert_stage& stage, const received& in, std::byte* y) {
  const auto hidden = static_cast<std::size_t>(stage.hidden);
  std::vector<float> one(hidden);
  std::vector<float> acc(hidden);
  for (std::int64_t i = 0; i < *in.total; ++i) {
    const std::byte* row = in.row(i, stage.row_bytes);
    const std::uint32_t digest = digest_of(stage, row, in.scale(i, stage.scale_bytes));
    acc.assign(hidden, 0.0F);
    for (int j = 0; j < stage.top_k; ++j) {
      const std::int64_t at = i * stage.top_k + j;
      const std::int32_t local = in.topk_index[at];
      if (local < 0) continue;
      compute_columns(stage, row, digest, stage.experts[static_cast<std::size_t>(local)],
                      one.data());
      accumulate(stage.weights == weighting::none ? 1.0F : in.topk_weight[at], one, acc);
    }
    store_row(stage.values, acc, y + static_cast<std::size_t>(i) * hidden * bytes_of(stage.values));
  }
}

}  // namespace

void compute_expert(const expert_stage& stage, const std::byte* row, const std::byte* scales,
                    std::int32_t expert, float* y) {
  compute_columns(stage, row, digest_of(stage, row, scales), expert, y);
}

void run_experts(const expert_stage& stage, const received& in, void* y) {
  auto* out = static_cast<std::byte*>(y);
  if (stage.layout == output_layout::rank_major || stage.layout == output_layout::in_place) {
    return run_by_row(stage, in, out);
  }
  const std::uint64_t bytes = static_cast<std::uint64_t>(stage.hidden) * bytes_of(stage.values);
  std::vector<float> one(static_cast<std::size_t>(stage.hidden));
  for (std::size_t e = 0; e < stage.experts.size(); ++e) {
    for (std::int64_t i = 0; i < in.expert_count[e]; ++i) {
      const std::int64_t row = in.expert_offset[e] + i;
      compute_expert(stage, in.row(row, stage.row_bytes), in.scale(row, stage.scale_bytes),
                     stage.experts[e], one.data());
      store_row(stage.values, one, out + static_cast<std::uint64_t>(row) * bytes);
    }
  }
}

}  // namespace eptransport::support
