// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The contract on the GPU simulator: puts, signals, waits, errors; and its rendezvous.

#include <eptransport/backends/loopback/cuda_loopback.cuh>
#include <eptransport/core/memory.cuh>

#include <cuda_runtime.h>

#include <gtest/gtest.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include "cuda/all_to_all.cuh"
#include "cuda/device_buffer.cuh"

// Named: a kernel cannot be hidden and have a type of an unnamed namespace.
namespace eptransport::cuda_loopback_test {

using support::device_buffer;
using support::must;

using support::all_to_all_call;
using support::cell;

constexpr std::uint64_t second = 1'000'000'000;

template <class Profile>
class CudaLoopback : public testing::Test {
 public:
  using world = cuda_loopback_world<Profile>;
  using rank_type = cuda_loopback<Profile>;

  static std::unique_ptr<world> make(const cuda_loopback_options& options) {
    auto made = world::create(options);
    EXPECT_TRUE(made) << made.error().message();
    return made ? std::move(*made) : nullptr;
  }
};

using all_profiles =
    testing::Types<profiles::nvlink, profiles::ib_gpu, profiles::efa_gpu, profiles::efa_proxy>;

struct profile_names {
  template <class Profile>
  static std::string GetName(int) {
    return Profile::name;
  }
};
TYPED_TEST_SUITE(CudaLoopback, all_profiles, profile_names);

template <class Fixture>
void expect_all_to_all(std::int32_t ranks, std::uint32_t blocks, std::uint32_t warps,
                       std::uint64_t start) {
  const std::uint32_t workers = blocks * warps;
  const auto n = static_cast<std::uint64_t>(ranks);
  auto world = Fixture::make({.ranks = ranks,
                              .window_bytes = (2 * n + 2) * workers * cell,
                              .signals = static_cast<std::uint32_t>(n) * workers,
                              .counter_start = start,
                              .blocks = blocks,
                              .warps = warps});
  ASSERT_NE(world, nullptr);
  device_buffer<std::uint64_t> problems(4);
  problems.write({0, 0, 0, 0});
  device_buffer<worker_words> words(n);
  words.write(std::vector<worker_words>(n));
  constexpr std::uint64_t rounds = 60;
  world->run([&](typename Fixture::rank_type& rank) {
    for (std::uint64_t launch = 0; launch < 2; ++launch) {
      const all_to_all_call<cuda_loopback_view> call{rank.view(), words.data() + rank.view().rank(),
                                                     rounds, start + launch * rounds,
                                                     problems.data()};
      const auto launched = rank.executor().launch(call, 0, nullptr);
      EXPECT_TRUE(launched) << launched.error().message();
    }
    const auto done = rank.executor().synchronize();
    EXPECT_TRUE(done) << done.error().message();
    const auto fault = rank.fault();
    EXPECT_TRUE(fault) << fault.error().message();
  });
  EXPECT_EQ(problems.read(), std::vector<std::uint64_t>(4)) << ranks << " ranks";
}

TYPED_TEST(CudaLoopback, EveryByteIsThereWhenItsSignalHasCounted) {
  for (const std::int32_t ranks : {1, 2, 5, 8}) {
    SCOPED_TRACE(ranks);
    expect_all_to_all<TestFixture>(ranks, 2, 4, 0);
  }
}

TYPED_TEST(CudaLoopback, CountersThatWrapAreComparedModulo) {
  expect_all_to_all<TestFixture>(2, 1, 2, ~std::uint64_t{0} - 30);
}

TYPED_TEST(CudaLoopback, PointersReachPeersExactlyWhereTheProfileSays) {
  const auto world = TestFixture::make({.ranks = 3, .window_bytes = 4096, .signals = 1});
  ASSERT_NE(world, nullptr);
  const auto view = world->rank(1).view();
  const bool direct = TypeParam::caps.peer_reach == reach::always;
  EXPECT_EQ(view.peer_pointer(1, 8, 16), view.local() + 8);
  EXPECT_EQ(view.peer_pointer(0, 8, 16), direct ? world->rank(0).window().data() + 8 : nullptr);
  EXPECT_EQ(view.peer_pointer(2, 4090, 8), nullptr);  // beyond the end
  EXPECT_EQ(view.size(), 3);
  EXPECT_EQ(view.node(2), 0);
}

/// One request by one warp; what it returned.
struct one_put_call {
  cuda_loopback_view view;
  worker_words* shared;
  put_request request;
  std::uint32_t waited = no_signal;  ///< wait for this signal instead, if it is one
  std::uint64_t* status = nullptr;   ///< [1]

  [[nodiscard]] EPT_HOST_DEVICE worker_words* words() const { return shared; }

  template <class W>
  EPT_DEVICE void operator()(const W& w) const {
    if (w.worker() != 0) return;
    const op_status got = waited != no_signal
                              ? view.wait_signal(w, waited, 1, view.now_ns() + second / 20)
                              : view.put(w, 0, request, no_deadline);
    if (w.thread() == 0) *status = static_cast<std::uint64_t>(got);
  }
};

template <class Fixture>
op_status run_one(typename Fixture::world& world, put_request request,
                  std::uint32_t waited = no_signal) {
  device_buffer<std::uint64_t> status(1);
  const one_put_call call{world.rank(0).view(), nullptr, request, waited, status.data()};
  const auto launched = world.rank(0).executor().launch(call, 1, nullptr);
  EXPECT_TRUE(launched) << launched.error().message();
  EXPECT_TRUE(world.rank(0).executor().synchronize());
  return static_cast<op_status>(status.read()[0]);
}

TYPED_TEST(CudaLoopback, ARequestOutsideTheContractFailsAndTheTransportSaysSo) {
  // Rank 1 never comes: a patience of 0 starts rank 0 alone.
  const cuda_loopback_options options{
      .ranks = 2, .window_bytes = 4096, .signals = 2, .patience_ns = 0};
  auto good = TestFixture::make(options);
  ASSERT_NE(good, nullptr);
  const std::byte* own = good->rank(0).view().local();
  const put_request fine{.peer = 1, .dst_offset = 4080, .src = own, .bytes = 16, .signal = 1};
  EXPECT_EQ(run_one<TestFixture>(*good, fine), op_status::ok);
  EXPECT_TRUE(good->rank(0).fault());
  std::vector<put_request> bad(5, fine);
  bad[0].peer = 2;
  bad[1].peer = -1;
  bad[2].dst_offset = 4081;
  bad[3].signal = 2;
  bad[4].bytes = ~std::uint64_t{0};
  for (const put_request& request : bad) {
    auto world = TestFixture::make(options);
    ASSERT_NE(world, nullptr);
    put_request here = request;
    here.src = world->rank(0).view().local();
    EXPECT_EQ(run_one<TestFixture>(*world, here), op_status::failed);
    const auto fault = world->rank(0).fault();
    ASSERT_FALSE(fault);
    EXPECT_EQ(fault.error().code, errc::transport_failed);
    EXPECT_TRUE(world->rank(1).fault());
  }
}

TYPED_TEST(CudaLoopback, SourcesMustBeRegisteredExactlyWhereTheProfileSays) {
  const auto world =
      TestFixture::make({.ranks = 2, .window_bytes = 4096, .signals = 1, .patience_ns = 0});
  ASSERT_NE(world, nullptr);
  const device_buffer<std::byte> outside(64);
  const put_request request{.peer = 1, .src = outside.data(), .bytes = 64, .signal = 0};
  EXPECT_EQ(run_one<TestFixture>(*world, request),
            TypeParam::caps.needs_registered_source ? op_status::failed : op_status::ok);
}

TYPED_TEST(CudaLoopback, AWaitForASignalThatNobodySendsEndsAtItsDeadline) {
  const auto world =
      TestFixture::make({.ranks = 2, .window_bytes = 4096, .signals = 1, .patience_ns = 0});
  ASSERT_NE(world, nullptr);
  EXPECT_EQ(run_one<TestFixture>(*world, {}, 0), op_status::expired);
  EXPECT_TRUE(world->rank(0).fault());
}

/// Counts how often it ran, per rank.
struct counting_call {
  worker_words* shared;
  std::uint64_t* count;
  std::uint64_t step;
  std::uint64_t padding[5];  ///< another size than the other calls

  [[nodiscard]] EPT_HOST_DEVICE worker_words* words() const { return shared; }

  template <class W>
  EPT_DEVICE void operator()(const W& w) const {
    if (w.worker() != 0 || w.thread() != 0) return;
    *count = *count * 3 + step;  // depends on the order, so that a lost or repeated call shows
  }
};

using nvlink_loopback = CudaLoopback<profiles::nvlink>;

TEST(CudaGathering, ThousandsOfLaunchesRunOnceEachAndInOrder) {
  const auto world = nvlink_loopback::make({.ranks = 3, .window_bytes = 256, .signals = 1});
  ASSERT_NE(world, nullptr);
  device_buffer<std::uint64_t> counts(3);
  counts.write({0, 0, 0});
  constexpr std::uint64_t launches = 5000;
  cudaStream_t stream = nullptr;
  must(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  world->run([&](nvlink_loopback::rank_type& rank) {
    const auto index = static_cast<std::uint64_t>(rank.view().rank());
    for (std::uint64_t step = 0; step < launches; ++step) {
      const counting_call call{nullptr, counts.data() + index, step + index, {}};
      const auto launched = rank.executor().launch(call, 1, stream);
      ASSERT_TRUE(launched) << launched.error().message();
    }
    EXPECT_TRUE(rank.executor().synchronize());
  });
  std::vector<std::uint64_t> expected(3);
  for (std::uint64_t rank = 0; rank < 3; ++rank) {
    for (std::uint64_t step = 0; step < launches; ++step) {
      expected[rank] = expected[rank] * 3 + step + rank;
    }
  }
  EXPECT_EQ(counts.read(), expected);
  must(cudaStreamDestroy(stream));
}

TEST(CudaGathering, RanksThatDoNotComeAreLeftOut) {
  const auto world = nvlink_loopback::make(
      {.ranks = 3, .window_bytes = 256, .signals = 1, .patience_ns = second / 20});
  ASSERT_NE(world, nullptr);
  device_buffer<std::uint64_t> counts(3);
  counts.write({0, 0, 0});
  world->run([&](nvlink_loopback::rank_type& rank) {
    const auto index = static_cast<std::uint64_t>(rank.view().rank());
    if (index == 1) return;
    const counting_call call{nullptr, counts.data() + index, 5, {}};
    EXPECT_TRUE(rank.executor().launch(call, 1, nullptr));
    EXPECT_TRUE(rank.executor().synchronize());
  });
  EXPECT_EQ(counts.read(), (std::vector<std::uint64_t>{5, 0, 5}));
}

TEST(CudaGathering, DifferentCallsAreRefusedOnEveryRank) {
  const auto world = nvlink_loopback::make({.ranks = 2, .window_bytes = 256, .signals = 1});
  ASSERT_NE(world, nullptr);
  device_buffer<std::uint64_t> word(1);
  word.write({0});
  world->run([&](nvlink_loopback::rank_type& rank) {
    const auto launched =
        rank.view().rank() == 0
            ? rank.executor().launch(counting_call{nullptr, word.data(), 1, {}}, 1, nullptr)
            : rank.executor().launch(one_put_call{rank.view(), nullptr, {}, no_signal, word.data()},
                                     1, nullptr);
    ASSERT_FALSE(launched);
    EXPECT_EQ(launched.error().code, errc::misuse);
    EXPECT_NE(launched.error().message().find("rank 1"), std::string::npos);
  });
  EXPECT_EQ(word.read()[0], 0u);
}

TEST(CudaGathering, BarrierMeetsAgainAndAgainAndNamesTheMissing) {
  const auto world = nvlink_loopback::make({.ranks = 3, .window_bytes = 256, .signals = 1});
  ASSERT_NE(world, nullptr);
  world->run([&](nvlink_loopback::rank_type& rank) {
    for (int i = 0; i < 200; ++i) ASSERT_TRUE(rank.barrier(30 * second));
    if (rank.view().rank() == 2) return;
    const auto alone = rank.barrier(second / 20);
    ASSERT_FALSE(alone);
    EXPECT_EQ(alone.error().code, errc::timed_out);
    EXPECT_NE(alone.error().message().find("rank 2"), std::string::npos);
  });
}

TEST(CudaLoopbackWorld, RefusesMoreRanksThanTheDeviceHolds) {
  int sms = 0;
  must(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, 0));
  const auto refused = nvlink_loopback::world::create(
      {.ranks = 2 * sms + 1, .window_bytes = 256, .signals = 1, .blocks = 1, .warps = 8});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, errc::capacity);
  EXPECT_NE(refused.error().message().find(std::to_string(2 * sms + 1)), std::string::npos);
}

}  // namespace eptransport::cuda_loopback_test
