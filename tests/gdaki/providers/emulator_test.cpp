// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The emulator driven by the real providers: it parses what they post, and they decode what
///        it answers.
#include <eptransport/gdaki/emulator/network.hpp>

#include <gtest/gtest.h>
#include <infiniband/efadv.h>
#include <infiniband/mlx5dv.h>
#include <infiniband/verbs.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "gdaki/providers/provider.hpp"
#include "gdaki/rig.hpp"
#include "support/random.hpp"

namespace eptransport::gdaki::testing {
namespace {

constexpr int all_access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
                           IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;

/// Registered memory on one NIC of the emulated network.
class memory {
 public:
  memory(emulator::network& net, std::uint32_t nic, const std::string& device, std::size_t bytes,
         int access = all_access)
      : bytes_(bytes),
        region_(ibv_reg_mr(open_device::named(device).domain, bytes_.data(), bytes, access)) {
    std::uint8_t rights = emulator::local_read;
    if ((access & IBV_ACCESS_LOCAL_WRITE) != 0) rights |= emulator::local_write;
    if ((access & IBV_ACCESS_REMOTE_WRITE) != 0) rights |= emulator::remote_write;
    if ((access & IBV_ACCESS_REMOTE_READ) != 0) rights |= emulator::remote_read;
    if ((access & IBV_ACCESS_REMOTE_ATOMIC) != 0) rights |= emulator::remote_atomic;
    net.memory(nic).add({bytes_.data(), bytes, address(), region_->lkey, region_->rkey, rights});
  }
  ~memory() { ibv_dereg_mr(region_); }
  memory(const memory&) = delete;
  memory& operator=(const memory&) = delete;

  [[nodiscard]] std::uint64_t address(std::uint64_t offset = 0) const {
    return reinterpret_cast<std::uintptr_t>(bytes_.data()) + offset;
  }
  [[nodiscard]] std::byte* at(std::uint64_t offset) const { return bytes_.data() + offset; }
  [[nodiscard]] std::uint64_t& word(std::uint64_t offset) const {
    return *bytes_.as<std::uint64_t>(offset);
  }
  [[nodiscard]] std::uint32_t key() const { return region_->lkey; }
  [[nodiscard]] ibv_sge range(std::uint64_t offset, std::uint32_t bytes) const {
    return {address(offset), bytes, key()};
  }

 private:
  block bytes_;
  ibv_mr* region_;
};

void post_receive(ibv_qp* qp, std::uint64_t id, ibv_sge range) {
  ibv_recv_wr ask{};
  ask.wr_id = id;
  ask.sg_list = &range;
  ask.num_sge = 1;
  ibv_recv_wr* bad = nullptr;
  ASSERT_EQ(ibv_post_recv(qp, &ask, &bad), 0);
}

ibv_wc poll_one(ibv_cq* cq) {
  ibv_wc wc{};
  EXPECT_EQ(ibv_poll_cq(cq, 1, &wc), 1) << "no completion";
  return wc;
}

/// Two EFA queue pairs on two NICs.
class EfaProviderOverEmulator : public ::testing::Test {
 protected:
  static constexpr std::uint32_t qkey = 0x11;
  static constexpr provider_sizes sizes{64, 64, 128, 32, 2};
  static constexpr std::uint64_t operations =
      IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM | IBV_QP_EX_WITH_RDMA_READ;

  EfaProviderOverEmulator() {
    net.add_nic();
    net.add_nic();
    attach(0, a);
    attach(1, b);
    net.add_handle(0, number_of(peer), 1);
    net.add_handle(1, number_of(back), 0);
  }

  void attach(std::uint32_t nic, const efa_provider& p) {
    emulator::queue_pair_setup setup;
    setup.nic = nic;
    setup.qpn = p.seen.qpn;
    setup.qkey = qkey;
    setup.send_queue = setup.receive_queue =
        net.add_completion_queue({emulator::wire::efa, p.seen_cq.ring(), p.seen_cq.entries,
                                  p.seen_cq.entry_bytes, false, nullptr});
    setup.send = {p.seen.send_ring(),      p.slots(), efa::narrow,
                  fake_uverbs::max_batch,  0,         nullptr,
                  {p.seen.send_doorbell()}};
    setup.receive = {p.seen.receive_ring(), p.seen.receive_bytes / 16, 16,
                     p.seen.receive_doorbell()};
    net.add_queue_pair(setup);
  }
  struct target {
    ibv_ah* handle;
    std::uint32_t qpn;
    std::uint32_t qkey;
  };
  [[nodiscard]] target to_b() const { return {peer.get(), b.seen.qpn, qkey}; }

  void send(std::uint64_t id, ibv_sge range, target to) {
    ibv_wr_start(a.ex);
    a.ex->wr_id = id;
    ibv_wr_send(a.ex);
    ibv_wr_set_sge(a.ex, range.lkey, range.addr, range.length);
    ibv_wr_set_ud_addr(a.ex, to.handle, to.qpn, to.qkey);
    ASSERT_EQ(ibv_wr_complete(a.ex), 0);
  }
  void read(std::uint64_t id, ibv_sge into, std::uint32_t rkey, std::uint64_t from) {
    ibv_wr_start(a.ex);
    a.ex->wr_id = id;
    ibv_wr_rdma_read(a.ex, rkey, from);
    ibv_wr_set_sge(a.ex, into.lkey, into.addr, into.length);
    ibv_wr_set_ud_addr(a.ex, peer.get(), b.seen.qpn, qkey);
    ASSERT_EQ(ibv_wr_complete(a.ex), 0);
  }
  void expect_error(efa::status status) {
    net.step();
    const ibv_wc wc = poll_one(a.cq);
    EXPECT_NE(wc.status, IBV_WC_SUCCESS);
    EXPECT_EQ(wc.vendor_err, static_cast<std::uint32_t>(status)) << efa::to_string(status);
    EXPECT_TRUE(net.findings().empty()) << describe(net);
  }

  emulator::network net{{.seed = 9}};
  efa_provider a{sizes, operations};
  efa_provider b{sizes, operations};
  owned_handle peer = make_handle(1);
  owned_handle back = make_handle(0);
  owned_handle unknown = make_handle(9);
};

TEST_F(EfaProviderOverEmulator, AMessageArrivesWithItsImmediateAndItsSender) {
  const memory from(net, 0, "efa_0", 4096);
  const memory into(net, 1, "efa_0", 4096);
  std::strcpy(reinterpret_cast<char*>(from.at(100)), "two ranges");
  post_receive(b.qp, 77, into.range(0, 64));
  ibv_wr_start(a.ex);
  a.ex->wr_id = 5;
  ibv_wr_send_imm(a.ex, htobe32(0xcafef00d));
  const ibv_sge list[2] = {from.range(100, 4), from.range(104, 7)};
  ibv_wr_set_sge_list(a.ex, 2, list);
  ibv_wr_set_ud_addr(a.ex, peer.get(), b.seen.qpn, qkey);
  ASSERT_EQ(ibv_wr_complete(a.ex), 0);
  net.step();
  const ibv_wc sent = poll_one(a.cq);
  EXPECT_EQ(sent.status, IBV_WC_SUCCESS);
  EXPECT_EQ(sent.wr_id, 5U);
  const ibv_wc got = poll_one(b.cq);
  EXPECT_EQ(got.status, IBV_WC_SUCCESS);
  EXPECT_EQ(got.wr_id, 77U);
  EXPECT_EQ(got.opcode, IBV_WC_RECV);
  EXPECT_EQ(got.byte_len, 11U);
  EXPECT_EQ(got.src_qp, a.seen.qpn);
  EXPECT_EQ(got.wc_flags & IBV_WC_WITH_IMM, unsigned{IBV_WC_WITH_IMM});
  EXPECT_EQ(be32toh(got.imm_data), 0xcafef00dU);
  EXPECT_STREQ(reinterpret_cast<const char*>(into.at(0)), "two ranges");
  EXPECT_TRUE(net.findings().empty()) << describe(net);
}

TEST_F(EfaProviderOverEmulator, RandomReadsAndMessagesCompleteOutOfOrderAcrossWraps) {
  constexpr std::uint64_t total = 100'000;
  constexpr std::uint32_t slot = 512;
  const memory mine(net, 0, "efa_0", 64 * slot);
  const memory theirs(net, 1, "efa_0", 64 * slot);
  support::random_bits random(17);
  random.fill({theirs.at(0), 64 * slot});
  struct pending {
    std::uint64_t id = 0;
    std::uint32_t bytes = 0;
    std::uint64_t from = 0;
  };
  std::array<pending, 64> flights{};
  std::vector<std::uint32_t> free;
  for (std::uint32_t i = 0; i < 64; ++i) free.push_back(i);
  std::uint64_t posted = 0;
  std::uint64_t done = 0;
  std::uint64_t out_of_order = 0;
  std::uint64_t last = 0;
  while (done < total && !HasFatalFailure()) {
    while (!free.empty() && posted < total && random.chance(0.8)) {
      const std::uint32_t at = free.back();
      free.pop_back();
      flights[at] = {posted, static_cast<std::uint32_t>(1 + random.below(slot)), 0};
      flights[at].from = random.below(64 * slot - flights[at].bytes);
      read(posted << 8U | at, mine.range(std::uint64_t{at} * slot, flights[at].bytes), theirs.key(),
           theirs.address(flights[at].from));
      ++posted;
      net.step(random.below(4));
    }
    net.step(random.below(16));
    ibv_wc wc{};
    while (ibv_poll_cq(a.cq, 1, &wc) == 1) {
      ASSERT_EQ(wc.status, IBV_WC_SUCCESS);
      const auto at = static_cast<std::uint32_t>(wc.wr_id & 0xffU);
      ASSERT_EQ(wc.wr_id >> 8U, flights[at].id) << "completed twice";
      ASSERT_EQ(std::memcmp(mine.at(std::uint64_t{at} * slot), theirs.at(flights[at].from),
                            flights[at].bytes),
                0);
      out_of_order += flights[at].id < last;
      last = flights[at].id;
      flights[at].id = ~std::uint64_t{0};
      free.push_back(at);
      ++done;
    }
  }
  EXPECT_GT(out_of_order, total / 100);
  EXPECT_TRUE(net.findings().empty()) << describe(net);
}

TEST_F(EfaProviderOverEmulator, EachCauseHasItsStatus) {
  const memory from(net, 0, "efa_0", 4096);
  const memory into(net, 1, "efa_0", 4096);
  const memory unreadable(net, 1, "efa_0", 4096, IBV_ACCESS_LOCAL_WRITE);
  const ibv_sge good = from.range(0, 64);

  send(1, good, to_b());
  expect_error(efa::status::receiver_not_ready);
  send(2, good, {unknown.get(), b.seen.qpn, qkey});
  expect_error(efa::status::invalid_address_handle);
  send(3, good, {peer.get(), 0x3fff, qkey});
  expect_error(efa::status::bad_destination_qp);
  send(4, good, {peer.get(), b.seen.qpn, qkey + 1});
  expect_error(efa::status::bad_destination_qp);
  post_receive(b.qp, 1, into.range(0, 32));
  send(5, good, to_b());
  expect_error(efa::status::remote_bad_length);
  post_receive(b.qp, 2, into.range(0, 64));
  send(6, {good.addr, 64, good.lkey + 100}, to_b());
  expect_error(efa::status::invalid_local_key);
  read(7, from.range(4090, 64), into.key(), into.address());
  expect_error(efa::status::invalid_local_key);
  read(8, good, into.key() + 100, into.address());
  expect_error(efa::status::remote_bad_address);
  read(9, good, into.key(), into.address(4090));
  expect_error(efa::status::remote_bad_address);
  read(10, good, unreadable.key(), unreadable.address());
  expect_error(efa::status::remote_bad_address);
  net.memory(1).remove(into.key());
  read(11, good, into.key(), into.address());
  expect_error(efa::status::remote_bad_address);
  net.kill(1);
  read(12, good, into.key(), into.address());
  expect_error(efa::status::unresponsive_remote);
}

TEST_F(EfaProviderOverEmulator, EveryStatusNumberIsDecoded) {
  const memory from(net, 0, "efa_0", 4096);
  const memory into(net, 1, "efa_0", 4096);
  std::uint64_t request = 0;
  for (std::uint8_t status = 1; status <= 15; ++status) {
    net.plan({.nic = 0, .qpn = a.seen.qpn, .request = request++, .status = status});
    read(status, from.range(0, 8), into.key(), into.address());
    expect_error(static_cast<efa::status>(status));
  }
}

/// Two connected mlx5 queue pairs on two NICs.
class Mlx5ProviderOverEmulator : public ::testing::Test {
 protected:
  static constexpr provider_sizes sizes{64, 16, 127, 64, 2};

  Mlx5ProviderOverEmulator() {
    net.add_nic();
    net.add_nic();
    attach(0, a);
    attach(1, b);
    net.connect(0, a.qp->qp_num, 1, b.qp->qp_num);
    net.connect(1, b.qp->qp_num, 0, a.qp->qp_num);
  }

  void attach(std::uint32_t nic, const mlx5_provider& p) {
    emulator::queue_pair_setup setup;
    setup.format = emulator::wire::mlx5;
    setup.nic = nic;
    setup.qpn = p.qp->qp_num;
    setup.user_index = p.seen.user_index;
    setup.send_queue = setup.receive_queue =
        net.add_completion_queue({emulator::wire::mlx5, static_cast<std::byte*>(p.dv_cq.buf),
                                  p.dv_cq.cqe_cnt, p.dv_cq.cqe_size, false, p.dv_cq.dbrec});
    setup.send = {p.ring(), p.dv.sq.wqe_cnt, mlx5::block_bytes,     0,
                  0,        p.dv.dbrec + 1,  {p.half(0), p.half(1)}};
    setup.receive = {static_cast<const std::byte*>(p.dv.rq.buf), p.dv.rq.wqe_cnt, p.dv.rq.stride,
                     p.dv.dbrec};
    net.add_queue_pair(setup);
  }

  struct ask {
    ibv_wr_opcode opcode = IBV_WR_RDMA_WRITE;
    ibv_sge range{};
    std::uint64_t remote = 0;
    std::uint32_t rkey = 0;
    unsigned flags = IBV_SEND_SIGNALED;
    std::uint64_t compare_add = 0;
    std::uint64_t swap = 0;
  };
  void post(std::uint64_t id, ask what) {
    ibv_send_wr wr{};
    wr.wr_id = id;
    wr.sg_list = &what.range;
    wr.num_sge = 1;
    wr.opcode = what.opcode;
    wr.send_flags = what.flags;
    wr.imm_data = htobe32(0xcafef00d);
    if (what.opcode == IBV_WR_ATOMIC_FETCH_AND_ADD || what.opcode == IBV_WR_ATOMIC_CMP_AND_SWP) {
      wr.wr.atomic = {what.remote, what.compare_add, what.swap, what.rkey};
    } else {
      wr.wr.rdma = {what.remote, what.rkey};
    }
    ibv_send_wr* bad = nullptr;
    ASSERT_EQ(ibv_post_send(a.qp, &wr, &bad), 0);
  }
  void expect(std::uint64_t id, ibv_wc_opcode opcode) {
    net.step();
    const ibv_wc wc = poll_one(a.cq);
    EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
    EXPECT_EQ(wc.wr_id, id);
    EXPECT_EQ(wc.opcode, opcode);
    EXPECT_TRUE(net.findings().empty()) << describe(net);
  }
  void expect_error(ibv_wc_status status) {
    net.step();
    const ibv_wc wc = poll_one(a.cq);
    EXPECT_EQ(wc.status, status) << ibv_wc_status_str(wc.status);
    EXPECT_TRUE(net.findings().empty()) << describe(net);
  }

  emulator::network net{{.seed = 10}};
  mlx5_provider a{sizes};
  mlx5_provider b{sizes};
};

TEST_F(Mlx5ProviderOverEmulator, EveryOperationDoesItsWork) {
  const memory mine(net, 0, "mlx5_0", 4096);
  const memory theirs(net, 1, "mlx5_0", 4096);
  mine.word(0) = 0x1111;
  post(1, {IBV_WR_RDMA_WRITE, mine.range(0, 8), theirs.address(64), theirs.key()});
  expect(1, IBV_WC_RDMA_WRITE);
  EXPECT_EQ(theirs.word(64), 0x1111U);

  mine.word(0) = 0x2222;  // inline: the provider copies it now
  post(2, {IBV_WR_RDMA_WRITE, mine.range(0, 8), theirs.address(64), theirs.key(),
           IBV_SEND_SIGNALED | IBV_SEND_INLINE});
  mine.word(0) = 0;
  expect(2, IBV_WC_RDMA_WRITE);
  EXPECT_EQ(theirs.word(64), 0x2222U);

  post(3, {IBV_WR_RDMA_READ, mine.range(8, 8), theirs.address(64), theirs.key()});
  expect(3, IBV_WC_RDMA_READ);
  EXPECT_EQ(mine.word(8), 0x2222U);

  post(4, {IBV_WR_ATOMIC_FETCH_AND_ADD, mine.range(16, 8), theirs.address(64), theirs.key(),
           IBV_SEND_SIGNALED, 3});
  expect(4, IBV_WC_FETCH_ADD);
  EXPECT_EQ(mine.word(16), 0x2222U);
  EXPECT_EQ(theirs.word(64), 0x2225U);

  post(5, {IBV_WR_ATOMIC_CMP_AND_SWP, mine.range(16, 8), theirs.address(64), theirs.key(),
           IBV_SEND_SIGNALED, 0x2225, 9});
  expect(5, IBV_WC_COMP_SWAP);
  EXPECT_EQ(theirs.word(64), 9U);

  post_receive(b.qp, 70, theirs.range(128, 16));
  mine.word(0) = 0x3333;
  post(6, {IBV_WR_SEND_WITH_IMM, mine.range(0, 8)});
  expect(6, IBV_WC_SEND);
  ibv_wc got = poll_one(b.cq);
  EXPECT_EQ(got.wr_id, 70U);
  EXPECT_EQ(got.opcode, IBV_WC_RECV);
  EXPECT_EQ(got.byte_len, 8U);
  EXPECT_EQ(be32toh(got.imm_data), 0xcafef00dU);
  EXPECT_EQ(theirs.word(128), 0x3333U);

  post_receive(b.qp, 71, theirs.range(128, 16));
  post(7, {IBV_WR_RDMA_WRITE_WITH_IMM, mine.range(0, 8), theirs.address(256), theirs.key()});
  expect(7, IBV_WC_RDMA_WRITE);
  got = poll_one(b.cq);
  EXPECT_EQ(got.wr_id, 71U);
  EXPECT_EQ(got.opcode, IBV_WC_RECV_RDMA_WITH_IMM);
  EXPECT_EQ(got.byte_len, 8U);
  EXPECT_EQ(theirs.word(256), 0x3333U);
}

TEST_F(Mlx5ProviderOverEmulator, RandomRequestsCompleteInOrderAcrossWraps) {
  constexpr std::uint64_t total = 100'000;
  const memory mine(net, 0, "mlx5_0", 1 << 16);
  const memory theirs(net, 1, "mlx5_0", 1 << 16);
  support::random_bits random(23);
  random.fill({mine.at(0), 1 << 15});
  std::vector<std::byte> model(1 << 16, std::byte{0});
  std::uint64_t added = 0;
  std::uint64_t posted = 0;
  std::uint64_t done = 0;
  while (done < total && !HasFatalFailure()) {
    while (posted < total && posted - done < 20 && random.chance(0.8)) {
      const std::uint32_t kind = static_cast<std::uint32_t>(random.below(3));
      const auto bytes = static_cast<std::uint32_t>(1 + random.below(kind == 1 ? 60 : 1000));
      const std::uint64_t from = random.below((1 << 15) - 1000);
      const std::uint64_t to = 64 + random.below((1 << 16) - 1064);
      if (kind == 2) {
        post(posted, {IBV_WR_ATOMIC_FETCH_AND_ADD, mine.range((1 << 15) + 8, 8), theirs.address(0),
                      theirs.key(), IBV_SEND_SIGNALED, posted});
        added += posted;
      } else {
        const unsigned flags = kind == 1 ? IBV_SEND_SIGNALED | IBV_SEND_INLINE : IBV_SEND_SIGNALED;
        post(posted,
             {IBV_WR_RDMA_WRITE, mine.range(from, bytes), theirs.address(to), theirs.key(), flags});
        std::memcpy(model.data() + to, mine.at(from), bytes);  // in order: the last one wins
      }
      ++posted;
      net.step(random.below(3));
    }
    net.step(random.below(32));
    ibv_wc wc{};
    while (ibv_poll_cq(a.cq, 1, &wc) == 1) {
      ASSERT_EQ(wc.status, IBV_WC_SUCCESS);
      ASSERT_EQ(wc.wr_id, done++);
    }
  }
  EXPECT_EQ(theirs.word(0), added);
  EXPECT_EQ(std::memcmp(theirs.at(64), model.data() + 64, (1 << 16) - 64), 0);
  EXPECT_TRUE(net.findings().empty()) << describe(net);
}

TEST_F(Mlx5ProviderOverEmulator, AnErrorFlushesWhatFollows) {
  const memory mine(net, 0, "mlx5_0", 4096);
  const memory theirs(net, 1, "mlx5_0", 4096);
  post(1, {IBV_WR_RDMA_WRITE, mine.range(0, 8), theirs.address(64), theirs.key() + 100});
  post(2, {IBV_WR_RDMA_WRITE, mine.range(0, 8), theirs.address(64), theirs.key()});
  net.step();
  const ibv_wc first = poll_one(a.cq);
  EXPECT_EQ(first.wr_id, 1U);
  EXPECT_EQ(first.status, IBV_WC_REM_ACCESS_ERR);
  EXPECT_EQ(first.vendor_err, 0x77U);
  const ibv_wc second = poll_one(a.cq);
  EXPECT_EQ(second.wr_id, 2U);
  EXPECT_EQ(second.status, IBV_WC_WR_FLUSH_ERR);
}

TEST_F(Mlx5ProviderOverEmulator, ALocalKeyIsChecked) {
  const memory mine(net, 0, "mlx5_0", 4096);
  const memory theirs(net, 1, "mlx5_0", 4096);
  post(1, {IBV_WR_RDMA_WRITE, {mine.address(), 8, 1}, theirs.address(64), theirs.key()});
  expect_error(IBV_WC_LOC_PROT_ERR);
}

TEST_F(Mlx5ProviderOverEmulator, ARemoteRightIsChecked) {
  const memory mine(net, 0, "mlx5_0", 4096);
  const memory theirs(net, 1, "mlx5_0", 4096, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ);
  post(1, {IBV_WR_RDMA_WRITE, mine.range(0, 8), theirs.address(64), theirs.key()});
  expect_error(IBV_WC_REM_ACCESS_ERR);
}

TEST_F(Mlx5ProviderOverEmulator, AMessageNeedsABuffer) {
  const memory mine(net, 0, "mlx5_0", 4096);
  post(1, {IBV_WR_SEND, mine.range(0, 8)});
  expect_error(IBV_WC_RNR_RETRY_EXC_ERR);
}

TEST_F(Mlx5ProviderOverEmulator, AMessageNeedsALargeEnoughBuffer) {
  const memory mine(net, 0, "mlx5_0", 4096);
  const memory theirs(net, 1, "mlx5_0", 4096);
  post_receive(b.qp, 1, theirs.range(0, 4));
  post(1, {IBV_WR_SEND, mine.range(0, 8)});
  expect_error(IBV_WC_REM_INV_REQ_ERR);
}

TEST_F(Mlx5ProviderOverEmulator, ADeadPeerIsNoticed) {
  const memory mine(net, 0, "mlx5_0", 4096);
  const memory theirs(net, 1, "mlx5_0", 4096);
  net.kill(1);
  post(1, {IBV_WR_RDMA_WRITE, mine.range(0, 8), theirs.address(64), theirs.key()});
  expect_error(IBV_WC_RETRY_EXC_ERR);
}

class Mlx5Syndromes : public Mlx5ProviderOverEmulator,
                      public ::testing::WithParamInterface<std::pair<mlx5::status, ibv_wc_status>> {
};

TEST_P(Mlx5Syndromes, AreDecoded) {
  const memory mine(net, 0, "mlx5_0", 4096);
  const memory theirs(net, 1, "mlx5_0", 4096);
  net.plan({.nic = 0,
            .qpn = a.qp->qp_num,
            .request = 0,
            .status = static_cast<std::uint8_t>(GetParam().first)});
  post(1, {IBV_WR_RDMA_WRITE, mine.range(0, 8), theirs.address(64), theirs.key()});
  expect_error(GetParam().second);
}

INSTANTIATE_TEST_SUITE_P(
    All, Mlx5Syndromes,
    ::testing::Values(std::pair{mlx5::status::local_length, IBV_WC_LOC_LEN_ERR},
                      std::pair{mlx5::status::local_queue_operation, IBV_WC_LOC_QP_OP_ERR},
                      std::pair{mlx5::status::local_protection, IBV_WC_LOC_PROT_ERR},
                      std::pair{mlx5::status::flushed, IBV_WC_WR_FLUSH_ERR},
                      std::pair{mlx5::status::window_bind, IBV_WC_MW_BIND_ERR},
                      std::pair{mlx5::status::bad_response, IBV_WC_BAD_RESP_ERR},
                      std::pair{mlx5::status::local_access, IBV_WC_LOC_ACCESS_ERR},
                      std::pair{mlx5::status::remote_invalid_request, IBV_WC_REM_INV_REQ_ERR},
                      std::pair{mlx5::status::remote_access, IBV_WC_REM_ACCESS_ERR},
                      std::pair{mlx5::status::remote_operation, IBV_WC_REM_OP_ERR},
                      std::pair{mlx5::status::transport_retry_exceeded, IBV_WC_RETRY_EXC_ERR},
                      std::pair{mlx5::status::receiver_not_ready_retry_exceeded,
                                IBV_WC_RNR_RETRY_EXC_ERR},
                      std::pair{mlx5::status::remote_aborted, IBV_WC_REM_ABORT_ERR}),
    [](const auto& test) {
      std::string name = to_string(test.param.first);
      for (char& c : name) c = c == ' ' ? '_' : c;
      return name;
    });

}  // namespace
}  // namespace eptransport::gdaki::testing
