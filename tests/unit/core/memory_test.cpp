// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The host's memory vocabulary: what a thread acquires, the releasing thread has written.
#include <eptransport/core/memory.hpp>

#include <gtest/gtest.h>

#include <cstdint>
#include <thread>
#include <vector>

namespace eptransport {
namespace {

TEST(HostMemory, BytesWrittenBeforeASignalAreSeenAfterIt) {
  constexpr int rounds = 2000;
  std::vector<int> data(rounds, 0);  // a plain vector: the race detector watches the order
  std::uint64_t word = 0;
  std::thread writer([&] {
    for (int i = 0; i < rounds; ++i) {
      data[static_cast<std::size_t>(i)] = i + 1;
      host_memory::signal_add(&word, 1);
    }
  });
  for (int i = 0; i < rounds; ++i) {
    while (host_memory::signal_acquire(&word) < static_cast<std::uint64_t>(i + 1)) {
      host_memory::relax();
    }
    ASSERT_EQ(data[static_cast<std::size_t>(i)], i + 1);
  }
  writer.join();
}

TEST(HostMemory, SignalsOfManyThreadsAddUp) {
  std::uint64_t word = ~std::uint64_t{0} - 10;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 1000; ++i) host_memory::signal_add(&word, 1);
    });
  }
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(host_memory::signal_acquire(&word), std::uint64_t{3989});
}

TEST(HostMemory, RelaxedWordsAndACrewsCountsHoldWhatWasStored) {
  std::uint64_t word = 3;
  host_memory::store_relaxed(&word, 7);
  EXPECT_EQ(host_memory::load_relaxed(&word), 7U);
  std::uint32_t count = 1;
  host_memory::crew_add(&count, 2);
  host_memory::crew_add(&count, 3);
  EXPECT_EQ(count, 6U);
}

TEST(HostMemory, OneThreadOfManyClaimsAWordAndItsValueStays) {
  for (int round = 0; round < 100; ++round) {
    std::uint64_t word = 0;
    std::uint64_t winners = 0;
    std::vector<std::thread> threads;
    for (std::uint64_t t = 1; t <= 4; ++t) {
      threads.emplace_back([&, t] {
        if (host_memory::claim(&word, t)) host_memory::fetch_add(&winners, t);
      });
    }
    for (std::thread& t : threads) t.join();
    EXPECT_EQ(host_memory::load_acquire(&winners), host_memory::load_acquire(&word));
  }
}

TEST(HostMemory, FetchAddReturnsTheValueBefore) {
  std::uint64_t word = 5;
  EXPECT_EQ(host_memory::fetch_add(&word, 3), 5U);
  host_memory::store_release(&word, 1);
  EXPECT_EQ(host_memory::load_acquire(&word), 1U);
  host_memory::publish();
  host_memory::acquire_bulk();
}

}  // namespace
}  // namespace eptransport
