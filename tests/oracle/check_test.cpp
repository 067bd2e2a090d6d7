// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Negative controls: every kind of damage to a correct output is reported by the checks.
#include "support/check.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "support/guarded.hpp"
#include "support/random.hpp"

namespace eptransport::support {
namespace {

constexpr std::uint64_t seed = 20;
constexpr std::byte bait{0xA5};

/// Correct buffers, laid out from the expectation, for tests to damage.
struct correct_output {
  problem p{.ranks = 3,
            .experts = 7,
            .top_k = 3,
            .hidden = 5,
            .max_tokens = 6,
            .row_bytes = 10,
            .scale_bytes = 4};
  int rank = 1;
  std::vector<rank_input> inputs;
  expected_dispatch expected;
  std::vector<std::byte> rows, scales;
  std::vector<std::int64_t> count, offset, source_token;
  std::vector<std::int32_t> source_rank, row_expert, topk_index;
  std::vector<float> row_weight, topk_weight;
  std::int64_t total = 0;

  explicit correct_output(output_spec spec) {
    random_bits random(seed);
    for (int r = 0; r < p.ranks; ++r) {
      rank_input in;
      in.tokens = 6;
      in.x.resize(60);
      in.scales.resize(24);
      random.fill(in.x);
      random.fill(in.scales);
      for (int i = 0; i < 18; ++i) {
        in.index.push_back(static_cast<std::int64_t>(random.below(8)) - 1);
        in.weight.push_back(static_cast<float>(random.unit()) + 0.125F);
      }
      inputs.push_back(in);
    }
    expected = expect_dispatch(p, inputs, rank, spec);
    lay_out();
  }

  void lay_out() {
    const std::size_t room = 64;
    rows.assign(room * p.row_bytes, bait);
    scales.assign(room * p.scale_bytes, bait);
    source_rank.assign(room, 77);
    source_token.assign(room, 77);
    row_expert.assign(room, -1);
    row_weight.assign(room, 77);
    for (const expected_row& row : expected.rows) {
      const auto at = static_cast<std::size_t>(row.position);
      const rank_input& in = inputs[static_cast<std::size_t>(row.source_rank)];
      const auto token = static_cast<std::size_t>(row.source_token);
      std::memcpy(&rows[at * 10], &in.x[token * 10], 10);
      std::memcpy(&scales[at * 4], &in.scales[token * 4], 4);
      source_rank[at] = row.source_rank;
      source_token[at] = row.source_token;
      row_expert[at] = row.expert;
      row_weight[at] = row.weight;
    }
    total = expected.total;
    count = expected.expert_count;
    offset = expected.expert_offset;
    topk_index = expected.topk_index;
    topk_weight = expected.topk_weight;
  }

  [[nodiscard]] std::string check() const {
    const bool by_rank = expected.expert_offset.empty();
    received got{.rows = rows.data(),
                 .scales = scales.data(),
                 .total = &total,
                 .expert_count = count.data(),
                 .expert_offset = offset.data(),
                 .row_expert = by_rank ? nullptr : row_expert.data(),
                 .row_weight = by_rank ? nullptr : row_weight.data(),
                 .topk_index = by_rank ? topk_index.data() : nullptr,
                 .topk_weight = by_rank ? topk_weight.data() : nullptr,
                 .source_rank = source_rank.data(),
                 .source_token = source_token.data()};
    std::string wrong = check_dispatch(p, inputs, rank, expected, got);
    if (wrong.empty()) wrong = check_slack(p, rank, expected, rows, scales, bait);
    return wrong;
  }
};

class Damage : public ::testing::TestWithParam<output_layout> {
 protected:
  correct_output out_{{.layout = GetParam(), .alignment = 4, .capacity = 20}};
  std::size_t first_ = static_cast<std::size_t>(out_.expected.rows.at(1).position);

  void expect_report(const std::string& part) {
    const std::string report = out_.check();
    EXPECT_NE(report.find("rank 1, "), std::string::npos) << "report: '" << report << "'";
    EXPECT_NE(report.find(part), std::string::npos) << "report: '" << report << "'";
  }
};

TEST_P(Damage, OfNothingIsNotReported) {
  EXPECT_EQ(out_.check(), "");
}

TEST_P(Damage, ByOneBitInARow) {
  out_.rows[first_ * 10 + 7] ^= std::byte{0x10};
  expect_report("row byte 7");
}

TEST_P(Damage, ByOneBitInAScale) {
  out_.scales[first_ * 4 + 3] ^= std::byte{1};
  expect_report("scale byte 3");
}

TEST_P(Damage, ByTwoSwappedRowsNamesTheRowThatCame) {
  const auto other = static_cast<std::size_t>(out_.expected.rows.back().position);
  std::swap_ranges(&out_.rows[first_ * 10], &out_.rows[first_ * 10] + 10, &out_.rows[other * 10]);
  const expected_row& came = out_.expected.rows.back();
  expect_report("these are the bytes of source rank " + std::to_string(came.source_rank) +
                ", token " + std::to_string(came.source_token));
}

TEST_P(Damage, ByAMissingRow) {
  out_.total -= 1;
  expect_report("total rows");
}

TEST_P(Damage, ByARowThatWasNeverWritten) {
  std::fill_n(&out_.rows[first_ * 10], 10, bait);
  expect_report("got 0xa5");
}

TEST_P(Damage, ByAnExtraRow) {
  const bool padded = GetParam() == output_layout::padded;
  const std::int64_t past = padded ? out_.count[0] : out_.total;
  out_.rows[static_cast<std::size_t>(past) * 10] = std::byte{1};
  expect_report("expected to be left alone");
}

TEST_P(Damage, ByExtraScales) {
  out_.scales[60 * 4] = std::byte{1};
  expect_report("scales of row 60 byte 0");
}

TEST_P(Damage, ByAWrongCount) {
  out_.count[1] += 1;
  expect_report("expert_count[1]");
}

TEST_P(Damage, ByAWrongSourceRank) {
  out_.source_rank[first_] += 1;
  expect_report("source_rank");
}

TEST_P(Damage, ByAWrongSourceToken) {
  out_.source_token[first_] -= 1;
  expect_report("source_token");
}

std::string layout_name(const ::testing::TestParamInfo<output_layout>& layout) {
  const char* names[] = {"RankMajor", "ExpertMajor", "Padded"};
  return names[static_cast<int>(layout.param)];
}

INSTANTIATE_TEST_SUITE_P(Layouts, Damage,
                         ::testing::Values(output_layout::rank_major, output_layout::expert_major,
                                           output_layout::padded),
                         layout_name);

std::string report(const correct_output& out) {
  return out.check();
}

TEST(MetadataDamage, ByAWrongLocalIndex) {
  correct_output out({});
  out.topk_index[4] = out.topk_index[4] == 0 ? 1 : 0;
  EXPECT_NE(report(out).find("choice 1, topk_index"), std::string::npos);
}

TEST(MetadataDamage, ByAWeightThatIsOneBitOff) {
  correct_output out({});
  for (std::size_t i = 0; i < out.topk_index.size(); ++i) {
    if (out.topk_index[i] < 0) continue;
    out.topk_weight[i] = std::nextafter(out.topk_weight[i], 2.0F);
    break;
  }
  EXPECT_NE(report(out).find("topk_weight"), std::string::npos);
}

TEST(MetadataDamage, ByAWeightAtAnUnusedChoice) {
  correct_output out({});
  for (std::size_t i = 0; i < out.topk_index.size(); ++i) {
    if (out.topk_index[i] < 0) out.topk_weight[i] = -0.0F;
  }
  EXPECT_NE(report(out).find("topk_weight: expected 0 (0x00000000), got -0"), std::string::npos);
}

TEST(MetadataDamage, ByAWrongOffset) {
  correct_output out({.layout = output_layout::expert_major, .alignment = 4});
  out.offset[1] += 4;
  EXPECT_NE(report(out).find("expert_offset[1]"), std::string::npos);
}

TEST(MetadataDamage, ByAnUnmarkedPaddingRow) {
  correct_output out({.layout = output_layout::expert_major, .alignment = 16});
  out.row_expert[static_cast<std::size_t>(out.count[0])] = 0;
  EXPECT_NE(report(out).find("(padding): expected -1, got 0"), std::string::npos);
}

TEST(MetadataDamage, ByAWrongExpertOrWeightOfARow) {
  correct_output out({.layout = output_layout::expert_major});
  out.row_weight[0] += 1;
  EXPECT_NE(report(out).find("row_weight"), std::string::npos);
  out.row_expert[0] = 1;
  EXPECT_NE(report(out).find("row_expert"), std::string::npos);
}

TEST(MetadataDamage, ByAWrongHostCopyOfTheCounts) {
  const correct_output out({});
  std::vector<std::int64_t> host{out.total};
  host.insert(host.end(), out.count.begin(), out.count.end());
  const received good{.host_counts = host.data()};
  EXPECT_EQ(check_counts(1, out.expected, good), "");
  host.back() += 1;
  EXPECT_NE(check_counts(1, out.expected, good).find("host_counts"), std::string::npos);
}

TEST(InPlaceOutput, IsReadThroughItsOffsets) {
  correct_output out({.layout = output_layout::in_place});
  std::vector<std::byte> window(4096, bait);
  std::vector<std::uint64_t> offset;
  for (std::size_t i = 0; i < out.expected.rows.size(); ++i) {
    offset.push_back(4000 - i * 32);
    std::memcpy(&window[offset[i]], &out.rows[i * 10], 10);
    std::memcpy(&window[offset[i] + 16], &out.scales[i * 4], 4);
  }
  const received got{.rows = window.data(), .scales = &window[16], .row_offset = offset.data()};
  EXPECT_EQ(check_dispatch(out.p, out.inputs, 1, out.expected, got), "");
  std::swap(offset[0], offset[1]);
  EXPECT_NE(check_dispatch(out.p, out.inputs, 1, out.expected, got), "");
}

std::vector<std::uint16_t> values_of(const std::vector<std::byte>& bytes) {
  std::vector<std::uint16_t> values(bytes.size() / 2);
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

class CombineDamage : public ::testing::Test {
 protected:
  correct_output out_{{}};
  std::vector<std::uint16_t> expected_ = values_of(
      expect_combine(out_.p, out_.inputs[1], weighting::at_expert, reference_expert(out_.p)));

  [[nodiscard]] std::string check(const std::vector<std::uint16_t>& got) const {
    return check_combine(out_.p, 1, expected_, got);
  }
};

TEST_F(CombineDamage, OfNothingIsNotReported) {
  EXPECT_EQ(check(expected_), "");
}

TEST_F(CombineDamage, ByTheLastBit) {
  auto got = expected_;
  got[7] ^= 1U;
  EXPECT_NE(check(got).find("token 1, column 2: expected"), std::string::npos) << check(got);
}

TEST_F(CombineDamage, ByMissingTokens) {
  auto got = expected_;
  got.pop_back();
  EXPECT_NE(check(got).find("combined values: expected 30, got 29"), std::string::npos);
}

TEST_F(CombineDamage, ByRoundingTowardZero) {
  const auto expert = reference_expert(out_.p);
  auto truncated = expected_;
  const rank_input& in = out_.inputs[1];
  for (std::int64_t t = 0; t < in.tokens; ++t) {
    for (std::int64_t c = 0; c < 5; ++c) {
      float sum = 0;
      for (int j = 0; j < 3; ++j) {
        const auto at = static_cast<std::size_t>(t * 3 + j);
        if (in.index[at] < 0) continue;
        float y[5];
        expert(
            {&in.x[static_cast<std::size_t>(t) * 10], &in.scales[static_cast<std::size_t>(t) * 4]},
            static_cast<int>(in.index[at]), y);
        sum += in.weight[at] * y[c];
      }
      std::uint32_t bits = 0;
      std::memcpy(&bits, &sum, 4);
      truncated[static_cast<std::size_t>(t * 5 + c)] = static_cast<std::uint16_t>(bits >> 16U);
    }
  }
  EXPECT_NE(check(truncated), "");
}

TEST_F(CombineDamage, OfOneNaNForAnotherIsNone) {
  auto got = expected_;
  expected_[3] = 0x7FC0;
  got[3] = 0xFFC1;
  EXPECT_EQ(check(got), "");
  got[3] = 0x7F80;
  EXPECT_NE(check(got), "") << "infinity is not NaN";
}

TEST_F(CombineDamage, ByAWrongReturnedValue) {
  auto values = expect_choice_values(out_.p, 1, out_.inputs[1], {});
  const auto expected = values;
  EXPECT_EQ(check_choice_values(out_.p, 1, expected, values.data()), "");
  values[5] += 1;
  EXPECT_NE(check_choice_values(out_.p, 1, expected, values.data()).find("token 1, choice 2"),
            std::string::npos);
}

TEST(CountDamage, ByAWrongNumberOfDroppedRows) {
  const correct_output out({.room = {1, 2, 1}});
  ASSERT_GT(out.expected.dropped, 0);
  std::int64_t dropped = out.expected.dropped;
  EXPECT_EQ(check_counts(1, out.expected, {.dropped = &dropped}), "");
  --dropped;
  EXPECT_NE(check_counts(1, out.expected, {.dropped = &dropped}).find("dropped rows"),
            std::string::npos);
}

TEST(Canaries, SurroundAPartOfOtherMemory) {
  std::vector<std::byte> all(2 * guarded_part::zone + 100, bait);
  const guarded_part part(all, 16, 50);
  EXPECT_EQ(part.damage("zone"), "");
  EXPECT_EQ(part.bytes().data(), &all[guarded_part::zone + 16]);
  EXPECT_EQ(part.bytes()[0], bait) << "the part itself is left alone";
  part.bytes().data()[50] = std::byte{0};
  EXPECT_EQ(part.damage("zone"), "canary of zone hit 0 bytes after its end");
  all[guarded_part::zone + 15] = std::byte{0};
  EXPECT_EQ(part.damage("zone"), "canary of zone hit 1 bytes before its start");
}

TEST(Canaries, SayWhereTheyWereHit) {
  guarded<std::uint32_t> buffer(3);
  EXPECT_EQ(buffer.damage("x"), "");
  buffer.bytes()[11] = std::byte{0};
  EXPECT_EQ(buffer.damage("x"), "") << "the last byte is the caller's";
  buffer.data()[3] = 0;
  EXPECT_EQ(buffer.damage("x"), "canary of x hit 0 bytes after its end");
  guarded<std::byte> bytes(5, 3);
  bytes.data()[-2] = std::byte{1};
  EXPECT_EQ(bytes.damage("rows"), "canary of rows hit 2 bytes before its start");
}

TEST(Canaries, SurroundEmptyBuffersToo) {
  guarded<std::byte> none(0);
  ASSERT_NE(none.data(), nullptr);
  none.data()[0] = std::byte{0};
  EXPECT_NE(none.damage("x"), "");
}

TEST(Poison, ChangesFromCallToCall) {
  EXPECT_NE(poison_byte(0), poison_byte(1));
  EXPECT_NE(poison_byte(1), poison_byte(2));
}

}  // namespace
}  // namespace eptransport::support
