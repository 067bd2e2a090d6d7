// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Injected faults of the simulator do what their names say, and cost no wall time.
#include <eptransport/backends/loopback/loopback.hpp>

#include <gtest/gtest.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <system_error>

#include "world.hpp"

namespace eptransport {
namespace {

using profiles::efa_proxy;
using profiles::ib_gpu;
using testing_loopback::alone;
using testing_loopback::make;
using testing_loopback::round_numbers;

constexpr std::uint64_t second = 1'000'000'000;

TEST(LoopbackFault, RefusedAMillionTimesAPutGoesOutOnce) {
  auto world = make<efa_proxy>(
      {.window_bytes = 64,
       .signals = 1,
       .order = delivery::shuffled,
       .faults = {{.kind = loopback_fault::refuse, .rank = 0, .count = 1'000'000}}});
  world->run([](loopback<efa_proxy>& rank) {
    const auto v = rank.view();
    if (v.rank() == 0) {
      EXPECT_EQ(v.put(alone, 0, {.peer = 1, .src = v.local(), .bytes = 8, .signal = 0}, second),
                op_status::ok);
    } else {
      EXPECT_EQ(v.wait_signal(alone, 0, 1, second), op_status::ok);
    }
  });
  EXPECT_EQ(world->messages(0), 1U);
  EXPECT_EQ(world->rank(1).view().read_signal(0), 1U);
}

/// Every worker signals the next rank once.
struct signal_kernel {
  loopback_view<efa_proxy> view;
  mutable worker_words meeting;
  [[nodiscard]] worker_words* words() const { return &meeting; }
  void operator()(const host_worker& w) const {
    EXPECT_EQ(view.signal(w, 0, (view.rank() + 1) % view.size(), 0, second), op_status::ok);
    (void)w.last_to_leave();
  }
};

TEST(LoopbackFault, WorkersThatAreRefusedTogetherAllGetThrough) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    auto world =
        make<efa_proxy>({.signals = 1,
                         .order = delivery::shuffled,
                         .seed = seed,
                         .workers = 3,
                         .faults = {{.kind = loopback_fault::refuse, .rank = 0, .count = 1000}}});
    world->run([](loopback<efa_proxy>& rank) {
      EXPECT_TRUE(rank.executor().launch(signal_kernel{rank.view(), {}}, 0));
      EXPECT_EQ(rank.view().wait_signal(alone, 0, 3, second), op_status::ok) << "of all workers";
    });
  }
}

TEST(LoopbackFault, RefusalsGoOnUntilTheDeadlineAndNoLonger) {
  auto world = make<efa_proxy>(
      {.signals = 1, .faults = {{.kind = loopback_fault::refuse, .rank = 0, .count = 1'000'000}}});
  const auto v = world->rank(0).view();
  EXPECT_EQ(v.signal(alone, 0, 1, 0, 5000), op_status::expired);
  EXPECT_GT(v.now_ns(), 5000U);
  EXPECT_LT(v.now_ns(), 6000U);
  EXPECT_TRUE(world->rank(0).fault());
}

TEST(LoopbackFault, AHardErrorKeepsItsNativeCodeAndNamesTheOperation) {
  auto world =
      make<ib_gpu>({.window_bytes = 64,
                    .signals = 1,
                    .faults = {{.kind = loopback_fault::hard_error, .rank = 0, .after_ops = 2}}});
  const auto v = world->rank(0).view();
  EXPECT_EQ(v.signal(alone, 0, 1, 0, second), op_status::ok);
  EXPECT_EQ(v.signal(alone, 0, 1, 0, second), op_status::ok);
  EXPECT_EQ(v.put(alone, 0, {.peer = 1, .src = v.local(), .bytes = 16}, second), op_status::failed);
  const auto why = world->rank(0).fault();
  ASSERT_FALSE(why);
  EXPECT_EQ(why.error().code, std::errc::io_error);
  const std::string text = why.error().message();
  EXPECT_NE(text.find("rank 0, channel 0, to rank 1, 16 bytes, operation 2"), std::string::npos)
      << text;
  EXPECT_EQ(v.flush(alone, 0, second), op_status::failed);
  EXPECT_FALSE(world->rank(0).barrier(second));
  EXPECT_EQ(world->rank(1).view().wait_signal(alone, 0, 2, second), op_status::ok);
}

TEST(LoopbackFault, LostMessagesLeaveNeitherBytesNorSignal) {
  auto world = make<efa_proxy>(
      {.window_bytes = 64,
       .signals = 1,
       .faults = {{.kind = loopback_fault::lose, .rank = 0, .after_ops = 1, .count = 2}}});
  const auto a = world->rank(0).view();
  a.local()[0] = std::byte{9};
  for (std::uint64_t i = 0; i < 4; ++i) {
    EXPECT_EQ(
        a.put(alone, 0, {.peer = 1, .dst_offset = i, .src = a.local(), .bytes = 1, .signal = 0},
              second),
        op_status::ok);
  }
  const auto b = world->rank(1).view();
  EXPECT_EQ(b.read_signal(0), 2U);
  EXPECT_EQ(b.local()[0], std::byte{9});
  EXPECT_EQ(b.local()[1], std::byte{0});
  EXPECT_EQ(b.local()[2], std::byte{0});
  EXPECT_EQ(b.local()[3], std::byte{9});
  EXPECT_EQ(b.wait_signal(alone, 0, 3, second), op_status::expired);
}

/// What rank 1 sees of a message that is `delay_ns` late, with a deadline of 1 ms.
template <class Profile>
op_status wait_for_late(std::uint64_t delay_ns, delivery order) {
  auto world =
      make<Profile>({.window_bytes = 64,
                     .signals = 1,
                     .order = order,
                     .faults = {{.kind = loopback_fault::late, .rank = 0, .delay_ns = delay_ns}}});
  op_status status = op_status::failed;
  world->run([&](loopback<Profile>& rank) {
    const auto v = rank.view();
    if (v.rank() == 0) {
      EXPECT_EQ(v.put(alone, 0, {.peer = 1, .src = v.local(), .bytes = 8, .signal = 0}, second),
                op_status::ok);
      EXPECT_EQ(v.flush(alone, 0, second), op_status::ok);
      return;
    }
    status = v.wait_signal(alone, 0, 1, 1'000'000);
    EXPECT_EQ(v.read_signal(0), status == op_status::ok ? 1U : 0U);
    EXPECT_EQ(v.wait_signal(alone, 0, 1, 2 * second), op_status::ok);
    EXPECT_GE(v.now_ns(), delay_ns);
  });
  return status;
}

TEST(LoopbackFault, ALateMessageArrivesThenAndNotBefore) {
  for (const delivery order : {delivery::immediate, delivery::shuffled}) {
    EXPECT_EQ(wait_for_late<efa_proxy>(500'000, order), op_status::ok);
    EXPECT_EQ(wait_for_late<efa_proxy>(50'000'000, order), op_status::expired);
    EXPECT_EQ(wait_for_late<ib_gpu>(50'000'000, order), op_status::expired);
  }
}

TEST(LoopbackFault, AnOrderedWireHoldsBackWhatFollowsALateMessage) {
  auto world = make<ib_gpu>(
      {.signals = 2, .faults = {{.kind = loopback_fault::late, .rank = 0, .delay_ns = 1'000'000}}});
  world->run([](loopback<ib_gpu>& rank) {
    const auto v = rank.view();
    if (v.rank() == 0) {
      EXPECT_EQ(v.signal(alone, 0, 1, 0, second), op_status::ok);
      EXPECT_EQ(v.signal(alone, 0, 1, 1, second), op_status::ok);
      return;
    }
    EXPECT_EQ(v.wait_signal(alone, 1, 1, second), op_status::ok);
    EXPECT_EQ(v.read_signal(0), 1U);
  });
}

TEST(LoopbackFault, AKilledRankIsSilenceToOthersAndCostsNoWallTime) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    auto world =
        make<efa_proxy>({.ranks = 3,
                         .window_bytes = 64,
                         .signals = 3,
                         .order = delivery::shuffled,
                         .seed = seed,
                         .faults = {{.kind = loopback_fault::kill, .rank = 0, .after_ops = 1}}});
    const auto start = std::chrono::steady_clock::now();
    world->run([](loopback<efa_proxy>& rank) {
      constexpr std::uint64_t minute = 60 * second;
      const auto v = rank.view();
      const auto mine = static_cast<std::uint32_t>(v.rank());
      const op_status to_1 = v.signal(alone, 0, 1, mine, minute);
      const op_status to_2 = v.signal(alone, 0, 2, mine, minute);
      if (v.rank() == 0) {
        EXPECT_EQ(to_1, op_status::ok);
        EXPECT_EQ(to_2, op_status::failed);
        EXPECT_EQ(v.wait_signal(alone, 1, 1, minute), op_status::failed);
        return;
      }
      EXPECT_EQ(v.wait_signal(alone, 1, 1, minute), op_status::ok);
      EXPECT_EQ(v.wait_signal(alone, 2, 1, minute), op_status::ok);
      if (v.rank() == 2) {
        EXPECT_EQ(v.wait_signal(alone, 0, 1, minute), op_status::expired);
      }
      EXPECT_TRUE(rank.fault());
    });
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(20));
    const auto why = world->rank(0).fault();
    ASSERT_FALSE(why);
    EXPECT_EQ(why.error().code, std::errc::connection_aborted);
  }
}

TEST(LoopbackFault, ABarrierThatTimesOutNamesWhoIsMissing) {
  auto world = make<round_numbers>({.ranks = 4});
  world->run([](loopback<round_numbers>& rank) {
    if (rank.view().rank() % 2 == 1) return;
    const auto met = rank.barrier(second);
    ASSERT_FALSE(met);
    EXPECT_EQ(met.error().code, errc::timed_out);
    EXPECT_NE(met.error().message().find("waited for ranks 1, 3"), std::string::npos)
        << met.error().message();
  });
  world->run([](loopback<round_numbers>& rank) { EXPECT_TRUE(rank.barrier(second)); });
}

TEST(LoopbackFault, WaitsWithoutADeadlineThatCannotEndFailInsteadOfHanging) {
  auto world = make<efa_proxy>({.ranks = 3, .signals = 1});
  world->run([](loopback<efa_proxy>& rank) {
    EXPECT_EQ(rank.view().wait_signal(alone, 0, 1, no_deadline), op_status::failed);
    const auto why = rank.fault();
    ASSERT_FALSE(why);
    EXPECT_NE(why.error().message().find("deadlock"), std::string::npos);
  });
}

TEST(LoopbackFault, ALoopThatPollsASignalReachesItsDeadlineAndLetsOthersRun) {
  for (const delivery order : {delivery::immediate, delivery::shuffled}) {
    auto world = make<efa_proxy>({.ranks = 2, .signals = 2, .order = order});
    world->run([](loopback<efa_proxy>& rank) {
      const auto v = rank.view();
      if (v.rank() == 0) {
        EXPECT_EQ(v.signal(alone, 0, 1, 0, second), op_status::ok);
        EXPECT_EQ(v.wait_signal(alone, 1, 1, second / 2), op_status::expired);
        return;
      }
      while (v.read_signal(0) == 0) ASSERT_LE(v.now_ns(), second);
      while (v.now_ns() <= second) EXPECT_EQ(v.read_signal(1), 0U);
    });
  }
}

TEST(LoopbackFault, AFullQueueThatNeverDrainsEndsAtTheDeadline) {
  auto world = make<round_numbers>({.signals = 1, .queue_depth = 1});
  const auto v = world->rank(0).view();
  EXPECT_EQ(v.signal(alone, 0, 1, 0, second), op_status::ok);
  auto stuck = make<round_numbers>(
      {.signals = 1,
       .faults = {{.kind = loopback_fault::late, .rank = 0, .delay_ns = 50 * second}},
       .queue_depth = 1});
  const auto s = stuck->rank(0).view();
  EXPECT_EQ(s.signal(alone, 0, 1, 0, second), op_status::ok);
  EXPECT_EQ(s.signal(alone, 0, 1, 0, second), op_status::expired);
  EXPECT_EQ(s.signal(alone, 0, 1, 0, 100 * second), op_status::ok);
}

}  // namespace
}  // namespace eptransport
