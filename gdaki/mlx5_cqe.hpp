// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Reads the entries of an mlx5 completion queue, ordinary or collapsed.
///
/// Layout, big endian, 64 bytes (rdma-core mlx5dv.h, `struct mlx5_cqe64` and `mlx5_err_cqe`):
///
///     36 immediate (32)      54 vendor error (8)     60 first basic block (16)
///     44 received bytes (32) 55 syndrome (8)         63 opcode 7:4 | owner 0
///                            56 sop (8) | qpn (24)
///
/// The ring starts with opcode 15 in every entry. An entry is new when its opcode is another and
/// its owner bit is that of the lap. A *collapsed* queue has one entry, which every completion
/// overwrites; its bytes start as 0xff.
#pragma once

#include <eptransport/core/config.hpp>
#include <eptransport/gdaki/completion.hpp>
#include <eptransport/gdaki/segment.hpp>

#include <cstdint>

namespace eptransport::gdaki::mlx5 {

/// `MLX5_CQE_*`: what kind of completion an entry is.
enum class cqe_opcode : std::uint8_t {
  request = 0,
  received_write_immediate = 1,
  received = 2,
  received_immediate = 3,
  request_error = 13,
  receive_error = 14,
  invalid = 15,
};

/// `MLX5_CQE_SYNDROME_*`.
enum class status : std::uint8_t {
  ok = 0x00,
  local_length = 0x01,
  local_queue_operation = 0x02,
  local_protection = 0x04,
  flushed = 0x05,
  window_bind = 0x06,
  bad_response = 0x10,
  local_access = 0x11,
  remote_invalid_request = 0x12,
  remote_access = 0x13,
  remote_operation = 0x14,
  transport_retry_exceeded = 0x15,
  receiver_not_ready_retry_exceeded = 0x16,
  remote_aborted = 0x22,
};

/// The name of a status, for messages.
[[nodiscard]] inline const char* to_string(status value) noexcept {
  switch (value) {
    case status::ok:
      return "ok";
    case status::local_length:
      return "local length";
    case status::local_queue_operation:
      return "local queue pair operation";
    case status::local_protection:
      return "local protection";
    case status::flushed:
      return "flushed";
    case status::window_bind:
      return "memory window bind";
    case status::bad_response:
      return "bad response";
    case status::local_access:
      return "local access";
    case status::remote_invalid_request:
      return "remote invalid request";
    case status::remote_access:
      return "remote access";
    case status::remote_operation:
      return "remote operation";
    case status::transport_retry_exceeded:
      return "transport retries exceeded";
    case status::receiver_not_ready_retry_exceeded:
      return "the receiver has no buffer";
    case status::remote_aborted:
      return "remote aborted";
  }
  return "unknown syndrome";
}

inline constexpr std::uint32_t completion_bytes = 64;

/// The last 8 bytes of an entry say whether it is new and what it ends. Written last.
inline constexpr std::uint32_t tail_offset = 56;

/// The opcode in the last 8 bytes of an entry.
[[nodiscard]] EPT_HOST_DEVICE constexpr cqe_opcode opcode_of(std::uint64_t tail) noexcept {
  return static_cast<cqe_opcode>(tail >> 60U);
}

/// The first basic block of the request that an entry ends, from its last 8 bytes.
[[nodiscard]] EPT_HOST_DEVICE constexpr std::uint16_t index_of(std::uint64_t tail) noexcept {
  return static_cast<std::uint16_t>((tail >> 24U & 0xff00U) | (tail >> 40U & 0xffU));
}

/// Whether an entry is new, from its last 8 bytes; `entries` is a power of two.
[[nodiscard]] EPT_HOST_DEVICE constexpr bool is_new(std::uint64_t tail, std::uint64_t index,
                                                    std::uint32_t entries) noexcept {
  const std::uint64_t owner = (index & entries) == 0 ? 0 : 1;
  return opcode_of(tail) != cqe_opcode::invalid && (tail >> 56U & 1U) == owner;
}

/// Decodes an entry that `is_new`.
/// @param word  [16]
[[nodiscard]] EPT_HOST_DEVICE constexpr completion parse_completion(
    const std::uint32_t* word) noexcept {
  completion c;
  const auto opcode = static_cast<cqe_opcode>(word[15] >> 28U);
  c.index = static_cast<std::uint16_t>(swap_bytes(word[15]) >> 16U);
  c.qpn = swap_bytes(word[14]) & 0xffffffU;
  switch (opcode) {
    case cqe_opcode::request:
      c.what = completed::request;
      return c;
    case cqe_opcode::request_error:
      c.what = completed::request;
      break;
    case cqe_opcode::receive_error:
      c.what = completed::received;
      break;
    case cqe_opcode::received:
      c.what = completed::received;
      break;
    case cqe_opcode::received_immediate:
      c.what = completed::received;
      break;
    case cqe_opcode::received_write_immediate:
      c.what = completed::written_with;
      break;
    default:
      return {};
  }
  if (opcode == cqe_opcode::request_error || opcode == cqe_opcode::receive_error) {
    c.vendor_error = static_cast<std::uint8_t>(word[13] >> 16U & 0xffU);
    c.status = static_cast<std::uint8_t>(word[13] >> 24U);
    return c;
  }
  c.bytes = swap_bytes(word[11]);
  c.has_immediate = opcode != cqe_opcode::received;
  c.immediate = c.has_immediate ? swap_bytes(word[9]) : 0;
  return c;
}

/// The 64-bit count of completed blocks after the newest completion of a collapsed queue.
///
/// @param known   blocks known to be complete
/// @param index   of the completion, 16 bits of the 64; its request takes one block
/// @param slots   of the send queue, at most 32768, which bounds how far `index` can lie ahead
[[nodiscard]] EPT_HOST_DEVICE constexpr std::uint64_t extend(std::uint64_t known,
                                                             std::uint16_t index,
                                                             std::uint32_t slots) noexcept {
  const auto ahead = static_cast<std::uint16_t>(index + 1U - static_cast<std::uint32_t>(known));
  return ahead <= slots ? known + ahead : known;
}

static_assert(extend(0, 0xffff, 64) == 0, "the 0xff fill says that nothing is complete");
static_assert(extend(0xfff0, 2, 64) == 0x10003 && extend(0x10003, 0xfff8, 64) == 0x10003);

}  // namespace eptransport::gdaki::mlx5
