// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The GPU-initiated transport on one GPU: its virtual ranks' kernels post to NICs that a
///        CPU thread or blocks of the GPU play.
///
/// | `gpu_nic` | windows, rings, counters | who delivers                                      |
/// |-----------|--------------------------|---------------------------------------------------|
/// | `thread`  | pinned host memory       | the CPU's emulator: strict, and unordered for EFA |
/// | `block`   | GPU memory               | a block per rank in each grid, in order           |
#pragma once

#include <eptransport/backends/gdaki/detail/cabling.hpp>
#include <eptransport/backends/gdaki/detail/emulated.hpp>
#include <eptransport/backends/gdaki/detail/fault_text.hpp>
#include <eptransport/backends/gdaki/view.hpp>
#include <eptransport/backends/gdaki/waiter.cuh>
#include <eptransport/backends/gdaki/wires.hpp>
#include <eptransport/core/config.hpp>
#include <eptransport/core/result.hpp>
#include <eptransport/core/transport.hpp>
#include <eptransport/gdaki/emulator/block_nic.cuh>
#include <eptransport/gdaki/emulator/network.hpp>
#include <eptransport/gdaki/emulator/runner.hpp>
// check: includes virtual ranks meet as those of the simulator do
#include <eptransport/core/cuda_gathering.cuh>
// check: includes the GPU's worker and device lie beside the kernels they run
#include <eptransport/core/cuda_device.cuh>

#include <algorithm>
#include <chrono>
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

/// What plays the NICs.
enum class gpu_nic { thread, block };

/// What a world on a GPU is made of.
struct cuda_gdaki_options {
  /// `drive`, `deaths` and `first_index` (with blocks) do not apply, faults only with a thread.
  gdaki_options base = {};
  gpu_nic nic = gpu_nic::thread;
  int device = 0;
  std::uint32_t blocks = 0;      ///< per rank and kernel; 0: at most 16, as many as fit
  std::uint32_t warps = 8;       ///< per block; each is a worker
  std::uint32_t concurrent = 1;  ///< kernels of one rank that may run at once (lanes, streams)
  /// How long `launch` waits for ranks that have not come before it starts without them.
  std::uint64_t patience_ns = 10'000'000'000;
};

namespace gdaki_detail {

/// All ranks' grids in one, and blocks behind them that play NICs; without such blocks a plain one.
template <class Call, bool kEfa>
EPT_KERNEL __launch_bounds__(detail::max_block_threads) void run_beside_nics(
    std::byte* table, std::uint32_t ranks, const gdaki::emulator::block_network* net,
    std::uint32_t nics) {
  static_assert(std::is_trivially_copyable_v<Call> && sizeof(Call) % 4 == 0);
  __shared__ alignas(16) std::uint32_t words[sizeof(Call) / 4];
  const std::uint32_t working = gridDim.x - nics;
  auto* gone = reinterpret_cast<std::uint64_t*>(table + detail::table_gone(ranks, sizeof(Call)));
  if (blockIdx.x >= working) {
    gdaki::emulator::block_nic<kEfa>::serve(*net, blockIdx.x - working, nics, gone, working);
    return;
  }
  const std::uint32_t blocks = working / ranks;
  const std::uint32_t rank = blockIdx.x / blocks;
  if (table[rank] != std::byte{0}) {
    const auto* call = reinterpret_cast<const std::uint32_t*>(table + detail::table_calls(ranks) +
                                                              rank * sizeof(Call));
    for (std::uint32_t i = threadIdx.x; i < sizeof(Call) / 4; i += blockDim.x) words[i] = call[i];
    __syncthreads();
    const Call& mine = *reinterpret_cast<const Call*>(words);
    mine(cuda_warp(blockIdx.x % blocks, blocks, mine.words()));
  }
  __syncthreads();
  // Pairs with the NICs' acquire: what this block has rung for is seen before it is gone.
  if (threadIdx.x == 0) (void)device_memory::fetch_add(gone, 1);
}

template <class Call, bool kEfa>
inline const detail::kernel_entry run_beside_nics_entry{
    reinterpret_cast<const void*>(&run_beside_nics<Call, kEfa>)};

/// Models `Executor` for one virtual rank.
///
/// @par Threads  The rank's own host thread. `launch` waits for the other ranks' threads.
template <bool kEfa>
class cuda_nic_executor {
 public:
  using stream_type = cudaStream_t;
  using worker_type = cuda_warp;
  static constexpr bool synchronous = false;

  /// @param concurrent  launches of one rank that are resident at once
  cuda_nic_executor(detail::cuda_device&& device, cuda_gathering& gathering, std::int32_t rank,
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
    return gathering_->launch(rank_, {.kernel = run_beside_nics_entry<Call, kEfa>.kernel(),
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

}  // namespace gdaki_detail

template <class Wire>
class cuda_gdaki_world;

/// One virtual rank; lives in its world.
///
/// @par Threads  The rank's own host thread.
template <class Wire>
class cuda_gdaki {
 public:
  using transport_concept = transport_tag;
  using view_type = gdaki_view<Wire, gdaki_detail::device_waiter>;
  using executor_type = gdaki_detail::cuda_nic_executor<gdaki_detail::cabling<Wire>::is_efa>;
  static constexpr capabilities caps = Wire::caps;

  cuda_gdaki(cuda_gdaki_world<Wire>& world, detail::cuda_device&& device, std::uint32_t rank)
      : world_(world),
        rank_(rank),
        executor_(std::move(device), world.gathering(), static_cast<std::int32_t>(rank),
                  world.options().concurrent) {}
  cuda_gdaki(const cuda_gdaki&) = delete;
  cuda_gdaki& operator=(const cuda_gdaki&) = delete;

  [[nodiscard]] view_type view() const noexcept { return {world_.tables_of(rank_), {}}; }
  [[nodiscard]] executor_type& executor() noexcept { return executor_; }
  [[nodiscard]] std::span<std::byte> window() const noexcept { return world_.window_of(rank_); }
  [[nodiscard]] std::uint32_t signals() const noexcept { return world_.options().base.signals; }
  /// Names a rank that did not come, when it times out.
  [[nodiscard]] result<void> barrier(std::uint64_t timeout_ns) {
    return world_.gathering().barrier(static_cast<std::int32_t>(rank_), timeout_ns);
  }
  /// Names queue, peer and status.
  [[nodiscard]] result<void> fault() const { return world_.fault_of(rank_); }

 private:
  cuda_gdaki_world<Wire>& world_;
  std::uint32_t rank_;
  executor_type executor_;
};

/// All virtual ranks of one GPU and their NICs.
template <class Wire>
class cuda_gdaki_world {
 public:
  using rank_type = cuda_gdaki<Wire>;
  using cabled = gdaki_detail::cabling<Wire>;

  /// @par Errors  as `gdaki_world::create`; `capacity` with both numbers when the blocks of all
  ///              ranks and NICs cannot be resident at once (INV-9); CUDA's
  [[nodiscard]] static result<std::unique_ptr<cuda_gdaki_world>> create(
      const cuda_gdaki_options& options);

  ~cuda_gdaki_world() {
    (void)device_.synchronize();
    runner_.reset();
  }
  cuda_gdaki_world(const cuda_gdaki_world&) = delete;
  cuda_gdaki_world& operator=(const cuda_gdaki_world&) = delete;

  [[nodiscard]] const cuda_gdaki_options& options() const noexcept { return options_; }
  [[nodiscard]] rank_type& rank(int index) { return *ranks_[static_cast<std::size_t>(index)]; }
  /// Blocks of each rank in a launch without a limit.
  [[nodiscard]] std::uint32_t blocks() const noexcept { return gathering_.blocks(0); }

  /// Measures each grid from now on, and how long the last one ran; see `cuda_gathering`.
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

  /// Entries that the NICs did not understand. Between runs.
  [[nodiscard]] result<std::uint64_t> findings();

  // Used by the ranks.
  [[nodiscard]] cuda_gathering& gathering() noexcept { return gathering_; }
  [[nodiscard]] gdaki_detail::tables<Wire> tables_of(std::uint32_t rank) const {
    gdaki_detail::tables<Wire> tables = cables_->tables_of(rank);
    tables.nodes = nodes_;
    return tables;
  }
  [[nodiscard]] std::span<std::byte> window_of(std::uint32_t rank) const noexcept {
    return {places_[rank].window, static_cast<std::size_t>(options_.base.window_bytes)};
  }
  [[nodiscard]] result<void> fault_of(std::uint32_t rank);

 private:
  cuda_gdaki_world(detail::cuda_device&& device, const cuda_gdaki_options& options,
                   std::uint32_t blocks)
      : options_(options),
        device_(std::move(device)),
        gathering_(device_, options.base.ranks, blocks, options.warps,
                   std::chrono::nanoseconds(options.patience_ns)),
        net_(options.base.schedule) {
    for (int rank = 0; options_.base.nodes.size() < static_cast<std::size_t>(options_.base.ranks);
         ++rank) {
      options_.base.nodes.push_back(rank / 8);
    }
  }

  [[nodiscard]] result<void> place();
  [[nodiscard]] result<void> start_blocks();
  [[nodiscard]] result<std::byte*> memory(std::uint64_t bytes, bool pinned);
  template <class Value>
  [[nodiscard]] result<Value> fetch(const Value* from) {
    Value value{};
    auto read = device_.copy(reinterpret_cast<std::byte*>(&value),
                             reinterpret_cast<const std::byte*>(from), sizeof(value));
    if (!read) return read.error();
    return value;
  }

  cuda_gdaki_options options_;
  detail::cuda_device device_;
  cuda_gathering gathering_;
  std::vector<detail::cuda_memory> slabs_;
  std::vector<gdaki_detail::rank_place> places_;
  std::unique_ptr<cabled> cables_;
  gdaki::emulator::network net_;
  std::int32_t* nodes_ = nullptr;  ///< pinned: the host asks a view as well
  std::uint64_t* device_findings_ = nullptr;
  std::vector<std::unique_ptr<rank_type>> ranks_;
  std::unique_ptr<gdaki::emulator::runner> runner_;  ///< last made, first stopped
};

template <class Wire>
result<std::unique_ptr<cuda_gdaki_world<Wire>>> cuda_gdaki_world<Wire>::create(
    const cuda_gdaki_options& asked) {
  cuda_gdaki_options options = asked;
  const bool blocks_play = options.nic == gpu_nic::block;
  options.base.home = blocks_play ? gdaki::ring_home::device : gdaki::ring_home::host;
  if (blocks_play) options.base.first_index = 0;
  if (auto fits = cabled::check(options.base); !fits) return fits.error();
  auto device = detail::cuda_device::open(options.device);
  if (!device) return device.error();
  const auto ranks = static_cast<std::uint64_t>(options.base.ranks);
  const std::uint64_t kernels = ranks * options.concurrent;
  const std::uint64_t nics = blocks_play ? kernels : 0;
  const std::uint64_t room = device->sms() > nics ? device->sms() - nics : 1;
  const std::uint32_t blocks =
      options.blocks != 0
          ? options.blocks
          : static_cast<std::uint32_t>(std::clamp<std::uint64_t>(room / kernels, 1, 16));
  if (auto fits = device->expect_room(kernels * blocks + nics, options.warps); !fits) {
    return fits.error();
  }
  std::unique_ptr<cuda_gdaki_world> world(
      new cuda_gdaki_world(std::move(*device), options, blocks));
  if (auto placed = world->place(); !placed) return placed.error();
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    auto own = detail::cuda_device::open(options.device);
    if (!own) return own.error();
    world->ranks_.push_back(std::make_unique<rank_type>(*world, std::move(*own), rank));
  }
  return result<std::unique_ptr<cuda_gdaki_world>>(std::move(world));
}

template <class Wire>
result<std::byte*> cuda_gdaki_world<Wire>::memory(std::uint64_t bytes, bool pinned) {
  auto made = pinned ? device_.allocate_shared(bytes) : device_.allocate(bytes);
  if (made) slabs_.emplace_back(*made);
  return made;
}

/// Everything in its memory, filled; then the NICs start.
template <class Wire>
result<void> cuda_gdaki_world<Wire>::place() {
  const gdaki_options& base = options_.base;
  const bool pinned = options_.nic == gpu_nic::thread;
  const auto ranks = static_cast<std::uint32_t>(base.ranks);
  cables_ = std::make_unique<cabled>(options_.base, places_);
  auto nodes = memory(std::uint64_t{ranks} * sizeof(std::int32_t), true);
  if (!nodes) return nodes.error();
  nodes_ = reinterpret_cast<std::int32_t*>(*nodes);
  for (std::uint32_t rank = 0; rank < ranks; ++rank) nodes_[rank] = base.nodes[rank];
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    auto window = memory(cabled::window_bytes(base), pinned);
    if (!window) return window.error();
    auto nic = memory(cabled::nic_bytes(base), pinned);
    if (!nic) return nic.error();
    auto own = memory(cabled::own_bytes(base), false);
    if (!own) return own.error();
    places_.push_back({*window, *nic, *own});
  }
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    const std::vector<std::byte> nic = cables_->nic_image(rank);
    const std::vector<std::byte> own = cables_->own_image(rank);
    if (auto done = device_.copy(places_[rank].nic, nic.data(), nic.size()); !done) return done;
    if (auto done = device_.copy(places_[rank].own, own.data(), own.size()); !done) return done;
  }
  gdaki::send_queue_attributes any;
  any.ring = cables_->ring(0, 0);
  any.slots = base.queue_slots;
  any.ring_every = base.ring_every;
  any.record = cables_->record(0, 0);
  any.doorbell = cables_->doorbell(0, 0);
  if (auto sound = Wire::queue::check(any); !sound) return sound;
  if (!pinned) return start_blocks();
  gdaki_detail::plug_in<Wire>(net_, base, *cables_, places_);
  runner_ = std::make_unique<gdaki::emulator::runner>(net_);
  return {};
}

/// The description of all NICs, in GPU memory, for the blocks that play them.
template <class Wire>
result<void> cuda_gdaki_world<Wire>::start_blocks() {
  using gdaki_detail::names;
  const gdaki_options& base = options_.base;
  const auto ranks = static_cast<std::uint32_t>(base.ranks);
  const std::uint32_t each = cabled::queues(base);
  std::vector<gdaki::emulator::block_memory> memories;
  std::vector<gdaki::emulator::block_queue> queues;
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    memories.push_back({places_[rank].window, cabled::window_bytes(base), cables_->words(rank),
                        base.signals, names::window_lkey(rank), names::window_rkey(rank),
                        names::words_rkey(rank)});
  }
  for (std::uint32_t q = 0; q < each; ++q) {  // block r of R serves rank r
    for (std::uint32_t rank = 0; rank < ranks; ++rank) {
      queues.push_back({cables_->ring(rank, q), cables_->doorbell(rank, q),
                        cables_->completions(rank, q), base.queue_slots, cables_->qpn(q), rank,
                        q % ranks});
    }
  }
  if (each > gdaki::emulator::block_nic<cabled::is_efa>::most_queues) {
    return failure{errc::capacity, "cuda_gdaki_world::create",
                   std::to_string(each) + " queues of a rank, a block that plays its NIC serves " +
                       std::to_string(gdaki::emulator::block_nic<cabled::is_efa>::most_queues)};
  }
  const std::uint64_t memory_bytes = memories.size() * sizeof(memories[0]);
  const std::uint64_t queue_bytes = queues.size() * sizeof(queues[0]);
  auto first = memory(memory_bytes, false);
  if (!first) return first.error();
  auto second = memory(queue_bytes, false);
  if (!second) return second.error();
  auto third = memory(256 + sizeof(gdaki::emulator::block_network), false);
  if (!third) return third.error();
  device_findings_ = reinterpret_cast<std::uint64_t*>(*third);
  const gdaki::emulator::block_network net{
      reinterpret_cast<const gdaki::emulator::block_memory*>(*first),
      reinterpret_cast<gdaki::emulator::block_queue*>(*second),
      ranks,
      static_cast<std::uint32_t>(queues.size()),
      names::first_handle,
      names::first_qpn,
      cables_->signal_qpn(0),
      names::qkey,
      device_findings_};
  const auto bytes_of = [](const auto* p) { return reinterpret_cast<const std::byte*>(p); };
  if (auto r = device_.copy(*first, bytes_of(memories.data()), memory_bytes); !r) return r;
  if (auto r = device_.copy(*second, bytes_of(queues.data()), queue_bytes); !r) return r;
  if (auto r = device_.copy(*third + 256, bytes_of(&net), sizeof(net)); !r) return r;
  gathering_.attend({ranks, *third + 256});
  return {};
}

template <class Wire>
result<std::uint64_t> cuda_gdaki_world<Wire>::findings() {
  if (device_findings_ != nullptr) return fetch(device_findings_);
  runner_.reset();
  const std::uint64_t found = net_.findings().size();
  runner_ = std::make_unique<gdaki::emulator::runner>(net_);
  return found;
}

template <class Wire>
result<void> cuda_gdaki_world<Wire>::fault_of(std::uint32_t rank) {
  const auto found = fetch(cables_->fault(rank));
  if (!found) return found.error();
  if (found->what == 0) return {};
  const auto tables = cables_->tables_of(rank);
  if (found->what == gdaki_detail::rank_fault::refused) {
    return gdaki_detail::request_failure(tables, *found);
  }
  const auto index =
      static_cast<std::uint32_t>(found->what - gdaki_detail::rank_fault::first_queue);
  const auto state = fetch(cables_->state(rank, index));
  if (!state) return state.error();
  gdaki_detail::queue_report report;
  report.channel = index / Wire::queues_per_channel(options_.base.ranks);
  report.qpn = cables_->qpn(index);
  report.fault = gdaki::unpack(state->fault, index);
  const auto peer = fetch(cables_->slot_peer(rank, index) +
                          (report.fault.index & (options_.base.queue_slots - 1)));
  if (!peer) return peer.error();
  report.peer = *peer;
  return gdaki_detail::queue_failure<Wire>(tables.rank, report);
}

static_assert(check_transport<cuda_gdaki<efa_wire>>());
static_assert(check_transport<cuda_gdaki<mlx5_wire>>());

}  // namespace eptransport
