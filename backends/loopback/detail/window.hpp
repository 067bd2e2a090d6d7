// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief One rank's window and signal words, and what watches over them.
#pragma once

#include <eptransport/core/config.hpp>
#include <eptransport/core/memory.hpp>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <iterator>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace eptransport::loopback_detail {

/// Zeroed memory between two guard zones. Untouched pages cost nothing, so that windows of many
/// gigabytes can be simulated.
class window {
 public:
  static constexpr std::size_t guard_bytes = 4096;
  static constexpr std::size_t alignment = 4096;
  static constexpr auto canary = std::byte{0xc9};

  /// Check `valid()` before use.
  explicit window(std::uint64_t bytes) : bytes_(bytes), memory_(reserve(bytes), &std::free) {
    if (memory_ == nullptr) return;
    void* start = memory_.get();
    std::size_t space = bytes + extra_bytes;
    front_ = static_cast<std::byte*>(std::align(alignment, bytes + 2 * guard_bytes, start, space));
    std::memset(front_, static_cast<int>(canary), guard_bytes);
    std::memset(data() + bytes_, static_cast<int>(canary), guard_bytes);
  }

  [[nodiscard]] bool valid() const noexcept { return memory_ != nullptr; }
  [[nodiscard]] std::byte* data() const noexcept { return front_ + guard_bytes; }
  [[nodiscard]] std::uint64_t bytes() const noexcept { return bytes_; }

  [[nodiscard]] bool contains(std::uint64_t offset, std::uint64_t bytes) const noexcept {
    return offset <= bytes_ && bytes <= bytes_ - offset;
  }

  [[nodiscard]] bool contains(const std::byte* p, std::uint64_t bytes) const noexcept {
    const auto at = reinterpret_cast<std::uintptr_t>(p);
    const auto start = reinterpret_cast<std::uintptr_t>(data());
    return at >= start && contains(static_cast<std::uint64_t>(at - start), bytes);
  }

  [[nodiscard]] bool canaries_intact() const noexcept {
    for (std::size_t i = 0; i < guard_bytes; ++i) {
      if (front_[i] != canary || data()[bytes_ + i] != canary) return false;
    }
    return true;
  }

 private:
  static constexpr std::size_t extra_bytes = 2 * guard_bytes + alignment;

  static void* reserve(std::uint64_t bytes) noexcept {
    if (bytes > std::numeric_limits<std::ptrdiff_t>::max() - extra_bytes) return nullptr;
    return std::calloc(bytes + extra_bytes, 1);
  }

  std::uint64_t bytes_;
  std::unique_ptr<void, void (*)(void*)> memory_;
  std::byte* front_ = nullptr;
};

/// The double-write check: which bytes of one window hold something its owner may not have seen.
///
/// A put *claims* its bytes when it is issued. The claim ends when the owner acquires the put's
/// signal word at a value that counts the put, or, for a put without a signal, when it has landed.
/// A put whose bytes overlap a claim could overwrite what was never read: a violation.
class unread_bytes {
 public:
  /// @returns the serial of a put whose claim overlaps, plus 1, or 0
  std::uint64_t claim(std::uint64_t begin, std::uint64_t bytes, std::uint64_t serial) {
    const std::uint64_t end = begin + bytes;
    std::uint64_t other = 0;
    auto it = claims_.lower_bound(begin);
    if (it != claims_.begin() && std::prev(it)->second.end > begin) --it;
    while (it != claims_.end() && it->first < end) {
      other = it->second.serial + 1;
      it = claims_.erase(it);
    }
    claims_[begin] = {end, serial};
    return other;
  }

  /// Ends the claim of a put without a signal, or of a lost one.
  void drop(std::uint64_t begin, std::uint64_t serial) {
    const auto it = claims_.find(begin);
    if (it != claims_.end() && it->second.serial == serial) claims_.erase(it);
  }

  /// The put landed and made `word` count `value`.
  void landed(std::uint32_t word, std::uint64_t value, std::uint64_t begin, std::uint64_t serial) {
    if (word >= waiting_.size()) waiting_.resize(word + 1);
    waiting_[word].push_back({value, begin, serial});
  }

  /// The owner has acquired `word` at `value`.
  void acquired(std::uint32_t word, std::uint64_t value) {
    if (word >= waiting_.size()) return;
    auto& list = waiting_[word];
    while (!list.empty() && static_cast<std::int64_t>(value - list.front().value) >= 0) {
      drop(list.front().begin, list.front().serial);
      list.pop_front();
    }
  }

 private:
  struct range {
    std::uint64_t end = 0;
    std::uint64_t serial = 0;
  };
  struct landing {
    std::uint64_t value = 0;
    std::uint64_t begin = 0;
    std::uint64_t serial = 0;
  };

  std::map<std::uint64_t, range> claims_;     ///< by first byte; disjoint
  std::vector<std::deque<landing>> waiting_;  ///< [word], in counting order
};

/// What went wrong without stopping anybody: a handful of lines, then a count.
class violation_list {
 public:
  void add(const std::string& text) {
    ++count_;
    if (count_ <= shown) lines_ += text + "\n";
  }

  [[nodiscard]] std::string text() const {
    if (count_ <= shown) return lines_;
    return lines_ + "and " + std::to_string(count_ - shown) + " more\n";
  }

 private:
  static constexpr std::uint64_t shown = 16;
  std::uint64_t count_ = 0;
  std::string lines_;
};

}  // namespace eptransport::loopback_detail
