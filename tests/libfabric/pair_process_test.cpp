// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Dispatch and combine through relays that are processes: shared memory inside simulated
/// hosts, tcp between them; every byte compared, messages counted, peers and relays killed.
#include <eptransport/proxy/bootstrap/tcp_bootstrap.hpp>

#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "support/libfabric/rank.hpp"
#include "support/processes.hpp"

namespace eptransport::support {
namespace {

using std::chrono::milliseconds;

/// Joins as a rank of a simulated host, runs, and says what it found.
std::string work(bootstrap_options options, const run_config& config) {
  const int node = config.nodes[static_cast<std::size_t>(options.rank)];
  options.host_identity = "host " + std::to_string(node);
  auto meeting = tcp_bootstrap::join(options);
  if (meeting) return packed(run_rank(config, **meeting, {.provider = "tcp"}));
  rank_outcome none;
  none.error = meeting.error().message();
  return packed(none);
}

[[nodiscard]] rank_outcome outcome_of(const rank_processes::ending& how) {
  return unpacked(std::as_bytes(std::span(how.said.data(), how.said.size())));
}

[[nodiscard]] run_config on_nodes(const std::vector<int>& nodes) {
  run_config config;
  config.wire = "hybrid:shm+libfabric:tcp";
  config.message = message_shape::per_node;
  config.nodes = nodes;
  config.ranks = static_cast<int>(nodes.size());
  config.tokens = {9};
  config.hidden = 64;
  config.iterations = 4;
  config.schedule = run_mode::free;
  config.timeout_ns = 20'000'000'000;
  return config;
}

/// A routing of real gates.
void follow_trace(run_config& config, const char* name, int experts) {
  config.routing = std::string("trace:" EPT_SOURCE_DIR "/benchmarks/traces/") + name;
  config.top_k = 8;
  config.experts = experts;
}

struct job {
  const char* name;
  std::vector<int> nodes;
  const char* trace;
  int experts;
  std::uint64_t eager;
  std::uint32_t workers;
};

class PairJobs : public ::testing::TestWithParam<job> {};

TEST_P(PairJobs, DispatchAndCombineThroughRelays) {
  const job& j = GetParam();
  run_config config = on_nodes(j.nodes);
  follow_trace(config, j.trace, j.experts);
  config.proxy.engine.eager = j.eager;
  config.workers = j.workers;
  config.mixed = true;
  config.counted_tokens = 9;
  config.lanes = 2;
  auto started = rank_processes::start(
      config.ranks, [&](const bootstrap_options& options) { return work(options, config); });
  ASSERT_TRUE(started) << started.error().message();
  std::vector<rank_outcome> outcomes;
  for (const auto& how : started->wait(milliseconds(60'000))) {
    EXPECT_TRUE(how.clean());
    outcomes.push_back(outcome_of(how));
  }
  const run_result all = joined(config, std::move(outcomes));
  EXPECT_TRUE(all.verified) << all.why();
  EXPECT_EQ(all.message, message_shape::per_node);
  EXPECT_EQ(all.nodes, j.nodes);
  EXPECT_GT(all.commands, 0U);
}

INSTANTIATE_TEST_SUITE_P(
    All, PairJobs,
    ::testing::Values(job{"two_nodes_of_two", {0, 0, 1, 1}, "moe_e64_k8", 64, 0, 1},
                      job{"three_and_one", {0, 0, 0, 1}, "moe_e256_k8", 256, 8192, 1},
                      job{"scattered", {0, 1, 1, 0, 2}, "moe_e256_k8", 256, 0, 2}),
    [](const auto& each) { return std::string(each.param.name); });

/// What crosses nodes in the slotted calls of three nodes: a message per node and half, each of
/// which carries a row for each of its tokens; behind it the greetings of the group.
TEST(PairTraffic, EachOtherNodeGetsOneMessagePerCall) {
  std::vector<std::uint64_t> commands;
  for (const int iterations : {2, 6}) {
    run_config config = on_nodes({0, 1, 2, 1, 0});
    config.top_k = 5;
    config.experts = 5;  // every token goes everywhere
    config.iterations = iterations;
    auto started = rank_processes::start(
        config.ranks, [&](const bootstrap_options& options) { return work(options, config); });
    ASSERT_TRUE(started) << started.error().message();
    std::vector<rank_outcome> outcomes;
    for (const auto& how : started->wait(milliseconds(60'000))) outcomes.push_back(outcome_of(how));
    const run_result all = joined(config, std::move(outcomes));
    ASSERT_TRUE(all.verified) << all.why();
    commands.push_back(all.commands);
  }
  EXPECT_EQ(commands[1] - commands[0], 5U * 4 * 2 * 2)
      << "five ranks, four more iterations of two calls, two other nodes";
}

// --- Deaths --------------------------------------------------------------------------------------

/// One of five ranks dies right before it would combine, or dispatch. Who waits for it, in its node
/// or in another, directly or behind a relay, must name it long before the deadline.
void lose_a_rank(const std::vector<int>& nodes, const std::string& after, int victim) {
  SCOPED_TRACE("rank " + std::to_string(victim) + " after " + after);
  run_config config = on_nodes(nodes);
  config.top_k = 3;
  config.experts = 2 * config.ranks + 1;
  config.iterations = 1'000'000;
  config.timeout_ns = 10'000'000'000;
  auto started = rank_processes::start(config.ranks, [&](const bootstrap_options& options) {
    config.tamper = [&](const tamper_point& at) {
      if (at.rank == victim && at.iteration == 2 && at.call == after) (void)::raise(SIGKILL);
    };
    return work(options, config);
  });
  ASSERT_TRUE(started) << started.error().message();
  const auto start = std::chrono::steady_clock::now();
  const auto endings = started->wait(milliseconds(20'000));
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  EXPECT_LT(took.count(), 9.0) << "the deadline ended it, not the death";
  const std::string name = "rank " + std::to_string(victim) + " ";
  for (int rank = 0; rank < config.ranks; ++rank) {
    const auto& how = endings[static_cast<std::size_t>(rank)];
    EXPECT_FALSE(how.hung) << "rank " << rank;
    if (rank == victim) {
      EXPECT_TRUE(how.killed_by(SIGKILL));
      continue;
    }
    EXPECT_TRUE(how.clean()) << "rank " << rank << ", status " << how.status;
    const rank_outcome outcome = outcome_of(how);
    EXPECT_EQ(outcome.error, "") << "rank " << rank;
    const std::string cause = outcome.fault.substr(0, outcome.fault.find("; here: "));
    EXPECT_NE(cause.find(name), std::string::npos) << "rank " << rank << ": " << outcome.fault;
    EXPECT_NE(outcome.report.error.find(name), std::string::npos)
        << "rank " << rank << ": " << outcome.report.error;
  }
}

TEST(PairDeath, OfANeighbourAndOfARelayIsNamedInEveryNode) {
  lose_a_rank({0, 0, 1, 1}, "dispatch", 1);  // relays for rank 3, neighbour of rank 0
  lose_a_rank({0, 0, 0, 1}, "combine", 3);   // the only relay of its node
  lose_a_rank({0, 0, 0, 1}, "dispatch", 2);  // relays for nobody
}
TEST(LongPairDeath, IsNamedByEveryRankAtBothMoments) {
  for (int i = 0; i < 12 && !::testing::Test::HasFailure(); ++i) {
    const bool scattered = i % 3 == 2;
    lose_a_rank(scattered ? std::vector{0, 1, 0, 1, 2} : std::vector{0, 0, 1, 1},
                i % 2 == 0 ? "dispatch" : "combine", i % (scattered ? 5 : 4));
  }
}

/// A rank stops for a while and goes on: nobody may take that for a failure.
TEST(PairPause, OfARelayBelowTheDeadlineIsNoFailure) {
  run_config config = on_nodes({0, 0, 1, 1});
  auto started = rank_processes::start(config.ranks, [&](const bootstrap_options& options) {
    config.tamper = [](const tamper_point& at) {
      const bool here = at.rank == 1 && at.iteration == 1 && std::string(at.call) == "dispatch";
      if (here) (void)::raise(SIGSTOP);
    };
    return work(options, config);
  });
  ASSERT_TRUE(started) << started.error().message();
  ASSERT_TRUE(started->stopped(1, milliseconds(10'000)));
  (void)::usleep(300'000);
  started->signal(1, SIGCONT);
  std::vector<rank_outcome> outcomes;
  for (const auto& how : started->wait(milliseconds(30'000))) outcomes.push_back(outcome_of(how));
  const run_result all = joined(config, std::move(outcomes));
  EXPECT_TRUE(all.verified) << all.why();
}

}  // namespace
}  // namespace eptransport::support
