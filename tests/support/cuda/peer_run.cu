// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Runs over peer memory: rank r on GPU r.
#include <eptransport/backends/peer_memory/peer_memory.cuh>
#include <eptransport/kernels/kernels.hpp>

#include <cuda_runtime.h>

#include <cstdint>
#include <string>
#include <vector>

#include "support/cuda/gpu_rig.cuh"
#include "support/cuda/peer_group.cuh"
#include "support/peer_run.hpp"
#include "support/runner_wires.hpp"

template class eptransport::group<eptransport::peer_memory>;

namespace eptransport::support {

run_result run_on_peers(const run_config& config) {
  if (const std::string wrong = wrong_with(config); !wrong.empty()) {
    return refused({errc::invalid_argument, "run_on_peers", wrong});
  }
  int gpus = 0;
  const auto counted = cuda_result(cudaGetDeviceCount(&gpus), "cudaGetDeviceCount");
  if (!counted) return refused(counted.error());
  if (config.ranks > gpus) {  // ranks of a run wait for their whole device: no two may share one
    return refused(
        {errc::unsupported, "run_on_peers",
         std::to_string(config.ranks) + " ranks, there are " + std::to_string(gpus) + " GPUs"});
  }
  if (!config.faults.empty() || config.copy_baseline) {
    return refused({errc::unsupported, "run_on_peers", "no faults and no memcpy baseline here"});
  }
  const auto routes = routes_of(config);
  if (!routes) return refused(routes.error());
  const auto sizes = group<peer_memory>::sizes(shape_of(config, problem_of(config)), config.ranks);
  if (!sizes) return refused(sizes.error());
  std::vector<int> devices;
  for (int rank = 0; rank < config.ranks; ++rank) devices.push_back(rank);
  peer_memory_shape shape;
  shape.window_bytes = window_bytes_of(config, *sizes);
  shape.signals = config.first_signal + sizes->signals;
  shape.channels = config.channels;
  shape.counter_start = config.counter_start;
  shape.concurrent = static_cast<std::uint32_t>(config.lanes);
  auto made = peer_memory_world::create(devices, shape);
  if (!made) return refused(made.error());
  return run_in(**made, config, *routes, {}, nullptr);
}

}  // namespace eptransport::support
