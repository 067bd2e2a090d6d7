// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Shares of rows that are cut within rows.

#include <eptransport/kernels/pieces.hpp>

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace eptransport::detail {
namespace {

/// One of several workers, as far as `share_of` asks.
struct numbered {
  std::uint32_t index;
  std::uint32_t count;
  [[nodiscard]] std::uint32_t worker() const { return index; }
  [[nodiscard]] std::uint32_t workers() const { return count; }
};

TEST(Pieces, EveryUnitIsOneWorkersAndSharesDifferByAtMostOneChunk) {
  for (const std::int64_t rows : {0, 1, 3, 8, 129}) {
    for (const std::int64_t units : {1, 2, 28}) {
      for (const std::uint32_t workers : {1u, 2u, 7u, 512u}) {
        std::vector<int> seen(static_cast<std::size_t>(rows * units), 0);
        std::vector<int> begun(static_cast<std::size_t>(rows), 0);
        for (std::uint32_t w = 0; w < workers; ++w) {
          std::int64_t mine = 0;
          for_pieces(numbered{w, workers}, rows, units, [&](const piece& part) {
            ASSERT_LT(part.begin, part.end);
            ASSERT_LE(part.end, units);
            for (std::int64_t u = part.begin; u < part.end; ++u) {
              ++seen[static_cast<std::size_t>(part.row * units + u)];
            }
            if (part.begins()) ++begun[static_cast<std::size_t>(part.row)];
            mine += part.end - part.begin;
          });
          EXPECT_LE(mine, (rows * units + workers - 1) / workers);
        }
        for (const int times : seen) ASSERT_EQ(times, 1) << rows << ' ' << units << ' ' << workers;
        for (const int times : begun) ASSERT_EQ(times, 1) << rows << ' ' << units << ' ' << workers;
      }
    }
  }
}

TEST(Pieces, TheLastUnitOfARowIsAsLongAsTheRow) {
  EXPECT_EQ(units_of(0, 512), 1);
  EXPECT_EQ(units_of(512, 512), 1);
  EXPECT_EQ(units_of(513, 512), 2);
  const extent last = covered({0, 1, 2}, 512, 600);
  EXPECT_EQ(last.begin, 512);
  EXPECT_EQ(last.end, 600);
}

}  // namespace
}  // namespace eptransport::detail
