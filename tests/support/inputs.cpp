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

/// Finite bf16 values; the blocks of 128 differ in size: usual, all zero, tiny, huge, one outlier.
void fill_finite(random_bits& random, std::int64_t hidden, std::span<std::byte> x) {
  const auto width = static_cast<std::uint64_t>(hidden);
  for (std::uint64_t i = 0, size = 1, kind = 0; i < x.size() / 2; ++i) {
    if (i % width % 128 == 0) {
      kind = random.below(8);
      size = kind == 1   ? 0
             : kind == 2 ? random.below(24)
             : kind == 3 ? 254
                         : 100 + random.below(40);
    }
    const std::uint64_t bits = random();
    std::uint64_t exponent = size > bits % 8 ? size - bits % 8 : 0;
    if (kind == 4 && i % 128 == 5) exponent += 20;
    const std::uint64_t fraction = kind == 1 ? 0 : bits >> 57U;
    const std::uint64_t value = (bits >> 8U & 1U) << 15U | exponent << 7U | fraction;
    x[2 * i] = static_cast<std::byte>(value);
    x[2 * i + 1] = static_cast<std::byte>(value >> 8U);
  }
}

void fill_rows(const problem& p, random_bits& random, rank_input& in) {
  const auto tokens = static_cast<std::uint64_t>(in.tokens);
  in.x.resize(tokens * p.row_bytes);
  in.scales.resize(tokens * p.scale_bytes);
  if (p.quantise == quantisation::none) {
    random.fill(in.x);
    random.fill(in.scales);
    return;
  }
  in.raw.resize(tokens * static_cast<std::uint64_t>(p.hidden) * 2);
  fill_finite(random, p.hidden, in.raw);
  reference_quantise(p.quantise, p.hidden, in.raw, in.x, in.scales);
}

}  // namespace

dispatch_mode mode_of(const run_config& config, int iteration, int lane) {
  if (!config.mixed) return config.mode;
  random_bits random{config.seed, 0x6d6f6465, routing_iteration(config, iteration),
                     static_cast<std::uint64_t>(lane)};
  return random.chance(0.5) ? dispatch_mode::counted : dispatch_mode::slotted;
}

problem problem_of(const run_config& config) {
  row_format row = config.row.row_bytes != 0 ? config.row : bf16_rows(config.hidden);
  if (config.quantise != quantisation::none) row = quantised_rows(config.hidden, config.quantise);
  const std::int64_t most =
      std::max<std::int64_t>(1, *std::max_element(config.tokens.begin(), config.tokens.end()));
  const bool slotted = config.mixed || config.mode == dispatch_mode::slotted;
  const bool counted = config.mixed || config.mode == dispatch_mode::counted;
  const auto unless_set = [](std::int64_t set, std::int64_t otherwise) {
    return set != 0 ? set : otherwise;
  };
  const std::int64_t counted_tokens = unless_set(config.counted_tokens, counted ? most : 0);
  return {.ranks = config.ranks,
          .experts = config.experts,
          .top_k = config.top_k,
          .hidden = config.hidden,
          .max_tokens = unless_set(config.max_tokens, slotted ? most : 0),
          .row_bytes = row.row_bytes,
          .scale_bytes = row.scale_bytes,
          .placement = config.placement,
          .counted_tokens = counted_tokens,
          .counted_rows = unless_set(config.counted_rows, counted_tokens * config.ranks),
          .quantise = config.quantise,
          .values = config.values,
          .returns = config.returns};
}

std::vector<std::int64_t> rooms_of(const run_config& config) {
  if (!config.landing_rows.empty()) return config.landing_rows;
  return std::vector<std::int64_t>(static_cast<std::size_t>(config.ranks),
                                   problem_of(config).counted_rows);
}

std::vector<std::byte> draw_bias(const run_config& config, int iteration, int rank,
                                 std::int64_t tokens) {
  random_bits random{config.seed, 0x62696173, static_cast<std::uint64_t>(iteration),
                     static_cast<std::uint64_t>(rank)};
  const auto count = static_cast<std::uint64_t>(tokens * config.hidden);
  std::vector<std::byte> bias(count * bytes_of(config.values));
  for (std::uint64_t i = 0; i < count; ++i) {
    reference_store(config.values, bias.data(), i, static_cast<float>(random.unit() * 8 - 4));
  }
  return bias;
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
    in.index.resize(tokens * static_cast<std::uint64_t>(p.top_k));
    in.weight.resize(in.index.size());
    random_bits random{config.seed, 0x726f7773, static_cast<std::uint64_t>(iteration),
                       static_cast<std::uint64_t>(lane), static_cast<std::uint64_t>(rank)};
    fill_rows(p, random, in);
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
