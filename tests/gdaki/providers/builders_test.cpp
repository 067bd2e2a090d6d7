// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Our entries, doorbells and completion parsers against the real providers, byte for byte.
///
/// Free bytes, which no device reads or a provider leaves stale: EFA's request id (newer providers
/// keep a queue pair generation there), the compare operand of an mlx5 fetch-add, and the padding
/// after mlx5 inline data.
#include <eptransport/gdaki/emulator/completion_writer.hpp>
#include <eptransport/gdaki/format.hpp>

#include <gtest/gtest.h>
#include <infiniband/efadv.h>
#include <infiniband/mlx5dv.h>
#include <infiniband/verbs.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <dlfcn.h>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "gdaki/providers/provider.hpp"
#include "support/random.hpp"

namespace eptransport::gdaki::testing {
namespace {

constexpr std::uint64_t requests_per_format = 100'000;
constexpr std::uint64_t seed = 20261130;

/// Counts bytes that differ, and remembers the first.
class comparison {
 public:
  void check(const std::string& name, std::span<const std::byte> ours,
             std::span<const std::byte> theirs) {
    ++entries_;
    for (std::size_t i = 0; i < ours.size(); ++i) {
      if (ours[i] == theirs[i]) continue;
      if (different_++ == 0) {
        first_ = name + ", byte " + std::to_string(i) + ": ours " +
                 std::to_string(std::to_integer<int>(ours[i])) + ", theirs " +
                 std::to_string(std::to_integer<int>(theirs[i]));
      }
    }
  }
  template <class T>
  void check_value(const std::string& name, const T& ours, const T& theirs) {
    check(name, std::as_bytes(std::span(&ours, 1)), std::as_bytes(std::span(&theirs, 1)));
  }
  [[nodiscard]] std::uint64_t entries() const { return entries_; }
  [[nodiscard]] std::uint64_t different() const { return different_; }
  [[nodiscard]] const std::string& first() const { return first_; }

 private:
  std::uint64_t entries_ = 0;
  std::uint64_t different_ = 0;
  std::string first_;
};

/// Random requests through an EFA provider, in batches, with completions in random order.
class efa_run {
 public:
  efa_run(std::uint64_t operations, bool writes, bool flip)
      : provider_(
            {.send = 64, .receive = 16, .completions = 64, .inline_bytes = 32, .send_ranges = 2},
            operations),
        random_(seed),
        writes_(writes),
        flip_(flip) {
    for (std::uint8_t i = 0; i < 8; ++i) handles_.push_back(make_handle(i));
  }
  [[nodiscard]] bool possible() const { return provider_.qp != nullptr; }

  void run(std::uint64_t count) {
    const std::uint32_t entries = provider_.seen_cq.entries;
    emulator::completion_writer writer({emulator::wire::efa, provider_.seen_cq.ring(), entries,
                                        provider_.seen_cq.entry_bytes, false, nullptr});
    while (posted_ < count && !::testing::Test::HasFatalFailure()) {
      const std::uint64_t first = posted_;
      post_batch(1 + random_.below(fake_uverbs::max_batch));
      result.check_value<std::uint32_t>("doorbell", efa::doorbell(posted_),
                                        *provider_.seen.send_doorbell());
      complete(writer, first);
    }
  }

  comparison result;

 private:
  [[nodiscard]] std::byte* slot(std::uint64_t index) const {
    return provider_.seen.send_ring() + (index & (provider_.slots() - 1)) * efa::narrow;
  }

  void post_batch(std::uint64_t count) {
    std::vector<efa::entry<64>> ours;
    ibv_wr_start(provider_.ex);
    for (std::uint64_t i = 0; i < count; ++i) {
      provider_.ex->wr_id = posted_ + i;
      ours.push_back(post_one(posted_ + i));
    }
    ASSERT_EQ(ibv_wr_complete(provider_.ex), 0);
    for (std::uint64_t i = 0; i < count; ++i) {
      std::byte* theirs = slot(posted_ + i);
      std::uint32_t id = 0;
      std::memcpy(&id, theirs, 2);
      ours[i].part[0].word[0] = (ours[i].part[0].word[0] & 0xffff0000U) | id;  // free bytes
      if (flip_) theirs[random_.below(62) + 2] ^= std::byte(1U << random_.below(8));
      result.check("entry " + std::to_string(posted_ + i), std::as_bytes(std::span(&ours[i], 1)),
                   {theirs, 64});
    }
    posted_ += count;
  }

  efa::entry<64> post_one(std::uint64_t index) {
    ibv_qp_ex* x = provider_.ex;
    const efa::place place = efa::place_of(index, provider_.slots());
    const std::uint64_t which = random_.below(handles_.size());
    const efa::address to{number_of(handles_[which]), static_cast<std::uint16_t>(random_()),
                          static_cast<std::uint32_t>(random_())};
    const local_range first{random_(), static_cast<std::uint32_t>(random_() & efa::key_mask),
                            static_cast<std::uint32_t>(1 + random_.below(1 << 30))};
    local_range second{random_(), static_cast<std::uint32_t>(random_() & efa::key_mask), 0};
    const remote_range remote{random_(), static_cast<std::uint32_t>(random_())};
    efa::options with{random_.chance(0.5), static_cast<std::uint32_t>(random_()), 0};
    efa::entry<64> ours;
    switch (random_.below(writes_ ? 4 : 3)) {
      case 0: {
        begin_send(with);
        std::byte data[32];
        random_.fill(data);
        const auto bytes = static_cast<std::uint16_t>(random_.below(33));
        ibv_wr_set_inline_data(x, data, bytes);
        ours = efa::send_inline(place, to, data, bytes, with);
        break;
      }
      case 1: {
        begin_send(with);
        if (random_.chance(0.5)) second.bytes = static_cast<std::uint32_t>(1 + random_.below(9000));
        ibv_sge list[2] = {{first.address, first.bytes, first.key},
                           {second.address, second.bytes, second.key}};
        ibv_wr_set_sge_list(x, second.bytes == 0 ? 1 : 2, list);
        ours = efa::send(place, to, first, second, with);
        break;
      }
      case 2:
        ibv_wr_rdma_read(x, remote.key, remote.address);
        ibv_wr_set_sge(x, first.key, first.address, first.bytes);
        ours = efa::read(place, to, remote, first);
        break;
      default:
        if (with.has_immediate) {
          ibv_wr_rdma_write_imm(x, remote.key, remote.address, htobe32(with.immediate));
        } else {
          ibv_wr_rdma_write(x, remote.key, remote.address);
        }
        ibv_wr_set_sge(x, first.key, first.address, first.bytes);
        ours = efa::write(place, to, remote, first, with);
    }
    ibv_wr_set_ud_addr(x, handles_[which].get(), to.qpn, to.qkey);
    return ours;
  }

  void begin_send(const efa::options& with) {
    if (with.has_immediate) {
      ibv_wr_send_imm(provider_.ex, htobe32(with.immediate));
    } else {
      ibv_wr_send(provider_.ex);
    }
  }

  /// Reports the batch in random order; the provider and our parser must agree on each.
  void complete(emulator::completion_writer& writer, std::uint64_t first) {
    std::vector<std::uint64_t> order;
    for (std::uint64_t i = first; i < posted_; ++i) order.push_back(i);
    for (std::size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random_.below(i)]);
    for (const std::uint64_t index : order) {
      emulator::completion_facts facts;
      facts.qpn = provider_.seen.qpn;
      std::memcpy(&facts.index, slot(index), 2);
      facts.native = static_cast<std::uint8_t>(std::to_integer<int>(slot(index)[2]) & 0xf);
      ASSERT_TRUE(writer.write(facts));
      completion ours;
      const completion_ring ring{provider_.seen_cq.ring(), provider_.seen_cq.entries,
                                 provider_.seen_cq.entry_bytes, nullptr};
      ASSERT_TRUE(efa_format<>::take<host_memory>(ring, consumed_, ours));
      ++consumed_;
      ibv_wc theirs{};
      ASSERT_EQ(ibv_poll_cq(provider_.cq, 1, &theirs), 1);
      ASSERT_EQ(theirs.wr_id, index);
      ASSERT_EQ(theirs.status, IBV_WC_SUCCESS);
      ASSERT_EQ(ours.what, completed::request);
      ASSERT_EQ(ours.index, facts.index);
      ASSERT_EQ(ours.qpn, theirs.qp_num);
    }
  }

  efa_provider provider_;
  support::random_bits random_;
  bool writes_;
  bool flip_;
  std::vector<owned_handle> handles_;
  std::uint64_t posted_ = 0;
  std::uint64_t consumed_ = 0;
};

constexpr std::uint64_t efa_operations =
    IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM | IBV_QP_EX_WITH_RDMA_READ;

TEST(ProviderBuilders, EfaEntriesAndDoorbellsAreLibefasBytes) {
  efa_run run(efa_operations, false, false);
  ASSERT_TRUE(run.possible());
  run.run(requests_per_format);
  EXPECT_GE(run.result.entries(), requests_per_format);
  EXPECT_EQ(run.result.different(), 0U) << run.result.first() << ", seed " << seed;
}

TEST(ProviderBuilders, EfaAFlippedBitIsFound) {
  efa_run run(efa_operations, false, true);
  run.run(100);
  EXPECT_GE(run.result.different(), 100U);
}

TEST(ProviderBuilders, EfaWritesAreLibefasBytesWhereItKnowsThem) {
  void* library = dlopen("libefa.so.1", RTLD_NOW);
  ASSERT_NE(library, nullptr);
  const bool newer = dlvsym(library, "efadv_query_qp_wqs", "EFA_1.4") != nullptr;
  efa_run run(efa_operations | IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM, true,
              false);
  RecordProperty("provider_knows_rdma_write", run.possible() ? "yes" : "no");
  ASSERT_TRUE(run.possible() || !newer) << "a provider that knows writes refused them";
  if (!run.possible()) return;  // the golden vectors in efa_wqe.hpp stand in
  run.run(requests_per_format);
  EXPECT_EQ(run.result.different(), 0U) << run.result.first() << ", seed " << seed;
}

TEST(ProviderBuilders, EfaReceiveEntriesAreLibefasBytes) {
  efa_provider provider({}, efa_operations);
  support::random_bits random(seed);
  comparison result;
  const std::uint32_t slots = provider.seen.receive_bytes / 16;
  for (std::uint32_t i = 0; i < slots; ++i) {
    const local_range into{random(), static_cast<std::uint32_t>(random() & efa::key_mask),
                           static_cast<std::uint32_t>(random.below(0x10000))};
    ibv_sge range{into.address, into.bytes, into.key};
    ibv_recv_wr ask{};
    ask.wr_id = i;
    ask.sg_list = &range;
    ask.num_sge = 1;
    ibv_recv_wr* bad = nullptr;
    ASSERT_EQ(ibv_post_recv(provider.qp, &ask, &bad), 0);
    segment theirs;
    std::memcpy(&theirs, provider.seen.receive_ring() + i * 16, 16);
    result.check_value("receive entry",
                       efa::receive(static_cast<std::uint16_t>(theirs.word[2] & 0xffffU), into),
                       theirs);
    EXPECT_EQ(*provider.seen.receive_doorbell() & 0xffffU, i + 1);
  }
  EXPECT_EQ(result.different(), 0U) << result.first();
}

/// Random requests through libmlx5, in lists, with a completion per signalled request.
class mlx5_run {
 public:
  explicit mlx5_run(bool flip)
      : provider_({.send = 64, .receive = 16, .completions = 63, .inline_bytes = max_inline}),
        random_(seed + 1),
        flip_(flip) {}

  void run(std::uint64_t count) {
    emulator::completion_writer writer({emulator::wire::mlx5,
                                        static_cast<std::byte*>(provider_.dv_cq.buf),
                                        provider_.dv_cq.cqe_cnt, 64, false, nullptr});
    while (requests_ < count && !::testing::Test::HasFatalFailure()) {
      post_list(1 + random_.below(8));
      complete(writer);
    }
  }

  comparison result;

 private:
  static constexpr std::uint32_t max_inline = 200;
  static constexpr std::uint32_t segments = 16;  ///< of the longest entry: 4 blocks

  struct one {
    queue_entry<segments> ours;
    std::uint64_t number = 0;
    std::uint64_t block = 0;
    std::uint32_t bytes = 0;  ///< of the entry that count
    std::uint8_t native = 0;
    bool stale_compare = false;
    bool signalled = false;
  };

  [[nodiscard]] std::byte theirs(std::uint64_t byte) const {
    return provider_.ring()[byte % (std::uint64_t{provider_.dv.sq.wqe_cnt} * mlx5::block_bytes)];
  }

  void post_list(std::uint64_t count) {
    std::vector<ibv_send_wr> list(count);
    std::vector<ibv_sge> ranges(count);
    std::vector<std::array<std::byte, max_inline>> data(count);
    ours_.assign(count, {});
    for (std::uint64_t i = 0; i < count; ++i) {
      ours_[i].signalled = i + 1 == count || random_.chance(0.3);
      prepare(list[i], ranges[i], data[i], ours_[i]);
      list[i].next = i + 1 == count ? nullptr : &list[i + 1];
    }
    ibv_send_wr* bad = nullptr;
    ASSERT_EQ(ibv_post_send(provider_.qp, list.data(), &bad), 0);
    ++calls_;
    for (one& o : ours_) compare(o);
    result.check_value<std::uint32_t>("record", mlx5::record(block_), provider_.dv.dbrec[1]);
    std::uint64_t rung = 0;
    std::memcpy(&rung, provider_.half((calls_ - 1) % 2), 8);
    std::uint64_t head = 0;
    std::memcpy(&head, &ours_.back().ours, 8);
    result.check_value<std::uint64_t>("register", head, rung);
  }

  void compare(one& o) {
    std::vector<std::byte> got(o.bytes);
    for (std::uint32_t b = 0; b < o.bytes; ++b) got[b] = theirs(o.block * mlx5::block_bytes + b);
    if (o.stale_compare) std::memset(got.data() + 40, 0, 8);
    if (flip_) got[random_.below(o.bytes)] ^= std::byte(1U << random_.below(8));
    result.check("entry " + std::to_string(o.number),
                 std::as_bytes(std::span(&o.ours, 1)).first(o.bytes), got);
  }

  /// One random request, as the provider and as our builders take it.
  void prepare(ibv_send_wr& ask, ibv_sge& range, std::array<std::byte, max_inline>& data, one& o) {
    const local_range local{random_(), static_cast<std::uint32_t>(random_()),
                            static_cast<std::uint32_t>(random_.below(std::uint64_t{1} << 31))};
    const remote_range remote{random_(), static_cast<std::uint32_t>(random_())};
    const auto immediate = static_cast<std::uint32_t>(random_());
    std::uint8_t flags = o.signalled ? mlx5::notify : mlx5::quiet;
    ask = {};
    ask.wr_id = o.number = requests_++;
    ask.sg_list = &range;
    ask.num_sge = 1;
    ask.imm_data = htobe32(immediate);
    if (o.signalled) ask.send_flags |= IBV_SEND_SIGNALED;
    if (random_.chance(0.2)) {
      ask.send_flags |= IBV_SEND_SOLICITED;
      flags |= mlx5::solicited;
    }
    if (random_.chance(0.2)) {
      ask.send_flags |= IBV_SEND_FENCE;
      flags |= mlx5::fence;
    }
    o.block = block_;
    const mlx5::place place = mlx5::place_of(block_, provider_.qp->qp_num, flags);
    range = {local.address, local.bytes, local.key};
    ask.wr.rdma = {remote.address, remote.key};
    switch (random_.below(9)) {
      case 0:
        build(ask, IBV_WR_RDMA_WRITE, o, mlx5::write(place, remote, local));
        break;
      case 1:
        build(ask, IBV_WR_RDMA_WRITE_WITH_IMM, o,
              mlx5::write_immediate(place, remote, local, immediate));
        break;
      case 2:
        build(ask, IBV_WR_RDMA_READ, o, mlx5::read(place, remote, local));
        break;
      case 3:
        build(ask, IBV_WR_SEND, o, mlx5::send(place, local));
        break;
      case 4:
        build(ask, IBV_WR_SEND_WITH_IMM, o, mlx5::send_immediate(place, local, immediate));
        break;
      case 5:
        prepare_atomic(ask, range, o, {place, remote, local}, true);
        break;
      case 6:
        prepare_atomic(ask, range, o, {place, remote, local}, false);
        break;
      default: {
        range.length = static_cast<std::uint32_t>(random_.below(max_inline + 1));
        random_.fill(data);
        range.addr = reinterpret_cast<std::uintptr_t>(data.data());
        ask.send_flags |= IBV_SEND_INLINE;
        const bool send = random_.chance(0.5);
        if (send) {
          build(ask, IBV_WR_SEND, o, mlx5::send_inline<segments>(place, data.data(), range.length));
        } else {
          build(ask, IBV_WR_RDMA_WRITE, o,
                mlx5::write_inline<segments>(place, remote, data.data(), range.length));
        }
        if (range.length != 0) o.bytes = (send ? 20 : 36) + range.length;  // padding is free
      }
    }
    const std::uint32_t used = swap_bytes(o.ours.part[0].word[1]) & 0x3fU;
    block_ += (used + 3) / 4;
  }

  struct ends {
    mlx5::place place;
    remote_range remote;
    local_range local;
  };

  void prepare_atomic(ibv_send_wr& ask, ibv_sge& range, one& o, ends e, bool add) {
    range.length = e.local.bytes = 8;
    const std::uint64_t compare_add = random_();
    const std::uint64_t swap = random_();
    if (add) {
      build(ask, IBV_WR_ATOMIC_FETCH_AND_ADD, o,
            mlx5::fetch_add(e.place, e.remote, compare_add, e.local));
      o.stale_compare = true;
    } else {
      build(ask, IBV_WR_ATOMIC_CMP_AND_SWP, o,
            mlx5::compare_swap(e.place, e.remote, {compare_add, swap}, e.local));
    }
    ask.wr.atomic = {e.remote.address, compare_add, swap, e.remote.key};
  }

  template <std::uint32_t kSegments>
  static void build(ibv_send_wr& ask, ibv_wr_opcode opcode, one& o, queue_entry<kSegments> ours) {
    ask.opcode = opcode;
    for (std::uint32_t i = 0; i < kSegments; ++i) o.ours.part[i] = ours.part[i];
    o.bytes = (swap_bytes(ours.part[0].word[1]) & 0x3fU) * 16;
    o.native = static_cast<std::uint8_t>(swap_bytes(ours.part[0].word[0]) & 0xffU);
  }

  void complete(emulator::completion_writer& writer) {
    for (const one& o : ours_) {
      if (!o.signalled) continue;
      emulator::completion_facts facts;
      facts.qpn = provider_.qp->qp_num;
      facts.user_index = provider_.seen.user_index;
      facts.index = static_cast<std::uint16_t>(o.block);
      facts.native = o.native;
      ASSERT_TRUE(writer.write(facts));
      completion ours;
      const completion_ring ring{static_cast<std::byte*>(provider_.dv_cq.buf),
                                 provider_.dv_cq.cqe_cnt, 64, nullptr};
      ASSERT_TRUE(mlx5_format::take<host_memory>(ring, consumed_, ours));
      ++consumed_;
      ibv_wc theirs{};
      ASSERT_EQ(ibv_poll_cq(provider_.cq, 1, &theirs), 1);
      ASSERT_EQ(theirs.wr_id, o.number);
      ASSERT_EQ(theirs.status, IBV_WC_SUCCESS);
      ASSERT_EQ(ours.what, completed::request);
      ASSERT_EQ(ours.index, facts.index);
      ASSERT_EQ(ours.qpn, theirs.qp_num);
      result.check_value<std::uint32_t>("consumer record", mlx5::consumer_record(consumed_),
                                        provider_.dv_cq.dbrec[0]);
    }
  }

  mlx5_provider provider_;
  support::random_bits random_;
  bool flip_;
  std::vector<one> ours_;
  std::uint64_t requests_ = 0;
  std::uint64_t block_ = 0;
  std::uint64_t calls_ = 0;
  std::uint64_t consumed_ = 0;
};

TEST(ProviderBuilders, Mlx5EntriesAndDoorbellsAreLibmlx5sBytes) {
  mlx5_run run(false);
  run.run(requests_per_format);
  EXPECT_GE(run.result.entries(), requests_per_format);
  EXPECT_EQ(run.result.different(), 0U) << run.result.first() << ", seed " << seed + 1;
}

TEST(ProviderBuilders, Mlx5AFlippedBitIsFound) {
  mlx5_run run(true);
  run.run(100);
  EXPECT_GE(run.result.different(), 100U);
}

TEST(ProviderBuilders, Mlx5ReceiveEntriesAreLibmlx5sBytes) {
  mlx5_provider provider({.send = 64, .receive = 16});
  support::random_bits random(seed);
  comparison result;
  for (std::uint32_t i = 0; i < 16; ++i) {
    const local_range into{random(), static_cast<std::uint32_t>(random()),
                           static_cast<std::uint32_t>(random.below(std::uint64_t{1} << 31))};
    ibv_sge range{into.address, into.bytes, into.key};
    ibv_recv_wr ask{};
    ask.sg_list = &range;
    ask.num_sge = 1;
    ibv_recv_wr* bad = nullptr;
    ASSERT_EQ(ibv_post_recv(provider.qp, &ask, &bad), 0);
    segment theirs;
    std::memcpy(
        &theirs,
        static_cast<const std::byte*>(provider.dv.rq.buf) + std::size_t{i} * provider.dv.rq.stride,
        sizeof(theirs));
    result.check_value("receive entry", mlx5::data_segment(into), theirs);
    EXPECT_EQ(provider.dv.dbrec[0], mlx5::record(i + 1));
  }
  EXPECT_EQ(result.different(), 0U) << result.first();
}

}  // namespace
}  // namespace eptransport::gdaki::testing
