// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Commands and immediates: what goes in comes out; what cannot fit is refused by number.
#include <eptransport/proxy/command.hpp>

#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <string>

namespace eptransport::proxy {
namespace {

void expect_round_trips(const command_limits& limits, std::uint64_t seed) {
  const auto codec = command_codec::create(limits);
  ASSERT_TRUE(codec) << codec.error().message();
  std::mt19937_64 random(seed);
  const auto below = [&random](std::uint64_t bound) { return bound == 0 ? 0 : random() % bound; };
  const std::uint64_t longest = limits.max_message == 0
                                    ? limits.window_bytes
                                    : std::min(limits.max_message, limits.window_bytes);
  for (int i = 0; i < 2000; ++i) {
    command c;
    const bool edge = i % 4 == 0;
    c.peer = static_cast<std::uint32_t>(edge ? limits.ranks - 1 : below(limits.ranks));
    c.bytes = edge ? longest : 1 + below(longest);
    c.src_offset = edge ? limits.window_bytes - c.bytes : below(limits.window_bytes - c.bytes + 1);
    c.dst_offset = edge ? limits.window_bytes - c.bytes : below(limits.window_bytes - c.bytes + 1);
    c.signal = i % 3 == 0 || limits.signals == 0
                   ? no_signal
                   : static_cast<std::uint32_t>(below(limits.signals));
    c.count = edge ? codec->max_count() : 1 + static_cast<std::uint32_t>(below(codec->max_count()));
    const command_words words = codec->encode(c);
    ASSERT_EQ(words.first & parity_bit, 0U);
    ASSERT_EQ(words.second & parity_bit, 0U);
    ASSERT_EQ(codec->decode(words), c) << "seed " << seed << ", command " << i;
    // The parity belongs to the ring: it changes nothing.
    ASSERT_EQ(codec->decode({words.first | parity_bit, words.second | parity_bit}), c);
  }
}

TEST(Command, RoundTripsForGroupsOfAllSizes) {
  const std::uint64_t gib = std::uint64_t{1} << 30;
  std::uint64_t seed = 1;
  for (const std::uint64_t ranks : {1ULL, 2ULL, 3ULL, 64ULL, 4096ULL}) {
    for (const std::uint64_t signals : {0ULL, 1ULL, 512ULL, 20000ULL}) {
      for (const std::uint64_t window :
           {std::uint64_t{1}, std::uint64_t{4096}, gib + 1, 16 * gib}) {
        expect_round_trips({ranks, signals, window, std::uint64_t{1} << 24}, ++seed);
      }
    }
  }
}

TEST(Command, WindowsWhoseOffsetsFillAWordSplitTheDestination) {
  expect_round_trips({16, 100, std::uint64_t{1} << 40, 1 << 20}, 7);
  expect_round_trips({2, 8, (std::uint64_t{1} << 46) - 1, 1 << 16}, 8);
}

TEST(Command, ASignalIsAPutWithoutBytesWhereverItPoints) {
  const auto codec = command_codec::create({8, 16, 1000, 0});
  ASSERT_TRUE(codec);
  const command c{.src_offset = ~0ULL, .dst_offset = 1ULL << 60, .peer = 7, .signal = 15};
  const command back = codec->decode(codec->encode(c));
  EXPECT_EQ(back.peer, 7U);
  EXPECT_EQ(back.signal, 15U);
  EXPECT_EQ(back.bytes, 0U);
  EXPECT_EQ(back.count, 1U);
}

TEST(Command, WhatDoesNotFitIsRefusedWithItsNumbers) {
  const auto codec = command_codec::create({4096, 100000, std::uint64_t{1} << 48, 0});
  ASSERT_FALSE(codec);
  EXPECT_EQ(codec.error().code, errc::unsupported);
  const std::string text = codec.error().message();
  for (const char* part : {"126 bits", "12 for 4096 ranks", "17 for 100000 signals"}) {
    EXPECT_NE(text.find(part), std::string::npos) << text;
  }
}

TEST(Immediate, RoundTripsAndCountsUpToItsLimit) {
  for (const std::uint64_t ranks : {1ULL, 2ULL, 16ULL, 4096ULL}) {
    for (const std::uint64_t signals : {0ULL, 1ULL, 512ULL, 100000ULL}) {
      const auto codec = immediate_codec::create(ranks, signals, 32);
      ASSERT_TRUE(codec) << codec.error().message();
      for (const std::uint64_t signal : {std::uint64_t{0}, signals / 2, signals, signals + 1}) {
        for (const std::uint32_t count : {1U, codec->max_count() / 2 + 1, codec->max_count()}) {
          const auto source = static_cast<std::uint32_t>(ranks - 1);
          const auto f =
              codec->decode(codec->encode(source, static_cast<std::uint32_t>(signal), count));
          EXPECT_EQ(f.source, source);
          EXPECT_EQ(f.signal, signal);
          EXPECT_EQ(f.count, count);
        }
      }
    }
  }
}

TEST(Immediate, WhatDoesNotFitIsRefusedWithItsNumbers) {
  const auto codec = immediate_codec::create(4096, 1 << 20, 32);
  ASSERT_FALSE(codec);
  const std::string text = codec.error().message();
  EXPECT_NE(text.find("has 32 bits"), std::string::npos) << text;
  EXPECT_NE(text.find("needs 34"), std::string::npos) << text;
  EXPECT_FALSE(immediate_codec::create(2, 2, 0));
}

}  // namespace
}  // namespace eptransport::proxy
