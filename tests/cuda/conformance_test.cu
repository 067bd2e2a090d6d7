// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The simulator on a GPU passes the conformance suite, with load and store and without.
#include <eptransport/backends/loopback/cuda_loopback.cuh>

#include <gtest/gtest.h>

#include <functional>

#include "conformance/conformance.hpp"
#include "conformance/device_backend.cuh"

namespace conformance {

template <class Profile>
struct cuda_loopback_backend : device_backend {
  using transport = eptransport::cuda_loopback<Profile>;

  static void run(const world_request& request, const std::function<void(transport&)>& per_rank,
                  report& out) {
    auto world =
        eptransport::cuda_loopback_world<Profile>::create({.ranks = request.ranks,
                                                           .window_bytes = request.window_bytes,
                                                           .signals = request.signals,
                                                           .channels = request.channels,
                                                           .counter_start = request.counter_start,
                                                           .blocks = request.workers,
                                                           .warps = 1});
    if (!world) return out.add(world.error().message());
    (*world)->run([&](transport& t) {
      device_caller caller(0);
      mine = &caller;
      per_rank(t);
    });
  }
  static auto host_view(transport& t) { return called_view(t.view(), *mine); }

  static inline thread_local device_caller* mine = nullptr;
};

namespace p = eptransport::profiles;
using on_one_gpu =
    ::testing::Types<cuda_loopback_backend<p::nvlink>, cuda_loopback_backend<p::efa_gpu>>;
INSTANTIATE_TYPED_TEST_SUITE_P(CudaLoopback, Conformance, on_one_gpu);

}  // namespace conformance
