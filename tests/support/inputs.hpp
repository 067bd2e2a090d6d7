// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Draws the inputs of all ranks for one call of a run.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "support/oracle.hpp"
#include "support/routing.hpp"
#include "support/runner.hpp"

namespace eptransport::support {

/// The oracle's view of a run.
[[nodiscard]] problem problem_of(const run_config& config);

/// How `lane` dispatches in `iteration`; a cached dispatch does as the one that filled its handle.
[[nodiscard]] dispatch_mode mode_of(const run_config& config, int iteration, int lane);

/// Rows that each rank can take in a counted call.
[[nodiscard]] std::vector<std::int64_t> rooms_of(const run_config& config);

/// Inputs of every rank for `lane` in `iteration`. Rows are random bytes, NaN patterns included;
/// rows that are to be quantised are finite values of all sizes. Weights of unused choices are NaN.
[[nodiscard]] std::vector<rank_input> draw_inputs(const run_config& config, const router& routes,
                                                  int iteration, int lane);

/// The bias of `rank`, [tokens, hidden] `values`.
[[nodiscard]] std::vector<std::byte> draw_bias(const run_config& config, int iteration, int rank,
                                               std::int64_t tokens);

}  // namespace eptransport::support
