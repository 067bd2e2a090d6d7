// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The grouped message: many small puts to one peer in one slot, and how they are taken out.
///
///     message:  header | entry | payload, padded to 8 | entry | payload | ...
///
/// All numbers are in the byte order of the machine, as in the windows they describe; ranks of one
/// group run on machines of one kind.
#pragma once

#include <eptransport/core/config.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace eptransport::proxy {

/// In front of every message.
struct message_header {
  std::uint32_t source = 0;  ///< rank
  std::uint32_t entries = 0;
  std::uint32_t write_credits = 0;    ///< writes of the receiver that the sender has taken in
  std::uint32_t message_credits = 0;  ///< the same for messages
};

/// In front of every payload.
struct message_entry {
  std::uint64_t dst_offset = 0;
  std::uint32_t bytes = 0;
  std::uint32_t signal = 0;  ///< `no_signal` if none
  std::uint32_t count = 0;
  std::uint32_t reserved = 0;
};

static_assert(sizeof(message_header) == 16 && sizeof(message_entry) == 24);

/// Bytes of a message that a payload takes.
[[nodiscard]] constexpr std::uint64_t message_bytes(std::uint64_t payload) noexcept {
  return sizeof(message_entry) + (payload + 7) / 8 * 8;
}

/// Fills a slot with entries.
class message_writer {
 public:
  message_writer() = default;
  explicit message_writer(std::byte* slot) noexcept : slot_(slot) {}

  [[nodiscard]] bool open() const noexcept { return slot_ != nullptr; }
  [[nodiscard]] std::uint64_t bytes() const noexcept { return bytes_; }
  [[nodiscard]] std::uint32_t entries() const noexcept { return entries_; }
  [[nodiscard]] bool fits(std::uint64_t payload, std::uint64_t slot_bytes) const noexcept {
    return bytes_ + message_bytes(payload) <= slot_bytes;
  }

  /// @pre `fits`
  void append(const message_entry& entry, const std::byte* payload) noexcept {
    std::memcpy(slot_ + bytes_, &entry, sizeof entry);
    if (entry.bytes != 0) std::memcpy(slot_ + bytes_ + sizeof entry, payload, entry.bytes);
    const std::uint64_t end = bytes_ + sizeof entry + entry.bytes;
    bytes_ += message_bytes(entry.bytes);
    if (bytes_ != end) std::memset(slot_ + end, 0, bytes_ - end);
    ++entries_;
  }

  /// The message is complete.
  void close(message_header header) noexcept {
    header.entries = entries_;
    std::memcpy(slot_, &header, sizeof header);
  }

 private:
  std::byte* slot_ = nullptr;
  std::uint64_t bytes_ = sizeof(message_header);
  std::uint32_t entries_ = 0;
};

/// Takes entries out of a message that came from outside: nothing in it is believed.
class message_reader {
 public:
  message_reader(const std::byte* message, std::uint64_t bytes) noexcept
      : message_(message), bytes_(bytes) {
    if (bytes_ < sizeof header_) return;
    std::memcpy(&header_, message_, sizeof header_);
    at_ = sizeof header_;
  }

  /// False for what is too short to be a message.
  [[nodiscard]] bool valid() const noexcept { return at_ != 0; }
  [[nodiscard]] const message_header& header() const noexcept { return header_; }

  /// The next entry and its payload; false if it does not lie within the message.
  [[nodiscard]] bool next(message_entry& entry, const std::byte*& payload) noexcept {
    if (bytes_ - at_ < sizeof entry) return false;
    std::memcpy(&entry, message_ + at_, sizeof entry);
    if (bytes_ - at_ < message_bytes(entry.bytes)) return false;
    payload = message_ + at_ + sizeof entry;
    at_ += message_bytes(entry.bytes);
    return true;
  }

 private:
  const std::byte* message_;
  std::uint64_t bytes_;
  std::uint64_t at_ = 0;
  message_header header_{};
};

}  // namespace eptransport::proxy
