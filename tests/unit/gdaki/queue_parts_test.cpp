// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Small parts of the device queues: segments, faults, memory operations, emulated memory.
#include <eptransport/gdaki/completion.hpp>
#include <eptransport/gdaki/emulator/completion_writer.hpp>
#include <eptransport/gdaki/emulator/memory_map.hpp>
#include <eptransport/gdaki/emulator/outcome.hpp>
#include <eptransport/gdaki/emulator/request.hpp>
#include <eptransport/gdaki/emulator/setup.hpp>
#include <eptransport/gdaki/emulator/violation.hpp>
#include <eptransport/gdaki/format.hpp>
#include <eptransport/gdaki/queue_fault.hpp>
#include <eptransport/gdaki/queue_memory.hpp>
#include <eptransport/gdaki/queue_state.hpp>
#include <eptransport/gdaki/segment.hpp>

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <set>
#include <string>

namespace eptransport::gdaki {
namespace {

TEST(GdakiParts, BytesAreSwappedAndPlaced) {
  EXPECT_EQ(swap_bytes(0x01020304U), 0x04030201U);
  EXPECT_EQ(swap_bytes(std::uint64_t{0x0102030405060708}), 0x0807060504030201U);
  const std::byte data[5] = {std::byte{1}, std::byte{2}, std::byte{3}, std::byte{4}, std::byte{5}};
  queue_entry<4> e;
  place_bytes(e, 14, data, 5);
  EXPECT_EQ(e, entry_from_hex<4>("00000000 00000000 00000000 0000 0102 030405"));
}

TEST(GdakiParts, AFaultPacksIntoAWordThatIsNeverZero) {
  for (const auto kind : {queue_fault_kind::device_error, queue_fault_kind::counted_error,
                          queue_fault_kind::bad_completion, queue_fault_kind::stuck_publisher}) {
    const queue_fault fault{kind, 0, 0, 0};
    EXPECT_NE(pack(fault), 0U);
    EXPECT_EQ(unpack(pack(fault), 0), fault);
    EXPECT_NE(to_string(kind), std::string("none"));
  }
  EXPECT_EQ(unpack(0, 3).kind, queue_fault_kind::none);
}

TEST(GdakiParts, DistanceCrossesTheWrapOf64Bits) {
  EXPECT_EQ(distance(~std::uint64_t{0}, 1), 2);
  EXPECT_EQ(distance(1, ~std::uint64_t{0}), -2);
}

TEST(GdakiParts, OwnersAndSharersSeeTheSameWord) {
  using memory = queue_memory<host_memory>;
  std::uint64_t word = 3;
  EXPECT_TRUE(memory::compare_exchange(one_owner{}, &word, 3, 4));
  EXPECT_FALSE(memory::compare_exchange(one_device{}, &word, 3, 5));
  EXPECT_EQ(memory::add(one_owner{}, &word, 2), 4U);
  EXPECT_EQ(memory::add(one_block{}, &word, 2), 6U);
  memory::store(one_device{}, &word, memory::load(one_owner{}, &word) + 1);
  EXPECT_EQ(memory::load(one_device{}, &word), 9U);
}

TEST(GdakiParts, EmulatedMemoryChecksKeyRangeAndRight) {
  std::byte bytes[64];
  emulator::memory_map map;
  map.add({bytes, 64, 1000, 1, 2, emulator::local_write | emulator::remote_read});
  EXPECT_EQ(map.local(1, 1000, 64, emulator::local_write), bytes);
  EXPECT_EQ(map.local(1, 1010, 54, emulator::local_read), bytes + 10);
  EXPECT_EQ(map.remote(2, 1064, 0, emulator::remote_read), bytes + 64);
  EXPECT_EQ(map.local(1, 999, 1, emulator::local_read), nullptr);
  EXPECT_EQ(map.local(1, 1001, 64, emulator::local_read), nullptr);
  EXPECT_EQ(map.local(1, ~std::uint64_t{0}, 2, emulator::local_read), nullptr);
  EXPECT_EQ(map.local(2, 1000, 1, emulator::local_read), nullptr);
  EXPECT_EQ(map.remote(2, 1000, 1, emulator::remote_write), nullptr);
  map.remove(1);
  EXPECT_EQ(map.local(1, 1000, 64, emulator::local_write), nullptr);
  EXPECT_EQ(map.remote(2, 1000, 1, emulator::remote_read), nullptr);
}

TEST(GdakiParts, EveryRuleHasAName) {
  std::set<std::string> names;
  const auto last = static_cast<int>(emulator::violation::completion_overrun);
  for (int i = 0; i <= last; ++i) {
    names.insert(emulator::to_string(static_cast<emulator::violation>(i)));
  }
  EXPECT_EQ(names.size(), static_cast<std::size_t>(last) + 1);
}

template <class Format>
void expect_completions_to_read_back(emulator::wire wire, std::uint32_t bytes, int fill) {
  alignas(64) std::byte ring[4 * 64];
  for (std::byte& b : ring) b = std::byte(fill);
  emulator::completion_writer writer({wire, ring, 4, bytes, false, nullptr});
  const completion_ring reader{ring, 4, bytes, nullptr};
  completion got;
  for (std::uint64_t i = 0; i < 11; ++i) {
    EXPECT_FALSE(Format::template take<host_memory>(reader, i, got)) << i;
    emulator::completion_facts facts;
    facts.qpn = 0x123;
    facts.index = static_cast<std::uint16_t>(i * 1000);
    facts.status = static_cast<std::uint8_t>(i % 3);
    facts.native = Format::ordered ? 8 : 2;
    ASSERT_TRUE(writer.write(facts));
    ASSERT_TRUE(Format::template take<host_memory>(reader, i, got)) << i;
    EXPECT_EQ(got.what, completed::request);
    EXPECT_EQ(got.index, facts.index);
    EXPECT_EQ(got.status, facts.status);
    EXPECT_EQ(got.qpn, facts.qpn);
  }
}

TEST(GdakiParts, CompletionsReadBackOverManyLaps) {
  expect_completions_to_read_back<efa_format<>>(emulator::wire::efa, 16, 0);
  expect_completions_to_read_back<efa_format<>>(emulator::wire::efa, 32, 0);
  expect_completions_to_read_back<mlx5_format>(emulator::wire::mlx5, 64, 0xf1);
  expect_completions_to_read_back<mlx5_format>(emulator::wire::mlx5, 64, 0xff);
}

TEST(GdakiParts, OutcomesHaveNumbersInBothFormats) {
  EXPECT_EQ(emulator::efa_status(emulator::outcome::bad_remote), 7);
  EXPECT_EQ(emulator::mlx5_status(emulator::outcome::bad_remote), 0x13);
  EXPECT_EQ(emulator::efa_status(emulator::outcome::ok), 0);
  EXPECT_EQ(emulator::mlx5_status(emulator::outcome::ok), 0);
}

}  // namespace
}  // namespace eptransport::gdaki
