// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Two nodes of four virtual ranks: load and store inside, puts alone between them.
///
/// On one GPU both nodes share it; on two, each node has one. Every run is compared with the
/// oracle, and what the wire between the nodes was given with what follows from the routing.

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <numeric>
#include <string>
#include <vector>

#include "support/random_config.hpp"
#include "support/two_nodes_run.hpp"

namespace eptransport::support {
namespace {

struct trace {
  const char* name;
  int experts;
};
constexpr trace traces[] = {{"moe_e256_k8", 256}, {"moe_e64_k8", 64}};

/// Layer 0, 32 tokens a rank.
run_config traced(const trace& from, dispatch_mode mode, output_layout layout) {
  run_config config;
  config.wire = peer_nodes_wire;
  config.ranks = 8;
  config.nodes = {0, 0, 0, 0, 1, 1, 1, 1};
  config.message = message_shape::per_node;
  config.tokens = {32};
  config.hidden = 1024;
  config.top_k = 8;
  config.experts = from.experts;
  config.routing = std::string("trace:" EPT_SOURCE_DIR "/benchmarks/traces/") + from.name;
  config.mode = mode;
  config.layout = layout;
  config.iterations = 3;
  config.timeout_ns = 4'000'000'000;
  return config;
}

std::string told(const run_config& config) {
  return config.routing.substr(config.routing.rfind('/') + 1) +
         (config.mode == dispatch_mode::counted ? ", counted, layout " : ", slotted, layout ") +
         std::to_string(static_cast<int>(config.layout)) + ", seed " + std::to_string(config.seed) +
         ": ";
}

class TwoNodes : public testing::TestWithParam<int> {
 protected:
  static two_nodes_options how() { return {.gpus = GetParam()}; }

  /// Verified, through relays, and every message between the nodes is one that the routing asks
  /// for.
  static void expect_relayed(const run_config& config) {
    two_nodes_report seen;
    const run_result got = run_on_two_nodes(config, how(), seen);
    ASSERT_TRUE(got.verified) << told(config) << got.why();
    ASSERT_EQ(got.message, message_shape::per_node) << told(config) << got.reason;
    for (std::size_t rank = 0; rank < got.ranks.size(); ++rank) {
      const rank_report& due = got.ranks[rank];
      EXPECT_EQ(seen.messages[rank], due.dispatch.inter_messages + due.combine.inter_messages)
          << told(config) << "rank " << rank;
    }
  }
};

TEST_P(TwoNodes, BothTracesEqualTheOracle) {
  for (const trace& from : traces) {
    for (const dispatch_mode mode : {dispatch_mode::slotted, dispatch_mode::counted}) {
      for (const output_layout layout : {output_layout::rank_major, output_layout::expert_major}) {
        expect_relayed(traced(from, mode, layout));
      }
    }
  }
}

TEST_P(TwoNodes, ASlottedCallSendsOneMessageToTheOtherNodeEachWay) {
  const run_config config = traced(traces[0], dispatch_mode::slotted, output_layout::rank_major);
  two_nodes_report seen;
  const run_result got = run_on_two_nodes(config, how(), seen);
  ASSERT_TRUE(got.verified) << got.why();
  for (std::size_t rank = 0; rank < seen.messages.size(); ++rank) {
    EXPECT_EQ(seen.messages[rank], 2U * static_cast<std::uint64_t>(config.iterations))
        << "rank " << rank;
  }
}

TEST_P(TwoNodes, FormatsLanesHalvesAndUnequalNodesEqualTheOracle) {
  const std::vector<int> nodes[] = {
      {0, 0, 0, 0, 1, 1, 1, 1}, {0, 0, 0, 1, 1, 1, 1, 1}, {0, 1, 1, 1, 1, 1, 1, 1}};
  for (std::uint64_t seed = 1; seed <= 12; ++seed) {
    const dispatch_mode mode = seed % 2 == 0 ? dispatch_mode::counted : dispatch_mode::slotted;
    const output_layout layouts[] = {output_layout::rank_major, output_layout::expert_major,
                                     output_layout::padded, output_layout::in_place};
    run_config config = traced(traces[seed % 2], mode, layouts[seed / 2 % 4]);
    config.seed = seed;
    config.nodes = nodes[seed % 3];
    config.routing = "uniform";
    config.experts = 21;
    config.top_k = 5;
    config.tokens = {19};
    config.vary_tokens = true;
    config.unused = 0.1;
    config.duplicates = true;
    config.hidden = 392;
    config.lanes = 1 + static_cast<int>(seed % 4 == 3);
    config.split = seed % 5 == 1;
    config.cached = seed % 5 == 2;
    config.combines = 1 + static_cast<int>(seed % 5 == 3);
    config.bias = seed % 3 == 0;
    if (seed % 4 == 1) {
      config.quantise = quantisation::fp8_fp32;
      config.row = fp8_rows(config.hidden);
    }
    expect_relayed(config);
    if (HasFatalFailure()) return;
  }
}

TEST_P(TwoNodes, AMessageForEveryRankEqualsTheOracle) {
  for (const dispatch_mode mode : {dispatch_mode::slotted, dispatch_mode::counted}) {
    run_config config = traced(traces[1], mode, output_layout::rank_major);
    config.message = message_shape::per_peer;
    two_nodes_report seen;
    const run_result got = run_on_two_nodes(config, how(), seen);
    ASSERT_TRUE(got.verified) << told(config) << got.why();
    for (std::size_t rank = 0; rank < seen.messages.size(); ++rank) {
      EXPECT_GE(seen.messages[rank], 4U * static_cast<std::uint64_t>(config.iterations))
          << told(config) << "rank " << rank << ": a D message for each rank of the other node";
    }
  }
}

// The negative controls: a lost message and a changed value are noticed.

TEST_P(TwoNodes, AMessageLostBetweenTheNodesEndsTheRunByName) {
  run_config config = traced(traces[0], dispatch_mode::slotted, output_layout::rank_major);
  config.timeout_ns = 500'000'000;
  two_nodes_options losing = how();
  losing.losing_rank = 2;
  losing.lost = 3;  // the second dispatch's: each call before it sent one
  two_nodes_report seen;
  const run_result got = run_on_two_nodes(config, losing, seen);
  EXPECT_FALSE(got.verified);
  ASSERT_EQ(got.ranks.size(), 8U);
  EXPECT_NE(got.ranks[6].fault.kind, fault_kind::none) << "the relay of rank 2: " << got.why();
  bool named = false;
  for (const rank_report& rank : got.ranks) {
    named =
        named || rank.fault.peer == losing.losing_rank || rank.fault.culprit == losing.losing_rank;
  }
  EXPECT_TRUE(named) << got.why();
}

TEST_P(TwoNodes, AChangedValueIsNoticed) {
  run_config config = traced(traces[1], dispatch_mode::counted, output_layout::rank_major);
  config.tamper = [](const tamper_point& at) {
    if (at.rank == 5 && at.iteration == 1 && !at.out.empty()) at.out[0] ^= 0x40;
  };
  two_nodes_report seen;
  const run_result got = run_on_two_nodes(config, how(), seen);
  EXPECT_FALSE(got.verified);
  EXPECT_NE(got.difference.find("rank 5"), std::string::npos) << got.why();
}

/// Means in us, without the first call, which finds cold caches.
struct mean_us {
  double dispatch = 0;
  double combine = 0;
};

mean_us mean_of(const gpu_times& times) {
  const auto mean = [](const std::vector<double>& all) {
    if (all.size() < 2) return 0.0;
    return std::accumulate(all.begin() + 1, all.end(), 0.0) / static_cast<double>(all.size() - 1) /
           1000;
  };
  return {mean(times.dispatch_ns), mean(times.combine_ns)};
}

/// Times of the first GPU's grids, relayed and direct, in one run: of interest, not of judgement.
TEST_P(TwoNodes, TimesBesideTheDirectPath) {
  struct path {
    const char* name;
    message_shape shape;
    bool stores;
  };
  constexpr path paths[] = {{"relays, a put per node", message_shape::per_node, false},
                            {"a put per rank", message_shape::per_peer, false},
                            {"stores, no put", message_shape::direct, true}};
  std::printf("GPUs %d, 2 nodes of 4 ranks, 32 tokens, bf16 rows of 7168\n", GetParam());
  for (const trace& from : traces) {
    for (const dispatch_mode mode : {dispatch_mode::slotted, dispatch_mode::counted}) {
      for (const path& way : paths) {
        run_config config = traced(from, mode, output_layout::rank_major);
        config.message = way.shape;
        config.hidden = 7168;
        config.iterations = 21;
        config.align_clocks = true;
        two_nodes_options timed = how();
        timed.timed = true;
        timed.stores = way.stores;
        two_nodes_report seen;
        const run_result got = run_on_two_nodes(config, timed, seen);
        ASSERT_TRUE(got.verified) << told(config) << way.name << ": " << got.why();
        const mean_us us = mean_of(seen.times);
        EXPECT_GT(us.dispatch, 0) << way.name;
        std::printf("%-12s %-8s %-24s dispatch %7.1f us, combine %7.1f us, messages %4.1f\n",
                    from.name, mode == dispatch_mode::counted ? "counted" : "slotted", way.name,
                    us.dispatch, us.combine,
                    static_cast<double>(seen.messages[0]) / config.iterations);
      }
    }
  }
}

std::string gpus_name(const testing::TestParamInfo<int>& info) {
  return info.param == 1 ? "one_gpu" : "a_gpu_per_node";
}
INSTANTIATE_TEST_SUITE_P(OneGpu, TwoNodes, testing::Values(1), gpus_name);
INSTANTIATE_TEST_SUITE_P(TwoGpus, TwoNodes, testing::Values(2), gpus_name);

}  // namespace
}  // namespace eptransport::support
