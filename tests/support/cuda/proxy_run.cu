// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Runs on a GPU whose ranks have proxy engines; their kernels are compiled here alone.
#include <eptransport/backends/proxied/cuda_proxied.cuh>
#include <eptransport/backends/proxied/proxied.hpp>
#include <eptransport/kernels/kernels.hpp>

#include <vector>

#include "support/cuda/gpu_rig.cuh"
#include "support/cuda/gpu_wires.hpp"
#include "support/runner_proxied.hpp"

namespace eptransport::support {
namespace {

template <class Wire>
run_result run_on(run_config config, const router& routes, const gpu_options& how,
                  gpu_times* times) {
  using transport = cuda_proxied<proxied<Wire>>;
  config.schedule = run_mode::free;
  const auto sizes = group<transport>::sizes(shape_of(config, problem_of(config)), config.ranks);
  if (!sizes) return refused(sizes.error());
  auto hosts = proxied_world<Wire>::create(proxied_setting<Wire>::options_of(
      config, window_bytes_of(config, *sizes), config.first_signal + sizes->signals));
  if (!hosts) return refused(hosts.error());
  std::vector<proxied<Wire>*> ranks;
  for (int rank = 0; rank < config.ranks; ++rank) ranks.push_back(&(*hosts)->rank(rank));
  auto made = cuda_proxied_world<proxied<Wire>>::create(
      ranks, {.blocks = how.blocks,
              .warps = how.warps,
              .concurrent = static_cast<std::uint32_t>(config.lanes),
              .patience_ns = config.timeout_ns});
  if (!made) return refused(made.error());
  if (how.timed) (*made)->time_grids();
  run_result out = run_in(**made, config, routes, how, times);
  out.violations += (*hosts)->violations();
  proxied_setting<Wire>::observe(**hosts, out);
  return out;
}

}  // namespace

run_result run_proxy_memory_on_gpu(const run_config& config, const router& routes,
                                   const gpu_options& how, gpu_times* times) {
  return run_on<memory_wire>(config, routes, how, times);
}

run_result run_proxy_srd_on_gpu(const run_config& config, const router& routes,
                                const gpu_options& how, gpu_times* times) {
  return run_on<srd_wire>(config, routes, how, times);
}

}  // namespace eptransport::support
