// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Calls of few tokens: where they end, that a crew's scratch holds what it must, and that
/// both sides of the end give the oracle's result.

#include <eptransport/kernels/few.hpp>

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <random>
#include <string>

#include "support/run_case.hpp"

namespace eptransport::detail {
namespace {

using support::run_config;

geometry shape_of(std::int32_t ranks, std::int64_t tokens, std::int32_t top_k,
                  std::int32_t experts) {
  geometry geo;
  geo.ranks = ranks;
  geo.sources = static_cast<std::uint32_t>(ranks);
  geo.max_tokens = tokens;
  geo.top_k = top_k;
  geo.experts = experts;
  geo.local_experts = (experts + ranks - 1) / ranks;
  geo.message = message_shape::direct;
  return geo;
}

TEST(Few, DecodeShapesAreFewAndOthersAreNot) {
  EXPECT_TRUE(few(shape_of(2, 8, 8, 256)));
  EXPECT_TRUE(few(shape_of(2, 256, 8, 256)));
  EXPECT_TRUE(few(shape_of(8, 128, 8, 256)));
  EXPECT_TRUE(few(shape_of(64, 16, 8, 256)));
  EXPECT_FALSE(few(shape_of(2, 4096, 8, 256)));
  EXPECT_FALSE(few(shape_of(65, 1, 1, 65)));  // more ranks than a mask has bits
  geometry summed = shape_of(2, 8, 8, 256);
  summed.sources = 1;
  EXPECT_FALSE(few(summed));
  geometry packed = shape_of(2, 8, 8, 256);
  packed.message = message_shape::per_peer;
  EXPECT_FALSE(few(packed));
  geometry huge = shape_of(2, 8, 8, 256);
  huge.max_tokens = std::int64_t{1} << 61;  // what overflows must not look small
  EXPECT_FALSE(few(huge));
}

/// A worker that is a crew by itself, as far as `few_scratch` asks.
struct scratch_owner {
  std::byte* bytes;
  [[nodiscard]] std::byte* scratch() const { return bytes; }
};

TEST(Few, ThePartsOfTheScratchLieInItApartFromEachOther) {
  alignas(16) static std::byte bytes[crew_scratch_bytes];
  std::mt19937_64 random(5);
  int seen = 0;
  for (int i = 0; i < 20'000; ++i) {
    const auto below = [&](std::uint64_t n) { return static_cast<std::int32_t>(random() % n); };
    const geometry geo = shape_of(1 + below(64), 1 + below(1024), 1 + below(12), 1 + below(600));
    if (!few(geo)) continue;
    ++seen;
    const few_scratch at = few_scratch::of(scratch_owner{bytes}, geo);
    const std::int64_t rows = geo.max_tokens * geo.ranks;
    const std::int64_t chunks = (rows + few_chunk - 1) / few_chunk;
    const auto where = [&](const auto* p) { return reinterpret_cast<const std::byte*>(p) - bytes; };
    ASSERT_EQ(where(at.received), 0);
    ASSERT_GE(where(at.start), where(at.received + geo.ranks));
    ASSERT_GE(where(at.below), where(at.start + geo.local_experts + 1));
    ASSERT_GE(where(at.masks), where(at.below + chunks * geo.local_experts));
    ASSERT_EQ(where(at.masks) % 8, 0);
    ASSERT_LE(where(at.masks + geo.max_tokens), crew_scratch_bytes);
    ASSERT_GE(where(at.local), where(at.below + chunks * geo.local_experts));
    ASSERT_LE(where(at.local + rows * geo.top_k), crew_scratch_bytes);
  }
  EXPECT_GT(seen, 500);
}

run_config drawn(std::uint64_t seed) {
  static constexpr output_layout layouts[] = {output_layout::rank_major,
                                              output_layout::expert_major, output_layout::padded,
                                              output_layout::in_place};
  std::mt19937_64 random(seed);
  run_config config;
  config.wire = "nvlink";
  config.message = message_shape::direct;
  const bool many = random() % 4 == 0;  // more ranks than a token's destinations are held at once
  config.ranks = many ? 9 + static_cast<int>(random() % 12) : 1 + static_cast<int>(random() % 6);
  config.top_k = many ? 4 + static_cast<int>(random() % 16) : 1 + static_cast<int>(random() % 9);
  config.experts = config.ranks * (1 + static_cast<int>(random() % 9));
  config.tokens = {static_cast<std::int64_t>(random() % (many ? 12 : 80))};
  config.vary_tokens = random() % 2 == 0;
  config.max_tokens = many ? 12 : 80;
  config.hidden = random() % 2 == 0 ? 520 : 37;
  config.layout = layouts[random() % 4];
  config.alignment = random() % 2 == 0 ? 1 : 4;
  config.duplicates = random() % 2 == 0;
  config.unused = 0.2;
  config.cached = random() % 4 == 0;
  config.split = random() % 4 == 0;
  config.workers = 1 + static_cast<std::uint32_t>(random() % 4);
  config.iterations = 3;
  config.seed = seed;
  return config;
}

TEST(Few, BothSidesOfTheEndGiveTheOraclesResult) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    for (const bool few_tokens : {true, false}) {
      run_config config = drawn(seed);
      if (!few_tokens) config.max_tokens = 4097 / config.top_k + 1;  // choices that are not few
      const auto done = support::run_case(config);
      ASSERT_TRUE(done.verified) << "seed " << seed << ", few " << few_tokens << ": " << done.error;
    }
  }
}

}  // namespace
}  // namespace eptransport::detail
