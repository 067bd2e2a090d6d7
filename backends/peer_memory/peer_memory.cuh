// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief NVLink inside a host: every rank's window is mapped by all ranks.
///
/// One process per GPU: `peer_memory::connect`. Several GPUs in one process, a host thread per
/// rank: `peer_memory_world`.
#pragma once

#include <eptransport/backends/peer_memory/mapping.cuh>
#include <eptransport/backends/peer_memory/meeting_place.hpp>
#include <eptransport/backends/peer_memory/rendezvous.hpp>
#include <eptransport/backends/peer_memory/view.cuh>
#include <eptransport/core/config.hpp>
#include <eptransport/core/cuda_device.cuh>
#include <eptransport/core/cuda_executor.cuh>
#include <eptransport/core/memory.hpp>
#include <eptransport/core/rank_barrier.hpp>
#include <eptransport/core/result.hpp>
#include <eptransport/core/transport.hpp>
#include <eptransport/core/wire_costs.hpp>
#include <eptransport/proxy/bootstrap/bootstrap.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace eptransport {

/// What every rank of a world is made of; the same on all ranks.
struct peer_memory_shape {
  std::uint64_t window_bytes = 0;   ///< per rank
  std::uint32_t signals = 0;        ///< words per rank
  std::uint32_t channels = 1;       ///< per rank
  std::uint64_t counter_start = 0;  ///< first value of every signal word
  std::uint32_t blocks = 0;         ///< per rank and kernel; 0: at most 64, as many as fit
  std::uint32_t warps = 8;          ///< per block; each is a worker
  std::uint32_t concurrent = 1;     ///< kernels of one rank that may run at once (lanes, streams)
  peer_allocation allocation = peer_allocation::virtual_memory;

  /// Offset of the window in a rank's block; the signal words lie before it.
  [[nodiscard]] std::uint64_t window_offset() const noexcept {
    return (std::uint64_t{signals} * sizeof(std::uint64_t) + 255) / 256 * 256;
  }
  [[nodiscard]] std::uint64_t block_bytes() const noexcept {
    return std::max<std::uint64_t>(window_offset() + window_bytes, 256);
  }
};

namespace detail {

/// The executor of a rank whose device carries the kernels of `sharers` ranks (INV-9).
[[nodiscard]] inline result<cuda_executor> open_peer_executor(int device, std::uint64_t sharers,
                                                              const peer_memory_shape& shape) {
  if (shape.channels < 1 || shape.concurrent < 1) {
    return failure{errc::invalid_argument, "peer_memory",
                   "channels and concurrent must be at least 1, got " +
                       std::to_string(shape.channels) + " and " + std::to_string(shape.concurrent)};
  }
  auto opened = cuda_device::open(device);
  if (!opened) return opened.error();
  const std::uint64_t kernels = sharers * shape.concurrent;
  const std::uint32_t blocks =
      shape.blocks != 0
          ? shape.blocks
          : static_cast<std::uint32_t>(std::clamp<std::uint64_t>(opened->sms() / kernels, 1, 64));
  if (auto fits = opened->expect_room(kernels * blocks, shape.warps); !fits) return fits.error();
  return cuda_executor::create(device, {.blocks = blocks,
                                        .warps = shape.warps,
                                        .concurrent = shape.concurrent,
                                        .stream = sharers > 1 ? cudaStreamPerThread : nullptr});
}

/// What the processes of a host tell each other first. Compared byte by byte but for the device.
struct peer_identity {
  unsigned char device[16] = {};
  std::uint64_t window_bytes = 0;
  std::uint64_t signals = 0;
  std::uint64_t counter_start = 0;
  std::uint64_t allocation = 0;
};

}  // namespace detail

/// This process among those of its host.
struct peer_memory_process {
  std::string path;  ///< of a Unix socket that rank 0 makes; the same on all ranks
  std::int32_t rank = 0;
  std::int32_t ranks = 1;
  int device = 0;  ///< its ordinal in this process
  std::uint64_t timeout_ns = 60'000'000'000;
};

/// One rank's end.
///
/// @par Threads  The rank's own host thread.
class peer_memory {
 public:
  using transport_concept = transport_tag;
  using view_type = peer_memory_view;
  using executor_type = cuda_executor;
  static constexpr const char* name = "peer-memory";
  static constexpr capabilities caps{
      .peer_reach = reach::always,
      .put_order = ordering::none,  // stores of many threads: only the release orders them
      .add = signal_add::any,       // release reductions
      .charge = wires::nvlink.charge(),
  };

  /// Maps the windows of all processes; collective.
  ///
  /// A process may leave at any time. Its window stays mapped at its peers, who may still write
  /// there, until they have left too; they find out that it is gone at the deadline of a wait, or
  /// at once in `barrier`. With `peer_allocation::runtime` the destructor waits, for at most
  /// `closing_ns`, until the others have closed the window.
  ///
  /// @par Errors  `mismatch` naming a rank with another shape; `timed_out` or `transport_failed`
  ///              naming a rank that did not come; `capacity` with both numbers (INV-9); CUDA's,
  ///              e.g. where a device cannot reach a peer's
  [[nodiscard]] static result<std::unique_ptr<peer_memory>> connect(
      const peer_memory_process& self, const peer_memory_shape& shape) {
    auto joined = local_rendezvous::join(self.path, self.rank, self.ranks, self.timeout_ns);
    if (!joined) return joined.error();
    const std::shared_ptr<local_rendezvous> met = std::move(*joined);
    auto sharers = agree(*met, self, shape);
    if (!sharers) return sharers.error();
    auto executor = detail::open_peer_executor(self.device, *sharers, shape);
    if (!executor) return executor.error();
    auto blocks =
        peer_mapping::create(self.ranks, shape.block_bytes(), {self.device}, shape.allocation);
    if (!blocks) return blocks.error();
    if (auto made = (*blocks)->allocate(self.rank, self.device); !made) return made.error();
    if (auto mapped = trade(*met, **blocks, self); !mapped) return mapped.error();
    std::unique_ptr<peer_memory> made(
        new peer_memory(std::move(*blocks), std::move(*executor), self.device,
                        [met](std::uint64_t timeout_ns) { return met->barrier(timeout_ns); }));
    if (auto placed = made->place(self.rank, self.ranks, shape); !placed) return placed.error();
    made->closes_together_ = shape.allocation == peer_allocation::runtime;
    if (auto all = met->barrier(self.timeout_ns); !all) return all.error();  // counters stand
    return result<std::unique_ptr<peer_memory>>(std::move(made));
  }

  /// The same among the ranks of a job that run on this rank's host; collective over all ranks of
  /// the job. Ranks are numbered by `rank_place::on_node`.
  ///
  /// @param device  its ordinal in this process
  [[nodiscard]] static result<std::unique_ptr<peer_memory>> connect(
      bootstrap& job, int device, const peer_memory_shape& shape,
      std::uint64_t timeout_ns = peer_memory_process{}.timeout_ns) {
    const auto place = meeting_place::agree(job, timeout_ns);
    if (!place) return place.error();
    return connect({.path = place->path(),
                    .rank = place->rank(),
                    .ranks = place->ranks(),
                    .device = device,
                    .timeout_ns = timeout_ns},
                   shape);
  }

  /// How long a destructor waits for the other processes, where it has to.
  static constexpr std::uint64_t closing_ns = 5'000'000'000;

  peer_memory(const peer_memory&) = delete;
  peer_memory& operator=(const peer_memory&) = delete;
  ~peer_memory() {
    (void)executor_.synchronize();
    executor_.release(reinterpret_cast<std::byte*>(at_.failed));
    executor_.release(table_);
    if (!closes_together_) return;
    blocks_->drop_imported();
    (void)meet_(closing_ns);
  }

  [[nodiscard]] view_type view() const noexcept { return view_type(at_); }
  [[nodiscard]] executor_type& executor() noexcept { return executor_; }
  [[nodiscard]] std::span<std::byte> window() const noexcept {
    return {at_.own + at_.window, at_.window_bytes};
  }
  [[nodiscard]] std::uint32_t signals() const noexcept { return at_.signal_count; }
  [[nodiscard]] int device() const noexcept { return device_; }

  /// Names a rank that did not come, when it times out.
  [[nodiscard]] result<void> barrier(std::uint64_t timeout_ns) { return meet_(timeout_ns); }
  [[nodiscard]] result<void> fault() const {
    // Pairs with the release in peer_memory_view::refuse().
    if (host_memory::signal_acquire(at_.failed) == 0) return {};
    return failure{
        errc::transport_failed, "peer_memory",
        "rank " + std::to_string(at_.rank) + " made a request outside the window or the signals"};
  }

 private:
  friend class peer_memory_world;

  /// How the ranks of a host meet.
  using meeting = std::function<result<void>(std::uint64_t timeout_ns)>;

  peer_memory(std::shared_ptr<peer_mapping> blocks, cuda_executor&& executor, int device,
              meeting meet)
      : blocks_(std::move(blocks)),
        executor_(std::move(executor)),
        device_(device),
        meet_(std::move(meet)) {}

  /// Compares shapes; returns how many ranks share this rank's device.
  [[nodiscard]] static result<std::uint64_t> agree(local_rendezvous& met,
                                                   const peer_memory_process& self,
                                                   const peer_memory_shape& shape) {
    cudaDeviceProp properties{};
    auto asked = cuda_result(cudaGetDeviceProperties(&properties, self.device),
                             "cudaGetDeviceProperties", std::to_string(self.device));
    if (!asked) return asked.error();
    detail::peer_identity own{.window_bytes = shape.window_bytes,
                              .signals = shape.signals,
                              .counter_start = shape.counter_start,
                              .allocation = static_cast<std::uint64_t>(shape.allocation)};
    std::memcpy(own.device, &properties.uuid, sizeof own.device);
    auto all = met.exchange(std::as_bytes(std::span(&own, 1)), -1, self.timeout_ns);
    if (!all) return all.error();
    std::uint64_t sharers = 0;
    for (std::size_t r = 0; r < all->size(); ++r) {
      detail::peer_identity theirs;
      const std::vector<std::byte>& bytes = (*all)[r].bytes;
      const bool whole = bytes.size() == sizeof theirs;
      if (whole) std::memcpy(&theirs, bytes.data(), sizeof theirs);
      const auto differs = [&](const char* what, std::uint64_t mine, std::uint64_t other) {
        return failure{errc::mismatch, "peer_memory::connect",
                       "rank " + std::to_string(r) + " has " + what + " " + std::to_string(other) +
                           ", this rank " + std::to_string(mine)};
      };
      if (!whole) return differs("an identity of size", sizeof theirs, bytes.size());
      if (theirs.window_bytes != own.window_bytes) {
        return differs("window_bytes", own.window_bytes, theirs.window_bytes);
      }
      if (theirs.signals != own.signals) return differs("signals", own.signals, theirs.signals);
      if (theirs.counter_start != own.counter_start) {
        return differs("counter_start", own.counter_start, theirs.counter_start);
      }
      if (theirs.allocation != own.allocation) {
        return differs("allocation", own.allocation, theirs.allocation);
      }
      sharers += std::memcmp(theirs.device, own.device, sizeof own.device) == 0 ? 1 : 0;
    }
    return sharers;
  }

  /// Gives the own block to all processes and maps theirs.
  [[nodiscard]] static result<void> trade(local_rendezvous& met, peer_mapping& blocks,
                                          const peer_memory_process& self) {
    const bool ipc = blocks.kind() == peer_allocation::runtime;
    cudaIpcMemHandle_t handle{};
    owned_descriptor descriptor;
    if (ipc && self.ranks > 1) {
      auto exported = blocks.export_ipc(self.rank);
      if (!exported) return exported.error();
      handle = *exported;
    } else if (self.ranks > 1) {
      auto exported = blocks.export_descriptor(self.rank);
      if (!exported) return exported.error();
      descriptor = owned_descriptor(*exported);
    }
    auto all =
        met.exchange(std::as_bytes(std::span(&handle, 1)), descriptor.get(), self.timeout_ns);
    if (!all) return all.error();
    for (std::int32_t r = 0; r < self.ranks; ++r) {
      if (r == self.rank) continue;
      const rank_offer& offer = (*all)[static_cast<std::size_t>(r)];
      if (ipc)
        std::memcpy(&handle, offer.bytes.data(), std::min(sizeof handle, offer.bytes.size()));
      auto mapped =
          ipc ? blocks.import_ipc(r, handle) : blocks.import_descriptor(r, offer.descriptor.get());
      if (!mapped) return mapped;
    }
    return {};
  }

  /// Once all blocks are mapped: tables, counters, the fault word.
  [[nodiscard]] result<void> place(std::int32_t rank, std::int32_t ranks,
                                   const peer_memory_shape& shape) {
    at_ = {.own = blocks_->block_of(rank),
           .first = blocks_->block_of(0),
           .table = nullptr,
           .stride = blocks_->stride(),
           .window = shape.window_offset(),
           .window_bytes = shape.window_bytes,
           .failed = nullptr,
           .signal_count = shape.signals,
           .channels = shape.channels,
           .rank = rank,
           .ranks = ranks};
    auto failed = executor_.allocate_shared(sizeof(std::uint64_t));
    if (!failed) return failed.error();
    at_.failed = reinterpret_cast<std::uint64_t*>(*failed);
    const std::vector<std::uint64_t> start(shape.signals, shape.counter_start);
    auto written = executor_.write(at_.own, reinterpret_cast<const std::byte*>(start.data()),
                                   start.size() * sizeof(std::uint64_t));
    if (!written || blocks_->stride() != 0) return written;
    std::vector<std::byte*> table;
    for (std::int32_t r = 0; r < ranks; ++r) table.push_back(blocks_->block_of(r));
    auto memory = executor_.allocate(table.size() * sizeof(std::byte*));
    if (!memory) return memory.error();
    table_ = *memory;
    at_.table = reinterpret_cast<std::byte* const*>(table_);
    return executor_.write(table_, reinterpret_cast<const std::byte*>(table.data()),
                           table.size() * sizeof(std::byte*));
  }

  std::shared_ptr<peer_mapping> blocks_;
  cuda_executor executor_;
  int device_;
  meeting meet_;
  peer_memory_view::places at_{};
  std::byte* table_ = nullptr;
  bool closes_together_ = false;
};

static_assert(check_transport<peer_memory>());

namespace detail {

/// Loads, stores and reductions of `from` reach `to`.
[[nodiscard]] inline result<void> expect_peer_access(int from, int to) {
  if (from == to) return {};
  for (const auto& [attribute, what] :
       {std::pair{cudaDevP2PAttrAccessSupported, "peer access"},
        std::pair{cudaDevP2PAttrNativeAtomicSupported, "native atomics (NVLink)"}}) {
    int value = 0;
    auto asked = cuda_result(cudaDeviceGetP2PAttribute(&value, attribute, from, to),
                             "cudaDeviceGetP2PAttribute");
    if (!asked) return asked;
    if (value == 0) {
      return failure{errc::unsupported, "peer_memory",
                     "device " + std::to_string(from) + " has no " + what + " to device " +
                         std::to_string(to) + "; use another wire between them"};
    }
  }
  return {};
}

}  // namespace detail

/// All ranks of one process: one GPU each, or several on one.
///
/// Ranks that share a GPU run their kernels side by side on it; calls that name no stream use
/// `cudaStreamPerThread` there, since kernels of different ranks wait for each other.
class peer_memory_world {
 public:
  using rank_type = peer_memory;

  /// @param devices  of each rank
  /// @par Errors     `invalid_argument`; `unsupported` naming two devices without peer access;
  ///                 `capacity` with both numbers when the blocks of a device's kernels cannot be
  ///                 resident at once (INV-9); CUDA's
  [[nodiscard]] static result<std::unique_ptr<peer_memory_world>> create(
      const std::vector<int>& devices, const peer_memory_shape& shape) {
    if (devices.empty()) {
      return failure{errc::invalid_argument, "peer_memory_world::create",
                     "at least 1 rank is needed"};
    }
    const auto ranks = static_cast<std::int32_t>(devices.size());
    std::vector<int> distinct = devices;
    std::sort(distinct.begin(), distinct.end());
    distinct.erase(std::unique(distinct.begin(), distinct.end()), distinct.end());
    std::unique_ptr<peer_memory_world> world(new peer_memory_world(ranks));
    std::vector<cuda_executor> executors;
    for (const int device : devices) {
      const auto sharers =
          static_cast<std::uint64_t>(std::count(devices.begin(), devices.end(), device));
      auto executor = detail::open_peer_executor(device, sharers, shape);
      if (!executor) return executor.error();
      executors.push_back(std::move(*executor));
    }
    for (const int from : distinct) {
      for (const int to : distinct) {
        if (auto reached = detail::expect_peer_access(from, to); !reached) return reached.error();
      }
    }
    auto blocks = peer_mapping::create(ranks, shape.block_bytes(), distinct, shape.allocation);
    if (!blocks) return blocks.error();
    const std::shared_ptr<peer_mapping> shared = std::move(*blocks);
    for (std::int32_t r = 0; r < ranks; ++r) {
      const auto made = shared->allocate(r, devices[static_cast<std::size_t>(r)]);
      if (!made) return made.error();
    }
    for (std::int32_t r = 0; r < ranks; ++r) {
      const auto index = static_cast<std::size_t>(r);
      rank_barrier& meeting = world->meeting_;
      world->ranks_.push_back(std::unique_ptr<peer_memory>(
          new peer_memory(shared, std::move(executors[index]), devices[index],
                          [&meeting, r](std::uint64_t timeout_ns) {
                            return meeting.meet(r, timeout_ns, "peer_memory::barrier");
                          })));
      const auto placed = world->ranks_.back()->place(r, ranks, shape);
      if (!placed) return placed.error();
    }
    return result<std::unique_ptr<peer_memory_world>>(std::move(world));
  }

  /// Every device is idle before the first block goes.
  ~peer_memory_world() {
    for (auto& one : ranks_) (void)one->executor().synchronize();
  }

  [[nodiscard]] peer_memory& rank(std::int32_t index) {
    return *ranks_[static_cast<std::size_t>(index)];
  }
  [[nodiscard]] std::int32_t size() const noexcept {
    return static_cast<std::int32_t>(ranks_.size());
  }

  /// Calls `function` once per rank, each in a thread of its own on the rank's device, and joins
  /// them.
  void run(const std::function<void(peer_memory&)>& function) {
    std::vector<std::thread> threads;
    for (auto& one : ranks_) {
      threads.emplace_back([&function, &one] {
        (void)cudaSetDevice(one->device());
        function(*one);
      });
    }
    for (std::thread& thread : threads) thread.join();
  }

 private:
  explicit peer_memory_world(std::int32_t ranks) : meeting_(ranks) {}

  rank_barrier meeting_;
  std::vector<std::unique_ptr<peer_memory>> ranks_;
};

}  // namespace eptransport
