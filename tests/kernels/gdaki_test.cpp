// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Dispatch and combine over queues that the ranks post to themselves: EFA, whose emulated
///        NIC delivers out of order, and mlx5. The kernels are those of every other wire.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "support/runner.hpp"

namespace eptransport::support {
namespace {

run_config small(const std::string& wire, std::uint64_t seed) {
  run_config config;
  config.wire = wire;
  config.ranks = 4;
  config.tokens = {5, 0, 9, 3};
  config.hidden = 24;
  config.top_k = 3;
  config.experts = 9;
  config.iterations = 3;
  config.seed = seed;
  config.gdaki.queue_slots = 16;
  config.gdaki.first_index = seed * 0x3fffffffffffffd1U;
  return config;
}

void expect_verified(const run_config& config) {
  const run_result result = run(config);
  EXPECT_TRUE(result.verified) << config.wire << ", seed " << config.seed << ": " << result.why();
}

constexpr output_layout layouts[] = {output_layout::rank_major, output_layout::expert_major,
                                     output_layout::padded, output_layout::in_place};

TEST(GdakiKernels, EveryShapeModeAndLayoutEqualsTheOracle) {
  std::uint64_t seed = 1;
  for (const std::string& wire : gdaki_wires()) {
    for (const message_shape shape : {message_shape::per_row, message_shape::per_peer}) {
      for (const dispatch_mode mode : {dispatch_mode::slotted, dispatch_mode::counted}) {
        for (const output_layout layout : layouts) {
          run_config config = small(wire, seed++);
          config.message = shape;
          config.mode = mode;
          config.layout = layout;
          config.lanes = 1 + static_cast<int>(seed % 2);
          config.signals = seed % 3 == 0 ? signal_words::summed : signal_words::per_source;
          config.workers = 1 + static_cast<std::uint32_t>(seed % 4 == 0);
          config.gdaki.ring_every = 1U << seed % 4;
          expect_verified(config);
        }
      }
    }
  }
}

TEST(GdakiKernels, RecordedRoutingsOnEightRanks) {
  for (const std::string& wire : gdaki_wires()) {
    run_config config = small(wire, 7);
    config.ranks = 8;
    config.tokens = {16};
    config.top_k = 8;
    config.experts = 256;
    config.hidden = 64;
    config.routing = "trace:" EPT_SOURCE_DIR "/benchmarks/traces/moe_e256_k8";
    expect_verified(config);
    config.mode = dispatch_mode::counted;
    config.split = true;
    expect_verified(config);
  }
}

TEST(GdakiKernels, RealThreadsAndAThreadThatDrivesTheNics) {
  for (const std::string& wire : gdaki_wires()) {
    run_config config = small(wire, 3);
    config.schedule = run_mode::free;
    config.workers = 2;
    config.iterations = 20;
    config.vary_tokens = true;
    expect_verified(config);
  }
}

TEST(GdakiKernels, QueuesOfOneAndTwoEntriesOnlySlowThemDown) {
  for (const std::string& wire : gdaki_wires()) {
    for (const std::uint32_t slots : {1U, 2U}) {
      run_config config = small(wire, 11);
      config.gdaki.queue_slots = slots;
      expect_verified(config);
    }
  }
}

TEST(GdakiKernels, TheSameSeedMakesTheSameDecisions) {
  for (const std::string& wire : gdaki_wires()) {
    const run_config config = small(wire, 21);
    const run_result one = run(config);
    EXPECT_TRUE(one.verified) << one.why();
    EXPECT_EQ(one.trace_hash, run(config).trace_hash);
    run_config other = config;
    other.seed = 22;
    EXPECT_NE(one.trace_hash, run(other).trace_hash);
  }
}

TEST(GdakiKernels, ADamagedRowIsFound) {
  for (const std::string& wire : gdaki_wires()) {
    run_config config = small(wire, 5);
    config.tamper = [](const tamper_point& at) {
      if (at.rank == 2 && !at.out.empty()) at.out.front() ^= 1U;
    };
    EXPECT_FALSE(run(config).verified) << wire;
  }
}

}  // namespace
}  // namespace eptransport::support
