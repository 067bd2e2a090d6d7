// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Caller buffers with canaries on both sides, and the poison that fills them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <span>
#include <string>

#include "support/twins.hpp"

namespace eptransport::support {

/// Patterns that no correct result consists of: stale-looking bytes, and NaN in bf16, fp32 and fp8;
/// callers change the kind from call to call.
inline void poison(std::span<std::byte> bytes, std::uint64_t kind) noexcept {
  constexpr std::uint8_t patterns[] = {0xA5, 0xFF, 0x7F, 0x5A};
  if (!bytes.empty()) std::memset(bytes.data(), patterns[kind % 4], bytes.size());
}

/// The byte that `poison` writes.
[[nodiscard]] inline std::byte poison_byte(std::uint64_t kind) noexcept {
  std::byte one{};
  poison({&one, 1}, kind);
  return one;
}

/// Whether every byte is `one`: the first is, and each equals its neighbour.
[[nodiscard]] inline bool all_are(std::span<const std::byte> bytes, std::byte one) noexcept {
  if (bytes.empty()) return true;
  return bytes[0] == one && std::memcmp(bytes.data(), bytes.data() + 1, bytes.size() - 1) == 0;
}

/// `count` values of T between two canary zones.
///
/// @par Units  `skew` bytes are added to an address aligned to 256
template <class T>
class guarded {
 public:
  guarded() = default;
  /// @param twins  where it lies and has its twin; null: on the heap, for all
  explicit guarded(std::uint64_t count, std::uint64_t skew = 0, memory_twins* twins = nullptr,
                   twin_use use = twin_use::call)
      : count_(count), skew_(skew) {
    if (twins == nullptr) {
      kernel_ = allocate(total());
      memory_ = pointer(kernel_);
    } else {
      const memory_twins::twin taken = twins->take(total(), use);
      kernel_ = taken.kernel;
      memory_ = pointer(taken.host, leave{});
    }
    std::memset(memory_.get(), canary, total());
  }

  [[nodiscard]] T* data() const noexcept { return at(memory_.get()); }
  /// Its address for kernels.
  [[nodiscard]] T* kernel() const noexcept { return at(kernel_); }
  [[nodiscard]] std::uint64_t size() const noexcept { return count_; }
  [[nodiscard]] T& operator[](std::uint64_t i) const noexcept { return data()[i]; }
  [[nodiscard]] std::span<std::byte> bytes() const noexcept {
    return {reinterpret_cast<std::byte*>(data()), count_ * sizeof(T)};
  }

  /// Where a canary was hit, in bytes relative to the buffer; empty if nowhere.
  [[nodiscard]] std::string damage(const std::string& name) const {
    if (memory_ == nullptr) return {};
    const std::uint64_t begin = zone + skew_;
    const std::uint64_t end = begin + count_ * sizeof(T);
    const std::span<const std::byte> all(memory_.get(), total());
    if (all_are(all.first(begin), std::byte{canary}) &&
        all_are(all.subspan(end), std::byte{canary})) {
      return {};
    }
    for (std::uint64_t at = 0; at < total(); ++at) {
      if (at == begin) at = end;
      if (at >= total()) break;
      if (memory_.get()[at] == static_cast<std::byte>(canary)) continue;
      return "canary of " + name + " hit " +
             (at < begin ? std::to_string(begin - at) + " bytes before its start"
                         : std::to_string(at - end) + " bytes after its end");
    }
    return {};
  }

 private:
  static constexpr std::uint64_t zone = 256;
  static constexpr int canary = 0xC3;

  struct leave {};  ///< its memory belongs to the twins
  struct free_aligned {
    free_aligned() = default;
    free_aligned(leave) noexcept : owned(false) {}
    void operator()(std::byte* p) const noexcept {
      if (owned) ::operator delete(p, std::align_val_t{256});
    }
    bool owned = true;
  };
  using pointer = std::unique_ptr<std::byte, free_aligned>;

  [[nodiscard]] static std::byte* allocate(std::uint64_t bytes) {
    return static_cast<std::byte*>(::operator new(bytes, std::align_val_t{256}));
  }
  [[nodiscard]] T* at(std::byte* start) const noexcept {
    return start == nullptr ? nullptr : reinterpret_cast<T*>(start + zone + skew_);
  }
  [[nodiscard]] std::uint64_t total() const noexcept {
    return zone + skew_ + count_ * sizeof(T) + zone;
  }

  std::uint64_t count_ = 0;
  std::uint64_t skew_ = 0;
  std::byte* kernel_ = nullptr;
  pointer memory_;
};

/// A part of somebody else's memory, with canaries on both sides of it.
class guarded_part {
 public:
  static constexpr std::uint64_t zone = 256;

  guarded_part() = default;
  /// Takes `bytes` of `all` that begin `skew` bytes after a canary zone; the rest becomes canaries.
  ///
  /// @pre `all` has skew + bytes + 2 * zone bytes
  guarded_part(std::span<std::byte> all, std::uint64_t skew, std::uint64_t bytes)
      : all_(all), begin_(zone + skew), end_(begin_ + bytes) {
    std::memset(all_.data(), canary, begin_);
    std::memset(all_.data() + end_, canary, all_.size() - end_);
  }

  [[nodiscard]] std::span<std::byte> bytes() const noexcept {
    return all_.subspan(begin_, end_ - begin_);
  }
  /// With the canaries.
  [[nodiscard]] std::span<std::byte> all() const noexcept { return all_; }

  /// Where a canary was hit; empty if nowhere.
  [[nodiscard]] std::string damage(const std::string& name) const {
    if (all_are(all_.first(begin_), std::byte{canary}) &&
        all_are(all_.subspan(end_), std::byte{canary})) {
      return {};
    }
    for (std::uint64_t at = 0; at < all_.size(); ++at) {
      if (at == begin_) at = end_;
      if (at >= all_.size()) break;
      if (all_[at] == static_cast<std::byte>(canary)) continue;
      return "canary of " + name + " hit " +
             (at < begin_ ? std::to_string(begin_ - at) + " bytes before its start"
                          : std::to_string(at - end_) + " bytes after its end");
    }
    return {};
  }

 private:
  static constexpr int canary = 0xC3;

  std::span<std::byte> all_{};
  std::uint64_t begin_ = 0;
  std::uint64_t end_ = 0;
};

}  // namespace eptransport::support
