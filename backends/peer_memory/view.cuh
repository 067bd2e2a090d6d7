// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The device view: peers' windows and signal words through load and store.
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
/// A put is a copy by the calling group through the peer's mapping, `sync`, and a release reduction
/// at system scope by its first thread on the peer's word. The reduction covers the other threads'
/// stores: `bar.warp.sync` orders them before it, and release is cumulative over what precedes it
/// in causality order (PTX ISA, memory consistency model); the same holds for what other workers
/// stored before a worker barrier. Signal words are only ever added to, by any GPU that reaches
/// them.
///
/// @par Errors  A request that contradicts the contract (out of the window, an unknown peer or
///              signal) is `failed`, and the rank's transport with it.
class peer_memory_view {
 public:
  /// Where everything is. A rank's *block* is | signal words | window |.
  struct places {
    std::byte* own;           ///< this rank's block
    std::byte* first;         ///< rank 0's block, if blocks follow each other
    std::byte* const* table;  ///< [ranks] else: where each block is, in this device's memory
    std::uint64_t stride;     ///< from one block to the next
    std::uint64_t window;     ///< offset of the window in a block
    std::uint64_t window_bytes;
    std::uint64_t* failed;  ///< host memory; not 0 = the rank's transport failed
    std::uint32_t signal_count;
    std::uint32_t channels;
    std::int32_t rank;
    std::int32_t ranks;
  };

  EPT_HOST_DEVICE explicit peer_memory_view(const places& at) noexcept : at_(at) {}

  [[nodiscard]] EPT_HOST_DEVICE std::int32_t rank() const noexcept { return at_.rank; }
  [[nodiscard]] EPT_HOST_DEVICE std::int32_t size() const noexcept { return at_.ranks; }
  [[nodiscard]] EPT_HOST_DEVICE static std::int32_t node(std::int32_t) noexcept { return 0; }
  [[nodiscard]] EPT_HOST_DEVICE std::uint32_t channels() const noexcept { return at_.channels; }
  [[nodiscard]] EPT_HOST_DEVICE std::byte* local() const noexcept { return at_.own + at_.window; }
  [[nodiscard]] EPT_DEVICE std::uint64_t now_ns() const noexcept {
    return device_memory::timer_ns();
  }

  /// On the host only where blocks follow each other.
  [[nodiscard]] EPT_HOST_DEVICE std::byte* peer_pointer(std::int32_t peer, std::uint64_t offset,
                                                        std::uint64_t bytes) const noexcept {
    return known(peer) && inside(offset, bytes) ? block(peer) + at_.window + offset : nullptr;
  }

  /// Never waits: the copy has been performed when the signal counts it.
  template <class Group>
  EPT_DEVICE op_status put(const Group& group, std::uint32_t, const put_request& request,
                           std::uint64_t) const noexcept {
    std::byte* to = peer_pointer(request.peer, request.dst_offset, request.bytes);
    if (to == nullptr || !fits(request.signal)) return refuse(group);
    group.sync();  // the group's writes to the source
    group.copy(to, request.src, request.bytes);
    add(group, request.peer, request.signal);
    return op_status::ok;
  }

  template <class Group>
  EPT_DEVICE op_status signal(const Group& group, std::uint32_t, std::int32_t peer,
                              std::uint32_t signal, std::uint64_t) const noexcept {
    if (!known(peer) || !fits(signal)) return refuse(group);
    add(group, peer, signal);
    return op_status::ok;
  }

  [[nodiscard]] EPT_DEVICE std::uint64_t read_signal(std::uint32_t signal) const noexcept {
    return device_memory::signal_acquire(words(at_.own) + signal);  // pairs with the peer's `add`
  }

  /// The first thread polls; `sync` hands what it acquired to the others.
  template <class Group>
  EPT_DEVICE op_status wait_signal(const Group& group, std::uint32_t signal, std::uint64_t at_least,
                                   std::uint64_t deadline_ns) const noexcept {
    if (signal >= at_.signal_count) return refuse(group);
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
  [[nodiscard]] EPT_HOST_DEVICE static std::uint64_t* words(std::byte* block) noexcept {
    return reinterpret_cast<std::uint64_t*>(block);
  }
  [[nodiscard]] EPT_HOST_DEVICE std::byte* block(std::int32_t peer) const noexcept {
    if (peer == at_.rank) return at_.own;
    return at_.table == nullptr ? at_.first + static_cast<std::uint64_t>(peer) * at_.stride
                                : at_.table[peer];
  }
  [[nodiscard]] EPT_HOST_DEVICE bool known(std::int32_t peer) const noexcept {
    return peer >= 0 && peer < at_.ranks;
  }
  [[nodiscard]] EPT_HOST_DEVICE bool inside(std::uint64_t offset,
                                            std::uint64_t bytes) const noexcept {
    return offset <= at_.window_bytes && bytes <= at_.window_bytes - offset;
  }
  [[nodiscard]] EPT_HOST_DEVICE bool fits(std::uint32_t signal) const noexcept {
    return signal == no_signal || signal < at_.signal_count;
  }

  template <class Group>
  EPT_DEVICE op_status refuse(const Group& group) const noexcept {
    // Pairs with the acquire in peer_memory::fault(). Every writer stores the same value.
    if (group.thread() == 0) device_memory::signal_store(at_.failed, 1);
    return op_status::failed;
  }

  template <class Group>
  EPT_DEVICE void add(const Group& group, std::int32_t peer, std::uint32_t signal) const noexcept {
    group.sync();
    if (group.thread() == 0 && signal != no_signal) {
      device_memory::signal_add(words(block(peer)) + signal, 1);
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

  places at_;
};

}  // namespace eptransport
