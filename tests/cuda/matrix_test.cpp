// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Every mode, layout and format on the GPU, with the routing of real models, bit for bit.
///
/// Each case runs with combine rows of the value type and of fp32 on the wire, on two of the four
/// wires; over the traces and rank counts all four take part. Combine by pull joins where it can.

#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <tuple>

#include "support/gpu_run.hpp"

namespace eptransport {
namespace {

using support::run_config;
using support::run_on_gpu;
using support::run_result;

/// Dispatch rows, their scales, and what combine adds up.
struct format {
  const char* name;
  element values = element::bf16;
  quantisation quantise = quantisation::none;
  bool scaled = false;   ///< FP8 rows that the caller quantised
  bool columns = false;  ///< scales column by column
};

constexpr format formats[] = {
    {.name = "bf16"},
    {.name = "fp16", .values = element::fp16},
    {.name = "fp32", .values = element::fp32},
    {.name = "opaque_fp8", .scaled = true},
    {.name = "opaque_fp8_columns", .scaled = true, .columns = true},
    {.name = "fp8", .quantise = quantisation::fp8_fp32},
    {.name = "fp8_columns", .quantise = quantisation::fp8_fp32, .columns = true},
    {.name = "fp8_ue8m0", .quantise = quantisation::fp8_ue8m0},
    {.name = "fp8_ue8m0_columns", .quantise = quantisation::fp8_ue8m0, .columns = true},
};

struct model {
  const char* trace;
  int experts;
};

constexpr model models[] = {{"moe_e256_k8", 256}, {"moe_e64_k8", 64}};
constexpr std::array<const char*, 4> wires{"nvlink", "ib-gpu", "efa-gpu", "efa-proxy"};
constexpr const char* layout_names[] = {"rank_major", "expert_major", "padded", "in_place"};

using parameters = std::tuple<std::size_t, int, dispatch_mode, output_layout, std::size_t>;

class CudaMatrix : public testing::TestWithParam<parameters> {
 protected:
  static run_config config() {
    const auto [trace, ranks, mode, layout, which] = GetParam();
    const format& rows = formats[which];
    run_config c;
    c.ranks = ranks;
    c.tokens = {13};
    c.vary_tokens = true;
    c.hidden = ranks == 2 ? 392 : 512;  // 392: a short last block, rows aligned to 8 bytes
    c.top_k = 8;
    c.experts = models[trace].experts;
    c.routing =
        std::string("trace:") + EPT_SOURCE_DIR + "/benchmarks/traces/" + models[trace].trace;
    c.mode = mode;
    c.layout = layout;
    c.alignment = 4;
    c.quantise = rows.quantise;
    c.values = rows.values;
    c.row = rows.scaled ? fp8_rows(c.hidden)
                        : row_format{static_cast<std::uint64_t>(c.hidden) * bytes_of(c.values), 0};
    c.scale_columns = rows.columns ? 4 : 0;
    c.iterations = 3;
    c.seed = 100 * which + 10 * trace + static_cast<std::uint64_t>(ranks);
    c.bias = c.seed % 2 != 0;
    c.return_weights = which % 3 == trace;
    c.device_tokens = layout == output_layout::padded;
    c.landing = mode == dispatch_mode::counted && trace == 1;
    c.cached = which % 4 == 1;
    c.timeout_ns = 4'000'000'000;
    return c;
  }
};

void expect_verified(const run_config& config) {
  const run_result got = run_on_gpu(config);
  EXPECT_TRUE(got.verified) << config.wire << (config.returns == element::fp32 ? ", fp32" : "")
                            << " on the wire, seed " << config.seed << "\n"
                            << got.why();
}

TEST_P(CudaMatrix, PushEqualsTheOracleWithEitherWireType) {
  run_config c = config();
  const std::size_t first = 2 * std::get<0>(GetParam()) + (c.ranks == 2 ? 0 : 1);
  c.wire = wires[first];
  c.returns = c.values;
  expect_verified(c);
  c.wire = wires[(first + 2) % wires.size()];
  c.returns = element::fp32;
  expect_verified(c);
}

class CudaMatrixPull : public CudaMatrix {};

TEST_P(CudaMatrixPull, PullEqualsTheOracle) {
  run_config c = config();
  c.wire = "nvlink";
  c.returns = c.values;
  c.transfer = combine_transfer::pull;
  expect_verified(c);
}

std::string name_of(const testing::TestParamInfo<parameters>& info) {
  const auto [trace, ranks, mode, layout, which] = info.param;
  return std::string(models[trace].trace) + "_" + std::to_string(ranks) + "ranks_" +
         (mode == dispatch_mode::counted ? "counted_" : "slotted_") +
         layout_names[static_cast<std::size_t>(layout)] + "_" + formats[which].name;
}

INSTANTIATE_TEST_SUITE_P(
    Traces, CudaMatrix,
    testing::Combine(testing::Values<std::size_t>(0, 1), testing::Values(2, 8),
                     testing::Values(dispatch_mode::slotted, dispatch_mode::counted),
                     testing::Values(output_layout::rank_major, output_layout::expert_major,
                                     output_layout::padded, output_layout::in_place),
                     testing::Range<std::size_t>(0, std::size(formats))),
    name_of);

INSTANTIATE_TEST_SUITE_P(Traces, CudaMatrixPull,
                         testing::Combine(testing::Values<std::size_t>(0, 1), testing::Values(2, 8),
                                          testing::Values(dispatch_mode::counted),
                                          testing::Values(output_layout::rank_major,
                                                          output_layout::in_place),
                                          testing::Range<std::size_t>(0, std::size(formats))),
                         name_of);

/// Damages what the GPU wrote, in iteration 1 of rank 1, before it is checked.
template <class Function>
std::string difference_after(run_config config, const char* call, const Function& damage) {
  config.tamper = [&](const support::tamper_point& at) {
    if (at.rank == 1 && at.iteration == 1 && std::string(at.call) == call) damage(at);
  };
  const run_result got = run_on_gpu(config);
  EXPECT_FALSE(got.verified);
  EXPECT_TRUE(got.error.empty()) << got.error;
  return got.difference;
}

TEST(CudaLarge, MoreThan65535TokensOfEachRankEqualTheOracle) {
  for (const dispatch_mode mode : {dispatch_mode::slotted, dispatch_mode::counted}) {
    run_config c;
    c.wire = mode == dispatch_mode::counted ? "nvlink" : "efa-gpu";
    c.tokens = {70'001, 65'537};
    c.hidden = 4;
    c.top_k = 3;
    c.experts = 5;
    c.mode = mode;
    c.layout = output_layout::expert_major;
    c.iterations = 1;
    expect_verified(c);
  }
}

/// Rank 1's 66 000 rows of 64 KiB all land at rank 0: input, staging and landing zone pass 4 GiB.
/// The combine's rows are short, and it is left out.
TEST(CudaLarge, CountedBuffersBeyondFourGibibytesAreAddressedRight) {
  run_config c;
  c.wire = "efa-gpu";
  c.tokens = {0, 66'000};
  c.counted_rows = 66'000;
  c.hidden = 8;
  c.row = {65'536, 0};
  c.top_k = 1;
  c.experts = 2;
  c.routing = "one";
  c.mode = dispatch_mode::counted;
  c.combines = 0;
  c.iterations = 1;
  expect_verified(c);
}

run_config plain() {
  run_config c;
  c.ranks = 3;
  c.tokens = {9};
  c.hidden = 24;
  c.top_k = 3;
  c.experts = 7;
  return c;
}

TEST(CudaNegativeControl, DamageDoneToResultsIsFoundAndNamed) {
  run_config c = plain();
  const auto flip = [](std::byte& one) { one ^= std::byte{1}; };
  EXPECT_NE(difference_after(c, "dispatch", [&](const auto& at) { flip(at.rows[5]); }).find("row"),
            std::string::npos);
  EXPECT_NE(difference_after(c, "dispatch", [](const auto& at) { *at.total += 1; }).find("total"),
            std::string::npos);
  EXPECT_NE(
      difference_after(c, "combine", [](const auto& at) { at.out[7] ^= 1U; }).find("combined"),
      std::string::npos);
  c.mode = dispatch_mode::counted;  // the rows lie in the window
  EXPECT_NE(difference_after(c, "dispatch", [&](const auto& at) { flip(at.rows[5]); }).find("row"),
            std::string::npos);
  EXPECT_NE(
      difference_after(c, "dispatch", [&](const auto& at) { flip(at.rows.back()); }).find("alone"),
      std::string::npos);
}

TEST(CudaRefusals, SayWhatCannotBeDone) {
  run_config c = plain();
  c.faults.emplace_back();
  EXPECT_EQ(run_on_gpu(c).code, make_error_code(errc::unsupported));
  c = plain();
  c.copy_baseline = true;
  EXPECT_EQ(run_on_gpu(c).code, make_error_code(errc::unsupported));
  c = plain();
  c.transfer = combine_transfer::pull;  // the default wire gives no pointers
  EXPECT_EQ(run_on_gpu(c).code, make_error_code(errc::invalid_argument));
  c = plain();
  c.wire = "none";
  EXPECT_NE(run_on_gpu(c).error.find("no wire"), std::string::npos);
}

}  // namespace
}  // namespace eptransport
