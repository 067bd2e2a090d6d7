// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Reads one mlx5 send or receive entry strictly; see mlx5_wqe.hpp for the layout.
#pragma once

#include <eptransport/core/config.hpp>
#include <eptransport/gdaki/emulator/request.hpp>
#include <eptransport/gdaki/emulator/violation.hpp>
#include <eptransport/gdaki/mlx5_wqe.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

namespace eptransport::gdaki::emulator {

namespace detail {

[[nodiscard]] inline parsed mlx5_refused(violation what, std::uint32_t offset) {
  return {what, offset, {}};
}

/// The segments that an operation has between the control segment and its local end.
struct mlx5_grammar {
  action what = action::nothing;
  bool remote = false;
  bool atomic = false;
  bool immediate = false;
  bool known = false;
};

[[nodiscard]] inline mlx5_grammar mlx5_grammar_of(std::uint8_t opcode) noexcept {
  switch (static_cast<mlx5::opcode>(opcode)) {
    case mlx5::opcode::nop:
      return {action::nothing, false, false, false, true};
    case mlx5::opcode::write:
      return {action::write, true, false, false, true};
    case mlx5::opcode::write_immediate:
      return {action::write, true, false, true, true};
    case mlx5::opcode::send:
      return {action::send, false, false, false, true};
    case mlx5::opcode::send_immediate:
      return {action::send, false, false, true, true};
    case mlx5::opcode::read:
      return {action::read, true, false, false, true};
    case mlx5::opcode::compare_swap:
      return {action::compare_swap, true, true, false, true};
    case mlx5::opcode::fetch_add:
      return {action::fetch_add, true, true, false, true};
  }
  return {};
}

[[nodiscard]] inline violation mlx5_flags(std::uint8_t flags) noexcept {
  const std::uint32_t fence = flags >> 5U;
  const std::uint32_t notify = flags >> 2U & 3U;
  const bool good = (flags & 0x11U) == 0 && fence <= 4 && (notify == 0 || notify == 2);
  return good ? violation::none : violation::flag_bits;
}

/// The local end: data segments, or one inline segment.
[[nodiscard]] inline parsed mlx5_local(const entry_reader& in, std::uint32_t at, std::uint32_t end,
                                       parsed out) {
  request& r = out.value;
  while (at < end) {
    const std::uint32_t head = in.be32(at);
    if ((head & mlx5::inline_mark) == 0) {
      if (r.is_inline) return mlx5_refused(violation::mixed_segments, at);
      if (head == 0) return mlx5_refused(violation::empty_range, at);
      r.local.push_back({in.be64(at + 8), in.be32(at + 4), head});
      at += 16;
      continue;
    }
    if (r.is_inline || !r.local.empty()) return mlx5_refused(violation::mixed_segments, at);
    if (r.what == action::read) return mlx5_refused(violation::inline_not_allowed, at);
    const std::uint32_t bytes = head & ~mlx5::inline_mark;
    if (bytes > end - at - 4) return mlx5_refused(violation::inline_too_long, at);
    if (mlx5::inline_segments(bytes) * 16 != end - at) {
      return mlx5_refused(violation::range_count, 7);
    }
    r.is_inline = true;
    r.data = in.copy(at + 4, bytes);
    at = end;
  }
  return out;
}

}  // namespace detail

/// Reads a send queue entry.
/// @param entry  contiguous from the control segment on, at least one block; what follows the entry
///               is ignored
/// @param at     the index and queue pair that the control segment must name
[[nodiscard]] inline parsed parse_mlx5_send(std::span<const std::byte> entry, mlx5::place at) {
  using detail::mlx5_refused;
  if (entry.size() < mlx5::block_bytes) return mlx5_refused(violation::truncated, 0);
  const detail::entry_reader in(entry);
  const std::uint32_t first = in.be32(0);
  const std::uint32_t segments = in.be32(4) & 0x3fU;
  const std::uint32_t end = segments * 16;
  const auto opcode = static_cast<std::uint8_t>(first & 0xffU);
  const detail::mlx5_grammar grammar = detail::mlx5_grammar_of(opcode);

  if (!grammar.known) return mlx5_refused(violation::unknown_operation, 3);
  if (first >> 24U != 0) return mlx5_refused(violation::operation_modifier, 0);
  if ((first >> 8U & 0xffffU) != at.index) return mlx5_refused(violation::wrong_index, 1);
  if (in.be32(4) >> 8U != at.qpn) return mlx5_refused(violation::wrong_queue, 4);
  if ((in.be32(4) & 0xc0U) != 0) return mlx5_refused(violation::reserved_bits, 7);
  if (in.u8(8) != 0) return mlx5_refused(violation::signature_present, 8);
  if (!in.all_zero(9, 11)) return mlx5_refused(violation::reserved_bits, 9);
  if (detail::mlx5_flags(in.u8(11)) != violation::none) {
    return mlx5_refused(violation::flag_bits, 11);
  }
  const std::uint32_t least = 1 + (grammar.remote ? 1 : 0) + (grammar.atomic ? 2 : 0);
  if (segments < least) return mlx5_refused(violation::range_count, 7);
  if (grammar.atomic && segments != least) return mlx5_refused(violation::range_count, 7);
  if (grammar.what == action::nothing && segments != 1) {
    return mlx5_refused(violation::range_count, 7);
  }
  if (end > in.size()) return mlx5_refused(violation::truncated, 7);

  parsed out;
  request& r = out.value;
  r.what = grammar.what;
  r.native = opcode;
  r.id = at.index;
  r.signalled = (in.u8(11) >> 2U & 3U) == 2;
  r.has_immediate = grammar.immediate;
  r.immediate = grammar.immediate ? in.be32(12) : 0;
  r.slots = (segments + 3) / 4;
  std::uint32_t next = 16;
  if (grammar.remote) {
    if (!in.all_zero(next + 12, next + 16))
      return mlx5_refused(violation::reserved_bits, next + 12);
    r.remote = {in.be64(next), in.be32(next + 8)};
    next += 16;
  }
  if (grammar.atomic) {
    if (r.remote.address % 8 != 0) return mlx5_refused(violation::misaligned_atomic, 16);
    r.operand = in.be64(next);
    r.compare = in.be64(next + 8);
    if (in.be32(next + 16) != 8) return mlx5_refused(violation::length_mismatch, next + 16);
    next += 16;
  }
  return detail::mlx5_local(in, next, end, std::move(out));
}

/// Reads a receive entry: data segments up to the first with the invalid key.
[[nodiscard]] inline parsed parse_mlx5_receive(std::span<const std::byte> entry) {
  constexpr std::uint32_t invalid_key = 0x100;  // MLX5_INVALID_LKEY ends a short list
  if (entry.size() < 16 || entry.size() % 16 != 0) {
    return detail::mlx5_refused(violation::truncated, 0);
  }
  const detail::entry_reader in(entry);
  parsed out;
  for (std::uint32_t at = 0; at < entry.size(); at += 16) {
    const local_range range{in.be64(at + 8), in.be32(at + 4), in.be32(at)};
    if (range.key == invalid_key) break;
    if ((range.bytes & mlx5::inline_mark) != 0) {
      return detail::mlx5_refused(violation::receive_entry, at);
    }
    out.value.local.push_back(range);
  }
  return out;
}

}  // namespace eptransport::gdaki::emulator
