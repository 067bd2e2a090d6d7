// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Where `--wire libfabric:PROVIDER` goes in builds with EPT_BENCH_LIBFABRIC.
///
/// Each rank is a process: started here (`--spawn R`), or by a launcher whose variables say which
/// rank this one is. Then rank 0 prints the result of all, and every rank exits with its status.
#pragma once

#include <vector>

#include "ep_bench/options.hpp"

namespace eptransport::bench {

/// What such a wire's name begins with.
inline constexpr const char* libfabric_prefix = "libfabric:";

/// Runs it and appends one row, on rank 0 of a launcher or where the ranks were spawned.
///
/// @returns 0 if it ran, verified or not; otherwise the status to exit with, its reason printed
int run_libfabric(const options& asked, std::vector<measurement>& rows);

}  // namespace eptransport::bench
