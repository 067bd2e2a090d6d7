// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The libfabric transport passes the conformance suite over tcp and shm: one and two comms,
/// eager payloads off, small and large, with and without the strict mode. Each rank is a transport
/// of its own, in a thread of one process.
#include "conformance/conformance.hpp"

#include <eptransport/backends/libfabric/libfabric.hpp>

#include <gtest/gtest.h>

#include <barrier>
#include <cstdint>
#include <functional>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

#include "conformance/proxied_backend.hpp"
#include "support/in_process_bootstrap.hpp"
#include "support/provider_under_test.hpp"

namespace conformance {

/// A provider as a type.
struct over_tcp {
  static constexpr const char* name = "tcp";
};
struct over_shm {
  static constexpr const char* name = "shm";
};

template <class Provider, std::uint32_t kComms, std::uint64_t kEager, bool kStrict>
struct libfabric_backend {
  using transport = eptransport::libfabric;
  static constexpr std::uint64_t seeds = 1;
  static constexpr std::uint64_t patience_ns = 60'000'000'000;
  static constexpr bool one_process = true;
  static constexpr bool can_start_counters = true;
  static constexpr bool can_limit_queues = true;
  static constexpr bool can_break = true;

  static void run(const world_request& request, const std::function<void(transport&)>& per_rank,
                  report& out) {
    eptransport::proxied_options options = to_proxied_options(request);
    options.comms = kComms;
    options.engine.eager = kEager;
    options.drive = eptransport::proxy_drive::shared;
    options.driver_threads = kComms;
    eptransport::support::meeting_room room(request.ranks);
    std::barrier<> all_done(request.ranks);
    std::vector<std::thread> ranks;
    for (std::int32_t r = 0; r < request.ranks; ++r) {
      ranks.emplace_back([&, r] {
        eptransport::support::in_process_bootstrap meeting(room, r);
        const auto made = transport::create(
            meeting, options,
            {.provider = eptransport::support::provider_under_test(Provider::name),
             .strict = kStrict,
             .completions = 1024,
             .operations = 64,
             .refuse_posts = r == request.broken_rank});
        if (made) {
          per_rank(**made);
        } else {
          out.add(made.error().message());
        }
        // Closing is collective, and a case may end with a barrier that one rank stays away from.
        all_done.arrive_and_wait();
        if (made && !(*made)->intact()) out.add("a window's guard zone is damaged");
      });
    }
    for (std::thread& rank : ranks) rank.join();
  }
};

/// Says what a backend is made of where gtest would print a number.
struct libfabric_names {
  template <class B>
  static std::string GetName(int) {  // NOLINT(readability-identifier-naming): gtest's name
    return name_of(static_cast<B*>(nullptr));
  }
  template <class Provider, std::uint32_t kComms, std::uint64_t kEager, bool kStrict>
  static std::string name_of(libfabric_backend<Provider, kComms, kEager, kStrict>*) {
    return std::string(Provider::name) + "_k" + std::to_string(kComms) + "_eager" +
           std::to_string(kEager) + (kStrict ? "_strict" : "");
  }
};

using over_libfabric = ::testing::Types<
    libfabric_backend<over_tcp, 1, 0, false>, libfabric_backend<over_tcp, 2, 256, true>,
    libfabric_backend<over_shm, 2, 8192, false>, libfabric_backend<over_shm, 1, 0, true>>;
INSTANTIATE_TYPED_TEST_SUITE_P(Libfabric, Conformance, over_libfabric, libfabric_names);

}  // namespace conformance
