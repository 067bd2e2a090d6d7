// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The 16-byte command: what a producer asks of the proxy, and the codec of both sides.
///
/// Every command is a put. A signal is a put without bytes; a run of rows is a put that counts more
/// than one; a flush needs no command, for the engine says how far each ring is complete
/// (ring.hpp).
///
/// Bit 63 of each of the two words is the lap parity of the ring, which leaves 126 bits. Their
/// layout follows the group: as many bits for the peer as there are ranks, and so on, so that a
/// small group has room for long runs and a large one is refused only when it truly does not fit.
///
///     word 0:  parity | count | destination, high part | bytes | signal | peer
///     word 1:  parity | destination, low part | source
#pragma once

#include <eptransport/core/config.hpp>
#include <eptransport/core/result.hpp>
#include <eptransport/core/transport.hpp>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <string>

namespace eptransport::proxy {

/// One put, as a producer asks for it. Offsets are bytes from the start of a window.
struct command {
  std::uint64_t src_offset = 0;      ///< in the own window
  std::uint64_t dst_offset = 0;      ///< in the peer's
  std::uint64_t bytes = 0;           ///< of the whole run
  std::uint32_t peer = 0;            ///< destination rank
  std::uint32_t signal = no_signal;  ///< the peer's word that grows
  std::uint32_t count = 1;           ///< by how much: rows of the run, at least 1

  friend bool operator==(const command&, const command&) = default;
};

/// What the fields of a command must be able to say.
struct command_limits {
  std::uint64_t ranks = 1;
  std::uint64_t signals = 0;       ///< words per rank
  std::uint64_t window_bytes = 0;  ///< of the largest window
  std::uint64_t max_message = 0;   ///< bytes of one command; 0 = as many as the window has
};

/// The words of an entry.
struct command_words {
  std::uint64_t first = 0;
  std::uint64_t second = 0;
};

/// Bit 63 of both words of an entry.
inline constexpr std::uint64_t parity_bit = std::uint64_t{1} << 63;

/// Where the fields lie. Trivially copyable: a kernel takes it by value.
///
/// @par Threads  Any; it never changes.
class command_codec {
 public:
  /// @par Errors  `unsupported` when the fields need more than 126 bits, with what each needs
  [[nodiscard]] static result<command_codec> create(const command_limits& limits) {
    const std::uint64_t longest = limits.max_message == 0
                                      ? limits.window_bytes
                                      : std::min(limits.max_message, limits.window_bytes);
    const auto bits = [](std::uint64_t largest) {
      return static_cast<int>(std::bit_width(largest));
    };
    const int peer = bits(limits.ranks == 0 ? 0 : limits.ranks - 1);
    const int signal = bits(limits.signals);  // one value more: none
    const int length = bits(longest);
    const int offset = bits(limits.window_bytes);
    const int needed = peer + signal + length + 2 * offset;
    const int high = std::max(0, 2 * offset - word_bits);
    const int rest = word_bits - peer - signal - length - high;
    if (limits.ranks == 0 || rest < 0 || offset > word_bits || signal > 32) {
      const auto number = [](auto value) { return std::to_string(value); };
      return failure{
          errc::unsupported, "command_codec::create",
          "a command has 126 bits and would need " + number(needed) + ": " + number(peer) +
              " for " + number(limits.ranks) + " ranks, " + number(signal) + " for " +
              number(limits.signals) + " signals, " + number(length) + " for messages of " +
              number(longest) + " bytes and 2 x " + number(offset) + " for windows of " +
              number(limits.window_bytes) + " bytes; use a smaller window or shorter messages"};
    }
    command_codec made;
    made.none_ = static_cast<std::uint32_t>(limits.signals);
    made.signal_at_ = static_cast<std::uint8_t>(peer);
    made.bytes_at_ = static_cast<std::uint8_t>(peer + signal);
    made.high_at_ = static_cast<std::uint8_t>(peer + signal + length);
    made.count_at_ = static_cast<std::uint8_t>(peer + signal + length + high);
    made.count_bits_ = static_cast<std::uint8_t>(std::min(rest, max_count_bits));
    made.src_bits_ = static_cast<std::uint8_t>(offset);
    return made;
  }

  /// The most that one command counts.
  [[nodiscard]] EPT_HOST_DEVICE std::uint32_t max_count() const noexcept {
    return std::uint32_t{1} << count_bits_;
  }

  /// Without parity: the ring sets it. The fields must lie within the limits.
  [[nodiscard]] EPT_HOST_DEVICE command_words encode(const command& c) const noexcept {
    const std::uint64_t signal = c.signal == no_signal ? none_ : c.signal;
    const std::uint64_t low_bits = static_cast<std::uint64_t>(word_bits - src_bits_);
    // A put without bytes may name any place; what would not fit its field is no place.
    const std::uint64_t dst = c.bytes == 0 ? 0 : c.dst_offset;
    const std::uint64_t src = c.bytes == 0 ? 0 : c.src_offset;
    return {c.peer | signal << signal_at_ | c.bytes << bytes_at_ | (dst >> low_bits) << high_at_ |
                std::uint64_t{c.count - 1} << count_at_,
            (src | dst << src_bits_) & ~parity_bit};
  }

  [[nodiscard]] EPT_HOST_DEVICE command decode(command_words w) const noexcept {
    const std::uint64_t first = w.first & ~parity_bit;
    const std::uint64_t second = w.second & ~parity_bit;
    const std::uint64_t low_bits = static_cast<std::uint64_t>(word_bits - src_bits_);
    command c;
    c.peer = static_cast<std::uint32_t>(field(first, 0, signal_at_));
    const std::uint64_t signal = field(first, signal_at_, bytes_at_);
    c.signal = signal == none_ ? no_signal : static_cast<std::uint32_t>(signal);
    c.bytes = field(first, bytes_at_, high_at_);
    c.count = static_cast<std::uint32_t>(first >> count_at_) + 1;
    c.src_offset = second & ((std::uint64_t{1} << src_bits_) - 1);
    c.dst_offset = second >> src_bits_ | field(first, high_at_, count_at_) << low_bits;
    return c;
  }

 private:
  static constexpr int word_bits = 63;
  static constexpr int max_count_bits = 20;

  [[nodiscard]] EPT_HOST_DEVICE static std::uint64_t field(std::uint64_t word, std::uint64_t from,
                                                           std::uint64_t to) noexcept {
    return word >> from & ((std::uint64_t{1} << (to - from)) - 1);
  }

  std::uint32_t none_ = 0;  ///< what stands for `no_signal`
  std::uint8_t signal_at_ = 0;
  std::uint8_t bytes_at_ = 0;
  std::uint8_t high_at_ = 0;
  std::uint8_t count_at_ = 0;
  std::uint8_t count_bits_ = 0;
  std::uint8_t src_bits_ = 0;
};

/// What 32 bits of immediate data say: who sent it, which word grows and by how much.
///
/// Two values past the last word return credits instead. A provider that cannot name the sender of
/// an immediate is no obstacle: the immediate does.
///
/// @par Threads  Any; it never changes.
class immediate_codec {
 public:
  /// @param bits  of an immediate on this wire; 0 = it carries none
  /// @par Errors  `unsupported`, with both numbers
  [[nodiscard]] static result<immediate_codec> create(std::uint64_t ranks, std::uint64_t signals,
                                                      int bits) {
    const int rank = static_cast<int>(std::bit_width(ranks - 1));
    const int signal = static_cast<int>(std::bit_width(signals + 1));
    const int rest = std::min(bits, 32) - rank - signal;
    if (ranks == 0 || rest < 1) {
      return failure{errc::unsupported, "immediate_codec::create",
                     "an immediate has " + std::to_string(bits) + " bits on this wire and needs " +
                         std::to_string(rank + signal + 1) + ": " + std::to_string(rank) + " for " +
                         std::to_string(ranks) + " ranks, " + std::to_string(signal) + " for " +
                         std::to_string(signals) + " signals and 2 kinds of credit, 1 to count"};
    }
    immediate_codec made;
    made.signal_at_ = static_cast<std::uint8_t>(rank);
    made.count_at_ = static_cast<std::uint8_t>(rank + signal);
    made.max_count_ = std::uint32_t{1} << rest;
    if (rest >= 31) made.max_count_ = std::uint32_t{1} << 30;
    made.signals_ = static_cast<std::uint32_t>(signals);
    return made;
  }

  [[nodiscard]] std::uint32_t max_count() const noexcept { return max_count_; }
  /// Where the signal begins, above the sender's rank.
  [[nodiscard]] std::uint32_t rank_bits() const noexcept { return signal_at_; }
  /// In place of a signal: `count` writes, or messages, of the receiver have been taken in.
  [[nodiscard]] std::uint32_t write_credit() const noexcept { return signals_; }
  [[nodiscard]] std::uint32_t message_credit() const noexcept { return signals_ + 1; }

  [[nodiscard]] std::uint32_t encode(std::uint32_t source, std::uint32_t signal,
                                     std::uint32_t count) const noexcept {
    return source | signal << signal_at_ | (count - 1) << count_at_;
  }

  /// The fields of an immediate.
  struct fields {
    std::uint32_t source = 0;
    std::uint32_t signal = 0;  ///< or one of the credits
    std::uint32_t count = 0;
  };

  [[nodiscard]] fields decode(std::uint32_t immediate) const noexcept {
    const std::uint32_t low = (std::uint32_t{1} << signal_at_) - 1;
    const std::uint32_t middle = (std::uint32_t{1} << (count_at_ - signal_at_)) - 1;
    return {immediate & low, immediate >> signal_at_ & middle, (immediate >> count_at_) + 1};
  }

 private:
  std::uint32_t max_count_ = 1;
  std::uint32_t signals_ = 0;
  std::uint8_t signal_at_ = 0;
  std::uint8_t count_at_ = 0;
};

}  // namespace eptransport::proxy
