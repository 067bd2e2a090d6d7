// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The command ring: one consumer, entries of two words, each with the parity of its lap.
///
/// Positions are 64-bit and only grow; the entry of position p lies in slot p mod N and carries the
/// parity of lap p / N in bit 63 of *both* words. So the consumer needs no index of the producer,
/// it never writes a slot, a command may be all zeros, and the two words may become visible apart
/// from each other. What the consumer tells the producers lies in two words of their own cache
/// lines:
///
/// | word       | written by   | read by                    | means                               |
/// |------------|--------------|----------------------------|-------------------------------------|
/// | entry      | a producer   | the consumer               | the command of that position        |
/// | `tail`     | the consumer | a producer, if it is full  | positions below it are free         |
/// | `complete` | the consumer | flush                      | sources of positions below are free |
///
/// `tail` is published lazily, every quarter of a ring and whenever the ring runs dry, and
/// producers keep a copy: in the steady state neither side touches a line of the other more than
/// once in N/4 commands. A full ring makes the producer wait; nothing is ever dropped.
///
/// The memory is pinned host memory where a GPU produces, write-back, never write-combined. The GPU
/// only stores entries and loads `tail` and `complete`: it never modifies host memory atomically.
#pragma once

#include <eptransport/core/config.hpp>
#include <eptransport/core/memory.hpp>
#include <eptransport/core/result.hpp>
#include <eptransport/proxy/command.hpp>

#include <bit>
#include <cstddef>
#include <cstdint>
#include <new>
#include <string>

namespace eptransport::proxy {

/// One ring's memory, as all its users know it. Trivially copyable.
struct ring_view {
  std::uint64_t* entries = nullptr;  ///< two words a slot, 16-byte aligned
  std::uint64_t* tail = nullptr;
  std::uint64_t* complete = nullptr;
  std::uint32_t log2_slots = 0;

  [[nodiscard]] EPT_HOST_DEVICE std::uint64_t slots() const noexcept {
    return std::uint64_t{1} << log2_slots;
  }
  [[nodiscard]] EPT_HOST_DEVICE std::uint64_t* entry(std::uint64_t position) const noexcept {
    return entries + 2 * (position & (slots() - 1));
  }
  /// Bit 63 of both words of the entry at `position`. Lap 0 has 1, so zeroed memory is empty.
  [[nodiscard]] EPT_HOST_DEVICE std::uint64_t parity(std::uint64_t position) const noexcept {
    return (~(position >> log2_slots) & 1) << 63;
  }
};

/// How a ring's memory is laid out: entries, then the two words, each on a line of its own.
struct ring_layout {
  static constexpr std::uint64_t line = 128;  ///< two x86 lines: they are fetched in pairs

  std::uint32_t log2_slots = 0;

  /// @par Errors  `invalid_argument` unless `slots` is a power of two and at least 4
  [[nodiscard]] static result<ring_layout> of(std::uint64_t slots) {
    if (slots < 4 || !std::has_single_bit(slots) || slots > std::uint64_t{1} << 30) {
      return failure{errc::invalid_argument, "ring_layout::of",
                     std::to_string(slots) + " slots, expected a power of two from 4 to 2^30"};
    }
    return ring_layout{static_cast<std::uint32_t>(std::countr_zero(slots))};
  }

  [[nodiscard]] std::uint64_t bytes() const noexcept {
    return (std::uint64_t{16} << log2_slots) + 2 * line + line;
  }

  /// Makes an empty ring whose first position is `first`, in `bytes()` of memory that is aligned to
  /// 128 bytes. @pre Nobody uses the ring yet.
  [[nodiscard]] ring_view make(std::byte* memory, std::uint64_t first = 0) const noexcept {
    const std::uint64_t entry_bytes = std::uint64_t{16} << log2_slots;
    std::byte* after = memory + (entry_bytes + line - 1) / line * line;
    ring_view ring{reinterpret_cast<std::uint64_t*>(memory),
                   ::new (static_cast<void*>(after)) std::uint64_t(first),
                   ::new (static_cast<void*>(after + line)) std::uint64_t(first), log2_slots};
    for (std::uint64_t p = first; p != first + ring.slots(); ++p) {
      const std::uint64_t empty = ring.parity(p) ^ parity_bit;
      ::new (static_cast<void*>(ring.entry(p))) std::uint64_t[2]{empty, empty};
    }
    return ring;
  }
};

/// The producer of a ring that has only one. `Memory` is `host_memory` or `device_memory`.
///
/// On a GPU all lanes of a warp hold the same object: they ask for room together, each lane
/// publishes at its own index, and all advance alike. The entries of 32 lanes are 512 contiguous
/// bytes.
///
/// @par Order    `publish` releases the caller's earlier writes, and those it saw through a
/// barrier.
/// @par Threads  One thread, or one group in step, per object; one object per ring.
template <class Memory>
class ring_producer {
 public:
  EPT_HOST_DEVICE explicit ring_producer(const ring_view& ring, std::uint64_t first = 0) noexcept
      : ring_(ring), head_(first), seen_tail_(first) {}

  /// Commands published so far are those below it.
  [[nodiscard]] EPT_HOST_DEVICE std::uint64_t head() const noexcept { return head_; }

  /// @pre `n` is at most the slots of the ring: more would never fit
  ///
  /// True if `n` more fit, as far as the last look at the consumer's tail tells; looks again if
  /// not.
  EPT_NO_EXEC_CHECK
  [[nodiscard]] EPT_HOST_DEVICE bool room(std::uint64_t n) noexcept {
    if (fits(n)) return true;
    // Acquire, pairs with the release in ring_consumer::publish_tail: it has read what we
    // overwrite.
    seen_tail_ = Memory::signal_acquire(ring_.tail);
    return fits(n);
  }

  /// For groups in step: `tail` is what one of them acquired and told the others.
  EPT_HOST_DEVICE void see_tail(std::uint64_t tail) noexcept { seen_tail_ = tail; }
  [[nodiscard]] EPT_HOST_DEVICE bool fits(std::uint64_t n) const noexcept {
    return head_ - seen_tail_ + n <= ring_.slots();
  }
  [[nodiscard]] EPT_HOST_DEVICE const ring_view& ring() const noexcept { return ring_; }

  /// Writes the command at `head() + index`. @pre `room(index + 1)`
  EPT_NO_EXEC_CHECK
  EPT_HOST_DEVICE void publish(std::uint64_t index, command_words words) const noexcept {
    const std::uint64_t position = head_ + index;
    const std::uint64_t parity = ring_.parity(position);
    Memory::entry_store(ring_.entry(position), words.first | parity, words.second | parity);
  }

  /// The next `n` positions have been published.
  EPT_HOST_DEVICE void advance(std::uint64_t n) noexcept { head_ += n; }

  /// One command; false if the ring is full.
  EPT_NO_EXEC_CHECK
  [[nodiscard]] EPT_HOST_DEVICE bool push(command_words words) noexcept {
    if (!room(1)) return false;
    publish(0, words);
    advance(1);
    return true;
  }

 private:
  ring_view ring_;
  std::uint64_t head_;
  std::uint64_t seen_tail_;
};

/// A group that is the producer publishes `n` commands at once: thread i those of index i, i + T,
/// ... The entries of a warp's 32 lanes are 512 contiguous bytes. All threads hold the same
/// `producer`.
///
/// @pre          `n` is at most the slots of the ring: more would never fit
/// @param make   `command_words make(index)`
/// @returns false if the ring has no room for all of them; then none is published
/// @par Order    releases what any thread of the group wrote before
EPT_NO_EXEC_CHECK
template <class Group, class Make>
EPT_HOST_DEVICE bool push_batch(const Group& group, ring_producer<typename Group::memory>& producer,
                                std::uint64_t n, const Make& make) {
  group.sync();  // each thread's release below covers what the others wrote before it
  if (!producer.fits(n)) {
    std::int64_t tail = 0;
    // Acquire, pairs with ring_consumer::publish_tail; the sync hands it to the other threads.
    if (group.thread() == 0) {
      tail = static_cast<std::int64_t>(Group::memory::signal_acquire(producer.ring().tail));
    }
    producer.see_tail(static_cast<std::uint64_t>(group.first(tail)));
    group.sync();
    if (!producer.fits(n)) return false;
  }
  for (std::uint64_t i = group.thread(); i < n; i += group.threads()) producer.publish(i, make(i));
  producer.advance(n);
  return true;
}

/// A producer among several of one rank: the head lies in the rank's own memory and is moved by
/// compare and exchange. A position is taken only when there is room, so none is left unpublished.
///
/// `seen_tail`, if given, lies beside the head and keeps what some producer last saw of the tail,
/// so that a GPU reads host memory once a lap and not once a command.
///
/// @par Threads  Any of one rank.
template <class Memory>
class shared_ring_producer {
 public:
  EPT_HOST_DEVICE shared_ring_producer(const ring_view& ring, std::uint64_t* head,
                                       std::uint64_t* seen_tail = nullptr) noexcept
      : ring_(ring), head_(head), seen_tail_(seen_tail) {}

  /// False if the ring is full. `position` is that of the command.
  EPT_NO_EXEC_CHECK
  [[nodiscard]] EPT_HOST_DEVICE bool push(command_words words, std::uint64_t& position) noexcept {
    position = Memory::load_acquire(head_);
    do {
      // A head that others have moved since may lie behind the tail; the exchange will tell.
      if (!fits(position)) {
        const std::uint64_t now = Memory::load_acquire(head_);
        if (now == position) return false;
        position = now;
        continue;
      }
      if (Memory::exchange_if(head_, position, position + 1)) break;
      position = Memory::load_acquire(head_);
    } while (true);
    const std::uint64_t parity = ring_.parity(position);
    Memory::entry_store(ring_.entry(position), words.first | parity, words.second | parity);
    return true;
  }

 private:
  EPT_NO_EXEC_CHECK
  [[nodiscard]] EPT_HOST_DEVICE bool fits(std::uint64_t position) const noexcept {
    // Acquire, pairs with the release below: that producer had acquired the tail.
    if (seen_tail_ != nullptr && position - Memory::load_acquire(seen_tail_) < ring_.slots()) {
      return true;
    }
    // Acquire, pairs with ring_consumer::publish_tail.
    const std::uint64_t tail = Memory::signal_acquire(ring_.tail);
    if (seen_tail_ != nullptr) Memory::store_release(seen_tail_, tail);
    return position - tail < ring_.slots();
  }

  ring_view ring_;
  std::uint64_t* head_;
  std::uint64_t* seen_tail_;
};

/// The consumer: a proxy thread.
///
/// @par Threads  One at a time.
class ring_consumer {
 public:
  ring_consumer() = default;
  explicit ring_consumer(const ring_view& ring, std::uint64_t first = 0) noexcept
      : ring_(ring), position_(first), published_(first) {}

  /// The position that comes next.
  [[nodiscard]] std::uint64_t position() const noexcept { return position_; }
  [[nodiscard]] const ring_view& ring() const noexcept { return ring_; }

  /// The next command, if it is there. It stays next until `pop`.
  [[nodiscard]] bool peek(command_words& words) const noexcept {
    // Acquires both words, pairs with entry_store: then what the producer wrote before is visible.
    host_memory::entry_load(ring_.entry(position_), words.first, words.second);
    const std::uint64_t parity = ring_.parity(position_);
    return (((words.first ^ parity) | (words.second ^ parity)) & parity_bit) == 0;
  }

  /// The command has been read; its slot will be free once the tail is published.
  void pop() noexcept {
    if (++position_ - published_ >= ring_.slots() / 4) publish_tail();
  }

  /// Frees what has been popped. To be called when the ring runs dry.
  void publish_tail() noexcept {
    if (published_ == position_) return;
    published_ = position_;
    // Release, pairs with the acquire in ring_producer::room and shared_ring_producer::push.
    host_memory::signal_store(ring_.tail, position_);
  }

  /// The sources of all commands below `position` are free; pairs with the acquire in flush.
  void publish_complete(std::uint64_t position) noexcept {
    host_memory::signal_store(ring_.complete, position);
  }

 private:
  ring_view ring_{};
  std::uint64_t position_ = 0;
  std::uint64_t published_ = 0;
};

}  // namespace eptransport::proxy
