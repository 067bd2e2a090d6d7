// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The runner on the efa-proxy wire.
#include "support/runner_impl.hpp"
#include "support/runner_wires.hpp"
#include "support/wire_groups.hpp"

template class eptransport::group<eptransport::loopback<eptransport::profiles::efa_proxy>>;

namespace eptransport::support {

run_result run_efa_proxy(const run_config& config, const router& routes) {
  return run_on_wire<profiles::efa_proxy>(config, routes);
}

}  // namespace eptransport::support
