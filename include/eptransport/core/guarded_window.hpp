// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Host memory whose borders show whether somebody wrote past them.
#pragma once

#include <eptransport/core/config.hpp>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>

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
    if (!valid()) return;
    const auto at = reinterpret_cast<std::uintptr_t>(memory_.get());
    front_ = memory_.get() + (guard_bytes - at % guard_bytes) % guard_bytes;
    std::memset(front_, canary, guard_bytes);
    std::memset(data() + bytes_, canary, guard_bytes);
  }
  [[nodiscard]] bool valid() const noexcept { return memory_ != nullptr; }
  [[nodiscard]] std::byte* data() const noexcept { return front_ + guard_bytes; }
  [[nodiscard]] std::uint64_t bytes() const noexcept { return bytes_; }
  [[nodiscard]] bool intact() const noexcept {
    for (std::size_t i = 0; i < guard_bytes; ++i) {
      if (front_[i] != std::byte{canary} || data()[bytes_ + i] != std::byte{canary}) return false;
    }
    return true;
  }

 private:
  static constexpr unsigned char canary = 0xc9;
  std::uint64_t bytes_;
  std::unique_ptr<std::byte, void (*)(void*)> memory_;
  std::byte* front_ = nullptr;
};

}  // namespace eptransport
