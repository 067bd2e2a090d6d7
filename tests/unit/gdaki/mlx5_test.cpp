// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief mlx5 entries and completions, field by field.
#include <eptransport/gdaki/mlx5_cqe.hpp>
#include <eptransport/gdaki/mlx5_wqe.hpp>

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <set>
#include <string>

namespace eptransport::gdaki {
namespace {

constexpr mlx5::place at{7, 0x1a2b3, mlx5::notify};

std::uint32_t segments_of(const auto& entry) {
  return swap_bytes(entry.part[0].word[1]) & 0x3fU;
}

TEST(GdakiMlx5, TheIndexWrapsAt16BitsInEntriesRecordsAndDoorbells) {
  EXPECT_EQ(mlx5::place_of(0x12345, 1).index, 0x2345U);
  EXPECT_EQ(swap_bytes(mlx5::record(0x12345)), 0x2345U);
  EXPECT_EQ(swap_bytes(mlx5::consumer_record(0x1234567)), 0x234567U);
  const std::uint64_t bell = mlx5::doorbell(0x12345, 0x1a2b3);
  EXPECT_EQ(swap_bytes(low_word(bell)), 0x234500U);
  EXPECT_EQ(swap_bytes(high_word(bell)), 0x1a2b300U);
}

TEST(GdakiMlx5, InlineDataTakesTheSegmentsItNeeds) {
  std::byte data[92] = {};
  for (std::uint32_t n = 0; n <= 28; ++n) {
    EXPECT_EQ(segments_of(mlx5::write_inline(at, {}, data, n)), n == 0 ? 2 : n <= 12 ? 3 : 4) << n;
  }
  EXPECT_EQ(segments_of(mlx5::write_inline<8>(at, {}, data, 92)), 8U);
  EXPECT_EQ(segments_of(mlx5::send_inline(at, data, mlx5::max_inline_send)), 4U);
}

TEST(GdakiMlx5, ARangeOfNoBytesIsLeftOut) {
  EXPECT_EQ(segments_of(mlx5::write(at, {1, 2}, {3, 4, 0})), 2U);
  EXPECT_EQ(mlx5::write(at, {1, 2}, {3, 4, 0}).part[2], segment{});
  EXPECT_EQ(segments_of(mlx5::send(at, {3, 4, 0})), 1U);
  EXPECT_EQ(segments_of(mlx5::send_immediate(at, {3, 4, 0}, 5)), 1U);
  EXPECT_EQ(segments_of(mlx5::read(at, {1, 2}, {3, 4, 5})), 3U);
}

TEST(GdakiMlx5, CompletionsOfEachOpcodeAreDecoded) {
  std::uint32_t word[16] = {};
  word[9] = swap_bytes(0xcafef00dU);
  word[11] = swap_bytes(4096U);
  word[13] = 0x13770000;
  word[14] = swap_bytes(0x0a01a2b3U);
  const auto with = [&](std::uint32_t opcode) {
    word[15] = swap_bytes(0x12340000U | opcode << 4U);
    return mlx5::parse_completion(word);
  };
  EXPECT_EQ(with(0), (completion{completed::request, 0, 0, false, false, 0x1234, 0x1a2b3}));
  EXPECT_EQ(with(13), (completion{completed::request, 0x13, 0x77, false, false, 0x1234, 0x1a2b3}));
  EXPECT_EQ(with(14), (completion{completed::received, 0x13, 0x77, false, false, 0x1234, 0x1a2b3}));
  EXPECT_EQ(with(2),
            (completion{completed::received, 0, 0, false, false, 0x1234, 0x1a2b3, 0, 4096}));
  EXPECT_EQ(with(3), (completion{completed::received, 0, 0, true, false, 0x1234, 0x1a2b3,
                                 0xcafef00d, 4096}));
  EXPECT_EQ(with(1).what, completed::written_with);
  EXPECT_EQ(with(15).what, completed::nothing);
  const std::uint64_t tail = std::uint64_t{word[15]} << 32U | word[14];
  EXPECT_EQ(mlx5::index_of(tail), 0x1234U);
  EXPECT_EQ(mlx5::opcode_of(tail), mlx5::cqe_opcode::invalid);
}

TEST(GdakiMlx5, AnEntryIsNewByOpcodeAndOwner) {
  const auto tail = [](std::uint64_t opcode, std::uint64_t owner) {
    return opcode << 60U | owner << 56U;
  };
  EXPECT_TRUE(mlx5::is_new(tail(0, 0), 3, 4));
  EXPECT_FALSE(mlx5::is_new(tail(0, 0), 4, 4));
  EXPECT_TRUE(mlx5::is_new(tail(13, 1), 4, 4));
  EXPECT_FALSE(mlx5::is_new(tail(15, 1), 4, 4)) << "the ring's first content";
}

TEST(GdakiMlx5, ACollapsedIndexExtendsTo64BitsAtAnyDistance) {
  for (const std::uint64_t known :
       {std::uint64_t{0}, std::uint64_t{0xffff}, std::uint64_t{0x1fff0}, ~std::uint64_t{0} - 3}) {
    for (std::uint32_t slots = 1; slots <= 32768; slots *= 2) {
      for (const std::uint64_t ahead :
           {std::uint64_t{1}, std::uint64_t{slots} / 2 + 1, std::uint64_t{slots}}) {
        if (ahead > slots) continue;
        const auto index = static_cast<std::uint16_t>(known + ahead - 1);
        EXPECT_EQ(mlx5::extend(known, index, slots), known + ahead);
      }
      EXPECT_EQ(mlx5::extend(known, static_cast<std::uint16_t>(known - 1), slots), known);
    }
  }
}

TEST(GdakiMlx5, EverySyndromeHasAName) {
  std::set<std::string> names;
  for (const int s : {0, 1, 2, 4, 5, 6, 0x10, 0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x22}) {
    names.insert(to_string(static_cast<mlx5::status>(s)));
  }
  EXPECT_EQ(names.size(), 14U);
  EXPECT_EQ(to_string(static_cast<mlx5::status>(0x99)), std::string("unknown syndrome"));
}

}  // namespace
}  // namespace eptransport::gdaki
