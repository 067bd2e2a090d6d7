// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief GPU backends of one process pass the conformance suite: the simulator with load and store
/// and without, and proxied ranks.
#include <eptransport/backends/loopback/cuda_loopback.cuh>
#include <eptransport/backends/proxied/cuda_proxied.cuh>
#include <eptransport/backends/proxied/proxied.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <vector>

#include "conformance/conformance.hpp"
#include "conformance/device_backend.cuh"
#include "conformance/proxied_backend.hpp"

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

/// Rings wrap, and with `kEager` small payloads travel inside messages.
template <class Wire, std::uint32_t kComms, std::uint64_t kEager>
struct cuda_proxied_backend : device_backend {
  using host = eptransport::proxied<Wire>;
  using transport = eptransport::cuda_proxied<host>;
  static constexpr bool can_limit_queues = true;

  static void run(const world_request& request, const std::function<void(transport&)>& per_rank,
                  report& out) {
    eptransport::proxied_options options = to_proxied_options(request);
    options.comms = kComms;
    options.channels = std::max(options.channels, kComms);
    options.engine.eager = kEager;
    options.drive = eptransport::proxy_drive::shared;
    options.driver_threads = 2;
    auto hosts = eptransport::proxied_world<Wire>::create(options);
    if (!hosts) return out.add(hosts.error().message());
    std::vector<host*> ranks;
    for (int rank = 0; rank < request.ranks; ++rank) ranks.push_back(&(*hosts)->rank(rank));
    auto world = eptransport::cuda_proxied_world<host>::create(
        ranks, {.blocks = request.workers, .warps = 1});
    if (!world) return out.add(world.error().message());
    (*world)->run([&](transport& t) {
      device_caller caller(0);
      mine = &caller;
      per_rank(t);
    });
    if (const auto text = (*hosts)->violations(); !text.empty()) out.add(text);
  }
  static auto host_view(transport& t) { return called_view(t.view(), *mine); }

  static inline thread_local device_caller* mine = nullptr;
};

namespace p = eptransport::profiles;
using on_one_gpu =
    ::testing::Types<cuda_loopback_backend<p::nvlink>, cuda_loopback_backend<p::efa_gpu>>;
INSTANTIATE_TYPED_TEST_SUITE_P(CudaLoopback, Conformance, on_one_gpu);

using by_proxies = ::testing::Types<cuda_proxied_backend<eptransport::memory_wire, 1, 0>,
                                    cuda_proxied_backend<eptransport::srd_wire, 3, 256>>;
INSTANTIATE_TYPED_TEST_SUITE_P(CudaProxied, Conformance, by_proxies);

}  // namespace conformance
