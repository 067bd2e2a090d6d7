// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Dispatch and combine among processes over libfabric: every byte compared, peers killed
/// and stopped at the worst moments, and a thousand transports built and dropped.
#include <eptransport/backends/libfabric/libfabric.hpp>
#include <eptransport/proxy/bootstrap/tcp_bootstrap.hpp>

#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <malloc.h>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "support/in_process_bootstrap.hpp"
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

/// Files in /dev/shm that endpoints of a process left behind.
[[nodiscard]] std::size_t shm_files(pid_t process) {
  std::size_t n = 0;
  for (const auto& file : std::filesystem::directory_iterator("/dev/shm")) {
    if (file.path().filename().string().starts_with(std::to_string(process) + ":")) ++n;
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
  config.counted_tokens = 9;
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
                                           job{"tcp", 5, 1, 8000, true},
                                           job{"shm", 2, 2, 8192, false}, job{"shm", 3, 1, 0, true},
                                           job{"shm", 5, 1, 256, false}),
                         [](const auto& each) {
                           const job& j = each.param;
                           return std::string(j.provider) + "_r" + std::to_string(j.ranks) + "_k" +
                                  std::to_string(j.comms) + "_eager" + std::to_string(j.eager) +
                                  (j.strict ? "_strict" : "");
                         });

/// One of three ranks dies in its third iteration, right before it would combine, or dispatch.
/// The survivors wait for it; their errors must name it and nobody else, long before the deadline.
void lose_a_rank(const char* provider, const std::string& after, int victim) {
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
  std::vector<pid_t> processes;
  for (int rank = 0; rank < ranks; ++rank) processes.push_back(started->process(rank));
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
    EXPECT_EQ(outcome.error, "") << "rank " << rank;
    const std::string cause = outcome.fault.substr(0, outcome.fault.find("; here: "));
    EXPECT_NE(cause.find(name), std::string::npos) << "rank " << rank << ": " << outcome.fault;
    EXPECT_NE(outcome.report.error.find(name), std::string::npos)
        << "rank " << rank << ": " << outcome.report.error;
  }
  // Of a killed process nobody closes the endpoints; those who knew its addresses remove the files.
  for (const pid_t process : processes) EXPECT_EQ(shm_files(process), 0U);
}

/// Every rank dies in turn, at both moments.
void lose_ranks(const char* provider, int times) {
  for (int i = 0; i < times && !::testing::Test::HasFailure(); ++i) {
    SCOPED_TRACE("round " + std::to_string(i));
    lose_a_rank(provider, i % 2 == 0 ? "dispatch" : "combine", i % 3);
  }
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
  config.timeout_ns = 2'000'000'000;
  auto started = rank_processes::start(ranks, [&](const bootstrap_options& options) {
    config.tamper = [](const tamper_point& at) {
      const bool here = at.rank == 1 && at.iteration == 1 && std::string(at.call) == "dispatch";
      if (here) (void)::raise(SIGSTOP);
    };
    return work(options, config, {.provider = "tcp"});
  });
  ASSERT_TRUE(started) << started.error().message();
  ASSERT_TRUE(started->stopped(1, milliseconds(10'000)));
  (void)::usleep(3'500'000);
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
  EXPECT_NE(outcome_of(endings[1]).report.error, "") << "the others gave up on it";
}

/// Every rank is told which one differs, and how; nobody waits for a deadline.
TEST(LibfabricCreate, RanksWithOtherSettingsAreNamed) {
  meeting_room room(3);
  std::vector<std::string> errors(3);
  std::vector<std::thread> ranks;
  for (std::int32_t r = 0; r < 3; ++r) {
    ranks.emplace_back([&, r] {
      in_process_bootstrap meeting(room, r);
      proxied_options options;
      options.window_bytes = 4096;
      options.signals = 4;
      options.engine.eager = r == 1 ? 256 : 0;
      const auto made = libfabric::create(meeting, options, {.provider = "tcp"});
      if (!made) errors[static_cast<std::size_t>(r)] = made.error().message();
    });
  }
  for (std::thread& rank : ranks) rank.join();
  for (const std::string& error : errors) {
    EXPECT_NE(error.find("rank 1 differs"), std::string::npos) << error;
    EXPECT_NE(error.find("eager 256"), std::string::npos) << error;
  }
}

/// What a process holds on to.
struct holdings {
  long resident_kb = 0;
  std::size_t descriptors = 0;
  std::size_t threads = 0;
  std::size_t files = 0;  ///< in /dev/shm
};

[[nodiscard]] holdings now_held() {
  holdings h;
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    if (word == "VmRSS:") status >> h.resident_kb;
    if (word == "Threads:") status >> h.threads;
  }
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    (void)entry;
    ++h.descriptors;
  }
  h.files = shm_files(::getpid());
  return h;
}

/// Builds and drops both ends of a transport, again and again, in one process.
void build_and_drop(const char* provider, int times) {
  // Left alone, the allocator keeps some of the 16 MiB blocks that providers free, now more, now
  // fewer; with fixed thresholds what is freed goes back, and what is left has been lost.
  (void)::mallopt(M_MMAP_THRESHOLD, 128 * 1024);
  (void)::mallopt(M_TRIM_THRESHOLD, 128 * 1024);
  (void)::mallopt(M_ARENA_MAX, 2);
  holdings first;
  for (int i = 0; i < times; ++i) {
    meeting_room room(2);
    const auto rank = [&](std::int32_t r) {
      in_process_bootstrap meeting(room, r);
      proxied_options options;
      options.window_bytes = 1 << 16;
      options.signals = 4;
      options.engine.eager = 256;
      options.drive = proxy_drive::shared;
      options.driver.idle = proxy::polite;
      const auto made = libfabric::create(meeting, options, {.provider = provider});
      ASSERT_TRUE(made) << made.error().message();
      const auto view = (*made)->view();
      const std::uint64_t soon = view.now_ns() + 20'000'000'000;
      ASSERT_EQ(view.signal(host_thread(), 0, 1 - r, 0, soon), op_status::ok);
      ASSERT_EQ(view.wait_signal(host_thread(), 0, 1, soon), op_status::ok);
    };
    std::thread other(rank, 1);
    rank(0);
    other.join();
    if (::testing::Test::HasFailure()) return;
    // The first ones fill caches and pools.
    if (i == times / 4) first = now_held();
  }
  const holdings last = now_held();
  EXPECT_EQ(last.descriptors, first.descriptors);
  EXPECT_EQ(last.threads, first.threads);
  EXPECT_EQ(last.files, 0U);
  const long grown = last.resident_kb - first.resident_kb;
  // The address sanitizer keeps what is freed, and reports leaks itself.
#if defined(__SANITIZE_ADDRESS__)
  constexpr bool counts = false;
#elif defined(__has_feature)
  constexpr bool counts = !__has_feature(address_sanitizer);
#else
  constexpr bool counts = true;
#endif
  EXPECT_TRUE(!counts || grown < 2048 + 4L * times)
      << grown << " kB in " << times - times / 4 << " cycles";
  ::testing::Test::RecordProperty("grown_kb", static_cast<int>(grown));
}

TEST(LibfabricLife, LeavesNothingBehind) {
  build_and_drop("tcp", 12);
  build_and_drop("shm", 12);
}
TEST(LongLibfabricLife, LeavesNothingBehindInAThousandCycles) {
  build_and_drop("tcp", 500);
  build_and_drop("shm", 500);
}

}  // namespace
}  // namespace eptransport::support
