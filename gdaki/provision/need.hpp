// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief What stands between a program and a real NIC's queues, as typed errors.
#pragma once

#include <eptransport/core/config.hpp>
#include <eptransport/core/result.hpp>

#include <string>
#include <system_error>
#include <utility>

namespace eptransport::gdaki::provision {

/// What is missing.
enum class need {
  kernel_module = 1,  ///< a driver is not loaded
  library,            ///< a shared library cannot be opened
  library_version,    ///< it is there and too old
  device,             ///< no device, or none of that name
  device_property,    ///< the device is there and cannot do it
  driver_setting,     ///< a driver is loaded and set up otherwise
};

/// Category of `need`.
inline const std::error_category& need_category() noexcept {
  class category final : public std::error_category {
   public:
    [[nodiscard]] const char* name() const noexcept override { return "provisioning"; }
    [[nodiscard]] std::string message(int value) const override {
      switch (static_cast<need>(value)) {
        case need::kernel_module:
          return "a kernel module is missing";
        case need::library:
          return "a library is missing";
        case need::library_version:
          return "a library is too old";
        case need::device:
          return "a device is missing";
        case need::device_property:
          return "the device cannot do it";
        case need::driver_setting:
          return "a driver is set up otherwise";
      }
      return "unknown need";
    }
  };
  static const category instance;
  return instance;
}

/// Found by `std::error_code`'s converting constructor.
inline std::error_code make_error_code(need value) noexcept {
  return {static_cast<int>(value), need_category()};
}

/// An error that says what was needed, what was found, and what to do.
/// @param operation  string literal: the call that found out
[[nodiscard]] inline failure missing(need what, const char* operation, std::string detail) {
  return {make_error_code(what), operation, std::move(detail)};
}

/// An error of a system call or of a call that returns `errno`.
[[nodiscard]] inline failure system_failure(int code, const char* operation, std::string detail) {
  return {std::error_code(code, std::generic_category()), operation, std::move(detail)};
}

}  // namespace eptransport::gdaki::provision

template <>
struct std::is_error_code_enum<eptransport::gdaki::provision::need> : std::true_type {};
