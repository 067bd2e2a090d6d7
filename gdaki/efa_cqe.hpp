// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Reads the entries of an EFA completion queue.
///
/// Layout, little endian (`struct efa_io_cdesc_common`, `efa_io_tx_cdesc`, `efa_io_rx_cdesc` and
/// `efa_io_rx_cdesc_ex` of the EFA driver's efa_io_defs.h), 16 or 32 bytes:
///
///     0 request id (16) | status (8) | flags (8)    8 address handle (16) | source qp (16)
///     4 queue pair (16) | received bytes 15:0       12 immediate (32)
///                                                   16 received bytes 31:16 (wide entries, writes)
///
/// flags: phase 0, queue 2:1 (1 send, 2 receive), immediate 3, operation 6:4, unsolicited 7. The
/// phase starts at 1 and flips with each lap, and the ring starts zeroed: an entry is new when its
/// phase is that of the lap.
#pragma once

#include <eptransport/core/config.hpp>
#include <eptransport/gdaki/completion.hpp>

#include <cstdint>

namespace eptransport::gdaki::efa {

/// `efa_io_comp_status`.
enum class status : std::uint8_t {
  ok = 0,
  flushed = 1,
  local_queue_error = 2,
  unsupported_operation = 3,
  invalid_address_handle = 4,
  invalid_local_key = 5,
  local_bad_length = 6,
  remote_bad_address = 7,
  remote_abort = 8,
  bad_destination_qp = 9,
  receiver_not_ready = 10,
  remote_bad_length = 11,
  bad_status = 12,
  unresponsive_remote = 13,
  unknown_peer = 14,
  unreachable_remote = 15,
  feature_mismatch = 18,
};

/// The name of a status, for messages.
[[nodiscard]] inline const char* to_string(status value) noexcept {
  switch (value) {
    case status::ok:
      return "ok";
    case status::flushed:
      return "flushed";
    case status::local_queue_error:
      return "local queue pair error";
    case status::unsupported_operation:
      return "unsupported operation";
    case status::invalid_address_handle:
      return "invalid address handle";
    case status::invalid_local_key:
      return "invalid local key or range";
    case status::local_bad_length:
      return "bad local length";
    case status::remote_bad_address:
      return "bad remote key or address";
    case status::remote_abort:
      return "the remote aborted";
    case status::bad_destination_qp:
      return "bad destination queue pair";
    case status::receiver_not_ready:
      return "the receiver has no buffer";
    case status::remote_bad_length:
      return "bad remote length";
    case status::bad_status:
      return "bad status";
    case status::unresponsive_remote:
      return "unresponsive remote";
    case status::unknown_peer:
      return "unknown peer";
    case status::unreachable_remote:
      return "unreachable remote";
    case status::feature_mismatch:
      return "feature mismatch";
  }
  return "unknown status";
}

inline constexpr std::uint32_t narrow_completion = 16;
inline constexpr std::uint32_t wide_completion = 32;

/// The word that says whether an entry is new; the device writes it last.
inline constexpr std::uint32_t valid_word = 0;

/// Whether word 0 belongs to the lap of the index-th entry of a ring of `entries`, a power of two.
[[nodiscard]] EPT_HOST_DEVICE constexpr bool is_new(std::uint32_t word, std::uint64_t index,
                                                    std::uint32_t entries) noexcept {
  const std::uint32_t phase = (index & entries) == 0 ? 1 : 0;
  return (word >> 24U & 1U) == phase;
}

/// Decodes an entry that `is_new`.
/// @param word         [entry_bytes / 4]
/// @param entry_bytes  16 or 32
[[nodiscard]] EPT_HOST_DEVICE constexpr completion parse_completion(
    const std::uint32_t* word, std::uint32_t entry_bytes) noexcept {
  completion c;
  const std::uint32_t flags = word[0] >> 24U;
  const std::uint32_t queue = flags >> 1U & 3U;
  const std::uint32_t operation = flags >> 4U & 7U;
  c.index = static_cast<std::uint16_t>(word[0] & 0xffffU);
  c.status = static_cast<std::uint8_t>(word[0] >> 16U & 0xffU);
  c.qpn = word[1] & 0xffffU;
  if (queue == 1) {
    c.what = completed::request;
    return c;
  }
  if (queue != 2) return {};
  const bool written = operation == 2;
  c.what = written ? completed::written_with : completed::received;
  c.has_immediate = (flags >> 3U & 1U) != 0;
  c.unsolicited = (flags >> 7U) != 0;
  c.bytes = word[1] >> 16U;
  if (written && entry_bytes == wide_completion) c.bytes |= word[4] << 16U;
  c.source_handle = static_cast<std::uint16_t>(word[2] & 0xffffU);
  c.source_qpn = word[2] >> 16U;
  c.immediate = c.has_immediate ? word[3] : 0;
  return c;
}

// An unsolicited write with immediate that a provider with RDMA write decoded to the same values.
namespace detail {
inline constexpr std::uint32_t golden_receive[8] = {0xad000000, 0x23450003, 0x432100a5, 0xcafef00d,
                                                    1,          0,          0,          0};
}
static_assert(is_new(detail::golden_receive[0], 0, 64) &&
              is_new(detail::golden_receive[0], 128, 64));
static_assert(!is_new(detail::golden_receive[0], 64, 64) && !is_new(0, 0, 64));
static_assert(parse_completion(detail::golden_receive, wide_completion) ==
              completion{completed::written_with, 0, 0, true, true, 0, 3, 0xcafef00d, 0x12345,
                         0x4321, 0xa5});

}  // namespace eptransport::gdaki::efa
