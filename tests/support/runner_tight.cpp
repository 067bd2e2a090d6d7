// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The runner on a wire with short messages and few signal words, which no product has: what
/// fits one message elsewhere travels in several here.
#include "support/runner_impl.hpp"
#include "support/runner_wires.hpp"

namespace eptransport::support {
run_result run_tight(const run_config& config, const router& routes) {
  return run_on_wire<tight_profile>(config, routes);
}

}  // namespace eptransport::support
