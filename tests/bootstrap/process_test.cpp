// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Ranks as processes: killed, stopped, and resumed.
#include <eptransport/proxy/bootstrap/bootstrap.hpp>

#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "bootstrap/rig.hpp"

namespace eptransport {
namespace {

using support::child;
using support::joined;
using support::meeting;
using support::ms;
using support::patience;
using support::shared_count;

using clock = std::chrono::steady_clock;

std::int64_t now_ms() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(clock::now().time_since_epoch())
      .count();
}

/// Waits until the bootstrap is no longer healthy; false: it still is.
bool turns_bad(const bootstrap& b, std::uint64_t within_ms) {
  const auto end = now_ms() + static_cast<std::int64_t>(within_ms);
  while (b.healthy() && now_ms() < end) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  return !b.healthy();
}

std::string list(const std::vector<std::int32_t>& ranks) {
  std::string text;
  for (const std::int32_t r : ranks) text += std::to_string(r) + " ";
  return text;
}

class BootstrapProcesses : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, BootstrapProcesses, testing::Values(2, 3, 5, 8));

TEST_P(BootstrapProcesses, MeetAndExchange) {
  const std::int32_t ranks = GetParam();
  meeting at(ranks);
  std::vector<child> all;
  for (std::int32_t rank = 0; rank < ranks; ++rank) {
    all.emplace_back([&, rank]() -> std::string {
      const auto options = at.options(rank);
      at.close();
      const joined self = support::join(options);
      if (!self) return self.error().message();
      for (int round = 0; round < 10; ++round) {
        const auto same = (*self)->agree("round", std::to_string(round), patience);
        if (!same) return same.error().message();
      }
      return "met " + list((*self)->nodes());
    });
  }
  at.close();
  std::string nodes;
  for (std::int32_t r = 0; r < ranks; ++r) nodes += "0 ";
  for (child& rank : all) EXPECT_EQ(rank.wait(), "met " + nodes);
}

/// What a rank does once all have joined; its text goes back.
std::string watch(meeting& at, std::int32_t rank, shared_count& here, std::uint64_t within_ms) {
  auto options = at.options(rank);
  at.close();
  const joined self = support::join(options);
  if (!self) return self.error().message();
  if (const auto met = (*self)->barrier(patience); !met) return met.error().message();
  here.add();
  if (!turns_bad(**self, within_ms)) return "healthy " + list((*self)->lost());
  const auto found = now_ms();
  const auto refused = (*self)->barrier(patience);  // at once
  if (refused || now_ms() - found > 1000) return "a call after it waited or went through";
  return std::to_string(found) + " lost " + list((*self)->lost()) +
         (*self)->status().error().detail;
}

/// Splits "found-at text".
std::int64_t found_at(const std::string& said) {
  return std::strtoll(said.c_str(), nullptr, 10);
}

TEST(BootstrapDeath, AKilledRankIsKnownToAllAtOnce) {
  for (const std::int32_t victim : {0, 2}) {
    meeting at(4);
    shared_count here;
    std::vector<child> all;
    for (std::int32_t rank = 0; rank < 4; ++rank) {
      all.emplace_back([&, rank] { return watch(at, rank, here, 30'000); });
    }
    at.close();
    ASSERT_TRUE(here.reaches(4));
    const std::int64_t killed = now_ms();
    ASSERT_EQ(::kill(all[static_cast<std::size_t>(victim)].pid(), SIGKILL), 0);
    const std::string number = std::to_string(victim);
    for (std::int32_t rank = 0; rank < 4; ++rank) {
      const std::string said = all[static_cast<std::size_t>(rank)].wait();
      if (rank == victim) {
        EXPECT_EQ(said, "signal 9");
        continue;
      }
      EXPECT_NE(said.find(" lost " + number + " rank " + number + " is lost"), std::string::npos)
          << said;
      // Its connection broke; silence would be noticed after five seconds.
      EXPECT_LT(found_at(said) - killed, 3000) << said;
    }
  }
}

/// Stops one of three ranks for a while.
std::vector<std::string> stop_one(std::int32_t victim, std::uint64_t silence_ms,
                                  std::uint64_t stop_ms, std::uint64_t watch_ms) {
  meeting at(3);
  at.common.beat_ns = silence_ms * ms / 10;
  at.common.silence_ns = silence_ms * ms;
  shared_count here;
  std::vector<child> all;
  for (std::int32_t rank = 0; rank < 3; ++rank) {
    all.emplace_back([&, rank] { return watch(at, rank, here, watch_ms); });
  }
  at.close();
  EXPECT_TRUE(here.reaches(3));
  const pid_t pid = all[static_cast<std::size_t>(victim)].pid();
  EXPECT_EQ(::kill(pid, SIGSTOP), 0);
  const std::int64_t stopped = now_ms();
  std::this_thread::sleep_for(std::chrono::milliseconds(stop_ms));
  EXPECT_EQ(::kill(pid, SIGCONT), 0);
  std::vector<std::string> said;
  for (child& rank : all) said.push_back(rank.wait());
  for (std::int32_t rank = 0; rank < 3; ++rank) {
    std::string& text = said[static_cast<std::size_t>(rank)];
    if (rank != victim && found_at(text) > 0) {  // silence, and the beat that notices it
      EXPECT_LT(found_at(text) - stopped, static_cast<std::int64_t>(silence_ms * 11 / 10 + 1500))
          << text;
    }
    text.erase(0, text.find_first_not_of("0123456789"));
  }
  return said;
}

TEST(BootstrapDeath, ARankThatStandsStillForTooLongIsGivenUpAndLearnsIt) {
  const std::vector<std::string> said = stop_one(2, 1000, 1700, 20'000);
  for (std::size_t r : {0U, 1U}) {
    EXPECT_EQ(said[r].find(" lost 2 rank 2 is lost: it has been silent for "), 0U) << said[r];
  }
  EXPECT_EQ(said[2].find(" lost 2 the others gave this rank up: rank 2 is lost"), 0U) << said[2];
}

TEST(BootstrapDeath, RankZeroToo) {
  const std::vector<std::string> said = stop_one(0, 1000, 1700, 20'000);
  for (std::size_t r : {1U, 2U}) {
    EXPECT_EQ(said[r].find(" lost 0 rank 0 is lost: it has been silent for "), 0U) << said[r];
  }
  EXPECT_NE(said[0].find(" gave this rank up: rank 0 is lost"), std::string::npos) << said[0];
}

TEST(BootstrapDeath, AShortStopIsForgiven) {
  for (const std::int32_t victim : {0, 2}) {
    for (const std::string& said : stop_one(victim, 2000, 600, 1000)) EXPECT_EQ(said, "healthy ");
  }
}

}  // namespace
}  // namespace eptransport
