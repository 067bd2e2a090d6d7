// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Dispatch and combine on the GPU simulator, against the oracle, bit for bit.

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <tuple>

#include "support/gpu_run.hpp"

namespace eptransport {
namespace {

using support::gpu_options;
using support::run_config;

const char* name_of(message_shape shape) {
  switch (shape) {
    case message_shape::automatic:
      return "automatic";
    case message_shape::per_row:
      return "per_row";
    case message_shape::per_peer:
      return "per_peer";
    case message_shape::direct:
      return "direct";
    case message_shape::per_node:
      return "per_node";
  }
  return "unknown";
}

const char* name_of(output_layout layout) {
  switch (layout) {
    case output_layout::rank_major:
      return "rank_major";
    case output_layout::expert_major:
      return "expert_major";
    case output_layout::padded:
      return "padded";
    case output_layout::in_place:
      return "in_place";
  }
  return "unknown";
}

/// Unused and repeated choices, ranks without tokens, rows that are a multiple of 16 bytes.
run_config small(int ranks, message_shape message, output_layout layout) {
  run_config config;
  config.ranks = ranks;
  config.tokens = {21};
  config.vary_tokens = true;
  config.hidden = 72;
  config.top_k = 5;
  config.experts = 13;
  config.message = message;
  config.layout = layout;
  config.alignment = layout == output_layout::expert_major ? 4 : 1;
  config.iterations = 6;
  config.seed = 20'000 + static_cast<std::uint64_t>(ranks);
  config.unused = 0.1;
  config.duplicates = true;
  return config;
}

void expect_verified(const run_config& config, const gpu_options& how = {}) {
  const support::run_result got = support::run_on_gpu(config, how);
  EXPECT_TRUE(got.error.empty()) << got.error;
  EXPECT_TRUE(got.verified) << "seed " << config.seed << "\n" << got.why();
}

/// Direct needs pointers; the others run where pointers are not given.
void expect_verified_on_its_wire(run_config config, const gpu_options& how = {}) {
  config.wire = config.message == message_shape::direct ? "nvlink" : "efa-gpu";
  expect_verified(config, how);
}

class CudaGroup : public testing::TestWithParam<std::tuple<int, message_shape, output_layout>> {
 protected:
  static run_config config() {
    return small(std::get<0>(GetParam()), std::get<1>(GetParam()), std::get<2>(GetParam()));
  }
};

TEST_P(CudaGroup, DispatchAndCombineEqualTheOracle) {
  expect_verified_on_its_wire(config());
}

TEST_P(CudaGroup, SummedSignalsOddRowsScalesHalvesAndLanesEqualTheOracle) {
  run_config c = config();
  c.signals = signal_words::summed;
  c.hidden = 37;  // rows of y are aligned to 2 bytes only
  c.row = {201, 8};
  c.experts = 5;  // with 8 ranks, some own none
  c.top_k = 3;
  c.lanes = 2;
  c.split = true;
  c.device_tokens = true;
  c.indices = index_type::int32;
  c.counter_start = ~std::uint64_t{0} - 1;
  expect_verified_on_its_wire(c, {.blocks = 2, .warps = 3});
}

TEST_P(CudaGroup, CachedDispatchesTwoCombinesAndBadIndicesEqualTheOracle) {
  run_config c = config();
  c.cached = true;
  c.combines = 2;
  c.checks = index_checks::fast;
  c.out_of_range = 0.1;
  c.null_weights = true;
  c.capacity = 0;
  c.tokens = {8};
  c.max_tokens = 9;
  expect_verified_on_its_wire(c, {.blocks = 3, .warps = 4});
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, CudaGroup,
    testing::Combine(testing::Values(1, 2, 5, 8),
                     testing::Values(message_shape::per_row, message_shape::per_peer,
                                     message_shape::direct),
                     testing::Values(output_layout::rank_major, output_layout::expert_major,
                                     output_layout::padded, output_layout::in_place)),
    [](const auto& one) {
      return std::to_string(std::get<0>(one.param)) + "ranks_" + name_of(std::get<1>(one.param)) +
             "_" + name_of(std::get<2>(one.param));
    });

TEST(CudaGroupShapes, RanksWithoutTokensTakePart) {
  run_config c = small(5, message_shape::per_peer, output_layout::expert_major);
  c.tokens = {0, 21, 0, 1, 0};
  c.vary_tokens = false;
  expect_verified(c);
  c.tokens = {0};
  c.max_tokens = 21;
  c.wire = "nvlink";
  c.message = message_shape::direct;
  expect_verified(c);
}

TEST(CudaGroupShapes, OneWorkerPerRankEqualsTheOracle) {
  expect_verified(small(3, message_shape::per_peer, output_layout::expert_major),
                  {.blocks = 1, .warps = 1});
}

TEST(CudaGroupShapes, MoreWorkersThanTokensEqualTheOracle) {
  run_config c = small(4, message_shape::per_row, output_layout::rank_major);
  c.wire = "ib-gpu";
  c.tokens = {2};
  expect_verified(c, {.blocks = 16, .warps = 16});
}

TEST(CudaGroupShapes, AnSmLimitBelowTheDefaultEqualsTheOracle) {
  run_config c = small(4, message_shape::per_peer, output_layout::padded);
  c.max_sms = 3;
  expect_verified(c, {.blocks = 8, .warps = 4});
}

TEST(CudaGroupShapes, ThreeLanesInFlightEqualTheOracle) {
  for (const dispatch_mode mode : {dispatch_mode::slotted, dispatch_mode::counted}) {
    run_config c = small(4, message_shape::automatic, output_layout::expert_major);
    c.mode = mode;
    c.lanes = 3;
    c.split = true;
    c.cached = true;
    expect_verified(c, {.blocks = 4});
  }
}

TEST(CudaGroupShapes, APlacementTableAndMoreChoicesThanAWarpHasThreadsEqualTheOracle) {
  run_config c = small(4, message_shape::automatic, output_layout::padded);
  c.wire = "nvlink";
  c.experts = 67;
  c.top_k = 40;
  c.hidden = 1368;
  c.row = {1368, 44};
  c.tokens = {5};
  for (int e = 0; e < c.experts; ++e) c.placement.push_back((e * 7 + e / 3) % 3);  // rank 3: none
  expect_verified(c);
}

/// New routing every time.
class CudaGroupStress : public testing::TestWithParam<std::tuple<message_shape, output_layout>> {};

TEST_P(CudaGroupStress, TwoHundredIterationsWithNewRoutingEqualTheOracle) {
  run_config c = small(8, std::get<0>(GetParam()), std::get<1>(GetParam()));
  c.iterations = 200;
  c.lanes = 2;
  c.tokens = {40};
  c.seed = 77;
  expect_verified_on_its_wire(c);
}

TEST_P(CudaGroupStress, TwoHundredSlottedAndCountedCallsInHalvesEqualTheOracle) {
  run_config c = small(6, std::get<0>(GetParam()), std::get<1>(GetParam()));
  c.iterations = 200;
  c.mixed = true;
  c.cached = true;
  c.lanes = 2;
  c.split = true;
  c.quantise = quantisation::fp8_fp32;
  c.seed = 78;
  expect_verified_on_its_wire(c);
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, CudaGroupStress,
    testing::Values(std::tuple(message_shape::per_row, output_layout::rank_major),
                    std::tuple(message_shape::per_peer, output_layout::expert_major),
                    std::tuple(message_shape::direct, output_layout::padded),
                    std::tuple(message_shape::direct, output_layout::in_place)),
    [](const auto& one) {
      return std::string(name_of(std::get<0>(one.param))) + "_" + name_of(std::get<1>(one.param));
    });

}  // namespace
}  // namespace eptransport
