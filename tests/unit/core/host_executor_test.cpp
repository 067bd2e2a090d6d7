// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Host launches: workers meet, give up at deadlines, and leave the words at zero.
#include <eptransport/core/host_executor.hpp>
#include <eptransport/core/memory.hpp>
#include <eptransport/core/thread_group.hpp>

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace eptransport {
namespace {

/// A view of nothing but a clock, as far as a barrier is concerned.
struct clock_view {
  [[nodiscard]] std::uint64_t now_ns() const {
    return static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(
                                          std::chrono::steady_clock::now().time_since_epoch())
                                          .count());
  }
};

static_assert(ThreadGroup<host_thread> && ThreadGroup<host_worker>);
static_assert(Worker<host_worker, clock_view>);

constexpr std::uint64_t minute = 60'000'000'000;

template <class Function>
struct kernel {
  Function function;
  mutable worker_words meeting;
  [[nodiscard]] worker_words* words() const { return &meeting; }
  void operator()(const host_worker& w) const { function(w); }
};

TEST(HostWorker, BarriersSeparateWhatCameBeforeFromWhatComesAfter) {
  for (const std::uint32_t workers : {1U, 2U, 3U, 7U}) {
    host_executor executor(workers);
    constexpr int rounds = 50;
    // Plain memory, written by one worker and read by the others: the barrier must order it.
    std::vector<std::uint32_t> cells(workers, 0);
    std::atomic<int> wrong = 0;
    const auto body = [&](const host_worker& w) {
      const std::uint64_t deadline = clock_view().now_ns() + minute;
      for (std::uint32_t round = 1; round <= rounds; ++round) {
        cells[w.worker()] = round;
        if (!w.barrier(clock_view(), deadline)) ++wrong;
        for (const std::uint32_t cell : cells) wrong += cell != round ? 1 : 0;
        if (!w.barrier(clock_view(), deadline)) ++wrong;
      }
      (void)w.last_to_leave();
    };
    const kernel<decltype(body)> k{body, {}};
    for (int launch = 0; launch < 3; ++launch) EXPECT_TRUE(executor.launch(k, 0));
    EXPECT_EQ(wrong, 0);
    EXPECT_EQ(k.meeting.arrived, 0U);
    EXPECT_EQ(k.meeting.departed, 0U);
  }
}

TEST(HostWorker, ABarrierThatOneWorkerNeverReachesEndsAtItsDeadline) {
  host_executor executor(3);
  std::atomic<int> gave_up = 0;
  const auto body = [&](const host_worker& w) {
    if (w.worker() != 2 && !w.barrier(clock_view(), clock_view().now_ns() + 2'000'000)) ++gave_up;
    (void)w.last_to_leave();
  };
  const kernel<decltype(body)> k{body, {}};
  EXPECT_TRUE(executor.launch(k, 0));
  EXPECT_EQ(gave_up, 2);
  EXPECT_EQ(k.meeting.arrived, 0U);
}

TEST(HostWorker, ExactlyOneWorkerIsTheLastToLeaveAndSeesAllWrites) {
  host_executor executor(5);
  for (int launch = 0; launch < 20; ++launch) {
    std::vector<int> written(5, 0);
    std::atomic<int> last = 0;
    const auto body = [&](const host_worker& w) {
      written[w.worker()] = 1;
      if (!w.last_to_leave()) return;
      ++last;
      for (const int value : written) EXPECT_EQ(value, 1);
    };
    const kernel<decltype(body)> k{body, {}};
    EXPECT_TRUE(executor.launch(k, 0));
    EXPECT_EQ(last, 1);
  }
}

TEST(HostExecutor, LimitsWorkersButNeverToNone) {
  EXPECT_EQ(host_executor(8).workers(0), 8U);
  EXPECT_EQ(host_executor(8).workers(3), 3U);
  EXPECT_EQ(host_executor(8).workers(20), 8U);
  EXPECT_EQ(host_executor(0).workers(0), 1U);
}

TEST(HostExecutor, AllocatesZeroedMemoryThatItReadsAndWrites) {
  host_executor executor;
  auto memory = executor.allocate(1000);
  ASSERT_TRUE(memory);
  for (int i = 0; i < 1000; ++i) ASSERT_EQ((*memory)[i], std::byte{0});
  const std::byte in[3] = {std::byte{1}, std::byte{2}, std::byte{3}};
  std::byte out[3] = {};
  EXPECT_TRUE(executor.write(*memory + 5, in, 3));
  EXPECT_TRUE(executor.synchronize());
  EXPECT_TRUE(executor.read(out, *memory + 5, 3));
  EXPECT_EQ(out[2], std::byte{3});
  executor.release(*memory);
}

/// Counts what a launch tells a simulator.
struct hook_counts {
  std::atomic<int> entered = 0;
  std::atomic<int> left = 0;
  std::atomic<std::uint64_t> indices = 0;
  int spawned = 0;
  int joined = 0;
  std::atomic<int> relaxed = 0;
  std::atomic<int> wrong_words = 0;
  const worker_words* words = nullptr;
};

TEST(HostExecutor, TellsASimulatorAboutEveryHelperThreadAndEveryWait) {
  hook_counts counts;
  host_thread_hooks hooks;
  hooks.context = &counts;
  hooks.enter = [](void* c, std::uint32_t index) {
    ++static_cast<hook_counts*>(c)->entered;
    static_cast<hook_counts*>(c)->indices |= std::uint64_t{1} << index;
  };
  hooks.leave = [](void* c) { ++static_cast<hook_counts*>(c)->left; };
  hooks.spawn = [](void* c, std::uint32_t n) {
    static_cast<hook_counts*>(c)->spawned += static_cast<int>(n);
  };
  hooks.join = [](void* c) { ++static_cast<hook_counts*>(c)->joined; };
  hooks.relax.context = &counts;
  hooks.relax.function = [](void* c, const std::uint64_t* word, std::uint64_t at_least,
                            std::uint64_t deadline_ns) {
    auto& seen = *static_cast<hook_counts*>(c);
    ++seen.relaxed;
    if (word != &seen.words->arrived || at_least != 4 || deadline_ns == 0) ++seen.wrong_words;
    host_memory::relax();
  };
  host_executor executor(4, hooks);
  const auto body = [&](const host_worker& w) {
    EXPECT_TRUE(w.barrier(clock_view(), clock_view().now_ns() + minute));
    (void)w.last_to_leave();
  };
  const kernel<decltype(body)> k{body, {}};
  counts.words = &k.meeting;
  EXPECT_TRUE(executor.launch(k, 0));
  EXPECT_EQ(counts.spawned, 3);
  EXPECT_EQ(counts.entered, 3);
  EXPECT_EQ(counts.left, 3);
  EXPECT_EQ(counts.joined, 1);
  EXPECT_EQ(counts.indices, 0b1110U);
  EXPECT_EQ(counts.wrong_words, 0);
  EXPECT_TRUE(executor.launch(k, 1));
  EXPECT_EQ(counts.spawned, 3) << "a launch of one worker starts no thread";
}

TEST(HostThread, IsAGroupOfOne) {
  constexpr host_thread g;
  EXPECT_EQ(g.thread(), 0U);
  EXPECT_EQ(g.threads(), 1U);
  EXPECT_TRUE(g.any(true));
  EXPECT_FALSE(g.any(false));
  EXPECT_EQ(g.sum(7), 7);
  EXPECT_EQ(g.prefix(7), 0);
  EXPECT_EQ(g.first(7), 7);
  EXPECT_FLOAT_EQ(g.multiply_add(1, 2, 3), 7);
  std::byte dst[2] = {};
  const std::byte src[2] = {std::byte{1}, std::byte{2}};
  g.copy(dst, src, 2);
  g.copy(nullptr, nullptr, 0);
  g.sync();
  EXPECT_EQ(dst[1], std::byte{2});
}

}  // namespace
}  // namespace eptransport
