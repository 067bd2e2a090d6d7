// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The seam of tests that run on the CPU and on a GPU.
#pragma once

#include "support/runner.hpp"

namespace eptransport::support {

/// Runs `config` where the test program runs its cases: kernels/run_case.cpp, cuda/run_case.cpp.
[[nodiscard]] run_result run_case(const run_config& config);

}  // namespace eptransport::support
