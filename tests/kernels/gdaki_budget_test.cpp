// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Signal words against the counters of an EFA device: what fits, what is summed, what is
///        refused, and that the refusal has both numbers. docs/gdaki.md shows the same table.
#include <eptransport/backends/gdaki/gdaki.hpp>
#include <eptransport/kernels/plan.hpp>

#include <gtest/gtest.h>

#include <cstdint>
#include <string>

namespace eptransport {
namespace {

[[nodiscard]] result<detail::group_plan> plan_of(int ranks, int lanes, signal_words words) {
  group_shape shape;
  shape.max_tokens = 128;
  shape.hidden = 7168;
  shape.top_k = 8;
  shape.experts = 512;
  shape.lanes = lanes;
  shape.signals = words;
  return detail::make_plan(efa_wire::caps, shape, ranks, 1);
}

struct row {
  int ranks, lanes;
  std::uint32_t words;
  bool per_source;
};

// One word for the set-up exchange; per lane six kinds, each per source while that fits.
constexpr row rows[] = {
    {8, 1, 49, true},   {8, 10, 481, true}, {8, 11, 67, false},  {64, 1, 385, true},
    {64, 2, 13, false}, {512, 1, 7, false}, {512, 2, 13, false}, {512, 85, 511, false},
};

TEST(GdakiBudget, WordsPerSourceWhileTheyFitSummedBeyond) {
  for (const row& r : rows) {
    const auto plan = plan_of(r.ranks, r.lanes, signal_words::automatic);
    ASSERT_TRUE(plan) << plan.error().message();
    EXPECT_EQ(plan->sizes.signals, r.words) << r.ranks << " ranks, " << r.lanes << " lanes";
    EXPECT_EQ(plan->geo.sources, r.per_source ? static_cast<std::uint32_t>(r.ranks) : 1U);
  }
}

TEST(GdakiBudget, WhatDoesNotFitIsRefusedWithBothNumbers) {
  const auto lanes = plan_of(512, 86, signal_words::automatic);
  ASSERT_FALSE(lanes);
  EXPECT_EQ(lanes.error().code, errc::capacity);
  EXPECT_NE(lanes.error().detail.find("need 517 signal words, the wire has 512"), std::string::npos)
      << lanes.error().detail;
  const auto asked = plan_of(64, 2, signal_words::per_source);
  ASSERT_FALSE(asked) << "per source was asked for, and does not fit";
  EXPECT_NE(asked.error().detail.find("769"), std::string::npos) << asked.error().detail;
}

template <class Wire>
std::string refusal_of(const gdaki_options& options, errc code) {
  const auto world = gdaki_world<Wire>::create(options);
  if (world) return "it was built";
  EXPECT_EQ(world.error().code, code) << world.error().message();
  return world.error().detail;
}

TEST(GdakiBudget, ADeviceWithFewerCountersQueuesOrHandlesIsAnErrorAtConstruction) {
  gdaki_options options;
  options.window_bytes = 64;
  options.signals = 513;
  EXPECT_NE(refusal_of<efa_wire>(options, errc::capacity)
                .find("513 signal words of a rank, the device has 512 completion counters"),
            std::string::npos);
  options.signals = 49;
  options.max_counters = 48;
  EXPECT_NE(refusal_of<efa_wire>(options, errc::capacity)
                .find("49 signal words of a rank, the device has 48"),
            std::string::npos);
  options.max_counters = 512;
  options.channels = 65535;
  EXPECT_NE(refusal_of<efa_wire>(options, errc::capacity).find("65584 queue pairs of a rank"),
            std::string::npos);
  options.channels = 1;
  options.queue_slots = 48;
  for (const std::string& text : {refusal_of<efa_wire>(options, errc::invalid_argument),
                                  refusal_of<mlx5_wire>(options, errc::invalid_argument)}) {
    EXPECT_NE(text.find("power of two up to 32768, got 48"), std::string::npos) << text;
  }
  options.queue_slots = 64;
  options.ranks = 5000;
  options.channels = 4000;
  EXPECT_NE(refusal_of<mlx5_wire>(options, errc::capacity).find("20000000 queue pairs of a rank"),
            std::string::npos);
}

}  // namespace
}  // namespace eptransport
