// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The runner on GPU-initiated wires over emulated NICs.
#include "support/runner_gdaki.hpp"

#include "support/runner_wires.hpp"

namespace eptransport::support {

run_result run_gdaki_efa(const run_config& config, const router& routes) {
  return run_in<gdaki_setting<efa_wire>>(config, routes);
}

run_result run_gdaki_mlx5(const run_config& config, const router& routes) {
  return run_in<gdaki_setting<mlx5_wire>>(config, routes);
}

}  // namespace eptransport::support
