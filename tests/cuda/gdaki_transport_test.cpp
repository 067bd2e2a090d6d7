// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Dispatch and combine whose kernels post to emulated NICs on the GPU: a CPU thread over
///        pinned memory plays them, or blocks of the GPU over its own memory.

#include <gtest/gtest.h>

#include <cstdint>
#include <string>

#include "support/gdaki_gpu_run.hpp"

namespace eptransport::support {
namespace {

run_config small(const std::string& wire, std::uint64_t seed) {
  run_config config;
  config.wire = wire;
  config.ranks = 4;
  config.tokens = {13};
  config.vary_tokens = true;
  config.hidden = 136;
  config.top_k = 3;
  config.experts = 9;
  config.iterations = 6;
  config.seed = seed;
  return config;
}

void expect_verified(const run_config& config, bool blocks) {
  const run_result result = run_gdaki_on_gpu(config, blocks);
  EXPECT_TRUE(result.verified) << config.wire << (blocks ? ", blocks" : ", thread") << ", seed "
                               << config.seed << ": " << result.why();
}

TEST(GdakiTransportOnGpu, EveryShapeModeAndLayoutEqualsTheOracle) {
  std::uint64_t seed = 1;
  for (const std::string& wire : gdaki_wires()) {
    for (const bool blocks : {false, true}) {
      for (const message_shape shape : {message_shape::per_row, message_shape::per_peer}) {
        for (const dispatch_mode mode : {dispatch_mode::slotted, dispatch_mode::counted}) {
          for (const output_layout layout :
               {output_layout::rank_major, output_layout::expert_major, output_layout::in_place}) {
            run_config config = small(wire, seed++);
            config.message = shape;
            config.mode = mode;
            config.layout = layout;
            config.gdaki.ring_every = 1U << seed % 4;
            config.gdaki.queue_slots = 16;
            config.signals = seed % 3 == 0 ? signal_words::summed : signal_words::per_source;
            expect_verified(config, blocks);
          }
        }
      }
    }
  }
}

TEST(GdakiTransportOnGpu, RecordedRoutingsOnEightRanks) {
  for (const std::string& wire : gdaki_wires()) {
    for (const bool blocks : {false, true}) {
      run_config config = small(wire, 9);
      config.ranks = 8;
      config.tokens = {16};
      config.vary_tokens = false;
      config.hidden = 1024;
      config.top_k = 8;
      config.experts = 256;
      config.routing = "trace:" EPT_SOURCE_DIR "/benchmarks/traces/moe_e256_k8";
      expect_verified(config, blocks);
    }
  }
}

TEST(GdakiTransportOnGpu, TwoLanesAndSplitCallsMeetTheSameNics) {
  for (const std::string& wire : gdaki_wires()) {
    for (const bool blocks : {false, true}) {
      run_config config = small(wire, 5);
      config.lanes = 2;
      config.split = true;
      expect_verified(config, blocks);
    }
  }
}

TEST(GdakiTransportOnGpu, AFailedRequestIsNamed) {
  for (const std::string& wire : gdaki_wires()) {
    run_config config = small(wire, 7);
    config.timeout_ns = 1'000'000'000;
    gdaki_fault fault;
    fault.rank = 1;
    fault.peer = 2;
    fault.request = 20;
    fault.status = 7;
    config.gdaki.faults = {fault};
    const run_result result = run_gdaki_on_gpu(config, false);
    EXPECT_FALSE(result.verified);
    const std::string& text = result.transport_faults.at(1);
    EXPECT_NE(text.find("request 20 to rank "), std::string::npos) << wire << ": " << text;
    EXPECT_NE(text.find("status 7 ("), std::string::npos) << text;
  }
}

// A wrong key is noticed by the blocks that play NICs as well.
TEST(GdakiTransportOnGpu, AWrongKeyIsNamed) {
  for (const std::string& wire : gdaki_wires()) {
    for (const bool blocks : {false, true}) {
      run_config config = small(wire, 8);
      config.timeout_ns = 1'000'000'000;
      gdaki_fault fault;
      fault.what = gdaki_fault::kind::bad_remote_key;
      fault.rank = 3;
      fault.peer = 0;
      config.gdaki.faults = {fault};
      const run_result result = run_gdaki_on_gpu(config, blocks);
      EXPECT_FALSE(result.verified);
      const std::string& text = result.transport_faults.at(3);
      EXPECT_NE(text.find(" to rank 0: completion with an error, status "), std::string::npos)
          << wire << (blocks ? ", blocks: " : ", thread: ") << text;
    }
  }
}

}  // namespace
}  // namespace eptransport::support
