// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Runs on a GPU over emulated NICs; the one place where those kernels are compiled.
#include <eptransport/backends/gdaki/gdaki.cuh>
#include <eptransport/kernels/kernels.hpp>

#include <string>

#include "support/cuda/gpu_rig.cuh"
#include "support/gdaki_gpu_run.hpp"
#include "support/rank_run.hpp"
#include "support/runner_wires.hpp"
#include "support/verdict.hpp"

namespace eptransport::support {
namespace {

template <class Wire>
run_result run_over(const run_config& config, const router& routes, bool blocks_play_nics,
                    const gpu_options& how, gpu_times* times) {
  using transport = cuda_gdaki<Wire>;
  // The window does not depend on the number of workers.
  const auto sizes = group<transport>::sizes(shape_of(config, problem_of(config)), config.ranks);
  if (!sizes) return refused(sizes.error());
  cuda_gdaki_options options;
  options.base.ranks = config.ranks;
  options.base.window_bytes = window_bytes_of(config, *sizes);
  options.base.signals = config.first_signal + sizes->signals;
  options.base.channels = config.channels;
  options.base.counter_start = config.counter_start;
  options.base.queue_slots = config.gdaki.queue_slots;
  options.base.ring_every = config.gdaki.ring_every;
  options.base.first_index = config.gdaki.first_index;
  options.base.schedule.chunk_bytes = config.gdaki.chunk_bytes;
  options.base.schedule.seed = config.seed;
  options.base.faults = config.gdaki.faults;
  options.nic = blocks_play_nics ? gpu_nic::block : gpu_nic::thread;
  options.blocks = how.blocks;
  options.warps = how.warps;
  options.concurrent = static_cast<std::uint32_t>(config.lanes);
  options.patience_ns = config.timeout_ns;
  auto made = cuda_gdaki_world<Wire>::create(options);
  if (!made) return refused(made.error());
  cuda_gdaki_world<Wire>& everything = **made;
  if (how.timed) everything.time_grids();
  run_result out = run_in(everything, config, routes, how, times);
  for (int rank = 0; rank < config.ranks; ++rank) {
    const result<void> sound = everything.rank(rank).fault();
    out.transport_faults.push_back(sound ? std::string() : sound.error().message());
  }
  const auto findings = everything.findings();
  if (!findings) return refused(findings.error());
  if (*findings != 0) {
    out.violations += std::to_string(*findings) + " entries that the NICs did not understand\n";
    out.verified = false;
  }
  return out;
}

}  // namespace

run_result run_gdaki_on_gpu(const run_config& config, bool blocks_play_nics, const gpu_options& how,
                            gpu_times* times) {
  const auto refuse = [](const std::string& why) {
    return refused({errc::invalid_argument, "run_gdaki_on_gpu", why});
  };
  if (const std::string wrong = wrong_with(config); !wrong.empty()) return refuse(wrong);
  const auto routes = routes_of(config);
  if (!routes) return refused(routes.error());
  if (config.wire == "gdaki:efa") {
    return run_over<efa_wire>(config, *routes, blocks_play_nics, how, times);
  }
  if (config.wire == "gdaki:mlx5") {
    return run_over<mlx5_wire>(config, *routes, blocks_play_nics, how, times);
  }
  return refuse("'" + config.wire + "' is no wire that kernels post to themselves");
}

}  // namespace eptransport::support
