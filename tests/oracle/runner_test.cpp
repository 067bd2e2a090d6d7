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

TEST(Runner, VerifiesEveryShapeAndSchedule) {
  for (const message_shape shape : {message_shape::per_row, message_shape::per_peer}) {
    for (const delivery order : {delivery::immediate, delivery::shuffled}) {
      for (const run_mode schedule : {run_mode::baton, run_mode::free}) {
        run_config config = small();
        config.message = shape;
        config.order = order;
        config.schedule = schedule;
        config.split = true;
        config.lanes = 2;
        config.cached = true;
        config.workers = 2;
        config.pauses = true;
        const run_result result = run(config);
        EXPECT_TRUE(result.verified)
            << "shape " << static_cast<int>(shape) << ", delivery " << static_cast<int>(order)
            << ", mode " << static_cast<int>(schedule) << ":\n"
            << result.why();
      }
    }
  }
}

/// `small`, with counted calls on nvlink.
run_config counted(output_layout layout) {
  run_config config = small();
  config.wire = "nvlink";
  config.layout = layout;
  config.mode = dispatch_mode::counted;
  config.landing = true;
  config.iterations = 4;
  return config;
}

TEST(Runner, VerifiesCountedAndMixedCallsInEveryLayout) {
  for (const std::string& wire : wires()) {
    for (const output_layout layout : {output_layout::rank_major, output_layout::expert_major,
                                       output_layout::padded, output_layout::in_place}) {
      for (const bool mixed : {false, true}) {
        run_config config = counted(layout);
        config.wire = wire;
        config.mixed = mixed;
        config.landing = !mixed;
        config.cached = mixed;
        config.split = mixed;
        config.order = delivery::shuffled;
        config.return_weights = true;
        config.bias = true;
        const run_result result = run(config);
        EXPECT_TRUE(result.verified) << wire << ", layout " << static_cast<int>(layout) << ":\n"
                                     << result.why();
      }
    }
  }
}

TEST(Runner, VerifiesEveryValueTypeAndWireType) {
  for (const element values : {element::bf16, element::fp16, element::fp32}) {
    for (const element returns : {values, element::fp32}) {
      for (const output_layout layout : {output_layout::rank_major, output_layout::padded}) {
        run_config config = counted(layout);
        config.wire = "efa-gpu";
        config.values = values;
        config.returns = returns;
        config.bias = true;
        const run_result result = run(config);
        EXPECT_TRUE(result.verified) << "values " << static_cast<int>(values) << ", returns "
                                     << static_cast<int>(returns) << ":\n"
                                     << result.why();
      }
    }
  }
}

TEST(Runner, VerifiesRowsThatTheKernelQuantises) {
  for (const quantisation how : {quantisation::fp8_fp32, quantisation::fp8_ue8m0}) {
    for (const output_layout layout : {output_layout::rank_major, output_layout::expert_major,
                                       output_layout::padded, output_layout::in_place}) {
      run_config config = counted(layout);
      config.mixed = true;
      config.hidden = 300;
      config.quantise = how;
      config.scale_columns = layout == output_layout::in_place ? 0 : 4;
      const run_result result = run(config);
      EXPECT_TRUE(result.verified) << "layout " << static_cast<int>(layout) << ":\n"
                                   << result.why();
    }
  }
}

TEST(Runner, VerifiesPulledRows) {
  for (const output_layout layout : {output_layout::rank_major, output_layout::in_place}) {
    run_config config = counted(layout);
    config.transfer = combine_transfer::pull;
    config.combines = 2;
    config.bias = true;
    const run_result result = run(config);
    EXPECT_TRUE(result.verified) << "layout " << static_cast<int>(layout) << ":\n" << result.why();
  }
}

TEST(Runner, VerifiesWhatIsDroppedAndWhatIsRefused) {
  run_config config = counted(output_layout::expert_major);
  config.tokens = {6, 0, 7};
  config.landing_rows = {2, 9, 3};
  config.overflow = overflow_policy::drop;
  config.return_weights = true;
  run_result result = run(config);
  EXPECT_TRUE(result.verified) << result.why();
  EXPECT_FALSE(result.ranks[0].overflowed);
  config.overflow = overflow_policy::error;
  result = run(config);
  EXPECT_TRUE(result.verified) << result.why();
  for (const rank_report& report : result.ranks) EXPECT_TRUE(report.overflowed);
}

TEST(Runner, FindsARowBehindTheLastOneWhereRowsLand) {
  const std::string found =
      report_after(counted(output_layout::rank_major), "dispatch",
                   [](const tamper_point& at) { at.rows.back() = std::byte{0x11}; });
  EXPECT_NE(found.find("expected to be left alone"), std::string::npos) << found;
}

TEST(Runner, FindsAWriteBehindTheLandingZone) {
  const std::string found = report_after(
      counted(output_layout::rank_major), "dispatch",
      [](const tamper_point& at) { at.rows.data()[at.rows.size()] = std::byte{0x11}; });
  EXPECT_NE(found.find("canary of the landing zone hit 0 bytes after its end"), std::string::npos)
      << found;
}

TEST(Runner, BooksMessagesAndTimePerCall) {
  run_config config = small();
  config.tokens = {4};
  config.unused = 0;
  config.message = message_shape::per_peer;
  config.align_clocks = true;
  const run_result whole = run(config);
  ASSERT_TRUE(whole.verified) << whole.why();
  EXPECT_EQ(whole.calls, 3);
  EXPECT_EQ(whole.ranks[0].dispatch.messages, 6U) << "one message to each of two peers, thrice";
  EXPECT_GE(whole.dispatch.mean_ns, 2 * whole.charge.issue_ns + whole.charge.latency_ns);
  EXPECT_GE(whole.dispatch.p99_ns, whole.dispatch.mean_ns);
  EXPECT_GE(whole.dispatch.max_rank_ns, whole.dispatch.mean_ns);
  config.split = true;
  const run_result halves = run(config);
  ASSERT_TRUE(halves.verified) << halves.why();
  EXPECT_EQ(halves.ranks[0].dispatch.messages, 6U);
  EXPECT_NEAR(halves.dispatch.mean_ns, whole.dispatch.mean_ns, 0.2 * whole.dispatch.mean_ns);
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

TEST(Runner, MeasuresFreeRunsAndComparesThemWithMemcpy) {
  run_config config = counted(output_layout::rank_major);
  config.schedule = run_mode::free;
  config.align_clocks = true;
  config.copy_baseline = true;
  const run_result result = run(config);
  ASSERT_TRUE(result.verified) << result.why();
  EXPECT_GT(result.dispatch.mean_ns, 0);
  EXPECT_GT(result.dispatch_copy.mean_ns, 0);
  EXPECT_GT(result.combine_copy.mean_ns, 0);
  EXPECT_GT(result.dispatch_payload, 0);
  EXPECT_EQ(result.dispatch_payload, result.combine_payload) << "both move the same bf16 rows";
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
  const rank_report& other = result.ranks[0];
  EXPECT_NE(other.failed_call.find(", lane 0, iteration "), std::string::npos);
  EXPECT_NE(result.why().find("rank 0, " + other.failed_call + ": " + other.error),
            std::string::npos)
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
  config.transfer = combine_transfer::pull;
  EXPECT_NE(run(config).error.find("pull needs nvlink"), std::string::npos);
  config = small();
  config.landing_rows = {1};
  EXPECT_NE(run(config).error.find("landing_rows for 1 ranks"), std::string::npos);
  config = small();
  config.tokens = {1, 2};
  EXPECT_NE(run(config).error.find("token counts for 2 ranks"), std::string::npos);
}

}  // namespace
}  // namespace eptransport::support
