// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The proxied view of a GPU: commands to pinned rings, counts from pinned words.
#pragma once

#include <eptransport/core/config.hpp>
#include <eptransport/core/memory.cuh>
#include <eptransport/core/thread_group.hpp>
#include <eptransport/core/transport.hpp>
#include <eptransport/proxy/command.hpp>
#include <eptransport/proxy/ring.hpp>

#include <cstddef>
#include <cstdint>

namespace eptransport {

/// Models `TransportView` for warps; core/transport.hpp says what each call means.
///
/// Window, rings and counters lie in host memory that the GPU maps. What producers share, heads and
/// the tails they have seen, lies in the GPU's memory: the GPU never modifies host memory
/// atomically. A put is `sync`, then one entry by the first thread. Its store is a release at
/// system scope, and covers what the other threads wrote before the `sync` and other workers before
/// a worker barrier.
///
/// @par Errors  A request that contradicts the contract (out of the window, an unknown peer,
///              channel or signal, more than max_message) is `failed`, and the rank's transport
///              with it. A wire that failed ends waits; a put into a ring with room does not look.
class cuda_proxied_view {
 public:
  /// Head of a channel, and the tail that some producer saw last; on a line of their own.
  struct alignas(128) producer_words {
    std::uint64_t head;
    std::uint64_t seen_tail;
  };

  /// What all calls of a rank need.
  struct places {
    std::byte* window;
    const proxy::ring_view* rings;  ///< [channels]
    producer_words* producers;      ///< [channels]
    const std::uint64_t* counters;  ///< [comms][signals]
    const std::uint64_t* failed;    ///< not 0: the wire failed
    std::uint64_t* refused;         ///< not 0: a request of this GPU contradicted the contract
    const std::int32_t* nodes;      ///< [ranks], in host memory too
    proxy::command_codec codec;
    std::uint64_t window_bytes;
    std::uint64_t max_message;
    std::uint32_t max_count;  ///< rows of a run
    std::uint32_t signals;
    std::uint32_t comms;
    std::uint32_t channels;
    std::int32_t rank;
    std::int32_t ranks;
  };

  EPT_HOST_DEVICE explicit cuda_proxied_view(const places& at) noexcept : at_(at) {}

  [[nodiscard]] EPT_HOST_DEVICE std::int32_t rank() const noexcept { return at_.rank; }
  [[nodiscard]] EPT_HOST_DEVICE std::int32_t size() const noexcept { return at_.ranks; }
  [[nodiscard]] EPT_HOST_DEVICE std::int32_t node(std::int32_t peer) const noexcept {
    return at_.nodes[peer];
  }
  [[nodiscard]] EPT_HOST_DEVICE std::uint32_t channels() const noexcept { return at_.channels; }
  [[nodiscard]] EPT_HOST_DEVICE std::byte* local() const noexcept { return at_.window; }
  [[nodiscard]] EPT_DEVICE std::uint64_t now_ns() const noexcept {
    return device_memory::timer_ns();
  }
  [[nodiscard]] EPT_HOST_DEVICE std::byte* peer_pointer(std::int32_t peer, std::uint64_t offset,
                                                        std::uint64_t) const noexcept {
    return peer == at_.rank ? at_.window + offset : nullptr;
  }

  /// Waits while the ring is full.
  template <class Group>
  EPT_DEVICE op_status put(const Group& group, std::uint32_t channel, const put_request& request,
                           std::uint64_t deadline_ns) const noexcept {
    return push(group, channel, request, 1, deadline_ns);
  }
  /// As `proxied_view::put_run`.
  template <class Group>
  EPT_DEVICE op_status put_run(const Group& group, std::uint32_t channel,
                               const put_request& request, std::uint32_t rows,
                               std::uint64_t deadline_ns) const noexcept {
    return push(group, channel, request, rows, deadline_ns);
  }
  [[nodiscard]] EPT_HOST_DEVICE std::uint32_t max_run() const noexcept { return at_.max_count; }

  template <class Group>
  EPT_DEVICE op_status signal(const Group& group, std::uint32_t channel, std::int32_t peer,
                              std::uint32_t signal, std::uint64_t deadline_ns) const noexcept {
    return push(group, channel, {.peer = peer, .signal = signal}, 1, deadline_ns);
  }

  /// Sum over the comms; each word has its own writer.
  [[nodiscard]] EPT_DEVICE std::uint64_t read_signal(std::uint32_t signal) const noexcept {
    std::uint64_t sum = 0;
    for (std::uint32_t k = 0; k < at_.comms; ++k) sum += counter(k, signal);
    return sum;
  }

  /// The threads read the comms' words side by side; `sync` hands what each acquired to the others.
  template <class Group>
  EPT_DEVICE op_status wait_signal(const Group& group, std::uint32_t signal, std::uint64_t at_least,
                                   std::uint64_t deadline_ns) const noexcept {
    if (signal >= at_.signals) return refuse(group);
    return wait(group, deadline_ns, [&] {
      std::uint64_t mine = 0;
      for (std::uint32_t k = group.thread(); k < at_.comms; k += group.threads()) {
        mine += counter(k, signal);
      }
      const auto sum = static_cast<std::uint64_t>(group.sum(static_cast<std::int64_t>(mine)));
      return static_cast<std::int64_t>(sum - at_least) >= 0;
    });
  }

  template <class Group>
  EPT_DEVICE op_status flush(const Group& group, std::uint32_t channel,
                             std::uint64_t deadline_ns) const noexcept {
    if (channel >= at_.channels) return refuse(group);
    group.sync();
    const std::uint64_t head = device_memory::load_acquire(&at_.producers[channel].head);
    const std::uint64_t* complete = at_.rings[channel].complete;
    return wait(group, deadline_ns, [&] {
      bool done = false;
      // Acquire, pairs with ring_consumer::publish_complete.
      if (group.thread() == 0) {
        done = static_cast<std::int64_t>(device_memory::signal_acquire(complete) - head) >= 0;
      }
      return group.any(done);
    });
  }

  /// Nothing is deferred: the engine sees each command at once.
  template <class Group>
  EPT_DEVICE void submit(const Group&, std::uint32_t) const noexcept {}

 private:
  [[nodiscard]] EPT_DEVICE std::uint64_t counter(std::uint32_t comm,
                                                 std::uint32_t signal) const noexcept {
    // Acquire, pairs with the engine's signal_store.
    return device_memory::signal_acquire(at_.counters + std::uint64_t{comm} * at_.signals + signal);
  }
  /// Acquire, pairs with fault_cell::report.
  [[nodiscard]] EPT_DEVICE bool failed() const noexcept {
    return device_memory::signal_acquire(at_.failed) != 0;
  }
  [[nodiscard]] EPT_HOST_DEVICE bool inside(std::uint64_t offset,
                                            std::uint64_t bytes) const noexcept {
    return offset <= at_.window_bytes && bytes <= at_.window_bytes - offset;
  }
  [[nodiscard]] EPT_DEVICE bool allowed(std::uint32_t channel, const put_request& r,
                                        std::uint32_t count) const noexcept {
    const auto source = static_cast<std::uint64_t>(reinterpret_cast<std::uintptr_t>(r.src) -
                                                   reinterpret_cast<std::uintptr_t>(at_.window));
    return channel < at_.channels && r.peer >= 0 && r.peer < at_.ranks &&
           (r.bytes == 0 || (inside(source, r.bytes) && inside(r.dst_offset, r.bytes))) &&
           r.bytes <= at_.max_message && (r.signal == no_signal || r.signal < at_.signals) &&
           count != 0 && count <= at_.max_count;
  }

  template <class Group>
  EPT_DEVICE op_status refuse(const Group& group) const noexcept {
    // Pairs with the acquire in cuda_proxied::fault(). Every writer stores the same value.
    if (group.thread() == 0) device_memory::signal_store(at_.refused, 1);
    return op_status::failed;
  }

  template <class Group>
  EPT_DEVICE op_status push(const Group& group, std::uint32_t channel, const put_request& r,
                            std::uint32_t count, std::uint64_t deadline_ns) const noexcept {
    if (!allowed(channel, r, count)) return refuse(group);
    group.sync();  // the entry's release covers what the other threads wrote
    op_status status = op_status::ok;
    if (group.thread() == 0) status = push_one(channel, r, count, deadline_ns);
    status = static_cast<op_status>(group.first(static_cast<std::int64_t>(status)));
    group.sync();
    return status;
  }

  [[nodiscard]] EPT_DEVICE op_status push_one(std::uint32_t channel, const put_request& r,
                                              std::uint32_t count,
                                              std::uint64_t deadline_ns) const noexcept {
    const proxy::command_words words = at_.codec.encode(
        {.src_offset = r.bytes == 0 ? 0 : static_cast<std::uint64_t>(r.src - at_.window),
         .dst_offset = r.dst_offset,
         .bytes = r.bytes,
         .peer = static_cast<std::uint32_t>(r.peer),
         .signal = r.signal,
         .count = count});
    producer_words& own = at_.producers[channel];
    proxy::shared_ring_producer<device_memory> producer(at_.rings[channel], &own.head,
                                                        &own.seen_tail);
    std::uint64_t position = 0;
    while (!producer.push(words, position)) {
      if (failed()) return op_status::failed;
      if (now_ns() >= deadline_ns) return op_status::expired;
      device_memory::relax();
    }
    return op_status::ok;
  }

  /// `done` is called by the whole group and returns the same to all.
  template <class Group, class Done>
  EPT_DEVICE op_status wait(const Group& group, std::uint64_t deadline_ns,
                            const Done& done) const noexcept {
    while (!done()) {
      bool over = false;
      bool broken = false;
      if (group.thread() == 0) {
        broken = failed();
        over = now_ns() >= deadline_ns;
        device_memory::relax();
      }
      if (group.any(broken)) return op_status::failed;
      if (group.any(over)) return op_status::expired;
    }
    group.sync();
    return op_status::ok;
  }

  places at_;
};

}  // namespace eptransport
