// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The simulator on one GPU: R virtual ranks, one grid, the kernels that real GPUs run.
///
/// It delivers at once and in order; the weak orders of real wires are the CPU simulator's part
/// (loopback.hpp). What it adds is the GPU: warps, blocks, scopes, streams, and HBM.
#pragma once

#include <eptransport/backends/loopback/cuda_view.cuh>
#include <eptransport/backends/loopback/profiles.hpp>
#include <eptransport/core/config.hpp>
#include <eptransport/core/cuda_gathering.cuh>
#include <eptransport/core/memory.hpp>
#include <eptransport/core/result.hpp>
#include <eptransport/core/transport.hpp>
// check: includes the GPU's worker and device lie beside the kernels they run
#include <eptransport/core/cuda_device.cuh>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace eptransport {

/// What a world is made of.
struct cuda_loopback_options {
  std::int32_t ranks = 2;
  std::uint64_t window_bytes = 0;   ///< per rank
  std::uint32_t signals = 0;        ///< words per rank
  std::uint32_t channels = 1;       ///< per rank
  std::uint64_t counter_start = 0;  ///< first value of every signal word
  int device = 0;
  std::uint32_t blocks = 0;      ///< per rank and kernel; 0: at most 16, as many as fit
  std::uint32_t warps = 8;       ///< per block; each is a worker
  std::uint32_t concurrent = 1;  ///< kernels of one rank that may run at once (lanes, streams)
  /// How long `launch` waits for ranks that have not come before it starts without them.
  std::uint64_t patience_ns = 10'000'000'000;
};

/// One virtual rank; lives in its world.
///
/// @par Threads  The rank's own host thread.
template <class Profile>
class cuda_loopback {
 public:
  using transport_concept = transport_tag;
  using view_type = cuda_loopback_view;
  using executor_type = cuda_virtual_executor;
  static constexpr capabilities caps = Profile::caps;

  cuda_loopback(const cuda_loopback_view::world& world, cuda_gathering& gathering,
                detail::cuda_device&& device, std::int32_t rank, std::uint32_t concurrent)
      : view_(world, rank),
        window_(view_.local(), world.window_bytes),
        signals_(world.signal_count),
        failed_(world.failures + rank),
        gathering_(gathering),
        executor_(std::move(device), gathering, rank, concurrent) {}
  cuda_loopback(const cuda_loopback&) = delete;
  cuda_loopback& operator=(const cuda_loopback&) = delete;

  [[nodiscard]] view_type view() const noexcept { return view_; }
  [[nodiscard]] executor_type& executor() noexcept { return executor_; }
  [[nodiscard]] std::span<std::byte> window() const noexcept { return window_; }
  [[nodiscard]] std::uint32_t signals() const noexcept { return signals_; }

  /// Names a rank that did not come, when it times out.
  [[nodiscard]] result<void> barrier(std::uint64_t timeout_ns) {
    return gathering_.barrier(view_.rank(), timeout_ns);
  }
  [[nodiscard]] result<void> fault() const {
    // Pairs with the release in cuda_loopback_view::refuse().
    if (host_memory::signal_acquire(failed_) == 0) return {};
    return failure{errc::transport_failed, "cuda_loopback",
                   "rank " + std::to_string(view_.rank()) +
                       " made a request outside the window, the signals or caps"};
  }

 private:
  view_type view_;
  std::span<std::byte> window_;
  std::uint32_t signals_;
  const std::uint64_t* failed_;
  cuda_gathering& gathering_;
  executor_type executor_;
};

/// All virtual ranks of one GPU.
template <class Profile>
class cuda_loopback_world {
 public:
  using rank_type = cuda_loopback<Profile>;

  /// @par Errors  `invalid_argument`; `capacity` with both numbers when the blocks of all ranks
  ///              cannot be resident at once (INV-9); CUDA's, e.g. out of memory with the size
  [[nodiscard]] static result<std::unique_ptr<cuda_loopback_world>> create(
      const cuda_loopback_options& options) {
    if (auto checked = check(options); !checked) return checked.error();
    auto device = detail::cuda_device::open(options.device);
    if (!device) return device.error();
    const std::uint64_t kernels = static_cast<std::uint64_t>(options.ranks) * options.concurrent;
    const std::uint32_t blocks =
        options.blocks != 0
            ? options.blocks
            : static_cast<std::uint32_t>(std::clamp<std::uint64_t>(device->sms() / kernels, 1, 16));
    if (auto fits = device->expect_room(kernels * blocks, options.warps); !fits) {
      return fits.error();
    }
    std::unique_ptr<cuda_loopback_world> world(
        new cuda_loopback_world(std::move(*device), options, blocks));
    if (auto placed = world->place(options); !placed) return placed.error();
    for (std::int32_t rank = 0; rank < options.ranks; ++rank) {
      auto own = detail::cuda_device::open(options.device);
      if (!own) return own.error();
      world->ranks_.push_back(std::make_unique<cuda_loopback<Profile>>(
          world->shared_, world->gathering_, std::move(*own), rank, options.concurrent));
    }
    return result<std::unique_ptr<cuda_loopback_world>>(std::move(world));
  }

  ~cuda_loopback_world() { (void)device_.synchronize(); }

  [[nodiscard]] cuda_loopback<Profile>& rank(std::int32_t index) {
    return *ranks_[static_cast<std::size_t>(index)];
  }

  /// Blocks of each rank in a launch without a limit.
  [[nodiscard]] std::uint32_t blocks() const noexcept { return gathering_.blocks(0); }

  /// Measures each grid from now on, and how long the last one ran; see `cuda_gathering`.
  void time_grids() { gathering_.time_grids(); }
  [[nodiscard]] result<double> last_grid_ns() { return gathering_.last_grid_ns(); }

  /// Calls `function` once per rank, each in a thread of its own, and joins them.
  void run(const std::function<void(cuda_loopback<Profile>&)>& function) {
    std::vector<std::thread> threads;
    for (auto& one : ranks_) {
      threads.emplace_back([&function, &one, this] {
        (void)cudaSetDevice(device_.device());
        function(*one);
      });
    }
    for (std::thread& thread : threads) thread.join();
  }

 private:
  static constexpr std::uint64_t line = 256;

  cuda_loopback_world(detail::cuda_device&& device, const cuda_loopback_options& options,
                      std::uint32_t blocks)
      : device_(std::move(device)),
        gathering_(device_, options.ranks, blocks, options.warps,
                   std::chrono::nanoseconds(options.patience_ns)) {}

  [[nodiscard]] static result<void> check(const cuda_loopback_options& options) {
    const auto refuse = [](const std::string& why) {
      return failure{errc::invalid_argument, "cuda_loopback_world::create", why};
    };
    if (options.ranks < 1) return refuse("at least 1 rank is needed");
    if (options.channels < 1) return refuse("at least 1 channel is needed");
    if (options.concurrent < 1) return refuse("concurrent must be at least 1");
    if (Profile::caps.max_signals != 0 && options.signals > Profile::caps.max_signals) {
      return refuse(std::to_string(options.signals) + " signals, the wire has " +
                    std::to_string(Profile::caps.max_signals));
    }
    return {};
  }

  /// Zeroed windows and signal words.
  [[nodiscard]] result<void> place(const cuda_loopback_options& options) {
    const auto ranks = static_cast<std::uint64_t>(options.ranks);
    const std::uint64_t stride = (options.window_bytes + line - 1) / line * line;
    const std::uint32_t words = (options.signals + 31) / 32 * 32;
    auto windows = device_.allocate(std::max<std::uint64_t>(ranks * stride, line));
    if (!windows) return windows.error();
    windows_.reset(*windows);
    const std::vector<std::uint64_t> start(std::max<std::uint64_t>(ranks * words, 1),
                                           options.counter_start);
    auto signals = device_.allocate(start.size() * sizeof(std::uint64_t));
    if (!signals) return signals.error();
    signals_.reset(*signals);
    auto written = device_.copy(*signals, reinterpret_cast<const std::byte*>(start.data()),
                                start.size() * sizeof(std::uint64_t));
    if (!written) return written;
    auto failures = device_.allocate_shared(ranks * sizeof(std::uint64_t));
    if (!failures) return failures.error();
    failures_.reset(*failures);
    shared_ = {.windows = *windows,
               .signals = reinterpret_cast<std::uint64_t*>(*signals),
               .failures = reinterpret_cast<std::uint64_t*>(*failures),
               .stride = stride,
               .window_bytes = options.window_bytes,
               .max_message = Profile::caps.max_message,
               .signal_stride = words,
               .signal_count = options.signals,
               .channels = options.channels,
               .ranks = options.ranks,
               .ranks_per_node = Profile::ranks_per_node,
               .direct = Profile::caps.peer_reach == reach::always,
               .registered_source = Profile::caps.needs_registered_source};
    return {};
  }

  detail::cuda_device device_;
  cuda_gathering gathering_;
  detail::cuda_memory windows_;
  detail::cuda_memory signals_;
  detail::cuda_memory failures_;
  cuda_loopback_view::world shared_{};
  std::vector<std::unique_ptr<cuda_loopback<Profile>>> ranks_;
};

static_assert(check_transport<cuda_loopback<profiles::nvlink>>());
static_assert(check_transport<cuda_loopback<profiles::ib_gpu>>());
static_assert(check_transport<cuda_loopback<profiles::efa_gpu>>());
static_assert(check_transport<cuda_loopback<profiles::efa_proxy>>());

}  // namespace eptransport
