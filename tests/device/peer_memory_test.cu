// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The contract over peer memory: puts, signals, pointers, waits, refusals; INV-9.

#include <eptransport/backends/peer_memory/peer_memory.cuh>

#include <cuda_runtime.h>

#include <gtest/gtest.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "cuda/all_to_all.cuh"
#include "cuda/device_buffer.cuh"
#include "device/devices.hpp"

// Named: a kernel cannot be hidden and have a type of an unnamed namespace.
namespace eptransport::peer_memory_test {

using support::all_to_all_call;
using support::cell;
using support::device_buffer;
using support::must;
using support::rank_devices;

constexpr std::uint64_t second = 1'000'000'000;

class PeerMemory : public testing::TestWithParam<std::tuple<rank_devices, peer_allocation>> {
 protected:
  static const std::vector<int>& devices() { return std::get<0>(GetParam()).of_rank; }

  static std::unique_ptr<peer_memory_world> make(peer_memory_shape shape,
                                                 const std::vector<int>& of_rank = devices()) {
    shape.allocation = std::get<1>(GetParam());
    auto made = peer_memory_world::create(of_rank, shape);
    EXPECT_TRUE(made) << made.error().message();
    return made ? std::move(*made) : nullptr;
  }
};

INSTANTIATE_TEST_SUITE_P(OneGpu, PeerMemory,
                         testing::Combine(testing::Values(support::one_gpu),
                                          testing::Values(peer_allocation::virtual_memory,
                                                          peer_allocation::runtime)));
INSTANTIATE_TEST_SUITE_P(TwoGpus, PeerMemory,
                         testing::Combine(testing::Values(support::two_gpus),
                                          testing::Values(peer_allocation::virtual_memory,
                                                          peer_allocation::runtime)));

/// A word or more of pinned memory that all GPUs write: what tests count in.
class shared_words {
 public:
  explicit shared_words(std::uint64_t count) {
    void* memory = nullptr;
    must(cudaHostAlloc(&memory, count * sizeof(std::uint64_t),
                       cudaHostAllocMapped | cudaHostAllocPortable));
    words_ = static_cast<std::uint64_t*>(memory);
    for (std::uint64_t i = 0; i < count; ++i) words_[i] = 0;
  }
  shared_words(const shared_words&) = delete;
  shared_words& operator=(const shared_words&) = delete;
  ~shared_words() { (void)cudaFreeHost(words_); }

  [[nodiscard]] std::uint64_t* data() const { return words_; }
  [[nodiscard]] std::uint64_t operator[](std::uint64_t i) const { return words_[i]; }

 private:
  std::uint64_t* words_ = nullptr;
};

/// Every worker of every rank to every other, both ways of writing, all lengths.
void expect_all_to_all(peer_memory_world& world, std::uint64_t start) {
  struct memory {
    device_buffer<worker_words> words{1};
    device_buffer<std::uint64_t> problems{4};
  };
  constexpr std::uint64_t rounds = 300;
  world.run([&](peer_memory& rank) {
    memory own;
    own.words.write(std::vector<worker_words>(1));
    own.problems.write({0, 0, 0, 0});
    must(cudaDeviceSynchronize());
    ASSERT_TRUE(rank.barrier(30 * second));  // nothing below waits for a device but the last line
    const all_to_all_call<peer_memory_view> call{rank.view(), own.words.data(), rounds, start,
                                                 own.problems.data()};
    const auto launched = rank.executor().launch(call, 0, nullptr);
    EXPECT_TRUE(launched) << launched.error().message();
    const auto done = rank.executor().synchronize();
    EXPECT_TRUE(done) << done.error().message();
    const auto fault = rank.fault();
    EXPECT_TRUE(fault) << fault.error().message();
    EXPECT_EQ(own.problems.read(), std::vector<std::uint64_t>(4)) << rank.view().rank();
    ASSERT_TRUE(rank.barrier(30 * second));  // freeing waits for the device
  });
}

constexpr std::uint32_t blocks = 4;
constexpr std::uint32_t warps = 4;

peer_memory_shape all_to_all_shape(std::uint64_t start) {
  return {.window_bytes = (2 * 2 + 2) * blocks * warps * cell,
          .signals = 2 * blocks * warps,
          .counter_start = start,
          .blocks = blocks,
          .warps = warps};
}

TEST_P(PeerMemory, EveryByteIsThereWhenItsSignalHasCounted) {
  auto world = make(all_to_all_shape(0));
  ASSERT_NE(world, nullptr);
  for (std::uint64_t again = 0; again < 5; ++again) expect_all_to_all(*world, again * 300);
}

TEST_P(PeerMemory, CountersThatWrapAreComparedModulo) {
  constexpr std::uint64_t start = ~std::uint64_t{0} - 30;
  auto world = make(all_to_all_shape(start));
  ASSERT_NE(world, nullptr);
  expect_all_to_all(*world, start);
}

/// One request by one warp; what it returned.
struct one_request_call {
  peer_memory_view view;
  put_request request;
  std::uint64_t wait_ns;  ///< not 0: wait that long for `request.signal` to count once instead
  std::uint64_t* status;  ///< [1] host memory

  [[nodiscard]] EPT_HOST_DEVICE static worker_words* words() { return nullptr; }

  template <class W>
  EPT_DEVICE void operator()(const W& w) const {
    if (w.worker() != 0) return;
    const op_status got = wait_ns != 0
                              ? view.wait_signal(w, request.signal, 1, view.now_ns() + wait_ns)
                              : view.put(w, 0, request, no_deadline);
    if (w.thread() == 0) *status = static_cast<std::uint64_t>(got);
  }
};

op_status run_one(peer_memory& rank, const put_request& request, std::uint64_t wait_ns = 0) {
  const shared_words status(1);
  EXPECT_TRUE(rank.executor().launch(one_request_call{rank.view(), request, wait_ns, status.data()},
                                     1, nullptr));
  EXPECT_TRUE(rank.executor().synchronize());
  return static_cast<op_status>(status[0]);
}

TEST_P(PeerMemory, ARequestOutsideTheContractFailsAndTheTransportSaysSo) {
  const peer_memory_shape shape{.window_bytes = 4096, .signals = 2, .blocks = 1};
  auto good = make(shape);
  ASSERT_NE(good, nullptr);
  const put_request fine{.peer = 1, .dst_offset = 4080, .bytes = 16, .signal = 1};
  put_request whole = fine;
  whole.src = good->rank(0).view().local();
  EXPECT_EQ(run_one(good->rank(0), whole), op_status::ok);
  EXPECT_EQ(run_one(good->rank(1), fine, second), op_status::ok);  // it was counted there
  EXPECT_TRUE(good->rank(0).fault());
  std::vector<put_request> bad(5, fine);
  bad[0].peer = 2;
  bad[1].peer = -1;
  bad[2].dst_offset = 4081;
  bad[3].signal = 2;
  bad[4].bytes = ~std::uint64_t{0};
  for (put_request& request : bad) {
    auto world = make(shape);
    ASSERT_NE(world, nullptr);
    request.src = world->rank(0).view().local();
    EXPECT_EQ(run_one(world->rank(0), request), op_status::failed);
    const auto fault = world->rank(0).fault();
    ASSERT_FALSE(fault);
    EXPECT_EQ(fault.error().code, errc::transport_failed);
    EXPECT_TRUE(world->rank(1).fault());
    EXPECT_EQ(run_one(world->rank(1), {.signal = 1}, second / 100), op_status::expired);
  }
}

TEST_P(PeerMemory, AWaitForASignalThatNobodySendsEndsAtItsDeadline) {
  auto world = make({.window_bytes = 256, .signals = 1, .blocks = 1});
  ASSERT_NE(world, nullptr);
  const auto start = std::chrono::steady_clock::now();
  EXPECT_EQ(run_one(world->rank(1), {.signal = 0}, second / 10), op_status::expired);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  EXPECT_GE(took.count(), 0.1);
  EXPECT_LT(took.count(), 1.0);
}

TEST_P(PeerMemory, WindowsAreZeroedAndApart) {
  auto world = make({.window_bytes = 100'001, .signals = 3, .blocks = 1});
  ASSERT_NE(world, nullptr);
  for (std::int32_t r = 0; r < 2; ++r) {
    const auto window = world->rank(r).window();
    ASSERT_EQ(window.size(), 100'001u);
    std::vector<std::byte> seen(window.size(), std::byte{1});
    must(cudaMemcpy(seen.data(), window.data(), seen.size(), cudaMemcpyDefault));
    EXPECT_EQ(seen, std::vector<std::byte>(seen.size()));
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(window.data()) % 256, 0u);
    cudaPointerAttributes where{};
    must(cudaPointerGetAttributes(&where, window.data()));
    EXPECT_EQ(where.device, world->rank(r).device());
  }
  const auto low = std::min(world->rank(0).window().data(), world->rank(1).window().data());
  const auto high = std::max(world->rank(0).window().data(), world->rank(1).window().data());
  EXPECT_GE(high - low, 100'001);
}

TEST_P(PeerMemory, RefusesMoreBlocksThanItsDeviceHolds) {
  int sms = 0;
  must(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, 0));
  const auto share = static_cast<std::uint32_t>(std::count(devices().begin(), devices().end(), 0));
  const auto room = 2 * static_cast<std::uint32_t>(sms);  // blocks of 8 warps
  peer_memory_shape shape{.window_bytes = 256, .signals = 1, .blocks = room / share / 2};
  shape.concurrent = 2;
  EXPECT_TRUE(peer_memory_world::create(devices(), shape));
  shape.concurrent = 3;
  const auto refused = peer_memory_world::create(devices(), shape);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, errc::capacity);
  const std::string said = refused.error().message();
  EXPECT_NE(said.find(std::to_string(shape.blocks * share * 3)), std::string::npos) << said;
  EXPECT_NE(said.find(std::to_string(room)), std::string::npos) << said;
}

TEST_P(PeerMemory, ABarrierNamesTheRankThatDoesNotCome) {
  auto world = make({.window_bytes = 256, .signals = 1, .blocks = 1});
  ASSERT_NE(world, nullptr);
  world->run([&](peer_memory& rank) {
    for (int i = 0; i < 100; ++i) ASSERT_TRUE(rank.barrier(30 * second));
    if (rank.view().rank() == 1) return;
    const auto alone = rank.barrier(second / 20);
    ASSERT_FALSE(alone);
    EXPECT_EQ(alone.error().code, errc::timed_out);
    EXPECT_NE(alone.error().message().find("rank 1"), std::string::npos);
  });
}

TEST_P(PeerMemory, WorldsComeAndGoWithoutLeaks) {
  ASSERT_NE(make({.window_bytes = 256, .signals = 1, .blocks = 1}), nullptr);
  std::size_t before = 0;
  std::size_t after = 0;
  std::size_t all = 0;
  must(cudaMemGetInfo(&before, &all));
  for (int i = 0; i < 100; ++i) {
    auto world = make({.window_bytes = std::uint64_t{64} << 20, .signals = 1, .blocks = 1});
    ASSERT_NE(world, nullptr);
    EXPECT_EQ(
        run_one(world->rank(0),
                {.peer = 1, .src = world->rank(0).view().local(), .bytes = 4096, .signal = 0}),
        op_status::ok);
  }
  must(cudaMemGetInfo(&after, &all));
  EXPECT_LE(before, after + (std::size_t{64} << 20));  // not one of 200 windows stayed
}

TEST(PeerMemoryCreate, NamesWhatIsWrong) {
  const auto nobody = peer_memory_world::create({}, {.window_bytes = 256});
  ASSERT_FALSE(nobody);
  EXPECT_EQ(nobody.error().code, errc::invalid_argument);
  EXPECT_FALSE(peer_memory_world::create({0}, {.window_bytes = 256, .channels = 0}));
  EXPECT_FALSE(peer_memory_world::create({0}, {.window_bytes = 256, .concurrent = 0}));
  EXPECT_FALSE(peer_memory_world::create({1'000'000}, {.window_bytes = 256}));
  const auto huge = peer_memory_world::create({0}, {.window_bytes = std::uint64_t{1} << 42});
  ASSERT_FALSE(huge);
  EXPECT_NE(huge.error().message().find(std::to_string(std::uint64_t{1} << 42)), std::string::npos)
      << huge.error().message();
}

}  // namespace eptransport::peer_memory_test
