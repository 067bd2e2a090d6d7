// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The first error of a queue, packed in one word so that it latches atomically.
#pragma once

#include <eptransport/core/config.hpp>

#include <cstdint>

namespace eptransport::gdaki {

/// Why a queue can no longer be used.
enum class queue_fault_kind : std::uint8_t {
  none,
  device_error,     ///< a completion with an error: `status` is the device's number
  counted_error,    ///< the device's error counter moved: `status` is not known
  bad_completion,   ///< a completion that ends no request that is in flight, or ends it twice
  stuck_publisher,  ///< a group reserved slots and did not publish them before a deadline
};

/// The name of a kind, for messages.
[[nodiscard]] inline const char* to_string(queue_fault_kind kind) noexcept {
  switch (kind) {
    case queue_fault_kind::none:
      return "none";
    case queue_fault_kind::device_error:
      return "completion with an error";
    case queue_fault_kind::counted_error:
      return "the error counter moved";
    case queue_fault_kind::bad_completion:
      return "completion of no request in flight";
    case queue_fault_kind::stuck_publisher:
      return "reserved slots were not published";
  }
  return "unknown";
}

/// The first error of a queue.
struct queue_fault {
  queue_fault_kind kind = queue_fault_kind::none;
  std::uint8_t status = 0;  ///< the device's number; `to_string` of the format names it
  std::uint32_t queue = 0;  ///< `send_queue_attributes::id`
  std::uint64_t index = 0;  ///< of the request, modulo 2^48, counted since the queue was made

  friend constexpr bool operator==(const queue_fault&, const queue_fault&) = default;
};

/// One word: kind 63:56, status 55:48, index 47:0. Never 0 for a fault.
[[nodiscard]] EPT_HOST_DEVICE constexpr std::uint64_t pack(const queue_fault& fault) noexcept {
  return std::uint64_t{static_cast<std::uint8_t>(fault.kind)} << 56U |
         std::uint64_t{fault.status} << 48U | (fault.index & 0xffffffffffffU);
}

/// The reverse of `pack`; the queue's id is not in the word.
[[nodiscard]] EPT_HOST_DEVICE constexpr queue_fault unpack(std::uint64_t word,
                                                           std::uint32_t queue) noexcept {
  return {static_cast<queue_fault_kind>(word >> 56U),
          static_cast<std::uint8_t>(word >> 48U & 0xffU), queue, word & 0xffffffffffffU};
}

static_assert(unpack(pack({queue_fault_kind::device_error, 7, 3, 0x123456789abc}), 3) ==
              queue_fault{queue_fault_kind::device_error, 7, 3, 0x123456789abc});

}  // namespace eptransport::gdaki
