// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The GPU-initiated transport: ranks post to the queues of NICs themselves.
///
/// Here all ranks live in one process, host threads play the GPU, and the NICs are emulated: they
/// read the very bytes that a device would (docs/gdaki.md). gdaki.cuh has the same on a GPU.
#pragma once

#include <eptransport/backends/gdaki/detail/cabling.hpp>
#include <eptransport/backends/gdaki/detail/emulated.hpp>
#include <eptransport/backends/gdaki/detail/fault_text.hpp>
#include <eptransport/backends/gdaki/detail/host_waiter.hpp>
#include <eptransport/backends/gdaki/options.hpp>
#include <eptransport/backends/gdaki/view.hpp>
#include <eptransport/backends/gdaki/wires.hpp>
#include <eptransport/core/baton.hpp>
#include <eptransport/core/config.hpp>
#include <eptransport/core/guarded_window.hpp>
#include <eptransport/core/host_executor.hpp>
#include <eptransport/core/result.hpp>
#include <eptransport/core/transport.hpp>
#include <eptransport/gdaki/emulator/network.hpp>
#include <eptransport/gdaki/emulator/runner.hpp>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <new>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace eptransport {

template <class Wire>
class gdaki_world;

/// One rank; lives in its world.
///
/// @par Threads  One host thread at a time.
template <class Wire>
class gdaki_transport {
 public:
  using transport_concept = transport_tag;
  using view_type = gdaki_view<Wire, gdaki_detail::host_waiter>;
  using executor_type = host_executor;
  static constexpr capabilities caps = Wire::caps;

  gdaki_transport(gdaki_world<Wire>& world, std::uint32_t rank, std::uint32_t workers)
      : world_(world), rank_(rank), executor_(workers, hooks()) {}
  gdaki_transport(const gdaki_transport&) = delete;
  gdaki_transport& operator=(const gdaki_transport&) = delete;

  [[nodiscard]] view_type view() const noexcept { return world_.view_of(rank_); }
  [[nodiscard]] executor_type& executor() noexcept { return executor_; }
  [[nodiscard]] std::span<std::byte> window() const noexcept { return world_.window_of(rank_); }
  [[nodiscard]] std::uint32_t signals() const noexcept { return world_.options().signals; }
  /// Names the ranks that did not come, when it times out.
  [[nodiscard]] result<void> barrier(std::uint64_t timeout_ns) {
    return world_.barrier(rank_, timeout_ns);
  }
  /// Names queue, peer and status.
  [[nodiscard]] result<void> fault() const { return world_.fault_of(rank_); }

 private:
  struct word_wish {
    const std::uint64_t* word;
    std::uint64_t at_least;
  };
  static gdaki_transport& from(void* context) noexcept {
    return *static_cast<gdaki_transport*>(context);
  }
  [[nodiscard]] baton& turns() noexcept { return *world_.turns(); }

  /// Makes the threads of a launch actors of the baton. Real threads need no hooks.
  [[nodiscard]] host_thread_hooks hooks() noexcept {
    if (world_.turns() == nullptr) return {};
    host_thread_hooks out;
    out.context = this;
    out.spawn = [](void* c, std::uint32_t n) {
      from(c).helpers_ = n;
      from(c).first_helper_ = from(c).turns().announce(n);
    };
    out.enter = [](void* c, std::uint32_t worker) {
      from(c).turns().take(from(c).first_helper_ + worker - 1);
    };
    out.leave = [](void* c) { from(c).turns().leave(); };
    out.join = [](void* c) {
      const auto over = [](void* p) {
        return from(p).turns().finished(from(p).first_helper_, from(p).helpers_);
      };
      from(c).turns().wait({over, c}, no_deadline);
    };
    out.relax.context = this;
    out.relax.function = [](void* c, const std::uint64_t* word, std::uint64_t at_least,
                            std::uint64_t deadline_ns) {
      word_wish wish{word, at_least};
      const auto reached = [](void* p) {
        const auto* w = static_cast<word_wish*>(p);
        return host_memory::load_acquire(w->word) >= w->at_least;
      };
      from(c).turns().wait({reached, &wish}, deadline_ns);
    };
    return out;
  }

  gdaki_world<Wire>& world_;
  std::uint32_t rank_;
  std::size_t first_helper_ = 0;
  std::size_t helpers_ = 0;
  executor_type executor_;  ///< last: its hooks use the rest
};

/// All ranks of one process, their NICs, and what an observer sees of them.
///
/// @par Threads  `run` from one thread at a time; the observers also from inside it.
template <class Wire>
class gdaki_world {
 public:
  using transport = gdaki_transport<Wire>;
  using view_type = typename transport::view_type;

  /// @par Errors  `invalid_argument`; `capacity` with both numbers: counters, queue pairs, handles,
  ///              slots; `out_of_memory`
  [[nodiscard]] static result<std::unique_ptr<gdaki_world>> create(const gdaki_options& options);

  ~gdaki_world() { runner_.reset(); }
  gdaki_world(const gdaki_world&) = delete;
  gdaki_world& operator=(const gdaki_world&) = delete;

  [[nodiscard]] const gdaki_options& options() const noexcept { return options_; }
  [[nodiscard]] transport& rank(int index) { return *ranks_[static_cast<std::size_t>(index)]; }

  /// Calls `function` once per rank, each in a thread of its own, and joins them. Afterwards the
  /// NICs have done all that they will do; a second ends the wait for a completion that is lost.
  void run(const std::function<void(transport&)>& function);

  /// Spends time on the clock, as a computation between two calls would. `baton` only.
  void advance(int, std::uint64_t ns) {
    if (turns_ != nullptr) turns_->advance(ns);
  }

  /// Puts of the rank to others, and their bytes.
  [[nodiscard]] std::uint64_t messages(int rank) const { return counts_of(rank).messages.load(); }
  [[nodiscard]] std::uint64_t bytes(int rank) const { return counts_of(rank).bytes.load(); }

  /// Hash of every decision under `nic_drive::baton`: the same options and functions give the same.
  /// 0 with real threads: their decisions cannot be repeated.
  [[nodiscard]] std::uint64_t trace_hash() const {
    return turns_ != nullptr ? turns_->trace_hash() * 31 + net_.trace() : 0;
  }

  /// Damaged guard zones, and rules of the formats that the emulated devices saw broken. Between
  /// runs only.
  [[nodiscard]] std::string violations();

  /// What the emulated devices did. Between runs only.
  [[nodiscard]] const gdaki::emulator::network_counts& device_counts() const {
    return net_.counts();
  }

  // Used by the ranks.
  [[nodiscard]] view_type view_of(std::uint32_t rank) const noexcept {
    return {tables_of(rank), gdaki_detail::host_waiter(*counts_[rank], turns_.get())};
  }
  [[nodiscard]] gdaki_detail::tables<Wire> tables_of(std::uint32_t rank) const noexcept {
    return cables_->tables_of(rank);
  }
  [[nodiscard]] std::span<std::byte> window_of(std::uint32_t rank) const noexcept {
    return {places_[rank].window, static_cast<std::size_t>(options_.window_bytes)};
  }
  [[nodiscard]] baton* turns() const noexcept { return turns_.get(); }
  [[nodiscard]] result<void> fault_of(std::uint32_t rank) const;
  [[nodiscard]] result<void> barrier(std::uint32_t rank, std::uint64_t timeout_ns);

 private:
  struct aligned_free {
    void operator()(std::byte* p) const noexcept { ::operator delete(p, alignment); }
  };
  using slab = std::unique_ptr<std::byte, aligned_free>;
  static constexpr std::align_val_t alignment{4096};

  explicit gdaki_world(const gdaki_options& options)
      : options_(options), net_(schedule_of(options)) {
    for (int rank = 0; options_.nodes.size() < static_cast<std::size_t>(options_.ranks); ++rank) {
      options_.nodes.push_back(rank / 8);
    }
  }
  [[nodiscard]] static gdaki::emulator::schedule_options schedule_of(const gdaki_options& o) {
    gdaki::emulator::schedule_options schedule = o.schedule;
    schedule.seed = o.seed;
    return schedule;
  }

  result<void> build();
  [[nodiscard]] std::byte* place(std::uint64_t bytes);
  void settle();
  [[nodiscard]] const gdaki_detail::put_counts& counts_of(int rank) const {
    return *counts_[static_cast<std::size_t>(rank)];
  }

  gdaki_options options_;
  std::vector<std::unique_ptr<guarded_window>> windows_;
  std::vector<slab> slabs_;
  std::vector<gdaki_detail::rank_place> places_;
  std::unique_ptr<gdaki_detail::cabling<Wire>> cables_;
  std::vector<std::unique_ptr<gdaki_detail::put_counts>> counts_;
  gdaki::emulator::network net_;
  std::unique_ptr<baton> turns_;
  std::vector<std::unique_ptr<transport>> ranks_;
  std::mutex barrier_mutex_;
  std::vector<std::uint8_t> arrived_;
  std::atomic<std::uint64_t> barrier_generation_ = 0;
  std::unique_ptr<gdaki::emulator::runner> runner_;  ///< last made, first stopped
};

}  // namespace eptransport

#include <eptransport/backends/gdaki/detail/world_impl.hpp>
