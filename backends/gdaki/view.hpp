// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The GPU-initiated device view: puts become entries of send queues, waits read what the
///        NIC counts. One body for host threads and for warps.
///
/// Nobody else makes progress for a rank, so whoever waits serves its queues: rings what is
/// pending, reads completions, and turns the first error into the rank's fault, which ends every
/// wait.
#pragma once

#include <eptransport/backends/gdaki/detail/tables.hpp>
#include <eptransport/backends/gdaki/wires.hpp>
#include <eptransport/core/config.hpp>
#include <eptransport/core/transport.hpp>
#include <eptransport/gdaki/send_queue.hpp>

#include <cstddef>
#include <cstdint>

namespace eptransport {

/// Models `TransportView`; core/transport.hpp says what each call means.
///
/// @tparam Waiter  how a thread waits: `now_ns()`; `wait(failed, done, deadline)`, which returns
///                 when one of both is true or the clock has passed the deadline; `note(bytes)`,
///                 told of each put to another rank; `serve_every`, looks per visit to a queue
///
/// @par Order   Entries follow the group's `sync`; the thread that publishes them releases what the
///              group wrote, and saw written, before the doorbell.
/// @par Errors  A request that contradicts the contract (out of the window, an unknown peer,
///              channel or signal, more than max_message) fails the rank's transport, as do
///              completions with an error. A put may return before its error does: `flush` and
///              waits tell.
template <class Wire, class Waiter>
class gdaki_view {
 public:
  using tables_type = gdaki_detail::tables<Wire>;

  EPT_HOST_DEVICE gdaki_view(const tables_type& tables, const Waiter& waiter) noexcept
      : t_(tables), waiter_(waiter) {}

  [[nodiscard]] EPT_HOST_DEVICE std::int32_t rank() const noexcept { return t_.rank; }
  [[nodiscard]] EPT_HOST_DEVICE std::int32_t size() const noexcept { return t_.ranks; }
  [[nodiscard]] EPT_HOST_DEVICE std::int32_t node(std::int32_t peer) const noexcept {
    return t_.nodes[peer];
  }
  [[nodiscard]] EPT_HOST_DEVICE std::uint32_t channels() const noexcept { return t_.channels; }
  EPT_NO_EXEC_CHECK
  [[nodiscard]] EPT_HOST_DEVICE std::uint64_t now_ns() const { return waiter_.now_ns(); }
  [[nodiscard]] EPT_HOST_DEVICE std::byte* local() const noexcept { return t_.window; }
  [[nodiscard]] EPT_HOST_DEVICE std::byte* peer_pointer(std::int32_t peer, std::uint64_t offset,
                                                        std::uint64_t) const noexcept {
    return peer == t_.rank ? t_.window + offset : nullptr;
  }

  EPT_NO_EXEC_CHECK
  template <class Group>
  EPT_HOST_DEVICE op_status put(const Group& group, std::uint32_t channel,
                                const put_request& request, std::uint64_t deadline_ns) const {
    if (!allowed(channel, request)) return refuse(group, channel, request);
    const std::uint32_t count = Wire::entries(request);
    if (count == 0) return failed<Group>() ? op_status::failed : op_status::ok;
    const op_status posted = post(group, channel, request, count, deadline_ns);
    if (posted == op_status::ok && group.thread() == 0 && request.peer != t_.rank) {
      waiter_.note(request.bytes);
    }
    return posted;
  }

  EPT_NO_EXEC_CHECK
  template <class Group>
  EPT_HOST_DEVICE op_status signal(const Group& group, std::uint32_t channel, std::int32_t peer,
                                   std::uint32_t signal, std::uint64_t deadline_ns) const {
    return put(group, channel, {.peer = peer, .signal = signal}, deadline_ns);
  }

  /// Acquire, pairs with the NIC's count, which its bytes precede.
  EPT_NO_EXEC_CHECK
  template <class Memory = typename Waiter::memory>
  [[nodiscard]] EPT_HOST_DEVICE std::uint64_t read_signal(std::uint32_t signal) const noexcept {
    return Memory::signal_acquire(t_.words + signal);
  }

  EPT_NO_EXEC_CHECK
  template <class Group>
  EPT_HOST_DEVICE op_status wait_signal(const Group& group, std::uint32_t signal,
                                        std::uint64_t at_least, std::uint64_t deadline_ns) const {
    if (signal >= t_.signals) return refuse(group, 0, {.peer = t_.rank, .signal = signal});
    std::uint32_t looks = 0;
    const auto reached = [&] {
      return static_cast<std::int64_t>(read_signal(signal) - at_least) >= 0;
    };
    const auto done = [&] {
      if (reached()) return true;
      const std::uint32_t look = ++looks;
      if (look % Waiter::serve_every == 0) {
        serve<Group>(group, look / Waiter::serve_every % t_.queue_count);
      }
      return false;
    };
    return wait(group, done, deadline_ns);
  }

  /// Until the device has reported everything that the channel's queues had when it was called.
  EPT_NO_EXEC_CHECK
  template <class Group>
  EPT_HOST_DEVICE op_status flush(const Group& group, std::uint32_t channel,
                                  std::uint64_t deadline_ns) const {
    if (channel >= t_.channels) return refuse(group, channel, {.peer = t_.rank});
    const std::uint32_t each = Wire::queues_per_channel(t_.ranks);
    std::uint32_t at = channel * each;
    const std::uint32_t end = at + each;
    bool asked = false;
    std::uint64_t target = 0;
    const auto done = [&] {
      for (; at != end; ++at, asked = false) {
        const auto& queue = t_.queues[at].queue;
        if (!asked) target = queue.posted(group);
        asked = true;
        if (gdaki::distance(target, queue.completed(group)) >= 0) continue;
        serve<Group>(group, at);
        if (gdaki::distance(target, queue.completed(group)) < 0) return false;
      }
      return true;
    };
    return wait(group, done, deadline_ns);
  }

  /// Rings the doorbells of the channel's queues that have entries pending.
  EPT_NO_EXEC_CHECK
  template <class Group>
  EPT_HOST_DEVICE void submit(const Group& group, std::uint32_t channel) const {
    if (channel >= t_.channels) return;
    const std::uint32_t each = Wire::queues_per_channel(t_.ranks);
    for (std::uint32_t i = channel * each; i < (channel + 1) * each; ++i) {
      t_.queues[i].queue.submit(group);
    }
  }

  /// Visits every queue once: rings, reads completions, notes errors. One thread.
  EPT_NO_EXEC_CHECK
  template <class Group>
  EPT_HOST_DEVICE void serve_all(const Group& group) const {
    for (std::uint32_t i = 0; i < t_.queue_count; ++i) serve<Group>(group, i);
  }

 private:
  /// How long a reservation may stay unpublished by its group, which waits for nothing meanwhile.
  static constexpr std::uint64_t publish_patience_ns = 10'000'000'000;

  [[nodiscard]] EPT_HOST_DEVICE bool inside(std::uint64_t offset,
                                            std::uint64_t bytes) const noexcept {
    return offset <= t_.window_bytes && bytes <= t_.window_bytes - offset;
  }
  [[nodiscard]] EPT_HOST_DEVICE bool allowed(std::uint32_t channel,
                                             const put_request& r) const noexcept {
    if (channel >= t_.channels || r.peer < 0 || r.peer >= t_.ranks) return false;
    if (r.signal != no_signal && r.signal >= t_.signals) return false;
    if (r.bytes == 0) return true;
    const auto source = static_cast<std::uint64_t>(reinterpret_cast<std::uintptr_t>(r.src) -
                                                   reinterpret_cast<std::uintptr_t>(t_.window));
    return r.bytes <= Wire::caps.max_message && inside(source, r.bytes) &&
           inside(r.dst_offset, r.bytes);
  }

  EPT_NO_EXEC_CHECK
  template <class Group>
  [[nodiscard]] EPT_HOST_DEVICE bool failed() const noexcept {
    return Group::memory::load_acquire(&t_.fault->what) != 0;  // pairs with the two below
  }

  EPT_NO_EXEC_CHECK
  template <class Group>
  EPT_HOST_DEVICE op_status refuse(const Group& group, std::uint32_t channel,
                                   const put_request& request) const {
    if (group.thread() == 0 && Group::memory::claim(&t_.fault->claimed, 1)) {
      t_.fault->request = request;
      t_.fault->channel = channel;
      (void)Group::memory::claim(&t_.fault->what, gdaki_detail::rank_fault::refused);
    }
    return op_status::failed;
  }

  /// One thread: the queue rings, looks for completions, and its error becomes the rank's.
  EPT_NO_EXEC_CHECK
  template <class Group>
  EPT_HOST_DEVICE void serve(const Group& group, std::uint32_t index) const {
    const auto& queue = t_.queues[index].queue;
    queue.submit(group);
    queue.poll(group);
    if (queue.fault(group).kind != gdaki::queue_fault_kind::none) blame<Group>(index);
  }
  EPT_NO_EXEC_CHECK
  template <class Group>
  EPT_HOST_DEVICE void blame(std::uint32_t index) const {
    (void)Group::memory::claim(&t_.fault->what, gdaki_detail::rank_fault::first_queue + index);
  }

  /// Thread 0 waits; what it acquired is handed on by `sync`.
  EPT_NO_EXEC_CHECK
  template <class Group, class Done>
  EPT_HOST_DEVICE op_status wait(const Group& group, const Done& done,
                                 std::uint64_t deadline_ns) const {
    op_status status = op_status::ok;
    if (group.thread() == 0) {
      status = waiter_.wait([&] { return failed<Group>(); }, done, deadline_ns);
    }
    status = static_cast<op_status>(group.first(static_cast<std::int64_t>(status)));
    group.sync();
    return status;
  }

  /// Room for `count` entries in queue `index`; `first` is the index of the first.
  EPT_NO_EXEC_CHECK
  template <class Group>
  EPT_HOST_DEVICE op_status reserve(const Group& group, std::uint32_t index, std::uint32_t count,
                                    std::uint64_t deadline_ns, std::uint64_t& first) const {
    const auto& queue = t_.queues[index].queue;
    op_status got = op_status::expired;
    // What `done` takes it keeps: it may be asked again. A slot that an error freed must keep its
    // peer's name, so an error is looked for after the reservation.
    const auto done = [&] {
      if (got != op_status::expired) return true;
      got = queue.template try_reserve<Group>(count, first);
      if (got == op_status::ok && queue.fault(group).kind != gdaki::queue_fault_kind::none) {
        got = op_status::failed;
      }
      if (got == op_status::failed) blame<Group>(index);
      return got != op_status::expired;
    };
    const op_status status = wait(group, done, deadline_ns);
    // The rank failed in the look that took the slots: nothing is posted, so they are given up.
    if (group.thread() == 0 && status != op_status::ok && got == op_status::ok) {
      queue.template abandon<Group>(first);
    }
    first = static_cast<std::uint64_t>(group.first(static_cast<std::int64_t>(first)));
    if (status != op_status::ok) return status;
    return static_cast<op_status>(group.first(static_cast<std::int64_t>(got)));
  }

  EPT_NO_EXEC_CHECK
  template <class Group>
  EPT_HOST_DEVICE op_status post(const Group& group, std::uint32_t channel, const put_request& r,
                                 std::uint32_t count, std::uint64_t deadline_ns) const {
    const std::uint32_t index =
        channel * Wire::queues_per_channel(t_.ranks) + Wire::queue_of(r.peer);
    const auto& to = t_.queues[index];
    const auto& attributes = to.queue.attributes();
    for (std::uint32_t done = 0; done < count;) {
      const std::uint32_t left = count - done;
      const std::uint32_t batch = left < to.queue.window() ? left : to.queue.window();
      std::uint64_t first = 0;
      const op_status status = reserve(group, index, batch, deadline_ns, first);
      if (status != op_status::ok) return status;
      for (std::uint32_t i = group.thread(); i < batch; i += group.threads()) {
        to.slot_peer[(first + i) & (attributes.slots - 1)] = static_cast<std::uint32_t>(r.peer);
        to.queue.template write<Group>(
            first + i, Wire::build(t_, r, done + i,
                                   Wire::format::place(attributes, first + i, i + 1 == batch)));
      }
      using memory = gdaki::queue_memory<typename Group::memory>;
      if (to.queue.publish(group, first, batch, memory::now_ns() + publish_patience_ns) !=
          op_status::ok) {
        if (group.thread() == 0) blame<Group>(index);
        return op_status::failed;
      }
      done += batch;
    }
    return op_status::ok;
  }

  tables_type t_;
  Waiter waiter_;
};

}  // namespace eptransport
