// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The baton: one thread at a time, the same seed the same run, a clock that jumps.
#include <eptransport/core/baton.hpp>
#include <eptransport/core/guarded_window.hpp>

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <thread>
#include <vector>

namespace eptransport {
namespace {

/// Counts to `goal`, one a step.
struct counter {
  int value = 0;
  int goal = 0;

  [[nodiscard]] baton_agent agent() {
    return {this, [](void* self) {
              auto& me = *static_cast<counter*>(self);
              if (me.value == me.goal) return false;
              ++me.value;
              return true;
            }};
  }
};

struct outcome {
  std::string order;
  std::uint64_t trace = 0;
};

/// Three threads that write their letters in turns, each waiting for the agent to count on.
outcome run(std::uint64_t seed) {
  counter work{0, 30};
  baton turns({work.agent()}, seed, 1'000'000);
  outcome out;
  const std::size_t first = turns.announce(3);
  std::vector<std::thread> threads;
  for (std::size_t t = 0; t < 3; ++t) {
    threads.emplace_back([&, t] {
      turns.take(first + t);
      for (int turn = 1; turn <= 10; ++turn) {
        out.order += static_cast<char>('a' + t);  // unguarded: the baton is the guard
        struct wish {
          counter& work;
          int at_least;
        } what{work, 3 * turn};
        turns.wait({[](void* w) {
                      const auto& it = *static_cast<wish*>(w);
                      return it.work.value >= it.at_least;
                    },
                    &what},
                   ~std::uint64_t{0});
      }
      turns.leave();
    });
  }
  turns.start();
  for (std::thread& t : threads) t.join();
  turns.forget();
  out.trace = turns.trace_hash();
  return out;
}

TEST(Baton, TheSameSeedMakesTheSameRun) {
  bool differ = false;
  const outcome reference = run(1);
  EXPECT_EQ(reference.order.size(), 30U);
  for (std::uint64_t seed = 1; seed <= 8; ++seed) {
    const outcome one = run(seed);
    const outcome again = run(seed);
    EXPECT_EQ(one.order, again.order) << "seed " << seed;
    EXPECT_EQ(one.trace, again.trace) << "seed " << seed;
    differ = differ || one.order != reference.order;
  }
  EXPECT_TRUE(differ) << "the seed decides nothing";
}

TEST(Baton, TheClockJumpsToADeadlineWhenNothingElseCanHappen) {
  counter idle;
  baton turns({idle.agent()}, 1, 10'000'000'000);
  const std::uint64_t deadline = turns.now_ns() + 3'600'000'000'000;
  turns.wait({[](void*) { return false; }, nullptr}, deadline);
  EXPECT_GT(turns.now_ns(), deadline);
}

TEST(Baton, AgentsAreWatchedOnTheVirtualClock) {
  int watched = 0;
  baton turns({{&watched, [](void*) { return false; }, [](void* n) { ++*static_cast<int*>(n); }}},
              1, 1'000'000);
  turns.wait({[](void*) { return false; }, nullptr}, turns.now_ns() + 10'000'000);
  EXPECT_GE(watched, 9);
  EXPECT_LE(watched, 12);
}

TEST(GuardedWindow, ItIsZeroedAndAByteBesideItIsSeen) {
  for (const std::ptrdiff_t where : {std::ptrdiff_t{-1}, std::ptrdiff_t{100}}) {
    guarded_window window(100);
    ASSERT_TRUE(window.valid());
    for (std::size_t i = 0; i < 100; ++i) EXPECT_EQ(window.data()[i], std::byte{0});
    window.data()[0] = window.data()[99] = std::byte{1};
    EXPECT_TRUE(window.intact());
    window.data()[where] = std::byte{1};
    EXPECT_FALSE(window.intact()) << where;
  }
  EXPECT_FALSE(guarded_window(~std::uint64_t{0}).valid());
}

TEST(GuardedWindow, MemoryOfTheCallerIsTakenAsItIs) {
  std::vector<std::byte> memory(100, std::byte{7});
  const guarded_window window{std::span(memory)};
  EXPECT_TRUE(window.valid());
  EXPECT_EQ(window.data(), memory.data());
  EXPECT_EQ(window.bytes(), 100U);
  EXPECT_TRUE(window.intact());
  EXPECT_EQ(memory, std::vector<std::byte>(100, std::byte{7}));
}

}  // namespace
}  // namespace eptransport
