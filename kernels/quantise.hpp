// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief In-kernel FP8: bf16 rows to e4m3 values with one scale per 128, on the way to their slot.
#pragma once

#include <eptransport/core/config.hpp>
#include <eptransport/core/thread_group.hpp>
#include <eptransport/kernels/call.hpp>
#include <eptransport/kernels/pieces.hpp>
#include <eptransport/kernels/values.hpp>

#include <cstddef>
#include <cstdint>
#include <type_traits>

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

/// How a block is spread: threads that share it, and the values that each of them holds.
template <class G>
struct quantise_shape {
  static constexpr bool host = std::is_same_v<typename G::memory, host_memory>;
  static constexpr int threads = host ? 1 : 16;
  static constexpr int values = static_cast<int>(fp8_block) / threads;
  static constexpr int ahead = host ? 1 : 4;  ///< blocks that a thread loads before the first use
};

/// A thread's part of a block, as bf16 and as e4m3.
template <class G>
struct alignas(quantise_shape<G>::values * 2) raw_part {
  std::uint16_t value[quantise_shape<G>::values];
};
template <class G>
struct alignas(quantise_shape<G>::values) made_part {
  std::uint8_t value[quantise_shape<G>::values];
};

/// Two values as e4m3, the first in the low byte.
EPT_NO_EXEC_CHECK
template <class G>
[[nodiscard]] EPT_HOST_DEVICE std::uint16_t e4m3_pair(float first, float second) noexcept {
  if constexpr (std::is_same_v<typename G::memory, host_memory>) {
    return static_cast<std::uint16_t>(float_to_e4m3(first) | (float_to_e4m3(second) << 8));
  } else {
    return G::memory::e4m3_pair(first, second);
  }
}

/// Divides by the scale of one block. A GPU divides once for all its values, unless the scale is
/// so extreme that a product could be off.
template <class G>
class divider {
 public:
  EPT_HOST_DEVICE explicit divider(float scale) noexcept
      : scale_(scale), inverse_(scale >= 0x1p-96F && scale <= 0x1p120F ? 1.0F / scale : 0.0F) {}

  EPT_NO_EXEC_CHECK
  [[nodiscard]] EPT_HOST_DEVICE float operator()(float value) const noexcept {
    if constexpr (!std::is_same_v<typename G::memory, host_memory>) {
      if (inverse_ != 0) return G::quotient(value, scale_, inverse_);
    }
    return value / scale_;
  }

 private:
  float scale_;
  float inverse_;  // 0: not usable
};

/// The scale of a block, stored for all places; what its values are divided by.
EPT_NO_EXEC_CHECK
template <class G>
[[nodiscard]] EPT_HOST_DEVICE float store_scale(const fan& scales, std::int64_t block,
                                                float largest, bool writes, quantisation how) {
  float scale = fp8_scale(largest);
  std::uint8_t exponent = 0;
  if (how == quantisation::fp8_ue8m0) {
    exponent = ue8m0_of(scale);
    scale = ue8m0_value(exponent);
  }
  EPT_ROLLED
  for (int d = 0; writes && d < scales.count; ++d) {
    if (how == quantisation::fp8_ue8m0) {
      scales.to[d][block] = static_cast<std::byte>(exponent);
    } else {
      reinterpret_cast<float*>(scales.to[d])[block] = scale;
    }
  }
  return scale;
}

/// The block of which values lie at any address, or which is short.
EPT_NO_EXEC_CHECK
template <class G>
EPT_NOINLINE EPT_HOST_DEVICE void quantise_odd_block(const G& g, const fan& rows, const fan& scales,
                                                     const std::byte* x, std::int64_t hidden,
                                                     std::int64_t block, quantisation how) {
  const std::int64_t first = block * fp8_block;
  const std::int64_t end = first + fp8_block < hidden ? first + fp8_block : hidden;
  float largest = 0;
  for (std::int64_t c = first + g.thread(); c < end; c += g.threads()) {
    const float value = load_value<bf16_value>(x, c);
    const float magnitude = value < 0 ? -value : value;
    largest = magnitude > largest ? magnitude : largest;
  }
  const float scale = store_scale<G>(scales, block, g.maximum(largest), g.thread() == 0, how);
  for (std::int64_t c = first + g.thread(); c < end; c += g.threads()) {
    const auto made = static_cast<std::byte>(float_to_e4m3(load_value<bf16_value>(x, c) / scale));
    for (int d = 0; d < rows.count; ++d) rows.to[d][c] = made;
  }
}

/// Whole blocks of which all addresses are aligned. A GPU's warp takes two at once, half a warp
/// each, and has the values of several in flight.
///
/// @param begin, end  blocks
EPT_NO_EXEC_CHECK
template <class G>
EPT_HOST_DEVICE void quantise_whole_blocks(const G& g, const fan& rows, const fan& scales,
                                           const std::byte* x, std::int64_t begin, std::int64_t end,
                                           quantisation how) {
  using shape = quantise_shape<G>;
  const auto part = static_cast<std::int64_t>(g.thread()) % shape::threads;
  const auto row = static_cast<std::int64_t>(g.thread()) / shape::threads;
  const std::int64_t step = static_cast<std::int64_t>(g.threads()) / shape::threads;
  for (std::int64_t b0 = begin; b0 < end; b0 += step * shape::ahead) {
    raw_part<G> raw[shape::ahead] = {};
    EPT_UNROLL
    for (int n = 0; n < shape::ahead; ++n) {
      const std::int64_t b = b0 + n * step + row;
      if (b < end) raw[n] = reinterpret_cast<const raw_part<G>*>(x)[b * shape::threads + part];
    }
    EPT_UNROLL
    for (int n = 0; n < shape::ahead; ++n) {
      const std::int64_t b = b0 + n * step + row;
      if (b - row >= end) break;  // the same for all threads
      float largest = 0;
      for (const std::uint16_t bits : raw[n].value) {
        const float value = bf16_to_float(bits);
        const float magnitude = value < 0 ? -value : value;
        largest = magnitude > largest ? magnitude : largest;
      }
      largest = g.template maximum_of<shape::threads>(largest);
      const float scale = store_scale<G>(scales, b, largest, b < end && part == 0, how);
      const divider<G> divide(scale);
      made_part<G> made;
      for (int i = 0; i < shape::values; i += 2) {
        const float first = divide(bf16_to_float(raw[n].value[i]));
        const float second = divide(bf16_to_float(raw[n].value[i + 1]));
        const std::uint16_t both = e4m3_pair<G>(first, second);
        made.value[i] = static_cast<std::uint8_t>(both);
        made.value[i + 1] = static_cast<std::uint8_t>(both >> 8);
      }
      EPT_ROLLED
      for (int d = 0; b < end && d < rows.count; ++d) {
        reinterpret_cast<made_part<G>*>(rows.to[d])[b * shape::threads + part] = made;
      }
    }
  }
}

/// Quantises blocks [begin, end) of a row to several places: e4m3 of x / scale, the quotient
/// rounded to fp32 first.
///
/// rows [hidden] e4m3; scales [blocks] fp32, or [blocks] bytes padded with 0 to a multiple of 4 by
/// whoever makes the last block; x [hidden] bf16.
///
/// @par Threads  The group calls together; `g.sync()` before others read.
EPT_NO_EXEC_CHECK
template <class G>
EPT_NOINLINE EPT_HOST_DEVICE void quantise_blocks(const G& g, const fan& rows, const fan& scales,
                                                  const std::byte* x, std::int64_t hidden,
                                                  extent blocks, quantisation how) {
  std::uint64_t bits = reinterpret_cast<std::uintptr_t>(x);
  for (int d = 0; d < rows.count; ++d) bits |= reinterpret_cast<std::uintptr_t>(rows.to[d]);
  const bool aligned = bits % alignof(raw_part<G>) == 0;
  const std::int64_t all = hidden / fp8_block;
  const std::int64_t whole = !aligned ? blocks.begin : blocks.end < all ? blocks.end : all;
  quantise_whole_blocks(g, rows, scales, x, blocks.begin, whole, how);
  for (std::int64_t b = whole > blocks.begin ? whole : blocks.begin; b < blocks.end; ++b) {
    quantise_odd_block(g, rows, scales, x, hidden, b, how);
  }
  const std::int64_t made = (hidden + fp8_block - 1) / fp8_block;
  if (how != quantisation::fp8_ue8m0 || blocks.end != made) return;
  const std::int64_t padded = (made + 3) / 4 * 4;
  for (std::int64_t b = made + g.thread(); b < padded; b += g.threads()) {
    for (int d = 0; d < scales.count; ++d) scales.to[d][b] = std::byte{0};
  }
}

}  // namespace eptransport::detail
