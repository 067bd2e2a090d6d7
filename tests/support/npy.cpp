// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The .npy reader.
#include "support/npy.hpp"

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdlib>
#include <fstream>
#include <iterator>

namespace eptransport::support {
namespace {

failure refuse(const std::string& path, const std::string& why) {
  return {errc::invalid_argument, "read_npy", path + ": " + why};
}

/// The text after `'key':` in the header's dictionary, to its end.
std::string value_of(const std::string& header, const std::string& key) {
  const std::size_t at = header.find("'" + key + "'");
  if (at == std::string::npos) return {};
  const std::size_t colon = header.find(':', at);
  return colon == std::string::npos ? std::string() : header.substr(colon + 1);
}

std::vector<std::int64_t> parse_shape(const std::string& text) {
  std::vector<std::int64_t> shape;
  const std::size_t open = text.find('(');
  const std::size_t close = text.find(')');
  if (open == std::string::npos || close == std::string::npos) return shape;
  const char* at = text.c_str() + open + 1;
  const char* end = text.c_str() + close;
  while (at < end) {
    char* after = nullptr;
    const long long value = std::strtoll(at, &after, 10);
    if (after == at) break;
    shape.push_back(value);
    at = after;
    while (at < end && (*at == ',' || *at == ' ')) ++at;
  }
  return shape;
}

}  // namespace

result<npy_array> read_npy(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return refuse(path, "cannot be opened");
  const std::string all((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(all[i]); };
  if (all.size() < 12 || all.compare(0, 6, "\x93NUMPY") != 0) return refuse(path, "no .npy file");
  const int version = byte(6);
  if (version != 1 && version != 2) {
    return refuse(path, ".npy version " + std::to_string(version) + ", 1 and 2 are known");
  }
  const std::size_t start = version == 1 ? 10 : 12;
  std::size_t length = byte(8) + (std::size_t{byte(9)} << 8U);
  if (version == 2) length += (std::size_t{byte(10)} << 16U) + (std::size_t{byte(11)} << 24U);
  if (start + length > all.size()) return refuse(path, "its header is cut off");
  const std::string header = all.substr(start, length);
  npy_array array;
  const std::string type = value_of(header, "descr");
  const std::size_t quote = type.find('\'');
  if (quote != std::string::npos) {
    array.type = type.substr(quote + 1, type.find('\'', quote + 1) - quote - 1);
  }
  if (array.type != "<i2" && array.type != "<f2") {
    return refuse(path, "holds '" + array.type + "', '<i2' and '<f2' are known");
  }
  const std::string order = value_of(header, "fortran_order");
  if (order.substr(0, order.find_first_of(",}")).find("False") == std::string::npos) {
    return refuse(path, "is not in C order");
  }
  array.shape = parse_shape(value_of(header, "shape"));
  std::size_t count = 1;
  for (const std::int64_t extent : array.shape) count *= static_cast<std::size_t>(extent);
  if (all.size() - start - length != count * 2) {
    return refuse(path, "has " + std::to_string(all.size() - start - length) + " data bytes, its " +
                            "shape needs " + std::to_string(count * 2));
  }
  for (std::size_t i = start + length; i < all.size(); i += 2) {
    array.values.push_back(static_cast<std::uint16_t>(byte(i) + (unsigned{byte(i + 1)} << 8U)));
  }
  return array;
}

float half_to_float(std::uint16_t bits) noexcept {
  const float sign = (bits & 0x8000U) != 0 ? -1.0F : 1.0F;
  const int exponent = (bits >> 10U) & 0x1F;
  const auto fraction = static_cast<float>(bits & 0x3FFU);
  if (exponent == 0) return sign * std::ldexp(fraction, -24);
  if (exponent == 31) return fraction == 0.0F ? sign * INFINITY : NAN;
  return sign * std::ldexp(fraction + 1024.0F, exponent - 25);
}

}  // namespace eptransport::support
