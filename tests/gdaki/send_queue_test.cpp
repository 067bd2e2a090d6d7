// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief How a send queue waits, batches and fails, over an emulated network.
#include <eptransport/gdaki/emulator/runner.hpp>
#include <eptransport/gdaki/send_queue.hpp>

#include <gtest/gtest.h>

#include <atomic>
#include <barrier>
#include <cstdint>
#include <functional>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "gdaki/rig.hpp"

namespace eptransport::gdaki {

/// Host memory whose doorbells call back, so that a test acts at the moment the device is told.
struct observed_memory : host_memory {
  static thread_local std::function<void()> on_ring;
};
thread_local std::function<void()> observed_memory::on_ring;

template <>
struct queue_memory<observed_memory> : queue_memory<host_memory> {
  template <class Word>
  static void ring(Word* word, Word value) noexcept {
    queue_memory<host_memory>::ring(word, value);
    if (observed_memory::on_ring) observed_memory::on_ring();
  }
};

namespace testing {
namespace {

/// One host thread over `observed_memory`.
struct observed_thread : host_thread {
  using memory = observed_memory;
};

/// Several host threads that post together, as the lanes of a warp do.
class lane {
 public:
  struct meeting {
    explicit meeting(int lanes) : barrier(lanes) {}
    std::barrier<> barrier;
    std::int64_t value = 0;
  };
  using memory = host_memory;

  lane(std::uint32_t index, std::uint32_t count, meeting& m)
      : index_(index), count_(count), m_(m) {}
  [[nodiscard]] std::uint32_t thread() const { return index_; }
  [[nodiscard]] std::uint32_t threads() const { return count_; }
  void sync() const { m_.barrier.arrive_and_wait(); }
  [[nodiscard]] std::int64_t first(std::int64_t value) const {
    if (index_ == 0) m_.value = value;
    sync();
    const std::int64_t got = m_.value;
    sync();
    return got;
  }

 private:
  std::uint32_t index_;
  std::uint32_t count_;
  meeting& m_;
};
static_assert(PostingGroup<lane> && PostingGroup<host_thread>);

template <class Combination>
class GdakiSendQueue : public ::testing::Test {
 public:
  using rig_type = typename Combination::rig_type;
  using format = typename Combination::format;

  /// Posts `count` writes of 8 bytes from NIC 0 to NIC 1.
  template <class Group = host_thread>
  op_status post(rig_type& r, std::uint64_t count, std::uint64_t deadline, const Group& g = {}) {
    return r.queue(0, 1).post(
        g, count, [&](std::uint64_t, auto place) { return r.write(place, 0, 1, 64, 128, 8); },
        deadline);
  }
};

using combinations =
    ::testing::Types<combination<efa_format<efa::narrow>, one_device, counted_completion>,
                     combination<efa_format<efa::wide>, one_owner, polled_completion>,
                     combination<efa_format<efa::narrow>, one_device, polled_completion>,
                     combination<mlx5_format, one_device, collapsed_completion>,
                     combination<mlx5_format, one_owner, collapsed_completion>,
                     combination<mlx5_format, one_device, polled_completion>>;
TYPED_TEST_SUITE(GdakiSendQueue, combinations);

TYPED_TEST(GdakiSendQueue, AFullQueueExpiresAndGoesOnLater) {
  typename TestFixture::rig_type r({.slots = 16});
  const host_thread g;
  const std::uint64_t window = r.queue(0, 1).window();
  ASSERT_EQ(this->post(r, window, soon()), op_status::ok);
  EXPECT_EQ(this->post(r, 2, very_soon()), op_status::expired);
  EXPECT_EQ(r.queue(0, 1).flush(g, very_soon()), op_status::expired);
  EXPECT_EQ(r.at(0, 1).state.reserved, window) << "an expired post must not reserve";
  r.net.step();
  EXPECT_EQ(this->post(r, 2, soon()), op_status::ok);
  r.net.step();
  EXPECT_EQ(r.queue(0, 1).flush(g, soon()), op_status::ok);
  EXPECT_EQ(r.net.counts().executed, window + 2);
  EXPECT_EQ(r.queue(0, 1).fault(g).kind, queue_fault_kind::none);
}

TYPED_TEST(GdakiSendQueue, DoorbellsAreDeferredUntilTheBatchOrSubmit) {
  typename TestFixture::rig_type r({.slots = 64, .ring_every = 8});
  const host_thread g;
  ASSERT_EQ(this->post(r, 7, soon()), op_status::ok);
  r.net.step();
  EXPECT_EQ(r.net.counts().fetched, 0U);
  ASSERT_EQ(this->post(r, 3, soon()), op_status::ok);
  r.net.step();
  EXPECT_EQ(r.net.counts().fetched, 10U);
  ASSERT_EQ(this->post(r, 1, soon()), op_status::ok);
  r.net.step();
  EXPECT_EQ(r.net.counts().fetched, 10U);
  r.queue(0, 1).submit(g);
  r.net.step();
  EXPECT_EQ(r.net.counts().fetched, 11U);
}

TYPED_TEST(GdakiSendQueue, EveryDoorbellKeepsTheBatchOfTheDevice) {
  typename TestFixture::rig_type r(
      {.slots = 64, .max_batch = 5, .strict_batch = 5, .ring_every = 4});
  observed_memory::on_ring = [&] { r.net.step(); };
  ASSERT_EQ(this->post(r, 500, soon(), observed_thread{}), op_status::ok);
  ASSERT_EQ(r.queue(0, 1).flush(observed_thread{}, soon()), op_status::ok);
  observed_memory::on_ring = nullptr;
  EXPECT_TRUE(r.net.findings().empty()) << describe(r.net);
  EXPECT_EQ(r.net.counts().executed, 500U);
}

TYPED_TEST(GdakiSendQueue, LanesPostTogether) {
  constexpr std::uint32_t lanes = 4;
  typename TestFixture::rig_type r({.slots = 32, .max_batch = 16});
  lane::meeting meeting(lanes);
  std::atomic<int> wrong = 0;
  {
    emulator::runner runner(r.net);
    std::vector<std::thread> threads;
    for (std::uint32_t t = 0; t < lanes; ++t) {
      threads.emplace_back([&, t] {
        const lane g(t, lanes, meeting);
        for (int i = 0; i < 40; ++i) wrong += this->post(r, 7, soon(), g) != op_status::ok;
        wrong += r.queue(0, 1).flush(g, soon()) != op_status::ok;
      });
    }
    for (std::thread& t : threads) t.join();
  }
  EXPECT_EQ(wrong, 0);
  EXPECT_TRUE(r.net.findings().empty()) << describe(r.net);
  EXPECT_EQ(r.net.counts().executed, 280U);
}

TYPED_TEST(GdakiSendQueue, AnErrorLatchesAndEndsEveryWaiter) {
  constexpr bool shared = TypeParam::scope::shared;
  constexpr std::uint8_t status = TestFixture::format::ordered ? 0x13 : 7;
  typename TestFixture::rig_type r({.slots = 16});
  r.net.plan({.nic = 0, .qpn = r.qpn(0, 1), .request = 20, .status = status});
  std::atomic<int> failed = 0;
  constexpr int threads = shared ? 3 : 1;
  {
    emulator::runner runner(r.net);
    std::vector<std::thread> posters;
    for (int t = 0; t < threads; ++t) {
      posters.emplace_back([&] {
        op_status last = op_status::ok;
        for (int i = 0; i < 100 && last == op_status::ok; ++i) last = this->post(r, 5, soon());
        if (last == op_status::ok) last = r.queue(0, 1).flush(host_thread{}, soon());
        failed += last == op_status::failed;
      });
    }
    for (std::thread& t : posters) t.join();
  }
  EXPECT_EQ(failed, threads);
  const queue_fault fault = r.queue(0, 1).fault(host_thread{});
  EXPECT_EQ(fault.queue, 1U);
  if (std::is_same_v<typename TypeParam::completion, counted_completion>) {
    EXPECT_EQ(fault.kind, queue_fault_kind::counted_error);
  } else if (std::is_same_v<typename TypeParam::completion, collapsed_completion>) {
    EXPECT_EQ(fault.kind, queue_fault_kind::device_error);
    EXPECT_TRUE(fault.status == status || fault.status == 0x05);  // a flush may overwrite it
    EXPECT_GE(fault.index, 20U);
  } else {
    EXPECT_EQ(fault, (queue_fault{queue_fault_kind::device_error, status, 1, 20}));
  }
  EXPECT_EQ(this->post(r, 1, soon()), op_status::failed) << "a fault stays";
}

TYPED_TEST(GdakiSendQueue, ALostCompletionEndsAtTheDeadline) {
  typename TestFixture::rig_type r({.slots = 16});
  r.net.plan(
      {.nic = 0, .qpn = r.qpn(0, 1), .request = 3, .what = emulator::mishap::lose_completion});
  ASSERT_EQ(this->post(r, 4, soon()), op_status::ok);
  r.net.step();
  EXPECT_EQ(r.queue(0, 1).flush(host_thread{}, very_soon()), op_status::expired);
}

TYPED_TEST(GdakiSendQueue, ARepeatedCompletionIsFound) {
  typename TestFixture::rig_type r({.slots = 16});
  r.net.plan(
      {.nic = 0, .qpn = r.qpn(0, 1), .request = 0, .what = emulator::mishap::repeat_completion});
  ASSERT_EQ(this->post(r, 1, soon()), op_status::ok);
  r.net.step();
  r.queue(0, 1).poll(host_thread{});
  // A collapsed entry just says the same again.
  constexpr bool told = !std::is_same_v<typename TypeParam::completion, collapsed_completion>;
  EXPECT_EQ(r.queue(0, 1).fault(host_thread{}).kind,
            told ? queue_fault_kind::bad_completion : queue_fault_kind::none);
}

TYPED_TEST(GdakiSendQueue, ASilentPublisherBecomesAFault) {
  if (!TypeParam::scope::shared) return;  // an owner publishes its own reservations
  typename TestFixture::rig_type r({.slots = 16});
  std::uint64_t first = 0;
  ASSERT_EQ(r.queue(0, 1).reserve(host_thread{}, 1, soon(), first), op_status::ok);
  EXPECT_EQ(this->post(r, 1, very_soon()), op_status::failed);
  const queue_fault fault = r.queue(0, 1).fault(host_thread{});
  EXPECT_EQ(fault.kind, queue_fault_kind::stuck_publisher);
  EXPECT_EQ(fault.index, 1U);
}

TYPED_TEST(GdakiSendQueue, RefusesWhatNoDeviceTakes) {
  using queue = typename TestFixture::rig_type::end::queue_type;
  typename TestFixture::rig_type r({.slots = 16});
  const send_queue_attributes good = r.queue(0, 1).attributes();
  EXPECT_TRUE(queue::check(good));
  for (const auto& [change, says] :
       std::vector<std::pair<std::function<void(send_queue_attributes&)>, std::string>>{
           {[](auto& a) { a.slots = 48; }, "got 48"},
           {[](auto& a) { a.slots = 65536; }, "up to 32768, got 65536"},
           {[](auto& a) { a.slots = 0; }, "got 0"},
           {[](auto& a) { a.ring_every = 3; }, "got 3"},
           {[](auto& a) { a.ring = nullptr; }, "null"},
           {[](auto& a) { a.doorbell = nullptr; }, "null"},
           {[](auto& a) { a.ring += 8; }, "16 bytes"}}) {
    send_queue_attributes bad = good;
    change(bad);
    const result<void> got = queue::check(bad);
    ASSERT_FALSE(got) << says;
    EXPECT_NE(got.error().message().find(says), std::string::npos) << got.error().message();
  }
}

TEST(GdakiSendQueueOrder, AFlagAfterItsDataOnOneMlx5QueueProvesTheData) {
  using rig_type = rig<mlx5_format, one_owner, collapsed_completion>;
  rig_type r({.slots = 64});
  constexpr std::uint64_t rounds = 2'000;
  std::uint64_t torn = 0;
  const std::uint64_t deadline = soon();
  {
    emulator::runner runner(r.net);
    std::thread receiver([&] {
      for (std::uint64_t seen = 0; seen < rounds;) {
        const auto* flag = r.windows[1].as<std::uint64_t>(0);
        const std::uint64_t now = host_memory::signal_acquire(flag);
        if (now > seen) {
          seen = now;
          const auto* data = r.windows[1].as<std::uint64_t>(1024);
          for (int i = 0; i < 64; ++i) torn += data[i * 4] < now;
        } else if (queue_memory<host_memory>::now_ns() > deadline) {
          ++torn;
          return;
        }
        std::atomic_ref(r.windows[0].as<std::uint64_t>(8)[0])
            .store(seen, std::memory_order_release);
        host_memory::relax();
      }
    });
    const host_thread g;
    for (std::uint64_t round = 1; round <= rounds; ++round) {
      for (int i = 0; i < 64; ++i) r.windows[0].as<std::uint64_t>(1024)[i * 4] = round;
      r.windows[0].as<std::uint64_t>(0)[0] = round;
      const op_status posted = r.queue(0, 1).post(
          g, 2,
          [&](std::uint64_t i, auto place) {
            return i == 0 ? r.write(place, 0, 1, 1024, 1024, 2048) : r.write(place, 0, 1, 0, 0, 8);
          },
          deadline);
      ASSERT_EQ(posted, op_status::ok);
      ASSERT_EQ(r.queue(0, 1).flush(g, deadline), op_status::ok);
      // The next round may start when the receiver has looked at this one.
      while (host_memory::signal_acquire(r.windows[0].as<std::uint64_t>(8)) < round) {
        ASSERT_LT(queue_memory<host_memory>::now_ns(), deadline);
        host_memory::relax();
      }
    }
    receiver.join();
  }
  EXPECT_EQ(torn, 0U);
  EXPECT_TRUE(r.net.findings().empty()) << describe(r.net);
}

}  // namespace
}  // namespace testing
}  // namespace eptransport::gdaki
