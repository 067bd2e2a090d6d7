// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The libfabric transport passes the conformance suite over tcp and shm, every rank a
/// process: 2, 3, 5 and 8 of them, one and two comms, eager payloads off, small and large, with and
/// without the strict mode. One job runs all cases, each in a world of its own.
#include <eptransport/backends/libfabric/libfabric.hpp>

#include <gtest/gtest.h>

#include <algorithm>
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

namespace conformance {

namespace support = eptransport::support;

/// How the ranks of one job are made.
struct fabric_job {
  const char* provider;
  int ranks;
  std::uint32_t comms;
  std::uint64_t eager;
  bool strict;
};

/// The rank of this process, and where it meets the others in the case that runs.
struct seat_in_job {
  const fabric_job* job = nullptr;
  std::int32_t rank = 0;
  support::meeting_room* room = nullptr;
  support::meeting_room* exit = nullptr;  ///< through which all leave together
  std::atomic<int>* arrivals = nullptr;
};

/// A backend of which this process has one rank.
struct libfabric_process {
  using transport = eptransport::libfabric;
  static constexpr std::uint64_t seeds = 1;
  static constexpr std::uint64_t patience_ns = 30'000'000'000;
  static constexpr bool one_process = false;
  static constexpr bool can_start_counters = true;
  static constexpr bool can_limit_queues = true;
  static constexpr bool can_break = true;

  static inline seat_in_job here{};

  static std::atomic<int>& arrivals() { return *here.arrivals; }

  static void run(const world_request& request, const std::function<void(transport&)>& per_rank,
                  report& out) {
    eptransport::proxied_options options = to_proxied_options(request);
    options.comms = support::comms_under_test(here.job->comms);
    options.channels = std::max(request.channels, options.comms);
    options.engine.eager = here.job->eager;
    support::in_process_bootstrap meeting(*here.room, here.rank);
    support::in_process_bootstrap leaving(*here.exit, here.rank);
    const auto made =
        transport::create(meeting, options,
                          {.provider = support::provider_under_test(here.job->provider),
                           .strict = here.job->strict,
                           .completions = 1024,
                           .operations = 64,
                           .refuse_posts = here.rank == request.broken_rank});
    if (made) {
      per_rank(**made);
    } else {
      out.add(made.error().message());
    }
    // Closing is collective, and a case may end with a barrier that one rank stays away from.
    if (!leaving.barrier(patience_ns)) out.add("the others did not come to the end of the case");
    if (!made) return;
    if (!(*made)->intact()) out.add("a window's guard zone is damaged");
    const auto closed = (*made)->close();
    // After a failure the endpoints of some providers are left behind.
    if (!closed && request.broken_rank < 0) out.add(closed.error().message());
  }
};

class LibfabricConformance : public ::testing::TestWithParam<fabric_job> {};

TEST_P(LibfabricConformance, HoldsAmongProcesses) {
  const fabric_job& job = GetParam();
  const std::vector<named_case> cases = all_cases<libfabric_process>();
  const support::shared_array<std::atomic<int>> arrivals(1);
  std::vector<std::unique_ptr<support::meeting_room>> rooms;
  for (std::size_t i = 0; i < 2 * cases.size(); ++i) {
    rooms.push_back(std::make_unique<support::meeting_room>(job.ranks));
  }
  auto started = support::rank_processes::start(job.ranks, [&](const auto& who) {
    support::keep_freed_memory();
    std::string findings;
    for (std::size_t i = 0; i < cases.size(); ++i) {
      libfabric_process::here = {&job, who.rank, rooms[2 * i].get(), rooms[2 * i + 1].get(),
                                 &arrivals[0]};
      report out;
      cases[i].run({.ranks = job.ranks}, out);
      if (!out.empty()) findings += std::string(cases[i].name) + ": " + out.text();
    }
    return std::to_string(cases.size()) + " cases\n" + findings;
  });
  ASSERT_TRUE(started) << started.error().message();
  const auto endings = started->wait(std::chrono::minutes(4));
  for (std::size_t rank = 0; rank < endings.size(); ++rank) {
    EXPECT_TRUE(endings[rank].clean()) << "rank " << rank << ", status " << endings[rank].status;
    EXPECT_EQ(endings[rank].said, std::to_string(cases.size()) + " cases\n") << "rank " << rank;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Jobs, LibfabricConformance,
    ::testing::Values(fabric_job{"tcp", 2, 2, 8192, false}, fabric_job{"tcp", 3, 1, 0, true},
                      fabric_job{"tcp", 5, 2, 256, true}, fabric_job{"tcp", 8, 1, 0, false},
                      fabric_job{"shm", 2, 1, 256, true}, fabric_job{"shm", 3, 2, 8192, false},
                      fabric_job{"shm", 5, 1, 0, false}, fabric_job{"shm", 8, 2, 256, true}),
    [](const auto& each) {
      const fabric_job& j = each.param;
      return std::string(j.provider) + "_r" + std::to_string(j.ranks) + "_k" +
             std::to_string(j.comms) + "_eager" + std::to_string(j.eager) +
             (j.strict ? "_strict" : "");
    });

}  // namespace conformance
