// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Many calls, many schedules, ragged shapes: always equal to the oracle.

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <random>
#include <string>
#include <thread>

#include "support/runner.hpp"

namespace eptransport::support {
namespace {

/// Small calls of four ranks in real threads, with random pauses before half of the calls.
run_config restless(int iterations) {
  run_config config;
  config.wire = "efa-gpu";
  config.ranks = 4;
  config.tokens = {6};
  config.vary_tokens = true;
  config.hidden = 24;
  config.top_k = 3;
  config.experts = 9;
  config.unused = 0.1;
  config.iterations = iterations;
  config.schedule = run_mode::free;
  config.order = delivery::shuffled;
  config.pauses = true;
  return config;
}

/// Adds `count` long pauses at random ranks, iterations and calls.
std::atomic<int>& long_pauses(run_config& config, int count) {
  static std::atomic<int> taken;
  taken = 0;
  const double chance = static_cast<double>(count) / (2.0 * config.ranks * config.iterations);
  config.tamper = [chance, count](const tamper_point& at) {
    std::mt19937_64 random(static_cast<std::uint64_t>(at.iteration) * 1000 +
                           static_cast<std::uint64_t>(at.rank) * 10 +
                           static_cast<std::uint64_t>(at.call[0] == 'd'));
    if (std::uniform_real_distribution<>()(random) > chance * 1.5 || taken >= count) return;
    ++taken;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  };
  return taken;
}

TEST(LongStress, TenThousandPairsWithoutABarrierSurviveAnyDelay) {
  for (const message_shape message : {message_shape::per_row, message_shape::per_peer}) {
    run_config config = restless(10'000);
    config.message = message;
    config.seed = 4711;
    const std::atomic<int>& taken = long_pauses(config, 20);
    const run_result got = run(config);
    EXPECT_TRUE(got.verified) << got.why();
    EXPECT_GE(taken, 15) << "long pauses";
    for (const rank_report& rank : got.ranks) EXPECT_EQ(rank.iterations, 10'000);
  }
}

TEST(Stress, PairsWithoutABarrierSurviveAnyDelay) {
  for (const char* wire : {"nvlink", "efa-gpu", "efa-proxy"}) {
    for (const std::uint32_t workers : {1U, 2U}) {
      run_config config = restless(200);
      config.wire = wire;
      config.workers = workers;
      config.seed = 11 + workers;
      (void)long_pauses(config, 3);
      const run_result got = run(config);
      EXPECT_TRUE(got.verified) << wire << ", " << workers << " workers: " << got.why();
    }
  }
}

TEST(Stress, AHundredSchedulesOfEveryWireReplayExactly) {
  for (const std::string& wire : wires()) {
    for (std::uint64_t seed = 1; seed <= 100; ++seed) {
      run_config config = restless(3);
      config.wire = wire;
      config.schedule = run_mode::baton;
      config.lanes = seed % 3 == 0 ? 2 : 1;
      config.split = seed % 2 == 0;
      config.layout = static_cast<output_layout>(seed % 4);
      config.seed = seed;
      const run_result once = run(config);
      ASSERT_TRUE(once.verified) << wire << ": " << once.why();
      if (seed % 10 != 0) continue;
      const run_result twice = run(config);
      EXPECT_EQ(once.trace_hash, twice.trace_hash) << wire << ", seed " << seed;
      EXPECT_EQ(once.dispatch.mean_ns, twice.dispatch.mean_ns);
      EXPECT_EQ(once.combine.max_rank_ns, twice.combine.max_rank_ns);
    }
  }
}

TEST(Stress, RaggedTokensOddHiddenManyChoicesAndUnevenExperts) {
  for (const char* wire : {"nvlink", "efa-proxy"}) {
    for (const message_shape message :
         {message_shape::direct, message_shape::per_row, message_shape::per_peer}) {
      const bool direct = message == message_shape::direct;
      if (direct != (std::string(wire) == "nvlink")) continue;
      for (int layout = 0; layout < 4; ++layout) {
        run_config config;
        config.wire = wire;
        config.ranks = 7;
        config.tokens = {0, 1, 127, 128, 129, 64, 3};
        config.hidden = 2880;
        config.top_k = 12;
        config.experts = 513;
        config.message = message;
        config.layout = static_cast<output_layout>(layout);
        config.iterations = 1;
        config.seed = 77;
        const run_result got = run(config);
        EXPECT_TRUE(got.verified) << wire << ", layout " << layout << ": " << got.why();
      }
    }
  }
}

TEST(Stress, RankCountsFromOneToFortyEight) {
  for (const int ranks : {1, 2, 3, 5, 6, 12, 24, 48}) {
    run_config config = restless(2);
    config.schedule = run_mode::baton;
    config.ranks = ranks;
    config.experts = ranks * 2 + 1;
    config.tokens = {3};
    config.seed = static_cast<std::uint64_t>(ranks);
    const run_result got = run(config);
    EXPECT_TRUE(got.verified) << ranks << " ranks: " << got.why();
  }
}

TEST(Stress, MoreRanksThanTheSignalBudgetAllowsPerSource) {
  run_config config = restless(2);
  config.schedule = run_mode::baton;
  config.ranks = 64;
  config.lanes = 2;  // 1 + 2 x 6 x 64 words per source, the wire has 512
  config.experts = 64;
  config.tokens = {2};
  config.seed = 5;
  const run_result got = run(config);
  EXPECT_TRUE(got.verified) << got.why();
}

}  // namespace
}  // namespace eptransport::support
