// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Dispatch and combine by kernels whose messages go through proxy engines, against the
/// oracle.

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <tuple>

#include "support/gpu_run.hpp"

namespace eptransport {
namespace {

using support::run_config;

run_config small(const std::string& wire, std::uint32_t comms, std::uint64_t eager) {
  run_config c;
  c.wire = wire;
  c.ranks = 4;
  c.tokens = {17};
  c.vary_tokens = true;
  c.hidden = 72;
  c.top_k = 5;
  c.experts = 13;
  c.iterations = 4;
  c.unused = 0.1;
  c.duplicates = true;
  c.seed = 31'000 + comms;
  c.proxy.comms = comms;
  c.proxy.engine.eager = eager;
  c.proxy.drive = proxy_drive::shared;
  c.proxy.driver_threads = 2;
  return c;
}

void expect_verified(const run_config& config) {
  const support::run_result got = support::run_on_gpu(config);
  EXPECT_TRUE(got.error.empty()) << got.error;
  EXPECT_TRUE(got.verified) << "seed " << config.seed << "\n" << got.why();
  EXPECT_EQ(got.violations, "");
  EXPECT_NE(got.commands, 0U);  // the rows took the proxies
}

using proxied_case = std::tuple<std::string, std::uint32_t, std::uint64_t>;

class CudaProxies : public testing::TestWithParam<proxied_case> {
 protected:
  static run_config config() { return std::apply(small, GetParam()); }
};

INSTANTIATE_TEST_SUITE_P(Wires, CudaProxies,
                         testing::Combine(testing::Values("proxy:memory", "proxy:srd"),
                                          testing::Values(1U, 3U), testing::Values(0U, 512U)));

TEST_P(CudaProxies, EveryLayoutAndModeEqualsTheOracle) {
  for (const auto mode : {dispatch_mode::slotted, dispatch_mode::counted}) {
    for (const auto layout : {output_layout::rank_major, output_layout::expert_major,
                              output_layout::padded, output_layout::in_place}) {
      SCOPED_TRACE(static_cast<int>(mode) * 10 + static_cast<int>(layout));
      run_config c = config();
      c.mode = mode;
      c.layout = layout;
      expect_verified(c);
    }
  }
}

TEST_P(CudaProxies, BothMessageShapesInHalvesOnTwoLanesEqualTheOracle) {
  for (const auto message : {message_shape::per_row, message_shape::per_peer}) {
    run_config c = config();
    c.message = message;
    c.lanes = 2;
    c.split = true;
    expect_verified(c);
  }
}

}  // namespace
}  // namespace eptransport
