// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Warps and workers on the GPU: exchanges, copies, barrier, leaving.

#include <eptransport/core/cuda_executor.cuh>
#include <eptransport/core/cuda_worker.cuh>
#include <eptransport/core/memory.cuh>

#include <cuda_runtime.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "cuda/device_buffer.cuh"
#include "support/random.hpp"

// Named: a kernel cannot be hidden and have a type of an unnamed namespace.
namespace eptransport::cuda_worker_test {

using support::device_buffer;
using support::must;
using support::random_bits;

/// A clock for barriers.
struct timer_view {
  [[nodiscard]] EPT_DEVICE static std::uint64_t now_ns() { return device_memory::timer_ns(); }
};

static_assert(ThreadGroup<cuda_warp>);
static_assert(Worker<cuda_warp, timer_view>);

struct exchanged {
  std::int64_t sum, prefix, first;
  std::uint32_t any, any_false, thread;
  std::int64_t picked, odd;
  std::uint64_t united;
  float of16;
};

__global__ void exchange(const std::int64_t* in, exchanged* out) {
  const cuda_warp warp(blockIdx.x, gridDim.x, nullptr);
  const std::uint32_t at = blockIdx.x * blockDim.x + threadIdx.x;
  out[at] = {warp.sum(in[at]),
             warp.prefix(in[at]),
             warp.first(in[at]),
             warp.any(in[at] == 7),
             warp.any(false),
             warp.thread(),
             warp.pick(in[at], 5),
             warp.count((in[at] & 1) != 0),
             warp.unite(static_cast<std::uint64_t>(in[at])),
             warp.maximum_of<16>(static_cast<float>(in[at]))};
}

TEST(CudaWarp, SumsPrefixesAndBroadcastsLikeALoopOverItsThreads) {
  constexpr std::uint64_t seed = 11;
  random_bits bits(seed);
  std::vector<std::int64_t> in(4 * 96);
  for (auto& value : in) {
    value = static_cast<std::int64_t>(bits()) / 64;  // 64-bit values whose sums do not overflow
  }
  in[40] = 7;
  const device_buffer<std::int64_t> source(in);
  const device_buffer<exchanged> target(in.size());
  exchange<<<4, 96>>>(source.data(), target.data());
  must(cudaDeviceSynchronize());
  const auto out = target.read();
  for (std::size_t warp = 0; warp < in.size(); warp += 32) {
    std::int64_t sum = 0;
    std::int64_t odd = 0;
    std::uint64_t united = 0;
    for (std::size_t t = 0; t < 32; ++t) {
      odd += in[warp + t] & 1;
      united |= static_cast<std::uint64_t>(in[warp + t]);
    }
    for (std::size_t t = 0; t < 32; ++t) {
      const exchanged& got = out[warp + t];
      const auto half = in.begin() + static_cast<std::ptrdiff_t>(warp + t / 16 * 16);
      EXPECT_EQ(got.picked, in[warp + 5]);
      EXPECT_EQ(got.odd, odd);
      EXPECT_EQ(got.united, united);
      EXPECT_EQ(got.of16, static_cast<float>(*std::max_element(half, half + 16)));
      EXPECT_EQ(got.prefix, sum) << "seed " << seed << " warp " << warp / 32 << " thread " << t;
      EXPECT_EQ(got.first, in[warp]);
      EXPECT_EQ(got.any, warp == 32 ? 1u : 0u);
      EXPECT_EQ(got.any_false, 0u);
      EXPECT_EQ(got.thread, t);
      sum += in[warp + t];
    }
    for (std::size_t t = 0; t < 32; ++t) EXPECT_EQ(out[warp + t].sum, sum) << "seed " << seed;
  }
}

__global__ void multiply_add(const float* in, float* out) {
  const std::uint32_t at = threadIdx.x;
  out[at] = cuda_warp::multiply_add(in[3 * at], in[3 * at + 1], in[3 * at + 2]);
}

TEST(CudaWarp, MultiplyAddRoundsTheProductAndTheSum) {
  // (1 + 2^-12)^2 - 1 keeps its lowest bit only if the product is not rounded.
  const float near_one = 1.0F + 0x1p-12F;
  std::vector<float> in;
  for (int i = 0; i < 32; ++i) in.insert(in.end(), {-1.0F, near_one, near_one});
  const device_buffer<float> source(in);
  const device_buffer<float> target(32);
  multiply_add<<<1, 32>>>(source.data(), target.data());
  must(cudaDeviceSynchronize());
  const volatile float product = near_one * near_one;
  const float expected = product - 1.0F;
  ASSERT_NE(expected, __builtin_fmaf(near_one, near_one, -1.0F));  // the control
  for (const float got : target.read()) EXPECT_EQ(got, expected);
}

struct copy_job {
  std::uint64_t dst, src, bytes;
};

__global__ void copy_all(std::byte* dst, const std::byte* src, const copy_job* jobs,
                         std::uint64_t count) {
  const cuda_warp warp(blockIdx.x, gridDim.x, nullptr);
  for (std::uint64_t j = warp.worker(); j < count; j += warp.workers()) {
    warp.copy(dst + jobs[j].dst, src + jobs[j].src, jobs[j].bytes);
  }
}

void expect_copied(const std::vector<copy_job>& jobs, std::uint64_t span, std::uint64_t seed) {
  random_bits bits(seed);
  std::vector<std::byte> in(span);
  bits.fill(in);
  const device_buffer<std::byte> source(in);
  const device_buffer<std::byte> target(span * jobs.size(), 0);
  std::vector<copy_job> placed = jobs;
  for (std::size_t j = 0; j < jobs.size(); ++j) placed[j].dst += j * span;
  const device_buffer<copy_job> list(placed);
  copy_all<<<8, 128>>>(target.data(), source.data(), list.data(), list.size());
  must(cudaDeviceSynchronize());
  const auto out = target.read();
  std::vector<std::byte> expected(span);
  for (std::size_t j = 0; j < jobs.size(); ++j) {
    support::poison(expected, 0);
    std::memcpy(expected.data() + jobs[j].dst, in.data() + jobs[j].src, jobs[j].bytes);
    ASSERT_EQ(std::memcmp(expected.data(), out.data() + j * span, span), 0)
        << "seed " << seed << ", " << jobs[j].bytes << " bytes from offset " << jobs[j].src
        << " to offset " << jobs[j].dst;
  }
  EXPECT_EQ(target.damage("target"), "");
}

TEST(CudaWarp, CopiesEveryLengthAtEveryAlignmentAndNothingElse) {
  for (std::uint64_t dst = 0; dst < 16; ++dst) {
    std::vector<copy_job> jobs;
    for (std::uint64_t src = 0; src < 16; ++src) {
      for (std::uint64_t bytes = 0; bytes <= 300; ++bytes) {
        jobs.push_back({64 + dst, 64 + src, bytes});
      }
    }
    expect_copied(jobs, 448, 100 + dst);
    if (HasFatalFailure()) return;
  }
}

TEST(CudaWarp, CopiesLongRowsAtEveryAlignment) {
  std::vector<copy_job> jobs;
  for (const std::uint64_t bytes : {2047u, 2048u, 2049u, 7168u, 14336u, 14337u, 14350u, 16384u}) {
    for (const std::uint64_t skew : {0u, 1u, 2u, 4u, 8u, 16u}) {
      jobs.push_back({16 + skew, 16, bytes});
      jobs.push_back({16 + skew, 16 + skew, bytes});
    }
  }
  expect_copied(jobs, 16384 + 64, 7);
}

/// Rounds of: write own cell, barrier, read all cells of the rank, barrier.
struct rounds_call {
  worker_words* shared;
  std::uint64_t* cells;    ///< [workers]
  std::uint64_t* wrong;    ///< [1]
  std::uint64_t* leavers;  ///< [1]
  std::uint64_t rounds;
  std::uint64_t timeout_ns;

  [[nodiscard]] EPT_HOST_DEVICE worker_words* words() const { return shared; }

  template <class W>
  EPT_DEVICE void operator()(const W& worker) const {
    const timer_view view;
    const std::uint64_t deadline = view.now_ns() + timeout_ns;
    for (std::uint64_t round = 1; round <= rounds; ++round) {
      if (worker.thread() == round % 32) cells[worker.worker()] = round;
      bool good = worker.barrier(view, deadline);
      for (std::uint32_t w = worker.thread(); w < worker.workers(); w += worker.threads()) {
        good = good && cells[w] == round;
      }
      good = worker.barrier(view, deadline) && good;
      if (!good) device_memory::fetch_add(wrong, 1);
    }
    if (worker.last_to_leave() && worker.thread() == 0) {
      device_memory::fetch_add(leavers, 1);
      for (std::uint32_t w = 0; w < worker.workers(); ++w) {
        if (cells[w] != rounds) device_memory::fetch_add(wrong, 1);
      }
    }
  }
};

class CudaWorker : public testing::TestWithParam<cuda_launch_shape> {};

TEST_P(CudaWorker, BarrierShowsAllWritesAndExactlyOneWorkerLeavesLast) {
  auto executor = cuda_executor::create(0, GetParam());
  ASSERT_TRUE(executor) << executor.error().message();
  const std::uint32_t workers = executor->workers(0);
  ASSERT_EQ(workers, GetParam().blocks * GetParam().warps);
  device_buffer<worker_words> words(1);
  words.write({worker_words{}});
  const device_buffer<std::uint64_t> cells(workers);
  device_buffer<std::uint64_t> counts(2);
  counts.write({0, 0});
  constexpr std::uint64_t rounds = 200;
  constexpr std::uint64_t launches = 5;  // without anybody clearing the words between them
  for (std::uint64_t launch = 1; launch <= launches; ++launch) {
    const rounds_call call{words.data(),      cells.data(), counts.data(),
                           counts.data() + 1, rounds,       30'000'000'000};
    const auto launched = executor->launch(call, 0, nullptr);
    ASSERT_TRUE(launched) << launched.error().message();
    const auto done = executor->synchronize();
    ASSERT_TRUE(done) << done.error().message();
    EXPECT_EQ(counts.read(), (std::vector<std::uint64_t>{0, launch}));
    EXPECT_EQ(words.read()[0].arrived, 0u);
    EXPECT_EQ(words.read()[0].departed, 0u);
  }
  EXPECT_EQ(cells.damage("cells"), "");
}

INSTANTIATE_TEST_SUITE_P(Shapes, CudaWorker,
                         testing::Values(cuda_launch_shape{1, 1}, cuda_launch_shape{1, 8},
                                         cuda_launch_shape{2, 1}, cuda_launch_shape{3, 5},
                                         cuda_launch_shape{16, 8}, cuda_launch_shape{7, 16},
                                         cuda_launch_shape{100, 8}),
                         [](const auto& shape) {
                           return std::to_string(shape.param.blocks) + "blocks" +
                                  std::to_string(shape.param.warps) + "warps";
                         });

/// Block 0 comes to the barrier only after `late_ns`.
struct late_call {
  worker_words* shared;
  std::uint64_t* met;  ///< [workers] what the barrier returned
  std::uint64_t late_ns;
  std::uint64_t timeout_ns;

  [[nodiscard]] EPT_HOST_DEVICE worker_words* words() const { return shared; }

  template <class W>
  EPT_DEVICE void operator()(const W& worker) const {
    const timer_view view;
    const std::uint64_t start = view.now_ns();
    if (blockIdx.x == 0) {
      while (view.now_ns() < start + late_ns) device_memory::relax();
    }
    const bool good = worker.barrier(view, start + timeout_ns);
    if (worker.thread() == 0) met[worker.worker()] = good ? 1 : 0;
    (void)worker.last_to_leave();
  }
};

TEST(CudaWorkerBarrier, EndsAtItsDeadlineWhenABlockIsLate) {
  auto executor = cuda_executor::create(0, {.blocks = 4, .warps = 2});
  ASSERT_TRUE(executor) << executor.error().message();
  device_buffer<worker_words> words(1);
  words.write({worker_words{}});
  const device_buffer<std::uint64_t> met(executor->workers(0));
  const auto run = [&](std::uint64_t late_ns, std::uint64_t timeout_ns) {
    const late_call call{words.data(), met.data(), late_ns, timeout_ns};
    const auto launched = executor->launch(call, 0, nullptr);
    EXPECT_TRUE(launched) << launched.error().message();
    EXPECT_TRUE(executor->synchronize());
    return met.read();
  };
  const auto late = run(200'000'000, 20'000'000);
  for (std::size_t worker = 2; worker < late.size(); ++worker) EXPECT_EQ(late[worker], 0u);
  // The words are whole again: the next launch meets.
  for (const std::uint64_t one : run(0, 30'000'000'000)) EXPECT_EQ(one, 1u);
}

/// All threads of a block add to counts in its scratch, then each warp reads them all.
struct scratch_call {
  worker_words* shared;
  std::uint64_t* seen;  ///< [workers] sum of the block's counts

  [[nodiscard]] EPT_HOST_DEVICE worker_words* words() const { return shared; }

  template <class W>
  EPT_DEVICE void operator()(const W& worker) const {
    constexpr std::uint32_t counts = crew_scratch_bytes / 4;
    auto* count = reinterpret_cast<std::uint32_t*>(worker.scratch());
    const std::uint32_t threads = worker.members() * worker.threads();
    const std::uint32_t first = worker.member() * worker.threads() + worker.thread();
    for (std::uint32_t i = first; i < counts; i += threads) count[i] = 0;
    (void)worker.crew_all(true);
    for (std::uint32_t i = 0; i < counts; ++i) {
      if (i % 7 == first % 7) device_memory::crew_add(count + i, 1 + blockIdx.x);
    }
    (void)worker.crew_all(true);
    std::int64_t sum = 0;
    for (std::uint32_t i = worker.thread(); i < counts; i += worker.threads()) sum += count[i];
    sum = worker.sum(sum);
    if (worker.thread() == 0) seen[worker.worker()] = static_cast<std::uint64_t>(sum);
    (void)worker.last_to_leave();
  }
};

TEST(CudaWorkerScratch, ACrewsThreadsCountTogetherAndApartFromOtherCrews) {
  constexpr std::uint32_t warps = 4;
  auto executor = cuda_executor::create(0, {.blocks = 3, .warps = warps});
  ASSERT_TRUE(executor) << executor.error().message();
  device_buffer<worker_words> words(1);
  words.write({worker_words{}});
  const device_buffer<std::uint64_t> seen(executor->workers(0));
  ASSERT_TRUE(executor->launch(scratch_call{words.data(), seen.data()}, 0, nullptr));
  ASSERT_TRUE(executor->synchronize());
  std::uint64_t adds = 0;  // of a block's threads to all counts
  for (std::uint32_t t = 0; t < warps * 32; ++t) {
    for (std::uint32_t i = 0; i < crew_scratch_bytes / 4; ++i) adds += i % 7 == t % 7 ? 1 : 0;
  }
  const auto all = seen.read();
  for (std::size_t w = 0; w < all.size(); ++w) EXPECT_EQ(all[w], adds * (1 + w / warps)) << w;
}

/// Quotients of bf16 values as quantising makes them, beside a division.
__global__ void compare_quotients(std::uint64_t* differ) {
  const std::uint32_t bits = blockIdx.x * blockDim.x + threadIdx.x;  // all finite bf16 values
  if ((bits & 0x7f80u) == 0x7f80u || bits > 0xffffu) return;
  const float value = __uint_as_float(bits << 16);
  for (int above = 0; above < 2048; ++above) {  // largest of the block: this or a larger one
    const std::uint32_t largest = (bits & 0x7fffu) + static_cast<std::uint32_t>(above);
    if (largest >= 0x7f80u) return;
    const float scale = __fdiv_rn(__uint_as_float(largest << 16), 448.0F);
    if (scale < 0x1p-96F || scale > 0x1p120F) continue;
    const float exact = __fdiv_rn(value, scale);
    const float made = cuda_warp::quotient(value, scale, __fdiv_rn(1.0F, scale));
    const bool same = device_memory::e4m3_pair(made, 0) == device_memory::e4m3_pair(exact, 0);
    const bool close = __float_as_uint(made) == __float_as_uint(exact) || fabsf(exact) < 0x1p-12F;
    if (!same || !close) device_memory::fetch_add(differ, 1);
  }
}

TEST(CudaWarp, QuotientsAreWhatADivisionGives) {
  device_buffer<std::uint64_t> differ(1);
  differ.write({0});
  compare_quotients<<<256, 256>>>(differ.data());
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  EXPECT_EQ(differ.read()[0], 0u);
}

}  // namespace eptransport::cuda_worker_test
