// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief What an observer of a simulated world sees: traffic, replays, violations.
#include <eptransport/backends/loopback/loopback.hpp>
#include <eptransport/backends/loopback/view.hpp>

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "world.hpp"

namespace eptransport {
namespace {

using profiles::efa_proxy;
using profiles::ib_gpu;
using profiles::nvlink;
using testing_loopback::alone;
using testing_loopback::make;
using testing_loopback::round_numbers;

constexpr std::uint64_t second = 1'000'000'000;

TEST(Loopback, CountsMessagesAndBytesToOthersAndThePartThatLeavesTheNode) {
  auto world = make<efa_proxy>({.ranks = 3, .window_bytes = 256, .signals = 1, .nodes = {0, 0, 1}});
  world->run([](loopback<efa_proxy>& rank) {
    if (rank.view().rank() != 0) return;
    const auto v = rank.view();
    for (int peer = 0; peer < 3; ++peer) {
      EXPECT_EQ(v.put(alone, 0, {.peer = peer, .src = v.local() + 128, .bytes = 100}, second),
                op_status::ok);
    }
    EXPECT_EQ(v.signal(alone, 0, 2, 0, second), op_status::ok);
  });
  EXPECT_EQ(world->messages(0), 3U);
  EXPECT_EQ(world->bytes(0), 200U);
  EXPECT_EQ(world->traffic(0).inter_messages, 2U);
  EXPECT_EQ(world->traffic(0).inter_bytes, 100U);
  EXPECT_EQ(world->messages(1), 0U);
  world->reset_statistics();
  EXPECT_EQ(world->messages(0), 0U);
  EXPECT_EQ(world->bytes(0), 0U);
}

TEST(Loopback, CountsBytesOfAddressesOfPeersButNotItsOwn) {
  auto world = make<nvlink>({.window_bytes = 4096});
  const auto v = world->rank(0).view();
  EXPECT_NE(v.peer_pointer(1, 0, 1000), nullptr);
  EXPECT_NE(v.peer_pointer(0, 0, 1000), nullptr);
  EXPECT_EQ(world->bytes(0), 1000U);
  EXPECT_EQ(world->messages(0), 0U);
}

TEST(Loopback, OutsideARunOneThreadCanDriveAllRanks) {
  auto world =
      make<efa_proxy>({.window_bytes = 64, .signals = 1, .order = delivery::shuffled, .seed = 9});
  const auto a = world->rank(0).view();
  const auto b = world->rank(1).view();
  a.local()[32] = std::byte{7};
  ASSERT_EQ(a.put(alone, 0, {.peer = 1, .src = a.local() + 32, .bytes = 1, .signal = 0}, second),
            op_status::ok);
  EXPECT_EQ(b.wait_signal(alone, 0, 1, second), op_status::ok);
  EXPECT_EQ(b.local()[0], std::byte{7});
  EXPECT_EQ(b.wait_signal(alone, 0, 2, second), op_status::expired);
}

// Long: a sanitizer writes its shadow of all those pages.
TEST(LongLoopback, WindowsBeyondFourGibibytesAreAddressedRight) {
  constexpr std::uint64_t bytes = (std::uint64_t{4} << 30) + 4096;
  auto world = make<nvlink>({.window_bytes = bytes, .signals = 1});
  ASSERT_NE(world, nullptr);
  world->run([](loopback<nvlink>& rank) {
    const auto v = rank.view();
    if (v.rank() == 0) {
      v.local()[0] = std::byte{42};
      EXPECT_EQ(
          v.put(alone, 0,
                {.peer = 1, .dst_offset = bytes - 1, .src = v.local(), .bytes = 1, .signal = 0},
                second),
          op_status::ok);
    } else {
      EXPECT_EQ(v.wait_signal(alone, 0, 1, second), op_status::ok);
      EXPECT_EQ(v.local()[bytes - 1], std::byte{42});
      EXPECT_EQ(v.local()[4095], std::byte{0});
    }
  });
  EXPECT_EQ(world->violations(), "");
}

/// An all-to-all of signals, three times over, by four workers a rank.
template <class Profile>
std::uint64_t all_to_all(loopback_options options, double* modelled_ns = nullptr) {
  options.signals = static_cast<std::uint32_t>(options.ranks);
  auto world = make<Profile>(options);
  struct kernel {
    loopback_view<Profile> view;
    mutable worker_words meeting;
    worker_words* words() const { return &meeting; }
    void operator()(const host_worker& w) const {
      const std::uint64_t deadline = view.now_ns() + second;
      for (std::uint64_t round = 1; round <= 3; ++round) {
        const auto step = static_cast<int>(w.workers());
        for (int peer = static_cast<int>(w.worker()); peer < view.size(); peer += step) {
          const auto mine = static_cast<std::uint32_t>(view.rank());
          EXPECT_EQ(view.signal(w, 0, peer, mine, deadline), op_status::ok);
        }
        for (int peer = static_cast<int>(w.worker()); peer < view.size(); peer += step) {
          EXPECT_EQ(view.wait_signal(w, static_cast<std::uint32_t>(peer), round, deadline),
                    op_status::ok);
        }
        EXPECT_TRUE(w.barrier(view, deadline));
      }
      (void)w.last_to_leave();
    }
  };
  world->run([](loopback<Profile>& rank) {
    const kernel k{rank.view(), {}};
    EXPECT_TRUE(rank.executor().launch(k, 0));
  });
  if (modelled_ns != nullptr) *modelled_ns = world->modelled_ns(0);
  return world->trace_hash();
}

TEST(Loopback, SixtyFourRanksOfFourWorkersFinishSoonOnAnyMachine) {
  all_to_all<efa_proxy>({.ranks = 64, .order = delivery::shuffled, .workers = 4});
}

TEST(Loopback, TheSameSeedReplaysAndAnotherOneDoesNot) {
  std::set<std::uint64_t> hashes;
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    const loopback_options options{
        .ranks = 5, .order = delivery::shuffled, .seed = seed, .workers = 3};
    double first = 0;
    double again = 0;
    const std::uint64_t hash = all_to_all<efa_proxy>(options, &first);
    EXPECT_EQ(hash, all_to_all<efa_proxy>(options, &again)) << "seed " << seed;
    EXPECT_DOUBLE_EQ(first, again) << "seed " << seed;
    hashes.insert(hash);
  }
  EXPECT_EQ(hashes.size(), 20U);
}

/// Rank 0 sends one request; the transport must refuse it and say so.
template <class Profile>
void expect_refused(const put_request& request, std::uint32_t channel, const std::string& why) {
  for (const run_mode mode : {run_mode::baton, run_mode::free}) {
    auto world = make<Profile>({.window_bytes = 8192, .signals = 2, .mode = mode});
    const auto v = world->rank(0).view();
    put_request sent = request;
    if (sent.src == nullptr) sent.src = v.local();
    EXPECT_EQ(v.put(alone, channel, sent, second), op_status::failed) << why;
    EXPECT_NE(world->violations().find(why), std::string::npos) << world->violations();
    const auto fault = world->rank(0).fault();
    ASSERT_FALSE(fault);
    EXPECT_NE(fault.error().message().find(why), std::string::npos) << fault.error().message();
    EXPECT_EQ(v.wait_signal(alone, 0, 0, second), op_status::failed);
    EXPECT_TRUE(world->rank(1).fault());
    for (const std::byte b : world->rank(1).window()) ASSERT_EQ(b, std::byte{0});
  }
}

TEST(LoopbackViolations, RequestsAgainstTheContractFailAndWriteNothing) {
  std::byte elsewhere[64] = {std::byte{1}};
  expect_refused<round_numbers>({.peer = 1, .dst_offset = 8190, .bytes = 4}, 0,
                                "4 bytes at 8190 of rank 1, its window has 8192");
  expect_refused<round_numbers>({.peer = 1, .dst_offset = ~std::uint64_t{0}, .bytes = 4}, 0,
                                "its window has 8192");
  expect_refused<round_numbers>({.peer = 2}, 0, "peer 2 of 2 ranks");
  expect_refused<round_numbers>({.peer = -1}, 0, "peer -1 of 2 ranks");
  expect_refused<round_numbers>({.peer = 1}, 1, "channel 1 of 1");
  expect_refused<round_numbers>({.peer = 1, .signal = 2}, 0, "signal 2 of 2");
  expect_refused<round_numbers>({.peer = 1, .bytes = 4097}, 0, "4097 bytes, max_message is 4096");
  expect_refused<round_numbers>({.peer = 1, .src = elsewhere, .bytes = 64}, 0,
                                "64 bytes from outside the own window");
}

TEST(LoopbackViolations, InlineBytesNeedNoRegisteredSource) {
  auto world = make<round_numbers>({.window_bytes = 64, .signals = 1});
  const std::byte elsewhere[8] = {std::byte{1}};
  const auto v = world->rank(0).view();
  EXPECT_EQ(v.put(alone, 0, {.peer = 1, .src = elsewhere, .bytes = 8}, second), op_status::ok);
  EXPECT_EQ(world->rank(1).window()[0], std::byte{1});
}

TEST(LoopbackViolations, AddressesOutsideAWindowAreNullAndNoted) {
  auto world = make<nvlink>({.window_bytes = 4096});
  const auto v = world->rank(0).view();
  EXPECT_EQ(v.peer_pointer(1, 4095, 2), nullptr);
  EXPECT_EQ(v.peer_pointer(0, 4097, 0), nullptr);
  EXPECT_EQ(v.peer_pointer(2, 0, 1), nullptr);
  EXPECT_NE(world->violations().find("2 bytes at 4095 of rank 1"), std::string::npos);
}

TEST(LoopbackViolations, DamagedGuardZonesAreNoted) {
  for (const std::ptrdiff_t where : {std::ptrdiff_t{-1}, std::ptrdiff_t{4096}}) {
    auto world = make<nvlink>({.window_bytes = 4096});
    EXPECT_EQ(world->violations(), "");
    world->rank(1).view().local()[where] = std::byte{0};
    EXPECT_NE(world->violations().find("guard zone of rank 1"), std::string::npos);
  }
}

TEST(LoopbackViolations, ASecondPutIntoASlotThatWasNotReadIsNoted) {
  auto world = make<ib_gpu>({.window_bytes = 256, .signals = 1});
  const auto a = world->rank(0).view();
  const auto b = world->rank(1).view();
  const auto put = [&](std::uint64_t offset) {
    EXPECT_EQ(
        a.put(alone, 0,
              {.peer = 1, .dst_offset = offset, .src = a.local() + 128, .bytes = 16, .signal = 0},
              second),
        op_status::ok);
  };
  put(0);
  put(16);
  EXPECT_EQ(b.wait_signal(alone, 0, 2, second), op_status::ok);
  put(0);  // both were acquired: free again
  EXPECT_EQ(world->violations(), "");
  put(15);  // its first byte is the last of what nobody has read
  EXPECT_NE(world->violations().find("wrote 16 bytes at 15 of rank 1"), std::string::npos);
}

TEST(LoopbackViolations, TwoPutsIntoOneSlotInFlightAreNotedWhateverTheOrder) {
  for (std::uint64_t seed = 1; seed <= 10; ++seed) {
    auto world = make<efa_proxy>(
        {.ranks = 3, .window_bytes = 256, .signals = 1, .order = delivery::shuffled, .seed = seed});
    world->run([](loopback<efa_proxy>& rank) {
      const auto v = rank.view();
      if (v.rank() == 2) {
        EXPECT_EQ(v.wait_signal(alone, 0, 2, second), op_status::ok);
        return;
      }
      EXPECT_EQ(v.put(alone, 0, {.peer = 2, .src = v.local(), .bytes = 64, .signal = 0}, second),
                op_status::ok);
    });
    EXPECT_NE(world->violations().find("over an earlier put"), std::string::npos)
        << "seed " << seed;
  }
}

}  // namespace
}  // namespace eptransport
