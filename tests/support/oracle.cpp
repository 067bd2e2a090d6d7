// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The reference computation.
#include "support/oracle.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

namespace eptransport::support {
namespace {

/// fp32 product and sum, each rounded once, which no compiler contracts into one operation: the
/// product of two floats is exact in a double, and a double's sum of two floats rounds to fp32 as
/// the exact sum does, because 53 >= 2 * 24 + 2.
float times(float a, float b) {
  return static_cast<float>(static_cast<double>(a) * b);
}
float plus(float a, float b) {
  return static_cast<float>(static_cast<double>(a) + b);
}

/// The ranks and local indices of all experts.
struct placement_table {
  std::vector<std::int32_t> rank;
  std::vector<std::int32_t> local;

  explicit placement_table(const problem& p) : rank(owners(p)) {
    std::vector<std::int32_t> next(static_cast<std::size_t>(p.ranks), 0);
    for (const std::int32_t owner : rank) local.push_back(next[static_cast<std::size_t>(owner)]++);
  }
  /// -1 if the index names no expert.
  [[nodiscard]] std::int32_t rank_of(std::int64_t expert) const {
    const bool named = expert >= 0 && expert < static_cast<std::int64_t>(rank.size());
    return named ? rank[static_cast<std::size_t>(expert)] : -1;
  }
};

std::size_t cell(const problem& p, std::int64_t token, int choice) {
  return static_cast<std::size_t>(token) * static_cast<std::size_t>(p.top_k) +
         static_cast<std::size_t>(choice);
}

float weight_of(const rank_input& in, std::size_t at) {
  return in.weight.empty() ? 1.0F : in.weight[at];
}

bool goes_to(const problem& p, const placement_table& table, const rank_input& in,
             std::int64_t token, int rank) {
  for (int j = 0; j < p.top_k; ++j) {
    if (table.rank_of(in.index[cell(p, token, j)]) == rank) return true;
  }
  return false;
}

/// rank_major and in_place: source rank, then token.
void expect_by_rank(const problem& p, std::span<const rank_input> inputs, int rank,
                    expected_dispatch& out) {
  const placement_table table(p);
  for (int source = 0; source < p.ranks; ++source) {
    const rank_input& in = inputs[static_cast<std::size_t>(source)];
    for (std::int64_t token = 0; token < in.tokens; ++token) {
      if (!goes_to(p, table, in, token, rank)) continue;
      out.rows.push_back({.position = out.total++, .source_rank = source, .source_token = token});
      for (int j = 0; j < p.top_k; ++j) {
        const std::size_t at = cell(p, token, j);
        const bool ours = table.rank_of(in.index[at]) == rank;
        out.topk_index.push_back(ours ? table.local[static_cast<std::size_t>(in.index[at])] : -1);
        out.topk_weight.push_back(ours ? weight_of(in, at) : 0.0F);
      }
    }
  }
}

/// expert_major and padded: expert, then source rank, then token, then choice.
void expect_by_expert(const problem& p, std::span<const rank_input> inputs, int rank,
                      expected_dispatch& out) {
  const std::vector<std::int32_t> mine = experts_of(p, rank);
  const std::int64_t worst = static_cast<std::int64_t>(p.ranks) * p.max_tokens * p.top_k;
  const std::int64_t stride = out.spec.capacity != 0 ? out.spec.capacity : worst;
  const std::int64_t align = out.spec.alignment;
  const bool padded = out.spec.layout == output_layout::padded;
  std::int64_t start = 0;
  for (std::size_t local = 0; local < mine.size(); ++local) {
    const std::int64_t count = out.expert_count[local];
    out.expert_offset.push_back(start);
    std::int64_t position = start;
    for (int source = 0; source < p.ranks; ++source) {
      const rank_input& in = inputs[static_cast<std::size_t>(source)];
      for (std::size_t at = 0; at < in.index.size(); ++at) {
        if (in.index[at] != mine[local]) continue;
        out.rows.push_back({.position = position++,
                            .source_rank = source,
                            .source_token = static_cast<std::int64_t>(at) / p.top_k,
                            .expert = static_cast<std::int32_t>(local),
                            .weight = weight_of(in, at)});
      }
    }
    const std::int64_t aligned = (count + align - 1) / align * align;
    out.total += padded ? count : aligned;
    start += padded ? stride : aligned;
  }
}

}  // namespace

float reference_from_bf16(std::uint16_t bits) noexcept {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16U);
}

std::uint16_t reference_to_bf16(float value) noexcept {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t upper = bits >> 16U;
  const std::uint32_t lower = bits & 0xFFFFU;
  if (std::isnan(value)) return static_cast<std::uint16_t>(upper | 0x40U);
  const bool up = lower > 0x8000U || (lower == 0x8000U && (upper & 1U) != 0);
  return static_cast<std::uint16_t>(upper + (up ? 1U : 0U));
}

std::vector<std::int32_t> owners(const problem& p) {
  if (!p.placement.empty()) return p.placement;
  std::vector<std::int32_t> rank;
  for (std::int32_t r = 0; r < p.ranks; ++r) {
    const int count = p.experts / p.ranks + (r < p.experts % p.ranks ? 1 : 0);
    rank.insert(rank.end(), static_cast<std::size_t>(count), r);
  }
  return rank;
}

std::vector<std::int32_t> experts_of(const problem& p, int rank) {
  const std::vector<std::int32_t> all = owners(p);
  std::vector<std::int32_t> mine;
  for (std::size_t e = 0; e < all.size(); ++e) {
    if (all[e] == rank) mine.push_back(static_cast<std::int32_t>(e));
  }
  return mine;
}

expected_dispatch expect_dispatch(const problem& p, std::span<const rank_input> inputs, int rank,
                                  const output_spec& spec) {
  expected_dispatch out;
  out.spec = spec;
  for (const std::int32_t expert : experts_of(p, rank)) {
    std::int64_t count = 0;
    for (const rank_input& in : inputs)
      count += std::count(in.index.begin(), in.index.end(), expert);
    out.expert_count.push_back(count);
  }
  if (spec.layout == output_layout::expert_major || spec.layout == output_layout::padded) {
    expect_by_expert(p, inputs, rank, out);
  } else {
    expect_by_rank(p, inputs, rank, out);
  }
  return out;
}

std::vector<std::int64_t> expect_sent(const problem& p, const rank_input& own) {
  const placement_table table(p);
  std::vector<std::int64_t> sent;
  for (int rank = 0; rank < p.ranks; ++rank) {
    std::int64_t rows = 0;
    for (std::int64_t token = 0; token < own.tokens; ++token) {
      if (goes_to(p, table, own, token, rank)) ++rows;
    }
    sent.push_back(rows);
  }
  return sent;
}

std::uint64_t count_bad_indices(const problem& p, const rank_input& own) {
  return static_cast<std::uint64_t>(
      std::count_if(own.index.begin(), own.index.end(),
                    [&](std::int64_t expert) { return expert < -1 || expert >= p.experts; }));
}

std::vector<std::uint16_t> expect_combine(const problem& p, const rank_input& own,
                                          weighting weights, const expert_function& expert) {
  const placement_table table(p);
  const auto hidden = static_cast<std::size_t>(p.hidden);
  std::vector<std::uint16_t> out(static_cast<std::size_t>(own.tokens) * hidden);
  std::vector<std::uint16_t> y(hidden);
  for (std::int64_t token = 0; token < own.tokens; ++token) {
    const row_view row{own.x.data() + static_cast<std::uint64_t>(token) * p.row_bytes,
                       own.scales.data() + static_cast<std::uint64_t>(token) * p.scale_bytes};
    std::vector<float> total(hidden, 0.0F);
    for (int rank = 0; rank < p.ranks; ++rank) {
      if (!goes_to(p, table, own, token, rank)) continue;
      std::vector<float> part(hidden, 0.0F);
      for (int j = 0; j < p.top_k; ++j) {
        const std::size_t at = cell(p, token, j);
        if (table.rank_of(own.index[at]) != rank) continue;
        const float weight = weights == weighting::none ? 1.0F : weight_of(own, at);
        expert(row, static_cast<int>(own.index[at]), y.data());
        for (std::size_t c = 0; c < hidden; ++c) {
          part[c] = plus(part[c], times(weight, reference_from_bf16(y[c])));
        }
      }
      for (std::size_t c = 0; c < hidden; ++c) {
        total[c] = plus(total[c], reference_from_bf16(reference_to_bf16(part[c])));
      }
    }
    for (std::size_t c = 0; c < hidden; ++c) {
      out[static_cast<std::size_t>(token) * hidden + c] = reference_to_bf16(total[c]);
    }
  }
  return out;
}

expert_function reference_expert(const problem& p) {
  return [p](const row_view& row, int expert, std::uint16_t* y) {
    std::uint32_t digest = 0;
    std::uint32_t factor = 0;
    const auto absorb = [&](const std::byte* bytes, std::uint64_t count) {
      for (std::uint64_t i = 0; i < count; ++i) {
        factor += 2654435761U;
        digest += (std::to_integer<std::uint32_t>(bytes[i]) + 1U) * factor;
      }
    };
    absorb(row.row, p.row_bytes);
    absorb(row.scales, p.scale_bytes);
    const std::uint32_t base = digest + (static_cast<std::uint32_t>(expert) + 1U) * 0xC2B2AE3DU;
    for (std::int64_t c = 0; c < p.hidden; ++c) {
      const std::uint64_t at = static_cast<std::uint64_t>(c) % p.row_bytes;
      std::uint32_t h = base + std::to_integer<std::uint32_t>(row.row[at]) * 0x9E3779B1U +
                        static_cast<std::uint32_t>(c + 1) * 0x85EBCA77U;
      h ^= h >> 15U;
      h *= 0x27D4EB2FU;
      const int eighth = static_cast<int>(h >> 24U) - 128;
      y[c] = reference_to_bf16(static_cast<float>(eighth) / 32.0F);
    }
  };
}

}  // namespace eptransport::support
