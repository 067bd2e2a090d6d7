// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Checks and measures the device queues on a GPU, without a NIC.
///
///     gdaki_bench [--quick]
///
/// Three parts, a table last, exit status 1 if a check fails:
///   1. builders, doorbells and parsers give the CPU's bytes for 100 000 random inputs per format;
///   2. queues in pinned memory, posted to by the GPU, served by the emulator on a CPU thread, move
///      every request exactly once;
///   3. time per put and puts per second against a device that completes at once, with rings in GPU
///      memory and in pinned host memory. The doorbell is always a store to pinned host memory,
///      which stands for the NIC's register; the NIC's own cost is not in the numbers.
#include <cstdio>
#include <cstring>

#include "gdaki/gpu_checks.cuh"
#include "gdaki_bench/costs.cuh"

int main(int argc, char** argv) {
  const bool quick = argc > 1 && std::strcmp(argv[1], "--quick") == 0;
  if (argc > 1 && !quick) {
    std::fprintf(stderr, "usage: %s [--quick]\n", argv[0]);
    return 2;
  }
  using namespace eptransport::gdaki::bench;
  cudaDeviceProp device{};
  require(cudaGetDeviceProperties(&device, 0), "cudaGetDeviceProperties");
  std::printf("device: %s, %d multiprocessors\n\n", device.name, device.multiProcessorCount);
  bool good = check_builders(100'000);
  good = check_queues(quick ? 2'000 : 50'000) && good;
  measure(static_cast<unsigned>(device.multiProcessorCount), quick ? 2'000 : 20'000);
  std::printf("\n%s\n", good ? "all checks passed" : "FAILED");
  return good ? 0 : 1;
}
