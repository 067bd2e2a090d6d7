// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The runner itself: it passes where all is well, and finds damage wherever it is done.
#include "support/runner.hpp"

#include <gtest/gtest.h>

#include <string>

namespace eptransport::support {
namespace {

run_config small() {
  run_config config;
  config.ranks = 3;
  config.tokens = {5, 0, 4};
  config.hidden = 24;
  config.top_k = 3;
  config.experts = 7;
  config.iterations = 3;
  config.unused = 0.2;
  return config;
}

/// Damages something of rank 2 in iteration 1.
template <class Function>
std::string report_after(run_config config, const char* call, const Function& damage) {
  config.tamper = [&](const tamper_point& at) {
    if (at.rank == 2 && at.iteration == 1 && std::string(at.call) == call) damage(at);
  };
  const run_result result = run(config);
  EXPECT_FALSE(result.verified);
  return result.difference;
}

TEST(Runner, VerifiesEveryWireAndLayout) {
  for (const std::string& wire : wires()) {
    for (const output_layout layout : {output_layout::rank_major, output_layout::expert_major,
                                       output_layout::padded, output_layout::in_place}) {
      run_config config = small();
      config.wire = wire;
      config.layout = layout;
      const run_result result = run(config);
      EXPECT_TRUE(result.verified) << wire << ", layout " << static_cast<int>(layout) << ":\n"
                                   << result.why();
      EXPECT_GT(result.ranks[0].dispatch.messages, 0U);
      EXPECT_GT(result.dispatch.mean_ns, 0);
    }
  }
}

TEST(Runner, FindsOneBitInAReceivedRow) {
  const std::string found =
      report_after(small(), "dispatch", [](const tamper_point& at) { at.rows[3] ^= std::byte{4}; });
  EXPECT_NE(found.find("seed 1, iteration 1, dispatch, lane 0: rank 2, row 0"), std::string::npos)
      << found;
}

TEST(Runner, FindsOneBitInACombinedToken) {
  const std::string found =
      report_after(small(), "combine", [](const tamper_point& at) { at.out[25] ^= 1U; });
  EXPECT_NE(found.find("iteration 1, combine, lane 0: rank 2, combined token 1, column 1"),
            std::string::npos)
      << found;
}

TEST(Runner, FindsAWrongTotal) {
  const std::string found =
      report_after(small(), "dispatch", [](const tamper_point& at) { *at.total += 1; });
  EXPECT_NE(found.find("total rows"), std::string::npos) << found;
}

TEST(Runner, FindsAWrongSourceToken) {
  const std::string found =
      report_after(small(), "dispatch", [](const tamper_point& at) { at.source_token[0] += 1; });
  EXPECT_NE(found.find("source_token"), std::string::npos) << found;
}

TEST(Runner, FindsAWriteIntoTheRowAfterTheLast) {
  const std::string found = report_after(
      small(), "dispatch", [](const tamper_point& at) { at.rows.back() = std::byte{0x11}; });
  EXPECT_NE(found.find("expected to be left alone"), std::string::npos) << found;
}

TEST(Runner, FindsAWriteBehindABuffer) {
  const std::string found = report_after(small(), "dispatch", [](const tamper_point& at) {
    at.rows.data()[at.rows.size() + 9] = std::byte{0};
  });
  EXPECT_NE(found.find("canary of output rows hit 9 bytes after its end"), std::string::npos)
      << found;
}

TEST(Runner, ReplaysAScheduleFromItsSeed) {
  run_config config = small();
  config.order = delivery::shuffled;
  const std::uint64_t first = run(config).trace_hash;
  EXPECT_EQ(run(config).trace_hash, first);
  config.seed = 2;
  EXPECT_NE(run(config).trace_hash, first);
}

TEST(Runner, ReportsTheFaultsOfAllRanks) {
  run_config config = small();
  config.tokens = {3};
  config.faults = {{.kind = loopback_fault_kind::kill, .rank = 1, .after_ops = 8}};
  const run_result result = run(config);
  EXPECT_FALSE(result.verified);
  EXPECT_EQ(result.ranks[1].fault.kind, fault_kind::transport_failed) << result.why();
  EXPECT_EQ(result.ranks[0].fault.kind, fault_kind::expired) << result.why();
  EXPECT_EQ(result.ranks[0].fault.peer, 1);
  EXPECT_NE(result.why().find("rank 0, dispatch, lane 0, iteration"), std::string::npos)
      << result.why();
}

TEST(Runner, RefusesWhatCannotRun) {
  run_config config = small();
  config.wire = "carrier-pigeon";
  EXPECT_NE(run(config).error.find("nvlink"), std::string::npos);
  config = small();
  config.message = message_shape::direct;
  EXPECT_EQ(run(config).code, errc::unsupported);
  config = small();
  config.tokens = {1, 2};
  EXPECT_NE(run(config).error.find("token counts for 2 ranks"), std::string::npos);
}

}  // namespace
}  // namespace eptransport::support
