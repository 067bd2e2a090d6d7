// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The runner for each wire; each is compiled in a file of its own.
#pragma once

#include "support/routing.hpp"
#include "support/runner.hpp"

namespace eptransport::support {

run_result run_nvlink(const run_config& config, const router& routes);
run_result run_ib_gpu(const run_config& config, const router& routes);
run_result run_efa_gpu(const run_config& config, const router& routes);
run_result run_efa_proxy(const run_config& config, const router& routes);
run_result run_proxy_memory(const run_config& config, const router& routes);
run_result run_proxy_srd(const run_config& config, const router& routes);
run_result run_tight(const run_config& config, const router& routes);

}  // namespace eptransport::support
