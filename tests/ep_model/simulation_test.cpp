// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The event simulation: against counting, against the closed forms where these hold, and
/// where they do not.
#include "ep_model/simulation.hpp"

#include <eptransport/core/planner.hpp>

#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <vector>

#include "ep_model/event_queue.hpp"
#include "support/random.hpp"

namespace {

using namespace eptransport;
using namespace eptransport::model;

/// Every rank gets as many rows as every other one, and sends as many.
std::vector<std::int64_t> balanced_index(const routed_work& w) {
  std::vector<std::int64_t> index;
  for (std::int64_t r = 0; r < w.ranks; ++r) {
    for (std::int64_t t = 0; t < w.tokens; ++t) {
      for (std::int64_t j = 0; j < w.top_k; ++j) {
        const std::int64_t to = (r + t * w.top_k + j) % w.ranks;
        const std::int64_t first = detail::part_begin(w.experts, w.ranks, to);
        const std::int64_t own = detail::part_begin(w.experts, w.ranks, to + 1) - first;
        index.push_back(first + j / w.ranks % own);
      }
    }
  }
  return index;
}

moe_work work(std::int64_t tokens, std::int64_t ranks, std::int64_t nodes) {
  return {.routed = {.tokens = tokens, .top_k = 8, .ranks = ranks, .nodes = nodes, .experts = 256},
          .row_bytes = 2048,
          .scale_bytes = 64,
          .return_bytes = 4096};
}

double closed(const sim_setting& s, const routing_spread& spread, direction way) {
  return call_budget(s.work, spread, s.shape, way, s.wire,
                     {.comms = s.comms, .inside = s.inner, .machine = s.machine})
      .total();
}

TEST(EventQueue, YieldsEventsInOrderWhateverTheWidth) {
  support::random_bits random(5);
  for (const double width : {0.01, 1.0, 1e6}) {
    event_queue queue(width);
    double now = 0;
    std::size_t pushed = 0;
    std::size_t popped = 0;
    for (; pushed < 1000; ++pushed) queue.push({.ns = random.unit() * 1e5});
    while (!queue.empty()) {
      const event e = queue.pop();
      ++popped;
      ASSERT_GE(e.ns, now) << "width " << width;
      now = e.ns;
      if (pushed < 20'000) {
        const bool far = random.chance(0.01);
        queue.push({.ns = now + random.unit() * (far ? 1e7 : 50.0)});
        ++pushed;
      }
    }
    EXPECT_EQ(popped, pushed);
  }
}

TEST(Simulation, SendsTheMessagesAndBytesThatOneWouldCount) {
  // Four ranks on two nodes; each rank's two tokens go to the experts of all four ranks.
  sim_setting s{.work = {.routed = {.tokens = 2, .top_k = 4, .ranks = 4, .nodes = 2, .experts = 4},
                         .row_bytes = 100,
                         .return_bytes = 10}};
  for (int t = 0; t < 8; ++t) s.index.insert(s.index.end(), {0, 1, 2, 3});
  const double slot = 100 + 8 + 8 * 4;
  s.shape = traffic_shape::per_peer;
  sim_result r = simulate(s);
  EXPECT_EQ(r.messages, 4 * (3 + 3));
  EXPECT_EQ(r.bytes, 4 * 3 * (64 + 2 * slot) + 4 * 3 * 20);
  s.shape = traffic_shape::per_row;
  r = simulate(s);
  EXPECT_EQ(r.messages, 4 * (3 + 6 + 6));
  s.shape = traffic_shape::per_node;
  r = simulate(s);
  EXPECT_EQ(r.messages, 4 * (1 + 1));
  EXPECT_EQ(r.bytes, 4 * (64 + 2 * slot) + 4 * 20);
  s.shape = traffic_shape::all_gather;
  EXPECT_EQ(simulate(s).messages, 4 * 2);
  s.shape = traffic_shape::per_peer;
  s.work.lands = landing::counted;
  EXPECT_EQ(simulate(s).messages, 4 * (3 + 6 + 3)) << "counts, rows and sides, returns";
}

TEST(Simulation, OfOneMessageIsTheSumOfItsStages) {
  sim_setting s{.work = {.routed = {.tokens = 1, .top_k = 1, .ranks = 2, .nodes = 2, .experts = 2},
                         .row_bytes = 936,  // with header and choices 1016 bytes
                         .return_bytes = 500}};
  s.index = {1, 0};
  s.wire = {.name = "round numbers",
            .issue_ns = {100},
            .arrive_ns = {7},
            .latency_ns = {1000},
            .channel_bytes_per_s = {1e9},
            .command_ns = {1},
            .poll_ns = {2},
            .wake_ns = {3}};
  const sim_result r = simulate(s);
  EXPECT_NEAR(r.dispatch.max_ns, 1 + 2 + 100 + 1016 + 1000 + 7 + 3, 1e-9);
  EXPECT_NEAR(r.combine.max_ns, 1 + 2 + 100 + 500 + 1000 + 7 + 3, 1e-9);
  EXPECT_NEAR(r.total_ns, r.dispatch.max_ns + r.combine.max_ns, 1e-9);
  s.expert_ns = 5000;
  EXPECT_NEAR(simulate(s).total_ns, r.total_ns + 5000, 1e-9);
  s.stragglers = 1;
  s.straggler_ns = 10'000;
  EXPECT_NEAR(simulate(s).total_ns, r.total_ns + 15'000, 1e-9) << "everybody waits for the last";
}

TEST(Simulation, AgreesWithTheClosedFormsWhereTheirAssumptionsHold) {
  // Equal ranks, equal messages, one issuer, no jitter.
  int cases = 0;
  for (const std::int64_t ranks : {8, 16, 64, 128}) {
    for (const std::int64_t tokens : {2, 16, 128}) {
      for (const wire_cost* wire :
           {&wires::nvlink, &wires::ib_gpu, &wires::efa_gpu, &wires::efa_proxy}) {
        for (const traffic_shape shape : {traffic_shape::per_row, traffic_shape::per_peer,
                                          traffic_shape::per_node, traffic_shape::all_gather}) {
          sim_setting s{.work = work(tokens, ranks, ranks / 8), .shape = shape, .wire = *wire};
          s.index = balanced_index(s.work.routed);
          const routing_spread spread = traced_spread(s.work.routed, s.index);
          const sim_result r = simulate(s);
          ASSERT_EQ(r.error, "");
          const std::string what = std::string(wire->name) + ", " + name_of(shape) + ", " +
                                   std::to_string(ranks) + " ranks, " + std::to_string(tokens) +
                                   " tokens";
          EXPECT_NEAR(closed(s, spread, direction::dispatch) / r.dispatch.max_ns, 1, 0.05) << what;
          EXPECT_NEAR(closed(s, spread, direction::combine) / r.combine.max_ns, 1, 0.05) << what;
          cases += 2;
        }
      }
    }
  }
  EXPECT_EQ(cases, 4 * 3 * 4 * 4 * 2);
}

TEST(Simulation, ShowsWhatTheClosedFormsDoNotIncast) {
  // All tokens of all ranks for one rank's experts: its NIC takes what 15 others send.
  sim_setting s{.work = work(64, 16, 2), .wire = wires::ib_gpu};
  for (std::int64_t t = 0; t < 16 * 64; ++t) {
    for (std::int64_t j = 0; j < 8; ++j) s.index.push_back(j);
  }
  const sim_result r = simulate(s);
  const routing_spread spread = traced_spread(s.work.routed, s.index);
  routing_spread blind = spread;
  blind.incast = 1;
  blind.variation = 0;
  const double uniform = closed(s, blind, direction::dispatch);
  EXPECT_GT(r.dispatch.max_ns, 4 * uniform);
  EXPECT_GT(r.busiest_in, 5);
  // With the incast that the trace shows, the closed form is near the slowest rank again.
  EXPECT_NEAR(closed(s, spread, direction::dispatch) / r.dispatch.max_ns, 1, 0.25);
}

TEST(Simulation, RandomRoutingCostsMoreThanItsMeanBecauseEverybodyWaitsForTheSlowest) {
  sim_setting s{.work = work(64, 64, 8), .wire = wires::ib_gpu};
  s.index = uniform_index(s.work.routed, 3);
  const sim_result r = simulate(s);
  const routing_spread spread = uniform_spread(s.work.routed);
  routing_spread even = spread;
  even.variation = 0;
  EXPECT_GT(r.combine.max_ns, 1.08 * closed(s, even, direction::combine));
  EXPECT_NEAR(closed(s, spread, direction::combine) / r.combine.max_ns, 1, 0.1);
}

TEST(Simulation, AStragglersDelayReachesEveryRank) {
  sim_setting s{.work = work(8, 16, 2), .wire = wires::efa_gpu};
  s.index = uniform_index(s.work.routed, 3);
  const sim_result calm = simulate(s);
  s.stragglers = 1;
  s.straggler_factor = 20;
  const sim_result slow = simulate(s);
  EXPECT_GT(slow.dispatch.p50_ns, calm.dispatch.p50_ns + 14 * 19 * 350 * 0.3);
  EXPECT_GT(slow.total_ns, calm.total_ns);
}

TEST(Simulation, SprayingAndNicRatesOnlyDelay) {
  sim_setting s{.work = work(8, 16, 2), .wire = wires::efa_gpu, .pairs = 4};
  s.index = uniform_index(s.work.routed, 3);
  const double calm = simulate(s).total_ns;
  s.spray_ns = 5000;
  const double sprayed = simulate(s).total_ns;
  EXPECT_GT(sprayed, calm);
  EXPECT_LT(sprayed, calm + 8 * 5000);
  s.spray_ns = 0;
  s.nic_message_ns = 2000;
  EXPECT_GT(simulate(s).total_ns, calm);
}

TEST(Simulation, IsTheSameEveryTimeAndAnotherWithAnotherSeed) {
  sim_setting s{.work = work(8, 32, 4), .wire = wires::efa_proxy_comms, .comms = 4, .pairs = 3};
  s.index = uniform_index(s.work.routed, 1);
  s.spray_ns = 1000;
  const sim_result a = simulate(s);
  const sim_result b = simulate(s);
  EXPECT_EQ(a.digest, b.digest);
  EXPECT_EQ(a.events, b.events);
  s.seed = 2;
  EXPECT_NE(simulate(s).digest, a.digest);
}

TEST(Simulation, FastRanksRunAheadButNobodyLosesAMessage) {
  // Every pair of ranks exchanges something in each of many pairs, whatever the delays.
  for (const traffic_shape shape : {traffic_shape::per_row, traffic_shape::per_peer,
                                    traffic_shape::per_node, traffic_shape::all_gather}) {
    for (const landing lands : {landing::slotted, landing::counted}) {
      if (lands == landing::counted && shape == traffic_shape::all_gather) continue;
      sim_setting s{.work = work(1, 8, 2), .shape = shape, .wire = wires::efa_gpu, .pairs = 40};
      s.work.lands = lands;
      s.work.routed.top_k = 1;
      s.index = uniform_index(s.work.routed, 9);
      const double once =
          simulate({.work = s.work, .shape = shape, .wire = s.wire, .index = s.index}).messages;
      s.spray_ns = 200'000;
      s.stragglers = 2;
      s.straggler_ns = 1e6;
      const sim_result r = simulate(s);
      ASSERT_EQ(r.error, "");
      EXPECT_EQ(r.messages, 40 * once) << name_of(shape);
      EXPECT_GT(r.combine.max_ns, 0);
    }
  }
}

TEST(Simulation, RefusesWhatItCannotPlay) {
  sim_setting s{.work = work(2, 9, 2)};
  s.index = uniform_index(s.work.routed, 1);
  s.shape = traffic_shape::per_node;
  EXPECT_NE(simulate(s).error.find("as many ranks on every node"), std::string::npos);
  s.index.pop_back();
  s.shape = traffic_shape::per_peer;
  EXPECT_NE(simulate(s).error.find("143 choices"), std::string::npos);
  s.index = uniform_index(s.work.routed, 1);
  s.work.everyone = false;
  EXPECT_NE(simulate(s).error, "");
}

TEST(LongSimulation, FourThousandRanksTakeLessThanAMinute) {
  sim_setting s{.work = work(16, 4096, 512), .wire = wires::efa_proxy_comms, .comms = 8};
  s.work.routed.experts = 4096;
  s.index = uniform_index(s.work.routed, 1);
  const auto start = std::chrono::steady_clock::now();
  const sim_result r = simulate(s);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  EXPECT_EQ(r.error, "");
  EXPECT_GT(r.messages, 4096.0 * 4095);
  EXPECT_LT(took.count(), 60);
}

}  // namespace
