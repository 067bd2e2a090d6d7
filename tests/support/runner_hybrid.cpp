// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The runner on simulated pairs of wires.
#include "support/runner_hybrid.hpp"

#include "support/runner_wires.hpp"

namespace eptransport::support {

run_result run_hybrid(const run_config& config, const router& routes) {
  return run_in<hybrid_setting<profiles::efa_proxy>>(config, routes);
}

run_result run_hybrid_tight(const run_config& config, const router& routes) {
  return run_in<hybrid_setting<tight_profile>>(config, routes);
}

}  // namespace eptransport::support
