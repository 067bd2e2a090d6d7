// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The proxied device view: puts become commands, waits read what the engines count.
#pragma once

#include <eptransport/backends/proxied/detail/rank_state.hpp>
#include <eptransport/core/config.hpp>
#include <eptransport/core/memory.hpp>
#include <eptransport/core/thread_group.hpp>
#include <eptransport/core/transport.hpp>
#include <eptransport/proxy/ring.hpp>

#include <cstddef>
#include <cstdint>
#include <string>

namespace eptransport {

/// Models `TransportView` for host threads; core/transport.hpp says what each call means.
///
/// @par Errors  A request that contradicts the contract (out of the window, an unknown peer,
/// channel
///              or signal, more than max_message) fails the rank's transport.
class proxied_view {
 public:
  explicit proxied_view(proxied_detail::rank_state& state) noexcept : state_(&state) {}

  [[nodiscard]] std::int32_t rank() const noexcept { return state_->rank; }
  [[nodiscard]] std::int32_t size() const noexcept { return state_->ranks; }
  [[nodiscard]] std::int32_t node(std::int32_t peer) const noexcept {
    return (*state_->nodes)[static_cast<std::size_t>(peer)];
  }
  [[nodiscard]] std::uint32_t channels() const noexcept {
    return static_cast<std::uint32_t>(state_->channels.size());
  }
  [[nodiscard]] std::uint64_t now_ns() const { return state_->now_ns(); }
  [[nodiscard]] std::byte* local() const noexcept { return state_->memory.data(); }
  [[nodiscard]] std::byte* peer_pointer(std::int32_t peer, std::uint64_t offset,
                                        std::uint64_t) const noexcept {
    return peer == state_->rank ? local() + offset : nullptr;
  }

  template <ThreadGroup Group>
  op_status put(const Group&, std::uint32_t channel, const put_request& request,
                std::uint64_t deadline_ns) const {
    return push(channel, request, 1, deadline_ns);
  }

  /// A run of `rows` rows that lie one behind the other on both sides: one command, one message,
  /// and the signal grows by `rows`.
  template <ThreadGroup Group>
  op_status put_run(const Group&, std::uint32_t channel, const put_request& request,
                    std::uint32_t rows, std::uint64_t deadline_ns) const {
    return push(channel, request, rows, deadline_ns);
  }
  /// The most rows of a run.
  [[nodiscard]] std::uint32_t max_run() const noexcept { return state_->max_count; }

  template <ThreadGroup Group>
  op_status signal(const Group&, std::uint32_t channel, std::int32_t peer, std::uint32_t signal,
                   std::uint64_t deadline_ns) const {
    return push(channel, {.peer = peer, .signal = signal}, 1, deadline_ns);
  }

  [[nodiscard]] std::uint64_t read_signal(std::uint32_t signal) const noexcept {
    return state_->read_signal(signal);
  }

  template <ThreadGroup Group>
  op_status wait_signal(const Group&, std::uint32_t signal, std::uint64_t at_least,
                        std::uint64_t deadline_ns) const {
    if (signal >= state_->signals) {
      return refuse("a wait on signal " + std::to_string(signal) + " of " +
                    std::to_string(state_->signals));
    }
    return state_->wait(
        [&] { return static_cast<std::int64_t>(state_->read_signal(signal) - at_least) >= 0; },
        deadline_ns);
  }

  template <ThreadGroup Group>
  op_status flush(const Group&, std::uint32_t channel, std::uint64_t deadline_ns) const {
    if (channel >= channels()) return refuse("a flush of channel " + std::to_string(channel));
    const std::uint64_t head = state_->head(channel);
    return state_->wait([&] { return state_->complete(channel, head); }, deadline_ns);
  }

  /// Nothing is deferred: the engine sees each command at once.
  template <ThreadGroup Group>
  void submit(const Group&, std::uint32_t) const noexcept {}

 private:
  op_status push(std::uint32_t channel, const put_request& r, std::uint32_t count,
                 std::uint64_t deadline_ns) const {
    proxied_detail::rank_state& s = *state_;
    const std::uint64_t window = s.memory.bytes();
    const bool placed = r.bytes == 0 || (inside(r.src, r.bytes) && r.dst_offset <= window &&
                                         r.bytes <= window - r.dst_offset);
    if (channel >= channels() || r.peer < 0 || r.peer >= s.ranks || !placed ||
        r.bytes > s.max_message || (r.signal != no_signal && r.signal >= s.signals) || count == 0 ||
        count > s.max_count) {
      return refuse("a put of " + std::to_string(r.bytes) + " bytes (at most " +
                    std::to_string(s.max_message) + ") to rank " + std::to_string(r.peer) + " of " +
                    std::to_string(s.ranks) + " at " + std::to_string(r.dst_offset) +
                    " of a window of " + std::to_string(window) + ", signal " +
                    std::to_string(r.signal) + " of " + std::to_string(s.signals) + ", channel " +
                    std::to_string(channel) + ", " + std::to_string(count) + " rows (at most " +
                    std::to_string(s.max_count) + "); sources must lie in the window");
    }
    proxied_detail::channel_state& c = *s.channels[channel];
    const proxy::command_words words = s.codec.encode(
        {.src_offset = r.bytes == 0 ? 0 : static_cast<std::uint64_t>(r.src - local()),
         .dst_offset = r.dst_offset,
         .bytes = r.bytes,
         .peer = static_cast<std::uint32_t>(r.peer),
         .signal = r.signal,
         .count = count});
    proxy::shared_ring_producer<host_memory> producer(c.ring, &c.head);
    std::uint64_t position = 0;
    // The push may succeed between two looks, so the wait's condition is the room, not the push.
    for (;;) {
      if (s.fault.failed()) return op_status::failed;
      if (producer.push(words, position)) return op_status::ok;
      const op_status room = s.wait(
          [&] {
            const std::uint64_t tail = host_memory::signal_acquire(c.ring.tail);
            return host_memory::load_acquire(&c.head) - tail < c.ring.slots();
          },
          deadline_ns);
      if (room != op_status::ok) return room;
    }
  }

  [[nodiscard]] bool inside(const std::byte* p, std::uint64_t bytes) const noexcept {
    const auto at = reinterpret_cast<std::uintptr_t>(p);
    const auto start = reinterpret_cast<std::uintptr_t>(local());
    const std::uint64_t window = state_->memory.bytes();
    return at >= start && at - start <= window && bytes <= window - (at - start);
  }

  op_status refuse(const std::string& why) const {
    state_->fault.report({errc::invalid_argument, "proxied_view",
                          "rank " + std::to_string(state_->rank) + ": " + why});
    return op_status::failed;
  }

  proxied_detail::rank_state* state_;
};

}  // namespace eptransport
