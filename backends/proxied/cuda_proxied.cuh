// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Proxied ranks whose kernels run on a GPU: the virtual ranks of one GPU, each with engines
/// and a wire of its own.
///
/// The ranks are host ranks, of a `proxied_world` or `proxied_rank`s of any wire; their windows,
/// rings and counters are mapped into the GPU. Windows stay in host memory.
#pragma once

#include <eptransport/backends/proxied/cuda_view.cuh>
#include <eptransport/backends/proxied/detail/rank_state.hpp>
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
namespace proxied_detail {

/// Host memory that GPUs reach at its own address for as long as this lives.
class mapped_memory {
 public:
  /// @param memory  aligned to a page; the pages are nobody else's
  [[nodiscard]] static result<mapped_memory> map(void* memory, std::uint64_t bytes) {
    constexpr std::uint64_t page = page_memory::page;
    auto mapped = cuda_result(cudaHostRegister(memory, (bytes + page - 1) / page * page,
                                               cudaHostRegisterMapped | cudaHostRegisterPortable),
                              "cudaHostRegister", std::to_string(bytes) + " bytes");
    if (!mapped) return mapped.error();
    return result<mapped_memory>(mapped_memory(memory));
  }
  mapped_memory(mapped_memory&& other) noexcept : memory_(std::exchange(other.memory_, nullptr)) {}
  mapped_memory& operator=(mapped_memory&& other) noexcept {
    std::swap(memory_, other.memory_);
    return *this;
  }
  ~mapped_memory() {
    if (memory_ != nullptr) (void)cudaHostUnregister(memory_);
  }

 private:
  explicit mapped_memory(void* memory) noexcept : memory_(memory) {}

  void* memory_;
};

}  // namespace proxied_detail

/// One rank; lives in its world.
///
/// @tparam Host  the host rank: `proxied<Wire>` or `proxied_rank<Wire>`
/// @par Threads  The rank's own host thread.
template <class Host>
class cuda_proxied {
 public:
  using transport_concept = transport_tag;
  using view_type = cuda_proxied_view;
  using executor_type = cuda_virtual_executor;
  static constexpr capabilities caps = Host::caps;

  cuda_proxied(Host& host, cuda_gathering& gathering, detail::cuda_device&& device,
               std::uint32_t concurrent)
      : host_(host), executor_(std::move(device), gathering, host.state().rank, concurrent) {}
  cuda_proxied(const cuda_proxied&) = delete;
  cuda_proxied& operator=(const cuda_proxied&) = delete;
  ~cuda_proxied() {
    executor_.release(tables_);
    executor_.release(reinterpret_cast<std::byte*>(at_.refused));
  }

  /// Once, before anything else.
  [[nodiscard]] result<void> map() {
    proxied_detail::rank_state& s = host_.state();
    const auto add = [this](void* memory, std::uint64_t bytes) -> result<void> {
      if (bytes == 0) return {};
      auto mapped = proxied_detail::mapped_memory::map(memory, bytes);
      if (!mapped) return mapped.error();
      mapped_.push_back(std::move(*mapped));
      return {};
    };
    if (auto r = add(s.memory.data(), s.memory.bytes()); !r) return r;
    if (auto r = add(s.words.data(), s.words.bytes()); !r) return r;
    if (auto r = add(&s.fault, proxied_detail::page_memory::page); !r) return r;
    std::vector<proxy::ring_view> rings;
    std::vector<cuda_proxied_view::producer_words> producers;
    for (const auto& channel : s.channels) {
      if (auto r = add(channel->memory.data(), channel->memory.bytes()); !r) return r;
      rings.push_back(channel->ring);
      producers.push_back({channel->head, channel->head});
    }
    return place(s, rings, producers);
  }

  [[nodiscard]] view_type view() const noexcept { return view_type(at_); }
  [[nodiscard]] executor_type& executor() noexcept { return executor_; }
  [[nodiscard]] std::span<std::byte> window() const noexcept { return host_.window(); }
  [[nodiscard]] std::uint32_t signals() const noexcept { return host_.signals(); }
  [[nodiscard]] result<void> barrier(std::uint64_t timeout_ns) { return host_.barrier(timeout_ns); }
  [[nodiscard]] result<void> fault() const {
    // Pairs with the release in cuda_proxied_view::refuse().
    if (host_memory::signal_acquire(at_.refused) == 0) return host_.fault();
    return failure{errc::transport_failed, "cuda_proxied",
                   "rank " + std::to_string(at_.rank) +
                       " made a request outside the window, the signals or caps"};
  }
  [[nodiscard]] Host& host() noexcept { return host_; }

 private:
  result<void> place(proxied_detail::rank_state& s, const std::vector<proxy::ring_view>& rings,
                     const std::vector<cuda_proxied_view::producer_words>& producers) {
    auto shared =
        executor_.allocate_shared(sizeof(std::uint64_t) + s.nodes->size() * sizeof(std::int32_t));
    if (!shared) return shared.error();
    at_.refused = reinterpret_cast<std::uint64_t*>(*shared);
    auto* nodes = reinterpret_cast<std::int32_t*>(*shared + sizeof(std::uint64_t));
    std::copy(s.nodes->begin(), s.nodes->end(), nodes);
    at_.nodes = nodes;
    const std::uint64_t heads = producers.size() * sizeof producers[0];
    auto tables = executor_.allocate(heads + rings.size() * sizeof rings[0]);
    if (!tables) return tables.error();
    tables_ = *tables;
    const auto write = [this](std::byte* to, const auto& values) {
      return executor_.write(to, reinterpret_cast<const std::byte*>(values.data()),
                             values.size() * sizeof values[0]);
    };
    if (auto r = write(tables_, producers); !r) return r;
    if (auto r = write(tables_ + heads, rings); !r) return r;
    at_.window = s.memory.data();
    at_.rings = reinterpret_cast<const proxy::ring_view*>(tables_ + heads);
    at_.producers = reinterpret_cast<cuda_proxied_view::producer_words*>(tables_);
    at_.counters = s.counters(0);
    at_.failed = s.fault.word();
    at_.codec = s.codec;
    at_.window_bytes = s.memory.bytes();
    at_.max_message = s.max_message;
    at_.max_count = s.max_count;
    at_.signals = s.signals;
    at_.comms = s.comms;
    at_.channels = static_cast<std::uint32_t>(s.channels.size());
    at_.rank = s.rank;
    at_.ranks = s.ranks;
    return {};
  }

  Host& host_;
  executor_type executor_;
  cuda_proxied_view::places at_{};
  std::byte* tables_ = nullptr;
  std::vector<proxied_detail::mapped_memory> mapped_;
};

/// How the virtual ranks share a GPU; as in `cuda_loopback_options`.
struct cuda_proxied_options {
  int device = 0;
  std::uint32_t blocks = 0;      ///< per rank and kernel; 0: at most 16, as many as fit
  std::uint32_t warps = 8;       ///< per block; each is a worker
  std::uint32_t concurrent = 1;  ///< kernels of one rank that may run at once (lanes, streams)
  std::uint64_t patience_ns = 10'000'000'000;
};

/// Virtual ranks of one GPU over host ranks that this process owns.
template <class Host>
class cuda_proxied_world {
 public:
  using rank_type = cuda_proxied<Host>;

  /// @param hosts   rank r of all, in order; they outlive the world, and nothing else posts through
  ///                them, before or after: the GPU keeps the heads of their rings
  /// @par Errors    `invalid_argument`; `unsupported` where GPUs reach host memory at another
  ///                address; `capacity` with both numbers (INV-9); CUDA's
  [[nodiscard]] static result<std::unique_ptr<cuda_proxied_world>> create(
      const std::vector<Host*>& hosts, const cuda_proxied_options& options = {}) {
    if (hosts.empty() || options.concurrent < 1) {
      return failure{errc::invalid_argument, "cuda_proxied_world::create",
                     std::to_string(hosts.size()) + " ranks, concurrent " +
                         std::to_string(options.concurrent) + "; both must be at least 1"};
    }
    auto device = detail::cuda_device::open(options.device);
    if (!device) return device.error();
    if (auto same = expect_same_addresses(options.device); !same) return same.error();
    const std::uint64_t kernels = hosts.size() * options.concurrent;
    const std::uint32_t blocks =
        options.blocks != 0
            ? options.blocks
            : static_cast<std::uint32_t>(std::clamp<std::uint64_t>(device->sms() / kernels, 1, 16));
    if (auto fits = device->expect_room(kernels * blocks, options.warps); !fits) {
      return fits.error();
    }
    std::unique_ptr<cuda_proxied_world> world(
        new cuda_proxied_world(std::move(*device), hosts.size(), blocks, options));
    for (Host* host : hosts) {
      auto own = detail::cuda_device::open(options.device);
      if (!own) return own.error();
      world->ranks_.push_back(std::make_unique<rank_type>(*host, world->gathering_, std::move(*own),
                                                          options.concurrent));
      if (auto mapped = world->ranks_.back()->map(); !mapped) return mapped.error();
    }
    return result<std::unique_ptr<cuda_proxied_world>>(std::move(world));
  }

  ~cuda_proxied_world() { (void)device_.synchronize(); }

  [[nodiscard]] rank_type& rank(std::int32_t index) {
    return *ranks_[static_cast<std::size_t>(index)];
  }
  [[nodiscard]] std::uint32_t blocks() const noexcept { return gathering_.blocks(0); }
  void time_grids() { gathering_.time_grids(); }
  [[nodiscard]] result<double> last_grid_ns() { return gathering_.last_grid_ns(); }

  /// Calls `function` once per rank, each in a thread of its own, and joins them.
  void run(const std::function<void(rank_type&)>& function) {
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
  cuda_proxied_world(detail::cuda_device&& device, std::size_t ranks, std::uint32_t blocks,
                     const cuda_proxied_options& options)
      : device_(std::move(device)),
        gathering_(device_, static_cast<std::int32_t>(ranks), blocks, options.warps,
                   std::chrono::nanoseconds(options.patience_ns)) {}

  [[nodiscard]] static result<void> expect_same_addresses(int device) {
    int same = 0;
    auto asked = cuda_result(
        cudaDeviceGetAttribute(&same, cudaDevAttrCanUseHostPointerForRegisteredMem, device),
        "cudaDeviceGetAttribute");
    if (!asked || same != 0) return asked;
    return failure{errc::unsupported, "cuda_proxied_world::create",
                   "device " + std::to_string(device) +
                       " reaches registered host memory at other addresses than the host does"};
  }

  detail::cuda_device device_;
  cuda_gathering gathering_;
  std::vector<std::unique_ptr<rank_type>> ranks_;
};

}  // namespace eptransport
