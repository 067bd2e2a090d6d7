// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Value types of rows and their conversions to and from fp32, the same bits on CPU and GPU.
#pragma once

#include <eptransport/core/config.hpp>

#include <cstddef>
#include <cstdint>

namespace eptransport {

/// bf16 bits to fp32, exact.
[[nodiscard]] EPT_HOST_DEVICE inline float bf16_to_float(std::uint16_t bits) noexcept {
  return __builtin_bit_cast(float, static_cast<std::uint32_t>(bits) << 16);
}

/// fp32 to bf16 bits, round to nearest even; NaN stays NaN.
[[nodiscard]] EPT_HOST_DEVICE inline std::uint16_t float_to_bf16(float value) noexcept {
  const std::uint32_t bits = __builtin_bit_cast(std::uint32_t, value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<std::uint16_t>((bits >> 16) | 0x40u);
  return static_cast<std::uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

/// IEEE binary16 bits to fp32, exact.
[[nodiscard]] EPT_HOST_DEVICE inline float fp16_to_float(std::uint16_t half) noexcept {
  const std::uint32_t sign = static_cast<std::uint32_t>(half & 0x8000u) << 16;
  const std::uint32_t rest = half & 0x7fffu;
  if (rest >= 0x7c00u) {
    return __builtin_bit_cast(float, sign | 0x7f800000u | ((rest & 0x3ffu) << 13));
  }
  if (rest >= 0x400u) return __builtin_bit_cast(float, sign | ((rest + 0x1c000u) << 13));
  const float small = static_cast<float>(rest) * 0x1p-24F;  // subnormal: units of 2^-24
  return __builtin_bit_cast(float, sign | __builtin_bit_cast(std::uint32_t, small));
}

/// fp32 to IEEE binary16 bits, round to nearest even; overflow is infinity, NaN stays NaN.
[[nodiscard]] EPT_HOST_DEVICE inline std::uint16_t float_to_fp16(float value) noexcept {
  const std::uint32_t bits = __builtin_bit_cast(std::uint32_t, value);
  const std::uint32_t sign = (bits >> 16) & 0x8000u;
  const std::uint32_t rest = bits & 0x7fffffffu;
  if (rest > 0x7f800000u) return static_cast<std::uint16_t>(sign | 0x7e00u);
  if (rest >= 0x477ff000u) return static_cast<std::uint16_t>(sign | 0x7c00u);  // rounds to 2^16
  if (rest >= 0x38800000u) {  // normal: at least 2^-14
    const std::uint32_t rounded = rest + 0xfffu + ((rest >> 13) & 1u);
    return static_cast<std::uint16_t>(sign | ((rounded - 0x38000000u) >> 13));
  }
  // Adding 2^-1 leaves the value in units of 2^-24 in the low bits, rounded by the addition.
  const float magnitude = __builtin_bit_cast(float, rest);
  const std::uint32_t units = __builtin_bit_cast(std::uint32_t, magnitude + 0.5F) - 0x3f000000u;
  return static_cast<std::uint16_t>(sign | units);
}

/// fp32 to OCP FP8 e4m3 (FN) bits, round to nearest even, saturating at 448; NaN stays NaN.
/// @par Source  OCP 8-bit Floating Point Specification (OFP8) 1.0
[[nodiscard]] EPT_HOST_DEVICE inline std::uint8_t float_to_e4m3(float value) noexcept {
  const std::uint32_t bits = __builtin_bit_cast(std::uint32_t, value);
  const std::uint32_t sign = (bits >> 24) & 0x80u;
  const std::uint32_t rest = bits & 0x7fffffffu;
  if (rest > 0x7f800000u) return static_cast<std::uint8_t>(sign | 0x7fu);
  if (rest >= 0x43e00000u) return static_cast<std::uint8_t>(sign | 0x7eu);  // 448 and above
  if (rest >= 0x3c800000u) {  // normal: 2^-6 and above
    const std::uint32_t rounded = rest + 0x7ffffu + ((rest >> 20) & 1u);
    return static_cast<std::uint8_t>(sign | ((rounded - 0x3c000000u) >> 20));
  }
  // Adding 2^14 leaves the value in units of 2^-9 in the low bits, rounded by the addition.
  const float magnitude = __builtin_bit_cast(float, rest);
  const std::uint32_t units = __builtin_bit_cast(std::uint32_t, magnitude + 16384.0F) - 0x46800000u;
  return static_cast<std::uint8_t>(sign | units);
}

/// Two neighbouring values.
struct two_floats {
  float even, odd;
};

/// Value policy of `sum_rows`: bf16 rows. `pair` is two neighbouring values, the first in the low
/// half; whole words are cheaper than halves on every machine.
struct bf16_value {
  using storage = std::uint16_t;
  using pair = std::uint32_t;
  [[nodiscard]] EPT_HOST_DEVICE static float load(storage v) noexcept { return bf16_to_float(v); }
  [[nodiscard]] EPT_HOST_DEVICE static storage store(float v) noexcept { return float_to_bf16(v); }
  [[nodiscard]] EPT_HOST_DEVICE static two_floats load_pair(pair p) noexcept {
    return {__builtin_bit_cast(float, p << 16), __builtin_bit_cast(float, p & 0xffff0000u)};
  }
  /// The values are results of arithmetic: a NaN among them is quiet.
  [[nodiscard]] EPT_HOST_DEVICE static pair store_pair(two_floats v) noexcept {
    return (rounded(v.even) >> 16) | (rounded(v.odd) & 0xffff0000u);
  }

 private:
  /// fp32 bits, the upper half rounded to nearest even; without branches, so that loops vectorise.
  [[nodiscard]] EPT_HOST_DEVICE static std::uint32_t rounded(float v) noexcept {
    const std::uint32_t bits = __builtin_bit_cast(std::uint32_t, v);
    const std::uint32_t up = 0x7fffu + ((bits >> 16) & 1u);
    return bits + (v == v ? up : 0u);
  }
};
/// Value policy of `sum_rows`: fp16 rows.
struct fp16_value {
  using storage = std::uint16_t;
  using pair = std::uint32_t;
  [[nodiscard]] EPT_HOST_DEVICE static float load(storage v) noexcept { return fp16_to_float(v); }
  [[nodiscard]] EPT_HOST_DEVICE static storage store(float v) noexcept { return float_to_fp16(v); }
  [[nodiscard]] EPT_HOST_DEVICE static two_floats load_pair(pair p) noexcept {
    return {load(static_cast<storage>(p)), load(static_cast<storage>(p >> 16))};
  }
  [[nodiscard]] EPT_HOST_DEVICE static pair store_pair(two_floats v) noexcept {
    return store(v.even) | static_cast<pair>(store(v.odd)) << 16;
  }
};
/// Value policy of `sum_rows`: fp32 rows.
struct fp32_value {
  using storage = float;
  using pair = two_floats;
  [[nodiscard]] EPT_HOST_DEVICE static float load(storage v) noexcept { return v; }
  [[nodiscard]] EPT_HOST_DEVICE static storage store(float v) noexcept { return v; }
  [[nodiscard]] EPT_HOST_DEVICE static two_floats load_pair(pair p) noexcept { return p; }
  [[nodiscard]] EPT_HOST_DEVICE static pair store_pair(two_floats v) noexcept { return v; }
};

namespace detail {

/// Value c of a row that may lie at any address of its type's alignment.
template <class Value>
[[nodiscard]] EPT_HOST_DEVICE float load_value(const std::byte* row, std::int64_t c) noexcept {
  return Value::load(reinterpret_cast<const typename Value::storage*>(row)[c]);
}
template <class Value>
EPT_HOST_DEVICE void store_value(std::byte* row, std::int64_t c, float value) noexcept {
  reinterpret_cast<typename Value::storage*>(row)[c] = Value::store(value);
}

}  // namespace detail
}  // namespace eptransport
