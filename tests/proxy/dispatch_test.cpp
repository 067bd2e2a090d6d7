// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Dispatch and combine through rings and engines equal the oracle, whatever the wire does.
///
/// EPT_SRD_SEED=S runs that seed alone: it replays exactly.

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "support/runner.hpp"

namespace eptransport::testing {
namespace {

using support::run_config;
using support::run_result;

/// A small layer whose shape, wire and faults the seed chooses.
run_config config_of(std::uint64_t seed) {
  run_config c;
  c.wire = seed % 8 == 0 ? "proxy:memory" : "proxy:srd";
  c.seed = seed;
  c.ranks = 2 + static_cast<int>(seed % 3);
  c.tokens = {static_cast<std::int64_t>(1 + seed % 7)};
  c.vary_tokens = true;
  c.hidden = 16 + static_cast<std::int64_t>(seed % 5) * 4;
  c.experts = 6;
  c.top_k = 3;
  c.mode = seed % 4 == 1 ? dispatch_mode::counted : dispatch_mode::slotted;
  if (c.mode == dispatch_mode::slotted) {
    c.message = seed % 2 == 0 ? message_shape::per_row : message_shape::per_peer;
  }
  c.layout = seed % 5 == 0 ? output_layout::expert_major : output_layout::rank_major;
  c.iterations = 3;
  c.workers = seed % 11 == 0 ? 2 : 1;
  c.channels = 1 + static_cast<std::uint32_t>(seed % 2);
  c.counter_start = seed % 3 == 0 ? ~std::uint64_t{0} - 2 : 0;
  c.proxy.comms = 1 + static_cast<std::uint32_t>(seed / 2 % 2);
  c.proxy.ring_slots = seed % 7 == 0 ? 4 : 64;
  constexpr std::uint64_t eager[] = {0, 40, 256, 8192};
  c.proxy.engine.eager = eager[seed / 3 % 4];
  if (seed % 6 == 5) {
    c.proxy.engine.operations = 2;
    c.proxy.engine.writes_per_peer = 2;
    c.proxy.engine.slots_per_peer = 2;
    c.proxy.engine.peer_queue = 2;
  }
  c.proxy.srd.again = static_cast<double>(seed % 4) * 0.15;
  c.proxy.srd.max_delay = 1 + static_cast<std::uint32_t>(seed % 20);
  c.proxy.srd.rail_delay = static_cast<std::uint32_t>(seed % 10);
  c.proxy.srd.chunk_bytes = seed % 2 == 0 ? 48 : 7;
  return c;
}

void run_seeds(std::uint64_t first, std::uint64_t count) {
  if (const char* text = std::getenv("EPT_SRD_SEED")) {
    first = std::strtoull(text, nullptr, 10);
    count = 1;
  }
  int failed = 0;
  for (std::uint64_t seed = first; seed < first + count && failed < 5; ++seed) {
    const run_result result = support::run(config_of(seed));
    if (result.verified) continue;
    ++failed;
    ADD_FAILURE() << "replay: EPT_SRD_SEED=" << seed
                  << " proxy_tests --gtest_filter=SrdDispatch.*\n"
                  << result.why();
  }
}

TEST(SrdDispatch, SeedsEqualTheOracle) {
  run_seeds(1, 60);
}

TEST(LongSrdDispatch, AThousandSeedsEqualTheOracle) {
  run_seeds(1001, 1000);
}

TEST(SrdDispatch, ASeedReplaysExactly) {
  for (const std::uint64_t seed : {3ULL, 11ULL, 26ULL}) {
    const std::uint64_t hash = support::run(config_of(seed)).trace_hash;
    EXPECT_EQ(support::run(config_of(seed)).trace_hash, hash) << "seed " << seed;
    run_config other = config_of(seed);
    other.proxy.srd.max_delay += 1;
    EXPECT_NE(support::run(other).trace_hash, hash) << "seed " << seed;
  }
}

TEST(SrdDispatch, RealThreadsEqualTheOracleOnOwnAndSharedProxyThreads) {
  for (std::uint64_t seed = 1; seed <= 12; ++seed) {
    run_config c = config_of(seed);
    c.schedule = run_mode::free;
    c.timeout_ns = 60'000'000'000;
    c.proxy.drive = seed % 2 == 0 ? proxy_drive::threads : proxy_drive::shared;
    const run_result result = support::run(c);
    EXPECT_TRUE(result.verified) << "seed " << seed << ": " << result.why();
  }
}

TEST(SrdDispatch, SixteenRanksOfTwoCommsShareOneProxyThread) {
  run_config c;
  c.wire = "proxy:memory";
  c.ranks = 16;
  c.tokens = {8};
  c.hidden = 64;
  c.experts = 32;
  c.top_k = 4;
  c.iterations = 3;
  c.schedule = run_mode::free;
  c.channels = 2;
  c.timeout_ns = 60'000'000'000;
  c.proxy.comms = 2;
  c.proxy.drive = proxy_drive::shared;
  for (const std::uint64_t eager : {0ULL, 256ULL}) {
    c.proxy.engine.eager = eager;
    const run_result result = support::run(c);
    EXPECT_TRUE(result.verified) << result.why();
  }
}

/// Each rank ends with a name; nothing waits for ever.
TEST(SrdDispatch, ADeadPeerEndsEveryRankWithItsCause) {
  for (const std::uint64_t eager : {0ULL, 256ULL}) {
    for (std::uint64_t seed = 1; seed <= 4; ++seed) {
      run_config c = config_of(2);
      c.wire = "proxy:srd";
      c.ranks = 3;
      c.seed = seed;
      c.iterations = 6;
      c.timeout_ns = 500'000'000;
      c.proxy.engine.eager = eager;
      c.proxy.srd.dead_rank = 2;
      c.proxy.srd.dead_after = 5 * seed;
      const run_result result = support::run(c);
      EXPECT_FALSE(result.verified);
      for (int rank = 0; rank < c.ranks; ++rank) {
        const auto& report = result.ranks[static_cast<std::size_t>(rank)];
        EXPECT_NE(report.error, "") << "rank " << rank << ", seed " << seed;
        // Who sent to the dead rank is told so. Who waits for one of those is left with its
        // silence, since a failed transport cannot carry its farewell.
        const bool own = report.error.find("transport failed") != std::string::npos ||
                         report.error.find("deadline passed, peer ") != std::string::npos ||
                         report.error.find("a peer stopped") != std::string::npos;
        EXPECT_TRUE(own) << "rank " << rank << ", seed " << seed << ": " << report.error;
      }
    }
  }
}

TEST(SrdDispatch, GroupedMessagesAreFewerThanCommands) {
  run_config c;
  c.wire = "proxy:memory";
  c.ranks = 4;
  c.tokens = {32};
  c.hidden = 64;
  c.experts = 16;
  c.top_k = 4;
  c.message = message_shape::per_row;
  const run_result off = support::run(c);
  c.proxy.engine.eager = 512;
  const run_result on = support::run(c);
  ASSERT_TRUE(off.verified && on.verified) << off.why() << on.why();
  EXPECT_EQ(off.commands, on.commands);
  EXPECT_GE(off.proxy_messages, off.commands);
  EXPECT_LE(4 * on.proxy_messages, on.commands);
}

}  // namespace
}  // namespace eptransport::testing
