// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The words of a send queue that its users share, and how a queue learns of completions.
///
/// All indices count slots since the queue was made, in 64 bits; on the ring they are taken modulo
/// its size. At any time completed <= rung <= ready <= reserved <= completed + slots.
#pragma once

#include <eptransport/core/config.hpp>
#include <eptransport/gdaki/completion.hpp>
#include <eptransport/gdaki/format.hpp>
#include <eptransport/gdaki/queue_fault.hpp>
#include <eptransport/gdaki/queue_memory.hpp>

#include <cstdint>

namespace eptransport::gdaki {

/// Lies in memory that all users of the queue reach with atomics: GPU memory for a GPU's queue.
///
/// Zeroed when the queue is made; a queue that starts elsewhere has the first four at that index.
struct alignas(128) send_queue_state {
  std::uint64_t reserved = 0;   ///< slots handed out
  std::uint64_t ready = 0;      ///< slots filled, in order
  std::uint64_t rung = 0;       ///< slots that the device was told about
  std::uint64_t completed = 0;  ///< slots that may be used again
  std::uint64_t fault = 0;      ///< packed `queue_fault`
  std::uint64_t ringers = 0;    ///< doorbell requests since the last ringer left
  std::uint64_t polling = 0;    ///< 1 while one user reads completions
  std::uint64_t draining = 0;   ///< flushes that hold back new reservations
  std::uint64_t consumed = 0;   ///< entries of the completion queue that were read
};

/// Distance of two indices, across wraps of 64 bits.
[[nodiscard]] EPT_HOST_DEVICE constexpr std::int64_t distance(std::uint64_t from,
                                                              std::uint64_t to) noexcept {
  return static_cast<std::int64_t>(to - from);
}

namespace detail {

/// The state's words as one user of memory vocabulary `Memory` in scope `Scope` sees them.
template <class Memory, class Scope>
struct shared_words {
  using memory = queue_memory<Memory>;

  EPT_NO_EXEC_CHECK
  EPT_HOST_DEVICE static void latch(send_queue_state* state, const queue_fault& fault) noexcept {
    (void)memory::compare_exchange(Scope{}, &state->fault, 0, pack(fault));
  }

  /// Moves `completed` forward to `to`, never back.
  EPT_NO_EXEC_CHECK
  EPT_HOST_DEVICE static void raise_completed(send_queue_state* state, std::uint64_t to) noexcept {
    std::uint64_t seen = memory::load(Scope{}, &state->completed);
    while (distance(seen, to) > 0 &&
           !memory::compare_exchange(Scope{}, &state->completed, seen, to)) {
      seen = memory::load(Scope{}, &state->completed);
    }
  }
};

}  // namespace detail

/// Completions counted by the NIC in a 64-bit word, as EFA's completion counters do.
///
/// The word is never written here; `first` makes up for where it started. A count says how many
/// requests have completed, not which: sources are free when all are.
struct counted_completion {
  static constexpr bool in_order = false;

  const std::uint64_t* successes = nullptr;
  const std::uint64_t* failures = nullptr;  ///< null: errors are not counted
  std::uint64_t first = 0;                  ///< queue index at creation minus `*successes` then
  std::uint64_t first_failures = 0;         ///< `*failures` at creation

  EPT_NO_EXEC_CHECK
  template <class Format, class Memory, class Scope>
  EPT_HOST_DEVICE void poll(send_queue_state* state,
                            const send_queue_attributes& attributes) const noexcept {
    using memory = queue_memory<Memory>;
    using words = detail::shared_words<Memory, Scope>;
    const std::uint64_t done = memory::acquire(successes) + first;
    // More completions than requests: every one that is counted was reserved before.
    if (distance(memory::load(Scope{}, &state->reserved), done) > 0) {
      words::latch(state, {queue_fault_kind::bad_completion, 0, attributes.id, done});
      return;
    }
    words::raise_completed(state, done);
    if (failures != nullptr && memory::acquire(failures) != first_failures) {
      words::latch(state, {queue_fault_kind::counted_error, 0, attributes.id, done});
    }
  }
};

/// The collapsed completion queue of mlx5: one entry that always holds the newest completion.
struct collapsed_completion {
  static constexpr bool in_order = true;

  const std::byte* entry = nullptr;  ///< 64 bytes, filled with 0xff at creation

  EPT_NO_EXEC_CHECK
  template <class Format, class Memory, class Scope>
  EPT_HOST_DEVICE void poll(send_queue_state* state,
                            const send_queue_attributes& attributes) const noexcept {
    using memory = queue_memory<Memory>;
    using words = detail::shared_words<Memory, Scope>;
    const std::uint64_t known = memory::load(Scope{}, &state->completed);
    const std::uint64_t tail =
        memory::acquire(reinterpret_cast<const std::uint64_t*>(entry + mlx5::tail_offset));
    const mlx5::cqe_opcode opcode = mlx5::opcode_of(tail);
    if (opcode == mlx5::cqe_opcode::invalid) return;
    const std::uint64_t done = mlx5::extend(known, mlx5::index_of(tail), attributes.slots);
    if (opcode != mlx5::cqe_opcode::request) {
      const auto* words_of_entry = reinterpret_cast<const std::uint32_t*>(entry);
      const std::uint32_t word = memory::acquire(words_of_entry + 13);
      const auto status = static_cast<std::uint8_t>(word >> 24U);
      words::latch(state, {queue_fault_kind::device_error, status, attributes.id, done - 1});
      return;
    }
    words::raise_completed(state, done);
  }
};

/// An ordinary completion queue, read by one user at a time, on behalf of all.
struct polled_completion {
  static constexpr bool in_order = true;
  static constexpr int max_per_poll = 32;

  completion_ring ring{};
  /// Unordered formats only: [slots], what completed ahead of `completed`. Filled with the queue's
  /// first index at creation.
  std::uint32_t* done = nullptr;

  EPT_NO_EXEC_CHECK
  template <class Format, class Memory, class Scope>
  EPT_HOST_DEVICE void poll(send_queue_state* state,
                            const send_queue_attributes& attributes) const noexcept {
    using memory = queue_memory<Memory>;
    if (!memory::compare_exchange(Scope{}, &state->polling, 0, 1)) return;
    std::uint64_t at = memory::load(Scope{}, &state->consumed);
    const std::uint64_t start = at;
    completion next;
    for (int n = 0; n < max_per_poll && Format::template take<Memory>(ring, at, next); ++n, ++at) {
      finish<Format, Memory, Scope>(state, attributes, next);
    }
    if (at != start) {
      memory::store(Scope{}, &state->consumed, at);
      if (ring.record != nullptr) memory::write_record(ring.record, mlx5::consumer_record(at));
    }
    memory::store(Scope{}, &state->polling, 0);
  }

 private:
  EPT_NO_EXEC_CHECK
  template <class Format, class Memory, class Scope>
  EPT_HOST_DEVICE void finish(send_queue_state* state, const send_queue_attributes& attributes,
                              const completion& next) const noexcept {
    using memory = queue_memory<Memory>;
    using words = detail::shared_words<Memory, Scope>;
    std::uint64_t upto = memory::load(Scope{}, &state->completed);
    const auto ahead = static_cast<std::uint16_t>(next.index - static_cast<std::uint32_t>(upto));
    const std::uint64_t index = upto + ahead;
    // A ringer notes its doorbell after ringing, so another user may see the completion first.
    const std::uint64_t end =
        memory::load(Scope{}, Scope::shared ? &state->reserved : &state->rung);
    if (next.what != completed::request || ahead >= attributes.slots || distance(index, end) <= 0) {
      words::latch(state, {queue_fault_kind::bad_completion, next.status, attributes.id, index});
      return;
    }
    if (next.status != 0) {
      words::latch(state, {queue_fault_kind::device_error, next.status, attributes.id, index});
    }
    if constexpr (Format::ordered) {
      words::raise_completed(state, index + 1);
    } else {
      const std::uint64_t mask = attributes.slots - 1;
      if (done[index & mask] == low_word(index + 1)) {
        words::latch(state, {queue_fault_kind::bad_completion, next.status, attributes.id, index});
        return;
      }
      done[index & mask] = low_word(index + 1);
      while (done[upto & mask] == low_word(upto + 1)) ++upto;
      words::raise_completed(state, upto);
    }
  }
};

}  // namespace eptransport::gdaki
