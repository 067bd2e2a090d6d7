// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Where `--wire libfabric:PROVIDER` and `hybrid:shm+libfabric:PROVIDER` go in builds with
/// EPT_BENCH_LIBFABRIC.
///
/// Each rank is a process: started here (`--spawn R`), or by a launcher whose variables say which
/// rank this one is. Then rank 0 prints the result of all, and every rank exits with its status.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "ep_bench/options.hpp"

namespace eptransport::bench {

/// What the names of such wires begin with: libfabric alone, and between nodes whose ranks share
/// memory. Behind it comes the provider.
inline constexpr std::string_view libfabric_prefix = "libfabric:";
inline constexpr std::string_view pair_prefix = "hybrid:shm+libfabric:";

/// Whether each rank of that wire is a process.
[[nodiscard]] inline bool has_processes(const std::string& wire) {
  return wire.starts_with(libfabric_prefix) || wire.starts_with(pair_prefix);
}

/// How many ranks there will be: as `--spawn` or a launcher's variables say; 0: nothing does.
[[nodiscard]] int processes_of(const options& asked);

/// Runs it and appends one row, on rank 0 of a launcher or where the ranks were spawned.
///
/// @returns 0 if it ran, verified or not; otherwise the status to exit with, its reason printed
int run_libfabric(const options& asked, std::vector<measurement>& rows);

}  // namespace eptransport::bench
