// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Where `--exec cuda` goes in builds with EPT_BENCH_CUDA; cuda/*.cu define it.
///
/// A GPU run takes every option of a CPU run but those of the simulator's schedule, and is verified
/// by the same checks (support/gpu_run.hpp).
#pragma once

#include <vector>

#include "ep_bench/options.hpp"

namespace eptransport::bench {

/// Runs every wire of `asked` on the GPU and appends one row each, with `clock` "measured".
///
/// @returns 0 if it ran, verified or not; otherwise the status to exit with, its reason printed
int run_cuda(const options& asked, std::vector<measurement>& rows);

}  // namespace eptransport::bench
