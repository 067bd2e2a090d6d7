// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Processes of one host over shared memory: windows in host memory that all of them map.
///
/// A rank's memory is one segment, | barrier count | signal words | guard | window | guard |. Each
/// rank maps the segments of its node's ranks; a put is a copy and a release add, by the caller.
/// What the bootstrap says of hosts decides who shares a node; the wire inside the nodes of a
/// hybrid is its foremost use.
#pragma once

#include <eptransport/backends/shared_memory/segment.hpp>
#include <eptransport/backends/shared_memory/view.hpp>
#include <eptransport/core/capabilities.hpp>
#include <eptransport/core/config.hpp>
#include <eptransport/core/guarded_window.hpp>
#include <eptransport/core/host_executor.hpp>
#include <eptransport/core/memory.hpp>
#include <eptransport/core/result.hpp>
#include <eptransport/core/transport.hpp>
#include <eptransport/proxy/bootstrap/bootstrap.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace eptransport {

/// Of one rank; `window_bytes` and `signals` are alike on all ranks of the job.
struct shared_memory_options {
  std::uint64_t window_bytes = 0;
  std::uint32_t signals = 0;
  std::uint32_t channels = 1;
  std::uint32_t workers = 1;        ///< host threads per launch
  std::uint64_t counter_start = 0;  ///< first value of every signal
};

/// One rank among the ranks of its node, numbered there by their order.
///
/// @par Errors   The death of any rank of the job, in whatever node, fails every wait of this rank,
///               and `fault()` names it. Memory of a dead rank stays mapped: touching it is safe.
/// @par Threads  One host thread at a time.
class shared_memory {
 public:
  using transport_concept = transport_tag;
  using view_type = shared_memory_view;
  using executor_type = host_executor;
  /// What it charges is assumed: a core's copy loop, and a cache line between two cores.
  static constexpr capabilities caps{
      .peer_reach = reach::always,
      .put_order = ordering::none,
      .add = signal_add::any,
      .charge = {.issue_ns = 100, .latency_ns = 200, .channel_bytes_per_s = 5e9}};

  /// Collective over all ranks of the job. A rank that cannot go on aborts the bootstrap.
  ///
  /// @param meeting  outlives the rank; its `places` say which ranks share a node
  /// @par Errors     `invalid_argument`; `out_of_memory` with the bytes; `mismatch` naming a rank;
  ///                 errno where memory cannot be made or opened; those of the bootstrap
  [[nodiscard]] static result<std::unique_ptr<shared_memory>> create(
      bootstrap& meeting, const shared_memory_options& options,
      std::uint64_t timeout_ns = 60'000'000'000) {
    std::unique_ptr<shared_memory> made(new shared_memory(meeting, options));
    const result<void> built = made->build(timeout_ns);
    if (!built) {
      meeting.abort(built.error().message());
      return built.error();
    }
    return result<std::unique_ptr<shared_memory>>(std::move(made));
  }

  shared_memory(const shared_memory&) = delete;
  shared_memory& operator=(const shared_memory&) = delete;
  /// Local: peers keep their own mappings.
  ~shared_memory() = default;

  [[nodiscard]] view_type view() const noexcept { return view_type(*state_); }
  [[nodiscard]] executor_type& executor() noexcept { return executor_; }
  [[nodiscard]] std::span<std::byte> window() const noexcept {
    return {state_->own().window, state_->window_bytes};
  }
  /// Keeps the windows mapped for as long as it lives.
  [[nodiscard]] std::shared_ptr<const void> window_owner() const noexcept { return segments_; }
  [[nodiscard]] std::uint32_t signals() const noexcept { return state_->signals; }

  /// Of the node's ranks, without the bootstrap. One that timed out counts as having come.
  [[nodiscard]] result<void> barrier(std::uint64_t timeout_ns) {
    if (result<void> well = fault(); !well) return well;
    shared_memory_detail::rank_state& s = *state_;
    // Pairs with the acquire in `came` of the other ranks.
    host_memory::signal_store(s.own().arrivals, ++round_);
    const std::uint64_t start = s.now_ns();
    for (std::size_t i = 0; i < ranks_.size(); ++i) {
      while (!came(i)) {
        if (s.failed()) return fault();
        if (s.now_ns() - start > timeout_ns) {
          std::vector<std::int32_t> missing;
          for (std::size_t late = i; late < ranks_.size(); ++late) {
            if (!came(late)) missing.push_back(ranks_[late]);
          }
          if (missing.empty()) return {};
          return failure{errc::timed_out, "shared_memory::barrier",
                         "did not come: " + name_ranks(missing)};
        }
        host_memory::relax();
      }
    }
    return {};
  }

  [[nodiscard]] result<void> fault() const {
    result<void> own = state_->fault.why();
    return own ? meeting_.status() : own;
  }

  /// Puts and signals to other ranks so far.
  [[nodiscard]] std::uint64_t messages() const noexcept {
    return host_memory::load_acquire(&state_->messages);
  }
  /// Bytes put to other ranks, and asked for through `peer_pointer`.
  [[nodiscard]] std::uint64_t bytes() const noexcept {
    return host_memory::load_acquire(&state_->bytes);
  }
  /// Nobody wrote beside the window.
  [[nodiscard]] bool intact() const noexcept {
    const std::byte* window = state_->own().window;
    return guarded_window::intact(window - guarded_window::guard_bytes) &&
           guarded_window::intact(window + state_->window_bytes);
  }

 private:
  static constexpr std::uint64_t page = 4096;
  static constexpr std::uint64_t words_at = 128;  ///< behind the line of the barrier's count

  shared_memory(bootstrap& meeting, const shared_memory_options& options)
      : meeting_(meeting),
        options_(options),
        state_(std::make_unique<shared_memory_detail::rank_state>()),
        executor_(options.workers) {}

  /// Of the window in every segment.
  [[nodiscard]] std::uint64_t window_at() const noexcept {
    const std::uint64_t words = words_at + std::uint64_t{options_.signals} * sizeof(std::uint64_t);
    return (words + page - 1) / page * page + guarded_window::guard_bytes;
  }

  [[nodiscard]] result<void> build(std::uint64_t timeout_ns) {
    if (options_.channels < 1 || options_.workers < 1) {
      return failure{errc::invalid_argument, "shared_memory::create",
                     std::to_string(options_.channels) + " channels and " +
                         std::to_string(options_.workers) +
                         " workers, at least 1 of each is needed"};
    }
    const std::uint64_t extra = window_at() + guarded_window::guard_bytes;
    constexpr auto most = static_cast<std::uint64_t>(std::numeric_limits<std::ptrdiff_t>::max());
    if (options_.window_bytes > most - extra) {
      return failure{errc::out_of_memory, "shared_memory::create",
                     "a window of " + std::to_string(options_.window_bytes) + " bytes"};
    }
    auto own = shared_segment::make(options_.window_bytes + extra);
    if (!own) return own.error();
    prepare(*own);
    const std::string settings = "window " + std::to_string(options_.window_bytes) + ", signals " +
                                 std::to_string(options_.signals);
    if (auto agreed = meeting_.agree("shared_memory", settings, timeout_ns); !agreed) return agreed;
    const shared_segment::address here = own->here();
    const auto all = meeting_.all_gather(std::as_bytes(std::span(&here, 1)), timeout_ns);
    if (!all) return all.error();
    if (auto mapped = map(*all, std::move(*own)); !mapped) return mapped;
    if (auto met = meeting_.barrier(timeout_ns); !met) return met;
    for (shared_segment& each : *segments_) each.close();
    return {};
  }

  /// Before any other rank can see it.
  void prepare(const shared_segment& own) const {
    const shared_memory_detail::mapped_rank at = parts_of(own);
    std::fill_n(at.words, options_.signals, options_.counter_start);
    guarded_window::guard(at.window - guarded_window::guard_bytes);
    guarded_window::guard(at.window + options_.window_bytes);
  }

  [[nodiscard]] shared_memory_detail::mapped_rank parts_of(const shared_segment& of) const {
    return {reinterpret_cast<std::uint64_t*>(of.data()),
            reinterpret_cast<std::uint64_t*>(of.data() + words_at), of.data() + window_at()};
  }

  [[nodiscard]] result<void> map(const std::vector<std::vector<std::byte>>& all,
                                 shared_segment own) {
    const std::vector<rank_place>& places = meeting_.places();
    const auto self = static_cast<std::size_t>(meeting_.rank());
    for (std::size_t r = 0; r < places.size(); ++r) {
      if (places[r].node != places[self].node) continue;
      if (r == self) {
        state_->rank = static_cast<std::int32_t>(segments_->size());
        segments_->push_back(std::move(own));
      } else {
        shared_segment::address where;
        if (all[r].size() != sizeof where) {
          return failure{errc::mismatch, "shared_memory::create",
                         "rank " + std::to_string(r) + " gave " + std::to_string(all[r].size()) +
                             " bytes, expected " + std::to_string(sizeof where)};
        }
        std::memcpy(&where, all[r].data(), sizeof where);
        auto opened = shared_segment::open(where);
        if (!opened) {
          failure why = opened.error();
          why.detail = "the memory of rank " + std::to_string(r) + ", " + why.detail;
          return why;
        }
        segments_->push_back(std::move(*opened));
      }
      ranks_.push_back(static_cast<std::int32_t>(r));
      state_->peers.push_back(parts_of(segments_->back()));
    }
    state_->window_bytes = options_.window_bytes;
    state_->signals = options_.signals;
    state_->channels = options_.channels;
    state_->job = &meeting_;
    return {};
  }

  /// True once rank `i` of the node is in this rank's round of barriers.
  [[nodiscard]] bool came(std::size_t i) const noexcept {
    // Acquire, pairs with the signal_store in `barrier`.
    return static_cast<std::int64_t>(host_memory::signal_acquire(state_->peers[i].arrivals) -
                                     round_) >= 0;
  }

  bootstrap& meeting_;
  shared_memory_options options_;
  std::unique_ptr<shared_memory_detail::rank_state> state_;
  std::shared_ptr<std::vector<shared_segment>> segments_ =  ///< [rank of the node]
      std::make_shared<std::vector<shared_segment>>();
  std::vector<std::int32_t> ranks_;  ///< their numbers in the job
  std::uint64_t round_ = 0;          ///< of barriers
  executor_type executor_;
};

static_assert(check_transport<shared_memory>());

}  // namespace eptransport
