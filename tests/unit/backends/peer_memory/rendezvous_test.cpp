// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Processes of one host that meet: bytes, descriptors, deadlines, and those that go.

#include <eptransport/backends/peer_memory/rendezvous.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <fcntl.h>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <sys/stat.h>
#include <thread>
#include <unistd.h>
#include <utility>
#include <vector>

namespace eptransport {
namespace {

constexpr std::uint64_t ms = 1'000'000;
constexpr std::uint64_t patience = 30'000 * ms;

std::string fresh_path(const char* name) {
  return (std::filesystem::temp_directory_path() /
          (std::string("ept_") + name + "_" + std::to_string(::getpid())))
      .string();
}

/// One thread per rank stands for its process: nothing is shared but the socket.
void run_ranks(int ranks, const std::function<void(int)>& function) {
  std::vector<std::thread> threads;
  for (int r = 0; r < ranks; ++r) threads.emplace_back([&function, r] { function(r); });
  for (std::thread& thread : threads) thread.join();
}

class LocalRendezvous : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, LocalRendezvous, testing::Values(1, 2, 5));

TEST_P(LocalRendezvous, EveryRankGetsWhatEveryRankGave) {
  const int ranks = GetParam();
  const std::string path = fresh_path("exchange");
  run_ranks(ranks, [&](int rank) {
    auto meeting = local_rendezvous::join(path, rank, ranks, patience);
    ASSERT_TRUE(meeting) << meeting.error().message();
    for (int round = 0; round < 20; ++round) {
      const auto size = static_cast<std::size_t>((rank * 997 + round * 211) %
                                                 (static_cast<int>(local_rendezvous::max_bytes)));
      const std::vector<std::byte> mine(size, static_cast<std::byte>(rank + round));
      const auto all = (*meeting)->exchange(mine, -1, patience);
      ASSERT_TRUE(all) << all.error().message();
      ASSERT_EQ(all->size(), static_cast<std::size_t>(ranks));
      for (int r = 0; r < ranks; ++r) {
        const auto expected = static_cast<std::size_t>(
            (r * 997 + round * 211) % (static_cast<int>(local_rendezvous::max_bytes)));
        const std::vector<std::byte>& got = (*all)[static_cast<std::size_t>(r)].bytes;
        EXPECT_EQ(got, std::vector<std::byte>(expected, static_cast<std::byte>(r + round)));
        EXPECT_EQ((*all)[static_cast<std::size_t>(r)].descriptor.get(), -1);
      }
      ASSERT_TRUE((*meeting)->barrier(patience));
    }
  });
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST_P(LocalRendezvous, DescriptorsArriveAsOnesOfTheSameFile) {
  const int ranks = GetParam();
  const std::string path = fresh_path("descriptors");
  std::vector<struct stat> files(static_cast<std::size_t>(ranks));
  run_ranks(ranks, [&](int rank) {
    auto meeting = local_rendezvous::join(path, rank, ranks, patience);
    ASSERT_TRUE(meeting) << meeting.error().message();
    int ends[2];
    ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
    const owned_descriptor read_end(ends[0]);
    const owned_descriptor write_end(ends[1]);
    ASSERT_EQ(::fstat(ends[0], &files[static_cast<std::size_t>(rank)]), 0);
    const auto all = (*meeting)->exchange({}, ends[1], patience);
    ASSERT_TRUE(all) << all.error().message();
    for (int r = 0; r < ranks; ++r) {  // into every pipe, through what came
      const auto name = static_cast<char>('a' + rank);
      ASSERT_EQ(::write((*all)[static_cast<std::size_t>(r)].descriptor.get(), &name, 1), 1);
    }
    ASSERT_TRUE((*meeting)->barrier(patience));
    std::string got(static_cast<std::size_t>(ranks), '?');
    ASSERT_EQ(::read(ends[0], got.data(), got.size()), ranks);
    std::sort(got.begin(), got.end());
    EXPECT_EQ(got, std::string("abcde").substr(0, got.size()));
  });
}

TEST(LocalRendezvousErrors, ARankThatDoesNotComeIsNamed) {
  const std::string path = fresh_path("missing");
  run_ranks(2, [&](int rank) {
    const auto meeting = local_rendezvous::join(path, rank, 3, 200 * ms);
    ASSERT_FALSE(meeting);
    EXPECT_TRUE(meeting.error().code == errc::timed_out ||
                meeting.error().code == errc::transport_failed)
        << meeting.error().message();
    if (rank == 0) {
      EXPECT_EQ(meeting.error().detail, "did not come: rank 2");
    }
  });
  const auto alone = local_rendezvous::join(path, 1, 2, 50 * ms);
  ASSERT_FALSE(alone);
  EXPECT_EQ(alone.error().code, errc::timed_out);
  EXPECT_NE(alone.error().detail.find("rank 0"), std::string::npos);
}

TEST(LocalRendezvousErrors, ARankThatIsLateIsNamedAndOneThatHasGoneIsSeenAtOnce) {
  const std::string path = fresh_path("gone");
  run_ranks(3, [&](int rank) {
    auto meeting = local_rendezvous::join(path, rank, 3, patience);
    ASSERT_TRUE(meeting) << meeting.error().message();
    if (rank == 1) return;  // its socket closes
    const auto start = std::chrono::steady_clock::now();
    const auto met = (*meeting)->barrier(patience);
    ASSERT_FALSE(met);
    EXPECT_EQ(met.error().code, errc::transport_failed) << met.error().message();
    if (rank == 0) {
      EXPECT_EQ(met.error().detail, "rank 1 has gone");
    }
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(10));
  });
}

TEST(LocalRendezvousErrors, AnotherWorldSizeAndTheSameRankTwiceAreRefused) {
  for (const auto& [rank, ranks] : {std::pair{1, 3}, std::pair{2, 2}, std::pair{-1, 2}}) {
    const std::string path = fresh_path("mismatch");
    std::thread other([&, rank = rank, ranks = ranks] {
      const auto joined = local_rendezvous::join(path, rank, ranks, 2'000 * ms);
      EXPECT_FALSE(joined);
    });
    const auto meeting = local_rendezvous::join(path, 0, 2, rank == 1 ? 2'000 * ms : 100 * ms);
    ASSERT_FALSE(meeting);
    EXPECT_EQ(meeting.error().code, rank == 1 ? errc::mismatch : errc::timed_out)
        << meeting.error().message();
    other.join();
  }
  const std::string long_path(200, 'x');
  const auto refused = local_rendezvous::join(long_path, 0, 1, ms);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, errc::invalid_argument);
  EXPECT_NE(refused.error().detail.find("200"), std::string::npos);
}

}  // namespace
}  // namespace eptransport
