// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief cuda_tests run the cases of kernel_tests on the GPU simulator.
#include "support/run_case.hpp"

#include "support/gpu_run.hpp"

namespace eptransport::support {

run_result run_case(const run_config& config) {
  return run_on_gpu(config);
}

}  // namespace eptransport::support
