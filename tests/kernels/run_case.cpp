// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief kernel_tests run their cases on the CPU simulator.
#include "support/run_case.hpp"

namespace eptransport::support {

run_result run_case(const run_config& config) {
  return run(config);
}

}  // namespace eptransport::support
