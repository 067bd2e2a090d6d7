// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief For each rule of the formats, an entry or doorbell that breaks it and is refused for it.
#include <eptransport/gdaki/efa_wqe.hpp>
#include <eptransport/gdaki/emulator/efa_parser.hpp>
#include <eptransport/gdaki/emulator/mlx5_parser.hpp>
#include <eptransport/gdaki/mlx5_wqe.hpp>
#include <eptransport/gdaki/segment.hpp>

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "gdaki/rig.hpp"

namespace eptransport::gdaki::testing {
namespace {

using emulator::violation;

/// One change to a good entry: the bytes from `offset` become `bytes`.
struct malformed {
  const char* name;
  violation what;
  std::uint32_t offset;
  std::vector<std::uint8_t> bytes;
};

template <class Entry>
std::vector<std::byte> changed(const Entry& good, const malformed& m) {
  std::vector<std::byte> bytes(sizeof(good));
  std::memcpy(bytes.data(), &good, sizeof(good));
  for (std::size_t i = 0; i < m.bytes.size(); ++i) bytes[m.offset + i] = std::byte{m.bytes[i]};
  return bytes;
}

constexpr efa::address peer{0xa5, 0x4321, 0x99aabbcc};
constexpr remote_range remote{0x1122334455667788, 0xdeadbeef};
constexpr local_range local{0x8877665544332210, 0x1103, 0x40};
constexpr std::byte text[32] = {};

const efa::entry<64> efa_write = efa::write({7, true}, peer, remote, local, {true, 5});
const efa::entry<64> efa_read = efa::read({7, true}, peer, remote, local);
const efa::entry<64> efa_send = efa::send({7, true}, peer, local, local);
const efa::entry<64> efa_inline = efa::send_inline({7, true}, peer, text, 32);
const efa::entry<128> efa_wide = efa::write_inline({7, true}, peer, remote, {text, 32});

void expect_efa(const auto& good, const std::vector<malformed>& table) {
  const std::span<const std::byte> bytes = std::as_bytes(std::span(&good, 1));
  EXPECT_TRUE(emulator::parse_efa_send(bytes, true).ok());
  for (const malformed& m : table) {
    const emulator::parsed got = emulator::parse_efa_send(changed(good, m), true);
    EXPECT_EQ(to_string(got.what), std::string(to_string(m.what))) << m.name;
  }
}

TEST(GdakiMalformed, EfaEntriesAreRefusedByRule) {
  expect_efa(efa_write, {{"phase of the lap before", violation::stale_phase, 3, {0x1c}},
                         {"no descriptor mark", violation::no_descriptor_mark, 2, {0x12}},
                         {"meta extension", violation::reserved_bits, 2, {0xd2}},
                         {"ctrl2 bit 1", violation::reserved_bits, 3, {0x1f}},
                         {"ctrl2 bit 5", violation::reserved_bits, 3, {0x3d}},
                         {"not first", violation::not_first, 3, {0x19}},
                         {"not last", violation::not_last, 3, {0x15}},
                         {"no completion", violation::not_signalled, 3, {0x0d}},
                         {"hint bit 2", violation::reserved_bits, 14, {0x04}},
                         {"byte 15", violation::reserved_bits, 15, {1}},
                         {"byte 20", violation::reserved_bits, 20, {1}},
                         {"byte 31", violation::reserved_bits, 31, {0x80}},
                         {"operation 3", violation::unknown_operation, 2, {0x93}},
                         {"no range", violation::range_count, 6, {0}},
                         {"two ranges", violation::range_count, 6, {2}},
                         {"inline in a narrow entry", violation::inline_not_allowed, 2, {0xb2}},
                         {"lengths differ", violation::length_mismatch, 32, {0x41}},
                         {"lkey of 25 bits", violation::key_bits, 55, {1}}});
  expect_efa(efa_read, {{"immediate", violation::immediate_not_allowed, 2, {0x91}},
                        {"inline", violation::inline_not_allowed, 2, {0xa1}}});
  expect_efa(efa_send, {{"no range", violation::range_count, 6, {0}},
                        {"three ranges", violation::range_count, 6, {3}},
                        {"first lkey of 25 bits", violation::key_bits, 39, {1}},
                        {"second lkey of 25 bits", violation::key_bits, 55, {1}}});
  expect_efa(efa_inline, {{"33 bytes", violation::inline_too_long, 6, {33}}});
  expect_efa(efa_wide, {{"81 bytes", violation::inline_too_long, 6, {81}},
                        {"lengths differ", violation::length_mismatch, 32, {31}},
                        {"inline read", violation::inline_not_allowed, 2, {0xa1}}});
  EXPECT_EQ(emulator::parse_efa_send(std::as_bytes(std::span(&efa_write, 1)).first(63), true).what,
            violation::truncated);
}

TEST(GdakiMalformed, EfaReceiveEntriesAreRefusedByRule) {
  const segment good = efa::receive(3, local);
  EXPECT_TRUE(emulator::parse_efa_receive(std::as_bytes(std::span(&good, 1))).ok());
  EXPECT_EQ(emulator::parse_efa_receive(std::as_bytes(std::span(&good, 1)).first(15)).what,
            violation::truncated);
  for (const malformed& m : {malformed{"not first", violation::receive_entry, 15, {0x80}},
                             malformed{"not last", violation::receive_entry, 15, {0x40}},
                             malformed{"control bit 24", violation::receive_entry, 15, {0xc1}}}) {
    EXPECT_EQ(emulator::parse_efa_receive(changed(good, m)).what, m.what) << m.name;
  }
}

constexpr mlx5::place at{0x1234, 0x1a2b3, mlx5::notify};
const mlx5::entry mlx5_write = mlx5::write(at, remote, local);
const mlx5::entry mlx5_atomic =
    mlx5::fetch_add(at, {remote.address, remote.key}, 1, {local.address, local.key, 8});
const mlx5::entry mlx5_inline = mlx5::write_inline(at, remote, text, 12);
const mlx5::entry mlx5_two = [] {  // two ranges: inline and data can mix
  mlx5::entry e = mlx5::write(at, remote, local);
  e.part[0] = mlx5::control_segment(at, {mlx5::opcode::write, 4, 0});
  e.part[3] = e.part[2];
  return e;
}();

void expect_mlx5(const mlx5::entry& good, const std::vector<malformed>& table) {
  EXPECT_TRUE(emulator::parse_mlx5_send(std::as_bytes(std::span(&good, 1)), at).ok());
  for (const malformed& m : table) {
    const emulator::parsed got = emulator::parse_mlx5_send(changed(good, m), at);
    EXPECT_EQ(to_string(got.what), std::string(to_string(m.what))) << m.name;
  }
}

TEST(GdakiMalformed, Mlx5EntriesAreRefusedByRule) {
  expect_mlx5(mlx5_write, {{"opcode 7", violation::unknown_operation, 3, {7}},
                           {"opcode 0x15", violation::unknown_operation, 3, {0x15}},
                           {"opmod", violation::operation_modifier, 0, {8}},
                           {"next block's index", violation::wrong_index, 2, {0x35}},
                           {"another lap's index", violation::wrong_index, 1, {0x13}},
                           {"another queue pair", violation::wrong_queue, 6, {0xb4}},
                           {"ds above 63", violation::reserved_bits, 7, {0x43}},
                           {"signature", violation::signature_present, 8, {1}},
                           {"byte 9", violation::reserved_bits, 9, {1}},
                           {"byte 10", violation::reserved_bits, 10, {1}},
                           {"flag bit 0", violation::flag_bits, 11, {0x09}},
                           {"flag bit 4", violation::flag_bits, 11, {0x18}},
                           {"fence mode 5", violation::flag_bits, 11, {0xa8}},
                           {"completion mode 3", violation::flag_bits, 11, {0x0c}},
                           {"ds of 1", violation::range_count, 7, {1}},
                           {"ds beyond the ring", violation::truncated, 7, {5}},
                           {"after the remote key", violation::reserved_bits, 31, {1}},
                           {"a range of 0 bytes", violation::empty_range, 35, {0}}});
  expect_mlx5(mlx5_atomic, {{"ds of 3", violation::range_count, 7, {3}},
                            {"remote address", violation::misaligned_atomic, 23, {0x89}},
                            {"4 bytes", violation::length_mismatch, 51, {4}}});
  expect_mlx5(mlx5_inline, {{"13 bytes in ds 3", violation::inline_too_long, 35, {13}},
                            {"ds of 4 for 12 bytes", violation::range_count, 7, {4}},
                            {"an inline read", violation::inline_not_allowed, 3, {0x10}}});
  expect_mlx5(mlx5_two, {{"inline after data", violation::mixed_segments, 48, {0x80}},
                         {"ds of 3 for a nop", violation::range_count, 3, {0}}});
  EXPECT_EQ(emulator::parse_mlx5_send(std::as_bytes(std::span(&mlx5_write, 1)).first(63), at).what,
            violation::truncated);
}

TEST(GdakiMalformed, Mlx5ReceiveEntriesAreRefusedByRule) {
  const segment good = mlx5::data_segment(local);
  EXPECT_TRUE(emulator::parse_mlx5_receive(std::as_bytes(std::span(&good, 1))).ok());
  EXPECT_EQ(emulator::parse_mlx5_receive(std::as_bytes(std::span(&good, 1)).first(8)).what,
            violation::truncated);
  const malformed m{"inline", violation::receive_entry, 0, {0x80}};
  EXPECT_EQ(emulator::parse_mlx5_receive(changed(good, m)).what, m.what);
}

using efa_rig = rig<efa_format<>, one_owner, counted_completion>;
using mlx5_rig = rig<mlx5_format, one_owner, polled_completion>;

template <class Rig>
void expect_finding(Rig& r, violation what) {
  r.net.step();
  ASSERT_EQ(r.net.findings().size(), 1U) << describe(r.net);
  EXPECT_EQ(to_string(r.net.findings()[0].what), std::string(to_string(what)));
}

TEST(GdakiMalformed, EfaDoorbellsAreRefusedByRule) {
  {
    efa_rig r({.slots = 64, .strict_batch = 8});
    r.at(0, 1).words.as<std::uint32_t>(0)[0] = 9;
    expect_finding(r, violation::batch_too_large);
  }
  {
    efa_rig r({.slots = 64});
    r.at(0, 1).words.as<std::uint32_t>(0)[0] = 65;
    expect_finding(r, violation::queue_overrun);
  }
  {
    efa_rig r({.slots = 64});  // nothing was written
    r.at(0, 1).words.as<std::uint32_t>(0)[0] = 1;
    expect_finding(r, violation::no_descriptor_mark);
  }
}

TEST(GdakiMalformed, Mlx5DoorbellsAreRefusedByRule) {
  struct doorbell {
    std::uint64_t record;
    std::uint64_t index;
    std::uint32_t qpn_offset;
    violation what;
  };
  for (const doorbell& d :
       {doorbell{0, 1, 0, violation::record_behind},
        doorbell{0xffff, 1, 0, violation::record_behind}, doorbell{1, 1, 1, violation::wrong_queue},
        doorbell{1, 0xff00, 0, violation::doorbell_index},
        doorbell{65, 65, 0, violation::queue_overrun}}) {
    mlx5_rig r({.slots = 64});
    auto& words = r.at(0, 1).words;
    words.as<std::uint32_t>(64)[0] = mlx5::record(d.record);
    words.as<std::uint64_t>(0)[0] = mlx5::doorbell(d.index, r.qpn(0, 1) + d.qpn_offset);
    SCOPED_TRACE(to_string(d.what));
    expect_finding(r, d.what);
  }
}

TEST(GdakiMalformed, AFullMlx5CompletionQueueIsAnOverrun) {
  mlx5_rig r({.slots = 4});
  const host_thread group;
  auto& queue = r.queue(0, 1);
  // The completion queue holds 4; the consumer never moves, since nobody polls. Every entry
  // notifies, and the slots are handed back behind the queue's back.
  for (int i = 0; i < 5; ++i) {
    const op_status status = queue.post(
        group, 1, [&](std::uint64_t, auto place) { return r.write(place, 0, 1, 64, 64, 8); },
        soon());
    ASSERT_EQ(status, op_status::ok);
    r.net.step();
    ++r.at(0, 1).state.completed;
  }
  ASSERT_EQ(r.net.findings().size(), 1U);
  EXPECT_EQ(r.net.findings()[0].what, violation::completion_overrun);
}

}  // namespace
}  // namespace eptransport::gdaki::testing
