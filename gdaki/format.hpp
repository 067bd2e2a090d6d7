// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The two queue formats as policies of the device queues.
#pragma once

#include <eptransport/core/config.hpp>
#include <eptransport/gdaki/completion.hpp>
#include <eptransport/gdaki/efa_cqe.hpp>
#include <eptransport/gdaki/efa_wqe.hpp>
#include <eptransport/gdaki/mlx5_cqe.hpp>
#include <eptransport/gdaki/mlx5_wqe.hpp>
#include <eptransport/gdaki/queue_memory.hpp>

#include <concepts>
#include <cstddef>
#include <cstdint>

namespace eptransport::gdaki {

/// What provisioning found out about one send queue. Pointers are valid where the queue is used.
struct send_queue_attributes {
  std::byte* ring = nullptr;     ///< [slots * entry bytes], 16-byte aligned
  std::uint32_t slots = 0;       ///< a power of two, at most 32768
  std::uint32_t max_batch = 0;   ///< entries per doorbell that the device takes; 0: any number
  std::uint32_t ring_every = 1;  ///< a doorbell per that many entries, a power of two
  std::uint32_t qpn = 0;
  std::uint32_t id = 0;  ///< names the queue in faults
  ring_home home = ring_home::host;
  std::uint32_t* record = nullptr;  ///< the send half of the doorbell record; mlx5 only
  void* doorbell = nullptr;         ///< the register: 4 bytes (EFA) or 8 (mlx5)
};

/// What provisioning found out about one completion queue.
struct completion_ring {
  std::byte* ring = nullptr;        ///< [entries * entry_bytes]
  std::uint32_t entries = 0;        ///< a power of two
  std::uint32_t entry_bytes = 0;    ///< 16 or 32 (EFA), 64 (mlx5)
  std::uint32_t* record = nullptr;  ///< the consumer's record (mlx5); null: the device ignores it
};

/// A queue format: how entries know their place, how the doorbell is rung, how completions read.
///
/// | expression                          | meaning                                              |
/// |-------------------------------------|------------------------------------------------------|
/// | `F::entry`, `F::place_type`         | one slot; what an entry says about its own slot      |
/// | `F::ordered`                        | requests of one queue complete in order              |
/// | `F::place(attributes, index, last)` | `last`: the last entry of a batch, which must notify |
/// | `F::ring<Memory>(attributes, to)`   | tells the device about all entries before `to`       |
/// | `F::take<Memory>(ring, at, out)`    | decodes the at-th completion if it is there          |
template <class F>
concept QueueFormat = requires(const send_queue_attributes& attributes, const completion_ring& ring,
                               completion& out, std::uint64_t index) {
  typename F::entry;
  typename F::place_type;
  { F::ordered } -> std::convertible_to<bool>;
  { F::place(attributes, index, true) } -> std::same_as<typename F::place_type>;
  F::template ring<host_memory>(attributes, index);
  { F::template take<host_memory>(ring, index, out) } -> std::same_as<bool>;
};

/// EFA: SRD queue pairs, entries of 64 or 128 bytes. Every request notifies, in any order.
template <std::uint32_t kEntryBytes = efa::narrow>
struct efa_format {
  using entry = efa::entry<kEntryBytes>;
  using place_type = efa::place;
  static constexpr bool ordered = false;

  [[nodiscard]] EPT_HOST_DEVICE static constexpr place_type place(
      const send_queue_attributes& attributes, std::uint64_t index, bool) noexcept {
    return efa::place_of(index, attributes.slots);
  }

  EPT_NO_EXEC_CHECK
  template <class Memory>
  EPT_HOST_DEVICE static void ring(const send_queue_attributes& attributes,
                                   std::uint64_t to) noexcept {
    using memory = queue_memory<Memory>;
    memory::order(attributes.home);
    memory::ring(static_cast<std::uint32_t*>(attributes.doorbell), efa::doorbell(to));
  }

  EPT_NO_EXEC_CHECK
  template <class Memory>
  [[nodiscard]] EPT_HOST_DEVICE static bool take(const completion_ring& ring, std::uint64_t at,
                                                 completion& out) noexcept {
    using memory = queue_memory<Memory>;
    const auto* from = reinterpret_cast<const std::uint32_t*>(
        ring.ring + (at & (ring.entries - 1)) * ring.entry_bytes);
    std::uint32_t word[efa::wide_completion / 4] = {};
    word[0] = memory::acquire(from + efa::valid_word);  // pairs with the device's last write
    if (!efa::is_new(word[0], at, ring.entries)) return false;
    const std::uint32_t used = ring.entry_bytes == efa::wide_completion ? 5 : 4;
    for (std::uint32_t i = 1; i < used; ++i) word[i] = memory::load(from + i);
    out = efa::parse_completion(word, ring.entry_bytes);
    return true;
  }
};

/// mlx5: RC queue pairs, entries of one basic block. The last of a batch notifies, in order.
struct mlx5_format {
  using entry = mlx5::entry;
  using place_type = mlx5::place;
  static constexpr bool ordered = true;

  [[nodiscard]] EPT_HOST_DEVICE static constexpr place_type place(
      const send_queue_attributes& attributes, std::uint64_t index, bool last) noexcept {
    return mlx5::place_of(index, attributes.qpn, last ? mlx5::notify : mlx5::quiet);
  }

  EPT_NO_EXEC_CHECK
  template <class Memory>
  EPT_HOST_DEVICE static void ring(const send_queue_attributes& attributes,
                                   std::uint64_t to) noexcept {
    using memory = queue_memory<Memory>;
    memory::order(attributes.home);
    memory::write_record(attributes.record, mlx5::record(to));
    memory::order(attributes.home);
    memory::ring(static_cast<std::uint64_t*>(attributes.doorbell),
                 mlx5::doorbell(to, attributes.qpn));
  }

  EPT_NO_EXEC_CHECK
  template <class Memory>
  [[nodiscard]] EPT_HOST_DEVICE static bool take(const completion_ring& ring, std::uint64_t at,
                                                 completion& out) noexcept {
    using memory = queue_memory<Memory>;
    const std::byte* from = ring.ring + (at & (ring.entries - 1)) * ring.entry_bytes;
    const auto* tail = reinterpret_cast<const std::uint64_t*>(from + mlx5::tail_offset);
    const std::uint64_t last = memory::acquire(tail);  // pairs with the device's last write
    if (!mlx5::is_new(last, at, ring.entries)) return false;
    const auto* words = reinterpret_cast<const std::uint32_t*>(from);
    std::uint32_t word[mlx5::completion_bytes / 4] = {};
    for (const std::uint32_t i : {9U, 11U, 13U}) word[i] = memory::load(words + i);
    word[14] = low_word(last);
    word[15] = high_word(last);
    out = mlx5::parse_completion(word);
    return true;
  }
};

static_assert(QueueFormat<efa_format<efa::narrow>>);
static_assert(QueueFormat<efa_format<efa::wide>>);
static_assert(QueueFormat<mlx5_format>);

}  // namespace eptransport::gdaki
