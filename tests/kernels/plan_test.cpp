// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief What `automatic` stands for in a group: the planner's choice, readable and overridable.
#include <eptransport/backends/loopback/profiles.hpp>
#include <eptransport/core/planner.hpp>
#include <eptransport/kernels/plan.hpp>

#include <gtest/gtest.h>

#include <limits>
#include <random>
#include <string>

#include "fixture.hpp"

namespace eptransport::testing {
namespace {

group_shape decode(std::int64_t hidden) {
  return {.max_tokens = 64, .hidden = hidden, .top_k = 8, .experts = 64};
}

TEST(Plan, AutomaticShapesFollowWhatTheWireCharges) {
  const auto shape_on = [](const capabilities& caps, group_shape shape) {
    const auto plan = detail::make_plan(caps, shape, 16, 1);
    EXPECT_TRUE(plan);
    return plan ? plan->geo.message : message_shape::automatic;
  };
  EXPECT_EQ(shape_on(profiles::nvlink::caps, decode(7168)), message_shape::direct);
  EXPECT_EQ(shape_on(profiles::efa_proxy::caps, decode(7168)), message_shape::per_peer);
  EXPECT_EQ(shape_on(profiles::ib_gpu::caps, decode(7168)), message_shape::per_row);
  EXPECT_EQ(shape_on(profiles::ib_gpu::caps, decode(64)), message_shape::per_peer)
      << "rows that cross faster than they are issued";
}

TEST(Plan, AnExplicitShapeIsKeptAndAnImpossibleOneRefused) {
  group_shape shape = decode(7168);
  shape.message = message_shape::per_row;
  const auto kept = detail::make_plan(profiles::efa_proxy::caps, shape, 16, 1);
  ASSERT_TRUE(kept);
  EXPECT_EQ(kept->geo.message, message_shape::per_row);
  EXPECT_EQ(kept->reason, "asked for");
  EXPECT_EQ(kept->choice.best.shape, traffic_shape::per_row);
  shape.message = message_shape::direct;
  const auto refused = detail::make_plan(profiles::efa_proxy::caps, shape, 16, 1);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, errc::unsupported);
}

TEST(Plan, AutomaticModeRunsInTheModeThatTheGroupNames) {
  for (const std::int64_t slots : {0, 6}) {
    for (const std::int64_t counted : {0, 6}) {
      if (slots + counted == 0) continue;
      const group_shape shape{
          .max_tokens = slots, .counted_tokens = counted, .hidden = 20, .top_k = 3, .experts = 7};
      on_ranks<profiles::efa_proxy>(shape, {.ranks = 3, .seed = 4}, [&](const auto& self) {
        const dispatch_mode mode = self.calls.mode();
        if (slots == 0) {
          EXPECT_EQ(mode, dispatch_mode::counted);
        }
        if (counted == 0) {
          EXPECT_EQ(mode, dispatch_mode::slotted);
        }
        EXPECT_NE(self.calls.reason().find("a pair of calls takes"), std::string::npos);
        const std::string why =
            reasons_of(self.calls.plan(), wire_cost_of(profiles::efa_proxy::caps));
        EXPECT_EQ(why.rfind(self.calls.reason(), 0), 0U) << why;
        std::mt19937_64 random(static_cast<std::uint64_t>(self.rank));
        guarded_memory handle = self.handle_memory();
        const tokens t = self.draw(random, 5);
        const auto done = self.round(0, t, handle_of(handle), dispatch_mode::automatic);
        ASSERT_TRUE(done) << done.error().message();
      });
    }
  }
}

TEST(Plan, AutomaticIsNeverCountedWhereThatTakesFewerRowsThanSlotted) {
  group_shape shape{.max_tokens = 4096,
                    .counted_tokens = 4096,
                    .overflow = overflow_policy::drop,
                    .hidden = 1024,
                    .top_k = 8,
                    .experts = 16};
  const auto lands = [&] {
    const auto plan = detail::make_plan(profiles::nvlink::caps, shape, 2, 1);
    EXPECT_TRUE(plan);
    return plan ? plan->choice.best.lands : landing::slotted;
  };
  EXPECT_EQ(lands(), landing::counted) << "the control: room for all is room enough";
  shape.counted_rows = 2 * 4096;
  EXPECT_EQ(lands(), landing::counted);
  shape.counted_rows -= 1;
  EXPECT_EQ(lands(), landing::slotted) << "rows could be dropped";
  shape.counted_rows = 0;
  shape.counted_tokens = 4095;
  EXPECT_EQ(lands(), landing::slotted) << "a token too many would be a fault";
}

TEST(Plan, ShapesBeyondAllNumbersAreRefusedWithoutOverflow) {
  for (const std::int64_t huge :
       {std::int64_t{1} << 40, std::int64_t{1} << 60, std::numeric_limits<std::int64_t>::max()}) {
    group_shape shape = decode(7168);
    shape.max_tokens = huge;
    EXPECT_FALSE(detail::make_plan(profiles::efa_proxy::caps, shape, 1 << 20, 1));
    shape = decode(huge);
    EXPECT_FALSE(detail::make_plan(profiles::nvlink::caps, shape, 1 << 20, 1));
    shape = decode(7168);
    shape.row = {.row_bytes = static_cast<std::uint64_t>(huge), .scale_bytes = 64};
    EXPECT_FALSE(detail::make_plan(profiles::nvlink::caps, shape, 1 << 20, 1));
  }
}

}  // namespace
}  // namespace eptransport::testing
