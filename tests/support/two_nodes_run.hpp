// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The runs of runner.hpp on nodes of virtual ranks, whose wire between nodes has puts only.
#pragma once

#include <cstdint>
#include <vector>

#include "support/gpu_run.hpp"
#include "support/runner.hpp"

namespace eptransport::support {

/// `run_config::wire` of these runs.
inline constexpr const char* peer_nodes_wire = "hybrid:peer-memory";

/// Where the ranks are and what they have.
struct two_nodes_options {
  int gpus = 1;            ///< 2: the ranks of node 0 on the first GPU, all others on the second
  bool stores = false;     ///< load and store between nodes as well, and no relay: the direct path
  bool timed = false;      ///< each grid of the first GPU is measured with CUDA events
  int losing_rank = -1;    ///< whose wire between nodes loses a message
  std::uint64_t lost = 0;  ///< which, counted from 1
};

/// What was seen beside the verdict.
struct two_nodes_report {
  gpu_times times;                      ///< if timed
  std::vector<std::uint64_t> messages;  ///< of each rank, on the wire between nodes, all calls
};

/// Runs `config`, whose `nodes` names the node of each rank in ascending order, over peer memory.
/// What of the CPU simulator does not apply to `run_on_gpu` does not apply here.
///
/// @par Errors  `unsupported`: fewer GPUs than asked for, injected faults, the memcpy baseline
[[nodiscard]] run_result run_on_two_nodes(const run_config& config, const two_nodes_options& how,
                                          two_nodes_report& report);

}  // namespace eptransport::support
