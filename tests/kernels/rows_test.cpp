// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Sums of rows against a sum written value by value, and words of two values against one.

#include <eptransport/core/thread_group.hpp>
#include <eptransport/kernels/rows.hpp>

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

namespace eptransport {
namespace {

/// A source of `sum_rows` over rows anywhere.
struct listed_rows {
  static constexpr bool weighted = true;
  std::vector<const std::byte*> rows;
  std::vector<float> weights;
  const std::byte* added = nullptr;

  [[nodiscard]] std::int32_t count() const { return static_cast<std::int32_t>(rows.size()); }
  [[nodiscard]] const std::byte* row(std::int32_t i) const {
    return rows[static_cast<std::size_t>(i)];
  }
  [[nodiscard]] float weight(std::int32_t i) const { return weights[static_cast<std::size_t>(i)]; }
  [[nodiscard]] const std::byte* bias() const { return added; }
};

/// The same rows, all of weight 1.
struct plain_rows : listed_rows {
  static constexpr bool weighted = false;
};

template <class Value>
typename Value::storage value_at(const std::byte* row, std::size_t c) {
  typename Value::storage value;
  std::memcpy(&value, row + c * sizeof value, sizeof value);
  return value;
}

/// Rows of random bit patterns (NaN and infinity among them) behind `skew` bytes.
template <class Value>
std::vector<std::byte> random_row(std::mt19937_64& random, std::size_t hidden, std::size_t skew,
                                  bool wild) {
  std::vector<std::byte> row(skew + hidden * sizeof(typename Value::storage));
  std::normal_distribution<float> normal;
  for (std::size_t c = 0; c < hidden; ++c) {
    auto value = Value::store(normal(random));
    if (wild && random() % 8 == 0) {
      const std::uint64_t bits = random();
      std::memcpy(&value, &bits, sizeof value);
    }
    std::memcpy(&row[skew + c * sizeof value], &value, sizeof value);
  }
  return row;
}

/// True if both are NaN, or the same bits.
template <class Value>
bool same(typename Value::storage a, typename Value::storage b) {
  return (std::isnan(Value::load(a)) && std::isnan(Value::load(b))) ||
         std::memcmp(&a, &b, sizeof a) == 0;
}

template <class In, class Out>
void expect_sums(std::uint64_t seed) {
  std::mt19937_64 random(seed);
  for (int round = 0; round < 60; ++round) {
    const std::size_t hidden = 1 + random() % 200;
    const std::size_t skew = random() % 3 == 0 ? sizeof(typename In::storage) : 0;
    const bool wild = random() % 2 == 0;
    const std::size_t many = random() % 12;
    std::vector<std::vector<std::byte>> memory;
    listed_rows source;
    for (std::size_t i = 0; i < many; ++i) {
      memory.push_back(random_row<In>(random, hidden, skew, wild));
      source.weights.push_back(static_cast<float>(random() % 1000) / 512);
    }
    for (const auto& row : memory) {
      source.rows.push_back(random() % 4 == 0 ? nullptr : row.data() + skew);
    }
    const auto bias = random_row<Out>(random, hidden, 0, wild);
    if (random() % 2 == 0) source.added = bias.data();
    const bool weighted = random() % 2 == 0;
    std::vector<std::byte> out(hidden * sizeof(typename Out::storage) + 16, std::byte{0xa5});
    const host_thread g;
    const auto columns = static_cast<std::int64_t>(hidden);
    if (weighted) {
      sum_rows<In, Out>(g, out.data(), columns, source);
    } else {
      for (float& weight : source.weights) weight = 1;
      sum_rows<In, Out>(g, out.data(), columns, plain_rows{source});
    }
    for (std::size_t c = 0; c < hidden; ++c) {
      float sum = 0;
      for (std::size_t i = 0; i < many; ++i) {
        if (source.rows[i] == nullptr) continue;
        const float product = source.weights[i] * In::load(value_at<In>(source.rows[i], c));
        sum = sum + product;
      }
      if (source.added != nullptr) sum = sum + Out::load(value_at<Out>(bias.data(), c));
      const auto got = value_at<Out>(out.data(), c);
      ASSERT_TRUE(same<Out>(got, Out::store(sum)))
          << "seed " << seed << ", round " << round << ", column " << c << " of " << hidden
          << ": expected " << sum << ", got " << Out::load(got);
    }
    for (std::size_t i = out.size() - 16; i < out.size(); ++i) {
      ASSERT_EQ(out[i], std::byte{0xa5}) << "past the end of the row";
    }
  }
}

TEST(Rows, SumsEqualThoseOfSingleValues) {
  expect_sums<bf16_value, bf16_value>(1);
  expect_sums<bf16_value, fp32_value>(2);
  expect_sums<fp16_value, fp16_value>(3);
  expect_sums<fp16_value, fp32_value>(4);
  expect_sums<fp32_value, bf16_value>(5);
  expect_sums<fp32_value, fp16_value>(6);
  expect_sums<fp32_value, fp32_value>(7);
}

TEST(Rows, APairIsItsTwoValues) {
  std::mt19937_64 random(8);
  for (int i = 0; i < 200'000; ++i) {
    const std::uint64_t bits = random();
    two_floats v{};
    std::memcpy(&v, &bits, sizeof v);
    if (i % 4 == 0) v.even = std::ldexp(v.even, -static_cast<int>(random() % 120));
    v.even += 0.0F;  // as the result of arithmetic, a NaN is quiet
    v.odd += 0.0F;
    const std::uint32_t pair = bf16_value::store_pair(v);
    ASSERT_TRUE(same<bf16_value>(static_cast<std::uint16_t>(pair), float_to_bf16(v.even))) << i;
    ASSERT_TRUE(same<bf16_value>(static_cast<std::uint16_t>(pair >> 16), float_to_bf16(v.odd)));
    const two_floats back = bf16_value::load_pair(pair);
    ASSERT_EQ(std::isnan(back.even), std::isnan(v.even));
    ASSERT_EQ(float_to_bf16(back.odd), static_cast<std::uint16_t>(pair >> 16));
    const std::uint32_t half = fp16_value::store_pair(v);
    ASSERT_EQ(static_cast<std::uint16_t>(half), float_to_fp16(v.even));
    ASSERT_EQ(half >> 16, float_to_fp16(v.odd));
  }
}

}  // namespace
}  // namespace eptransport
