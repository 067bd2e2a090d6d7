// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The command line of ep_bench.
#pragma once

#include <optional>
#include <string>

#include "ep_bench/options.hpp"

namespace eptransport::bench {

/// Exit statuses.
inline constexpr int exit_ok = 0;
inline constexpr int exit_not_verified = 1;
inline constexpr int exit_refused = 2;

/// Options, or why not.
struct parsed {
  std::optional<options> asked;
  int status = exit_ok;  ///< without options: what to exit with
  std::string message;   ///< without options: for stdout if the status is 0, else for stderr
};

[[nodiscard]] parsed parse(int count, const char* const* arguments);

/// The names that the command line knows them by.
[[nodiscard]] const char* name_of(output_layout layout);
[[nodiscard]] const char* name_of(message_shape shape);
[[nodiscard]] const char* name_of(dispatch_mode mode);
[[nodiscard]] const char* name_of(delivery order);
[[nodiscard]] const char* name_of(element type);
[[nodiscard]] const char* name_of(combine_transfer transfer);

}  // namespace eptransport::bench
