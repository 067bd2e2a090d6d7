// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The oracle against cases that were worked out by hand.
#include "support/oracle.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <map>
#include <span>
#include <vector>

namespace eptransport::support {
namespace {

using indices = std::vector<std::int64_t>;
using locals = std::vector<std::int32_t>;

/// Rows of one byte that name their rank and token, e.g. 0x12: rank 1, token 2.
rank_input tokens_of(int rank, int top_k, const indices& index, std::vector<float> weight = {}) {
  rank_input in;
  in.tokens = static_cast<std::int64_t>(index.size()) / top_k;
  for (std::int64_t t = 0; t < in.tokens; ++t) in.x.push_back(std::byte(rank * 16 + t));
  in.index = index;
  in.weight = std::move(weight);
  return in;
}

/// Two ranks, experts 0 and 1 on rank 0, 2 and 3 on rank 1, two choices per token.
class TwoRanks : public ::testing::Test {
 protected:
  problem p_{.ranks = 2, .experts = 4, .top_k = 2, .hidden = 1, .max_tokens = 2, .row_bytes = 1};
  std::vector<rank_input> inputs_{tokens_of(0, 2, {0, 2, 3, 3}, {0.5F, 0.25F, 2, 4}),
                                  tokens_of(1, 2, {-1, 1, -1, -1}, {NAN, 8, NAN, NAN})};

  [[nodiscard]] expected_dispatch expect(int rank, output_spec spec) const {
    return expect_dispatch(p_, inputs_, rank, spec);
  }
};

std::vector<std::vector<std::int64_t>> places(const expected_dispatch& d) {
  std::vector<std::vector<std::int64_t>> all;
  for (const expected_row& row : d.rows) {
    all.push_back({row.position, row.source_rank, row.source_token});
  }
  return all;
}

TEST(OraclePlacement, GivesTheFirstRanksOneExpertMore) {
  EXPECT_EQ(owners({.ranks = 3, .experts = 5}), (locals{0, 0, 1, 1, 2}));
  EXPECT_EQ(owners({.ranks = 4, .experts = 2}), (locals{0, 1}));
}

TEST(OraclePlacement, KeepsTheOrderOfTheTable) {
  const problem p{.ranks = 3, .experts = 4, .placement = {2, 0, 2, 0}};
  EXPECT_EQ(experts_of(p, 0), (locals{1, 3}));
  EXPECT_EQ(experts_of(p, 1), (locals{}));
  EXPECT_EQ(experts_of(p, 2), (locals{0, 2}));
}

TEST_F(TwoRanks, RankMajorListsEachTokenOncePerRank) {
  const expected_dispatch zero = expect(0, {});
  EXPECT_EQ(zero.total, 2);
  EXPECT_EQ(places(zero), (std::vector<indices>{{0, 0, 0}, {1, 1, 0}}));
  EXPECT_EQ(zero.topk_index, (locals{0, -1, -1, 1}));
  EXPECT_EQ(zero.topk_weight, (std::vector<float>{0.5F, 0, 0, 8}));
  EXPECT_EQ(zero.expert_count, (indices{1, 1}));

  const expected_dispatch one = expect(1, {});
  EXPECT_EQ(places(one), (std::vector<indices>{{0, 0, 0}, {1, 0, 1}}));
  EXPECT_EQ(one.topk_index, (locals{-1, 0, 1, 1}));
  EXPECT_EQ(one.topk_weight, (std::vector<float>{0, 0.25F, 2, 4}));
  EXPECT_EQ(one.expert_count, (indices{1, 2}));
}

TEST_F(TwoRanks, ExpertMajorAlignsEachExpertAndCountsDuplicatesTwice) {
  const expected_dispatch one = expect(1, {.layout = output_layout::expert_major, .alignment = 4});
  EXPECT_EQ(one.total, 8);
  EXPECT_EQ(one.expert_offset, (indices{0, 4}));
  EXPECT_EQ(places(one), (std::vector<indices>{{0, 0, 0}, {4, 0, 1}, {5, 0, 1}}));
  EXPECT_EQ(one.rows[1].weight, 2);
  EXPECT_EQ(one.rows[2].weight, 4);
  EXPECT_EQ(one.rows[2].expert, 1);
}

TEST_F(TwoRanks, PaddedStartsEachExpertAtItsCapacity) {
  const expected_dispatch one = expect(1, {.layout = output_layout::padded, .capacity = 3});
  EXPECT_EQ(one.total, 3);
  EXPECT_EQ(one.expert_offset, (indices{0, 3}));
  EXPECT_EQ(places(one), (std::vector<indices>{{0, 0, 0}, {3, 0, 1}, {4, 0, 1}}));
  const expected_dispatch worst = expect(1, {.layout = output_layout::padded});
  EXPECT_EQ(worst.expert_offset, (indices{0, 8}));  // 2 ranks, 2 tokens, 2 choices
}

TEST_F(TwoRanks, CountsOneRowPerTokenAndDestination) {
  EXPECT_EQ(expect_sent(p_, inputs_[0]), (indices{1, 2}));
  EXPECT_EQ(expect_sent(p_, inputs_[1]), (indices{1, 0}));
}

TEST_F(TwoRanks, SkipsIndicesOutOfRangeAndCountsThem) {
  inputs_[0].index = {0, 4, -2, 3};
  EXPECT_EQ(count_bad_indices(p_, inputs_[0]), 2U);
  EXPECT_EQ(expect_sent(p_, inputs_[0]), (indices{1, 1}));
  EXPECT_EQ(places(expect(1, {})), (std::vector<indices>{{0, 0, 1}}));
}

TEST_F(TwoRanks, TakesMissingWeightsAsOne) {
  inputs_[0].weight.clear();
  EXPECT_EQ(expect(1, {}).topk_weight, (std::vector<float>{0, 1, 1, 1}));
}

/// Expert e returns the constant that the test chose for it.
expert_function constants(std::map<int, float> values) {
  return [values](const row_view&, int expert, float* y) { y[0] = values.at(expert); };
}

float combined(const problem& p, const rank_input& in, const expert_function& expert,
               weighting weights = weighting::at_expert) {
  return reference_load(p.values, expect_combine(p, in, weights, expert).data(), 0);
}

TEST_F(TwoRanks, CombineWeighsAndCountsDuplicatesTwice) {
  const auto expert = constants({{0, 2}, {1, 100}, {2, 4}, {3, 1}});
  const auto out = expect_combine(p_, inputs_[0], weighting::at_expert, expert);
  EXPECT_EQ(reference_load(element::bf16, out.data(), 0), 0.5F * 2 + 0.25F * 4);
  EXPECT_EQ(reference_load(element::bf16, out.data(), 1), 2 + 4);
  const auto plain = expect_combine(p_, inputs_[0], weighting::none, expert);
  EXPECT_EQ(reference_load(element::bf16, plain.data(), 0), 6);
  EXPECT_EQ(reference_load(element::bf16, plain.data(), 1), 2);
}

TEST_F(TwoRanks, CombineGivesZeroToATokenWithoutExperts) {
  const auto out = expect_combine(p_, inputs_[1], weighting::at_expert, constants({{1, 3}}));
  EXPECT_EQ(reference_load(element::bf16, out.data(), 0), 24);  // its other weight is NaN, unused
  EXPECT_EQ(reference_load(element::bf16, out.data(), 1), 0);
}

TEST(OracleCombine, RoundsEachRanksPartBeforeTheSum) {
  const problem p{
      .ranks = 2, .experts = 3, .top_k = 3, .hidden = 1, .row_bytes = 1, .placement = {0, 0, 1}};
  const rank_input in = tokens_of(0, 3, {0, 1, 2});
  const float tiny = 0x1p-8F;  // half a bf16 step at 1
  const auto expert = constants({{0, 1}, {1, tiny}, {2, tiny}});
  // rank 0: 1 + 2^-8 is a tie and goes to 1; then 1 + 2^-8 again. One rounding would give 1 + 2^-7.
  EXPECT_EQ(combined(p, in, expert), 1.0F);
  const problem together{.ranks = 1, .experts = 3, .top_k = 3, .hidden = 1, .row_bytes = 1};
  EXPECT_EQ(combined(together, in, expert), 1.0F + 0x1p-7F);
}

TEST(OracleCombine, RoundsTheProductBeforeTheSum) {
  const problem p{.ranks = 1, .experts = 2, .top_k = 2, .hidden = 1, .row_bytes = 1};
  // (1 + 2^-23) * 1.5 rounds to 1.5 + 2^-22, which cancels; fused, 2^-24 would be left.
  const rank_input in = tokens_of(0, 2, {0, 1}, {-(1.5F + 0x1p-22F), 1 + 0x1p-23F});
  EXPECT_EQ(combined(p, in, constants({{0, 1}, {1, 1.5F}})), 0.0F);
}

TEST(OracleCombine, AddsChoicesInTheirOrder) {
  const problem p{.ranks = 1, .experts = 3, .top_k = 3, .hidden = 1, .row_bytes = 1};
  const auto expert = constants({{0, 0x1p30F}, {1, -0x1p30F}, {2, 1}});
  EXPECT_EQ(combined(p, tokens_of(0, 3, {0, 1, 2}), expert), 1.0F);
  EXPECT_EQ(combined(p, tokens_of(0, 3, {0, 2, 1}), expert), 0.0F);  // 1 is lost in 2^30
}

TEST(OracleCombine, RoundsPartsToTheTypeThatTravels) {
  problem p{
      .ranks = 2, .experts = 3, .top_k = 3, .hidden = 1, .row_bytes = 1, .placement = {0, 0, 1}};
  const rank_input in = tokens_of(0, 3, {0, 1, 2});
  const auto expert = constants({{0, 1}, {1, 0x1p-8F}, {2, 0x1p-8F}});
  p.returns = element::fp32;
  EXPECT_EQ(combined(p, in, expert), 1.0F + 0x1p-7F) << "one rounding";
  const combine_spec by_rank{.per_expert = false};
  const auto out = expect_combine(p, in, weighting::at_expert, expert, by_rank);
  EXPECT_EQ(reference_load(element::bf16, out.data(), 0), 1.0F) << "the experts rounded to bf16";
  p.values = p.returns = element::fp16;
  EXPECT_EQ(combined(p, in, expert), 1.0F + 0x1p-7F);
}

TEST(OracleCombine, AddsTheBiasLastAndSkipsWhatWasDropped) {
  const problem p{.ranks = 2,
                  .experts = 2,
                  .top_k = 1,
                  .hidden = 1,
                  .row_bytes = 1,
                  .values = element::fp32,
                  .returns = element::fp32};
  const rank_input in = tokens_of(0, 1, {0, 1, 1, -1});
  const float terms[] = {-0x1p30F, 1, 2, 3};
  const auto bias = std::as_bytes(std::span(terms));
  const std::vector<std::int64_t> kept{1, 1};
  const auto out = expect_combine(p, in, weighting::none, constants({{0, 0x1p30F}, {1, 5}}),
                                  {.kept = kept, .bias = bias});
  const std::vector<float> wanted{0, 6, 2, 3};
  EXPECT_EQ(std::memcmp(out.data(), wanted.data(), out.size()), 0);
  const auto back = expect_choice_values(p, 0, in, kept);
  EXPECT_EQ(back, (std::vector<float>{choice_value(0, 0, 0), choice_value(0, 1, 0), 0, 0}));
  EXPECT_NE(choice_value(0, 0, 0), choice_value(0, 1, 0));
}

TEST_F(TwoRanks, RowsBeyondTheRoomAreTheLastInRankMajorOrder) {
  const std::vector<std::int64_t> room{1, 1};
  const expected_dispatch one = expect(1, {.room = room});
  EXPECT_EQ(places(one), (std::vector<indices>{{0, 0, 0}}));
  EXPECT_EQ(one.dropped, 1);
  EXPECT_EQ(one.expert_count, (indices{1, 0}));
  EXPECT_EQ(expect_totals(p_, inputs_), (indices{2, 2}));
  EXPECT_EQ(expect_kept(p_, inputs_, 0, room), (indices{1, 1}));
  EXPECT_EQ(expect_kept(p_, inputs_, 1, room), (indices{0, 0}));
}

TEST(OracleRounding, GoesToTheNearestAndTiesToEven) {
  EXPECT_EQ(reference_to_bf16(1.0F), 0x3F80);
  EXPECT_EQ(reference_to_bf16(1.0F + 0x1p-8F), 0x3F80);             // tie, stays even
  EXPECT_EQ(reference_to_bf16(1.0F + 0x1p-7F + 0x1p-8F), 0x3F82);   // tie, goes up to even
  EXPECT_EQ(reference_to_bf16(1.0F + 0x1p-8F + 0x1p-20F), 0x3F81);  // above the tie
  EXPECT_EQ(reference_to_bf16(3.4e38F), 0x7F80);                    // becomes infinite
  EXPECT_EQ(reference_to_bf16(-0.0F), 0x8000);
  EXPECT_TRUE(std::isnan(reference_from_bf16(reference_to_bf16(NAN))));
}

}  // namespace
}  // namespace eptransport::support
