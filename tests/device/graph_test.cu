// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief CUDA graphs, streams and lanes over peer memory, each result against the oracle.

#include <cuda_runtime.h>

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "device/devices.hpp"
#include "device/staged_member.cuh"
#include "support/inputs.hpp"
#include "support/routing.hpp"

namespace eptransport {
namespace {

using support::must;
using support::rank_devices;
using support::rank_input;
using support::run_config;
using support::staged_member;

constexpr std::uint64_t second = 1'000'000'000;

/// Replays of the long test, fewer under a sanitizer, which is some hundred times slower.
const char* asked_replays() {
  return std::getenv("EPT_REPLAYS");
}

/// How long a wait may take.
std::uint64_t patience() {
  return asked_replays() != nullptr ? 60 * second : 5 * second;
}

/// Unused and repeated choices, and any token count from 0 on.
run_config small(output_layout layout, dispatch_mode mode = dispatch_mode::slotted) {
  run_config config;
  config.ranks = 2;
  config.tokens = {9};
  config.vary_tokens = true;
  config.hidden = 72;
  config.top_k = 5;
  config.experts = 13;
  config.layout = layout;
  config.mode = mode;
  config.alignment = layout == output_layout::expert_major ? 4 : 1;
  config.seed = 4'000 + static_cast<std::uint64_t>(layout);
  config.unused = 0.1;
  config.duplicates = true;
  return config;
}

support::router router_of(const run_config& config) {
  auto made = support::router::create({.kind = config.routing,
                                       .experts = config.experts,
                                       .top_k = config.top_k,
                                       .seed = config.seed,
                                       .unused = config.unused,
                                       .duplicates = config.duplicates});
  EXPECT_TRUE(made);
  return *made;
}

group_shape shape_of(const run_config& config) {
  const support::problem p = support::problem_of(config);
  return {.max_tokens = p.max_tokens,
          .counted_tokens = p.counted_tokens,
          .hidden = p.hidden,
          .top_k = p.top_k,
          .experts = p.experts,
          .lanes = config.lanes};
}

/// Two ranks with a group each, driven by one thread: every call is asynchronous.
class two_ranks {
 public:
  two_ranks(const std::vector<int>& devices, const run_config& config)
      : config_(config), routes_(router_of(config)) {
    const auto sizes = group<peer_memory>::sizes(shape_of(config), 2);
    EXPECT_TRUE(sizes) << sizes.error().message();
    auto made = peer_memory_world::create(devices,
                                          {.window_bytes = sizes->window_bytes,
                                           .signals = sizes->signals,
                                           .blocks = 8,
                                           .concurrent = static_cast<std::uint32_t>(config.lanes)});
    EXPECT_TRUE(made) << made.error().message();
    if (!made) return;
    world_ = std::move(*made);
    world_->run([&](peer_memory& own) {
      auto calls = group<peer_memory>::create(own, shape_of(config), {}, patience());
      EXPECT_TRUE(calls) << calls.error().message();
      if (calls) groups_[rank_of(own)].emplace(std::move(*calls));
    });
  }

  [[nodiscard]] bool ready() const { return groups_[0] && groups_[1]; }
  [[nodiscard]] group<peer_memory>& calls(std::size_t rank) { return *groups_[rank]; }

  /// Members of both ranks on a lane, with the output that `config` asks for.
  [[nodiscard]] std::vector<std::unique_ptr<staged_member>> members(const run_config& config,
                                                                    int lane = 0) {
    std::vector<std::unique_ptr<staged_member>> made;
    for (std::size_t r = 0; r < 2; ++r) {
      made.push_back(std::make_unique<staged_member>(world_->rank(static_cast<int>(r)), *groups_[r],
                                                     config, lane));
    }
    return made;
  }

  /// Inputs of both ranks.
  [[nodiscard]] std::vector<rank_input> draw(int step, int lane = 0) const {
    return support::draw_inputs(config_, routes_, step, lane);
  }

 private:
  static std::size_t rank_of(const peer_memory& own) {
    return static_cast<std::size_t>(own.view().rank());
  }

  run_config config_;
  support::router routes_;
  std::unique_ptr<peer_memory_world> world_;
  std::optional<group<peer_memory>> groups_[2];
};

using members_type = std::vector<std::unique_ptr<staged_member>>;

/// What one member does in a step.
using action = std::function<result<void>(staged_member&)>;

result<void> whole(staged_member& m) {
  const auto dispatched = m.dispatch();
  return dispatched ? m.combine() : dispatched;
}

result<void> halves(staged_member& m) {
  for (const auto& part : {&staged_member::dispatch_send, &staged_member::dispatch_recv,
                           &staged_member::combine_send, &staged_member::combine_recv}) {
    if (auto done = (m.*part)(); !done) return done;
  }
  return {};
}

/// One step of both ranks; false if something was wrong.
bool run_step(const members_type& members, const std::vector<rank_input>& inputs, int step,
              const action& act) {
  for (const auto& m : members) m->prepare(inputs, static_cast<std::uint64_t>(step));
  for (const auto& m : members) {
    const auto done = act(*m);
    EXPECT_TRUE(done) << done.error().message();
    m->fetch();
  }
  bool good = true;
  for (const auto& m : members) m->settle();
  for (const auto& m : members) {
    const std::string wrong = m->verify(inputs);
    EXPECT_EQ(wrong, "") << "step " << step;
    good = good && wrong.empty();
  }
  return good;
}

using graph_case = std::tuple<rank_devices, output_layout, dispatch_mode>;

class CudaGraphs : public testing::TestWithParam<graph_case> {
 protected:
  static const std::vector<int>& devices() { return std::get<0>(GetParam()).of_rank; }
  static run_config config() { return small(std::get<1>(GetParam()), std::get<2>(GetParam())); }
};

const auto graph_shapes =
    testing::Values(output_layout::expert_major, output_layout::padded, output_layout::rank_major);
const auto graph_modes = testing::Values(dispatch_mode::slotted, dispatch_mode::counted);

std::string name_of(const testing::TestParamInfo<graph_case>& info) {
  constexpr const char* layouts[] = {"rank_major", "expert_major", "padded", "in_place"};
  return std::string(layouts[static_cast<std::size_t>(std::get<1>(info.param))]) +
         (std::get<2>(info.param) == dispatch_mode::counted ? "_counted" : "_slotted");
}

INSTANTIATE_TEST_SUITE_P(OneGpu, CudaGraphs,
                         testing::Combine(testing::Values(support::one_gpu), graph_shapes,
                                          graph_modes),
                         name_of);
INSTANTIATE_TEST_SUITE_P(TwoGpus, CudaGraphs,
                         testing::Combine(testing::Values(support::two_gpus), graph_shapes,
                                          graph_modes),
                         name_of);

TEST_P(CudaGraphs, TenThousandReplaysWithNewRoutingEqualTheOracle) {
  const run_config c = config();
  two_ranks ranks(devices(), c);
  ASSERT_TRUE(ranks.ready());
  const members_type members = ranks.members(c);
  for (const auto& m : members) {
    const auto graph = m->capture([&] { return whole(*m); });
    ASSERT_TRUE(graph) << graph.error().message();
  }
  const int replays = asked_replays() != nullptr ? std::atoi(asked_replays()) : 10'000;
  for (int step = 0; step < replays; ++step) {
    ASSERT_TRUE(run_step(members, ranks.draw(step), step, [](staged_member& m) -> result<void> {
      m.replay(0);
      return {};
    }));
  }
  for (std::size_t r = 0; r < 2; ++r) {
    const auto statistics = ranks.calls(r).statistics(0);
    ASSERT_TRUE(statistics);
    EXPECT_EQ(statistics->epoch, static_cast<std::uint64_t>(replays));
    EXPECT_EQ(statistics->combines, static_cast<std::uint64_t>(replays));
  }
}

TEST_P(CudaGraphs, SeveralGraphsInRandomOrderMixedWithEagerCallsEqualTheOracle) {
  run_config c = config();
  c.lanes = 2;
  two_ranks ranks(devices(), c);
  ASSERT_TRUE(ranks.ready());
  const members_type on_lane[] = {ranks.members(c, 0), ranks.members(c, 1)};
  for (const members_type& members : on_lane) {
    for (const auto& m : members) {
      ASSERT_TRUE(m->capture([&] { return whole(*m); }));
      ASSERT_TRUE(m->capture([&] { return halves(*m); }));
      ASSERT_TRUE(m->capture([&] { return m->dispatch_send(); }));
    }
  }
  const action actions[] = {
      [](staged_member& m) -> result<void> {
        m.replay(0);
        return {};
      },
      [](staged_member& m) -> result<void> {
        m.replay(1);
        return {};
      },
      [](staged_member& m) {  // a graph for the first half, eager calls for the rest
        m.replay(2);
        const auto received = m.dispatch_recv();
        return received ? m.combine() : received;
      },
      whole,
      halves,
  };
  std::mt19937_64 random(c.seed);
  for (int step = 0; step < 1500; ++step) {
    const std::size_t lane = random() % 2;
    const action& act = actions[random() % std::size(actions)];
    ASSERT_TRUE(run_step(on_lane[lane], ranks.draw(step, static_cast<int>(lane)), step, act));
  }
}

TEST_P(CudaGraphs, NineHandlesAliveOnTwoLanesInRandomOrderEqualTheOracle) {
  run_config c = config();
  c.lanes = 2;
  two_ranks ranks(devices(), c);
  ASSERT_TRUE(ranks.ready());
  // A handle and its buffers may be used on any lane; counted rows without a copy stay in theirs.
  const bool tied = c.mode == dispatch_mode::counted && c.layout == output_layout::rank_major;
  std::vector<members_type> owners;
  std::vector<std::vector<rank_input>> sent(9);
  for (int i = 0; i < 9; ++i) owners.push_back(ranks.members(c, i % 2));
  std::mt19937_64 random(c.seed);
  int step = 0;
  const auto run = [&](std::size_t at, bool dispatches) {
    const int lane = static_cast<int>(random() % 2);
    if (dispatches) sent[at] = ranks.draw(step, lane);
    for (const auto& m : owners[at]) {
      if (!tied) m->use_lane(lane);
      if (dispatches) m->prepare(sent[at], static_cast<std::uint64_t>(step));
      if (!dispatches) m->poison_combined();
    }
    for (const auto& m : owners[at]) {
      const auto done = dispatches ? m->dispatch() : m->combine();
      EXPECT_TRUE(done) << done.error().message();
      if (tied && dispatches) EXPECT_TRUE(m->combine());
      m->fetch();
    }
    for (const auto& m : owners[at]) m->settle();
    for (const auto& m : owners[at]) {
      if (!dispatches || tied) EXPECT_EQ(m->verify(sent[at]), "") << "handle " << at;
    }
    ++step;
  };
  for (std::size_t at = 0; at < 9; ++at) run(at, true);
  for (; step < 600 && !HasFailure();) run(random() % 9, tied || random() % 2 == 0);
}

TEST_P(CudaGraphs, LanesWhoseKernelsStartInOppositeOrdersOnTwoRanksMakeProgress) {
  run_config c = config();
  c.lanes = 2;
  two_ranks ranks(devices(), c);
  ASSERT_TRUE(ranks.ready());
  const members_type on_lane[] = {ranks.members(c, 0), ranks.members(c, 1)};
  for (const members_type& members : on_lane) {
    for (const auto& m : members) {
      ASSERT_TRUE(m->capture([&] { return whole(*m); }));
    }
  }
  for (int step = 0; step < 300; ++step) {
    const std::vector<rank_input> inputs[] = {ranks.draw(step, 0), ranks.draw(step, 1)};
    for (std::size_t lane = 0; lane < 2; ++lane) {
      for (const auto& m : on_lane[lane]) {
        m->prepare(inputs[lane], static_cast<std::uint64_t>(step));
        m->settle();
      }
    }
    for (std::size_t rank = 0; rank < 2; ++rank) {
      for (const std::size_t lane : {rank, 1 - rank}) {
        staged_member& m = *on_lane[lane][rank];
        if (step % 2 == 0) {
          m.replay(0);
        } else {
          ASSERT_TRUE(whole(m));
        }
      }
    }
    for (std::size_t lane = 0; lane < 2; ++lane) {
      for (const auto& m : on_lane[lane]) {
        m->fetch();
        m->settle();
      }
      for (const auto& m : on_lane[lane]) ASSERT_EQ(m->verify(inputs[lane]), "") << step;
    }
  }
}

TEST_P(CudaGraphs, OddTokenCountsEqualTheOracle) {
  for (const std::int64_t tokens : {1, 7, 672, 4095}) {
    SCOPED_TRACE(tokens);
    run_config c = config();
    c.vary_tokens = false;
    c.tokens = {tokens};
    c.experts = 6;
    c.top_k = 2;
    c.hidden = 24;
    c.layout = c.layout == output_layout::padded ? output_layout::expert_major : c.layout;
    two_ranks ranks(devices(), c);
    ASSERT_TRUE(ranks.ready());
    const members_type members = ranks.members(c);
    for (int step = 0; step < 3; ++step) {
      ASSERT_TRUE(run_step(members, ranks.draw(step), step, step == 1 ? action(halves) : whole));
    }
  }
}

TEST_P(CudaGraphs, ARankThatNeverCallsIsNamedAtTheDeadlineAndStaysNamedInReplays) {
  const run_config c = config();
  two_ranks ranks(devices(), c);
  ASSERT_TRUE(ranks.ready());
  const members_type members = ranks.members(c);
  staged_member& alone = *members[0];
  ASSERT_TRUE(alone.capture([&] { return whole(alone); }));
  ASSERT_TRUE(ranks.calls(0).set_timeout(second / 5));
  alone.prepare(ranks.draw(0), 0);
  alone.settle();
  cudaEvent_t begun = nullptr;
  cudaEvent_t done = nullptr;
  must(cudaSetDevice(devices()[0]));
  must(cudaEventCreate(&begun));
  must(cudaEventCreate(&done));
  float ms = 0;
  for (const float most : {400.0F, 5.0F}) {  // at the deadline; then at once
    must(cudaEventRecord(begun, alone.stream()));
    alone.replay(0);
    must(cudaEventRecord(done, alone.stream()));
    must(cudaEventSynchronize(done));
    must(cudaEventElapsedTime(&ms, begun, done));
    EXPECT_LT(ms, most);
    const auto status = ranks.calls(0).status(0);
    ASSERT_FALSE(status);
    EXPECT_EQ(status.error().code, errc::timed_out);
    EXPECT_NE(status.error().message().find("peer 1"), std::string::npos)
        << status.error().message();
  }
  must(cudaEventDestroy(begun));
  must(cudaEventDestroy(done));
}

}  // namespace
}  // namespace eptransport
