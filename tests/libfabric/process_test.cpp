// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Dispatch and combine among processes that met over TCP, every byte compared; and a
/// thousand transports built and dropped.
#include <eptransport/backends/libfabric/libfabric.hpp>

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <malloc.h>
#include <string>
#include <thread>
#include <vector>

#include "libfabric/jobs.hpp"
#include "support/in_process_bootstrap.hpp"

namespace eptransport::support {
namespace {

using std::chrono::milliseconds;

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
  config.proxy.comms = comms_under_test(j.comms);
  config.proxy.engine.eager = j.eager;
  config.channels = config.proxy.comms;
  config.mixed = true;
  config.counted_tokens = 9;
  auto started = rank_processes::start(j.ranks, [&](const bootstrap_options& options) {
    return work(options, config, {.provider = j.provider, .strict = j.strict});
  });
  ASSERT_TRUE(started) << started.error().message();
  std::vector<rank_outcome> outcomes;
  for (const auto& how : started->wait(milliseconds(60'000))) {
    EXPECT_TRUE(how.clean());
    outcomes.push_back(outcome_of(how.said));
  }
  const run_result all = joined(config, std::move(outcomes));
  EXPECT_TRUE(all.verified) << all.why();
  EXPECT_GT(all.commands, 0U);
}

INSTANTIATE_TEST_SUITE_P(All, LibfabricJobs,
                         ::testing::Values(job{"tcp", 5, 2, 256, true},
                                           job{"shm", 8, 1, 8192, false}),
                         [](const auto& each) {
                           const job& j = each.param;
                           return std::string(j.provider) + "_r" + std::to_string(j.ranks) + "_k" +
                                  std::to_string(j.comms) + "_eager" + std::to_string(j.eager) +
                                  (j.strict ? "_strict" : "");
                         });

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
  long allocated = 0;  ///< bytes that were not given back to the allocator
  std::size_t descriptors = 0;
  std::size_t threads = 0;
  std::size_t files = 0;  ///< in /dev/shm
};

[[nodiscard]] holdings now_held() {
  holdings h;
  (void)::malloc_trim(0);  // what the allocator keeps for later is not held
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    if (word == "VmRSS:") status >> h.resident_kb;
    if (word == "Threads:") status >> h.threads;
  }
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    (void)entry;
    ++h.descriptors;
  }
  const struct mallinfo2 heap = ::mallinfo2();
  h.allocated = static_cast<long>(heap.uordblks + heap.hblkhd);
  h.files = shm_files(::getpid());
  return h;
}

/// Builds and drops both ends of a transport, again and again, in one process.
void build_and_drop(const char* provider, int times) {
  keep_freed_memory();
  (void)::mallopt(M_ARENA_MAX, 1);  // malloc_trim gives back the top of the main arena only
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
  const int cycles = times - times / 4 - 1;
  // libfabric 1.17 keeps the names of all shm endpoints until the process ends, 288 bytes for each
  // of the two; the rest is what small blocks between them cost. tcp keeps nothing.
  const long each = provider == std::string("shm") ? 2 * 288 + 192 : 128;
  const long lost = last.allocated - first.allocated;
  const long grown = last.resident_kb - first.resident_kb;
  EXPECT_TRUE(address_sanitizer || lost < 65536 + each * cycles)
      << lost << " bytes in " << cycles << " cycles";
  EXPECT_TRUE(address_sanitizer || grown < 1024 + cycles)
      << grown << " kB in " << cycles << " cycles";
  ::testing::Test::RecordProperty(std::string("allocated_") + provider, static_cast<int>(lost));
  ::testing::Test::RecordProperty(std::string("grown_kb_") + provider, static_cast<int>(grown));
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
