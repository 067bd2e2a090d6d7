// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The runner on the nvlink wire.
#include "support/runner_impl.hpp"
#include "support/runner_wires.hpp"
#include "support/wire_groups.hpp"

template class eptransport::group<eptransport::loopback<eptransport::profiles::nvlink>>;

namespace eptransport::support {

run_result run_nvlink(const run_config& config, const router& routes) {
  return run_on_wire<profiles::nvlink>(config, routes);
}

}  // namespace eptransport::support
