// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief In-kernel FP8: bf16 rows to e4m3 values with one scale per 128, on the way to their slot.
#pragma once

#include <eptransport/core/config.hpp>
#include <eptransport/core/thread_group.hpp>
#include <eptransport/kernels/call.hpp>
#include <eptransport/kernels/values.hpp>

#include <cstddef>
#include <cstdint>

namespace eptransport::detail {

inline constexpr float e4m3_max = 448.0F;
/// Smallest scale: keeps the scale of an all-zero or tiny block normal, finite and not 0.
inline constexpr float smallest_scale = 0x1p-126F;

/// The fp32 scale of a block whose largest magnitude is `largest`.
[[nodiscard]] EPT_HOST_DEVICE inline float fp8_scale(float largest) noexcept {
  const float scale = largest / e4m3_max;
  return scale >= smallest_scale ? scale : smallest_scale;
}

/// The smallest power of two that is not below `scale`, as a UE8M0 exponent byte (bias 127).
/// @par Source  OCP Microscaling Formats (MX) Specification 1.0, E8M0
[[nodiscard]] EPT_HOST_DEVICE inline std::uint8_t ue8m0_of(float scale) noexcept {
  const std::uint32_t bits = __builtin_bit_cast(std::uint32_t, scale);
  const std::uint32_t exponent = (bits >> 23) + ((bits & 0x7fffffu) != 0 ? 1 : 0);
  return static_cast<std::uint8_t>(exponent < 254 ? exponent : 254);
}

/// The value of a UE8M0 byte of at least 1.
[[nodiscard]] EPT_HOST_DEVICE inline float ue8m0_value(std::uint8_t byte) noexcept {
  return __builtin_bit_cast(float, static_cast<std::uint32_t>(byte) << 23);
}

/// Quantises one row: e4m3 of x / scale, the quotient rounded to fp32 first.
///
/// dst [hidden] e4m3; scales [blocks] fp32, or [blocks] bytes padded with 0 to a multiple of 4; x
/// [hidden] bf16.
///
/// @par Threads  The group calls together; `g.sync()` before others read.
EPT_NO_EXEC_CHECK
template <class G>
EPT_HOST_DEVICE void quantise_row(const G& g, std::byte* dst, std::byte* scales, const std::byte* x,
                                  std::int64_t hidden, quantisation how) {
  const std::int64_t blocks = (hidden + fp8_block - 1) / fp8_block;
  const std::int64_t threads = g.threads();
  for (std::int64_t b = 0; b < blocks; ++b) {
    const std::int64_t first = b * fp8_block;
    const std::int64_t end = first + fp8_block < hidden ? first + fp8_block : hidden;
    float largest = 0;
    for (std::int64_t c = first + g.thread(); c < end; c += threads) {
      const float value = load_value<bf16_value>(x, c);
      const float magnitude = value < 0 ? -value : value;
      largest = magnitude > largest ? magnitude : largest;
    }
    float scale = fp8_scale(g.maximum(largest));
    if (how == quantisation::fp8_ue8m0) {
      const std::uint8_t exponent = ue8m0_of(scale);
      scale = ue8m0_value(exponent);
      if (g.thread() == 0) scales[b] = static_cast<std::byte>(exponent);
    } else if (g.thread() == 0) {
      reinterpret_cast<float*>(scales)[b] = scale;
    }
    for (std::int64_t c = first + g.thread(); c < end; c += threads) {
      dst[c] = static_cast<std::byte>(float_to_e4m3(load_value<bf16_value>(x, c) / scale));
    }
  }
  if (how != quantisation::fp8_ue8m0) return;
  const std::int64_t padded = (blocks + 3) / 4 * 4;
  for (std::int64_t b = blocks + g.thread(); b < padded; b += threads) scales[b] = std::byte{0};
}

}  // namespace eptransport::detail
