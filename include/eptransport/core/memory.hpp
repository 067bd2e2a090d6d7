// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The memory-order vocabulary: the host half. `memory.cuh` is its device twin.
///
/// Every ordering decision of the library is one of these operations; kernels reach them through
/// `Group::memory`, so that one source has the CPU's and the GPU's meaning.
///
/// | operation       | order                | pairs with                                          |
/// |-----------------|----------------------|-----------------------------------------------------|
/// | `signal_add`    | release, system      | `signal_acquire` of the waiting rank                |
/// | `signal_store`  | release, system      | `signal_acquire`; for a word with one writer        |
/// | `signal_acquire`| acquire, system      | `signal_add`, or the NIC's write of a counter       |
/// | `publish`       | release fence, system| the acquire of a proxy, NIC or peer that reads next |
/// | `acquire_bulk`  | full proxy fence     | makes acquired bytes readable by bulk copies        |
/// | `fetch_add`     | acq_rel, one rank    | itself: barriers among one rank's workers           |
/// | `load_acquire`  | acquire, one rank    | `fetch_add`, `store_release`                        |
/// | `load_relaxed`  | none                 | nothing: a barrier or the end of a kernel decides   |
/// | `store_relaxed` | none                 | the same                                            |
/// | `crew_add`      | none, one crew       | nothing: `crew_all` shows the sum                   |
/// | `claim`         | acq_rel, one rank    | itself: the first fault wins                        |
/// | `exchange_if`   | acq_rel, one rank    | itself: producers that share a queue's head         |
/// | `entry_store`   | release, system      | `entry_load` of the proxy thread                    |
/// | `entry_load`    | acquire, system      | `entry_store`                                       |
#pragma once

#include <eptransport/core/config.hpp>

#include <atomic>
#include <cstdint>
#include <thread>

namespace eptransport {

/// Host twin of the vocabulary. The words are ordinary memory that several threads touch through
/// these functions alone.
struct host_memory {
  /// Adds to a signal word; everything the caller wrote, or saw written, is visible to whoever
  /// acquires the new value.
  static void signal_add(std::uint64_t* word, std::uint64_t amount) noexcept {
    std::atomic_ref(*word).fetch_add(amount, std::memory_order_release);
  }

  /// Writes a word that one thread alone ever writes; pairs with `signal_acquire`.
  static void signal_store(std::uint64_t* word, std::uint64_t value) noexcept {
    std::atomic_ref(*word).store(value, std::memory_order_release);
  }

  /// Reads a signal word; pairs with `signal_add`.
  [[nodiscard]] static std::uint64_t signal_acquire(const std::uint64_t* word) noexcept {
    return std::atomic_ref(*const_cast<std::uint64_t*>(word)).load(std::memory_order_acquire);
  }

  /// Orders the caller's earlier writes before a hand-over to another agent (ring, doorbell).
  static void publish() noexcept {
#if defined(__SANITIZE_THREAD__)
    // The race detector knows no fences; the hand-over's own release store is what it checks.
#else
    std::atomic_thread_fence(std::memory_order_release);
#endif
  }

  /// Makes what was acquired readable by bulk copies; the CPU has one proxy, so nothing to do.
  static void acquire_bulk() noexcept {}

  /// Adds to a word of this rank's own workers and returns the old value.
  static std::uint64_t fetch_add(std::uint64_t* word, std::uint64_t amount) noexcept {
    return std::atomic_ref(*word).fetch_add(amount, std::memory_order_acq_rel);
  }

  /// Reads a word of this rank's own workers; pairs with `fetch_add` and `store_release`.
  [[nodiscard]] static std::uint64_t load_acquire(const std::uint64_t* word) noexcept {
    return std::atomic_ref(*const_cast<std::uint64_t*>(word)).load(std::memory_order_acquire);
  }

  /// Writes a word of this rank's own workers; pairs with `load_acquire`.
  static void store_release(std::uint64_t* word, std::uint64_t value) noexcept {
    std::atomic_ref(*word).store(value, std::memory_order_release);
  }

  /// Reads or writes a word of this rank's own workers and orders nothing.
  [[nodiscard]] static std::uint64_t load_relaxed(const std::uint64_t* word) noexcept {
    return std::atomic_ref(*const_cast<std::uint64_t*>(word)).load(std::memory_order_relaxed);
  }
  static void store_relaxed(std::uint64_t* word, std::uint64_t value) noexcept {
    std::atomic_ref(*word).store(value, std::memory_order_relaxed);
  }

  /// Adds to a word in a crew's scratch; a host thread is a crew by itself.
  static void crew_add(std::uint32_t* word, std::uint32_t amount) noexcept { *word += amount; }

  /// Turns 0 into `value`; true for the one caller that did.
  static bool claim(std::uint64_t* word, std::uint64_t value) noexcept {
    std::uint64_t expected = 0;
    return std::atomic_ref(*word).compare_exchange_strong(expected, value,
                                                          std::memory_order_acq_rel);
  }

  /// Turns `expected` into `value`; true if the word held `expected`. For the head of a queue that
  /// the workers of one rank share.
  static bool exchange_if(std::uint64_t* word, std::uint64_t expected,
                          std::uint64_t value) noexcept {
    return std::atomic_ref(*word).compare_exchange_strong(expected, value,
                                                          std::memory_order_acq_rel);
  }

  /// Publishes an entry of two words. Each word is released by itself and may be seen without the
  /// other: each must say whether it is new. Everything the caller wrote, or saw written, is
  /// visible to whoever acquires either. Pairs with `entry_load`.
  static void entry_store(std::uint64_t* words, std::uint64_t first,
                          std::uint64_t second) noexcept {
    std::atomic_ref(words[0]).store(first, std::memory_order_release);
    std::atomic_ref(words[1]).store(second, std::memory_order_release);
  }

  /// Reads both words of an entry; pairs with `entry_store`.
  static void entry_load(const std::uint64_t* words, std::uint64_t& first,
                         std::uint64_t& second) noexcept {
    first = signal_acquire(words);
    second = signal_acquire(words + 1);
  }

  /// Lets another thread run; called in every spin.
  static void relax() noexcept { std::this_thread::yield(); }
};

}  // namespace eptransport
