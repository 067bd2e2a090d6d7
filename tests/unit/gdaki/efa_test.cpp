// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief EFA entries and completions, field by field.
#include <eptransport/gdaki/efa_cqe.hpp>
#include <eptransport/gdaki/efa_wqe.hpp>

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <set>
#include <string>

namespace eptransport::gdaki {
namespace {

constexpr efa::address peer{0xa5, 0x4321, 0x99aabbcc};

TEST(GdakiEfa, ThePhaseFlipsWithEachLapAndTheIdWrapsAt16Bits) {
  for (const std::uint32_t slots : {1U, 2U, 64U, 32768U}) {
    for (std::uint64_t lap = 0; lap < 5; ++lap) {
      const std::uint64_t last = lap * slots + slots - 1;
      EXPECT_EQ(efa::place_of(lap * slots, slots).phase, lap % 2 == 1);
      EXPECT_EQ(efa::place_of(last, slots).phase, lap % 2 == 1);
      EXPECT_EQ(efa::place_of(last, slots).request_id, static_cast<std::uint16_t>(last));
    }
  }
  EXPECT_EQ(efa::doorbell(0x12345), 0x2345U);
}

TEST(GdakiEfa, InlineBytesFillTheEntryAndNothingElse) {
  std::byte data[80];
  std::memset(data, 0xee, sizeof(data));
  for (std::uint16_t bytes = 0; bytes <= 32; ++bytes) {
    const efa::entry<64> e = efa::send_inline({}, peer, data, bytes);
    const auto* raw = reinterpret_cast<const std::byte*>(&e);
    for (std::uint32_t i = 32; i < 64; ++i) {
      EXPECT_EQ(raw[i], i < 32U + bytes ? std::byte{0xee} : std::byte{0}) << bytes << " " << i;
    }
  }
  const efa::entry<128> e = efa::write_inline({}, peer, {}, {data, 80});
  EXPECT_EQ(reinterpret_cast<const std::byte*>(&e)[127], std::byte{0xee});
  EXPECT_EQ(efa::max_inline_send(64), 32U);
  EXPECT_EQ(efa::max_inline_send(128), 80U);
}

TEST(GdakiEfa, KeysAreCutTo24BitsAndReceiveLengthsTo16) {
  EXPECT_EQ(efa::write({}, peer, {}, {0, 0xff123456, 1}).part[3].word[1], 0x123456U);
  EXPECT_EQ(efa::receive(1, {0, 0xff123456, 70'000}).word[2], 0xffff0001U);
  EXPECT_EQ(efa::receive(1, {0, 0xff123456, 70'000}).word[3], 0xc0123456U);
}

TEST(GdakiEfa, AWideEntryHoldsLongInlineBytesAndLongLengths) {
  const std::uint32_t narrow[4] = {0x25000000, 0xffff0003, 0xffffffff, 0};
  const std::uint32_t wide[8] = {0x25000000, 0xffff0003, 0xffffffff, 0, 2, 0, 0, 0};
  EXPECT_EQ(efa::parse_completion(narrow, 16).bytes, 0xffffU);
  EXPECT_EQ(efa::parse_completion(wide, 32).bytes, 0x2ffffU);
  EXPECT_EQ(efa::parse_completion(wide, 32).source_handle, 0xffffU);
  const std::uint32_t neither[4] = {0x01000000, 0, 0, 0};
  EXPECT_EQ(efa::parse_completion(neither, 16).what, completed::nothing);
}

TEST(GdakiEfa, AnEntryIsNewOnlyOnItsLap) {
  EXPECT_TRUE(efa::is_new(1U << 24U, 0, 4));
  EXPECT_FALSE(efa::is_new(0, 3, 4));
  EXPECT_TRUE(efa::is_new(0, 4, 4));
  EXPECT_FALSE(efa::is_new(1U << 24U, 7, 4));
  EXPECT_TRUE(efa::is_new(1U << 24U, 8, 4));
}

TEST(GdakiEfa, EveryStatusHasAName) {
  std::set<std::string> names;
  for (int s = 0; s < 16; ++s) names.insert(to_string(static_cast<efa::status>(s)));
  names.insert(to_string(efa::status::feature_mismatch));
  EXPECT_EQ(names.size(), 17U);
  EXPECT_EQ(to_string(static_cast<efa::status>(99)), std::string("unknown status"));
}

}  // namespace
}  // namespace eptransport::gdaki
