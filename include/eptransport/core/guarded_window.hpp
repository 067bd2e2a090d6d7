// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Host memory whose borders show whether somebody wrote past them.
#pragma once

#include <eptransport/core/config.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>
#include <span>

namespace eptransport {

/// Zeroed memory between two guard zones. Untouched pages cost nothing.
class guarded_window {
 public:
  static constexpr std::size_t guard_bytes = 4096;

  /// Check `valid()` before use.
  explicit guarded_window(std::uint64_t bytes) : bytes_(bytes), memory_(nullptr, &std::free) {
    constexpr std::uint64_t extra = 3 * guard_bytes;
    if (bytes > std::numeric_limits<std::ptrdiff_t>::max() - extra) return;
    memory_.reset(static_cast<std::byte*>(std::calloc(bytes + extra, 1)));
    if (memory_ == nullptr) return;
    const auto at = reinterpret_cast<std::uintptr_t>(memory_.get());
    data_ = memory_.get() + (guard_bytes - at % guard_bytes) % guard_bytes + guard_bytes;
    guard(data_ - guard_bytes);
    guard(data_ + bytes_);
  }
  /// Memory of the caller, who watches its borders himself; it outlives the window.
  explicit guarded_window(std::span<std::byte> memory) noexcept
      : bytes_(memory.size()), memory_(nullptr, &std::free), data_(memory.data()) {}

  [[nodiscard]] bool valid() const noexcept { return data_ != nullptr; }
  [[nodiscard]] std::byte* data() const noexcept { return data_; }
  [[nodiscard]] std::uint64_t bytes() const noexcept { return bytes_; }
  [[nodiscard]] bool intact() const noexcept {
    return memory_ == nullptr || (intact(data_ - guard_bytes) && intact(data_ + bytes_));
  }

  /// Makes a guard zone of `guard_bytes` bytes, and looks whether one still is what it was.
  static void guard(std::byte* zone) noexcept { std::memset(zone, canary, guard_bytes); }
  [[nodiscard]] static bool intact(const std::byte* zone) noexcept {
    return std::all_of(zone, zone + guard_bytes,
                       [](std::byte b) { return b == std::byte{canary}; });
  }

 private:
  static constexpr unsigned char canary = 0xc9;
  std::uint64_t bytes_;
  std::unique_ptr<std::byte, void (*)(void*)> memory_;
  std::byte* data_ = nullptr;
};

}  // namespace eptransport
