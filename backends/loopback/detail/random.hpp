// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The seeded source of every decision, and the hash that proves a replay.
#pragma once

#include <eptransport/core/config.hpp>

#include <cstdint>

namespace eptransport::loopback_detail {

/// Scrambles 64 bits (the finaliser of splitmix64).
[[nodiscard]] constexpr std::uint64_t scramble(std::uint64_t value) noexcept {
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9U;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebU;
  return value ^ (value >> 31);
}

/// The dice of one world. Not thread safe: the engine's lock covers it.
class dice {
 public:
  explicit constexpr dice(std::uint64_t seed) noexcept : state_(scramble(seed + 1)) {}

  constexpr std::uint64_t next() noexcept {
    state_ += 0x9e3779b97f4a7c15U;
    return scramble(state_);
  }

  /// @pre `bound` is not 0
  constexpr std::uint64_t below(std::uint64_t bound) noexcept { return next() % bound; }

  /// True `sixteenths` times out of 16.
  constexpr bool chance(std::uint32_t sixteenths) noexcept { return (next() >> 60) < sixteenths; }

 private:
  std::uint64_t state_;
};

/// Running hash of decisions.
class trace {
 public:
  constexpr void add(std::uint64_t decision) noexcept { hash_ = scramble(hash_ ^ decision) + 1; }
  [[nodiscard]] constexpr std::uint64_t hash() const noexcept { return hash_; }

 private:
  std::uint64_t hash_ = 0x7f4a7c15;
};

}  // namespace eptransport::loopback_detail
