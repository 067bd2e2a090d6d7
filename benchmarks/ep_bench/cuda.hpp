// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Where `--exec cuda` goes in builds with EPT_BENCH_CUDA; cuda/*.cu define it.
///
/// A GPU run draws its inputs with `support::draw_inputs`, copies its outputs to host memory and
/// verifies them with `support::check_dispatch` and `support::check_combine`, as a CPU run does.
#pragma once

#include <vector>

#include "ep_bench/options.hpp"
#include "support/routing.hpp"

namespace eptransport::bench {

/// Runs every wire of `asked` on the GPU and appends one row each, with `clock` "measured".
///
/// @returns 0 if it ran, verified or not; otherwise the status to exit with, its reason printed
int run_cuda(const options& asked, const support::router& routes, std::vector<measurement>& rows);

}  // namespace eptransport::bench
