// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The oracle's own number formats: bf16, fp16, fp32, e4m3, and blocks with one scale.
///
/// Written from the formats' definitions with double arithmetic, where every step is exact but the
/// one rounding; the library works on bits.
#pragma once

#include <eptransport/kernels/call.hpp>

#include <cstddef>
#include <cstdint>
#include <span>

namespace eptransport::support {

/// Exact.
[[nodiscard]] float reference_from_bf16(std::uint16_t bits) noexcept;
[[nodiscard]] float reference_from_fp16(std::uint16_t bits) noexcept;
[[nodiscard]] float reference_from_e4m3(std::uint8_t bits) noexcept;

/// Round to nearest, ties to even. NaN stays NaN with its sign; bf16 and fp16 overflow to infinity,
/// e4m3 saturates at 448.
[[nodiscard]] std::uint16_t reference_to_bf16(float value) noexcept;
[[nodiscard]] std::uint16_t reference_to_fp16(float value) noexcept;
[[nodiscard]] std::uint8_t reference_to_e4m3(float value) noexcept;

/// Value `index` of an array of `type`; it may lie at any address.
[[nodiscard]] float reference_load(element type, const std::byte* array,
                                   std::uint64_t index) noexcept;
/// Rounds once and stores.
void reference_store(element type, std::byte* array, std::uint64_t index, float value) noexcept;
/// What `reference_store` followed by `reference_load` gives.
[[nodiscard]] float reference_round(element type, float value) noexcept;

/// Quantises rows of `hidden` bf16 values to e4m3, one scale per 128 values of a row.
///
/// scale = largest magnitude / 448 in fp32, at least 2^-126; fp8_ue8m0: the smallest power of two
/// that is not below it, stored as exponent + 127, bytes padded with 0 to a multiple of 4. Each
/// value is divided by the scale in fp32, then rounded to e4m3.
///
/// @param x       [T, hidden] bf16
/// @param rows    [T, hidden] e4m3
/// @param scales  [T, `quantised_rows(hidden, how).scale_bytes`]
void reference_quantise(quantisation how, std::int64_t hidden, std::span<const std::byte> x,
                        std::span<std::byte> rows, std::span<std::byte> scales);

}  // namespace eptransport::support
