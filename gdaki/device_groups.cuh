// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The GPU's posting groups: a thread, a warp, a block.
#pragma once

#include <eptransport/core/config.hpp>
#include <eptransport/core/memory.cuh>
#include <eptransport/gdaki/queue_memory.cuh>
#include <eptransport/gdaki/send_queue.hpp>

#include <cstdint>

namespace eptransport::gdaki {

/// One thread, whatever its neighbours do.
struct gpu_thread {
  using memory = device_memory;

  [[nodiscard]] EPT_DEVICE static constexpr std::uint32_t thread() noexcept { return 0; }
  [[nodiscard]] EPT_DEVICE static constexpr std::uint32_t threads() noexcept { return 1; }
  [[nodiscard]] EPT_DEVICE static constexpr std::int64_t first(std::int64_t v) noexcept {
    return v;
  }
  EPT_DEVICE static void sync() noexcept {}
};

/// The 32 threads of a warp, convergently.
struct gpu_warp {
  using memory = device_memory;

  [[nodiscard]] EPT_DEVICE static std::uint32_t thread() noexcept { return threadIdx.x % 32; }
  [[nodiscard]] EPT_DEVICE static constexpr std::uint32_t threads() noexcept { return 32; }
  [[nodiscard]] EPT_DEVICE static std::int64_t first(std::int64_t value) noexcept {
    return __shfl_sync(0xffffffffU, value, 0);
  }
  EPT_DEVICE static void sync() noexcept { __syncwarp(); }
};

/// All threads of a one-dimensional block, convergently.
struct gpu_block {
  using memory = device_memory;

  [[nodiscard]] EPT_DEVICE static std::uint32_t thread() noexcept { return threadIdx.x; }
  [[nodiscard]] EPT_DEVICE static std::uint32_t threads() noexcept { return blockDim.x; }
  [[nodiscard]] EPT_DEVICE static std::int64_t first(std::int64_t value) noexcept {
    __shared__ std::int64_t shared;
    if (threadIdx.x == 0) shared = value;
    __syncthreads();
    const std::int64_t got = shared;
    __syncthreads();
    return got;
  }
  EPT_DEVICE static void sync() noexcept { __syncthreads(); }
};

static_assert(PostingGroup<gpu_thread> && PostingGroup<gpu_warp> && PostingGroup<gpu_block>);

}  // namespace eptransport::gdaki
