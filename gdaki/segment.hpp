// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The unit of every queue entry, 16 bytes, and the byte orders that the formats use.
///
/// Builders return whole segments by value, so that a thread stores an entry with one 16-byte store
/// per segment and never leaves a byte of a slot stale.
#pragma once

#include <eptransport/core/config.hpp>

#include <bit>
#include <cstddef>
#include <cstdint>

namespace eptransport::gdaki {

static_assert(std::endian::native == std::endian::little, "queue entries are built in words");

/// Four words as the CPU and the GPU store them, lowest address first.
struct alignas(16) segment {
  std::uint32_t word[4] = {};

  friend constexpr bool operator==(const segment&, const segment&) = default;
};
static_assert(sizeof(segment) == 16);

/// One slot of a send queue.
template <std::uint32_t kSegments>
struct queue_entry {
  static constexpr std::uint32_t segments = kSegments;
  static constexpr std::uint32_t bytes = kSegments * 16;

  segment part[kSegments] = {};

  friend constexpr bool operator==(const queue_entry&, const queue_entry&) = default;
};

/// The same word with its bytes in the opposite order.
[[nodiscard]] EPT_HOST_DEVICE constexpr std::uint32_t swap_bytes(std::uint32_t v) noexcept {
#if defined(__CUDA_ARCH__)
  if (!__builtin_is_constant_evaluated()) return __byte_perm(v, 0, 0x0123);  // one instruction
#endif
  return v >> 24U | (v >> 8U & 0xff00U) | (v << 8U & 0xff0000U) | v << 24U;
}

/// The same value with its bytes in the opposite order.
[[nodiscard]] EPT_HOST_DEVICE constexpr std::uint64_t swap_bytes(std::uint64_t v) noexcept {
  return std::uint64_t{swap_bytes(static_cast<std::uint32_t>(v))} << 32U |
         swap_bytes(static_cast<std::uint32_t>(v >> 32U));
}

/// The lower half of a 64-bit value.
[[nodiscard]] EPT_HOST_DEVICE constexpr std::uint32_t low_word(std::uint64_t v) noexcept {
  return static_cast<std::uint32_t>(v);
}

/// The upper half of a 64-bit value.
[[nodiscard]] EPT_HOST_DEVICE constexpr std::uint32_t high_word(std::uint64_t v) noexcept {
  return static_cast<std::uint32_t>(v >> 32U);
}

/// Copies `bytes` bytes into entry bytes from `offset` on; what follows them stays zero.
/// @param data  [bytes], readable one byte at a time
template <std::uint32_t kSegments>
EPT_HOST_DEVICE constexpr void place_bytes(queue_entry<kSegments>& entry, std::uint32_t offset,
                                           const std::byte* data, std::uint32_t bytes) noexcept {
  for (std::uint32_t i = 0; i < bytes; ++i) {
    const std::uint32_t at = offset + i;
    entry.part[at / 16].word[at / 4 % 4] |= static_cast<std::uint32_t>(data[i]) << at % 4 * 8;
  }
}

/// The bytes of an entry in memory order, for comparison with captured ones.
/// @param hex  two digits a byte, blanks between them are skipped; as long as the entry
template <std::uint32_t kSegments>
[[nodiscard]] constexpr queue_entry<kSegments> entry_from_hex(const char* hex) noexcept {
  queue_entry<kSegments> entry;
  std::uint32_t digits = 0;
  for (; *hex != '\0' && digits < queue_entry<kSegments>::bytes * 2; ++hex) {
    if (*hex == ' ') continue;
    const auto value = static_cast<std::uint32_t>(*hex <= '9' ? *hex - '0' : *hex - 'a' + 10);
    const std::uint32_t at = digits / 2;
    entry.part[at / 16].word[at / 4 % 4] |= value << (at % 4 * 8 + (digits % 2 == 0 ? 4 : 0));
    ++digits;
  }
  return entry;
}

/// The bytes of a local buffer that one request covers.
struct local_range {
  std::uint64_t address = 0;  ///< as registered
  std::uint32_t key = 0;      ///< lkey
  std::uint32_t bytes = 0;
};

/// Where a request lands.
struct remote_range {
  std::uint64_t address = 0;
  std::uint32_t key = 0;  ///< rkey
};

}  // namespace eptransport::gdaki
