// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief mlx5 queues from a real libmlx5: opened, registered, connected to ready-to-send, posted
///        to by `send_queue`, read by the emulated NIC. What a device lacks is said by name.
#include <eptransport/core/thread_group.hpp>
#include <eptransport/gdaki/emulator/network.hpp>
#include <eptransport/gdaki/provision/mlx5.hpp>
#include <eptransport/gdaki/send_queue.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "gdaki/providers/fake_uverbs.hpp"

namespace eptransport::gdaki::testing {
namespace {

using provision::memory_place;
using provision::mlx5_device;
using provision::mlx5_queue_pair;
using provision::need;

/// An open device; the stand-ins are plugged in first.
mlx5_device& device() {
  static result<mlx5_device> opened = [] {
    fake_uverbs::plug_in();
    return mlx5_device::open({.device = "mlx5_0"});
  }();
  EXPECT_TRUE(opened) << (opened ? "" : opened.error().message());
  return *opened;
}

TEST(Provision, AQueuePairGoesThroughInitAndReadyToReceiveToReadyToSend) {
  auto a = mlx5_queue_pair::create(device(), 64);
  auto b = mlx5_queue_pair::create(device(), 64);
  ASSERT_TRUE(a) << a.error().message();
  ASSERT_TRUE(b) << b.error().message();
  auto& changes = fake_uverbs::created().modifications;
  const std::size_t before = changes.size();
  const result<void> connected = a->connect(b->address());
  ASSERT_TRUE(connected) << connected.error().message();
  ASSERT_EQ(changes.size(), before + 3);
  const fake_uverbs::modification* made = &changes[before];
  EXPECT_EQ(made[0].state, static_cast<std::uint32_t>(IBV_QPS_INIT));
  EXPECT_EQ(made[0].access,
            static_cast<std::uint32_t>(IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC));
  EXPECT_EQ(made[1].state, static_cast<std::uint32_t>(IBV_QPS_RTR));
  EXPECT_EQ(made[1].destination, b->address().qpn);
  EXPECT_EQ(made[2].state, static_cast<std::uint32_t>(IBV_QPS_RTS));
  // What the manual of ibv_modify_qp asks for in each of the three changes.
  EXPECT_EQ(made[0].mask, static_cast<std::uint32_t>(IBV_QP_STATE | IBV_QP_PKEY_INDEX |
                                                     IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
  EXPECT_EQ(made[1].mask, static_cast<std::uint32_t>(
                              IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                              IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
  EXPECT_EQ(made[2].mask,
            static_cast<std::uint32_t>(IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
                                       IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC));
}

/// A provisioned queue, its emulated end, and a send queue over both.
struct end {
  using queue_type = send_queue<mlx5_format, one_device, polled_completion>;

  end(emulator::network& net, std::uint32_t nic)
      : pair(std::move(*mlx5_queue_pair::create(device(), 16))) {
    const send_queue_attributes a = pair.attributes();
    const completion_ring c = pair.completions();
    emulator::queue_pair_setup setup;
    setup.format = emulator::wire::mlx5;
    setup.nic = nic;
    setup.qpn = a.qpn;
    setup.send_queue = net.add_completion_queue(
        {emulator::wire::mlx5, c.ring, c.entries, c.entry_bytes, false, c.record});
    setup.send.ring = a.ring;
    setup.send.slots = a.slots;
    setup.send.record = a.record;
    setup.send.doorbells = {a.doorbell};
    net.add_queue_pair(setup);
    EXPECT_TRUE(queue_type::check(a));
    EXPECT_GE(c.entries, a.slots) << "completions of a full queue must fit";
    queue = queue_type(a, &state, polled_completion{c});
  }

  mlx5_queue_pair pair;
  send_queue_state state{};
  queue_type queue{};
};

TEST(Provision, WhatItFoundOutIsEnoughToPostAndToReadCompletions) {
  emulator::network net;
  net.add_nic();
  net.add_nic();
  end a(net, 0);
  end b(net, 1);
  net.connect(0, a.pair.address().qpn, 1, b.pair.address().qpn);
  net.connect(1, b.pair.address().qpn, 0, a.pair.address().qpn);
  ASSERT_TRUE(a.pair.connect(b.pair.address()));
  ASSERT_TRUE(b.pair.connect(a.pair.address()));

  alignas(8) std::byte from[64] = {}, into[64] = {};
  for (int i = 0; i < 64; ++i) from[i] = static_cast<std::byte>(i + 1);
  const auto keys_of = [](std::byte* memory) {
    auto made = device().register_memory(memory, 64, memory_place::host);
    EXPECT_TRUE(made) << made.error().message();
    return std::move(*made);
  };
  const auto mine = keys_of(from);
  const auto theirs = keys_of(into);
  const auto address = [](const void* p) { return reinterpret_cast<std::uintptr_t>(p); };
  constexpr std::uint8_t all = emulator::local_write | emulator::remote_write;
  net.memory(0).add({from, 64, address(from), mine.lkey(), mine.rkey(), all});
  net.memory(1).add({into, 64, address(into), theirs.lkey(), theirs.rkey(), all});

  const host_thread me;
  for (int n = 0; n < 100; ++n) {  // several laps over ring and completions
    std::fill_n(into, 64, std::byte{0});
    const auto deadline = queue_memory<host_memory>::now_ns() + 10'000'000'000U;
    ASSERT_EQ(a.queue.post(
                  me, 1,
                  [&](std::uint64_t, mlx5::place at) {
                    return mlx5::write(at, {address(into), theirs.rkey()},
                                       {address(from), mine.lkey(), 64});
                  },
                  deadline),
              op_status::ok);
    while (net.step() != 0) {
    }
    ASSERT_EQ(a.queue.flush(me, deadline), op_status::ok) << n;
    EXPECT_TRUE(std::equal(from, from + 64, into)) << n;
  }
  EXPECT_TRUE(net.findings().empty());
}

TEST(Provision, WhatIsMissingIsSaidByName) {
  fake_uverbs::plug_in();
  const auto unknown = mlx5_device::open({.device = "mlx5_7"});
  ASSERT_FALSE(unknown);
  EXPECT_EQ(unknown.error().code, need::device);
  EXPECT_NE(unknown.error().detail.find("no device mlx5_7; there are "), std::string::npos);
  EXPECT_NE(unknown.error().detail.find("mlx5_0"), std::string::npos) << unknown.error().detail;

  const auto efa = mlx5_device::open({.device = "efa_0"});
  ASSERT_FALSE(efa);
  EXPECT_EQ(efa.error().code, need::device_property);
  EXPECT_NE(efa.error().detail.find("efa_0 is no mlx5 device"), std::string::npos);

  for (const std::uint32_t slots : {0U, 48U, 65536U}) {
    const auto pair = mlx5_queue_pair::create(device(), slots);
    ASSERT_FALSE(pair) << slots;
    EXPECT_EQ(pair.error().code, need::device_property);
    EXPECT_NE(pair.error().detail.find(std::to_string(slots) + " slots"), std::string::npos);
    EXPECT_NE(pair.error().detail.find("at most 32768"), std::string::npos);
  }
}

TEST(Provision, WithoutANameTheFirstMlx5DeviceIsTaken) {
  fake_uverbs::plug_in();
  const auto first = mlx5_device::open({});
  ASSERT_TRUE(first) << first.error().message();
  EXPECT_STREQ(ibv_get_device_name(first->context()->device), "mlx5_0");
}

}  // namespace
}  // namespace eptransport::gdaki::testing
