// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Peer memory passes the conformance suite, on one GPU and on two.
#include <eptransport/backends/peer_memory/peer_memory.cuh>

#include <gtest/gtest.h>

#include <cstddef>
#include <functional>
#include <vector>

#include "conformance/conformance.hpp"
#include "conformance/device_backend.cuh"

namespace conformance {

/// Rank r lives on GPU r mod `kGpus`.
template <int kGpus, eptransport::peer_allocation kAllocation>
struct peer_memory_backend : device_backend {
  using transport = eptransport::peer_memory;

  static void run(const world_request& request, const std::function<void(transport&)>& per_rank,
                  report& out) {
    std::vector<int> devices;
    for (int rank = 0; rank < request.ranks; ++rank) devices.push_back(rank % kGpus);
    auto world =
        eptransport::peer_memory_world::create(devices, {.window_bytes = request.window_bytes,
                                                         .signals = request.signals,
                                                         .channels = request.channels,
                                                         .counter_start = request.counter_start,
                                                         .blocks = request.workers,
                                                         .warps = 1,
                                                         .allocation = kAllocation});
    if (!world) return out.add(world.error().message());
    (*world)->run([&](transport& t) {
      device_caller caller(t.device());
      mine = &caller;
      per_rank(t);
    });
  }
  static auto host_view(transport& t) { return called_view(t.view(), *mine); }

  static inline thread_local device_caller* mine = nullptr;
};

constexpr auto vmm = eptransport::peer_allocation::virtual_memory;
constexpr auto ipc = eptransport::peer_allocation::runtime;
using on_one_gpu = ::testing::Types<peer_memory_backend<1, vmm>, peer_memory_backend<1, ipc>>;
using on_two_gpus = ::testing::Types<peer_memory_backend<2, vmm>, peer_memory_backend<2, ipc>>;
INSTANTIATE_TYPED_TEST_SUITE_P(OneGpuPeerMemory, Conformance, on_one_gpu);
INSTANTIATE_TYPED_TEST_SUITE_P(TwoGpusPeerMemory, Conformance, on_two_gpus);

}  // namespace conformance
