// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The runs of runner.hpp over peer memory: rank r on GPU r.
#pragma once

#include "support/runner.hpp"

namespace eptransport::support {

/// `run_config::wire` of these runs.
inline constexpr const char* peer_memory_wire = "peer-memory";

/// Runs `config` over peer memory. What of the CPU simulator does not apply to `run_on_gpu` does
/// not apply here.
///
/// @par Errors  `unsupported`: more ranks than GPUs, injected faults, the memcpy baseline
[[nodiscard]] run_result run_on_peers(const run_config& config);

}  // namespace eptransport::support
