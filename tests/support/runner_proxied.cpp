// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The runner on wires behind proxy engines.
#include "support/runner_proxied.hpp"

#include "support/runner_wires.hpp"

namespace eptransport::support {

run_result run_proxy_memory(const run_config& config, const router& routes) {
  return run_in<proxied_setting<memory_wire>>(config, routes);
}

run_result run_proxy_srd(const run_config& config, const router& routes) {
  return run_in<proxied_setting<srd_wire>>(config, routes);
}

}  // namespace eptransport::support
