// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Number formats by their definitions.
#include "support/numbers.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

namespace eptransport::support {
namespace {

/// A binary format with subnormals: `fraction` bits, exponents from `least`, bias 1 - least.
struct small_float {
  int fraction;
  int least;
};
constexpr small_float fp16_format{10, -14};
constexpr small_float e4m3_format{3, -6};

/// Bits of a finite magnitude that the format can round to, without the sign.
unsigned encode(small_float format, double magnitude) {
  if (magnitude == 0) return 0;
  const int exponent = std::max(std::ilogb(magnitude), format.least);
  const double units = std::nearbyint(std::ldexp(magnitude, format.fraction - exponent));
  // Units below 2^fraction are subnormal; those that reach 2^(fraction + 1) carry by themselves.
  return (static_cast<unsigned>(exponent - format.least)
          << static_cast<unsigned>(format.fraction)) +
         static_cast<unsigned>(units);
}

double decode(small_float format, unsigned bits) {
  const unsigned one = 1U << static_cast<unsigned>(format.fraction);
  const unsigned field = bits / one;
  const unsigned units = field == 0 ? bits : bits % one + one;
  const int exponent = format.least + static_cast<int>(field == 0 ? 0 : field - 1);
  return std::ldexp(units, exponent - format.fraction);
}

float smallest_scale() {
  return std::ldexp(1.0F, -126);
}

}  // namespace

float reference_from_bf16(std::uint16_t bits) noexcept {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16U);
}

float reference_from_fp16(std::uint16_t bits) noexcept {
  const unsigned rest = bits & 0x7FFFU;
  const double magnitude = rest < 0x7C00U    ? decode(fp16_format, rest)
                           : rest == 0x7C00U ? HUGE_VAL
                                             : static_cast<double>(NAN);
  return static_cast<float>((bits & 0x8000U) != 0 ? -magnitude : magnitude);
}

float reference_from_e4m3(std::uint8_t bits) noexcept {
  const unsigned rest = bits & 0x7FU;
  const double magnitude = rest == 0x7FU ? static_cast<double>(NAN) : decode(e4m3_format, rest);
  return static_cast<float>((bits & 0x80U) != 0 ? -magnitude : magnitude);
}

std::uint16_t reference_to_bf16(float value) noexcept {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t upper = bits >> 16U;
  const std::uint32_t lower = bits & 0xFFFFU;
  if (std::isnan(value)) return static_cast<std::uint16_t>(upper | 0x40U);
  const bool up = lower > 0x8000U || (lower == 0x8000U && (upper & 1U) != 0);
  return static_cast<std::uint16_t>(upper + (up ? 1U : 0U));
}

std::uint16_t reference_to_fp16(float value) noexcept {
  const unsigned sign = std::signbit(value) ? 0x8000U : 0;
  const double magnitude = std::fabs(static_cast<double>(value));
  const unsigned rest = std::isnan(value)    ? 0x7E00U
                        : magnitude >= 65520 ? 0x7C00U
                                             : encode(fp16_format, magnitude);
  return static_cast<std::uint16_t>(sign | rest);
}

std::uint8_t reference_to_e4m3(float value) noexcept {
  const unsigned sign = std::signbit(value) ? 0x80U : 0;
  const double magnitude = std::fabs(static_cast<double>(value));
  const unsigned rest = std::isnan(value)  ? 0x7FU
                        : magnitude >= 448 ? 0x7EU
                                           : encode(e4m3_format, magnitude);
  return static_cast<std::uint8_t>(sign | rest);
}

float reference_load(element type, const std::byte* array, std::uint64_t index) noexcept {
  if (type == element::fp32) {
    float value = 0;
    std::memcpy(&value, array + index * 4, 4);
    return value;
  }
  std::uint16_t bits = 0;
  std::memcpy(&bits, array + index * 2, 2);
  return type == element::bf16 ? reference_from_bf16(bits) : reference_from_fp16(bits);
}

void reference_store(element type, std::byte* array, std::uint64_t index, float value) noexcept {
  if (type == element::fp32) {
    std::memcpy(array + index * 4, &value, 4);
    return;
  }
  const std::uint16_t bits =
      type == element::bf16 ? reference_to_bf16(value) : reference_to_fp16(value);
  std::memcpy(array + index * 2, &bits, 2);
}

float reference_round(element type, float value) noexcept {
  if (type == element::fp32) return value;
  return type == element::bf16 ? reference_from_bf16(reference_to_bf16(value))
                               : reference_from_fp16(reference_to_fp16(value));
}

void reference_quantise(quantisation how, std::int64_t hidden, std::span<const std::byte> x,
                        std::span<std::byte> rows, std::span<std::byte> scales) {
  const auto width = static_cast<std::uint64_t>(hidden);
  const std::uint64_t scale_bytes = quantised_rows(hidden, how).scale_bytes;
  std::fill(scales.begin(), scales.end(), std::byte{0});
  for (std::uint64_t row = 0; row < rows.size() / width; ++row) {
    for (std::uint64_t first = 0; first < width; first += 128) {
      const std::uint64_t count = std::min<std::uint64_t>(128, width - first);
      const auto value = [&](std::uint64_t c) {
        return reference_load(element::bf16, x.data(), row * width + first + c);
      };
      float largest = 0;
      for (std::uint64_t c = 0; c < count; ++c) largest = std::fmax(largest, std::fabs(value(c)));
      // A quotient of two floats that is rounded to double and then to float is rounded as if once.
      float scale =
          std::max(static_cast<float>(static_cast<double>(largest) / 448), smallest_scale());
      std::byte* to = scales.data() + row * scale_bytes;
      if (how == quantisation::fp8_ue8m0) {
        int exponent = 0;
        const float half = std::frexp(scale, &exponent);  // scale = half * 2^exponent, half < 1
        if (half == 0.5F) --exponent;
        scale = std::ldexp(1.0F, exponent);
        to[first / 128] = static_cast<std::byte>(exponent + 127);
      } else {
        reference_store(element::fp32, to, first / 128, scale);
      }
      for (std::uint64_t c = 0; c < count; ++c) {
        const auto quotient = static_cast<float>(static_cast<double>(value(c)) / scale);
        rows[row * width + first + c] = static_cast<std::byte>(reference_to_e4m3(quotient));
      }
    }
  }
}

}  // namespace eptransport::support
