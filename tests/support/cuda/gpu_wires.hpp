// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The GPU runs of wires that are compiled in files of their own.
#pragma once

#include "support/gpu_run.hpp"
#include "support/routing.hpp"
#include "support/runner.hpp"

namespace eptransport::support {

run_result run_proxy_memory_on_gpu(const run_config& config, const router& routes,
                                   const gpu_options& how, gpu_times* times);
run_result run_proxy_srd_on_gpu(const run_config& config, const router& routes,
                                const gpu_options& how, gpu_times* times);

}  // namespace eptransport::support
