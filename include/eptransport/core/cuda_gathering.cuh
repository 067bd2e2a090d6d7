// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Where the virtual ranks of one GPU meet, so that all their kernels run in one grid.
///
/// Kernels of different ranks wait for each other, so they must be resident together. Each rank has
/// a host thread; `launch` is a rendezvous: the last thread to come starts one cooperative grid in
/// which every rank has the same number of blocks. A rank that does not come within the patience is
/// left out, as a process would be that never makes the call: its blocks leave at once, and the
/// others find out at their deadline.
///
///     grid    | rank 0: b blocks | rank 1: b blocks | ..       block i works for rank i / b
///     table   | present [R] | call [R] | gone |   one ring slot in pinned memory, its copy on the
///                                               device; `gone`: blocks that have left
///
/// *Attendants* are further blocks of each grid that work for the ranks, such as emulated NICs.
#pragma once

#include <eptransport/core/config.hpp>
#include <eptransport/core/memory.cuh>
#include <eptransport/core/rank_barrier.hpp>
#include <eptransport/core/result.hpp>
#include <eptransport/core/transport.hpp>
// check: includes the GPU's worker and device lie beside the kernels they run
#include <eptransport/core/cuda_device.cuh>
// check: includes the GPU's worker and device lie beside the kernels they run
#include <eptransport/core/cuda_worker.cuh>

#include <cuda_runtime.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace eptransport {
namespace detail {

/// Bytes before the calls of a table: one flag per rank.
[[nodiscard]] EPT_HOST_DEVICE constexpr std::uint64_t table_calls(std::uint32_t ranks) noexcept {
  return (std::uint64_t{ranks} + 15) / 16 * 16;
}

/// Where the word that counts blocks which have left lies, for kernels with attendants.
[[nodiscard]] EPT_HOST_DEVICE constexpr std::uint64_t table_gone(
    std::uint32_t ranks, std::uint64_t call_bytes) noexcept {
  return (table_calls(ranks) + ranks * call_bytes + 15) / 16 * 16;
}

/// All ranks' grids in one.
template <class Call>
EPT_KERNEL __launch_bounds__(detail::max_block_threads, 1) void run_calls(const std::byte* table,
                                                                          std::uint32_t ranks) {
  const std::uint32_t blocks = gridDim.x / ranks;
  const std::uint32_t rank = blockIdx.x / blocks;
  if (device_memory::load(reinterpret_cast<const std::uint8_t*>(table + rank)) == 0) return;
  const Call& mine = shared_call<Call>(
      reinterpret_cast<const std::uint32_t*>(table + table_calls(ranks) + rank * sizeof(Call)));
  mine(cuda_warp(blockIdx.x % blocks, blocks, mine.words()));
}

template <class Call>
inline const detail::kernel_entry run_calls_entry{reinterpret_cast<const void*>(&run_calls<Call>)};

/// Holds a stream while the host fills it, so that events measure the grid and not the host.
template <class = void>
EPT_KERNEL void stall(std::uint64_t ns) {
  const std::uint64_t until = device_memory::timer_ns() + ns;
  while (device_memory::timer_ns() < until) device_memory::relax();
}

}  // namespace detail

/// The meeting point of a world's ranks.
///
/// @par Threads  One host thread per rank.
class cuda_gathering {
 public:
  /// What one rank brings to a launch.
  struct offer {
    const void* kernel = nullptr;
    const void* call = nullptr;
    std::size_t bytes = 0;
    std::uint32_t max_sms = 0;  ///< of the rank's own blocks
    cudaStream_t stream = nullptr;
  };

  /// What attendants are: blocks behind the ranks' in each grid, told by the kernel's third and
  /// fourth argument what to do and how many they are.
  struct attendance {
    std::uint32_t blocks = 0;
    const void* work = nullptr;
  };

  /// @param patience  how long the first to come waits for the last
  cuda_gathering(const detail::cuda_device& device, std::int32_t ranks, std::uint32_t blocks,
                 std::uint32_t warps, std::chrono::nanoseconds patience)
      : device_(device),
        ranks_(static_cast<std::uint32_t>(ranks)),
        blocks_(blocks),
        warps_(warps),
        patience_(patience),
        offers_(ranks_),
        failures_(ranks_),
        meeting_(ranks) {}
  cuda_gathering(const cuda_gathering&) = delete;
  cuda_gathering& operator=(const cuda_gathering&) = delete;
  ~cuda_gathering() {
    const detail::device_scope scope(device_.device());
    for (slot& one : ring_) {
      if (one.begun != nullptr) (void)cudaEventDestroy(one.begun);
      if (one.done != nullptr) (void)cudaEventDestroy(one.done);
    }
  }

  /// Blocks of each rank under the limit; 0 = the default.
  [[nodiscard]] std::uint32_t blocks(std::uint32_t max_sms) const noexcept {
    return max_sms == 0 || max_sms > blocks_ ? blocks_ : max_sms;
  }
  [[nodiscard]] std::uint32_t warps() const noexcept { return warps_; }

  /// From now on each grid has them. Before the first launch.
  void attend(const attendance& by) {
    const std::lock_guard lock(mutex_);
    attendance_ = by;
  }

  /// From now on each grid is measured with CUDA events, on a stream that is held while it is
  /// filled: for benchmarks, 50 us slower a launch.
  void time_grids() {
    const std::lock_guard lock(mutex_);
    timed_ = true;
  }

  /// How long the last grid ran, once it has ended. After `time_grids`.
  [[nodiscard]] result<double> last_grid_ns() {
    const std::lock_guard lock(mutex_);
    const detail::device_scope scope(device_.device());
    const slot& last = ring_[(next_ + ring_slots - 1) % ring_slots];
    float ms = 0;
    auto waited = cuda_result(cudaEventSynchronize(last.done), "cudaEventSynchronize");
    if (!waited) return waited.error();
    auto read =
        cuda_result(cudaEventElapsedTime(&ms, last.begun, last.done), "cudaEventElapsedTime");
    if (!read) return read.error();
    return static_cast<double>(ms) * 1e6;
  }

  /// Waits for the other ranks' offers of the same call and starts the grid. All ranks get the
  /// outcome. The stream is that of the lowest rank that came, the SM limit the smallest.
  [[nodiscard]] result<void> launch(std::int32_t rank, const offer& mine) {
    std::unique_lock lock(mutex_);
    offers_[static_cast<std::size_t>(rank)] = mine;
    const std::uint64_t round = round_;
    const auto over = [&] { return round_ != round; };
    const bool all = ++arrived_ == ranks_;
    if (all || (!met_.wait_for(lock, patience_, over))) start();
    const std::optional<failure>& why = failures_[static_cast<std::size_t>(rank)];
    return why ? result<void>(*why) : result<void>();
  }

  /// All ranks meet, or `timed_out` names one that is missing.
  [[nodiscard]] result<void> barrier(std::int32_t rank, std::uint64_t timeout_ns) {
    return meeting_.meet(rank, timeout_ns, "cuda_gathering::barrier");
  }

 private:
  /// One table: filled on the host, copied, read by one grid, free again when that has ended.
  struct slot {
    detail::cuda_memory host;
    detail::cuda_memory device;
    std::uint64_t bytes = 0;
    cudaEvent_t begun = nullptr;
    cudaEvent_t done = nullptr;
  };

  static constexpr std::size_t ring_slots = 8;

  /// Starts what has been offered, tells everybody, opens the next round. Holds the mutex.
  void start() {
    const result<void> outcome = launch_offers();
    std::optional<failure> why;
    if (!outcome) why = outcome.error();
    for (std::uint32_t rank = 0; rank < ranks_; ++rank) {
      if (offers_[rank].kernel != nullptr) failures_[rank] = why;
      offers_[rank] = {};
    }
    arrived_ = 0;
    ++round_;
    met_.notify_all();
  }

  [[nodiscard]] result<void> launch_offers() {
    const detail::device_scope scope(device_.device());
    const offer* first = nullptr;
    std::uint32_t each = blocks_;
    for (const offer& one : offers_) {
      if (one.kernel == nullptr) continue;
      if (first == nullptr) first = &one;
      each = std::min(each, blocks(one.max_sms));
      if (one.kernel != first->kernel) {
        return failure{errc::misuse, "cuda_gathering::launch",
                       "rank " + std::to_string(&one - offers_.data()) +
                           " makes another call than rank " +
                           std::to_string(first - offers_.data())};
      }
    }
    const std::uint64_t calls = detail::table_calls(ranks_);
    const std::uint64_t gone = detail::table_gone(ranks_, first->bytes);
    const std::uint64_t bytes = gone + sizeof(std::uint64_t);
    slot& table = ring_[next_++ % ring_slots];
    if (auto ready = prepare(table, bytes); !ready) return ready;
    std::memset(table.host.get(), 0, calls);
    std::memset(table.host.get() + gone, 0, sizeof(std::uint64_t));
    for (std::uint32_t rank = 0; rank < ranks_; ++rank) {
      if (offers_[rank].kernel == nullptr) continue;
      table.host.get()[rank] = std::byte{1};
      std::memcpy(table.host.get() + calls + rank * first->bytes, offers_[rank].call, first->bytes);
    }
    return start_grid(table, bytes, *first, each);
  }

  [[nodiscard]] result<void> start_grid(slot& table, std::uint64_t bytes, const offer& how,
                                        std::uint32_t each) {
    if (timed_) {
      std::uint64_t ns = 50'000;
      void* arguments[] = {&ns};
      const auto held =
          cuda_result(cudaLaunchKernel(reinterpret_cast<const void*>(&detail::stall<>), dim3(1),
                                       dim3(1), arguments, 0, how.stream),
                      "cudaLaunchKernel");
      if (!held) return held;
    }
    const auto copied = cuda_result(cudaMemcpyAsync(table.device.get(), table.host.get(), bytes,
                                                    cudaMemcpyHostToDevice, how.stream),
                                    "cudaMemcpyAsync");
    if (!copied) return copied;
    if (timed_) (void)cudaEventRecord(table.begun, how.stream);
    const std::byte* calls = table.device.get();
    void* arguments[] = {&calls, &ranks_, &attendance_.work, &attendance_.blocks};
    const std::uint32_t blocks = ranks_ * each + attendance_.blocks;
    const auto started = device_.launch(how.kernel, blocks, warps_, arguments, how.stream);
    const auto marked = cuda_result(cudaEventRecord(table.done, how.stream), "cudaEventRecord");
    return started ? marked : started;
  }

  /// Makes the slot free and large enough.
  [[nodiscard]] result<void> prepare(slot& table, std::uint64_t bytes) {
    for (cudaEvent_t* event : {&table.begun, &table.done}) {
      if (*event != nullptr) continue;
      auto made = cuda_result(cudaEventCreate(event), "cudaEventCreate");
      if (!made) return made;
    }
    auto free = cuda_result(cudaEventSynchronize(table.done), "cudaEventSynchronize");
    if (!free || table.bytes >= bytes) return free;
    void* memory = nullptr;
    auto host = cuda_result(cudaHostAlloc(&memory, bytes, cudaHostAllocDefault), "cudaHostAlloc");
    if (!host) return host;
    table.host.reset(static_cast<std::byte*>(memory));
    auto device = cuda_result(cudaMalloc(&memory, bytes), "cudaMalloc");
    if (!device) return device;
    table.device.reset(static_cast<std::byte*>(memory));
    table.bytes = bytes;
    return {};
  }

  const detail::cuda_device& device_;
  std::uint32_t ranks_;
  std::uint32_t blocks_;
  std::uint32_t warps_;
  std::chrono::nanoseconds patience_;

  std::mutex mutex_;
  std::condition_variable met_;
  std::vector<offer> offers_;
  std::vector<std::optional<failure>> failures_;  ///< of each rank's last launch
  std::uint32_t arrived_ = 0;
  std::uint64_t round_ = 0;
  rank_barrier meeting_;
  slot ring_[ring_slots];
  std::uint64_t next_ = 0;
  attendance attendance_;
  bool timed_ = false;
};

/// Models `Executor` for one virtual rank.
///
/// @par Threads  The rank's own host thread. `launch` waits for the other ranks' threads.
class cuda_virtual_executor {
 public:
  using stream_type = cudaStream_t;
  using worker_type = cuda_warp;
  static constexpr bool synchronous = false;

  /// @param concurrent  launches of one rank that are resident at once
  cuda_virtual_executor(detail::cuda_device&& device, cuda_gathering& gathering, std::int32_t rank,
                        std::uint32_t concurrent)
      : device_(std::move(device)), gathering_(&gathering), rank_(rank), concurrent_(concurrent) {}

  [[nodiscard]] std::uint32_t workers(std::uint32_t max_sms) const noexcept {
    return gathering_->blocks(max_sms) * gathering_->warps();
  }
  [[nodiscard]] std::uint32_t concurrent() const noexcept { return concurrent_; }
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
  /// Waits for the whole device, the other ranks' work included; no rendezvous.
  [[nodiscard]] result<void> synchronize() { return device_.synchronize(); }

  template <class Call>
  [[nodiscard]] result<void> launch(const Call& call, std::uint32_t max_sms, cudaStream_t stream) {
    return gathering_->launch(rank_, {.kernel = detail::run_calls_entry<Call>.kernel(),
                                      .call = &call,
                                      .bytes = sizeof(Call),
                                      .max_sms = max_sms,
                                      .stream = stream});
  }

 private:
  detail::cuda_device device_;
  cuda_gathering* gathering_;
  std::int32_t rank_;
  std::uint32_t concurrent_;
};

static_assert(Executor<cuda_virtual_executor>);

}  // namespace eptransport
