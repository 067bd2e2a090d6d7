// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief A valid run as a function of one seed, and how it is told to people.
#pragma once

#include <cstdint>
#include <string>

#include "support/runner.hpp"

namespace eptransport::support {

/// Any combination that the library accepts, small enough to run in a fraction of a second. Runs
/// under `run_mode::baton`, so that the same seed gives the same schedule.
[[nodiscard]] run_config draw_config(std::uint64_t seed);

/// Every field in one line; of long lists the beginning.
[[nodiscard]] std::string describe(const run_config& config);

}  // namespace eptransport::support
