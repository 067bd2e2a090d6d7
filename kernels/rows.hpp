// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Row arithmetic: bf16 conversions, weighted sums of rows, vector-wide and in any length.
#pragma once

#include <eptransport/core/config.hpp>
#include <eptransport/core/thread_group.hpp>

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

namespace detail {

/// Eight bf16 values: one 16-byte access.
struct alignas(16) bf16x8 {
  std::uint16_t value[8];
};

/// True if all bits say that 16-byte accesses are allowed.
[[nodiscard]] EPT_HOST_DEVICE inline bool aligned16(std::uint64_t bits) noexcept {
  return (bits & 15u) == 0;
}

}  // namespace detail

/// Sums bf16 rows in fp32, in the order in which `source` lists them, and rounds once.
///
/// `Source` is a small value: `count()`, `row(i)` (null = skip) and `weight(i)`; rows and `dst` are
/// [hidden] bf16. With no row the result is 0.
///
/// @par Threads  The group calls together; `g.sync()` before others read `dst`.
EPT_NO_EXEC_CHECK
template <class G, class Source>
EPT_HOST_DEVICE void sum_rows(const G& g, std::byte* dst, std::int64_t hidden,
                              const Source& source) {
  std::uint64_t addresses = reinterpret_cast<std::uintptr_t>(dst);
  for (std::int32_t i = 0; i < source.count(); ++i) {
    addresses |= reinterpret_cast<std::uintptr_t>(source.row(i));
  }
  const std::int64_t wide = detail::aligned16(addresses) ? hidden / 8 : 0;
  for (std::int64_t c = g.thread(); c < wide; c += g.threads()) {
    float sum[8] = {};
    for (std::int32_t i = 0; i < source.count(); ++i) {
      const std::byte* row = source.row(i);
      if (row == nullptr) continue;
      const detail::bf16x8 in = reinterpret_cast<const detail::bf16x8*>(row)[c];
      const float weight = source.weight(i);
      for (int e = 0; e < 8; ++e) {
        sum[e] = g.multiply_add(sum[e], weight, bf16_to_float(in.value[e]));
      }
    }
    detail::bf16x8 out;
    for (int e = 0; e < 8; ++e) out.value[e] = float_to_bf16(sum[e]);
    reinterpret_cast<detail::bf16x8*>(dst)[c] = out;
  }
  for (std::int64_t c = wide * 8 + g.thread(); c < hidden; c += g.threads()) {
    float sum = 0;
    for (std::int32_t i = 0; i < source.count(); ++i) {
      const std::byte* row = source.row(i);
      if (row == nullptr) continue;
      const std::uint16_t in = reinterpret_cast<const std::uint16_t*>(row)[c];
      sum = g.multiply_add(sum, source.weight(i), bf16_to_float(in));
    }
    reinterpret_cast<std::uint16_t*>(dst)[c] = float_to_bf16(sum);
  }
}

}  // namespace eptransport
