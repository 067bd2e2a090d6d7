// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The planner picks the cheapest candidate, keeps to its limits and says why.
#include <eptransport/core/planner.hpp>

#include <gtest/gtest.h>

#include <limits>
#include <string>

namespace {

using namespace eptransport;

moe_work work(std::int64_t tokens, std::int64_t ranks, std::int64_t nodes, std::int64_t row) {
  return {.routed = {.tokens = tokens, .top_k = 8, .ranks = ranks, .nodes = nodes, .experts = 256},
          .row_bytes = row,
          .return_bytes = row};
}

call_plan plan(const moe_work& w, const wire_cost& wire, const plan_limits& limits) {
  return plan_call(w, uniform_spread(w.routed), wire, limits);
}

TEST(Planner, PicksTheCheapestOfWhatIsAllowed) {
  for (const wire_cost* wire : wires::all) {
    for (const std::int64_t tokens : {1, 8, 128, 4096}) {
      const moe_work w = work(tokens, 16, 2, 7168);
      const plan_limits limits{.per_node = true, .grouped = true, .max_comms = 8};
      const call_plan got = plan(w, *wire, limits);
      double least = std::numeric_limits<double>::max();
      for (const traffic_shape shape : {traffic_shape::per_row, traffic_shape::per_peer,
                                        traffic_shape::per_node, traffic_shape::grouped}) {
        for (const landing lands : {landing::slotted, landing::counted}) {
          for (const double comms : {1.0, 2.0, 4.0, 8.0}) {
            moe_work v = w;
            v.lands = lands;
            double sum = 0;
            for (const direction way : {direction::dispatch, direction::combine}) {
              sum += call_budget(v, uniform_spread(w.routed), shape, way, *wire,
                                 {.comms = comms, .machine = h200})
                         .total();
            }
            least = std::min(least, sum);
          }
        }
      }
      EXPECT_GE(got.best.total_ns(), least * (1 - 1e-12)) << wire->name << ", " << tokens;
      EXPECT_LE(got.best.total_ns(), least * 1.02 * (1 + 1e-12)) << wire->name << ", " << tokens;
    }
  }
}

TEST(Planner, DearMessagesArePackedAndCheapOnesAreNot) {
  const plan_limits limits{.counted = false};
  EXPECT_EQ(plan(work(128, 16, 2, 14336), wires::efa_proxy, limits).best.shape,
            traffic_shape::per_peer);
  EXPECT_EQ(plan(work(128, 16, 2, 14336), wires::ib_gpu, limits).best.shape,
            traffic_shape::per_row);
}

TEST(Planner, AggregatesPerNodeWhereTheProxyBinds) {
  const call_plan got =
      plan(work(2, 16, 2, 2048), wires::efa_proxy, {.per_node = true, .counted = false});
  EXPECT_EQ(got.best.shape, traffic_shape::per_node);
  EXPECT_EQ(got.second.shape, traffic_shape::per_peer);
}

TEST(Planner, SaysWhenAllGatherIsCheaper) {
  const moe_work w = work(2, 16, 2, 2048);
  const call_plan got = plan(w, wires::efa_proxy, {.counted = false});
  EXPECT_EQ(got.best.shape, traffic_shape::per_peer) << "all-gather was not allowed";
  EXPECT_NE(reasons_of(got, wires::efa_proxy).find("all-gather is cheaper"), std::string::npos);
  const call_plan inside = plan(
      w, wires::efa_proxy,
      {.per_row = true, .per_peer = true, .per_node = true, .all_gather = true, .counted = false});
  EXPECT_LE(inside.best.total_ns(), inside.all_gather.total_ns() * 1.02);
}

TEST(Planner, TakesCountedCallsWhereSlotsDoNotFitAndKeepsToOneMode) {
  const moe_work w = work(4096, 16, 2, 7168);
  plan_limits limits{.window_bytes = 1e9};
  EXPECT_EQ(plan(w, wires::ib_gpu, limits).best.lands, landing::counted);
  limits.counted = false;
  EXPECT_EQ(plan(w, wires::ib_gpu, limits).best.lands, landing::slotted);
  limits = {.slotted = false};
  EXPECT_EQ(plan(work(1, 16, 2, 7168), wires::ib_gpu, limits).best.lands, landing::counted);
}

TEST(Planner, OpensNoMoreCommsThanHelp) {
  plan_limits limits{.counted = false, .max_comms = 8};
  EXPECT_EQ(plan(work(2, 16, 2, 2048), wires::efa_proxy, limits).best.comms, 1)
      << "that wire has one";
  EXPECT_EQ(plan(work(2, 16, 2, 2048), wires::efa_proxy_comms, limits).best.comms, 8);
  EXPECT_EQ(plan(work(2, 2, 2, 2048), wires::efa_proxy_comms, limits).best.comms, 1)
      << "one message needs one comm";
}

TEST(Planner, AdvisesASecondLaneOnlyWhereThereIsComputeToHide) {
  plan_limits limits{.counted = false};
  EXPECT_EQ(plan(work(8, 16, 2, 7168), wires::efa_proxy, limits).lanes, 1);
  limits.compute_ns = 1e6;
  EXPECT_EQ(plan(work(8, 16, 2, 7168), wires::efa_proxy, limits).lanes, 2);
}

TEST(Planner, GivesAReasonForEachChoice) {
  const std::string why =
      reasons_of(plan(work(8, 16, 2, 7168), wires::efa_proxy, {}), wires::efa_proxy);
  for (const char* word : {"per_peer: ", "slotted: ", " comm: ", " lane: ", " SMs: ", "issuing"}) {
    EXPECT_NE(why.find(word), std::string::npos) << word << " in\n" << why;
  }
}

TEST(Planner, WorksAtCompileTimeAndForOneRank) {
  constexpr moe_work w{.routed = {.tokens = 4, .top_k = 2, .ranks = 4, .experts = 8},
                       .row_bytes = 1024,
                       .return_bytes = 1024};
  constexpr call_plan got = plan_call(w, uniform_spread(w.routed), wires::efa_proxy, {});
  static_assert(got.best.valid && got.best.total_ns() > 0);
  EXPECT_TRUE(plan(work(4, 1, 1, 64), wires::efa_proxy, {}).best.valid);
}

}  // namespace
