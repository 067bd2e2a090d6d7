// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief `--exec cuda`: R virtual ranks on one GPU, every call measured with CUDA events.
///
/// All ranks' kernels run in one grid and share one memory: the times show what the kernels cost on
/// a GPU, not what a wire would add. The simulator's charges appear in the rooflines alone. On
/// gdaki wires the times include an emulated NIC's: a host thread's, or a block's of the GPU.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "ep_bench/cli.hpp"
#include "ep_bench/cuda.hpp"
#include "ep_bench/progress.hpp"
#include "support/gdaki_gpu_run.hpp"
#include "support/gpu_run.hpp"
#include "support/peer_run.hpp"

namespace eptransport::bench {
namespace {

using support::gpu_times;
using support::run_result;

/// The calls after the first, which loads caches and grows buffers; all if there is one.
std::vector<double> warm(std::vector<double> times) {
  if (times.size() > 1) times.erase(times.begin());
  std::sort(times.begin(), times.end());
  return times;
}

double mean_of(const std::vector<double>& times) {
  return times.empty()
             ? 0
             : std::accumulate(times.begin(), times.end(), 0.0) / static_cast<double>(times.size());
}

/// The smallest value that `percent` of the sorted times do not exceed.
double percentile(const std::vector<double>& times, std::size_t percent) {
  if (times.empty()) return 0;
  const std::size_t rank = (times.size() * percent + 99) / 100;
  return times[std::max<std::size_t>(rank, 1) - 1];
}

void print_line(const std::string& wire, const char* call, const std::vector<double>& times,
                double bytes) {
  const double mean = mean_of(times);
  std::printf("%-10s %-8s  kernel %7.1f us mean, %7.1f p50, %7.1f p99 (cuda events, %zu calls)",
              wire.c_str(), call, mean / 1e3, percentile(times, 50) / 1e3,
              percentile(times, 99) / 1e3, times.size());
  if (wire.starts_with("proxy:")) {
    std::printf(", windows in host memory\n");
  } else {
    std::printf(", %8.2f MiB of HBM traffic, %6.0f GB/s\n", bytes / 1048576,
                mean > 0 ? bytes / mean : 0);
  }
}

support::call_time time_of(const std::vector<double>& times) {
  return {
      .mean_ns = mean_of(times), .p99_ns = percentile(times, 99), .max_rank_ns = mean_of(times)};
}

void run_wire(const std::string& wire, const options& asked, std::vector<measurement>& rows) {
  progress shown(wire, asked.config.iterations, asked.quiet);
  support::run_config config = asked.config;
  config.wire = wire;
  config.progress = [&shown](int iteration) { shown.done(iteration); };
  gpu_times times;
  const support::gpu_options how{.timed = true};
  run_result result =
      wire.starts_with("gdaki:")
          ? support::run_gdaki_on_gpu(config, asked.nic == nic_place::block, how, &times)
          : support::run_on_gpu(config, how, &times);
  shown.finish();
  const std::vector<double> dispatch = warm(times.dispatch_ns);
  const std::vector<double> combine = warm(times.combine_ns);
  result.dispatch = time_of(dispatch);
  result.combine = time_of(combine);
  const bool to_stdout = !asked.quiet && asked.json != "-";
  if (to_stdout && result.error.empty()) {
    print_line(wire, "dispatch", dispatch, times.dispatch_bytes);
    print_line(wire, "combine", combine, times.combine_bytes);
    std::fflush(stdout);
  }
  rows.push_back({.wire = wire, .result = std::move(result), .clock = "measured"});
}

}  // namespace

int run_cuda(const options& asked, std::vector<measurement>& rows) {
  cudaDeviceProp device{};
  const cudaError_t status = cudaGetDeviceProperties(&device, 0);
  if (status != cudaSuccess) {
    std::fprintf(stderr, "ep_bench: --exec cuda: no GPU: %s\n", cudaGetErrorString(status));
    return exit_refused;
  }
  if (asked.wires.front() == support::peer_memory_wire) return run_peers(asked, rows);
  if (!asked.quiet && asked.json != "-") {
    std::printf(
        "%s, %d multiprocessors, %d virtual ranks in one grid, the first call of each "
        "kind is not counted\n",
        device.name, device.multiProcessorCount, asked.config.ranks);
  }
  for (const std::string& wire : asked.wires) run_wire(wire, asked, rows);
  return exit_ok;
}

}  // namespace eptransport::bench
