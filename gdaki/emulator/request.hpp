// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief A send queue entry as the emulator understood it, whatever its format.
#pragma once

#include <eptransport/core/config.hpp>
#include <eptransport/gdaki/emulator/violation.hpp>
#include <eptransport/gdaki/segment.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

namespace eptransport::gdaki::emulator {

/// What a request does.
enum class action : std::uint8_t { nothing, send, write, read, fetch_add, compare_swap };

/// One request.
struct request {
  action what = action::nothing;
  std::uint8_t native = 0;  ///< operation (EFA) or opcode (mlx5), for its completion
  bool has_immediate = false;
  bool signalled = true;
  bool is_inline = false;
  std::uint16_t id = 0;          ///< request id (EFA) or first block (mlx5)
  std::uint32_t immediate = 0;   ///< the number
  std::uint16_t handle = 0;      ///< EFA
  std::uint16_t target_qpn = 0;  ///< EFA
  std::uint32_t qkey = 0;        ///< EFA
  remote_range remote{};
  std::vector<local_range> local;
  std::vector<std::byte> data;  ///< inline bytes
  std::uint64_t operand = 0;    ///< added or swapped in
  std::uint64_t compare = 0;
  std::uint32_t slots = 1;  ///< that the entry took

  /// Bytes that the request moves.
  [[nodiscard]] std::uint64_t bytes() const noexcept {
    if (is_inline) return data.size();
    std::uint64_t sum = 0;
    for (const local_range& range : local) sum += range.bytes;
    return sum;
  }
};

/// A request, or the first rule that the entry breaks.
struct parsed {
  violation what = violation::none;
  std::uint32_t offset = 0;  ///< byte of the entry where it breaks the rule
  request value{};

  [[nodiscard]] bool ok() const noexcept { return what == violation::none; }
};

namespace detail {

/// Reads numbers out of an entry; the caller has checked the size.
class entry_reader {
 public:
  explicit entry_reader(std::span<const std::byte> bytes) noexcept : bytes_(bytes) {}

  [[nodiscard]] std::size_t size() const noexcept { return bytes_.size(); }
  [[nodiscard]] std::uint8_t u8(std::size_t at) const noexcept {
    return static_cast<std::uint8_t>(bytes_[at]);
  }
  [[nodiscard]] std::uint16_t le16(std::size_t at) const noexcept {
    return number<std::uint16_t>(at);
  }
  [[nodiscard]] std::uint32_t le32(std::size_t at) const noexcept {
    return number<std::uint32_t>(at);
  }
  [[nodiscard]] std::uint64_t le64(std::size_t at) const noexcept {
    return number<std::uint64_t>(at);
  }
  [[nodiscard]] std::uint32_t be32(std::size_t at) const noexcept { return swap_bytes(le32(at)); }
  [[nodiscard]] std::uint64_t be64(std::size_t at) const noexcept { return swap_bytes(le64(at)); }

  [[nodiscard]] bool all_zero(std::size_t from, std::size_t to) const noexcept {
    for (std::size_t i = from; i < to; ++i) {
      if (u8(i) != 0) return false;
    }
    return true;
  }
  [[nodiscard]] std::vector<std::byte> copy(std::size_t from, std::size_t count) const {
    const std::span<const std::byte> part = bytes_.subspan(from, count);
    return {part.begin(), part.end()};
  }

 private:
  template <class T>
  [[nodiscard]] T number(std::size_t at) const noexcept {
    T value{};
    std::memcpy(&value, bytes_.data() + at, sizeof(T));
    return value;
  }

  std::span<const std::byte> bytes_;
};

}  // namespace detail

}  // namespace eptransport::gdaki::emulator
