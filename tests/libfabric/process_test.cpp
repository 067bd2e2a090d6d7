// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Dispatch and combine among processes over libfabric: every byte compared, peers killed and
/// stopped at the worst moments, and a thousand transports built and dropped.
#include <eptransport/proxy/bootstrap/tcp_bootstrap.hpp>

#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "support/libfabric/rank.hpp"
#include "support/processes.hpp"

namespace eptransport::support {
namespace {

using std::chrono::milliseconds;

/// Joins, runs the rank, and says what it found.
std::string work(const bootstrap_options& options, const run_config& config,
                 const proxy::fabric_options& fabric) {
  auto meeting = tcp_bootstrap::join(options);
  if (meeting) return packed(run_rank(config, **meeting, fabric));
  rank_outcome none;
  none.error = meeting.error().message();
  return packed(none);
}

[[nodiscard]] rank_outcome outcome_of(const rank_processes::ending& how) {
  return unpacked(std::as_bytes(std::span(how.said.data(), how.said.size())));
}

[[nodiscard]] run_config small_run(int ranks) {
  run_config config;
  config.wire = "libfabric";
  config.ranks = ranks;
  config.tokens = {9};
  config.hidden = 64;
  config.top_k = 3;
  config.experts = 2 * ranks + 1;
  config.iterations = 4;
  config.schedule = run_mode::free;
  config.timeout_ns = 20'000'000'000;
  return config;
}

/// Files that shm endpoints left behind; the names of all processes' begin with a number.
[[nodiscard]] std::size_t shm_files() {
  std::size_t n = 0;
  for (const auto& file : std::filesystem::directory_iterator("/dev/shm")) {
    const std::string name = file.path().filename().string();
    if (name.find(':') != std::string::npos) ++n;
  }
  return n;
}

/// How the ranks of one job are to run.
struct job {
  const char* provider;
  int ranks;
  std::uint32_t comms;
  std::uint64_t eager;
  bool strict;
};

class LibfabricJobs : public ::testing::TestWithParam<job> {};

TEST_P(LibfabricJobs, DispatchesAndCombines) {
  const job& j = GetParam();
  run_config config = small_run(j.ranks);
  config.proxy.comms = j.comms;
  config.proxy.engine.eager = j.eager;
  config.channels = j.comms;
  config.mixed = true;
  auto started = rank_processes::start(j.ranks, [&](const bootstrap_options& options) {
    return work(options, config, {.provider = j.provider, .strict = j.strict});
  });
  ASSERT_TRUE(started) << started.error().message();
  std::vector<rank_outcome> outcomes;
  for (const auto& how : started->wait(milliseconds(60'000))) {
    EXPECT_TRUE(how.clean());
    outcomes.push_back(outcome_of(how));
  }
  const run_result all = joined(config, std::move(outcomes));
  EXPECT_TRUE(all.verified) << all.why();
  EXPECT_GT(all.commands, 0U);
}

INSTANTIATE_TEST_SUITE_P(All, LibfabricJobs,
                         ::testing::Values(job{"tcp", 2, 1, 0, false}, job{"tcp", 3, 2, 256, true},
                                           job{"tcp", 5, 1, 8000, true}, job{"shm", 2, 2, 8192, false},
                                           job{"shm", 3, 1, 0, true}, job{"shm", 5, 1, 256, false}),
                         [](const auto& each) {
                           const job& j = each.param;
                           return std::string(j.provider) + "_r" + std::to_string(j.ranks) + "_k" +
                                  std::to_string(j.comms) + "_eager" + std::to_string(j.eager) +
                                  (j.strict ? "_strict" : "");
                         });

/// One of three ranks dies in its third iteration, right before it would combine, or dispatch again.
/// The survivors wait for it; their errors must name it and nobody else, long before the deadline.
void lose_a_rank(const char* provider, const std::string& after, int victim, bool must_name) {
  constexpr int ranks = 3;
  run_config config = small_run(ranks);
  config.iterations = 1'000'000;
  config.timeout_ns = 10'000'000'000;
  auto started = rank_processes::start(ranks, [&](const bootstrap_options& options) {
    config.tamper = [&](const tamper_point& at) {
      if (at.rank == victim && at.iteration == 2 && at.call == after) (void)::raise(SIGKILL);
    };
    return work(options, config, {.provider = provider});
  });
  ASSERT_TRUE(started) << started.error().message();
  const auto start = std::chrono::steady_clock::now();
  const auto endings = started->wait(milliseconds(20'000));
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  EXPECT_LT(took.count(), 9.0) << "the deadline ended it, not the death";
  const std::string name = "rank " + std::to_string(victim) + " ";
  for (int rank = 0; rank < ranks; ++rank) {
    const auto& how = endings[static_cast<std::size_t>(rank)];
    EXPECT_FALSE(how.hung) << "rank " << rank;
    if (rank == victim) {
      EXPECT_TRUE(how.killed_by(SIGKILL));
      continue;
    }
    EXPECT_TRUE(how.clean()) << "rank " << rank << ", status " << how.status;
    const rank_outcome outcome = outcome_of(how);
    if (!must_name) continue;
    EXPECT_EQ(outcome.error, "") << "rank " << rank;
    const std::string cause = outcome.fault.substr(0, outcome.fault.find("; here: "));
    EXPECT_NE(cause.find(name), std::string::npos) << "rank " << rank << ": " << outcome.fault;
    EXPECT_NE(outcome.report.error.find(name), std::string::npos)
        << "rank " << rank << ": " << outcome.report.error;
  }
}

/// Each provider and moment, once; the long one does it fifty times.
void lose_ranks(const char* provider, int times) {
  const std::size_t before = shm_files();
  for (int i = 0; i < times && !::testing::Test::HasFailure(); ++i) {
    SCOPED_TRACE("round " + std::to_string(i));
    lose_a_rank(provider, i % 2 == 0 ? "dispatch" : "combine", i % 3, true);
  }
  // Of a killed process nobody closes the endpoints; those who knew its address unlink them.
  EXPECT_EQ(shm_files(), before);
}

TEST(LibfabricDeath, IsNamedOverTcp) {
  lose_ranks("tcp", 3);
}
TEST(LibfabricDeath, IsNamedOverShm) {
  lose_ranks("shm", 3);
}
TEST(LongLibfabricDeath, IsNamedFiftyTimesOverTcp) {
  lose_ranks("tcp", 50);
}
TEST(LongLibfabricDeath, IsNamedFiftyTimesOverShm) {
  lose_ranks("shm", 50);
}

/// A rank stops for a while and goes on: nobody may take that for a failure.
TEST(LibfabricPause, BelowTheDeadlineIsNoFailure) {
  constexpr int ranks = 3;
  run_config config = small_run(ranks);
  auto started = rank_processes::start(ranks, [&](const bootstrap_options& options) {
    config.tamper = [](const tamper_point& at) {
      const bool here = at.rank == 1 && at.iteration == 1 && std::string(at.call) == "dispatch";
      if (here) (void)::raise(SIGSTOP);
    };
    return work(options, config, {.provider = "tcp"});
  });
  ASSERT_TRUE(started) << started.error().message();
  ASSERT_TRUE(started->stopped(1, milliseconds(10'000)));
  (void)::usleep(500'000);
  started->signal(1, SIGCONT);
  std::vector<rank_outcome> outcomes;
  for (const auto& how : started->wait(milliseconds(30'000))) outcomes.push_back(outcome_of(how));
  const run_result all = joined(config, std::move(outcomes));
  EXPECT_TRUE(all.verified) << all.why();
}

/// Beyond it, the others' errors name the rank that stands still.
TEST(LibfabricPause, BeyondTheDeadlineIsNamed) {
  constexpr int ranks = 3;
  run_config config = small_run(ranks);
  config.timeout_ns = 1'000'000'000;
  auto started = rank_processes::start(ranks, [&](const bootstrap_options& options) {
    config.tamper = [](const tamper_point& at) {
      const bool here = at.rank == 1 && at.iteration == 1 && std::string(at.call) == "dispatch";
      if (here) (void)::raise(SIGSTOP);
    };
    return work(options, config, {.provider = "tcp"});
  });
  ASSERT_TRUE(started) << started.error().message();
  ASSERT_TRUE(started->stopped(1, milliseconds(10'000)));
  (void)::usleep(2'000'000);
  started->signal(1, SIGCONT);
  const auto endings = started->wait(milliseconds(30'000));
  for (const std::size_t rank : {std::size_t{0}, std::size_t{2}}) {
    EXPECT_TRUE(endings[rank].clean());
    const std::string error = outcome_of(endings[rank]).report.error;
    EXPECT_TRUE(error.find("peer 1,") != std::string::npos ||
                error.find("rank 1 ") != std::string::npos ||
                error.find("names rank 1") != std::string::npos)
        << "rank " << rank << ": " << error;
  }
}

}  // namespace
}  // namespace eptransport::support
