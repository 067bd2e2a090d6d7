// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The traffic and the times that the model states, against the kernels on simulated wires.
#include <eptransport/core/cost_model.hpp>

#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "ep_model/work.hpp"
#include "support/runner.hpp"

namespace {

using namespace eptransport;
using namespace eptransport::model;

struct traffic_case {
  const char* wire;
  const wire_cost* cost;
  message_shape kernels;
  traffic_shape model;
};

constexpr traffic_case cases[] = {
    {"efa-proxy", &wires::efa_proxy, message_shape::per_peer, traffic_shape::per_peer},
    {"efa-proxy", &wires::efa_proxy, message_shape::per_row, traffic_shape::per_row},
    {"ib-gpu", &wires::ib_gpu, message_shape::per_row, traffic_shape::per_row},
    {"efa-gpu", &wires::efa_gpu, message_shape::per_peer, traffic_shape::per_peer},
    {"nvlink", &wires::nvlink, message_shape::direct, traffic_shape::direct},
};

/// Mean of `measured` over ranks and calls against the model's.
void near(double model, double measured, double tolerance, const std::string& what) {
  if (measured == 0) {
    EXPECT_EQ(model, 0) << what;
  } else {
    EXPECT_NEAR(model / measured, 1, tolerance)
        << what << ": model " << model << ", measured " << measured;
  }
}

TEST(Traffic, IsWhatTheKernelsSendAndTakesAsLongAsTheSimulatorSays) {
  for (const traffic_case& each : cases) {
    for (const dispatch_mode mode : {dispatch_mode::slotted, dispatch_mode::counted}) {
      work_options o;
      o.ranks = 8;
      o.nodes = 1;
      o.tokens = 16;
      o.experts = 64;
      o.hidden = 1024;
      o.format = "bf16";
      support::run_config config;
      config.wire = each.wire;
      config.ranks = 8;
      config.tokens = {16};
      config.hidden = 1024;
      config.top_k = 8;
      config.experts = 64;
      config.message = each.kernels;
      config.mode = mode;
      config.iterations = 3;
      config.align_clocks = true;
      const support::run_result r = support::run(config);
      ASSERT_TRUE(r.verified) << r.why();
      auto c = case_of(o, false);
      ASSERT_TRUE(c) << c.error().detail;
      c->work.lands = mode == dispatch_mode::counted ? landing::counted : landing::slotted;
      const std::string what = std::string(each.wire) + ", " + name_of(each.model) +
                               (mode == dispatch_mode::counted ? ", counted" : ", slotted");
      double messages[2] = {};
      double bytes[2] = {};
      for (const support::rank_report& rank : r.ranks) {
        messages[0] += static_cast<double>(rank.dispatch.messages) / 24;
        messages[1] += static_cast<double>(rank.combine.messages) / 24;
        bytes[0] += static_cast<double>(rank.dispatch.bytes) / 24;
        bytes[1] += static_cast<double>(rank.combine.bytes) / 24;
      }
      for (const direction way : {direction::dispatch, direction::combine}) {
        const int i = way == direction::dispatch ? 0 : 1;
        call_traffic t = traffic_of(c->work, c->spread, each.model, way, *each.cost);
        if (i == 0 && mode == dispatch_mode::counted) {
          const call_traffic counts = count_traffic(c->work, each.model);
          t.messages += counts.messages;
          t.bytes += counts.bytes;
        }
        const std::string call = what + (i == 0 ? ", dispatch" : ", combine");
        near(t.messages, messages[i], 0.03, call + ", messages");
        near(t.bytes, bytes[i], 0.06, call + ", bytes");
        const double closed = call_budget(c->work, c->spread, each.model, way, *each.cost).total();
        near(closed, i == 0 ? r.dispatch.max_rank_ns : r.combine.max_rank_ns, 0.15, call + ", ns");
      }
    }
  }
}

/// Between nodes, through relays: a message per other node and exchange, that of the counts too.
TEST(Traffic, BetweenNodesIsWhatRelaysSend) {
  for (const dispatch_mode mode : {dispatch_mode::slotted, dispatch_mode::counted}) {
    const bool counted = mode == dispatch_mode::counted;
    work_options o;
    o.ranks = 12;
    o.nodes = 3;
    o.tokens = 16;
    o.experts = 64;
    o.hidden = 1024;
    o.format = "bf16";
    support::run_config config;
    config.wire = "hybrid:nvlink+efa-proxy";
    config.ranks = 12;
    config.nodes = {0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2};
    config.tokens = {16};
    config.hidden = 1024;
    config.top_k = 8;
    config.experts = 64;
    config.message = message_shape::per_node;
    config.mode = mode;
    config.iterations = 3;
    config.align_clocks = true;
    const support::run_result r = support::run(config);
    ASSERT_TRUE(r.verified) << r.why();
    auto c = case_of(o, false);
    ASSERT_TRUE(c) << c.error().detail;
    c->work.lands = counted ? landing::counted : landing::slotted;
    for (const direction way : {direction::dispatch, direction::combine}) {
      const bool out = way == direction::dispatch;
      call_traffic t =
          traffic_of(c->work, c->spread, traffic_shape::per_node, way, wires::efa_proxy);
      if (out && counted) {
        const call_traffic counts = count_traffic(c->work, traffic_shape::per_node);
        t.messages += counts.messages;
        t.bytes += counts.bytes;
      }
      double messages = 0;
      double bytes = 0;
      for (const support::rank_report& rank : r.ranks) {
        const support::traffic_sum& sent = out ? rank.dispatch : rank.combine;
        messages += static_cast<double>(sent.inter_messages) / 36;
        bytes += static_cast<double>(sent.inter_bytes) / 36;
      }
      const std::string call =
          std::string(counted ? "counted" : "slotted") + (out ? ", dispatch" : ", combine");
      near(t.messages, messages, 0.001, call + ", messages");
      near(t.bytes, bytes, 0.06, call + ", bytes");
      const double closed =
          call_budget(c->work, c->spread, traffic_shape::per_node, way, wires::efa_proxy).total();
      near(closed, out ? r.dispatch.max_rank_ns : r.combine.max_rank_ns, 0.15, call + ", ns");
    }
  }
}

}  // namespace
