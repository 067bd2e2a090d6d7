// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Draws the inputs of all ranks for one call of a run.
#pragma once

#include <cstdint>
#include <vector>

#include "support/oracle.hpp"
#include "support/routing.hpp"
#include "support/runner.hpp"

namespace eptransport::support {

/// The oracle's view of a run.
[[nodiscard]] problem problem_of(const run_config& config);

/// Inputs of every rank for `lane` in `iteration`. Rows are random bytes, NaN patterns included.
/// Weights of unused choices are NaN.
[[nodiscard]] std::vector<rank_input> draw_inputs(const run_config& config, const router& routes,
                                                  int iteration, int lane);

}  // namespace eptransport::support
