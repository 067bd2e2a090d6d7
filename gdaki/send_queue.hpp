// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief A send queue that thread groups post to: reserve, fill, publish in order, ring.
///
///     reserved --+--------- filled by many groups at once ---------+
///     ready      |  published in the order of reservation          v
///     rung       |  the device knows these          [ ..... | ..... | ....... ]
///     completed  +-- free again: credits --> completed   rung   ready   reserved
///
/// A reservation is made only when its slots are free and fit the device's batch, so whoever holds
/// one never waits for the device: it fills, then publishes behind its predecessor. Whoever waits
/// rings and polls on behalf of all. A doorbell has one ringer at a time; the others add their
/// request to `ringers` and go on, and the ringer stays until it has seen every request.
#pragma once

#include <eptransport/core/config.hpp>
#include <eptransport/core/result.hpp>
#include <eptransport/core/transport.hpp>
#include <eptransport/gdaki/format.hpp>
#include <eptransport/gdaki/queue_fault.hpp>
#include <eptransport/gdaki/queue_memory.hpp>
#include <eptransport/gdaki/queue_state.hpp>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>

namespace eptransport::gdaki {

/// What posting needs of a thread group (core/thread_group.hpp).
template <class G>
concept PostingGroup = requires(const G& g, std::int64_t v) {
  typename G::memory;
  { g.thread() } -> std::convertible_to<std::uint32_t>;
  { g.threads() } -> std::convertible_to<std::uint32_t>;
  { g.first(v) } -> std::convertible_to<std::int64_t>;
  g.sync();
};

/// A device queue: a value that kernels take by copy.
///
/// @tparam Format      `efa_format<>` or `mlx5_format`
/// @tparam Scope       who uses the queue at the same time: `one_owner`, `one_block`, `one_device`
/// @tparam Completion  `counted_completion`, `collapsed_completion` or `polled_completion`
///
/// @par Threads  All threads of a group call together; `Scope` says which groups may call at once.
/// @par Errors   Every wait ends at its deadline with `expired`: nothing was posted then, and the
///               queue stays usable. The first error latches; from then on all calls say `failed`.
template <QueueFormat Format, class Scope, class Completion>
class send_queue {
 public:
  using format = Format;
  using entry = typename Format::entry;
  using place_type = typename Format::place_type;

  send_queue() = default;

  /// @pre `check(attributes)` succeeded
  EPT_HOST_DEVICE send_queue(const send_queue_attributes& attributes, send_queue_state* state,
                             const Completion& completion) noexcept
      : attributes_(attributes), state_(state), completion_(completion) {}

  /// Whether a queue of this format can be made from `attributes`.
  [[nodiscard]] static result<void> check(const send_queue_attributes& attributes);

  [[nodiscard]] EPT_HOST_DEVICE const send_queue_attributes& attributes() const noexcept {
    return attributes_;
  }

  /// Entries that one group can have between reservation and doorbell.
  [[nodiscard]] EPT_HOST_DEVICE constexpr std::uint32_t window() const noexcept {
    const std::uint32_t most = attributes_.slots > 1 ? attributes_.slots - 1 : 1;
    return attributes_.max_batch != 0 && attributes_.max_batch < most ? attributes_.max_batch
                                                                      : most;
  }

  /// Posts `count` entries, in batches; rings per `ring_every` entries, `submit` rings the rest.
  ///
  /// @param build  `build(i, place)` gives the i-th entry; called once per entry by one thread each
  /// @return `expired`: the batches that were not yet reserved at the deadline were not posted
  EPT_NO_EXEC_CHECK
  template <PostingGroup G, class Build>
  EPT_HOST_DEVICE op_status post(const G& g, std::uint64_t count, Build&& build,
                                 std::uint64_t deadline_ns) const noexcept {
    for (std::uint64_t done = 0; done < count;) {
      const std::uint64_t left = count - done;
      const std::uint32_t batch = left < window() ? static_cast<std::uint32_t>(left) : window();
      std::uint64_t first = 0;
      op_status status = reserve(g, batch, deadline_ns, first);
      if (status != op_status::ok) return status;
      for (std::uint64_t i = g.thread(); i < batch; i += g.threads()) {
        const bool last = i + 1 == batch;
        write<G>(first + i, build(done + i, Format::place(attributes_, first + i, last)));
      }
      status = publish(g, first, batch, deadline_ns);
      if (status != op_status::ok) return status;
      done += batch;
    }
    return op_status::ok;
  }

  /// Tells the device about every published entry.
  EPT_NO_EXEC_CHECK
  template <PostingGroup G>
  EPT_HOST_DEVICE void submit(const G& g) const noexcept {
    if (g.thread() == 0) ring_pending<G>();
  }

  /// Rings, then waits until the sources of all requests posted so far may be reused.
  EPT_NO_EXEC_CHECK
  template <PostingGroup G>
  EPT_HOST_DEVICE op_status flush(const G& g, std::uint64_t deadline_ns) const noexcept {
    op_status status = op_status::ok;
    if (g.thread() == 0) status = wait_all<G>(deadline_ns);
    return static_cast<op_status>(g.first(static_cast<std::int64_t>(status)));
  }

  /// Looks for completions once, without waiting.
  EPT_NO_EXEC_CHECK
  template <PostingGroup G>
  EPT_HOST_DEVICE void poll(const G& g) const noexcept {
    if (g.thread() == 0) look<G>();
  }

  /// Slots that were completed when this was last looked at.
  EPT_NO_EXEC_CHECK
  template <PostingGroup G>
  [[nodiscard]] EPT_HOST_DEVICE std::uint64_t completed(const G&) const noexcept {
    return load<G>(&state_->completed);
  }

  /// Slots that were reserved so far.
  EPT_NO_EXEC_CHECK
  template <PostingGroup G>
  [[nodiscard]] EPT_HOST_DEVICE std::uint64_t posted(const G&) const noexcept {
    return load<G>(&state_->reserved);
  }

  /// The first error, or `queue_fault_kind::none`.
  EPT_NO_EXEC_CHECK
  template <PostingGroup G>
  [[nodiscard]] EPT_HOST_DEVICE queue_fault fault(const G&) const noexcept {
    return unpack(load<G>(&state_->fault), attributes_.id);
  }

  /// Takes `count` slots, at most `window()`; `first` is the index of the first. The caller then
  /// writes every one of them and publishes, whatever happens, or abandons them.
  EPT_NO_EXEC_CHECK
  template <PostingGroup G>
  EPT_HOST_DEVICE op_status reserve(const G& g, std::uint32_t count, std::uint64_t deadline_ns,
                                    std::uint64_t& first) const noexcept {
    op_status status = op_status::ok;
    std::uint64_t index = 0;
    if (g.thread() == 0) status = take_slots<G>(count, deadline_ns, index);
    status = static_cast<op_status>(g.first(static_cast<std::int64_t>(status)));
    first = static_cast<std::uint64_t>(g.first(static_cast<std::int64_t>(index)));
    return status;
  }

  /// `reserve` by one thread that does not wait: `expired` says that there was no room just now.
  EPT_NO_EXEC_CHECK
  template <PostingGroup G>
  EPT_HOST_DEVICE op_status try_reserve(std::uint32_t count, std::uint64_t& first) const noexcept {
    return take_slots<G>(count, 0, first);
  }

  /// One thread: a reservation will never be published. What was reserved behind it never can be,
  /// so the queue fails, and nobody waits for its turn.
  EPT_NO_EXEC_CHECK
  template <PostingGroup G>
  EPT_HOST_DEVICE void abandon(std::uint64_t first) const noexcept {
    detail::shared_words<typename G::memory, Scope>::latch(
        state_, {queue_fault_kind::stuck_publisher, 0, attributes_.id, first});
  }

  /// Writes one reserved slot, by the calling thread.
  EPT_NO_EXEC_CHECK
  template <PostingGroup G>
  EPT_HOST_DEVICE void write(std::uint64_t index, const entry& value) const noexcept {
    auto* to = reinterpret_cast<segment*>(attributes_.ring) +
               (index & (attributes_.slots - 1)) * entry::segments;
    for (std::uint32_t s = 0; s < entry::segments; ++s) {
      queue_memory<typename G::memory>::store(to + s, value.part[s]);
    }
  }

  /// Hands over a reservation whose slots the group has written, and rings if it is time.
  EPT_NO_EXEC_CHECK
  template <PostingGroup G>
  EPT_HOST_DEVICE op_status publish(const G& g, std::uint64_t first, std::uint32_t count,
                                    std::uint64_t deadline_ns) const noexcept {
    g.sync();
    op_status status = op_status::ok;
    if (g.thread() == 0) status = hand_over<G>(first, count, deadline_ns);
    return static_cast<op_status>(g.first(static_cast<std::int64_t>(status)));
  }

 private:
  template <class G>
  using memory = queue_memory<typename G::memory>;

  EPT_NO_EXEC_CHECK
  template <class G>
  [[nodiscard]] EPT_HOST_DEVICE std::uint64_t load(const std::uint64_t* word) const noexcept {
    return memory<G>::load(Scope{}, word);
  }

  EPT_NO_EXEC_CHECK
  template <class G>
  EPT_HOST_DEVICE void look() const noexcept {
    completion_.template poll<Format, typename G::memory, Scope>(state_, attributes_);
  }

  /// One thread: slots are free, the batch is not full, nobody drains.
  EPT_NO_EXEC_CHECK
  template <class G>
  [[nodiscard]] EPT_HOST_DEVICE bool fits(std::uint64_t end) const noexcept {
    if (distance(load<G>(&state_->completed), end) > std::int64_t{attributes_.slots}) return false;
    if (distance(load<G>(&state_->rung), end) > std::int64_t{window()}) return false;
    if constexpr (Scope::shared && !Completion::in_order) {
      return load<G>(&state_->draining) == 0;
    }
    return true;
  }

  EPT_NO_EXEC_CHECK
  template <class G>
  EPT_HOST_DEVICE op_status take_slots(std::uint32_t count, std::uint64_t deadline_ns,
                                       std::uint64_t& first) const noexcept {
    for (;;) {
      if (load<G>(&state_->fault) != 0) return op_status::failed;
      const std::uint64_t at = load<G>(&state_->reserved);
      if (fits<G>(at + count)) {
        if (memory<G>::compare_exchange(Scope{}, &state_->reserved, at, at + count)) {
          first = at;
          return op_status::ok;
        }
      } else {
        ring_pending<G>();
        look<G>();
        if (fits<G>(at + count)) continue;
      }
      if (memory<G>::now_ns() > deadline_ns) return op_status::expired;
      memory<G>::relax();
    }
  }

  EPT_NO_EXEC_CHECK
  template <class G>
  EPT_HOST_DEVICE op_status hand_over(std::uint64_t first, std::uint32_t count,
                                      std::uint64_t deadline_ns) const noexcept {
    if constexpr (Scope::shared) {
      // A NIC's own memory need not be coherent among multiprocessors: each drains its own stores.
      if (attributes_.home == ring_home::host) memory<G>::order(attributes_.home);
      while (load<G>(&state_->ready) != first) {  // pairs with the predecessor's store below
        if (load<G>(&state_->fault) != 0) return op_status::failed;
        if (memory<G>::now_ns() > deadline_ns) {
          detail::shared_words<typename G::memory, Scope>::latch(
              state_, {queue_fault_kind::stuck_publisher, 0, attributes_.id, first});
          return op_status::failed;
        }
        memory<G>::relax();
      }
    }
    const std::uint64_t end = first + count;
    memory<G>::store(Scope{}, &state_->ready, end);
    const std::uint64_t every = attributes_.ring_every;
    if ((first & ~(every - 1)) != (end & ~(every - 1))) ring_pending<G>();
    return op_status::ok;
  }

  /// Rings until the device knows what is ready now, `window()` entries at a time.
  EPT_NO_EXEC_CHECK
  template <class G>
  EPT_HOST_DEVICE void ring_up_to_ready() const noexcept {
    std::uint64_t rung = load<G>(&state_->rung);
    const std::uint64_t ready = load<G>(&state_->ready);  // pairs with hand_over
    while (distance(rung, ready) > 0) {
      const std::uint64_t most = rung + window();
      rung = distance(ready, most) > 0 ? ready : most;
      Format::template ring<typename G::memory>(attributes_, rung);
      memory<G>::store(Scope{}, &state_->rung, rung);
    }
  }

  /// One thread.
  EPT_NO_EXEC_CHECK
  template <class G>
  EPT_HOST_DEVICE void ring_pending() const noexcept {
    if constexpr (!Scope::shared) {
      ring_up_to_ready<G>();
    } else {
      const std::uint64_t rung = load<G>(&state_->rung);
      if (distance(rung, load<G>(&state_->ready)) <= 0) return;
      if (memory<G>::add(Scope{}, &state_->ringers, 1) != 0) return;  // the ringer will see it
      for (std::uint64_t seen = 1;; seen = load<G>(&state_->ringers)) {
        ring_up_to_ready<G>();
        if (memory<G>::compare_exchange(Scope{}, &state_->ringers, seen, 0)) return;
      }
    }
  }

  EPT_NO_EXEC_CHECK
  template <class G>
  EPT_HOST_DEVICE op_status wait_all(std::uint64_t deadline_ns) const noexcept {
    constexpr bool drain = Scope::shared && !Completion::in_order;
    if constexpr (drain) memory<G>::add(Scope{}, &state_->draining, 1);
    const std::uint64_t posted = load<G>(&state_->reserved);
    op_status status = op_status::ok;
    for (;;) {
      ring_pending<G>();
      look<G>();
      const std::uint64_t completed = load<G>(&state_->completed);
      // A count says which requests are done only when it says that all are.
      const std::uint64_t target = drain ? load<G>(&state_->reserved) : posted;
      if (load<G>(&state_->fault) != 0) {
        status = op_status::failed;
        break;
      }
      if (distance(target, completed) >= 0) break;
      if (memory<G>::now_ns() > deadline_ns) {
        status = op_status::expired;
        break;
      }
      memory<G>::relax();
    }
    if constexpr (drain) memory<G>::add(Scope{}, &state_->draining, ~std::uint64_t{0});
    return status;
  }

  send_queue_attributes attributes_{};
  send_queue_state* state_ = nullptr;
  Completion completion_{};
};

template <QueueFormat Format, class Scope, class Completion>
result<void> send_queue<Format, Scope, Completion>::check(const send_queue_attributes& attributes) {
  const auto power_of_two = [](std::uint32_t n) { return n != 0 && (n & (n - 1)) == 0; };
  const auto refuse = [](std::string detail) {
    return failure{make_error_code(errc::invalid_argument), "send_queue", std::move(detail)};
  };
  if (attributes.ring == nullptr || attributes.doorbell == nullptr) {
    return refuse("the ring or the doorbell is null");
  }
  if (reinterpret_cast<std::uintptr_t>(attributes.ring) % alignof(segment) != 0) {
    return refuse("the ring is not aligned to 16 bytes");
  }
  if (!power_of_two(attributes.slots) || attributes.slots > 32768) {
    return refuse("slots must be a power of two up to 32768, got " +
                  std::to_string(attributes.slots));
  }
  if (!power_of_two(attributes.ring_every)) {
    return refuse("ring_every must be a power of two, got " +
                  std::to_string(attributes.ring_every));
  }
  if (Format::ordered && attributes.record == nullptr) return refuse("the doorbell record is null");
  return {};
}

}  // namespace eptransport::gdaki
