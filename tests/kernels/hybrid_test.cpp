// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Dispatch and combine through relays: nvlink inside nodes, another wire between them.
///
/// Every run is compared with the oracle, and what each rank sent to other nodes with what follows
/// from the routing: a row per (token, node), a message per node unless it exceeds the largest.

#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "support/random_config.hpp"
#include "support/runner.hpp"

namespace eptransport::support {
namespace {

/// Nodes of these sizes, ranks in order.
std::vector<int> nodes_of(const std::vector<int>& sizes) {
  std::vector<int> nodes;
  for (std::size_t n = 0; n < sizes.size(); ++n) {
    nodes.insert(nodes.end(), static_cast<std::size_t>(sizes[n]), static_cast<int>(n));
  }
  return nodes;
}

run_config relayed(const std::vector<int>& nodes) {
  run_config config;
  config.wire = "hybrid:nvlink+efa-proxy";
  config.message = message_shape::per_node;
  config.nodes = nodes;
  config.ranks = static_cast<int>(nodes.size());
  config.tokens = {5};
  config.vary_tokens = true;
  config.hidden = 20;
  config.top_k = 4;
  config.experts = 2 * config.ranks + 1;
  config.unused = 0.1;
  config.duplicates = true;
  config.iterations = 4;
  config.order = delivery::shuffled;
  config.timeout_ns = 1'000'000'000;
  return config;
}

/// All that a seed decides, in worlds of one and two workers.
run_config by_seed(const std::vector<int>& nodes, std::uint64_t seed) {
  run_config config = relayed(nodes);
  config.seed = seed;
  config.workers = 1 + static_cast<std::uint32_t>(seed % 2);
  config.max_delay_ns = seed % 3 * 4000;
  config.mixed = true;
  config.lanes = 1 + static_cast<int>(seed % 4 == 3);
  config.split = seed % 5 == 1;
  config.cached = seed % 5 == 2;
  config.combines = 1 + static_cast<int>(seed % 5 == 3);
  config.signals = seed % 6 == 4 ? signal_words::summed : signal_words::automatic;
  const output_layout layouts[] = {output_layout::rank_major, output_layout::expert_major,
                                   output_layout::in_place, output_layout::padded};
  config.layout = layouts[seed % 4];
  return config;
}

// Under the thread sanitizer one thread at a time has little to show: fewer seeds there.
#if defined(__SANITIZE_THREAD__)
constexpr std::uint64_t seeds = 3;
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
constexpr std::uint64_t seeds = 3;
#else
constexpr std::uint64_t seeds = 20;
#endif
#else
constexpr std::uint64_t seeds = 20;
#endif

void run_seeds(const std::vector<int>& nodes) {
  for (std::uint64_t seed = 1; seed <= seeds; ++seed) {
    const run_result got = run(by_seed(nodes, seed));
    ASSERT_TRUE(got.verified) << "seed " << seed << ": " << got.why();
    ASSERT_EQ(got.message, message_shape::per_node);
  }
}

TEST(Hybrid, TwoNodesOfEight) {
  run_seeds(nodes_of({8, 8}));
}
TEST(Hybrid, ThreeNodesOfFive) {
  run_seeds(nodes_of({5, 5, 5}));
}
TEST(Hybrid, EightNodesOfTwo) {
  run_seeds(nodes_of({2, 2, 2, 2, 2, 2, 2, 2}));
}
TEST(Hybrid, OneNodeOfEight) {
  run_seeds(nodes_of({8}));
}
TEST(Hybrid, EightNodesOfOne) {
  run_seeds(nodes_of({1, 1, 1, 1, 1, 1, 1, 1}));
}
TEST(Hybrid, UnequalNodesOfThreeFiveAndEight) {
  run_seeds(nodes_of({3, 5, 8}));
}
TEST(Hybrid, NodesWhoseRanksDoNotFollowEachOther) {
  run_seeds({0, 1, 1, 0, 2, 1, 0, 1});
}

/// Random shapes, formats, layouts, modes, limits and faults of callers, with random nodes.
void run_drawn(std::uint64_t first, std::uint64_t count) {
  for (std::uint64_t seed = first; seed < first + count; ++seed) {
    run_config config = draw_config(seed);
    std::mt19937_64 random(seed);
    config.wire = seed % 3 == 0 ? "hybrid:tight" : "hybrid:nvlink+efa-proxy";
    config.message = message_shape::per_node;
    config.transfer = combine_transfer::push;
    config.nodes.clear();
    for (int r = 0; r < config.ranks; ++r) config.nodes.push_back(static_cast<int>(random() % 3));
    run_result got = run(config);
    if (got.code == errc::capacity) {  // a row that exceeds the tight wire's largest message
      config.wire = "hybrid:nvlink+efa-proxy";
      got = run(config);
    }
    ASSERT_TRUE(got.verified) << "seed " << seed << "\n" << describe(config) << "\n" << got.why();
  }
}

TEST(Hybrid, DrawnConfigurationsEqualTheOracle) {
  run_drawn(1, 3 * seeds);
}

TEST(LongHybrid, SixHundredDrawnConfigurationsEqualTheOracle) {
  run_drawn(1001, 600);
}

TEST(Hybrid, EachOtherNodeGetsOneMessageAndEachOfItsTokensOneRow) {
  run_config config = relayed(nodes_of({4, 4, 4}));
  config.vary_tokens = false;
  config.tokens = {9};
  config.top_k = 12;
  config.experts = 12;
  config.unused = 0;
  config.duplicates = false;
  config.hidden = 32;
  const run_result got = run(config);
  ASSERT_TRUE(got.verified) << got.why();
  for (const rank_report& rank : got.ranks) {
    EXPECT_EQ(rank.dispatch.inter_messages, 2U * 4) << "two other nodes, four calls";
    EXPECT_EQ(rank.combine.inter_messages, 2U * 4);
    // Every token goes to every rank: a slot is 64 + 16 + 12 x 8 bytes (row; token and choices,
    // aligned), 12 x 8 more say where it goes; a head is 64 + 4 x 8.
    EXPECT_EQ(rank.dispatch.inter_bytes, 4U * 2 * (96 + 9 * (64 + 112 + 96)));
    EXPECT_EQ(rank.combine.inter_bytes, 4U * 2 * 9 * 64);
  }
}

TEST(Hybrid, WhatExceedsTheLargestMessageTravelsInPieces) {
  run_config config = relayed(nodes_of({2, 3}));
  config.wire = "hybrid:tight";  // messages of 8 KiB
  config.vary_tokens = false;
  config.tokens = {20};
  config.hidden = 500;
  for (const dispatch_mode mode : {dispatch_mode::slotted, dispatch_mode::counted}) {
    config.mode = mode;
    const run_result got = run(config);
    ASSERT_TRUE(got.verified) << got.why();
    EXPECT_GT(got.ranks[0].dispatch.inter_messages, 2U * 4);
    EXPECT_GT(got.ranks[0].combine.inter_messages, 2U * 4);
  }
}

TEST(Hybrid, RelaysShareTheirRankWithRealThreads) {
  for (const std::uint32_t workers : {1U, 2U}) {
    run_config config = relayed(nodes_of({2, 2}));
    config.schedule = run_mode::free;
    config.workers = workers;
    config.mixed = true;
    config.pauses = true;
    config.iterations = 20;
    config.timeout_ns = 60'000'000'000;
    const run_result got = run(config);
    EXPECT_TRUE(got.verified) << workers << " workers: " << got.why();
  }
}

TEST(Hybrid, WithoutAWireInsideTheNodeThereAreNoRelays) {
  run_config config = relayed({0, 0, 1, 1});
  config.wire = "efa-proxy";
  const run_result got = run(config);
  EXPECT_EQ(got.code, errc::unsupported) << got.why();
}

// --- Faults --------------------------------------------------------------------------------------

TEST(Hybrid, ADeadRelayIsNamedAndNobodyWaitsForEver) {
  for (const std::uint64_t after : {4U, 12U, 17U, 25U, 40U}) {
    run_config config = relayed(nodes_of({2, 3}));
    config.faults = {{.kind = loopback_fault_kind::kill, .rank = 1, .after_ops = after}};
    config.iterations = 10;
    const run_result got = run(config);
    EXPECT_FALSE(got.verified);
    bool named = false;
    for (std::size_t r = 0; r < got.ranks.size(); ++r) {
      if (r == 1) continue;
      const rank_report& rank = got.ranks[r];
      EXPECT_FALSE(rank.error.empty()) << "rank " << r << " did not notice, after " << after;
      named = named || rank.fault.peer == 1 || rank.fault.culprit == 1;
    }
    EXPECT_TRUE(named) << "after " << after << ":\n" << got.why();
  }
}

TEST(Hybrid, ALostMessageToARelayEndsAtTheDeadlineAndNamesItsSource) {
  for (const bool summed : {false, true}) {
    run_config config = relayed(nodes_of({2, 2}));
    config.signals = summed ? signal_words::summed : signal_words::per_source;
    config.vary_tokens = false;
    // Rank 0 greets three ranks; its next message is that to the other node.
    config.faults = {{.kind = loopback_fault_kind::lose, .rank = 0, .after_ops = 3}};
    const run_result got = run(config);
    EXPECT_FALSE(got.verified);
    EXPECT_EQ(got.ranks[2].fault.kind, fault_kind::expired) << got.why();
    if (!summed) {
      EXPECT_EQ(got.ranks[2].fault.peer, 0) << got.why();
    }
    EXPECT_FALSE(got.ranks[3].error.empty());
  }
}

TEST(Hybrid, ARankThatCannotGoOnStopsTheOtherNodesByName) {
  run_config config = relayed(nodes_of({3, 2}));
  config.vary_tokens = false;
  config.tokens = {5, 5, 9, 5, 5};
  config.max_tokens = 5;
  const run_result got = run(config);
  EXPECT_FALSE(got.verified);
  EXPECT_EQ(got.ranks[2].fault.kind, fault_kind::too_many_tokens);
  for (const std::size_t r : {0U, 1U, 3U, 4U}) {
    EXPECT_EQ(got.ranks[r].fault.kind, fault_kind::peer_stopped) << "rank " << r << got.why();
    EXPECT_EQ(got.ranks[r].fault.cause, fault_kind::too_many_tokens) << "rank " << r;
  }
}

// --- What it costs -------------------------------------------------------------------------------

run_config priced(const std::string& wire, const std::vector<int>& nodes, std::int64_t tokens) {
  run_config config;
  config.wire = wire;
  config.nodes = nodes;
  config.ranks = static_cast<int>(nodes.size());
  config.tokens = {tokens};
  config.hidden = 2048;
  config.row = fp8_rows(2048);
  config.top_k = 8;
  config.experts = 128;
  config.iterations = 3;
  config.align_clocks = true;
  if (wire.starts_with("hybrid")) config.message = message_shape::per_node;
  return config;
}

double pair_ns(const run_config& config) {
  const run_result got = run(config);
  EXPECT_TRUE(got.verified) << got.why();
  return got.dispatch.max_rank_ns + got.combine.max_rank_ns;
}

TEST(HybridCost, SixteenRanksWithTwoTokensPayAQuarterBehindAProxy) {
  const std::vector<int> nodes = nodes_of({8, 8});
  run_config direct = priced("efa-proxy", nodes, 2);
  direct.message = message_shape::per_peer;
  const double hybrid_ns = pair_ns(priced("hybrid:nvlink+efa-proxy", nodes, 2));
  EXPECT_GT(pair_ns(direct), 4 * hybrid_ns);
}

TEST(HybridCost, ThePlannerTakesRelaysWhereMessagesAreDear) {
  run_config config = priced("hybrid:nvlink+efa-proxy", nodes_of({8, 8}), 2);
  config.message = message_shape::automatic;
  const run_result got = run(config);
  ASSERT_TRUE(got.verified) << got.why();
  EXPECT_EQ(got.message, message_shape::per_node) << got.reason;
}

TEST(HybridCost, OneNodeCostsWhatItsWireCosts) {
  const std::vector<int> nodes = nodes_of({8});
  const double inner = pair_ns(priced("nvlink", nodes, 64));
  EXPECT_NEAR(pair_ns(priced("hybrid:nvlink+efa-proxy", nodes, 64)), inner, 0.05 * inner);
}

TEST(HybridCost, NodesOfOneRankCostWhatTheWireBetweenThemCosts) {
  const std::vector<int> nodes = nodes_of({1, 1, 1, 1, 1, 1, 1, 1});
  run_config direct = priced("efa-proxy", nodes, 64);
  direct.message = message_shape::per_peer;
  const double outer = pair_ns(direct);
  EXPECT_NEAR(pair_ns(priced("hybrid:nvlink+efa-proxy", nodes, 64)), outer, 0.05 * outer);
}

}  // namespace
}  // namespace eptransport::support
