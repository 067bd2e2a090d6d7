// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief How far a gate spreads its tokens: expected distinct destinations, in closed form for
/// uniform and skewed routing, counted for a trace.
///
/// A token goes once to every rank that owns one of its k distinct experts, so what travels is
/// the number of *distinct* ranks (or nodes), not k.
#pragma once

#include <eptransport/core/config.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace eptransport {

/// What is routed, and over how many ranks. Experts lie contiguously, the first `experts % ranks`
/// ranks own one more; ranks lie contiguously on nodes, the first `ranks % nodes` have one more.
struct routed_work {
  std::int64_t tokens = 1;   ///< T, of each rank
  std::int64_t top_k = 1;    ///< k distinct experts per token
  std::int64_t ranks = 1;    ///< R
  std::int64_t nodes = 1;    ///< N, at most R
  std::int64_t experts = 1;  ///< E, at least k
};

/// Where tokens go, mean over ranks.
struct routing_spread {
  double ranks = 0;        ///< distinct ranks of a token, its own left out
  double local_ranks = 0;  ///< those of them on the token's own node
  double nodes = 0;        ///< distinct nodes of a token, its own left out
  double peers = 0;        ///< other ranks that the T tokens of a rank reach
  double rails = 0;        ///< other nodes that they reach
  double incast = 1;       ///< rows that the busiest rank receives over the mean
  /// Variance of the rows that a rank receives over that of independent choices: 1 = random,
  /// 0 = all alike.
  double variation = 1;
};

namespace detail {

/// e^x for x <= 0, to about 1e-12; constexpr, which std::exp is not.
[[nodiscard]] constexpr double exp_of(double x) noexcept {
  if (x < -700) return 0;
  int halvings = 0;
  for (; x < -0.0625; x /= 2) ++halvings;
  double sum = 1;
  double term = 1;
  for (int i = 1; i < 10; ++i) sum += term *= x / i;
  for (; halvings > 0; --halvings) sum *= sum;
  return sum;
}

/// base^n for a probability and a count.
[[nodiscard]] constexpr double power(double base, std::int64_t n) noexcept {
  double result = 1;
  for (; n > 0; n /= 2, base *= base) {
    if (n % 2 != 0) result *= base;
  }
  return result;
}

/// The square root, by Newton's method; constexpr, which std::sqrt is not.
[[nodiscard]] constexpr double root_of(double x) noexcept {
  if (x <= 0) return 0;
  double root = x > 1 ? x : 1;
  for (int i = 0; i < 200; ++i) {
    const double next = (root + x / root) / 2;
    if (next >= root) break;
    root = next;
  }
  return root;
}

/// Mean of the largest of n standard normal numbers, to about 0.05: sqrt(2 ln n) - 0.6.
[[nodiscard]] constexpr double largest_of(double n) noexcept {
  if (n <= 1) return 0;
  double log = 0;
  for (; n > 2; n /= 2) log += 0.6931471805599453;
  const double y = (n - 1) / (n + 1);
  log += 2 * (y + y * y * y / 3 + y * y * y * y * y / 5 + y * y * y * y * y * y * y / 7);
  return root_of(2 * log) - 0.6;
}

/// First of the contiguous parts of `count` things over `parts`; part `index == parts` is the end.
[[nodiscard]] constexpr std::int64_t part_begin(std::int64_t count, std::int64_t parts,
                                                std::int64_t index) noexcept {
  return count / parts * index + std::min(index, count % parts);
}

/// Whose part `item` is.
[[nodiscard]] constexpr std::int64_t part_of(std::int64_t count, std::int64_t parts,
                                             std::int64_t item) noexcept {
  const std::int64_t each = count / parts;
  const std::int64_t fuller = count % parts;
  if (item < fuller * (each + 1)) return item / (each + 1);
  return fuller + (item - fuller * (each + 1)) / each;
}

/// First expert of a node; node `nodes` is the end.
[[nodiscard]] constexpr std::int64_t node_experts(const routed_work& w,
                                                  std::int64_t node) noexcept {
  return part_begin(w.experts, w.ranks, part_begin(w.ranks, w.nodes, node));
}

/// The spread where `miss(first, last)` is the probability that a token chooses none of the
/// experts [first, last).
template <class Miss>
[[nodiscard]] constexpr routing_spread spread_of(const routed_work& w, const Miss& miss) {
  routing_spread all;
  double busiest = 0;
  double rank_hits = 0;
  double reached_ranks = 0;
  for (std::int64_t r = 0; r < w.ranks; ++r) {
    const double missed =
        miss(part_begin(w.experts, w.ranks, r), part_begin(w.experts, w.ranks, r + 1));
    rank_hits += 1 - missed;
    reached_ranks += 1 - power(missed, w.tokens);
    busiest = std::max(busiest, 1 - missed);
  }
  double node_hits = 0;
  double reached_nodes = 0;
  for (std::int64_t n = 0; n < w.nodes; ++n) {
    const double missed = miss(node_experts(w, n), node_experts(w, n + 1));
    node_hits += 1 - missed;
    reached_nodes += 1 - power(missed, w.tokens);
  }
  const auto ranks = static_cast<double>(w.ranks);
  const auto nodes = static_cast<double>(w.nodes);
  all.ranks = rank_hits * (ranks - 1) / ranks;
  all.local_ranks = rank_hits * (ranks / nodes - 1) / ranks;
  all.nodes = node_hits * (nodes - 1) / nodes;
  all.peers = reached_ranks * (ranks - 1) / ranks;
  all.rails = reached_nodes * (nodes - 1) / nodes;
  all.incast = rank_hits > 0 ? busiest * ranks / rank_hits : 1;
  return all;
}

}  // namespace detail

/// Every set of k distinct experts is equally likely. Exact.
[[nodiscard]] constexpr routing_spread uniform_spread(const routed_work& w) {
  return detail::spread_of(w, [&w](std::int64_t first, std::int64_t last) {
    double missed = 1;
    for (std::int64_t i = 0; i < w.top_k; ++i) {
      const std::int64_t left = w.experts - (last - first) - i;
      if (left <= 0) return 0.0;
      missed *= static_cast<double>(left) / static_cast<double>(w.experts - i);
    }
    return missed;
  });
}

/// Experts are drawn one after another without replacement, in proportion to `share` [E].
///
/// A rank with share W is missed by the j-th draw with (1 - W - r) / (1 - r), where r is the share
/// that the draws before have used up. Its mean comes from the equivalent race of exponential
/// clocks that run at the shares. Exact for equal shares; the tests compare it with drawing.
[[nodiscard]] constexpr routing_spread skewed_spread(const routed_work& w,
                                                     std::span<const double> share) {
  double all = 0;
  std::int64_t possible = 0;
  for (const double s : share) {
    all += s;
    possible += s > 0 ? 1 : 0;
  }
  if (possible == 0) return {};
  const std::int64_t draws = std::min(w.top_k, possible);
  std::vector<double> used;  // share used up before draw j
  double time = 0;
  for (std::int64_t j = 0; j < draws; ++j) {
    // Newton's method on "j clocks have rung"; the function is concave, so it stays on one side.
    for (int i = 0; i < 100; ++i) {
      double rung = 0;
      double rate = 0;
      for (const double s : share) {
        const double left = detail::exp_of(-time * s);
        rung += 1 - left;
        rate += s * left;
      }
      const double step = (static_cast<double>(j) - rung) / rate;
      time += step;
      if (step <= 1e-12 * time) break;
    }
    double sum = 0;
    for (const double s : share) sum += s * (1 - detail::exp_of(-time * s));
    used.push_back(sum / all);
  }
  return detail::spread_of(w, [&](std::int64_t first, std::int64_t last) {
    double own = 0;
    for (std::int64_t e = first; e < last; ++e) own += share[static_cast<std::size_t>(e)] / all;
    double missed = 1;
    for (const double r : used) missed *= std::max(0.0, (1 - own - r) / (1 - r));
    return missed;
  });
}

/// Counts a trace: `index` [R * T, k], the tokens of rank 0 first; a negative index is no choice.
[[nodiscard]] inline routing_spread traced_spread(const routed_work& w,
                                                  std::span<const std::int64_t> index) {
  const auto count = static_cast<std::size_t>(w.ranks);
  std::vector<std::int64_t> rank_seen(count, -1);  // last token that went there
  std::vector<std::int64_t> node_seen(count, -1);  // [nodes]
  std::vector<std::int64_t> peer_seen(count, -1);  // last rank that sent there
  std::vector<std::int64_t> rail_seen(count, -1);  // [nodes]
  std::vector<double> received(count, 0);
  routing_spread sum;
  for (std::int64_t token = 0; token < w.ranks * w.tokens; ++token) {
    const std::int64_t own = token / w.tokens;
    const std::int64_t own_node = detail::part_of(w.ranks, w.nodes, own);
    for (std::int64_t j = 0; j < w.top_k; ++j) {
      const std::int64_t expert = index[static_cast<std::size_t>(token * w.top_k + j)];
      if (expert < 0 || expert >= w.experts) continue;
      const std::int64_t rank = detail::part_of(w.experts, w.ranks, expert);
      const std::int64_t node = detail::part_of(w.ranks, w.nodes, rank);
      const auto to = static_cast<std::size_t>(rank);
      const auto at = static_cast<std::size_t>(node);
      if (rank_seen[to] != token) received[to] += 1;
      if (rank != own && rank_seen[to] != token) {
        sum.ranks += 1;
        if (node == own_node) sum.local_ranks += 1;
        if (peer_seen[to] != own) sum.peers += 1;
        peer_seen[to] = own;
      }
      rank_seen[to] = token;
      if (node != own_node && node_seen[at] != token) {
        sum.nodes += 1;
        if (rail_seen[at] != own) sum.rails += 1;
        rail_seen[at] = own;
      }
      node_seen[at] = token;
    }
  }
  const auto tokens = static_cast<double>(w.ranks * w.tokens);
  const auto ranks = static_cast<double>(w.ranks);
  if (tokens > 0) {
    sum.ranks /= tokens;
    sum.local_ranks /= tokens;
    sum.nodes /= tokens;
  }
  sum.peers /= ranks;
  sum.rails /= ranks;
  double rows = 0;
  for (const double r : received) rows += r;
  if (rows > 0) {
    sum.incast = *std::max_element(received.begin(), received.end()) * ranks / rows;
    double variance = 0;
    for (const double r : received) variance += (r - rows / ranks) * (r - rows / ranks) / ranks;
    const double independent = rows / ranks * (1 - rows / ranks / tokens);
    sum.variation = independent > 0 ? variance / independent : 0;
  }
  return sum;
}

}  // namespace eptransport
