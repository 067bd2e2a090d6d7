// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Ranks over shared memory: who shares a node, and what is refused and by which name.
#include <eptransport/backends/shared_memory/shared_memory.hpp>

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "support/in_process_bootstrap.hpp"

namespace eptransport::testing {
namespace {

using support::in_process_bootstrap;
using support::meeting_room;

/// A thread per rank, its node given.
void run_ranks(const std::vector<int>& nodes,
               const std::function<void(in_process_bootstrap&)>& function) {
  meeting_room room(static_cast<std::int32_t>(nodes.size()));
  for (std::size_t r = 0; r < nodes.size(); ++r) room.places[r].node = nodes[r];
  std::vector<std::thread> ranks;
  for (std::size_t r = 0; r < nodes.size(); ++r) {
    ranks.emplace_back([&, r] {
      in_process_bootstrap seat(room, static_cast<std::int32_t>(r));
      function(seat);
    });
  }
  for (std::thread& rank : ranks) rank.join();
}

TEST(SharedMemory, JoinsTheRanksOfANodeInTheirOrder) {
  run_ranks({0, 1, 1, 0, 1}, [](in_process_bootstrap& seat) {
    const auto made = shared_memory::create(seat, {.window_bytes = 64, .signals = 2});
    ASSERT_TRUE(made) << made.error().message();
    const auto view = (*made)->view();
    const bool first_node = seat.rank() == 0 || seat.rank() == 3;
    EXPECT_EQ(view.size(), first_node ? 2 : 3);
    EXPECT_EQ(view.rank(), seat.rank() == 0 || seat.rank() == 1 ? 0 : seat.rank() == 4 ? 2 : 1);
    *view.peer_pointer(0, static_cast<std::uint64_t>(view.rank()), 1) =
        static_cast<std::byte>(seat.rank() + 1);
    EXPECT_EQ(view.signal(host_thread(), 0, 0, 1, no_deadline), op_status::ok);
    if (view.rank() != 0) return;
    EXPECT_EQ(view.wait_signal(host_thread(), 1, static_cast<std::uint64_t>(view.size()),
                               view.now_ns() + 20'000'000'000),
              op_status::ok);
    const std::vector<int> there = first_node ? std::vector{0, 3} : std::vector{1, 2, 4};
    for (std::size_t i = 0; i < there.size(); ++i) {
      EXPECT_EQ((*made)->window()[i], static_cast<std::byte>(there[i] + 1));
    }
  });
}

TEST(SharedMemory, RanksWithOtherSettingsAreNamed) {
  run_ranks({0, 0, 0}, [](in_process_bootstrap& seat) {
    const auto made =
        shared_memory::create(seat, {.window_bytes = seat.rank() == 1 ? 128U : 64U, .signals = 2});
    ASSERT_FALSE(made);
    EXPECT_NE(made.error().message().find("rank 1 differs"), std::string::npos);
    EXPECT_NE(made.error().message().find("window 128"), std::string::npos);
  });
}

TEST(SharedMemory, ARankThatCannotMakeItsMemoryEndsTheOthersAtOnce) {
  run_ranks({0, 0}, [](in_process_bootstrap& seat) {
    const std::uint64_t bytes = seat.rank() == 1 ? std::uint64_t{1} << 62 : 64;
    const auto made = shared_memory::create(seat, {.window_bytes = bytes, .signals = 2});
    ASSERT_FALSE(made);
    EXPECT_NE(made.error().message().find("bytes of shared memory"), std::string::npos)
        << made.error().message();
    EXPECT_TRUE(seat.rank() == 1 || made.error().message().find("rank 1") != std::string::npos)
        << made.error().message();
  });
}

TEST(SharedMemory, ABarrierNamesByTheirJobNumbersThoseWhoDoNotCome) {
  run_ranks({1, 0, 0}, [](in_process_bootstrap& seat) {
    const auto made = shared_memory::create(seat, {.window_bytes = 64, .signals = 1});
    ASSERT_TRUE(made) << made.error().message();
    if (seat.rank() != 1) return;
    const auto alone = (*made)->barrier(1'000'000);
    ASSERT_FALSE(alone);
    EXPECT_EQ(alone.error().code, errc::timed_out);
    EXPECT_NE(alone.error().message().find("did not come: rank 2"), std::string::npos);
  });
}

TEST(SharedMemory, ARequestOutOfTheWindowFailsTheRankAndTouchesNothing) {
  const std::function<op_status(const shared_memory_view&, const std::byte*)> wrong[] = {
      [](const auto& v, const std::byte* s) {
        return v.put(host_thread(), 0, {.peer = 0, .dst_offset = 60, .src = s, .bytes = 8}, 0);
      },
      [](const auto& v, const std::byte* s) {
        return v.put(host_thread(), 0, {.peer = 1, .src = s, .bytes = 8}, 0);
      },
      [](const auto& v, const std::byte*) { return v.signal(host_thread(), 0, 0, 3, 0); },
      [](const auto& v, const std::byte*) { return v.signal(host_thread(), 1, 0, 0, 0); },
      [](const auto& v, const std::byte*) { return v.wait_signal(host_thread(), 3, 0, 0); },
      [](const auto& v, const std::byte*) { return v.flush(host_thread(), 1, 0); }};
  for (const auto& request : wrong) {
    meeting_room room(1);
    in_process_bootstrap seat(room, 0);
    const auto made = shared_memory::create(seat, {.window_bytes = 64, .signals = 3});
    ASSERT_TRUE(made) << made.error().message();
    const std::vector<std::byte> source(8, std::byte{1});
    EXPECT_EQ(request((*made)->view(), source.data()), op_status::failed);
    EXPECT_FALSE((*made)->fault());
    EXPECT_TRUE((*made)->intact());
    for (const std::byte b : (*made)->window()) EXPECT_EQ(b, std::byte{0});
    EXPECT_NE(room.aborted().find("rank 0"), std::string::npos) << "the job was not told";
  }
}

TEST(SharedMemory, AddressesOutOfTheWindowAreNull) {
  meeting_room room(1);
  in_process_bootstrap seat(room, 0);
  const auto made = shared_memory::create(seat, {.window_bytes = 64, .signals = 1});
  ASSERT_TRUE(made);
  const shared_memory_view view = (*made)->view();
  EXPECT_EQ(view.peer_pointer(0, 56, 8), (*made)->window().data() + 56);
  EXPECT_EQ(view.peer_pointer(0, 57, 8), nullptr);
  EXPECT_EQ(view.peer_pointer(0, ~std::uint64_t{0}, 8), nullptr);
  EXPECT_EQ(view.peer_pointer(1, 0, 8), nullptr);
  EXPECT_EQ(view.peer_pointer(-1, 0, 8), nullptr);
}

TEST(SharedMemory, AWriteBesideTheWindowIsSeen) {
  meeting_room room(1);
  in_process_bootstrap seat(room, 0);
  const auto made = shared_memory::create(seat, {.window_bytes = 64, .signals = 1});
  ASSERT_TRUE(made);
  EXPECT_TRUE((*made)->intact());
  *((*made)->view().peer_pointer(0, 63, 1) + 1) = std::byte{0};
  EXPECT_FALSE((*made)->intact());
}

}  // namespace
}  // namespace eptransport::testing
