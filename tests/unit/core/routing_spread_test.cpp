// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Expected distinct destinations against enumeration and against drawing.
#include <eptransport/core/routing_spread.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <set>
#include <vector>

namespace {

using eptransport::routed_work;
using eptransport::routing_spread;

constexpr std::uint64_t seed = 20261130;

/// Which rank owns an expert and which node a rank lies on, dealt out one by one.
std::vector<int> deal(std::int64_t things, std::int64_t parts) {
  std::vector<int> owner;
  for (std::int64_t part = 0; part < parts; ++part) {
    const std::int64_t size = things / parts + (part < things % parts ? 1 : 0);
    owner.insert(owner.end(), static_cast<std::size_t>(size), static_cast<int>(part));
  }
  return owner;
}

/// Draws `k` distinct experts one after another in proportion to `share`.
std::vector<std::int64_t> draw(std::vector<double> share, std::int64_t k, std::mt19937_64& random) {
  std::vector<std::int64_t> chosen;
  for (std::int64_t j = 0; j < k; ++j) {
    const double all = std::accumulate(share.begin(), share.end(), 0.0);
    double at = std::uniform_real_distribution<double>(0, all)(random);
    std::size_t e = 0;
    while (e + 1 < share.size() && (at -= share[e]) >= 0) ++e;
    while (share[e] == 0) --e;
    chosen.push_back(static_cast<std::int64_t>(e));
    share[e] = 0;
  }
  return chosen;
}

/// Counts with sets what a trace does.
routing_spread count(const routed_work& w, const std::vector<std::int64_t>& index) {
  const std::vector<int> rank_of = deal(w.experts, w.ranks);
  const std::vector<int> node_of = deal(w.ranks, w.nodes);
  std::vector<double> received(static_cast<std::size_t>(w.ranks), 0);
  routing_spread all;
  std::size_t at = 0;
  for (int own = 0; own < w.ranks; ++own) {
    std::set<int> peers;
    std::set<int> rails;
    for (std::int64_t t = 0; t < w.tokens; ++t) {
      std::set<int> ranks;
      std::set<int> nodes;
      for (std::int64_t j = 0; j < w.top_k; ++j, ++at) {
        if (index[at] < 0) continue;
        ranks.insert(rank_of[static_cast<std::size_t>(index[at])]);
      }
      for (const int r : ranks) {
        received[static_cast<std::size_t>(r)] += 1;
        nodes.insert(node_of[static_cast<std::size_t>(r)]);
      }
      ranks.erase(own);
      nodes.erase(node_of[static_cast<std::size_t>(own)]);
      all.ranks += static_cast<double>(ranks.size());
      all.nodes += static_cast<double>(nodes.size());
      for (const int r : ranks) {
        all.local_ranks +=
            node_of[static_cast<std::size_t>(r)] == node_of[static_cast<std::size_t>(own)] ? 1 : 0;
      }
      peers.insert(ranks.begin(), ranks.end());
      rails.insert(nodes.begin(), nodes.end());
    }
    all.peers += static_cast<double>(peers.size());
    all.rails += static_cast<double>(rails.size());
  }
  const auto ranks = static_cast<double>(w.ranks);
  const double tokens = ranks * static_cast<double>(w.tokens);
  all.ranks /= tokens, all.local_ranks /= tokens, all.nodes /= tokens;
  all.peers /= ranks, all.rails /= ranks;
  const double rows = std::accumulate(received.begin(), received.end(), 0.0);
  all.incast = *std::max_element(received.begin(), received.end()) * ranks / rows;
  return all;
}

TEST(RoutingSpread, OfUniformRoutingEqualsTheMeanOverAllChoices) {
  // 7 experts on 4 ranks on 2 nodes, every pair of experts: 21 equally likely tokens.
  const routed_work w{.tokens = 1, .top_k = 2, .ranks = 4, .nodes = 2, .experts = 7};
  routing_spread mean;
  for (std::int64_t a = 0; a < 7; ++a) {
    for (std::int64_t b = a + 1; b < 7; ++b) {
      std::vector<std::int64_t> index;
      for (int r = 0; r < 4; ++r) index.insert(index.end(), {a, b});
      const routing_spread one = count(w, index);
      mean.ranks += one.ranks / 21, mean.local_ranks += one.local_ranks / 21;
      mean.nodes += one.nodes / 21, mean.peers += one.peers / 21, mean.rails += one.rails / 21;
    }
  }
  const routing_spread got = eptransport::uniform_spread(w);
  EXPECT_NEAR(got.ranks, mean.ranks, 1e-12);
  EXPECT_NEAR(got.local_ranks, mean.local_ranks, 1e-12);
  EXPECT_NEAR(got.nodes, mean.nodes, 1e-12);
  EXPECT_NEAR(got.peers, mean.peers, 1e-12);
  EXPECT_NEAR(got.rails, mean.rails, 1e-12);
}

TEST(RoutingSpread, OfSkewedRoutingIsNearTheMeanOfManyDraws) {
  std::mt19937_64 random(seed);
  for (const double exponent : {0.0, 0.5, 1.0}) {
    const routed_work w{.tokens = 16, .top_k = 8, .ranks = 16, .nodes = 2, .experts = 64};
    std::vector<double> share;
    for (int e = 1; e <= 64; ++e) share.push_back(std::pow(e, -exponent));
    std::shuffle(share.begin(), share.end(), random);
    routing_spread mean;
    constexpr int draws = 40;
    std::vector<std::int64_t> all;
    for (int d = 0; d < draws; ++d) {
      std::vector<std::int64_t> index;
      for (int t = 0; t < 16 * 16; ++t) {
        const auto chosen = draw(share, 8, random);
        index.insert(index.end(), chosen.begin(), chosen.end());
      }
      const routing_spread one = count(w, index);
      mean.ranks += one.ranks / draws, mean.local_ranks += one.local_ranks / draws;
      mean.nodes += one.nodes / draws, mean.peers += one.peers / draws;
    }
    const routing_spread got = eptransport::skewed_spread(w, share);
    EXPECT_NEAR(got.ranks / mean.ranks, 1, 0.01) << "exponent " << exponent << ", seed " << seed;
    EXPECT_NEAR(got.local_ranks / mean.local_ranks, 1, 0.02) << exponent;
    EXPECT_NEAR(got.nodes / mean.nodes, 1, 0.01) << exponent;
    EXPECT_NEAR(got.peers / mean.peers, 1, 0.01) << exponent;
    EXPECT_GE(got.incast, 1 - 1e-9) << exponent;
  }
}

TEST(RoutingSpread, OfEqualSharesIsTheUniformOne) {
  const routed_work w{.tokens = 4, .top_k = 8, .ranks = 16, .nodes = 2, .experts = 128};
  const std::vector<double> share(128, 3.0);
  const routing_spread skewed = eptransport::skewed_spread(w, share);
  const routing_spread uniform = eptransport::uniform_spread(w);
  EXPECT_NEAR(skewed.ranks / uniform.ranks, 1, 1e-9);
  EXPECT_NEAR(skewed.peers / uniform.peers, 1, 1e-9);
  EXPECT_NEAR(skewed.incast, 1, 1e-9);
}

TEST(RoutingSpread, OfATraceIsWhatSetsCount) {
  std::mt19937_64 random(seed);
  const routed_work w{.tokens = 9, .top_k = 3, .ranks = 6, .nodes = 4, .experts = 17};
  std::vector<std::int64_t> index;
  for (int i = 0; i < 6 * 9 * 3; ++i) {
    index.push_back(std::uniform_int_distribution<std::int64_t>(-2, 16)(random));
  }
  const routing_spread got = eptransport::traced_spread(w, index);
  const routing_spread expected = count(w, index);
  EXPECT_DOUBLE_EQ(got.ranks, expected.ranks);
  EXPECT_DOUBLE_EQ(got.local_ranks, expected.local_ranks);
  EXPECT_DOUBLE_EQ(got.nodes, expected.nodes);
  EXPECT_DOUBLE_EQ(got.peers, expected.peers);
  EXPECT_DOUBLE_EQ(got.rails, expected.rails);
  EXPECT_DOUBLE_EQ(got.incast, expected.incast);
}

TEST(RoutingSpread, VariationIsOneForRandomRoutingAndZeroForADeal) {
  const routed_work w{.tokens = 64, .top_k = 1, .ranks = 512, .nodes = 64, .experts = 512};
  std::mt19937_64 random(seed);
  std::vector<std::int64_t> drawn;
  std::vector<std::int64_t> dealt;
  for (std::int64_t i = 0; i < 512 * 64; ++i) {
    drawn.push_back(std::uniform_int_distribution<std::int64_t>(0, 511)(random));
    dealt.push_back(i % 512);
  }
  EXPECT_NEAR(eptransport::traced_spread(w, drawn).variation, 1, 0.2);
  EXPECT_NEAR(eptransport::traced_spread(w, dealt).variation, 0, 1e-9);
}

TEST(RoutingSpread, LargestOfNormalNumbers) {
  std::mt19937_64 random(seed);
  std::normal_distribution<double> normal;
  for (const int n : {2, 4, 8, 64}) {
    double sum = 0;
    for (int i = 0; i < 20'000; ++i) {
      double largest = normal(random);
      for (int j = 1; j < n; ++j) largest = std::max(largest, normal(random));
      sum += largest;
    }
    EXPECT_NEAR(eptransport::detail::largest_of(n), sum / 20'000, 0.08) << n;
  }
  EXPECT_NEAR(eptransport::detail::root_of(2), std::sqrt(2.0), 1e-12);
  EXPECT_NEAR(eptransport::detail::root_of(1e-6), 1e-3, 1e-12);
}

TEST(RoutingSpread, HasItsEdges) {
  EXPECT_EQ(eptransport::uniform_spread({.tokens = 5, .top_k = 8, .ranks = 1, .experts = 8}).ranks,
            0);
  // All experts chosen: every rank, every node.
  const routing_spread all =
      eptransport::uniform_spread({.tokens = 1, .top_k = 8, .ranks = 8, .nodes = 2, .experts = 8});
  EXPECT_DOUBLE_EQ(all.ranks, 7);
  EXPECT_DOUBLE_EQ(all.nodes, 1);
  EXPECT_DOUBLE_EQ(all.local_ranks, 3);
  // More ranks than experts: some own none.
  EXPECT_LT(eptransport::uniform_spread({.tokens = 1, .top_k = 1, .ranks = 9, .experts = 3}).ranks,
            1);
  const std::vector<double> nothing(4, 0.0);
  EXPECT_EQ(eptransport::skewed_spread({.top_k = 2, .ranks = 2, .experts = 4}, nothing).ranks, 0);
  const std::vector<double> one{0, 1, 0, 0};
  EXPECT_NEAR(eptransport::skewed_spread({.top_k = 2, .ranks = 4, .experts = 4}, one).ranks, 0.75,
              1e-6);
}

TEST(RoutingSpread, IsKnownAtCompileTime) {
  constexpr routing_spread spread = eptransport::uniform_spread(
      {.tokens = 2, .top_k = 8, .ranks = 16, .nodes = 2, .experts = 128});
  static_assert(spread.ranks > 5 && spread.ranks < 7);
  constexpr double share[] = {1, 2, 3, 4};
  static_assert(eptransport::skewed_spread({.top_k = 2, .ranks = 4, .experts = 4}, share).ranks >
                1);
  static_assert(eptransport::detail::exp_of(-1) > 0.36787944 &&
                eptransport::detail::exp_of(-1) < 0.36787945);
  for (double x = -60; x <= 0; x += 0.37) {
    EXPECT_NEAR(eptransport::detail::exp_of(x) / std::exp(x), 1, 1e-10) << x;
  }
}

}  // namespace
