// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The cases that users of such libraries have met: odd counts, shapes and schedules.
///
/// tests/README.md lists each case and its test. Part of kernel_tests and of cuda_tests.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "support/run_case.hpp"

namespace eptransport::support {
namespace {

constexpr dispatch_mode both_modes[] = {dispatch_mode::slotted, dispatch_mode::counted};
constexpr output_layout layouts[] = {output_layout::rank_major, output_layout::expert_major,
                                     output_layout::padded, output_layout::in_place};

run_config tiny(int ranks, std::vector<std::int64_t> tokens, dispatch_mode mode) {
  run_config config;
  config.wire = "efa-proxy";
  config.ranks = ranks;
  config.tokens = std::move(tokens);
  config.hidden = 8;
  config.top_k = 2;
  config.experts = 2 * ranks + 1;
  config.mode = mode;
  config.order = delivery::shuffled;
  config.iterations = 2;
  return config;
}

/// Runs it on a wire of each kind.
void expect_verified(run_config config) {
  for (const char* wire : {"nvlink", "efa-proxy"}) {
    config.wire = wire;
    const run_result result = run_case(config);
    EXPECT_TRUE(result.verified) << wire << ", "
                                 << (config.mode == dispatch_mode::counted ? "counted: "
                                                                           : "slotted: ")
                                 << result.why();
  }
}

TEST(Tokens, ARankWithNullPointersServesOthersThatHaveThousands) {
  for (const dispatch_mode mode : both_modes) expect_verified(tiny(4, {0, 4096, 4096, 4096}, mode));
}

TEST(Tokens, OneTokenAmongSixteenRanks) {
  for (const dispatch_mode mode : both_modes) {
    std::vector<std::int64_t> tokens(16, 0);
    tokens[11] = 1;
    expect_verified(tiny(16, tokens, mode));
  }
}

TEST(Tokens, NobodyHasAnyInAnyLayout) {
  for (const dispatch_mode mode : both_modes) {
    for (const output_layout layout : layouts) {
      run_config config = tiny(3, {0}, mode);
      config.layout = layout;
      config.iterations = 25;
      expect_verified(config);
    }
  }
}

TEST(Tokens, ExpertsAndRanksThatGetNothing) {
  for (const dispatch_mode mode : both_modes) {
    for (const output_layout layout : layouts) {
      run_config config = tiny(4, {9}, mode);
      config.routing = "one";  // one expert of rank 0 gets all
      config.layout = layout;
      config.alignment = 4;
      expect_verified(config);
    }
  }
}

TEST(Tokens, CountsThatDifferFromRankToRank) {
  for (const dispatch_mode mode : both_modes) {
    expect_verified(tiny(6, {0, 1, 127, 128, 129, 4096}, mode));
  }
}

TEST(Tokens, CountsThatAreNoMultipleOfAnything) {
  for (const dispatch_mode mode : both_modes) {
    for (const std::int64_t tokens : {1, 7, 672, 4095}) expect_verified(tiny(2, {tokens}, mode));
  }
}

TEST(Tokens, AllOfAllRanksForOneExpertArriveOrAreRefusedByName) {
  for (const output_layout layout : layouts) {
    run_config config = tiny(4, {50}, dispatch_mode::counted);
    config.routing = "one";
    config.layout = layout;
    config.landing = true;
    expect_verified(config);
    config.landing_rows = {199, 200, 200, 200};  // one less than rank 0 needs
    config.wire = "efa-proxy";
    const run_result result = run_case(config);
    EXPECT_TRUE(result.verified) << result.why();
    for (const rank_report& rank : result.ranks) {
      EXPECT_TRUE(rank.overflowed);
      EXPECT_EQ(rank.fault.peer, 0);
      EXPECT_EQ(rank.fault.seen, 200U);
      EXPECT_EQ(rank.fault.expected, 199U);
    }
  }
}

TEST(Tokens, AnOverflowIsTheSameErrorHoweverLateTheCountsOfOthersAre) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    for (const signal_words words : {signal_words::per_source, signal_words::summed}) {
      run_config config = tiny(4, {20}, dispatch_mode::counted);
      config.routing = "one";
      config.landing_rows = {79, 80, 80, 80};
      config.signals = words;
      config.max_delay_ns = 8'000'000;  // longer than a wait looks for a stop
      config.seed = seed;
      expect_verified(config);
    }
  }
}

TEST(Tokens, WhatExceedsTheRoomIsDroppedAndCounted) {
  for (const output_layout layout : layouts) {
    run_config config = tiny(4, {50}, dispatch_mode::counted);
    config.layout = layout;
    config.landing = true;
    config.overflow = overflow_policy::drop;
    config.landing_rows = {1, 60, 200, 30};
    config.return_weights = true;
    expect_verified(config);
  }
}

TEST(Choices, UnusedOnesHaveNaNWeightsThatReachNoSum) {
  for (const dispatch_mode mode : both_modes) {
    for (const output_layout layout : layouts) {
      for (const double unused : {0.5, 1.0}) {  // 1: tokens that go nowhere
        run_config config = tiny(3, {20}, mode);
        config.top_k = 4;
        config.unused = unused;
        config.layout = layout;
        expect_verified(config);
      }
    }
  }
}

TEST(Choices, AnExpertThatIsNamedTwiceCountsAndWeighsTwice) {
  for (const dispatch_mode mode : both_modes) {
    for (const output_layout layout : layouts) {
      run_config config = tiny(3, {20}, mode);
      config.top_k = 6;
      config.experts = 4;
      config.duplicates = true;
      config.layout = layout;
      expect_verified(config);
    }
  }
}

TEST(Choices, TwoExpertsOfOneRankShareOneRowOnTheWire) {
  run_config config = tiny(2, {10}, dispatch_mode::slotted);
  config.message = message_shape::per_row;
  config.top_k = 4;
  config.experts = 4;
  config.placement = {1, 1, 1, 1};
  for (const dispatch_mode mode : both_modes) {
    config.mode = mode;
    const run_result result = run_case(config);
    ASSERT_TRUE(result.verified) << result.why();
    // Per call: the D message, one put per token, and if counted one for what goes with the rows.
    const std::uint64_t each = mode == dispatch_mode::counted ? 12 : 11;
    EXPECT_EQ(result.ranks[0].dispatch.messages, 2 * each);
    EXPECT_EQ(result.ranks[1].dispatch.messages, 2U) << "all of its tokens stay";
  }
}

TEST(Choices, IndicesMayBeNarrowOrWideAndOutOfRange) {
  for (const dispatch_mode mode : both_modes) {
    for (const index_type indices : {index_type::int32, index_type::int64}) {
      run_config config = tiny(3, {30}, mode);
      config.indices = indices;
      config.checks = index_checks::fast;
      config.out_of_range = 0.3;
      expect_verified(config);
    }
  }
}

TEST(Shapes, HiddenSizesOfRealModelsInBf16AndFp8) {
  for (const std::int64_t hidden : {1368, 1536, 2048, 2880, 3072, 4096, 5120, 6144, 7168, 8192}) {
    for (const quantisation how :
         {quantisation::none, quantisation::fp8_fp32, quantisation::fp8_ue8m0}) {
      run_config config = tiny(2, {3}, dispatch_mode::counted);
      config.mixed = true;
      config.hidden = hidden;
      config.quantise = how;
      expect_verified(config);
    }
  }
}

TEST(Shapes, RowsThatTheCallerQuantisedPassThrough) {
  // FP8 per 128; MXFP8: a byte per 32; NVFP4: half a byte per value, a byte per 16.
  for (const row_format row : {row_format{2880, 92}, {2880, 90}, {1440, 180}, {7, 1}}) {
    for (const output_layout layout : layouts) {
      run_config config = tiny(3, {5}, dispatch_mode::counted);
      config.mixed = true;
      config.hidden = 288;
      config.row = row;
      config.layout = layout;
      expect_verified(config);
    }
  }
}

TEST(Shapes, ChoicesFromOneToManyMore) {
  for (const int top_k : {1, 2, 9, 10, 12, 14, 16, 33}) {
    for (const output_layout layout : layouts) {
      run_config config = tiny(3, {7}, dispatch_mode::counted);
      config.mixed = true;
      config.top_k = top_k;
      config.experts = 40;
      config.layout = layout;
      expect_verified(config);
    }
  }
}

TEST(Shapes, ManyExpertsOverFewRanks) {
  for (const int experts : {384, 512, 513, 768, 1024}) {
    run_config config = tiny(3, {16}, dispatch_mode::counted);
    config.mixed = true;
    config.experts = experts;
    config.top_k = 8;
    config.layout = output_layout::expert_major;
    expect_verified(config);
  }
}

TEST(Shapes, ExpertsThatDoNotDivideByTheRanks) {
  struct split {
    int experts, ranks;
  };
  for (const auto [experts, ranks] : {split{256, 3}, split{160, 24}, split{8, 16}, split{1, 5}}) {
    for (const output_layout layout : {output_layout::rank_major, output_layout::padded}) {
      run_config config = tiny(ranks, {4}, dispatch_mode::counted);
      config.mixed = true;
      config.experts = experts;
      config.top_k = std::min(experts, 8);
      config.layout = layout;
      expect_verified(config);
    }
  }
}

TEST(Shapes, ReplicasAndRanksWithoutExperts) {
  run_config config = tiny(5, {12}, dispatch_mode::counted);
  config.mixed = true;
  config.experts = 9;
  config.placement = {4, 4, 0, 2, 4, 2, 0, 0, 4};  // ranks 1 and 3 own none
  for (const output_layout layout : layouts) {
    config.layout = layout;
    expect_verified(config);
  }
}

TEST(Shapes, RankCountsFromOneToFortyEightInCountedCalls) {
  for (const int ranks : {1, 2, 3, 5, 6, 12, 24, 48}) {
    run_config config = tiny(ranks, {3}, dispatch_mode::counted);
    config.mixed = true;
    expect_verified(config);
  }
}

TEST(Shapes, NodesOfAnySize) {
  const std::vector<int> maps[] = {
      {0, 1, 2, 3, 4, 5}, {0, 0, 1, 1, 2, 2}, {0, 0, 0, 0, 1, 1}, {2, 0, 1, 0, 0, 1}};
  for (const std::vector<int>& nodes : maps) {
    run_config config = tiny(6, {9}, dispatch_mode::counted);
    config.mixed = true;
    config.nodes = nodes;
    expect_verified(config);
  }
}

TEST(Counters, WrapInTheMiddleOfHundredsOfReorderedMessages) {
  for (const std::uint64_t start :
       {~std::uint64_t{0} - 40, std::uint64_t{0xFFFF'FFD0}, std::uint64_t{0xFFD0},
        std::uint64_t{1023 - 40}, (std::uint64_t{1} << 63) - 40}) {
    for (const signal_words words : {signal_words::per_source, signal_words::summed}) {
      run_config config = tiny(3, {4}, dispatch_mode::counted);
      config.mixed = true;
      config.message = message_shape::per_row;
      config.signals = words;
      config.counter_start = start;
      config.iterations = 100;
      config.max_delay_ns = 50'000;
      expect_verified(config);
    }
  }
}

TEST(Queues, OfOneEntryAndThousandsOfMessagesLoseNothing) {
  for (const dispatch_mode mode : both_modes) {
    for (const std::uint32_t depth : {1U, 7U}) {
      run_config config = tiny(4, {512}, mode);
      config.message = message_shape::per_row;
      config.top_k = 8;
      config.queue_depth = depth;
      config.iterations = 1;
      expect_verified(config);
    }
  }
}

TEST(Overlap, MixedCallsInRealThreadsSurvivePausesAnywhere) {
  for (const std::uint32_t workers : {1U, 2U}) {
    run_config config = tiny(4, {6}, dispatch_mode::counted);
    config.mixed = true;
    config.vary_tokens = true;
    config.schedule = run_mode::free;
    config.pauses = true;
    config.lanes = 2;
    config.split = true;
    config.workers = workers;
    config.iterations = 50;
    config.timeout_ns = 60'000'000'000;
    expect_verified(config);
  }
}

TEST(Overlap, BatchesOfOneToSixteenMessagesAreCountedExactly) {
  for (std::int64_t messages = 1; messages <= 16; ++messages) {
    run_config config = tiny(2, {messages}, dispatch_mode::slotted);
    config.mixed = true;
    config.message = message_shape::per_row;
    config.max_chunks = 5;
    config.max_delay_ns = 100'000;
    config.iterations = 6;
    expect_verified(config);
  }
}

TEST(Sums, ThatCancelAreRoundedExactlyAsDocumented) {
  // Every eighth token has two large weights of opposite sign.
  for (const element values : {element::bf16, element::fp16, element::fp32}) {
    for (const element returns : {values, element::fp32}) {
      for (const output_layout layout : layouts) {
        run_config config = tiny(4, {40}, dispatch_mode::counted);
        config.top_k = 8;
        config.experts = 16;
        config.duplicates = true;
        config.values = values;
        config.returns = returns;
        config.layout = layout;
        config.bias = true;
        config.iterations = 1;
        expect_verified(config);
      }
    }
  }
}

TEST(Sums, HaveTheSameBitsHoweverTheRowsArrive) {
  run_config config = tiny(5, {30}, dispatch_mode::counted);
  config.top_k = 8;
  config.pauses = true;
  for (const delivery order : {delivery::immediate, delivery::shuffled}) {
    for (const std::uint32_t workers : {1U, 3U}) {
      config.order = order;
      config.workers = workers;
      config.max_delay_ns = workers * 30'000;
      expect_verified(config);  // bit for bit against one and the same expectation
    }
  }
}

TEST(Sums, OfQuantisedRowsAreThoseOfTheirQuantisedValues) {
  for (const quantisation how : {quantisation::fp8_fp32, quantisation::fp8_ue8m0}) {
    for (const output_layout layout : layouts) {
      run_config config = tiny(3, {40}, dispatch_mode::counted);
      config.mixed = true;
      config.hidden = 300;  // blocks of 128, 128 and 44: zero, tiny, huge ones among them
      config.quantise = how;
      config.layout = layout;
      config.scale_columns = 4;
      expect_verified(config);
    }
  }
}

}  // namespace
}  // namespace eptransport::support
