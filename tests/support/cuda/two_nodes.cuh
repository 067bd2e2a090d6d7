// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Nodes of virtual ranks on one GPU or on several: peer memory inside the nodes, and peer
///        memory from which only puts are left between them.
///
/// One peer memory world has twice the signal words; each wire of a rank owns one half of them. The
/// ranks of a GPU run in one grid, as kernels that wait for each other must.
#pragma once

#include <eptransport/backends/hybrid/hybrid.hpp>
#include <eptransport/backends/peer_memory/peer_memory.cuh>
#include <eptransport/core/capabilities.hpp>
#include <eptransport/core/config.hpp>
#include <eptransport/core/cuda_device.cuh>
#include <eptransport/core/cuda_gathering.cuh>
#include <eptransport/core/memory.cuh>
#include <eptransport/core/result.hpp>
#include <eptransport/core/transport.hpp>
#include <eptransport/core/wire_costs.hpp>

#include <cuda_runtime.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

namespace eptransport::support {

/// One of the two wires of a rank, for warps.
///
/// @tparam kReach  always: loads and stores reach everybody. never: puts alone, from the window
///                 alone, each of them counted; a source that lies elsewhere fails the transport.
template <reach kReach>
class half_view {
 public:
  /// What distinguishes this wire from the other.
  struct part {
    std::uint32_t first = 0;        ///< of its words
    std::uint32_t words = 0;        ///< how many
    std::uint64_t window = 0;       ///< bytes
    std::uint64_t* sent = nullptr;  ///< messages so far, in the rank's memory
    std::uint64_t lost = 0;         ///< this message, counted from 1, never leaves; 0: none
  };

  EPT_HOST_DEVICE half_view(const peer_memory_view& view, const part& own) noexcept
      : view_(view), own_(own) {}

  [[nodiscard]] EPT_HOST_DEVICE std::int32_t rank() const noexcept { return view_.rank(); }
  [[nodiscard]] EPT_HOST_DEVICE std::int32_t size() const noexcept { return view_.size(); }
  [[nodiscard]] EPT_HOST_DEVICE static std::int32_t node(std::int32_t) noexcept { return 0; }
  [[nodiscard]] EPT_HOST_DEVICE std::uint32_t channels() const noexcept { return view_.channels(); }
  [[nodiscard]] EPT_HOST_DEVICE std::byte* local() const noexcept { return view_.local(); }
  [[nodiscard]] EPT_DEVICE std::uint64_t now_ns() const noexcept { return view_.now_ns(); }

  [[nodiscard]] EPT_HOST_DEVICE std::byte* peer_pointer(std::int32_t peer, std::uint64_t offset,
                                                        std::uint64_t bytes) const noexcept {
    if (kReach == reach::never && peer != rank()) return nullptr;
    return view_.peer_pointer(peer, offset, bytes);
  }

  template <class Group>
  EPT_DEVICE op_status put(const Group& group, std::uint32_t channel, const put_request& request,
                           std::uint64_t deadline_ns) const noexcept {
    put_request mine = request;
    mine.signal = word(request.signal);
    if constexpr (kReach == reach::never) {
      if (!registered(request)) mine.peer = -1;  // which the wire refuses
      if (loses(group)) return op_status::ok;
    }
    return view_.put(group, channel, mine, deadline_ns);
  }

  template <class Group>
  EPT_DEVICE op_status signal(const Group& group, std::uint32_t channel, std::int32_t peer,
                              std::uint32_t signal, std::uint64_t deadline_ns) const noexcept {
    if constexpr (kReach == reach::never) {
      if (loses(group)) return op_status::ok;
    }
    return view_.signal(group, channel, peer, word(signal), deadline_ns);
  }

  [[nodiscard]] EPT_DEVICE std::uint64_t read_signal(std::uint32_t signal) const noexcept {
    return view_.read_signal(own_.first + signal);
  }

  template <class Group>
  EPT_DEVICE op_status wait_signal(const Group& group, std::uint32_t signal, std::uint64_t at_least,
                                   std::uint64_t deadline_ns) const noexcept {
    return view_.wait_signal(group, word(signal), at_least, deadline_ns);
  }

  template <class Group>
  EPT_DEVICE op_status flush(const Group& group, std::uint32_t channel,
                             std::uint64_t deadline_ns) const noexcept {
    return view_.flush(group, channel, deadline_ns);
  }

  template <class Group>
  EPT_DEVICE void submit(const Group& group, std::uint32_t channel) const noexcept {
    view_.submit(group, channel);
  }

 private:
  /// A word that this wire does not have is one that no wire has.
  [[nodiscard]] EPT_HOST_DEVICE std::uint32_t word(std::uint32_t signal) const noexcept {
    if (signal == no_signal) return no_signal;
    return signal < own_.words ? own_.first + signal : no_signal - 1;
  }
  [[nodiscard]] EPT_DEVICE bool registered(const put_request& r) const noexcept {
    if (r.bytes == 0) return true;
    const auto from = static_cast<std::uint64_t>(r.src - local());
    return from <= own_.window && r.bytes <= own_.window - from;
  }
  template <class Group>
  [[nodiscard]] EPT_DEVICE bool loses(const Group& group) const noexcept {
    std::uint64_t number = 0;
    if (group.thread() == 0) number = device_memory::fetch_add(own_.sent, 1) + 1;
    number = static_cast<std::uint64_t>(group.first(static_cast<std::int64_t>(number)));
    return number == own_.lost;
  }

  peer_memory_view view_;
  part own_;
};

/// What both wires of a rank are ends of.
struct node_member {
  peer_memory& wire;
  cuda_virtual_executor executor;
  std::uint32_t words;  ///< of each wire
  std::uint64_t* sent;  ///< put-only wire: messages of this rank
  std::uint64_t lost;   ///< put-only wire: see `half_view`
};

/// One rank's end of one of its wires.
///
/// @par Threads  The rank's own host thread.
template <reach kReach>
class half_wire {
 public:
  using transport_concept = transport_tag;
  using view_type = half_view<kReach>;
  using executor_type = cuda_virtual_executor;
  static constexpr capabilities caps{.peer_reach = kReach,
                                     .put_order = ordering::none,
                                     .add = signal_add::any,
                                     .needs_registered_source = kReach == reach::never,
                                     .charge = wires::nvlink.charge()};

  explicit half_wire(node_member& member) noexcept : member_(member) {}

  [[nodiscard]] view_type view() const noexcept {
    return {member_.wire.view(),
            {.first = kReach == reach::always ? 0 : member_.words,
             .words = member_.words,
             .window = member_.wire.window().size(),
             .sent = member_.sent,
             .lost = member_.lost}};
  }
  [[nodiscard]] executor_type& executor() noexcept { return member_.executor; }
  [[nodiscard]] std::span<std::byte> window() const noexcept { return member_.wire.window(); }
  [[nodiscard]] std::uint32_t signals() const noexcept { return member_.words; }
  [[nodiscard]] result<void> barrier(std::uint64_t timeout_ns) {
    return member_.wire.barrier(timeout_ns);
  }
  [[nodiscard]] result<void> fault() const { return member_.wire.fault(); }

 private:
  node_member& member_;
};

using inner_wire = half_wire<reach::always>;
using outer_wire = half_wire<reach::never>;
using node_pair = hybrid<inner_wire, outer_wire>;

/// A call that is larger than any other: afterwards a gathering has memory for all.
struct large_call {
  std::uint32_t filler[2048];
  [[nodiscard]] EPT_HOST_DEVICE worker_words* words() const { return nullptr; }
  template <class W>
  EPT_HOST_DEVICE void operator()(const W&) const {}
};

/// What a world is made of.
struct node_world_options {
  std::vector<int> devices;  ///< GPU of each rank, ascending from 0
  std::vector<int> nodes;    ///< node of each rank
  std::uint64_t window_bytes = 0;
  std::uint32_t signals = 0;
  std::uint32_t channels = 1;
  std::uint64_t counter_start = 0;
  std::uint32_t concurrent = 1;
  std::uint64_t patience_ns = 10'000'000'000;
  int losing_rank = -1;    ///< whose put-only wire loses
  std::uint64_t lost = 0;  ///< this message
};

/// All ranks.
///
/// @tparam Rank  `node_pair`, or `inner_wire`: load and store everywhere, the path without relays
template <class Rank>
class node_world {
 public:
  using rank_type = Rank;

  /// @par Errors  As `peer_memory_world::create` and `hybrid::create`
  [[nodiscard]] static result<std::unique_ptr<node_world>> create(const node_world_options& o) {
    std::unique_ptr<node_world> world(new node_world);
    auto map = node_map::from_numbers(o.nodes);
    if (!map) return map.error();
    auto wires = peer_memory_world::create(o.devices, {.window_bytes = o.window_bytes,
                                                       .signals = 2 * o.signals,
                                                       .channels = o.channels,
                                                       .counter_start = o.counter_start,
                                                       .blocks = 1,
                                                       .concurrent = o.concurrent});
    if (!wires) return wires.error();
    world->wires_ = std::move(*wires);
    for (int device = 0; device <= o.devices.back(); ++device) {
      if (auto made = world->open(device, o); !made) return made.error();
    }
    for (std::size_t r = 0; r < o.devices.size(); ++r) {
      if (auto made = world->join(static_cast<std::int32_t>(r), o, *map); !made) {
        return made.error();
      }
    }
    if (auto warm = world->warm_up(); !warm) return warm.error();
    return result<std::unique_ptr<node_world>>(std::move(world));
  }

  ~node_world() {
    for (auto& one : members_) {
      (void)one->executor.synchronize();
      one->executor.release(reinterpret_cast<std::byte*>(one->sent));
    }
  }
  node_world(const node_world&) = delete;
  node_world& operator=(const node_world&) = delete;

  [[nodiscard]] Rank& rank(std::int32_t index) { return *ranks_[static_cast<std::size_t>(index)]; }

  /// Calls `function` once per rank, each in a thread of its own on the rank's device, and joins.
  void run(const std::function<void(Rank&)>& function) {
    std::vector<std::thread> threads;
    for (std::size_t r = 0; r < ranks_.size(); ++r) {
      threads.emplace_back([this, r, &function] {
        (void)cudaSetDevice(members_[r]->wire.device());
        function(*ranks_[r]);
      });
    }
    for (std::thread& thread : threads) thread.join();
  }

  void time_grids() {
    for (site& one : sites_) one.gathering->time_grids();
  }
  /// Of the first GPU. With several, the grids of the others begin when their ranks' threads do.
  [[nodiscard]] result<double> last_grid_ns() { return sites_.front().gathering->last_grid_ns(); }

  /// What the rank's put-only wire was given so far. No kernel runs.
  [[nodiscard]] result<std::uint64_t> messages(std::int32_t rank) {
    node_member& member = *members_[static_cast<std::size_t>(rank)];
    std::uint64_t count = 0;
    auto read = member.executor.read(reinterpret_cast<std::byte*>(&count),
                                     reinterpret_cast<const std::byte*>(member.sent), sizeof count);
    if (!read) return read.error();
    return count;
  }

 private:
  /// A GPU and where its ranks meet.
  struct site {
    std::unique_ptr<detail::cuda_device> device;
    std::unique_ptr<cuda_gathering> gathering;
    std::int32_t joined = 0;
  };

  node_world() = default;

  [[nodiscard]] result<void> open(int device, const node_world_options& o) {
    auto opened = detail::cuda_device::open(device);
    if (!opened) return opened.error();
    const auto ranks = std::count(o.devices.begin(), o.devices.end(), device);
    const auto kernels = static_cast<std::uint64_t>(ranks) * o.concurrent;
    const auto blocks =
        static_cast<std::uint32_t>(std::clamp<std::uint64_t>(opened->sms() / kernels, 1, 16));
    if (auto fits = opened->expect_room(kernels * blocks, warps); !fits) return fits.error();
    site& here = sites_.emplace_back();
    here.device = std::make_unique<detail::cuda_device>(std::move(*opened));
    here.gathering =
        std::make_unique<cuda_gathering>(*here.device, static_cast<std::int32_t>(ranks), blocks,
                                         warps, std::chrono::nanoseconds(o.patience_ns));
    return {};
  }

  [[nodiscard]] result<void> join(std::int32_t rank, const node_world_options& o,
                                  const node_map& map) {
    const int device = o.devices[static_cast<std::size_t>(rank)];
    auto own = detail::cuda_device::open(device);
    if (!own) return own.error();
    site& here = sites_[static_cast<std::size_t>(device)];
    cuda_virtual_executor executor(std::move(*own), *here.gathering, here.joined++, o.concurrent);
    auto sent = executor.allocate(sizeof(std::uint64_t));
    if (!sent) return sent.error();
    members_.push_back(std::unique_ptr<node_member>(new node_member{
        wires_->rank(rank), std::move(executor), o.signals, reinterpret_cast<std::uint64_t*>(*sent),
        rank == o.losing_rank ? o.lost : std::uint64_t{0}}));
    inner_.push_back(std::make_unique<inner_wire>(*members_.back()));
    if constexpr (std::is_same_v<Rank, inner_wire>) {
      ranks_.push_back(std::make_unique<inner_wire>(*members_.back()));
    } else {
      outer_.push_back(std::make_unique<outer_wire>(*members_.back()));
      auto made = Rank::create(*inner_.back(), *outer_.back(), map);
      if (!made) return made.error();
      ranks_.push_back(std::move(*made));
    }
    return {};
  }

  /// A gathering makes room for a call when it is first launched; a GPU whose kernels wait for
  /// those of another must not need memory then.
  [[nodiscard]] result<void> warm_up() {
    constexpr int rounds = 16;  // more than a gathering has tables
    std::vector<std::optional<failure>> wrong(ranks_.size());
    run([&](Rank& own) {
      auto& why = wrong[static_cast<std::size_t>(own.view().rank())];
      for (int i = 0; i < rounds && !why; ++i) {
        const auto launched = own.executor().launch(large_call{}, 0, nullptr);
        if (!launched) why = launched.error();
      }
      const auto ended = own.executor().synchronize();
      if (!ended && !why) why = ended.error();
    });
    for (const auto& why : wrong) {
      if (why) return *why;
    }
    return {};
  }

  static constexpr std::uint32_t warps = 8;

  std::unique_ptr<peer_memory_world> wires_;
  std::vector<site> sites_;
  std::vector<std::unique_ptr<node_member>> members_;
  std::vector<std::unique_ptr<inner_wire>> inner_;
  std::vector<std::unique_ptr<outer_wire>> outer_;
  std::vector<std::unique_ptr<Rank>> ranks_;
};

static_assert(check_transport<inner_wire>());
static_assert(check_transport<outer_wire>());
static_assert(check_transport<node_pair>());

}  // namespace eptransport::support
