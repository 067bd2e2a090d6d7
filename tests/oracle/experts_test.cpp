// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The two writings of the expert stage agree, and nothing about a row escapes them.
#include "support/experts.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "support/oracle.hpp"
#include "support/random.hpp"

namespace eptransport::support {
namespace {

struct sample {
  problem p;
  std::vector<std::byte> row, scales;

  sample(std::int64_t hidden, std::uint64_t row_bytes, std::uint64_t scale_bytes)
      : p{.hidden = hidden, .row_bytes = row_bytes, .scale_bytes = scale_bytes},
        row(row_bytes),
        scales(scale_bytes) {
    random_bits random(99);
    random.fill(row);
    random.fill(scales);
  }
  [[nodiscard]] std::vector<float> as_received(int expert) const {
    std::vector<float> y(static_cast<std::size_t>(p.hidden), NAN);
    const expert_stage stage{
        .hidden = p.hidden, .row_bytes = p.row_bytes, .scale_bytes = p.scale_bytes};
    compute_expert(stage, row.data(), scales.data(), expert, y.data());
    return y;
  }
  [[nodiscard]] std::vector<float> as_reference(int expert) const {
    std::vector<float> y(static_cast<std::size_t>(p.hidden), NAN);
    reference_expert(p)({row.data(), scales.data()}, expert, y.data());
    return y;
  }
};

TEST(ExpertStage, IsTheSameInBothWritings) {
  for (const auto& [hidden, row, scale] :
       {std::tuple{1, 1, 0}, {72, 144, 0}, {128, 128, 4}, {37, 5, 3}, {300, 7, 0}}) {
    const sample s(hidden, static_cast<std::uint64_t>(row), static_cast<std::uint64_t>(scale));
    for (const int expert : {0, 1, 255}) {
      EXPECT_EQ(s.as_received(expert), s.as_reference(expert)) << hidden << " from " << row;
    }
  }
}

TEST(ExpertStage, SeesEveryBitOfTheRowAndItsScales) {
  sample s(64, 128, 4);
  const auto before = s.as_received(3);
  for (std::size_t i = 0; i < s.row.size(); ++i) {
    for (int bit = 0; bit < 8; ++bit) {
      s.row[i] ^= std::byte(1 << bit);
      EXPECT_NE(s.as_received(3), before) << "byte " << i << ", bit " << bit;
      s.row[i] ^= std::byte(1 << bit);
    }
  }
  s.scales[3] ^= std::byte{1};
  EXPECT_NE(s.as_received(3), before);
}

TEST(ExpertStage, SeesTheOrderOfBytesAndTheExpert) {
  sample s(64, 128, 0);
  const auto before = s.as_received(3);
  EXPECT_NE(s.as_received(4), before);
  ASSERT_NE(s.row[100], s.row[101]);
  std::swap(s.row[100], s.row[101]);
  EXPECT_NE(s.as_received(3), before);
}

TEST(ExpertStage, GivesFiniteValuesOfManySizes) {
  const sample s(2000, 4000, 0);
  auto y = s.as_received(0);
  for (const float value : y) {
    EXPECT_TRUE(value >= -4 && value < 4);
    for (const element type : {element::bf16, element::fp16, element::fp32}) {
      EXPECT_EQ(reference_round(type, value), value) << "exact in every type";
    }
  }
  std::sort(y.begin(), y.end());
  EXPECT_GT(std::unique(y.begin(), y.end()) - y.begin(), 200);
}

/// One received row with both of its choices on this rank.
TEST(ExpertStage, SumsTheChoicesOfARowInOrderInEveryValueType) {
  const sample s(4, 8, 0);
  const std::vector<std::int32_t> experts{5, 9};
  const std::int64_t total = 1;
  const std::vector<std::int32_t> index{1, -1, 0};
  const std::vector<float> weight{0.5F, 0, 3.7F};
  for (const element type : {element::bf16, element::fp16, element::fp32}) {
    std::vector<std::byte> y(4 * bytes_of(type));
    run_experts({.hidden = 4,
                 .top_k = 3,
                 .row_bytes = 8,
                 .weights = weighting::at_expert,
                 .experts = experts,
                 .values = type},
                {.rows = s.row.data(),
                 .total = &total,
                 .topk_index = index.data(),
                 .topk_weight = weight.data()},
                y.data());
    const auto first = s.as_received(9);
    const auto second = s.as_received(5);
    for (std::size_t c = 0; c < 4; ++c) {
      const float product = 3.7F * second[c];
      EXPECT_EQ(reference_load(type, y.data(), c),
                reference_round(type, 0.5F * first[c] + product));
    }
  }
}

}  // namespace
}  // namespace eptransport::support
