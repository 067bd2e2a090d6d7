// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Inputs as a function of seed, iteration, lane and rank.
#include "support/inputs.hpp"

#include <algorithm>
#include <cmath>

#include "support/random.hpp"

namespace eptransport::support {
namespace {

/// A cached dispatch reuses the routing of the iteration before it.
std::uint64_t routing_iteration(const run_config& config, int iteration) {
  return static_cast<std::uint64_t>(config.cached ? iteration / 2 * 2 : iteration);
}

std::int64_t tokens_of(const run_config& config, std::uint64_t iteration, int lane, int rank) {
  const auto index = config.tokens.size() == 1 ? 0 : static_cast<std::size_t>(rank);
  const std::int64_t most = config.tokens[index];
  if (!config.vary_tokens) return most;
  random_bits random{config.seed, 0x746f6b656e, iteration, static_cast<std::uint64_t>(lane),
                     static_cast<std::uint64_t>(rank)};
  return static_cast<std::int64_t>(random.below(static_cast<std::uint64_t>(most) + 1));
}

}  // namespace

problem problem_of(const run_config& config) {
  const row_format row = config.row.row_bytes != 0 ? config.row : bf16_rows(config.hidden);
  std::int64_t most = config.max_tokens;
  if (most == 0)
    most = std::max<std::int64_t>(1, *std::max_element(config.tokens.begin(), config.tokens.end()));
  return {.ranks = config.ranks,
          .experts = config.experts,
          .top_k = config.top_k,
          .hidden = config.hidden,
          .max_tokens = most,
          .row_bytes = row.row_bytes,
          .scale_bytes = row.scale_bytes,
          .placement = config.placement};
}

std::vector<rank_input> draw_inputs(const run_config& config, const router& routes, int iteration,
                                    int lane) {
  const problem p = problem_of(config);
  const std::uint64_t of_routing = routing_iteration(config, iteration);
  const auto lanes = static_cast<std::uint64_t>(config.lanes);
  std::vector<rank_input> inputs(static_cast<std::size_t>(p.ranks));
  std::int64_t all = 0;
  for (int rank = 0; rank < p.ranks; ++rank) {
    rank_input& in = inputs[static_cast<std::size_t>(rank)];
    in.tokens = tokens_of(config, of_routing, lane, rank);
    all += in.tokens;
  }
  std::int64_t first = 0;
  for (int rank = 0; rank < p.ranks; ++rank) {
    rank_input& in = inputs[static_cast<std::size_t>(rank)];
    const auto tokens = static_cast<std::uint64_t>(in.tokens);
    in.x.resize(tokens * p.row_bytes);
    in.scales.resize(tokens * p.scale_bytes);
    in.index.resize(tokens * static_cast<std::uint64_t>(p.top_k));
    in.weight.resize(in.index.size());
    random_bits random{config.seed, 0x726f7773, static_cast<std::uint64_t>(iteration),
                       static_cast<std::uint64_t>(lane), static_cast<std::uint64_t>(rank)};
    random.fill(in.x);
    random.fill(in.scales);
    routes.draw({.iteration = of_routing * lanes + static_cast<std::uint64_t>(lane),
                 .rank = rank,
                 .first = first,
                 .all = all,
                 .tokens = in.tokens},
                in.index, in.weight);
    const bool reused = static_cast<std::uint64_t>(iteration) != of_routing;
    for (std::size_t i = 0; i < in.index.size(); ++i) {
      if (in.index[i] < 0 || in.index[i] >= p.experts) in.weight[i] = NAN;
      if (reused) in.weight[i] *= -0.75F;  // a cached dispatch may bring new weights
    }
    if (config.null_weights) in.weight.clear();
    first += in.tokens;
  }
  return inputs;
}

}  // namespace eptransport::support
