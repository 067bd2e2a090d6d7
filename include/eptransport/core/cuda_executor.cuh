// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Runs one rank's kernels on one GPU, in the caller's streams.
#pragma once

#include <eptransport/core/config.hpp>
#include <eptransport/core/cuda_device.cuh>
#include <eptransport/core/cuda_worker.cuh>
#include <eptransport/core/result.hpp>
#include <eptransport/core/transport.hpp>

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <utility>

namespace eptransport {

/// How a rank's kernels are cut.
struct cuda_launch_shape {
  std::uint32_t blocks = 16;     ///< per kernel: the multiprocessors it takes by default
  std::uint32_t warps = 8;       ///< per block; each warp is a worker
  std::uint32_t concurrent = 1;  ///< kernels that may run at once: the lanes of the groups
  /// Where calls run that name no stream; null = the legacy default stream.
  cudaStream_t stream = nullptr;
};

namespace detail {

/// A rank's whole grid.
template <class Call>
EPT_KERNEL __launch_bounds__(max_block_threads,
                             1) void run_call(const __grid_constant__ Call call) {
  const Call& mine = shared_call<Call>(reinterpret_cast<const std::uint32_t*>(&call));
  mine(cuda_warp(blockIdx.x, gridDim.x, mine.words()));
}

template <class Call>
inline const kernel_entry run_call_entry{reinterpret_cast<const void*>(&run_call<Call>)};

}  // namespace detail

/// Models `Executor` for a rank that owns a GPU, or its share of one.
///
/// @par Order    Kernels of one stream run in order. `write`, `read` and `allocate` are done when
///               they return and wait for no kernel.
/// @par Threads  One host thread at a time per object.
/// @par Errors   `cuda_category()` codes with the operation's name; `capacity` from `create`
class cuda_executor {
 public:
  using stream_type = cudaStream_t;
  using worker_type = cuda_warp;
  static constexpr bool synchronous = false;

  /// @par Errors  `capacity` with both numbers if the blocks of all concurrent kernels cannot be
  ///              resident at once (INV-9); `unsupported`; CUDA's
  [[nodiscard]] static result<cuda_executor> create(int device, cuda_launch_shape shape = {}) {
    auto opened = detail::cuda_device::open(device);
    if (!opened) return opened.error();
    const std::uint64_t blocks = std::uint64_t{shape.blocks} * shape.concurrent;
    if (auto fits = opened->expect_room(blocks, shape.warps); !fits) return fits.error();
    return result<cuda_executor>(cuda_executor(std::move(*opened), shape));
  }

  [[nodiscard]] std::uint32_t workers(std::uint32_t max_sms) const noexcept {
    return blocks(max_sms) * shape_.warps;
  }
  [[nodiscard]] std::uint32_t concurrent() const noexcept { return shape_.concurrent; }
  [[nodiscard]] result<std::byte*> allocate(std::uint64_t bytes) { return device_.allocate(bytes); }
  [[nodiscard]] result<std::byte*> allocate_shared(std::uint64_t bytes) {
    return device_.allocate_shared(bytes);
  }
  void release(std::byte* memory) noexcept { device_.release(memory); }
  [[nodiscard]] result<void> write(std::byte* dst, const std::byte* src, std::uint64_t bytes) {
    return device_.copy(dst, src, bytes);
  }
  [[nodiscard]] result<void> read(std::byte* dst, const std::byte* src, std::uint64_t bytes) {
    return device_.copy(dst, src, bytes);
  }

  /// Waits for the whole device, so that replays of captured graphs are covered too.
  [[nodiscard]] result<void> synchronize() { return device_.synchronize(); }

  template <class Call>
  [[nodiscard]] result<void> launch(const Call& call, std::uint32_t max_sms, cudaStream_t stream) {
    void* arguments[] = {const_cast<Call*>(&call)};
    return device_.launch(detail::run_call_entry<Call>.kernel(), blocks(max_sms), shape_.warps,
                          arguments, stream != nullptr ? stream : shape_.stream);
  }

 private:
  cuda_executor(detail::cuda_device&& device, cuda_launch_shape shape) noexcept
      : device_(std::move(device)), shape_(shape) {}

  [[nodiscard]] std::uint32_t blocks(std::uint32_t max_sms) const noexcept {
    return max_sms == 0 || max_sms > shape_.blocks ? shape_.blocks : max_sms;
  }

  detail::cuda_device device_;
  cuda_launch_shape shape_;
};

static_assert(Executor<cuda_executor>);

}  // namespace eptransport
