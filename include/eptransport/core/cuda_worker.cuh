// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The GPU's worker: a warp, and how the warps of a rank's blocks meet.
///
/// A rank's kernel is a number of blocks that belong to it alone; several ranks may share a grid.
/// The warps of a block meet by the block's barrier, the blocks of a rank through `worker_words`:
/// one thread per block arrives and waits. All blocks must be resident at once: cooperative launch.
#pragma once

#include <eptransport/core/config.hpp>
#include <eptransport/core/memory.cuh>
#include <eptransport/core/thread_group.hpp>

#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace eptransport {

/// One warp of a rank's kernel; models `ThreadGroup` and `Worker`.
///
/// @par Order    `sync`, `barrier` and `last_to_leave` order weak accesses among their threads
///               (`bar.warp.sync`, `bar.sync`, and acquire-release on `worker_words`). The value
///               exchanges (`any`, `sum`, `prefix`, `first`) order nothing.
/// @par Threads  All 32 threads call convergently. `barrier` and `last_to_leave` stop the whole
///               block, so every warp of the rank must call them equally often.
class cuda_warp {
 public:
  using memory = device_memory;

  static constexpr std::uint32_t size = 32;
  static constexpr std::uint32_t all = 0xffffffffu;

  /// @param block   index of this block among the rank's `blocks`
  /// @param words   of the rank; touched only if it has several blocks
  EPT_DEVICE cuda_warp(std::uint32_t block, std::uint32_t blocks, worker_words* words) noexcept
      : block_(block), blocks_(blocks), words_(words) {}

  [[nodiscard]] EPT_DEVICE static std::uint32_t thread() noexcept { return threadIdx.x % size; }
  [[nodiscard]] EPT_DEVICE static constexpr std::uint32_t threads() noexcept { return size; }
  EPT_DEVICE static void sync() noexcept { __syncwarp(all); }
  [[nodiscard]] EPT_DEVICE static bool any(bool value) noexcept {
    return __any_sync(all, value ? 1 : 0) != 0;
  }
  [[nodiscard]] EPT_DEVICE static std::int64_t first(std::int64_t value) noexcept {
    return __shfl_sync(all, value, 0);
  }
  [[nodiscard]] EPT_DEVICE static std::int64_t pick(std::int64_t value,
                                                    std::uint32_t thread) noexcept {
    return __shfl_sync(all, value, static_cast<int>(thread));
  }
  [[nodiscard]] EPT_DEVICE static std::int64_t sum(std::int64_t value) noexcept {
    for (std::uint32_t step = size / 2; step != 0; step /= 2) {
      value += __shfl_xor_sync(all, value, static_cast<int>(step));
    }
    return value;
  }
  [[nodiscard]] EPT_DEVICE static std::int64_t prefix(std::int64_t value) noexcept {
    std::int64_t upto = value;
    for (std::uint32_t step = 1; step < size; step *= 2) {
      const std::int64_t below = __shfl_up_sync(all, upto, step);
      if (thread() >= step) upto += below;
    }
    return upto - value;
  }
  [[nodiscard]] EPT_DEVICE static std::int64_t count(bool value) noexcept {
    return __popc(__ballot_sync(all, value ? 1 : 0));
  }
  [[nodiscard]] EPT_DEVICE static std::uint64_t unite(std::uint64_t value) noexcept {
    const auto low = static_cast<std::uint32_t>(value);
    const auto high = static_cast<std::uint32_t>(value >> 32);
    return __reduce_or_sync(all, low) | (std::uint64_t{__reduce_or_sync(all, high)} << 32);
  }
  [[nodiscard]] EPT_DEVICE static float maximum(float value) noexcept {
    return maximum_of<static_cast<int>(size)>(value);
  }
  template <int kThreads>
  [[nodiscard]] EPT_DEVICE static float maximum_of(float value) noexcept {
#pragma unroll
    for (int step = kThreads / 2; step != 0; step /= 2) {
      value = fmaxf(value, __shfl_xor_sync(all, value, step));
    }
    return value;
  }
  /// v / scale as a division rounds it, from `inverse`, the rounded 1 / scale: a product, put right
  /// by its exact error (Markstein, IBM J. Res. Dev. 34, 1990). `scale` from 2^-96 to 2^120, and a
  /// quotient that is too small for its error to be exact is below what e4m3 distinguishes from 0.
  [[nodiscard]] EPT_DEVICE static float quotient(float v, float scale, float inverse) noexcept {
    const float q = __fmul_rn(v, inverse);
    return q == 0 ? q : __fmaf_rn(__fmaf_rn(-q, scale, v), inverse, q);
  }
  /// Two roundings, as on the host; a fused multiply-add has one.
  [[nodiscard]] EPT_DEVICE static float multiply_add(float a, float w, float v) noexcept {
    return __fadd_rn(a, __fmul_rn(w, v));
  }

  /// Both ranges lie in global memory. Uses the widest access that both addresses allow.
  __noinline__ EPT_DEVICE static void copy(std::byte* dst, const std::byte* src,
                                           std::uint64_t bytes) noexcept {
    const std::uint64_t bits =
        reinterpret_cast<std::uintptr_t>(dst) | reinterpret_cast<std::uintptr_t>(src);
    std::uint64_t done = 0;
    if (bits % sizeof(uint4) == 0) done = copy_units<uint4>(dst, src, bytes);
    if (done < bytes) copy_narrow(dst + done, src + done, bytes - done, bits);
  }

  /// The same for several destinations: each byte is read once.
  __noinline__ EPT_DEVICE static void fan_out(const fan& places, std::uint64_t offset,
                                              const std::byte* src, std::uint64_t bytes) noexcept {
    std::uint64_t bits = reinterpret_cast<std::uintptr_t>(src) | offset;
#pragma unroll 1
    for (int d = 0; d < places.count; ++d) bits |= reinterpret_cast<std::uintptr_t>(places.to[d]);
    const std::uint64_t wide =
        bits % sizeof(uint4) == 0 ? fan_units(places, offset, src, bytes / sizeof(uint4)) : 0;
    if (wide == bytes) return;
#pragma unroll 1
    for (int d = 0; d < places.count; ++d) {
      copy_narrow(places.to[d] + offset + wide, src + wide, bytes - wide, bits);
    }
  }

  [[nodiscard]] EPT_DEVICE std::uint32_t worker() const noexcept {
    return block_ * warps() + threadIdx.x / size;
  }
  [[nodiscard]] EPT_DEVICE std::uint32_t workers() const noexcept { return blocks_ * warps(); }

  template <class View>
  [[nodiscard]] EPT_DEVICE bool barrier(const View& view,
                                        std::uint64_t deadline_ns) const noexcept {
    __syncthreads();
    if (blocks_ == 1) return true;
    bool met = true;
    if (threadIdx.x == 0) met = await(enlist(), view, deadline_ns);
    return __syncthreads_and(met ? 1 : 0) != 0;
  }

  /// A block is a crew.
  [[nodiscard]] EPT_DEVICE static std::uint32_t member() noexcept { return threadIdx.x / size; }
  [[nodiscard]] EPT_DEVICE static std::uint32_t members() noexcept { return warps(); }
  [[nodiscard]] EPT_DEVICE static bool crew_all(bool value) noexcept {
    return __syncthreads_and(value ? 1 : 0) != 0;
  }

  [[nodiscard]] EPT_DEVICE static std::byte* scratch() noexcept {
    __shared__ alignas(16) std::byte bytes[crew_scratch_bytes];
    return bytes;
  }

  [[nodiscard]] EPT_DEVICE arrival arrive() const noexcept {
    __syncthreads();
    if (blocks_ == 1) return {.full = 0, .last = true};
    arrival at{};
    if (threadIdx.x == 0) at = enlist();
    at.last = __syncthreads_or(at.last ? 1 : 0) != 0;
    return at;  // only the block's first thread knows `full`
  }
  template <class View>
  [[nodiscard]] EPT_DEVICE bool complete(const arrival& at, const View& view,
                                         std::uint64_t deadline_ns) const noexcept {
    return threadIdx.x != 0 || at.full == 0 || await(at, view, deadline_ns);
  }

  [[nodiscard]] EPT_DEVICE bool last_to_leave() const noexcept {
    __syncthreads();
    if (blocks_ == 1) return threadIdx.x < size;
    const bool last = threadIdx.x == 0 && depart();
    return __syncthreads_or(last ? 1 : 0) != 0 && threadIdx.x < size;
  }

 private:
  [[nodiscard]] EPT_DEVICE static std::uint32_t warps() noexcept { return blockDim.x / size; }

  /// Loads that are issued before the first store, so that a lone warp keeps 4 KiB in flight.
  static constexpr std::uint32_t flights = 8;

  /// Copies 16-byte units to all places and returns their bytes.
  [[nodiscard]] EPT_DEVICE static std::uint64_t fan_units(const fan& places, std::uint64_t offset,
                                                          const std::byte* src,
                                                          std::uint64_t count) noexcept {
    const auto* from = reinterpret_cast<const uint4*>(src);
#pragma unroll 1
    for (std::uint64_t i = thread(); i < count; i += flights * size) {
      uint4 flight[flights];
#pragma unroll
      for (std::uint32_t n = 0; n < flights; ++n) {
        if (i + n * size < count) flight[n] = memory::load(from + i + n * size);
      }
#pragma unroll 1
      for (int d = 0; d < places.count; ++d) {
        auto* to = reinterpret_cast<uint4*>(places.to[d] + offset) + i;
#pragma unroll
        for (std::uint32_t n = 0; n < flights; ++n) {
          if (i + n * size < count) memory::store(to + n * size, flight[n]);
        }
      }
    }
    return count * sizeof(uint4);
  }

  /// Copies as many whole units as fit and returns their bytes.
  template <class Unit>
  [[nodiscard]] EPT_DEVICE static std::uint64_t copy_units(std::byte* dst, const std::byte* src,
                                                           std::uint64_t bytes) noexcept {
    auto* to = reinterpret_cast<Unit*>(dst);
    const auto* from = reinterpret_cast<const Unit*>(src);
    const std::uint64_t count = bytes / sizeof(Unit);
#pragma unroll 1
    for (std::uint64_t i = thread(); i < count; i += flights * size) {
      Unit flight[flights];
#pragma unroll
      for (std::uint32_t n = 0; n < flights; ++n) {
        if (i + n * size < count) flight[n] = memory::load(from + i + n * size);
      }
#pragma unroll
      for (std::uint32_t n = 0; n < flights; ++n) {
        if (i + n * size < count) memory::store(to + i + n * size, flight[n]);
      }
    }
    return count * sizeof(Unit);
  }

  /// Tails and odd addresses; rare, so kept out of line.
  ///
  /// @param bits  of both addresses together
  __noinline__ EPT_DEVICE static void copy_narrow(std::byte* dst, const std::byte* src,
                                                  std::uint64_t bytes,
                                                  std::uint64_t bits) noexcept {
    std::uint64_t done = 0;
    if (bits % sizeof(std::uint32_t) == 0) {
      done = copy_units<std::uint32_t>(dst, src, bytes);
    } else if (bits % sizeof(std::uint16_t) == 0) {
      done = copy_units<std::uint16_t>(dst, src, bytes);
    }
    if (done < bytes) (void)copy_units<std::uint8_t>(dst + done, src + done, bytes - done);
  }

  /// One thread per block: arrives.
  [[nodiscard]] EPT_DEVICE arrival enlist() const noexcept {
    const std::uint64_t old = memory::fetch_add(&words_->arrived, 1);
    const std::uint64_t full = (old / blocks_ + 1) * blocks_;
    return {.full = full, .last = old + 1 == full};
  }
  /// One thread per block: waits for the other blocks of the rank.
  template <class View>
  [[nodiscard]] EPT_DEVICE bool await(const arrival& at, const View& view,
                                      std::uint64_t deadline_ns) const noexcept {
    while (memory::load_acquire(&words_->arrived) < at.full) {  // pairs with fetch_add above
      if (view.now_ns() > deadline_ns) return false;
    }
    return true;
  }

  /// One thread per block: true for the rank's last block, which makes the words zero again.
  [[nodiscard]] EPT_DEVICE bool depart() const noexcept {
    if (memory::fetch_add(&words_->departed, 1) + 1 != blocks_) return false;
    memory::store_relaxed(&words_->arrived, 0);  // read by the next launch at the earliest
    memory::store_relaxed(&words_->departed, 0);
    return true;
  }

  std::uint32_t block_;
  std::uint32_t blocks_;
  worker_words* words_;
};

namespace detail {

/// Copies a call to the block's shared memory: functions out of line read its fields through
/// pointers, which for a kernel's parameters would go to global memory. By the whole block, once.
template <class Call>
[[nodiscard]] EPT_DEVICE const Call& shared_call(const std::uint32_t* from) noexcept {
  static_assert(std::is_trivially_copyable_v<Call> && sizeof(Call) % 4 == 0);
  __shared__ alignas(16) std::uint32_t words[sizeof(Call) / 4];
  for (std::uint32_t i = threadIdx.x; i < sizeof(Call) / 4; i += blockDim.x) words[i] = from[i];
  __syncthreads();
  return *reinterpret_cast<const Call*>(words);
}

}  // namespace detail

}  // namespace eptransport
