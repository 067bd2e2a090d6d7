// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief What a device queue does to memory, beyond the vocabulary of core/memory.hpp.
///
/// | operation                 | order            | pairs with                                    |
/// |---------------------------|------------------|-----------------------------------------------|
/// | `load(scope, w)`          | acquire in scope | `store`, `compare_exchange`, `add`            |
/// | `store(scope, w, v)`      | release in scope | `load`                                        |
/// | `compare_exchange`, `add` | both             | themselves                                    |
/// | `store(segment*, s)`      | none             | made visible by `order`                       |
/// | `order(home)`             | release          | the device's read after it saw the doorbell   |
/// | `write_record`, `ring`    | after `order`    | the device's read of that word                |
/// | `acquire(w)`              | acquire, system  | the device's write of a completion or counter |
/// | `load(w)`                 | none             | follows an `acquire` of the same entry        |
#pragma once

#include <eptransport/core/config.hpp>
#include <eptransport/core/memory.hpp>
#include <eptransport/gdaki/segment.hpp>

#include <atomic>
#include <chrono>
#include <cstdint>

namespace eptransport::gdaki {

/// The queue belongs to one thread group at a time; a hand-over synchronises by other means.
struct one_owner {
  static constexpr bool shared = false;
};

/// Any thread group of one block uses the queue.
struct one_block {
  static constexpr bool shared = true;
};

/// Any thread group of one GPU, or any thread of the process, uses the queue.
struct one_device {
  static constexpr bool shared = true;
};

/// Where a ring lies, seen from whoever posts to it.
enum class ring_home : std::uint8_t {
  host,    ///< host memory or the NIC's own: entries must pass a system-wide fence
  device,  ///< memory of the posting GPU, which the NIC reads through the GPU's own coherence point
};

/// The operations for memory vocabulary `Memory`; specialised for the GPU in queue_memory.cuh.
template <class Memory>
struct queue_memory;

/// Host threads. Doorbells are release stores, so `order` has nothing left to do.
template <>
struct queue_memory<host_memory> {
  using clock = std::chrono::steady_clock;

  template <class Scope>
  [[nodiscard]] static std::uint64_t load(Scope, const std::uint64_t* word) noexcept {
    if constexpr (!Scope::shared) return *word;
    return host_memory::load_acquire(word);
  }
  template <class Scope>
  static void store(Scope, std::uint64_t* word, std::uint64_t value) noexcept {
    if constexpr (!Scope::shared) {
      *word = value;
    } else {
      host_memory::store_release(word, value);
    }
  }
  template <class Scope>
  [[nodiscard]] static bool compare_exchange(Scope, std::uint64_t* word, std::uint64_t expected,
                                             std::uint64_t desired) noexcept {
    if constexpr (!Scope::shared) {
      const bool equal = *word == expected;
      if (equal) *word = desired;
      return equal;
    }
    return std::atomic_ref(*word).compare_exchange_strong(expected, desired,
                                                          std::memory_order_acq_rel);
  }
  template <class Scope>
  static std::uint64_t add(Scope, std::uint64_t* word, std::uint64_t amount) noexcept {
    if constexpr (!Scope::shared) {
      const std::uint64_t old = *word;
      *word = old + amount;
      return old;
    }
    return host_memory::fetch_add(word, amount);
  }

  static void store(segment* to, const segment& value) noexcept { *to = value; }
  static void order(ring_home) noexcept {}
  static void write_record(std::uint32_t* word, std::uint32_t value) noexcept {
    std::atomic_ref(*word).store(value, std::memory_order_release);
  }
  static void ring(std::uint32_t* word, std::uint32_t value) noexcept {
    std::atomic_ref(*word).store(value, std::memory_order_release);
  }
  static void ring(std::uint64_t* word, std::uint64_t value) noexcept {
    std::atomic_ref(*word).store(value, std::memory_order_release);
  }
  [[nodiscard]] static std::uint32_t acquire(const std::uint32_t* word) noexcept {
    return std::atomic_ref(*const_cast<std::uint32_t*>(word)).load(std::memory_order_acquire);
  }
  [[nodiscard]] static std::uint64_t acquire(const std::uint64_t* word) noexcept {
    return host_memory::signal_acquire(word);
  }
  [[nodiscard]] static std::uint32_t load(const std::uint32_t* word) noexcept { return *word; }
  static void relax() noexcept { host_memory::relax(); }

  /// The clock of deadlines.
  [[nodiscard]] static std::uint64_t now_ns() noexcept {
    const auto since = clock::now().time_since_epoch();
    return static_cast<std::uint64_t>(std::chrono::nanoseconds(since).count());
  }
};

}  // namespace eptransport::gdaki
