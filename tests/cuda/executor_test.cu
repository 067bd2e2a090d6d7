// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The GPU executor: memory, limits, errors, and a graph of one rank's calls.

#include <eptransport/backends/loopback/cuda_view.cuh>
#include <eptransport/backends/loopback/profiles.hpp>
#include <eptransport/core/cuda_executor.cuh>
#include <eptransport/kernels/kernels.hpp>

#include <cuda_runtime.h>

#include <gtest/gtest.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "cuda/device_buffer.cuh"

// Named: a kernel cannot be hidden and have a type of an unnamed namespace.
namespace eptransport::cuda_executor_test {

using support::device_buffer;
using support::must;

TEST(CudaExecutor, RefusesMoreBlocksThanTheDeviceHolds) {
  int sms = 0;
  must(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, 0));
  const auto count = static_cast<std::uint32_t>(sms);
  EXPECT_TRUE(cuda_executor::create(0, {.blocks = count * 2, .warps = 8}));
  const auto refused = cuda_executor::create(0, {.blocks = count, .warps = 8, .concurrent = 3});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, errc::capacity);
  EXPECT_NE(refused.error().message().find(std::to_string(count * 3)), std::string::npos);
  EXPECT_NE(refused.error().message().find(std::to_string(count * 2)), std::string::npos);
  EXPECT_FALSE(cuda_executor::create(0, {.blocks = 1, .warps = 17}));
  EXPECT_FALSE(cuda_executor::create(0, {.blocks = 0}));
}

TEST(CudaExecutor, KeepsTheNativeCodeOfACudaError) {
  const auto missing = cuda_executor::create(1'000'000);
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().code, std::error_code(cudaErrorInvalidDevice, cuda_category()));
  EXPECT_STREQ(missing.error().operation, "cudaSetDevice");
  auto executor = cuda_executor::create(0);
  ASSERT_TRUE(executor) << executor.error().message();
  const auto memory = executor->allocate(std::uint64_t{1} << 50);
  ASSERT_FALSE(memory);
  EXPECT_EQ(memory.error().code, std::error_code(cudaErrorMemoryAllocation, cuda_category()));
  EXPECT_NE(memory.error().message().find("1125899906842624 bytes"), std::string::npos);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
}

TEST(CudaExecutor, GivesZeroedMemoryAndCopiesIt) {
  auto executor = cuda_executor::create(0);
  ASSERT_TRUE(executor) << executor.error().message();
  constexpr std::uint64_t bytes = 10'007;
  auto device = executor->allocate(bytes);
  auto shared = executor->allocate_shared(bytes);
  ASSERT_TRUE(device && shared);
  std::vector<std::byte> data(bytes, std::byte{1});
  ASSERT_TRUE(executor->read(data.data(), *device, bytes));
  EXPECT_EQ(data, std::vector<std::byte>(bytes));
  for (std::uint64_t i = 0; i < bytes; ++i) {
    EXPECT_EQ((*shared)[i], std::byte{0});
    data[i] = static_cast<std::byte>(i);
  }
  ASSERT_TRUE(executor->write(*device, data.data(), bytes));
  ASSERT_TRUE(executor->read(*shared, *device, bytes));
  EXPECT_EQ(std::vector<std::byte>(*shared, *shared + bytes), data);
  executor->release(*device);
  executor->release(*shared);
}

/// Writes a word of host memory, then waits until the host has answered.
struct handshake_call {
  worker_words* shared;
  std::uint64_t* words_of_host;  ///< [2] ours, theirs
  std::uint64_t timeout_ns;

  [[nodiscard]] EPT_HOST_DEVICE worker_words* words() const { return shared; }

  template <class W>
  EPT_DEVICE void operator()(const W& worker) const {
    if (worker.worker() != 0 || worker.thread() != 0) return;
    device_memory::signal_store(words_of_host, 1);  // pairs with the acquire in the test
    const std::uint64_t deadline = device_memory::timer_ns() + timeout_ns;
    while (device_memory::signal_acquire(words_of_host + 1) == 0 &&
           device_memory::timer_ns() < deadline) {
      device_memory::relax();
    }
  }
};

TEST(CudaExecutor, SharedMemoryIsReadableWhileAKernelRuns) {
  auto executor = cuda_executor::create(0);
  ASSERT_TRUE(executor) << executor.error().message();
  auto shared = executor->allocate_shared(16);
  ASSERT_TRUE(shared);
  auto* words = reinterpret_cast<std::uint64_t*>(*shared);
  ASSERT_TRUE(executor->launch(handshake_call{nullptr, words, 10'000'000'000}, 1, nullptr));
  const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(8);
  bool seen = false;
  while (!seen && std::chrono::steady_clock::now() < limit) {
    seen = host_memory::signal_acquire(words) == 1;
  }
  EXPECT_TRUE(seen);
  EXPECT_EQ(cudaStreamQuery(nullptr), cudaErrorNotReady);  // it still runs
  host_memory::signal_add(words + 1, 1);
  ASSERT_TRUE(executor->synchronize());
  executor->release(*shared);
}

/// One rank alone on its GPU: the executor that backends for real GPUs use.
struct solo {
  using transport_concept = transport_tag;
  using view_type = cuda_loopback_view;
  using executor_type = cuda_executor;
  static constexpr capabilities caps = profiles::ib_gpu::caps;

  cuda_loopback_view::world world;
  cuda_executor gpu;

  [[nodiscard]] view_type view() const { return {world, 0}; }
  [[nodiscard]] executor_type& executor() { return gpu; }
  [[nodiscard]] std::span<std::byte> window() const { return {world.windows, world.window_bytes}; }
  [[nodiscard]] std::uint32_t signals() const { return world.signal_count; }
  [[nodiscard]] result<void> barrier(std::uint64_t) { return {}; }
  [[nodiscard]] result<void> fault() const { return {}; }
};
static_assert(check_transport<solo>());

constexpr group_shape solo_shape{.max_tokens = 33, .hidden = 24, .top_k = 3, .experts = 4};

/// Zeroed memory for a solo rank.
solo make_solo(cuda_executor&& gpu, const group_sizes& sizes) {
  solo made{{}, std::move(gpu)};
  auto windows = made.gpu.allocate(sizes.window_bytes);
  auto signals = made.gpu.allocate(sizes.signals * sizeof(std::uint64_t));
  auto failures = made.gpu.allocate_shared(sizeof(std::uint64_t));
  EXPECT_TRUE(windows && signals && failures);
  made.world = {.windows = *windows,
                .signals = reinterpret_cast<std::uint64_t*>(*signals),
                .failures = reinterpret_cast<std::uint64_t*>(*failures),
                .stride = sizes.window_bytes,
                .window_bytes = sizes.window_bytes,
                .max_message = 0,
                .signal_stride = sizes.signals,
                .signal_count = sizes.signals,
                .channels = 1,
                .ranks = 1,
                .ranks_per_node = 1,
                .direct = false,
                .registered_source = true};
  return made;
}

/// The buffers of a rank whose experts return each row as it is.
struct identity_buffers {
  device_buffer<std::uint16_t> x{33 * 24};
  device_buffer<std::int32_t> index{33 * 3};
  device_buffer<std::int64_t> tokens{1};
  device_buffer<std::uint16_t> rows{33 * 24};
  device_buffer<std::uint16_t> out{33 * 24};
};

TEST(CudaExecutor, AGraphOfDispatchAndCombineReplaysWithTheIndicesOfItsStream) {
  auto gpu = cuda_executor::create(0, {.blocks = 4, .warps = 4});
  ASSERT_TRUE(gpu) << gpu.error().message();
  const auto sizes = group<solo>::sizes(solo_shape, 1, gpu->workers(0));
  ASSERT_TRUE(sizes) << sizes.error().message();
  solo rank = make_solo(std::move(*gpu), *sizes);
  const detail::cuda_memory owners[] = {
      detail::cuda_memory(rank.world.windows),
      detail::cuda_memory(reinterpret_cast<std::byte*>(rank.world.signals)),
      detail::cuda_memory(reinterpret_cast<std::byte*>(rank.world.failures))};
  auto made = group<solo>::create(rank, solo_shape);
  ASSERT_TRUE(made) << made.error().message();
  auto handle = rank.gpu.allocate(sizes->handle_bytes);
  ASSERT_TRUE(handle);
  identity_buffers buffers;
  const detail::cuda_memory owner(*handle);
  cudaStream_t stream = nullptr;
  must(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  must(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  const dispatch_handle one{*handle, sizes->handle_bytes};
  const auto dispatched = made->dispatch(0,
                                         {.x = buffers.x.data(),
                                          .topk_index = buffers.index.data(),
                                          .device_tokens = buffers.tokens.data(),
                                          .indices = index_type::int32},
                                         {.rows = buffers.rows.data()}, one, {.stream = stream});
  const auto combined = made->combine(0, {.y = buffers.rows.data()}, {.out = buffers.out.data()},
                                      one, {.stream = stream});
  cudaGraph_t graph = nullptr;
  must(cudaStreamEndCapture(stream, &graph));
  ASSERT_TRUE(dispatched) << dispatched.error().message();
  ASSERT_TRUE(combined) << combined.error().message();
  cudaGraphExec_t replay = nullptr;
  must(cudaGraphInstantiate(&replay, graph, 0));
  for (int step = 0; step < 100; ++step) {
    const std::int64_t tokens = step % 34;
    std::vector<std::uint16_t> x(33 * 24);
    for (std::size_t i = 0; i < x.size(); ++i) {
      x[i] = float_to_bf16(static_cast<float>((i * 7 + static_cast<std::size_t>(step)) % 256));
    }
    std::vector<std::int32_t> index(33 * 3, -1);
    for (std::size_t t = 0; t < 33; t += 2) index[3 * t + t % 3] = (step + int(t)) % 4;
    buffers.x.write(x);
    buffers.tokens.write({tokens});
    buffers.index.poison(2);  // out of range, for a dispatch that does not wait for the next copy
    buffers.rows.poison(1);
    buffers.out.poison(1);
    must(cudaStreamSynchronize(nullptr));
    must(cudaMemcpyAsync(buffers.index.data(), index.data(), buffers.index.bytes(),
                         cudaMemcpyHostToDevice, stream));
    must(cudaGraphLaunch(replay, stream));
    must(cudaStreamSynchronize(stream));
    const auto status = made->status(0);
    ASSERT_TRUE(status) << status.error().message();
    const auto out = buffers.out.read();
    for (std::size_t i = 0; i < out.size(); ++i) {
      const std::size_t t = i / 24;
      const std::uint16_t expected = t >= static_cast<std::size_t>(tokens) ? 0xFFFF
                                     : t % 2 == 0                          ? x[i]
                                                                           : 0;
      ASSERT_EQ(out[i], expected) << "step " << step << " token " << t;
    }
  }
  const auto statistics = made->statistics(0);
  ASSERT_TRUE(statistics);
  EXPECT_EQ(statistics->epoch, 100u);
  EXPECT_EQ(statistics->combines, 100u);
  must(cudaGraphExecDestroy(replay));
  must(cudaGraphDestroy(graph));
  must(cudaStreamDestroy(stream));
}

}  // namespace eptransport::cuda_executor_test
