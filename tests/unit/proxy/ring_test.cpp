// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Rings between threads: nothing is lost, repeated or read before it was written.
#include <eptransport/core/thread_group.hpp>
#include <eptransport/proxy/ring.hpp>

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <thread>
#include <vector>

namespace eptransport::proxy {
namespace {

class ring_under_test {
 public:
  explicit ring_under_test(std::uint64_t slots, std::uint64_t first = 0)
      : layout_(*ring_layout::of(slots)),
        memory_(layout_.bytes() + 256),
        view_(layout_.make(aligned(), first)) {}
  [[nodiscard]] const ring_view& view() const { return view_; }

 private:
  std::byte* aligned() {
    const auto at = reinterpret_cast<std::uintptr_t>(memory_.data());
    return memory_.data() + (128 - at % 128) % 128;
  }
  ring_layout layout_;
  std::vector<std::byte> memory_;
  ring_view view_;
};

/// Commands whose words say which they are; all 63 bits vary.
command_words numbered(std::uint64_t i) {
  return {(i * 0x9e3779b97f4a7c15U) & ~parity_bit, ~i & ~parity_bit};
}

bool pop(ring_consumer& consumer, command_words& words) {
  if (!consumer.peek(words)) return false;
  consumer.pop();
  return true;
}

TEST(Ring, RefusesSizesThatAreNoPowerOfTwo) {
  for (const std::uint64_t slots : {0ULL, 1ULL, 2ULL, 3ULL, 100ULL, 129ULL}) {
    EXPECT_FALSE(ring_layout::of(slots)) << slots;
  }
  EXPECT_TRUE(ring_layout::of(128));
}

TEST(Ring, GivesBackWhatWasPushedFromAnyFirstPosition) {
  for (const std::uint64_t first :
       {std::uint64_t{0}, (std::uint64_t{1} << 32) - 8, ~std::uint64_t{0} - 7, std::uint64_t{5}}) {
    const ring_under_test ring(8, first);
    ring_producer<host_memory> producer(ring.view(), first);
    ring_consumer consumer(ring.view(), first);
    command_words words;
    EXPECT_FALSE(consumer.peek(words));
    std::uint64_t next = 0;
    for (std::uint64_t i = 0; i < 100; ++i) {
      ASSERT_TRUE(producer.push(numbered(i)));
      if (i % 3 == 0) continue;
      while (pop(consumer, words)) {
        EXPECT_EQ(words.first & ~parity_bit, numbered(next).first) << "first position " << first;
        EXPECT_EQ(words.second & ~parity_bit, numbered(next).second);
        ++next;
      }
      EXPECT_EQ(next, i + 1);
    }
  }
}

TEST(Ring, AFullRingTakesNothingUntilTheTailIsPublished) {
  const ring_under_test ring(16);
  ring_producer<host_memory> producer(ring.view());
  ring_consumer consumer(ring.view());
  for (std::uint64_t i = 0; i < 16; ++i) ASSERT_TRUE(producer.push(numbered(i)));
  EXPECT_FALSE(producer.push(numbered(16)));
  command_words words;
  // Three of sixteen: less than a quarter, so the tail is still the old one.
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(pop(consumer, words));
  EXPECT_FALSE(producer.push(numbered(16)));
  consumer.publish_tail();
  for (std::uint64_t i = 16; i < 19; ++i) EXPECT_TRUE(producer.push(numbered(i)));
  EXPECT_FALSE(producer.push(numbered(19)));
  // The fourth pop since the last publication makes a quarter.
  for (int i = 0; i < 4; ++i) ASSERT_TRUE(pop(consumer, words));
  EXPECT_TRUE(producer.push(numbered(19)));
}

TEST(Ring, HalfAnEntryIsNoEntry) {
  const ring_under_test ring(8);
  ring_consumer consumer(ring.view());
  command_words words;
  for (const int half : {0, 1}) {
    host_memory::signal_store(ring.view().entry(0) + half, parity_bit | 5);
    EXPECT_FALSE(consumer.peek(words)) << half;
    host_memory::signal_store(ring.view().entry(0) + half, 0);
  }
  host_memory::entry_store(ring.view().entry(0), parity_bit, parity_bit);
  EXPECT_TRUE(consumer.peek(words));  // all zeros but for the parity
}

TEST(Ring, BatchesAreWrittenAtTheirIndicesInAnyOrder) {
  const ring_under_test ring(64);
  ring_producer<host_memory> producer(ring.view());
  ring_consumer consumer(ring.view());
  command_words words;
  std::uint64_t next = 0;
  for (int batch = 0; batch < 20; ++batch) {
    ASSERT_TRUE(producer.room(32));
    for (std::uint64_t lane = 32; lane-- > 0;) {
      producer.publish(lane, numbered(producer.head() + lane));
      EXPECT_EQ(consumer.peek(words), lane == 0);
    }
    producer.advance(32);
    while (pop(consumer, words)) {
      EXPECT_EQ(words.second & ~parity_bit, numbered(next++).second);
    }
    consumer.publish_tail();
  }
  EXPECT_EQ(next, 640U);
}

TEST(Ring, AGroupPublishesABatchOrNothing) {
  const ring_under_test ring(16);
  ring_producer<host_memory> producer(ring.view());
  ring_consumer consumer(ring.view());
  const auto make = [&](std::uint64_t i) { return numbered(producer.head() + i); };
  EXPECT_TRUE(push_batch(host_thread(), producer, 10, make));
  EXPECT_FALSE(push_batch(host_thread(), producer, 7, make));
  EXPECT_TRUE(push_batch(host_thread(), producer, 6, make));
  command_words words;
  for (std::uint64_t i = 0; i < 16; ++i) {
    ASSERT_TRUE(pop(consumer, words));
    EXPECT_EQ(words.second & ~parity_bit, numbered(i).second);
  }
  EXPECT_FALSE(consumer.peek(words));
  EXPECT_TRUE(push_batch(host_thread(), producer, 16, make));
}

// The payload is a plain array: the race detector sees whether an entry releases it, and whether
// the tail lets the producer overwrite it only after it was read.
TEST(Ring, BetweenThreadsAnEntryCarriesThePayloadWrittenBeforeIt) {
  constexpr std::uint64_t commands = 20000;
  constexpr std::uint64_t slots = 16;
  const ring_under_test ring(slots, 3);
  std::array<std::uint64_t, slots> payload{};
  std::thread consumer_thread([&] {
    ring_consumer consumer(ring.view(), 3);
    command_words words;
    for (std::uint64_t i = 0; i < commands;) {
      if (!consumer.peek(words)) {
        consumer.publish_tail();
        std::this_thread::yield();
        continue;
      }
      EXPECT_EQ(payload[consumer.position() % slots], i * 7);
      EXPECT_EQ(words.first & ~parity_bit, numbered(i).first);
      consumer.pop();
      ++i;
    }
    consumer.publish_tail();
  });
  ring_producer<host_memory> producer(ring.view(), 3);
  for (std::uint64_t i = 0; i < commands; ++i) {
    while (!producer.room(1)) std::this_thread::yield();
    payload[producer.head() % slots] = i * 7;
    ASSERT_TRUE(producer.push(numbered(i)));
  }
  consumer_thread.join();
}

TEST(Ring, ProducersThatShareAHeadLoseAndRepeatNothing) {
  constexpr std::uint64_t each = 5000;
  constexpr std::uint64_t producers = 3;
  const std::uint64_t first = ~std::uint64_t{0} - 100;
  const ring_under_test ring(8, first);
  std::uint64_t head = first;
  std::vector<std::thread> threads;
  for (std::uint64_t t = 0; t < producers; ++t) {
    threads.emplace_back([&, t] {
      shared_ring_producer<host_memory> producer(ring.view(), &head);
      std::uint64_t position = 0;
      for (std::uint64_t i = 0; i < each; ++i) {
        while (!producer.push({t, i}, position)) std::this_thread::yield();
      }
    });
  }
  ring_consumer consumer(ring.view(), first);
  std::array<std::uint64_t, producers> next{};
  command_words words;
  for (std::uint64_t i = 0; i < producers * each;) {
    if (!pop(consumer, words)) {
      consumer.publish_tail();
      std::this_thread::yield();
      continue;
    }
    const std::uint64_t who = words.first & ~parity_bit;
    ASSERT_LT(who, producers);
    ASSERT_EQ(words.second & ~parity_bit, next[who]++) << "of producer " << who;
    ++i;
  }
  for (std::thread& t : threads) t.join();
  EXPECT_FALSE(consumer.peek(words));
}

}  // namespace
}  // namespace eptransport::proxy
