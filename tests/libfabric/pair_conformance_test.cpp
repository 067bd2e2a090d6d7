// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Shared memory inside the nodes and libfabric between them pass the conformance suite as
/// one transport. Ranks of two nodes take turns, so that every case crosses nodes.
#include <eptransport/backends/hybrid/hybrid.hpp>
#include <eptransport/backends/libfabric/libfabric.hpp>
#include <eptransport/backends/shared_memory/shared_memory.hpp>

#include <gtest/gtest.h>

#include <barrier>
#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

#include "conformance/conformance.hpp"
#include "conformance/proxied_backend.hpp"
#include "support/in_process_bootstrap.hpp"
#include "support/provider_under_test.hpp"

namespace conformance {

struct pair_backend {
  using transport = eptransport::hybrid<eptransport::shared_memory, eptransport::libfabric>;
  static constexpr std::uint64_t seeds = 1;
  static constexpr std::uint64_t patience_ns = 60'000'000'000;
  static constexpr bool one_process = true;
  static constexpr bool can_start_counters = true;
  static constexpr bool can_limit_queues = true;
  static constexpr bool can_break = true;

  /// Until all are done: closing is collective, and a case may end with a barrier that one rank
  /// stays away from.
  static void run_rank(const world_request& request, eptransport::bootstrap& meeting,
                       const std::function<void(transport&)>& per_rank, std::barrier<>& all_done,
                       report& out) {
    eptransport::proxied_options options = to_proxied_options(request);
    const auto inside =
        eptransport::shared_memory::create(meeting, {.window_bytes = request.window_bytes,
                                                     .signals = request.signals,
                                                     .channels = request.channels,
                                                     .workers = request.workers,
                                                     .counter_start = request.counter_start});
    if (!inside) return out.add(inside.error().message());
    options.window = (*inside)->window();
    options.nodes = meeting.nodes();
    options.counter_start = 0;
    options.engine.eager = 256;
    options.drive = eptransport::proxy_drive::shared;
    const auto between = eptransport::libfabric::create(
        meeting, options,
        {.provider = eptransport::support::provider_under_test("tcp"),
         .completions = 1024,
         .operations = 64,
         .refuse_posts = meeting.rank() == request.broken_rank});
    const auto map = eptransport::node_map::from_numbers(meeting.nodes());
    if (!between || !map) return out.add(between ? "no nodes" : between.error().message());
    {
      const auto both = transport::create(**inside, **between, *map);
      if (both) per_rank(**both);
      if (!both) out.add(both.error().message());
      all_done.arrive_and_wait();
    }
    if (!(*inside)->intact()) out.add("a window's guard zone is damaged");
  }

  static void run(const world_request& request, const std::function<void(transport&)>& per_rank,
                  report& out) {
    eptransport::support::meeting_room room(request.ranks);
    for (std::int32_t r = 0; r < request.ranks; ++r) {
      room.places[static_cast<std::size_t>(r)].node = r % 2;
    }
    std::barrier<> all_done(request.ranks);
    std::vector<std::thread> ranks;
    for (std::int32_t r = 0; r < request.ranks; ++r) {
      ranks.emplace_back([&, r] {
        eptransport::support::in_process_bootstrap meeting(room, r);
        run_rank(request, meeting, per_rank, all_done, out);
      });
    }
    for (std::thread& rank : ranks) rank.join();
  }
};

INSTANTIATE_TYPED_TEST_SUITE_P(SharedMemoryAndLibfabric, Conformance,
                               ::testing::Types<pair_backend>);

}  // namespace conformance
