// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The runs of runner.hpp on one GPU over emulated NICs: a CPU thread or blocks play them.
#pragma once

#include "support/gpu_run.hpp"
#include "support/runner.hpp"

namespace eptransport::support {

/// Runs `config`, whose wire is one of `gdaki_wires()`, with the kernels of a GPU.
///
/// @param blocks_play_nics  false: a CPU thread, over pinned memory
/// @param times             filled if `how.timed`
/// @par Errors              as `run_on_gpu`
[[nodiscard]] run_result run_gdaki_on_gpu(const run_config& config, bool blocks_play_nics,
                                          const gpu_options& how = {}, gpu_times* times = nullptr);

}  // namespace eptransport::support
