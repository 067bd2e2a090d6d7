// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The runs of runner.hpp on one GPU: R virtual ranks, kernels in one grid.
///
/// Inputs, experts, oracle and checks are those of the CPU runs; buffers are copied to device
/// memory before a call, canaries and poison included, and back after it.
#pragma once

#include <cstdint>
#include <vector>

#include "support/runner.hpp"

namespace eptransport::support {

/// How the GPU is used.
struct gpu_options {
  std::uint32_t blocks = 0;  ///< per rank; 0: as many as fit, at most 16
  std::uint32_t warps = 8;   ///< per block
  bool timed = false;        ///< each grid is measured with CUDA events
};

/// What was measured: one entry per call, all ranks' kernels together.
struct gpu_times {
  std::vector<double> dispatch_ns;
  std::vector<double> combine_ns;
  double dispatch_bytes = 0;  ///< of memory read and written, the mean of a call, all ranks
  double combine_bytes = 0;
};

/// Runs `config` on the wire that it names. The wire delivers at once: schedule, delivery, delays,
/// queue depth, worker threads and node map of the CPU simulator do not apply.
///
/// @param times   filled if `how.timed`
/// @par Errors    `unsupported`: injected faults, the memcpy baseline; as `run`
[[nodiscard]] run_result run_on_gpu(const run_config& config, const gpu_options& how = {},
                                    gpu_times* times = nullptr);

}  // namespace eptransport::support
