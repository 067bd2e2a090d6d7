// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Shared memory inside the nodes and libfabric between them pass the conformance suite as
/// one transport, every rank a process. Ranks of two nodes take turns, so that every case crosses
/// nodes and stays inside them. One job runs all cases, each in a world of its own.
#include <eptransport/backends/hybrid/hybrid.hpp>
#include <eptransport/backends/libfabric/libfabric.hpp>
#include <eptransport/backends/shared_memory/shared_memory.hpp>

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "conformance/case_list.hpp"
#include "conformance/proxied_backend.hpp"
#include "libfabric/jobs.hpp"
#include "support/in_process_bootstrap.hpp"
#include "support/processes.hpp"
#include "support/provider_under_test.hpp"

namespace conformance {

namespace support = eptransport::support;

/// This process's rank, where the ranks meet in the case that runs, and where they leave together,
/// since closing is collective and a case may end with a barrier that one stays away from.
struct pair_seat {
  std::int32_t rank = 0;
  support::meeting_room* room = nullptr;
  support::meeting_room* exit = nullptr;
  std::atomic<int>* arrivals = nullptr;
};

/// A backend of which this process has one rank.
struct pair_process {
  using transport = eptransport::hybrid<eptransport::shared_memory, eptransport::libfabric>;
  static constexpr std::uint64_t seeds = 1;
  static constexpr std::uint64_t patience_ns = 30'000'000'000;
  static constexpr bool one_process = false;
  static constexpr bool can_start_counters = true;
  static constexpr bool can_limit_queues = true;
  static constexpr bool can_break = true;

  static inline pair_seat here{};
  static std::atomic<int>& arrivals() { return *here.arrivals; }

  static void run(const world_request& request, const std::function<void(transport&)>& per_rank,
                  report& out) {
    support::in_process_bootstrap meeting(*here.room, here.rank);
    support::in_process_bootstrap leaving(*here.exit, here.rank);
    const auto inside =
        eptransport::shared_memory::create(meeting, {.window_bytes = request.window_bytes,
                                                     .signals = request.signals,
                                                     .channels = request.channels,
                                                     .workers = request.workers,
                                                     .counter_start = request.counter_start});
    if (!inside) return out.add(inside.error().message());
    eptransport::proxied_options options = to_proxied_options(request);
    options.window = (*inside)->window();
    options.window_owner = (*inside)->window_owner();
    options.nodes = meeting.nodes();
    options.counter_start = 0;
    options.engine.eager = 256;
    const auto between =
        eptransport::libfabric::create(meeting, options,
                                       {.provider = support::provider_under_test("tcp"),
                                        .completions = 1024,
                                        .operations = 64,
                                        .refuse_posts = here.rank == request.broken_rank});
    if (!between) return out.add(between.error().message());
    const auto map = eptransport::node_map::from_numbers(meeting.nodes());
    const auto both = transport::create(**inside, **between, *map);
    if (both) per_rank(**both);
    if (!both) out.add(both.error().message());
    if (!leaving.barrier(patience_ns)) out.add("the others did not come to the end of the case");
    if (!(*inside)->intact()) out.add("a window's guard zone is damaged");
    const auto closed = (*between)->close();
    // After a failure the endpoints of some providers are left behind.
    if (!closed && request.broken_rank < 0) out.add(closed.error().message());
  }
};

class PairConformance : public ::testing::TestWithParam<int> {};

TEST_P(PairConformance, HoldsAmongProcesses) {
  const int ranks = GetParam();
  const std::vector<named_case> cases = all_cases<pair_process>();
  const support::shared_array<std::atomic<int>> arrivals(1);
  std::vector<std::unique_ptr<support::meeting_room>> rooms;
  for (std::size_t i = 0; i < 2 * cases.size(); ++i) {
    rooms.push_back(std::make_unique<support::meeting_room>(ranks));
    for (std::int32_t r = 0; r < ranks; ++r) {
      rooms.back()->places[static_cast<std::size_t>(r)].node = r % 2;
    }
  }
  auto started = support::rank_processes::start(ranks, [&](const auto& who) {
    support::keep_freed_memory();
    std::string findings;
    for (std::size_t i = 0; i < cases.size(); ++i) {
      pair_process::here = {who.rank, rooms[2 * i].get(), rooms[2 * i + 1].get(), &arrivals[0]};
      report out;
      cases[i].run({.ranks = ranks}, out);
      if (!out.empty()) findings += std::string(cases[i].name) + ": " + out.text();
    }
    return std::to_string(cases.size()) + " cases\n" + findings;
  });
  ASSERT_TRUE(started) << started.error().message();
  const auto endings = started->wait(std::chrono::minutes(2));
  for (std::size_t rank = 0; rank < endings.size(); ++rank) {
    EXPECT_TRUE(endings[rank].clean()) << "rank " << rank << ", status " << endings[rank].status;
    EXPECT_EQ(endings[rank].said, std::to_string(cases.size()) + " cases\n") << "rank " << rank;
  }
}

INSTANTIATE_TEST_SUITE_P(Jobs, PairConformance, ::testing::Values(5),
                         [](const auto& each) { return "r" + std::to_string(each.param); });

}  // namespace conformance
