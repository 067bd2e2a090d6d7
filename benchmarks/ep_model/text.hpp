// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Text: printf into a string, JSON strings.
#pragma once

#include <cstdarg>
#include <cstdio>
#include <string>

namespace eptransport::model {

/// printf into a string.
[[nodiscard]] __attribute__((format(printf, 1, 2))) inline std::string text(const char* format,
                                                                            ...) {
  std::va_list arguments;
  va_start(arguments, format);
  std::va_list again;
  va_copy(again, arguments);
  const int size = std::vsnprintf(nullptr, 0, format, arguments);
  va_end(arguments);
  std::string out(size > 0 ? static_cast<std::size_t>(size) : 0, '\0');
  if (size > 0) std::vsnprintf(out.data(), out.size() + 1, format, again);
  va_end(again);
  return out;
}

/// A JSON string.
[[nodiscard]] inline std::string quoted(const std::string& value) {
  std::string out = "\"";
  for (const char c : value) {
    if (c == '"' || c == '\\') out += '\\';
    out += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
  }
  return out + "\"";
}

}  // namespace eptransport::model
