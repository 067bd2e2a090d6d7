// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The closed forms against published figures, by hand, and against a pipeline played out.
#include <eptransport/backends/loopback/profiles.hpp>
#include <eptransport/core/cost_model.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <vector>

namespace {

using namespace eptransport;

constexpr moe_work published{
    .routed = {.tokens = 2, .top_k = 8, .ranks = 16, .nodes = 2, .experts = 128},
    .row_bytes = 2048,
    .layers = 48};

// The published figures hold at compile time.
static_assert(messages_dispatch(published.routed) == 15);
static_assert(bytes_dispatch(published) == bytes_all_gather(published) / 2);
constexpr step_cost slow{.compute_ns = 36.3e6, .tax_ns = 14.7e6};
static_assert(slow.kept() > 0.705 && slow.kept() < 0.715);
static_assert(slow.slowdown() > 1.395 && slow.slowdown() < 1.405);
static_assert(slow.tokens_per_s() > 19.55 && slow.tokens_per_s() < 19.65);
static_assert(15 * wires::efa_proxy.issue_ns.value > 152.5e3 &&
              15 * wires::efa_proxy.issue_ns.value < 153.5e3);

TEST(CostModel, TransferIsTheHigherOfTheTwoRooflines) {
  EXPECT_DOUBLE_EQ(transfer_ns(15, 32768, 10e3, 25e9), 150e3);
  EXPECT_DOUBLE_EQ(transfer_ns(1, 25e6, 10e3, 25e9), 1e6);
  EXPECT_DOUBLE_EQ(transfer_ns(3, 1e9, 7, 0), 21) << "no rate: unlimited";
}

TEST(CostModel, EveryConstantHasItsSource) {
  std::vector<std::string> names;
  for (const wire_cost* wire : wires::all) {
    names.emplace_back(wire->name);
    for (const constant& c :
         {wire->issue_ns, wire->arrive_ns, wire->latency_ns, wire->channel_bytes_per_s,
          wire->node_bytes_per_s, wire->command_ns, wire->poll_ns, wire->wake_ns,
          wire->serial_share, wire->eager_bytes}) {
      if (c.value != 0) {
        EXPECT_NE(std::string(c.note), "") << wire->name << ": " << c.value;
      }
    }
    EXPECT_GE(wire->max_issuers.value, 1) << wire->name;
  }
  std::sort(names.begin(), names.end());
  EXPECT_EQ(std::adjacent_find(names.begin(), names.end()), names.end());
}

TEST(CostModel, TheSimulatorsProfilesChargeWhatTheTableSays) {
  const auto same = [](const wire_charge& a, const wire_charge& b) {
    return a.issue_ns == b.issue_ns && a.arrive_ns == b.arrive_ns && a.latency_ns == b.latency_ns &&
           a.channel_bytes_per_s == b.channel_bytes_per_s &&
           a.node_bytes_per_s == b.node_bytes_per_s;
  };
  EXPECT_TRUE(same(profiles::nvlink::caps.charge, wires::nvlink.charge()));
  EXPECT_TRUE(same(profiles::ib_gpu::caps.charge, wires::ib_gpu.charge()));
  EXPECT_TRUE(same(profiles::efa_gpu::caps.charge, wires::efa_gpu.charge()));
  EXPECT_TRUE(same(profiles::efa_proxy::caps.charge, wires::efa_proxy.charge()));
  EXPECT_TRUE(same(wire_cost_of(profiles::efa_proxy::caps).charge(), wires::efa_proxy.charge()));
  EXPECT_STREQ(profiles::nvlink::name, wires::nvlink.name);
  EXPECT_STREQ(profiles::ib_gpu::name, wires::ib_gpu.name);
  EXPECT_STREQ(profiles::efa_gpu::name, wires::efa_gpu.name);
  EXPECT_STREQ(profiles::efa_proxy::name, wires::efa_proxy.name);
  EXPECT_TRUE(wire_cost_of(profiles::efa_proxy::caps).proxied);
  EXPECT_TRUE(wire_cost_of(profiles::nvlink::caps).load_store);
}

TEST(CostModel, TrafficOfEachShapeIsWhatOneWouldCount) {
  // Every token goes to every rank: 8 experts of 8 ranks on 2 nodes, all chosen.
  moe_work w{.routed = {.tokens = 3, .top_k = 8, .ranks = 8, .nodes = 2, .experts = 8},
             .row_bytes = 200,
             .return_bytes = 400};
  const routing_spread s = uniform_spread(w.routed);
  const double row = 100 * 2 + 8 + 8 * 8;
  const auto of = [&](traffic_shape shape, direction way = direction::dispatch) {
    return traffic_of(w, s, shape, way, wires::efa_proxy_comms);
  };
  const call_traffic rows = of(traffic_shape::per_row);
  EXPECT_DOUBLE_EQ(rows.messages, 3 * 7 + 7);
  EXPECT_DOUBLE_EQ(rows.bytes, 3 * 7 * row + 7 * 64);
  EXPECT_DOUBLE_EQ(rows.packed_bytes, row);
  const call_traffic peers = of(traffic_shape::per_peer);
  EXPECT_DOUBLE_EQ(peers.messages, 7);
  EXPECT_DOUBLE_EQ(peers.bytes, rows.bytes);
  EXPECT_DOUBLE_EQ(peers.packed_bytes, 3 * 7 * row);
  const call_traffic nodes = of(traffic_shape::per_node);
  EXPECT_DOUBLE_EQ(nodes.messages, 1);
  EXPECT_DOUBLE_EQ(nodes.bytes, 3 * row + 64);
  EXPECT_DOUBLE_EQ(nodes.stored_bytes, 3 * 3 * row) << "to three ranks of the own node";
  EXPECT_DOUBLE_EQ(nodes.relayed_bytes, 3 * 3 * row) << "of four, the relay keeps its own";
  EXPECT_DOUBLE_EQ(nodes.relayed_signals, 3);
  const call_traffic back = of(traffic_shape::per_node, direction::combine);
  EXPECT_DOUBLE_EQ(back.stored_bytes, 3 * 6 * 400);
  EXPECT_TRUE(back.stores_first);
  const call_traffic gathered = of(traffic_shape::all_gather);
  EXPECT_DOUBLE_EQ(gathered.messages, 1);
  EXPECT_DOUBLE_EQ(gathered.bytes, 3 * row);
  EXPECT_DOUBLE_EQ(gathered.stored_bytes + gathered.relayed_bytes, 3 * 2 * 3 * row);
  const call_traffic grouped = of(traffic_shape::grouped);
  EXPECT_DOUBLE_EQ(grouped.messages, 7) << "three rows of 272 bytes fit into 8 KiB";
  EXPECT_DOUBLE_EQ(of(traffic_shape::direct).messages, 7);
  EXPECT_DOUBLE_EQ(of(traffic_shape::per_peer, direction::combine).bytes, 3 * 7 * 400);
  EXPECT_DOUBLE_EQ(of(traffic_shape::per_row, direction::combine).messages, 3 * 7);
  w.lands = landing::counted;
  EXPECT_DOUBLE_EQ(of(traffic_shape::per_peer).messages, 14) << "rows and sides";
  EXPECT_DOUBLE_EQ(count_traffic(w, traffic_shape::per_peer).messages, 7);
  const call_traffic counts = count_traffic(w, traffic_shape::per_node);
  EXPECT_DOUBLE_EQ(counts.messages, 1) << "relays pass the counts on";
  EXPECT_DOUBLE_EQ(counts.relayed_signals, 3);
}

TEST(CostModel, GroupedRowsThatExceedAnEagerMessageTravelAlone) {
  moe_work w = published;
  w.routed.tokens = 64;
  const routing_spread s = uniform_spread(w.routed);
  const auto grouped =
      traffic_of(w, s, traffic_shape::grouped, direction::dispatch, wires::efa_proxy_comms);
  // Of 64 tokens some go to each of 15 peers, three rows of 2120 bytes to a message.
  std::mt19937_64 random(3);
  std::binomial_distribution<int> rows(64, s.ranks / 15);
  double sum = 0;
  for (int i = 0; i < 100'000; ++i) {
    sum += std::max(1.0, std::ceil(rows(random) / 3.0));
  }
  EXPECT_NEAR(grouped.messages, 15 * sum / 100'000, 0.2);
  w.row_bytes = 9000;
  const auto large =
      traffic_of(w, s, traffic_shape::grouped, direction::dispatch, wires::efa_proxy_comms);
  EXPECT_DOUBLE_EQ(large.messages, 64 * s.ranks + 15);
}

/// Plays a pipeline of equal messages through issuers, links, latency and agent, one by one.
double play(int messages, int comms, int links, double issue, double move, double latency,
            double arrive) {
  std::vector<double> issuer(static_cast<std::size_t>(comms), 0);
  std::vector<double> link(static_cast<std::size_t>(links), 0);
  std::vector<double> there;
  for (int m = 0; m < messages; ++m) {
    double& own = issuer[static_cast<std::size_t>(m % comms)];
    double& on = link[static_cast<std::size_t>(m % comms % links)];
    own += issue;
    on = std::max(on, own) + move;
    there.push_back(on + latency);
  }
  std::sort(there.begin(), there.end());
  double agent = 0;
  for (const double at : there) agent = std::max(agent, at) + arrive;
  return agent;
}

TEST(CostModel, TheBudgetIsThePipelinesEnd) {
  std::mt19937_64 random(7);
  const auto any = [&random](double most) {
    return std::uniform_real_distribution<double>(0, most)(random);
  };
  for (int i = 0; i < 600; ++i) {
    wire_cost wire;
    wire.issue_ns.value = any(1000);
    wire.latency_ns.value = any(5000);
    wire.channel_bytes_per_s.value = 1e9 + any(1e9);
    wire.max_issuers.value = 8;
    const int comms = 1 << static_cast<int>(any(3));
    const int links = 1 << static_cast<int>(any(std::log2(comms) + 0.99));
    wire.node_bytes_per_s.value = wire.channel_bytes_per_s.value * (links + 0.1);
    // An agent that takes messages one by one makes bursts wait: exact for one issuer only.
    wire.arrive_ns.value = comms == 1 ? any(1000) : 0;
    const int messages = 1 + static_cast<int>(any(60));
    const call_traffic t{.messages = static_cast<double>(messages), .bytes = messages * any(2000)};
    const double move = t.bytes / messages * 1e9 / wire.channel_bytes_per_s.value;
    const double expected = play(messages, comms, links, wire.issue_ns.value, move,
                                 wire.latency_ns.value, wire.arrive_ns.value);
    const double got =
        budget_of(t, wire, {.comms = static_cast<double>(comms), .inner = false}, 1).total();
    EXPECT_NEAR(got / expected, 1, comms == 1 ? 1e-9 : 0.05)
        << "seed 7, case " << i << ": " << messages << " messages, " << comms << " comms, " << links
        << " links";
  }
}

TEST(CostModel, IssuersSlowEachOtherDownAsMeasured) {
  const double one = issue_ns_of(wires::efa_proxy_comms, 1);
  const double eight = issue_ns_of(wires::efa_proxy_comms, 8) / 8;
  EXPECT_NEAR(one / eight, 4.3, 1e-9);
}

TEST(CostModel, AWireWhoseIssuerCopiesAddsBothRooflines) {
  wire_cost wire;
  wire.issue_ns.value = 100;
  wire.channel_bytes_per_s.value = 1e9;
  wire.issuer_copies = true;
  const call_traffic t{.messages = 10, .bytes = 1000};
  EXPECT_DOUBLE_EQ(budget_of(t, wire, {.inner = false}, 1).total(), 10 * 100 + 1000);
}

TEST(CostModel, NodesShareTheirNicsAndRanksCannotExceedTheirChannels) {
  EXPECT_DOUBLE_EQ(links_of(wires::efa_proxy, 1, 8).all(), 25e9);
  EXPECT_DOUBLE_EQ(links_of(wires::efa_proxy, 8, 8).all(), 50e9);
  EXPECT_DOUBLE_EQ(links_of(wires::efa_proxy, 8, 1).all(), 200e9);
  EXPECT_DOUBLE_EQ(links_of(wires::efa_proxy, 1, 32).all(), 12.5e9);
  EXPECT_DOUBLE_EQ(links_of(wires::nvlink, 1, 8).all(), 369e9);
}

TEST(CostModel, PublishedWorkIsBoundByIssuingOnTheProxyAndByLatencyOnTheGpu) {
  const routing_spread s = uniform_spread(published.routed);
  const auto cost = [&](traffic_shape shape, const wire_cost& wire) {
    return call_budget(published, s, shape, direction::dispatch, wire);
  };
  const stage_budget proxy = cost(traffic_shape::per_peer, wires::efa_proxy);
  EXPECT_NEAR(proxy.issue, 153125, 1);
  EXPECT_GT(proxy.issue, 0.85 * proxy.total());
  const stage_budget gpu = cost(traffic_shape::per_peer, wires::efa_gpu);
  EXPECT_GT(gpu.wire, 0.5 * gpu.total());
  EXPECT_LT(cost(traffic_shape::all_gather, wires::efa_proxy).total(), proxy.total() / 4);
  EXPECT_LE(cost(traffic_shape::per_node, wires::efa_proxy).total(),
            cost(traffic_shape::all_gather, wires::efa_proxy).total());
}

TEST(CostModel, TaxIsWhatComputeDoesNotHide) {
  EXPECT_DOUBLE_EQ(exposed_tax_ns(100, 200, 10, 1000, 0), 3000);
  EXPECT_DOUBLE_EQ(exposed_tax_ns(100, 200, 10, 1000, 0.5), 2500);
  EXPECT_DOUBLE_EQ(exposed_tax_ns(100, 200, 1, 1000, 1), 0);
  EXPECT_EQ(step_cost{}.kept(), 0);
  EXPECT_EQ(step_cost{}.tokens_per_s(), 0);
}

}  // namespace
