// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The runner on the simulated wires.
#include "support/runner_impl.hpp"
#include "support/runner_wires.hpp"
#include "support/wire_groups.hpp"

template class eptransport::group<eptransport::loopback<eptransport::profiles::nvlink>>;
template class eptransport::group<eptransport::loopback<eptransport::profiles::ib_gpu>>;
template class eptransport::group<eptransport::loopback<eptransport::profiles::efa_gpu>>;
template class eptransport::group<eptransport::loopback<eptransport::profiles::efa_proxy>>;

namespace eptransport::support {

run_result run_nvlink(const run_config& config, const router& routes) {
  return run_on_wire<profiles::nvlink>(config, routes);
}

run_result run_ib_gpu(const run_config& config, const router& routes) {
  return run_on_wire<profiles::ib_gpu>(config, routes);
}

run_result run_efa_gpu(const run_config& config, const router& routes) {
  return run_on_wire<profiles::efa_gpu>(config, routes);
}

run_result run_efa_proxy(const run_config& config, const router& routes) {
  return run_on_wire<profiles::efa_proxy>(config, routes);
}

run_result run_tight(const run_config& config, const router& routes) {
  return run_on_wire<tight_profile>(config, routes);
}

}  // namespace eptransport::support
