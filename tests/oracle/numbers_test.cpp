// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The oracle's number formats against their definitions, and every code of each.
#include "support/numbers.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "support/random.hpp"

namespace eptransport::support {
namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();

TEST(Numbers, EveryFp16CodeComesBack) {
  for (unsigned bits = 0; bits < 0x10000U; ++bits) {
    const auto code = static_cast<std::uint16_t>(bits);
    const float value = reference_from_fp16(code);
    if (std::isnan(value)) continue;
    ASSERT_EQ(reference_to_fp16(value), code) << bits;
  }
  EXPECT_EQ(reference_from_fp16(0x0001), 0x1p-24F);
  EXPECT_EQ(reference_from_fp16(0x3C00), 1.0F);
  EXPECT_EQ(reference_from_fp16(0x7BFF), 65504.0F);
  EXPECT_EQ(reference_from_fp16(0xFC00), -infinity);
  EXPECT_TRUE(std::isnan(reference_from_fp16(0x7C01)));
}

TEST(Numbers, Fp16RoundsToTheNearestAndTiesToEven) {
  EXPECT_EQ(reference_to_fp16(1 + 0x1p-11F), 0x3C00) << "tie, stays even";
  EXPECT_EQ(reference_to_fp16(1 + 3 * 0x1p-11F), 0x3C02) << "tie, goes up to even";
  EXPECT_EQ(reference_to_fp16(65519.99F), 0x7BFF);
  EXPECT_EQ(reference_to_fp16(65520.0F), 0x7C00) << "halfway to 2^16 is infinite";
  EXPECT_EQ(reference_to_fp16(0x1p-25F), 0x0000) << "half of the smallest";
  EXPECT_EQ(reference_to_fp16(-0x1.8p-25F), 0x8001);
  EXPECT_EQ(reference_to_fp16(0x1.ffcp-15F + 0x1p-26F), 0x0400) << "the largest subnormal carries";
  EXPECT_TRUE(std::isnan(reference_from_fp16(reference_to_fp16(NAN))));
}

TEST(Numbers, EveryE4m3CodeComesBackAndLargerValuesSaturate) {
  for (unsigned bits = 0; bits < 0x100U; ++bits) {
    const auto code = static_cast<std::uint8_t>(bits);
    const float value = reference_from_e4m3(code);
    ASSERT_EQ(std::isnan(value), (bits & 0x7FU) == 0x7FU);
    if (std::isnan(value)) continue;
    ASSERT_EQ(reference_to_e4m3(value), code) << bits;
  }
  EXPECT_EQ(reference_from_e4m3(0x01), 0x1p-9F);
  EXPECT_EQ(reference_from_e4m3(0x08), 0x1p-6F);
  EXPECT_EQ(reference_from_e4m3(0x7E), 448.0F);
  EXPECT_EQ(reference_to_e4m3(1e30F), 0x7E);
  EXPECT_EQ(reference_to_e4m3(-infinity), 0xFE);
  EXPECT_EQ(reference_to_e4m3(0x1p-10F), 0x00) << "half of the smallest";
  EXPECT_EQ(reference_to_e4m3(0x1.8p-9F), 0x02) << "tie, goes up to even";
}

/// The nearest code, found by looking at all of them.
std::uint8_t nearest_e4m3(float value) {
  std::uint8_t best = 0;
  for (std::uint8_t code = 0; code < 0x7F; ++code) {
    const double now = std::fabs(static_cast<double>(reference_from_e4m3(code)) - value);
    const double before = std::fabs(static_cast<double>(reference_from_e4m3(best)) - value);
    if (now < before || (now == before && code % 2 == 0)) best = code;
  }
  return best;
}

TEST(Numbers, E4m3IsTheNearestOfAllCodes) {
  random_bits random(7);
  for (int i = 0; i < 20000; ++i) {
    const auto value =
        static_cast<float>(std::ldexp(random.unit(), static_cast<int>(random.below(24)) - 14));
    ASSERT_EQ(reference_to_e4m3(value), nearest_e4m3(value)) << value;
    ASSERT_EQ(reference_to_e4m3(-value), nearest_e4m3(value) | 0x80) << value;
  }
}

/// Quantises one row.
struct quantised {
  std::vector<std::byte> x, row, scales;

  quantised(quantisation how, const std::vector<float>& values)
      : x(values.size() * 2), row(values.size()) {
    const auto hidden = static_cast<std::int64_t>(values.size());
    for (std::size_t c = 0; c < values.size(); ++c) {
      reference_store(element::bf16, x.data(), c, values[c]);
    }
    scales.resize(quantised_rows(hidden, how).scale_bytes, std::byte{0xEE});
    reference_quantise(how, hidden, x, row, scales);
  }
  [[nodiscard]] float scale(std::size_t block) const {
    return reference_load(element::fp32, scales.data(), block);
  }
};

TEST(ReferenceQuantise, ScalesBlocksOf128ByTheirLargestMagnitude) {
  std::vector<float> values(130, 1.0F);
  values[7] = -896;
  values[129] = 224;
  const quantised q(quantisation::fp8_fp32, values);
  EXPECT_EQ(q.scale(0), 2.0F);
  EXPECT_EQ(q.scale(1), 0.5F) << "the short last block";
  EXPECT_EQ(reference_from_e4m3(std::to_integer<std::uint8_t>(q.row[7])), -448.0F);
  EXPECT_EQ(reference_from_e4m3(std::to_integer<std::uint8_t>(q.row[0])), 0.5F);
  EXPECT_EQ(reference_from_e4m3(std::to_integer<std::uint8_t>(q.row[128])), 2.0F);
}

TEST(ReferenceQuantise, GivesZeroAndTinyBlocksTheSmallestScale) {
  std::vector<float> values(256, 0.0F);
  values[200] = 0x1p-133F;
  const quantised q(quantisation::fp8_fp32, values);
  EXPECT_EQ(q.scale(0), 0x1p-126F);
  EXPECT_EQ(q.scale(1), 0x1p-126F);
  EXPECT_EQ(q.row[0], std::byte{0});
  EXPECT_EQ(reference_from_e4m3(std::to_integer<std::uint8_t>(q.row[200])), 0x1p-7F);
  const quantised powers(quantisation::fp8_ue8m0, values);
  EXPECT_EQ(powers.scales[0], std::byte{1});
}

TEST(ReferenceQuantise, TakesTheSmallestPowerOfTwoThatIsNotBelowTheScale) {
  const auto exponent = [](float largest) {
    const quantised q(quantisation::fp8_ue8m0, {largest, 1, 1});
    EXPECT_EQ(q.scales.size(), 4U);
    EXPECT_EQ(q.scales[1], std::byte{0}) << "padding";
    return std::to_integer<int>(q.scales[0]) - 127;
  };
  EXPECT_EQ(exponent(448), 0);
  EXPECT_EQ(exponent(450), 1);
  EXPECT_EQ(exponent(896), 1);
  EXPECT_EQ(exponent(224), -1);
  EXPECT_EQ(exponent(1), -8) << "1/448 lies between 2^-9 and 2^-8";
}

}  // namespace
}  // namespace eptransport::support
