// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Sizes that may not fit: 64-bit arithmetic that remembers it, and units per message.
#pragma once

#include <eptransport/core/capabilities.hpp>
#include <eptransport/core/config.hpp>
#include <eptransport/core/result.hpp>

#include <cstdint>
#include <limits>
#include <string>
#include <utility>

namespace eptransport::detail {

/// Unsigned arithmetic that remembers an overflow.
class checked_size {
 public:
  // NOLINTNEXTLINE(google-explicit-constructor): a plain number is a size
  constexpr checked_size(std::uint64_t value) : value_(value) {}
  [[nodiscard]] constexpr bool fits() const { return fits_; }
  [[nodiscard]] constexpr std::uint64_t value() const { return value_; }

  constexpr friend checked_size operator*(checked_size a, checked_size b) {
    checked_size c{0};
    c.fits_ = !__builtin_mul_overflow(a.value_, b.value_, &c.value_) && a.fits_ && b.fits_;
    return c;
  }
  constexpr friend checked_size operator+(checked_size a, checked_size b) {
    checked_size c{0};
    c.fits_ = !__builtin_add_overflow(a.value_, b.value_, &c.value_) && a.fits_ && b.fits_;
    return c;
  }
  /// Rounded up to a multiple of `unit`.
  [[nodiscard]] constexpr checked_size up(std::uint64_t unit) const {
    checked_size c = *this + checked_size(unit - 1);
    c.value_ = c.value_ / unit * unit;
    return c;
  }

 private:
  std::uint64_t value_;
  bool fits_ = true;
};

/// The larger of two sizes.
[[nodiscard]] constexpr checked_size larger(checked_size a, checked_size b) {
  return !a.fits() || (b.fits() && a.value() >= b.value()) ? a : b;
}

/// An error of `group::sizes` and `group::create`.
[[nodiscard]] inline failure refuse_shape(errc code, std::string detail) {
  return {code, "group", std::move(detail)};
}

/// How many units of `unit` bytes fit one message behind `header` bytes; an error if none does.
[[nodiscard]] inline result<std::int64_t> units_per_message(const capabilities& caps,
                                                            std::uint64_t header,
                                                            std::uint64_t unit) {
  if (caps.max_message == 0) return std::numeric_limits<std::int64_t>::max() / 2;
  if (header + unit > caps.max_message) {
    return refuse_shape(errc::capacity,
                        "one row needs a message of " + std::to_string(header + unit) +
                            " bytes, the wire carries at most " + std::to_string(caps.max_message));
  }
  return static_cast<std::int64_t>((caps.max_message - header) / unit);
}

}  // namespace eptransport::detail
