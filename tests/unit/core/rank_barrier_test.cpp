// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Host threads that meet, and those that are named because they do not come.

#include <eptransport/core/rank_barrier.hpp>

#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

namespace eptransport {
namespace {

constexpr std::uint64_t ms = 1'000'000;

TEST(RankBarrier, NobodyPassesBeforeTheLastHasCome) {
  constexpr int ranks = 3;
  rank_barrier barrier(ranks);
  std::atomic<int> arrivals = 0;
  std::vector<std::thread> threads;
  for (int r = 0; r < ranks; ++r) {
    threads.emplace_back([&, r] {
      for (int round = 1; round <= 300; ++round) {
        arrivals.fetch_add(1);
        ASSERT_TRUE(barrier.meet(r, 60'000 * ms, "here"));
        EXPECT_GE(arrivals.load(), round * ranks);
        EXPECT_LT(arrivals.load(), (round + 1) * ranks);
        ASSERT_TRUE(barrier.meet(r, 60'000 * ms, "here"));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(RankBarrier, NamesTheMissingAndNotThoseWhoLeftBefore) {
  rank_barrier barrier(4);
  for (const int early : {2, 0}) {
    const auto alone = barrier.meet(early, 1 * ms, "here");
    ASSERT_FALSE(alone);
    EXPECT_EQ(alone.error().code, errc::timed_out);
    EXPECT_STREQ(alone.error().operation, "here");
    EXPECT_EQ(alone.error().detail,
              early == 2 ? "did not come: rank 0 1 3" : "did not come: rank 1 3");
  }
  std::vector<std::thread> threads;  // who left may come again
  for (int r = 0; r < 4; ++r) {
    threads.emplace_back([&, r] { EXPECT_TRUE(barrier.meet(r, 60'000 * ms, "here")); });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace eptransport
