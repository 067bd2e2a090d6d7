// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Reads NumPy .npy files of version 1 and 2: little-endian int16 or fp16, C order.
#pragma once

#include <eptransport/core/result.hpp>

#include <cstdint>
#include <string>
#include <vector>

namespace eptransport::support {

/// One array; 16-bit values as they lie in the file.
struct npy_array {
  std::string type;                 ///< NumPy's name, such as "<i2" or "<f2"
  std::vector<std::int64_t> shape;  ///< outermost first
  std::vector<std::uint16_t> values;
};

/// @par Errors  `invalid_argument`: no such file, no .npy file, or another type; says which
[[nodiscard]] result<npy_array> read_npy(const std::string& path);

/// fp16 bits to fp32, exact.
[[nodiscard]] float half_to_float(std::uint16_t bits) noexcept;

}  // namespace eptransport::support
