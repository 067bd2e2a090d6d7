// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The proxy thread: it drives all its engines, goes quiet, watches, and says where it runs.
#include <eptransport/proxy/driver.hpp>
#include <eptransport/proxy/statistics.hpp>

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>

namespace eptransport::proxy {
namespace {

/// Has `work` steps to do, then none.
struct fake_engine {
  bool step() {
    steps.fetch_add(1);
    if (work.load() == 0) return false;
    work.fetch_sub(1);
    return true;
  }
  void watch() { watches.fetch_add(1); }
  engine_statistics& statistics() { return numbers; }

  std::atomic<std::uint64_t> work = 0;
  std::atomic<std::uint64_t> steps = 0;
  std::atomic<std::uint64_t> watches = 0;
  engine_statistics numbers;
};

template <class Condition>
bool soon(const Condition& done) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (!done() && std::chrono::steady_clock::now() < end) std::this_thread::yield();
  return done();
}

TEST(Driver, DrivesAllItsEnginesNapsWhenIdleAndWakes) {
  fake_engine a;
  fake_engine b;
  const idle_policy soon_asleep{.spins = 2, .pauses = 2, .yields = 2, .nap_ns = 50'000};
  const driver thread({drive(a), drive(b)}, {.idle = soon_asleep, .stall_ns = ~0ULL / 4});
  for (int round = 0; round < 3; ++round) {
    const std::uint64_t naps = b.numbers.naps.get();
    a.work = 100;
    b.work = 5;
    EXPECT_TRUE(soon([&] { return a.work == 0 && b.work == 0; }));
    EXPECT_TRUE(soon([&] { return b.numbers.naps.get() > naps; }));
  }
  EXPECT_EQ(a.watches.load(), 0U);
}

TEST(Driver, WatchesFourTimesWithinTheStallLimit) {
  fake_engine idle;
  const driver thread({drive(idle)}, {.idle = polite, .stall_ns = 8'000'000});
  EXPECT_TRUE(soon([&] { return idle.watches.load() >= 4; }));
}

TEST(Driver, StopsAThreadOrSaysThatItDoesNotComeBack) {
  std::atomic<bool> held = true;
  std::atomic<bool> inside = false;
  struct shared {
    std::atomic<bool>& held;
    std::atomic<bool>& inside;
  } both{held, inside};
  const auto step = [](void* p) {
    const auto& s = *static_cast<shared*>(p);
    s.inside = true;
    while (s.held.load()) std::this_thread::yield();
    return false;
  };
  const auto nothing = [](void*) {};
  driver thread({{&both, step, nothing, nothing}}, {.idle = polite});
  ASSERT_TRUE(soon([&] { return inside.load(); }));
  using clock = std::chrono::steady_clock;
  EXPECT_FALSE(thread.stop_until(clock::now() + std::chrono::milliseconds(5)));
  held = false;
  EXPECT_TRUE(thread.stop_until(clock::now() + std::chrono::seconds(20)));
  EXPECT_TRUE(thread.stop_until(clock::now()));
}

TEST(Driver, PinsOnlyWhenAskedAndReportsWhereItRuns) {
  fake_engine engine;
  std::string everywhere;
  {
    const driver thread({drive(engine)}, {.idle = polite});
    everywhere = thread.affinity();
  }
  EXPECT_FALSE(everywhere.empty());
#if defined(__linux__)
  const int first = std::stoi(everywhere);
  const driver pinned({drive(engine)}, {.idle = polite, .cpus = {first}});
  EXPECT_EQ(pinned.affinity(), std::to_string(first));
  // What the system refuses shows: the affinity is what it was.
  const driver nowhere({drive(engine)}, {.idle = polite, .cpus = {CPU_SETSIZE - 1}});
  EXPECT_EQ(nowhere.affinity(), everywhere);
#endif
}

}  // namespace
}  // namespace eptransport::proxy
