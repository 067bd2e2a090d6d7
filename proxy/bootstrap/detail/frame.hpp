// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The frames of the bootstrap on a stream of bytes: a head of 16 bytes, then a payload.
///
/// | "EPTB" | kind 1 | zero 3 | payload bytes 4 | call 4 | payload |, all numbers little-endian.
/// What does not begin so is refused at the first byte that differs, and a payload above the limit
/// before any of it is kept. Nothing here knows a socket.
#pragma once

#include <eptransport/core/config.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace eptransport::bootstrap_detail {

/// Rank 0 is the hub; each other rank has one connection with it.
enum class frame_kind : std::uint8_t {
  // The first five keep their layout in every version: ranks of two versions can say so.
  hello = 1,  ///< to the hub: a nonce
  challenge,  ///< from the hub: its version and nonce
  proof,      ///< to the hub: version, rank, size, keyed digest
  welcome,    ///< from the hub: its keyed digest, the timing of all ranks
  refuse,     ///< from the hub: a notice; the connection ends
  beat,       ///< both ways: alive
  part,       ///< to the hub: what a rank gives to a collective call
  parts,      ///< from the hub: what consecutive ranks gave
  lost,       ///< both ways: a notice that a rank is dead
  left,       ///< from the hub: a notice that a rank has left in order
  expired,    ///< to the hub: the sender's call has met its deadline
  abort,      ///< to the hub: the sender cannot go on, and why
  fail,       ///< from the hub: a notice that ends all calls
  bye,        ///< both ways: the sender leaves in order
};
inline constexpr auto last_frame_kind = static_cast<std::uint8_t>(frame_kind::bye);

struct frame {
  frame_kind kind = frame_kind::beat;
  std::uint32_t call = 0;  ///< of part, parts and expired: the number of the collective call
  std::vector<std::byte> payload{};
};

inline constexpr std::size_t head_bytes = 16;
inline constexpr std::array<std::byte, 4> frame_magic = {std::byte{'E'}, std::byte{'P'},
                                                         std::byte{'T'}, std::byte{'B'}};
/// Most bytes of a payload before the other end has proved itself.
inline constexpr std::uint32_t stranger_limit = 64;
/// Most bytes that a rank gives to one call.
inline constexpr std::uint32_t part_limit = 1U << 20U;
/// Most bytes of any payload: a rank's part with its head.
inline constexpr std::uint32_t payload_limit = part_limit + 64;
/// Most bytes of a text in a notice.
inline constexpr std::uint32_t text_limit = 1200;

/// Appends numbers and texts to a payload.
class payload_writer {
 public:
  payload_writer& u32(std::uint32_t value) { return number(value, 4); }
  payload_writer& i32(std::int32_t value) { return u32(static_cast<std::uint32_t>(value)); }
  payload_writer& u64(std::uint64_t value) { return number(value, 8); }
  payload_writer& raw(std::span<const std::byte> bytes) {
    bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
    return *this;
  }
  /// Length, then the bytes.
  payload_writer& text(std::string_view value) {
    u32(static_cast<std::uint32_t>(value.size()));
    return raw(std::as_bytes(std::span(value.data(), value.size())));
  }
  [[nodiscard]] std::vector<std::byte> take() { return std::move(bytes_); }

 private:
  payload_writer& number(std::uint64_t value, int bytes) {
    for (int i = 0; i < bytes; ++i) bytes_.push_back(static_cast<std::byte>(value >> (8 * i)));
    return *this;
  }
  std::vector<std::byte> bytes_;
};

/// Reads what a payload_writer wrote. After a read beyond the end every value is empty, and `whole`
/// says false.
class payload_reader {
 public:
  explicit payload_reader(std::span<const std::byte> bytes) noexcept : bytes_(bytes) {}

  std::uint32_t u32() noexcept { return static_cast<std::uint32_t>(number(4)); }
  std::int32_t i32() noexcept { return static_cast<std::int32_t>(u32()); }
  std::uint64_t u64() noexcept { return number(8); }
  std::span<const std::byte> raw(std::size_t bytes) noexcept {
    if (bytes > bytes_.size()) {
      short_ = true;
      bytes_ = {};
      return {};
    }
    const auto taken = bytes_.first(bytes);
    bytes_ = bytes_.subspan(bytes);
    return taken;
  }
  template <std::size_t kBytes>
  std::array<std::byte, kBytes> fixed() noexcept {
    std::array<std::byte, kBytes> out{};
    const auto from = raw(kBytes);
    std::copy(from.begin(), from.end(), out.begin());
    return out;
  }
  std::string text() {
    const auto bytes = raw(u32());
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }
  std::span<const std::byte> rest() noexcept { return raw(bytes_.size()); }
  /// All was there, and nothing is left over.
  [[nodiscard]] bool whole() const noexcept { return !short_ && bytes_.empty(); }

 private:
  std::uint64_t number(std::size_t bytes) noexcept {
    const auto from = raw(bytes);
    std::uint64_t value = 0;
    for (std::size_t i = 0; i < from.size(); ++i) {
      value |= std::to_integer<std::uint64_t>(from[i]) << (8 * i);
    }
    return value;
  }
  std::span<const std::byte> bytes_;
  bool short_ = false;
};

/// The bytes of a frame as they go over the wire.
[[nodiscard]] inline std::vector<std::byte> encode(frame_kind kind, std::uint32_t call,
                                                   std::span<const std::byte> payload) {
  return payload_writer()
      .raw(frame_magic)
      .u32(static_cast<std::uint32_t>(kind))
      .u32(static_cast<std::uint32_t>(payload.size()))
      .u32(call)
      .raw(payload)
      .take();
}

/// What `frame_parser::next` found.
enum class parse_state { more, ready, broken };

/// Cuts a stream into frames.
class frame_parser {
 public:
  explicit frame_parser(std::uint32_t limit = stranger_limit) noexcept : limit_(limit) {}

  /// The other end has proved itself: larger payloads may follow.
  void allow(std::uint32_t limit) noexcept { limit_ = limit; }
  void push(std::span<const std::byte> bytes) {
    if (!broken_) bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
  }
  /// `broken`: these are not our frames, and nothing will follow; `why` says what was wrong.
  [[nodiscard]] parse_state next(frame& out) {
    if (broken_) return parse_state::broken;
    const std::size_t seen = std::min(bytes_.size(), frame_magic.size());
    if (!std::equal(bytes_.begin(), bytes_.begin() + static_cast<std::ptrdiff_t>(seen),
                    frame_magic.begin())) {
      return refuse("these are not frames of a bootstrap");
    }
    if (bytes_.size() < head_bytes) return parse_state::more;
    payload_reader head(std::span<const std::byte>(bytes_).subspan(frame_magic.size()));
    const std::uint32_t kind = head.u32();
    const std::uint32_t payload = head.u32();
    const std::uint32_t call = head.u32();
    if (kind < 1 || kind > last_frame_kind) {
      return refuse("a frame of unknown kind " + std::to_string(kind));
    }
    if (payload > limit_) {
      return refuse("a frame of " + std::to_string(payload) + " bytes, at most " +
                    std::to_string(limit_) + " are allowed");
    }
    if (bytes_.size() < head_bytes + payload) return parse_state::more;
    const auto first = bytes_.begin() + head_bytes;
    out.kind = static_cast<frame_kind>(kind);
    out.call = call;
    out.payload.assign(first, first + static_cast<std::ptrdiff_t>(payload));
    bytes_.erase(bytes_.begin(), first + static_cast<std::ptrdiff_t>(payload));
    return parse_state::ready;
  }
  [[nodiscard]] const std::string& why() const noexcept { return why_; }

 private:
  [[nodiscard]] parse_state refuse(std::string why) {
    broken_ = true;
    why_ = std::move(why);
    bytes_.clear();
    return parse_state::broken;
  }

  std::vector<std::byte> bytes_;
  std::uint32_t limit_;
  bool broken_ = false;
  std::string why_;
};

}  // namespace eptransport::bootstrap_detail
