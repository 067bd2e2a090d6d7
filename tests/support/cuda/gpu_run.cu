// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Runs on the GPU simulator, whose kernels are compiled here alone, and the table of wires.
#include <eptransport/backends/loopback/cuda_loopback.cuh>
#include <eptransport/backends/loopback/profiles.hpp>
#include <eptransport/kernels/kernels.hpp>

#include <string>

#include "support/cuda/gpu_rig.cuh"
#include "support/cuda/gpu_wires.hpp"
#include "support/gpu_run.hpp"
#include "support/rank_run.hpp"
#include "support/runner_wires.hpp"
#include "support/verdict.hpp"

namespace eptransport::support {
namespace {

[[nodiscard]] cuda_loopback_options options_of(const run_config& config, const gpu_options& how,
                                               const group_sizes& sizes) {
  cuda_loopback_options options;
  options.ranks = config.ranks;
  options.window_bytes = window_bytes_of(config, sizes);
  options.signals = config.first_signal + sizes.signals;
  options.channels = config.channels;
  options.counter_start = config.counter_start;
  options.blocks = how.blocks;
  options.warps = how.warps;
  options.concurrent = static_cast<std::uint32_t>(config.lanes);
  options.patience_ns = config.timeout_ns;
  return options;
}

template <class Profile>
run_result run_on(const run_config& config, const router& routes, const gpu_options& how,
                  gpu_times* times) {
  using transport = cuda_loopback<Profile>;
  // The window does not depend on the number of workers.
  const auto sizes = group<transport>::sizes(shape_of(config, problem_of(config)), config.ranks);
  if (!sizes) return refused(sizes.error());
  auto made = cuda_loopback_world<Profile>::create(options_of(config, how, *sizes));
  if (!made) return refused(made.error());
  cuda_loopback_world<Profile>& everything = **made;
  if (how.timed) everything.time_grids();
  return run_in(everything, config, routes, how, times);
}

struct wire_entry {
  const char* name;
  run_result (*run)(const run_config&, const router&, const gpu_options&, gpu_times*);
};

template <class Profile>
constexpr wire_entry entry{Profile::name, run_on<Profile>};

constexpr wire_entry table[] = {entry<profiles::nvlink>,
                                entry<profiles::ib_gpu>,
                                entry<profiles::efa_gpu>,
                                entry<profiles::efa_proxy>,
                                entry<tight_profile>,
                                {"proxy:memory", run_proxy_memory_on_gpu},
                                {"proxy:srd", run_proxy_srd_on_gpu}};

}  // namespace

run_result run_on_gpu(const run_config& config, const gpu_options& how, gpu_times* times) {
  const auto refuse = [](errc code, const std::string& why) {
    return refused({code, "run_on_gpu", why});
  };
  if (const std::string wrong = wrong_with(config); !wrong.empty()) {
    return refuse(errc::invalid_argument, wrong);
  }
  if (!config.faults.empty()) {
    return refuse(errc::unsupported, "the GPU's wire delivers at once, no fault can be injected");
  }
  if (config.copy_baseline) {
    return refuse(errc::unsupported, "memcpy by host threads is no baseline for GPU kernels");
  }
  const auto routes = routes_of(config);
  if (!routes) return refused(routes.error());
  for (const wire_entry& wire : table) {
    if (config.wire == wire.name) return wire.run(config, *routes, how, times);
  }
  return refuse(errc::invalid_argument, "no wire '" + config.wire + "' on the GPU");
}

}  // namespace eptransport::support
