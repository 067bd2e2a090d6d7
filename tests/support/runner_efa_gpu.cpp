// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The runner on the efa-gpu wire.
#include "support/runner_impl.hpp"
#include "support/runner_wires.hpp"
#include "support/wire_groups.hpp"

template class eptransport::group<eptransport::loopback<eptransport::profiles::efa_gpu>>;

namespace eptransport::support {

run_result run_efa_gpu(const run_config& config, const router& routes) {
  return run_on_wire<profiles::efa_gpu>(config, routes);
}

}  // namespace eptransport::support
