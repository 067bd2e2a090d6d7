// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Random bits that are a function of a seed and a path, so that any part can be redrawn.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <span>

namespace eptransport::support {

/// splitmix64: small, fast, the same on every machine.
class random_bits {
 public:
  explicit random_bits(std::uint64_t seed) noexcept : state_(seed) {}

  /// The stream of a path such as {seed, iteration, rank}; neighbouring paths are unrelated.
  random_bits(std::initializer_list<std::uint64_t> path) noexcept : state_(0x5bd1e995) {
    for (const std::uint64_t step : path) state_ = (*this)() ^ (step * 0x9e3779b97f4a7c15u);
  }

  std::uint64_t operator()() noexcept {
    state_ += 0x9e3779b97f4a7c15u;
    std::uint64_t z = state_;
    z = (z ^ (z >> 30U)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27U)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31U);
  }

  /// In [0, bound); bound at least 1.
  std::uint64_t below(std::uint64_t bound) noexcept { return (*this)() % bound; }

  /// In [0, 1).
  double unit() noexcept { return static_cast<double>((*this)() >> 11U) * 0x1p-53; }

  /// True with that probability.
  bool chance(double probability) noexcept { return unit() < probability; }

  /// Fills memory.
  void fill(std::span<std::byte> bytes) noexcept {
    std::size_t at = 0;
    for (; at + 8 <= bytes.size(); at += 8) {
      const std::uint64_t word = (*this)();
      std::memcpy(bytes.data() + at, &word, 8);
    }
    const std::uint64_t last = (*this)();
    if (at < bytes.size()) std::memcpy(bytes.data() + at, &last, bytes.size() - at);
  }

 private:
  std::uint64_t state_;
};

}  // namespace eptransport::support
