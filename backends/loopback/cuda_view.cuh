// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The simulator's view on a GPU: all ranks' windows are one allocation in its memory.
#pragma once

#include <eptransport/core/config.hpp>
#include <eptransport/core/memory.cuh>
#include <eptransport/core/thread_group.hpp>
#include <eptransport/core/transport.hpp>

#include <cstddef>
#include <cstdint>

namespace eptransport {

/// Models `TransportView` for warps; core/transport.hpp says what each call means.
///
/// A put is a copy by the calling group, `sync`, and a release reduction by its first thread. The
/// reduction covers the other threads' stores: `bar.warp.sync` orders them before it, and release
/// is cumulative over what precedes it in causality order (PTX ISA, memory consistency model). The
/// same holds for what other workers stored before a worker barrier.
///
/// @par Errors  A request that contradicts the contract (out of the window, an unknown peer or
///              signal, more than max_message, a source that must be registered and is not) is
///              `failed`, and the rank's transport with it.
class cuda_loopback_view {
 public:
  /// What all ranks of a world share.
  struct world {
    std::byte* windows;       ///< [ranks] of `stride` bytes
    std::uint64_t* signals;   ///< [ranks][signal_stride] words
    std::uint64_t* failures;  ///< [ranks] host memory; not 0 = the rank's transport failed
    std::uint64_t stride;
    std::uint64_t window_bytes;
    std::uint64_t max_message;    ///< 0 = unlimited
    std::uint32_t signal_stride;  ///< each rank's words start on a line of their own
    std::uint32_t signal_count;
    std::uint32_t channels;
    std::int32_t ranks;
    std::int32_t ranks_per_node;
    bool direct;             ///< load and store reach the peers
    bool registered_source;  ///< put sources must lie in the window
  };

  EPT_HOST_DEVICE cuda_loopback_view(const world& of, std::int32_t rank) noexcept
      : world_(of), rank_(rank) {}

  [[nodiscard]] EPT_HOST_DEVICE std::int32_t rank() const noexcept { return rank_; }
  [[nodiscard]] EPT_HOST_DEVICE std::int32_t size() const noexcept { return world_.ranks; }
  [[nodiscard]] EPT_HOST_DEVICE std::int32_t node(std::int32_t peer) const noexcept {
    return peer / world_.ranks_per_node;
  }
  [[nodiscard]] EPT_HOST_DEVICE std::uint32_t channels() const noexcept { return world_.channels; }
  [[nodiscard]] EPT_HOST_DEVICE std::byte* local() const noexcept { return window(rank_); }
  [[nodiscard]] EPT_DEVICE std::uint64_t now_ns() const noexcept {
    return device_memory::timer_ns();
  }

  [[nodiscard]] EPT_HOST_DEVICE std::byte* peer_pointer(std::int32_t peer, std::uint64_t offset,
                                                        std::uint64_t bytes) const noexcept {
    if (!world_.direct && peer != rank_) return nullptr;
    return peer >= 0 && peer < world_.ranks && inside(offset, bytes) ? window(peer) + offset
                                                                     : nullptr;
  }

  /// Never waits: the copy has landed when it returns.
  template <class Group>
  EPT_DEVICE op_status put(const Group& group, std::uint32_t, const put_request& request,
                           std::uint64_t) const noexcept {
    if (!allowed(request)) return refuse(group);
    group.sync();  // the group's writes to the source
    group.copy(window(request.peer) + request.dst_offset, request.src, request.bytes);
    add(group, request.peer, request.signal);
    return op_status::ok;
  }

  template <class Group>
  EPT_DEVICE op_status signal(const Group& group, std::uint32_t, std::int32_t peer,
                              std::uint32_t signal, std::uint64_t) const noexcept {
    if (!allowed({.peer = peer, .signal = signal})) return refuse(group);
    add(group, peer, signal);
    return op_status::ok;
  }

  [[nodiscard]] EPT_DEVICE std::uint64_t read_signal(std::uint32_t signal) const noexcept {
    return device_memory::signal_acquire(word(rank_, signal));  // pairs with `add` of the peer
  }

  /// The first thread polls; `sync` hands what it acquired to the others.
  template <class Group>
  EPT_DEVICE op_status wait_signal(const Group& group, std::uint32_t signal, std::uint64_t at_least,
                                   std::uint64_t deadline_ns) const noexcept {
    if (signal >= world_.signal_count) return refuse(group);
    op_status status = op_status::ok;
    if (group.thread() == 0) status = poll(signal, at_least, deadline_ns);
    status = static_cast<op_status>(group.first(static_cast<std::int64_t>(status)));
    group.sync();
    return status;
  }

  /// Sources are free when `put` returns.
  template <class Group>
  EPT_DEVICE op_status flush(const Group& group, std::uint32_t, std::uint64_t) const noexcept {
    group.sync();
    return op_status::ok;
  }

  /// Nothing is deferred.
  template <class Group>
  EPT_DEVICE void submit(const Group&, std::uint32_t) const noexcept {}

 private:
  [[nodiscard]] EPT_HOST_DEVICE std::byte* window(std::int32_t rank) const noexcept {
    return world_.windows + static_cast<std::uint64_t>(rank) * world_.stride;
  }
  [[nodiscard]] EPT_DEVICE std::uint64_t* word(std::int32_t rank,
                                               std::uint32_t signal) const noexcept {
    return world_.signals + static_cast<std::uint64_t>(rank) * world_.signal_stride + signal;
  }
  [[nodiscard]] EPT_HOST_DEVICE bool inside(std::uint64_t offset,
                                            std::uint64_t bytes) const noexcept {
    return offset <= world_.window_bytes && bytes <= world_.window_bytes - offset;
  }

  [[nodiscard]] EPT_DEVICE bool allowed(const put_request& r) const noexcept {
    const auto source = static_cast<std::uint64_t>(reinterpret_cast<std::uintptr_t>(r.src) -
                                                   reinterpret_cast<std::uintptr_t>(local()));
    return r.peer >= 0 && r.peer < world_.ranks && inside(r.dst_offset, r.bytes) &&
           (r.signal == no_signal || r.signal < world_.signal_count) &&
           (world_.max_message == 0 || r.bytes <= world_.max_message) &&
           (r.bytes == 0 || !world_.registered_source || inside(source, r.bytes));
  }

  template <class Group>
  EPT_DEVICE op_status refuse(const Group& group) const noexcept {
    // Pairs with the acquire in cuda_loopback::fault(). Every writer stores the same value.
    if (group.thread() == 0) device_memory::signal_store(world_.failures + rank_, 1);
    return op_status::failed;
  }

  template <class Group>
  EPT_DEVICE void add(const Group& group, std::int32_t peer, std::uint32_t signal) const noexcept {
    group.sync();
    if (group.thread() == 0 && signal != no_signal) {
      device_memory::signal_add(word(peer, signal), 1);
    }
  }

  [[nodiscard]] EPT_DEVICE op_status poll(std::uint32_t signal, std::uint64_t at_least,
                                          std::uint64_t deadline_ns) const noexcept {
    while (static_cast<std::int64_t>(read_signal(signal) - at_least) < 0) {
      if (now_ns() >= deadline_ns) return op_status::expired;
      device_memory::relax();
    }
    return op_status::ok;
  }

  world world_;
  std::int32_t rank_;
};

}  // namespace eptransport
