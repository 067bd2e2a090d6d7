// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Runs on nodes of virtual ranks; the one place where those kernels are compiled.
#include <eptransport/kernels/kernels.hpp>

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "support/cuda/gpu_rig.cuh"
#include "support/cuda/two_nodes.cuh"
#include "support/runner_wires.hpp"
#include "support/two_nodes_run.hpp"

namespace eptransport::support {
namespace {

template <class Rank>
run_result run_with(const run_config& config, const router& routes, const two_nodes_options& how,
                    two_nodes_report& report) {
  const std::vector<std::int32_t> nodes(config.nodes.begin(), config.nodes.end());
  const auto sizes =
      group<Rank>::sizes(shape_of(config, problem_of(config)), config.ranks, 1, nodes);
  if (!sizes) return refused(sizes.error());
  node_world_options options;
  for (const int node : config.nodes) options.devices.push_back(how.gpus > 1 && node > 0 ? 1 : 0);
  options.nodes = config.nodes;
  options.window_bytes = window_bytes_of(config, *sizes);
  options.signals = config.first_signal + sizes->signals;
  options.channels = config.channels;
  options.counter_start = config.counter_start;
  options.concurrent = static_cast<std::uint32_t>(config.lanes);
  options.patience_ns = config.timeout_ns;
  options.losing_rank = how.losing_rank;
  options.lost = how.lost;
  auto made = node_world<Rank>::create(options);
  if (!made) return refused(made.error());
  node_world<Rank>& everything = **made;
  if (how.timed) everything.time_grids();
  run_result out =
      run_in(everything, config, routes, {.timed = how.timed}, how.timed ? &report.times : nullptr);
  report.messages.clear();
  for (std::int32_t rank = 0; rank < config.ranks; ++rank) {
    const auto count = everything.messages(rank);
    if (!count) return refused(count.error());
    report.messages.push_back(*count);
  }
  return out;
}

}  // namespace

run_result run_on_two_nodes(const run_config& config, const two_nodes_options& how,
                            two_nodes_report& report) {
  const auto refuse = [](errc code, const std::string& why) {
    return refused({code, "run_on_two_nodes", why});
  };
  if (const std::string wrong = wrong_with(config); !wrong.empty()) {
    return refuse(errc::invalid_argument, wrong);
  }
  if (config.nodes.size() != static_cast<std::size_t>(config.ranks)) {
    return refuse(errc::invalid_argument, "a node is needed for each rank");
  }
  int gpus = 0;
  const auto counted = cuda_result(cudaGetDeviceCount(&gpus), "cudaGetDeviceCount");
  if (!counted) return refused(counted.error());
  if (how.gpus > gpus) {
    return refuse(errc::unsupported,
                  std::to_string(how.gpus) + " GPUs are needed, there are " + std::to_string(gpus));
  }
  if (!config.faults.empty() || config.copy_baseline) {
    return refuse(errc::unsupported, "no faults and no memcpy baseline here");
  }
  const auto routes = routes_of(config);
  if (!routes) return refused(routes.error());
  if (how.stores) return run_with<inner_wire>(config, *routes, how, report);
  return run_with<node_pair>(config, *routes, how, report);
}

}  // namespace eptransport::support
