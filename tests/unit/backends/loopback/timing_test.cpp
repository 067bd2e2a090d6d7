// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Modelled time of the simulator equals the closed forms of what the wires charge.
#include <eptransport/backends/loopback/loopback.hpp>

#include <gtest/gtest.h>

#include <cstdint>
#include <optional>

#include "world.hpp"

namespace eptransport {
namespace {

using profiles::efa_gpu;
using profiles::efa_proxy;
using profiles::nvlink;
using testing_loopback::alone;
using testing_loopback::make;
using testing_loopback::round_numbers;

constexpr std::uint64_t second = 1'000'000'000;

/// Rank 0 sends `messages` puts of `bytes` to rank 1 over `channels`; the time when rank 1 has all.
template <class Profile>
double one_way(int messages, std::uint64_t bytes, loopback_options options = {}) {
  options.window_bytes = 1 << 20;
  options.signals = 1;
  auto world = make<Profile>(options);
  world->run([&](loopback<Profile>& rank) {
    const auto v = rank.view();
    if (v.rank() == 0) {
      for (int i = 0; i < messages; ++i) {
        const auto channel = static_cast<std::uint32_t>(i) % v.channels();
        EXPECT_EQ(v.put(alone, channel,
                        {.peer = 1,
                         .dst_offset = static_cast<std::uint64_t>(i) * bytes,
                         .src = v.local(),
                         .bytes = bytes,
                         .signal = 0},
                        second),
                  op_status::ok);
      }
    } else if (v.rank() == 1) {
      EXPECT_EQ(v.wait_signal(alone, 0, static_cast<std::uint64_t>(messages), second),
                op_status::ok);
    }
  });
  return world->modelled_ns(1);
}

TEST(LoopbackTiming, MessagesAreIssuedOneAfterAnotherThenTravelTogether) {
  EXPECT_DOUBLE_EQ(one_way<round_numbers>(1, 0), 1000 + 5000);
  EXPECT_DOUBLE_EQ(one_way<round_numbers>(15, 0), 15 * 1000 + 5000);
}

TEST(LoopbackTiming, TheChannelIsTheLimitWhenBytesTakeLongerThanTheirIssue) {
  // 1 byte/ns: 4000 ns a message against 1000 ns of issue; the first issue is not hidden.
  EXPECT_DOUBLE_EQ(one_way<round_numbers>(10, 4000), 1000 + 10 * 4000 + 5000);
}

TEST(LoopbackTiming, MoreChannelsShareOneProxyButNotOneLink) {
  EXPECT_DOUBLE_EQ(one_way<round_numbers>(10, 0, {.channels = 5}), 10 * 1000 + 5000);
  EXPECT_DOUBLE_EQ(one_way<round_numbers>(2, 4000, {.channels = 2}), 2 * 1000 + 4000 + 5000);
}

TEST(LoopbackTiming, TheNodeLimitsAllItsRanksTogether) {
  wire_charge charge{.latency_ns = 10, .node_bytes_per_s = 1e9};
  auto world = make<round_numbers>(
      {.ranks = 3, .window_bytes = 16384, .signals = 1, .nodes = {0, 0, 1}, .charge = charge});
  world->run([](loopback<round_numbers>& rank) {
    const auto v = rank.view();
    if (v.rank() == 2) {
      EXPECT_EQ(v.wait_signal(alone, 0, 2, second), op_status::ok);
      return;
    }
    const auto me = static_cast<std::uint64_t>(v.rank());
    EXPECT_EQ(
        v.put(alone, 0,
              {.peer = 2, .dst_offset = me * 4096, .src = v.local(), .bytes = 3000, .signal = 0},
              second),
        op_status::ok);
  });
  EXPECT_DOUBLE_EQ(world->modelled_ns(2), 2 * 3000 + 10);
}

TEST(LoopbackTiming, TheReceiverTakesArrivalsOneAfterAnother) {
  const wire_charge charge{.issue_ns = 10, .arrive_ns = 300, .latency_ns = 50};
  EXPECT_DOUBLE_EQ(one_way<round_numbers>(4, 0, {.charge = charge}), 10 + 50 + 4 * 300);
}

TEST(LoopbackTiming, AShortQueueMakesTheSenderWaitForTheWire) {
  const wire_charge charge{.issue_ns = 10, .latency_ns = 1000};
  // Depth 1: each message waits until the one before has arrived.
  EXPECT_DOUBLE_EQ(one_way<round_numbers>(3, 0, {.queue_depth = 1, .charge = charge}),
                   3 * (10 + 1000));
  EXPECT_DOUBLE_EQ(one_way<round_numbers>(3, 0, {.queue_depth = 3, .charge = charge}),
                   3 * 10 + 1000);
}

TEST(LoopbackTiming, AWaitForTheFirstOfSeveralArrivalsEndsAtTheFirst) {
  auto world = make<round_numbers>({.signals = 1});
  const auto a = world->rank(0).view();
  const auto b = world->rank(1).view();
  for (int i = 0; i < 3; ++i) EXPECT_EQ(a.signal(alone, 0, 1, 0, second), op_status::ok);
  EXPECT_EQ(b.wait_signal(alone, 0, 1, second), op_status::ok);
  EXPECT_EQ(b.now_ns(), 6000U);
  EXPECT_EQ(b.wait_signal(alone, 0, 3, second), op_status::ok);
  EXPECT_EQ(b.now_ns(), 8000U);
}

TEST(LoopbackTiming, AnArrivalAfterTheDeadlineIsAnExpiry) {
  auto world = make<round_numbers>({.signals = 1});
  EXPECT_EQ(world->rank(0).view().signal(alone, 0, 1, 0, second), op_status::ok);
  const auto b = world->rank(1).view();
  EXPECT_EQ(b.wait_signal(alone, 0, 1, 5999), op_status::expired);
  EXPECT_EQ(b.wait_signal(alone, 0, 1, 6000), op_status::ok);
}

TEST(LoopbackTiming, TheProxyTaxOfSixteenRanksIsWhatWasDerived) {
  auto world = make<efa_proxy>({.ranks = 16, .signals = 1});
  world->run([](loopback<efa_proxy>& rank) {
    const auto v = rank.view();
    for (int i = 1; i < v.size(); ++i) {
      EXPECT_EQ(v.signal(alone, 0, (v.rank() + i) % v.size(), 0, second), op_status::ok);
    }
    EXPECT_EQ(v.wait_signal(alone, 0, 15, second), op_status::ok);
  });
  for (int rank = 0; rank < 16; ++rank) {
    const double latency = efa_proxy::caps.charge.latency_ns;
    EXPECT_NEAR(world->modelled_ns(rank), 14.7e6 / 96 + latency, 1);
  }
}

TEST(LoopbackTiming, StoresThroughAnAddressPrecedeALaterSignal) {
  auto world = make<nvlink>({.window_bytes = 1 << 20, .signals = 1});
  const auto a = world->rank(0).view();
  EXPECT_NE(a.peer_pointer(1, 0, 369'000), nullptr);  // 1000 ns at the measured rate
  EXPECT_EQ(a.signal(alone, 0, 1, 0, second), op_status::ok);
  const auto b = world->rank(1).view();
  EXPECT_EQ(b.wait_signal(alone, 0, 1, second), op_status::ok);
  EXPECT_NEAR(world->modelled_ns(1), 1000 + nvlink::caps.charge.latency_ns, 1);
}

TEST(LoopbackTiming, PostingCostsTheRankItsOwnTimeOnlyWithoutAProxy) {
  auto proxied = make<efa_proxy>({.signals = 1});
  auto direct = make<efa_gpu>({.signals = 1});
  for (int i = 0; i < 10; ++i) {
    EXPECT_EQ(proxied->rank(0).view().signal(alone, 0, 1, 0, second), op_status::ok);
    EXPECT_EQ(direct->rank(0).view().signal(alone, 0, 1, 0, second), op_status::ok);
  }
  EXPECT_DOUBLE_EQ(proxied->modelled_ns(0), 0);
  EXPECT_DOUBLE_EQ(direct->modelled_ns(0), 10 * loopback_detail::timing::post_ns);
}

TEST(LoopbackTiming, AdvanceSpendsTimeAndResetStartsANewMeasurement) {
  auto world = make<round_numbers>({.signals = 1});
  world->advance(0, 700);
  world->advance(1, 300);
  EXPECT_DOUBLE_EQ(world->modelled_ns(0), 700);
  EXPECT_DOUBLE_EQ(world->modelled_ns(1), 300);
  EXPECT_EQ(world->rank(1).view().signal(alone, 0, 0, 0, second), op_status::ok);
  world->reset_statistics();
  EXPECT_DOUBLE_EQ(world->modelled_ns(0), 0);
  EXPECT_DOUBLE_EQ(world->modelled_ns(1), 0);
  EXPECT_EQ(world->rank(1).view().now_ns(), 700U);
  // The proxy is idle again: one message takes what it takes.
  EXPECT_EQ(world->rank(1).view().signal(alone, 0, 0, 0, second), op_status::ok);
  EXPECT_EQ(world->rank(0).view().wait_signal(alone, 0, 2, second), op_status::ok);
  EXPECT_DOUBLE_EQ(world->modelled_ns(0), 6000);
}

TEST(LoopbackTiming, LookingAtWordsCostsNothingUntilItBecomesAPoll) {
  auto world = make<efa_proxy>({.ranks = 2, .signals = 600});
  world->run([](loopback<efa_proxy>& rank) {
    const auto v = rank.view();
    for (int call = 0; call < 5; ++call) {
      for (std::uint32_t s = 0; s < rank.signals(); ++s) EXPECT_EQ(v.read_signal(s), 0U);
      EXPECT_EQ(v.flush(alone, 0, second), op_status::ok);
    }
    EXPECT_EQ(v.now_ns(), 0U);
  });
}

TEST(LoopbackTiming, APollerFollowsTheClocksOfThoseWhoStillRun) {
  auto world = make<round_numbers>({.ranks = 2, .signals = 1});
  world->run([&](loopback<round_numbers>& rank) {
    const auto v = rank.view();
    if (v.rank() == 0) {
      while (v.read_signal(0) == 0) ASSERT_LT(v.now_ns(), second);
      return;
    }
    world->advance(1, 400'000);
    EXPECT_EQ(v.signal(alone, 0, 0, 0, second), op_status::ok);
  });
  EXPECT_DOUBLE_EQ(world->modelled_ns(0), 400'000 + 1000 + 5000);
}

/// A kernel whose workers each spend another time, then meet.
struct uneven_work {
  loopback_world<round_numbers>* world;
  loopback_view<round_numbers> view;
  mutable worker_words meeting;
  [[nodiscard]] worker_words* words() const { return &meeting; }
  void operator()(const host_worker& w) const {
    world->advance(view.rank(), 1000 * (w.worker() + 1));
    EXPECT_TRUE(w.barrier(view, second));
    EXPECT_EQ(view.now_ns(), 4000U);
    world->advance(view.rank(), 100 * (4 - w.worker()));
    (void)w.last_to_leave();
  }
};

TEST(LoopbackTiming, WorkersHaveClocksThatMeetInBarriersAndAtTheEnd) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    auto world =
        make<round_numbers>({.ranks = 2, .order = delivery::shuffled, .seed = seed, .workers = 4});
    world->run([&](loopback<round_numbers>& rank) {
      const uneven_work kernel{world.get(), rank.view(), {}};
      EXPECT_TRUE(rank.executor().launch(kernel, 0));
    });
    EXPECT_DOUBLE_EQ(world->modelled_ns(0), 4400) << "seed " << seed;
  }
}

}  // namespace
}  // namespace eptransport
