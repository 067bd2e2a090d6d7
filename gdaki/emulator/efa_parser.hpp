// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Reads one EFA send or receive entry strictly; see efa_wqe.hpp for the layout.
#pragma once

#include <eptransport/core/config.hpp>
#include <eptransport/gdaki/efa_wqe.hpp>
#include <eptransport/gdaki/emulator/request.hpp>
#include <eptransport/gdaki/emulator/violation.hpp>

#include <cstddef>
#include <cstdint>
#include <span>

namespace eptransport::gdaki::emulator {

namespace detail {

struct rule_check {
  bool broken;
  violation what;
  std::uint32_t offset;
};

[[nodiscard]] inline parsed refused(violation what, std::uint32_t offset) {
  return {what, offset, {}};
}

/// The rules of the descriptor half that hold for every operation.
[[nodiscard]] inline parsed efa_meta(const entry_reader& in, bool phase) {
  const std::uint32_t ctrl1 = in.u8(2);
  const std::uint32_t ctrl2 = in.u8(3);
  const rule_check checks[] = {
      {(ctrl2 & 1U) != (phase ? 1U : 0U), violation::stale_phase, 3},
      {(ctrl1 & 0x80U) == 0, violation::no_descriptor_mark, 2},
      {(ctrl1 & 0x40U) != 0, violation::reserved_bits, 2},
      {(ctrl2 & 0xe2U) != 0, violation::reserved_bits, 3},
      {(ctrl2 & 0x04U) == 0, violation::not_first, 3},
      {(ctrl2 & 0x08U) == 0, violation::not_last, 3},
      {(ctrl2 & 0x10U) == 0, violation::not_signalled, 3},
      {(in.u8(14) & 0xfcU) != 0, violation::reserved_bits, 14},
      {in.u8(15) != 0, violation::reserved_bits, 15},
      {!in.all_zero(20, 32), violation::reserved_bits, 20},
      {(ctrl1 & 0xfU) > 2, violation::unknown_operation, 2},
  };
  for (const rule_check& check : checks) {
    if (check.broken) return refused(check.what, check.offset);
  }
  parsed out;
  request& r = out.value;
  r.id = in.le16(0);
  r.native = static_cast<std::uint8_t>(ctrl1 & 0xfU);
  r.what = r.native == 0 ? action::send : r.native == 1 ? action::read : action::write;
  r.has_immediate = (ctrl1 & 0x10U) != 0;
  r.is_inline = (ctrl1 & 0x20U) != 0;
  r.target_qpn = in.le16(4);
  r.immediate = r.has_immediate ? in.le32(8) : 0;
  r.handle = in.le16(12);
  r.qkey = in.le32(16);
  return out;
}

[[nodiscard]] inline local_range efa_range(const entry_reader& in, std::size_t at) {
  return {in.le64(at + 8), in.le32(at + 4), in.le32(at)};
}

[[nodiscard]] inline parsed efa_send(const entry_reader& in, parsed out) {
  const std::uint32_t length = in.le16(6);
  if (out.value.is_inline) {
    if (length > efa::max_inline_send(static_cast<std::uint32_t>(in.size()))) {
      return refused(violation::inline_too_long, 6);
    }
    out.value.data = in.copy(32, length);
    return out;
  }
  if (length == 0 || length > efa::max_send_ranges) return refused(violation::range_count, 6);
  for (std::uint32_t i = 0; i < length; ++i) {
    const std::uint32_t at = 32 + 16 * i;
    out.value.local.push_back(efa_range(in, at));
    if (out.value.local.back().key > efa::key_mask) return refused(violation::key_bits, at + 4);
  }
  return out;
}

[[nodiscard]] inline parsed efa_rdma(const entry_reader& in, parsed out) {
  request& r = out.value;
  const std::uint32_t length = in.le16(6);
  const local_range remote = efa_range(in, 32);
  r.remote = {remote.address, remote.key};
  if (r.what == action::read && r.has_immediate) {
    return refused(violation::immediate_not_allowed, 2);
  }
  if (r.is_inline) {
    if (r.what == action::read || in.size() != efa::wide) {
      return refused(violation::inline_not_allowed, 2);
    }
    if (length > efa::max_inline_write) return refused(violation::inline_too_long, 6);
    if (remote.bytes != length) return refused(violation::length_mismatch, 32);
    r.data = in.copy(48, length);
    return out;
  }
  if (length != 1) return refused(violation::range_count, 6);
  r.local.push_back(efa_range(in, 48));
  if (r.local.back().key > efa::key_mask) return refused(violation::key_bits, 52);
  if (r.local.back().bytes != remote.bytes) return refused(violation::length_mismatch, 32);
  return out;
}

}  // namespace detail

/// Reads a send queue entry of 64 or 128 bytes.
/// @param phase  of the lap that the slot is on
[[nodiscard]] inline parsed parse_efa_send(std::span<const std::byte> entry, bool phase) {
  if (entry.size() != efa::narrow && entry.size() != efa::wide) {
    return detail::refused(violation::truncated, 0);
  }
  const detail::entry_reader in(entry);
  parsed out = detail::efa_meta(in, phase);
  if (!out.ok()) return out;
  return out.value.what == action::send ? detail::efa_send(in, std::move(out))
                                        : detail::efa_rdma(in, std::move(out));
}

/// Reads a receive entry of 16 bytes: one local range.
[[nodiscard]] inline parsed parse_efa_receive(std::span<const std::byte> entry) {
  if (entry.size() != sizeof(segment)) return detail::refused(violation::truncated, 0);
  const detail::entry_reader in(entry);
  const std::uint32_t control = in.le32(12);
  if (control >> 24U != 0xc0U) return detail::refused(violation::receive_entry, 15);
  parsed out;
  out.value.id = in.le16(8);
  out.value.local.push_back({in.le64(0), control & efa::key_mask, in.le16(10)});
  return out;
}

}  // namespace eptransport::gdaki::emulator
