// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The runner on the ib-gpu wire.
#include "support/runner_impl.hpp"
#include "support/runner_wires.hpp"
#include "support/wire_groups.hpp"

template class eptransport::group<eptransport::loopback<eptransport::profiles::ib_gpu>>;

namespace eptransport::support {

run_result run_ib_gpu(const run_config& config, const router& routes) {
  return run_on_wire<profiles::ib_gpu>(config, routes);
}

}  // namespace eptransport::support
