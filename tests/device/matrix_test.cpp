// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Every mode, layout, format and message shape between two GPUs, against the oracle.

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <tuple>

#include "support/peer_run.hpp"
#include "support/random_config.hpp"

namespace eptransport {
namespace {

using support::run_config;
using support::run_on_peers;
using support::run_result;

/// Dispatch rows and what combine adds up.
struct format {
  element values = element::bf16;
  quantisation quantise = quantisation::none;
  bool scaled = false;  ///< FP8 rows that the caller quantised
  std::int64_t columns = 0;
};

constexpr format formats[] = {
    {},
    {.values = element::fp16},
    {.values = element::fp32},
    {.scaled = true, .columns = 4},
    {.quantise = quantisation::fp8_fp32},
    {.quantise = quantisation::fp8_ue8m0, .columns = 4},
};

void expect_verified(const run_config& config, const std::string& what) {
  const run_result got = run_on_peers(config);
  EXPECT_TRUE(got.verified) << what << ", seed " << config.seed << "\n" << got.why();
}

using parameters = std::tuple<dispatch_mode, output_layout, message_shape>;

class PeerMatrix : public testing::TestWithParam<parameters> {
 protected:
  /// Unused, repeated and skipped choices, unequal token counts, 0 included.
  static run_config config(const format& rows) {
    run_config c;
    std::tie(c.mode, c.layout, c.message) = GetParam();
    c.wire = support::peer_memory_wire;
    c.ranks = 2;
    c.tokens = {37};
    c.vary_tokens = true;
    c.hidden = 392;
    c.top_k = 5;
    c.experts = 13;
    c.unused = 0.1;
    c.duplicates = true;
    c.alignment = 4;
    c.quantise = rows.quantise;
    c.values = rows.values;
    c.returns = rows.values;
    c.row = rows.scaled ? fp8_rows(c.hidden)
                        : row_format{static_cast<std::uint64_t>(c.hidden) * bytes_of(c.values), 0};
    c.scale_columns = rows.columns;
    c.iterations = 3;
    c.device_tokens = true;
    c.timeout_ns = 4'000'000'000;
    return c;
  }
};

TEST_P(PeerMatrix, EveryFormatEqualsTheOracle) {
  for (std::size_t f = 0; f < std::size(formats); ++f) {
    run_config c = config(formats[f]);
    c.seed = 300 + f;
    c.split = f % 2 == 1;
    c.lanes = f % 3 == 0 ? 2 : 1;
    c.bias = f % 2 == 0;
    c.cached = f % 4 == 1;
    expect_verified(c, "format " + std::to_string(f));
  }
}

TEST_P(PeerMatrix, PullEqualsTheOracleWhereItCan) {
  run_config c = config({});
  if (c.mode == dispatch_mode::slotted || c.layout == output_layout::expert_major ||
      c.layout == output_layout::padded) {
    c.transfer = combine_transfer::push;  // and lets the two ranks send nothing in turn
    c.vary_tokens = false;
    c.tokens = {0, 37};
    c.max_tokens = 37;
    return expect_verified(c, "a rank without tokens");
  }
  c.transfer = combine_transfer::pull;
  expect_verified(c, "pull");
}

INSTANTIATE_TEST_SUITE_P(
    TwoGpus, PeerMatrix,
    testing::Combine(testing::Values(dispatch_mode::slotted, dispatch_mode::counted),
                     testing::Values(output_layout::rank_major, output_layout::expert_major,
                                     output_layout::padded, output_layout::in_place),
                     testing::Values(message_shape::direct, message_shape::per_peer,
                                     message_shape::per_row)));

TEST(TwoGpusRandom, FortyConfigurationsEqualTheOracle) {
  int failed = 0;
  for (std::uint64_t seed = 7001; seed < 7041 && failed < 5; ++seed) {
    run_config config = support::draw_config(seed);
    config.wire = support::peer_memory_wire;
    config.ranks = 2;
    config.tokens = {config.tokens.front()};
    config.placement.clear();
    config.landing_rows.clear();
    config.timeout_ns = 4'000'000'000;
    const run_result got = run_on_peers(config);
    if (got.verified) continue;
    ADD_FAILURE() << "seed " << seed << "\n" << support::describe(config) << "\n" << got.why();
    ++failed;
  }
}

TEST(TwoGpusRandom, ManyTokensEqualTheOracle) {
  run_config c;
  c.wire = support::peer_memory_wire;
  c.ranks = 2;
  c.tokens = {4095, 4096};
  c.hidden = 256;
  c.top_k = 8;
  c.experts = 64;
  c.iterations = 2;
  for (const dispatch_mode mode : {dispatch_mode::slotted, dispatch_mode::counted}) {
    c.mode = mode;
    expect_verified(c, mode == dispatch_mode::counted ? "counted" : "slotted");
  }
}

}  // namespace
}  // namespace eptransport
