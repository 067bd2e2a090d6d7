// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The routing generators.
#include "support/routing.hpp"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <numeric>
#include <string_view>
#include <utility>

#include "support/npy.hpp"
#include "support/random.hpp"

namespace eptransport::support {
namespace {

failure refuse(const std::string& why) {
  return {errc::invalid_argument, "routing", why};
}

/// Distinct choices with the given shares (empty: equal), by exponential races: the k smallest of
/// -log(u) / share are a draw without replacement.
void draw_distinct(random_bits& random, std::span<const double> share, int experts,
                   std::span<std::int64_t> index) {
  std::vector<std::pair<double, std::int64_t>> race;
  for (int e = 0; e < experts; ++e) {
    const double u = 1.0 - random.unit();
    const double weight = share.empty() ? 1.0 : share[static_cast<std::size_t>(e)];
    race.emplace_back(-std::log(u) / weight, e);
  }
  const auto k = static_cast<std::ptrdiff_t>(index.size());
  std::partial_sort(race.begin(), race.begin() + k, race.end());
  for (std::size_t j = 0; j < index.size(); ++j) index[j] = race[j].second;
}

/// Equal shares, few choices: Floyd's way draws k distinct numbers with k random ones.
void draw_uniform(random_bits& random, int experts, std::span<std::int64_t> index) {
  const auto k = static_cast<int>(index.size());
  for (int j = 0; j < k; ++j) {
    const int top = experts - k + j;
    const auto pick = static_cast<std::int64_t>(random.below(static_cast<std::uint64_t>(top) + 1));
    const auto done = index.begin() + j;
    index[static_cast<std::size_t>(j)] = std::find(index.begin(), done, pick) == done ? pick : top;
  }
  for (int j = k - 1; j > 0; --j) {
    const auto with = random.below(static_cast<std::uint64_t>(j) + 1);
    std::swap(index[static_cast<std::size_t>(j)], index[with]);
  }
}

std::int64_t draw_one(random_bits& random, std::span<const double> share, int experts) {
  if (share.empty())
    return static_cast<std::int64_t>(random.below(static_cast<std::uint64_t>(experts)));
  double left = random.unit() * std::accumulate(share.begin(), share.end(), 0.0);
  for (int e = 0; e + 1 < experts; ++e) {
    left -= share[static_cast<std::size_t>(e)];
    if (left < 0) return e;
  }
  return experts - 1;
}

/// Alternates between weights whose sums hit rounding ties and weights of full precision.
float draw_weight(random_bits& random) {
  const std::uint64_t bits = random();
  const float sign = (bits & 0xFU) == 0 ? -1.0F : 1.0F;
  if ((bits & 0x10U) != 0) return sign * static_cast<float>((bits >> 8U) % 33) / 16.0F;
  return sign * static_cast<float>(bits >> 40U) * 0x1p-24F;
}

/// The weights of one token. Every eighth token has two large ones that are opposite: where the two
/// experts' values are equal they cancel, and what is left shows the order of the sum, and whether
/// a product was rounded before it was added.
void draw_weights(random_bits& random, std::span<float> weights) {
  for (float& weight : weights) weight = draw_weight(random);
  const std::uint64_t k = weights.size();
  if (k < 3 || !random.chance(0.125)) return;
  const std::uint64_t first = random.below(k);
  const std::uint64_t second = (first + 1 + random.below(k - 1)) % k;
  weights[first] = static_cast<float>((1U << 23U) + random.below(1U << 23U)) * 2.0F;
  weights[second] = -weights[first];
}

}  // namespace

const char* router::help() noexcept {
  return "uniform                 k distinct experts, all alike\n"
         "zipf:S                  k distinct experts, popularity 1/rank^S\n"
         "one                     every token names expert 0 once\n"
         "trace:PREFIX[:LAYER]    PREFIX_idx.npy and PREFIX_weights.npy, layer 0 unless said\n";
}

result<router> router::create(const routing_options& options) {
  router made;
  made.options_ = options;
  const std::string_view text = options.kind;
  const std::string rest(text.substr(std::min(text.size(), text.find(':') + 1)));
  if (text == "uniform") return made;
  if (text == "one") {
    made.kind_ = kind::one;
    return made;
  }
  if (text.starts_with("zipf:")) {
    made.kind_ = kind::zipf;
    char* end = nullptr;
    const double exponent = std::strtod(rest.c_str(), &end);
    if (rest.empty() || *end != '\0' || !(exponent >= 0) || exponent > 16) {
      return refuse("zipf:S needs a number from 0 to 16, got '" + rest + "'");
    }
    for (int e = 1; e <= options.experts; ++e) made.share_.push_back(std::pow(e, -exponent));
    return made;
  }
  if (text.starts_with("trace:") && !rest.empty()) {
    made.kind_ = kind::trace;
    std::string prefix = rest;
    std::int64_t layer = 0;
    const std::size_t colon = rest.rfind(':');
    if (colon != std::string::npos && colon + 1 < rest.size() &&
        rest.find_first_not_of("0123456789", colon + 1) == std::string::npos) {
      prefix = rest.substr(0, colon);
      layer = std::strtoll(rest.c_str() + colon + 1, nullptr, 10);
    }
    auto data = load(prefix, layer, options);
    if (!data) return data.error();
    made.trace_ = *data;
    return made;
  }
  return refuse("'" + options.kind + "' is not one of:\n" + help());
}

result<std::shared_ptr<const router::trace_data>> router::load(const std::string& prefix,
                                                               std::int64_t layer,
                                                               const routing_options& options) {
  auto index = read_npy(prefix + "_idx.npy");
  if (!index) return index.error();
  auto weight = read_npy(prefix + "_weights.npy");
  if (!weight) return weight.error();
  if (index->type != "<i2" || weight->type != "<f2" || index->shape.size() != 3 ||
      index->shape != weight->shape) {
    return refuse(prefix +
                  ": needs int16 indices and fp16 weights of one shape [layers, tokens, k]");
  }
  const std::int64_t layers = index->shape[0];
  const std::int64_t width = index->shape[2];
  if (layer >= layers || index->shape[1] < 1) {
    return refuse(prefix + ": layer " + std::to_string(layer) + " of " + std::to_string(layers));
  }
  if (width < options.top_k) {
    return refuse(prefix + ": has " + std::to_string(width) + " choices per token, " +
                  std::to_string(options.top_k) + " are wanted");
  }
  auto data = std::make_shared<trace_data>();
  data->tokens = index->shape[1];
  for (std::int64_t token = 0; token < data->tokens; ++token) {
    for (int j = 0; j < options.top_k; ++j) {
      const auto at = static_cast<std::size_t>((layer * data->tokens + token) * width + j);
      const auto expert = static_cast<std::int16_t>(index->values[at]);
      if (expert < -1 || expert >= options.experts) {
        return refuse(prefix + ": names expert " + std::to_string(expert) + ", there are " +
                      std::to_string(options.experts));
      }
      data->index.push_back(expert);
      data->weight.push_back(half_to_float(weight->values[at]));
    }
  }
  return std::shared_ptr<const trace_data>(std::move(data));
}

void router::draw(const token_slice& slice, std::span<std::int64_t> index,
                  std::span<float> weight) const {
  const auto k = static_cast<std::size_t>(options_.top_k);
  random_bits random{options_.seed, 0x726f757465, slice.iteration,
                     static_cast<std::uint64_t>(slice.rank)};
  const bool distinct = !options_.duplicates && options_.top_k <= options_.experts;
  for (std::int64_t token = 0; token < slice.tokens; ++token) {
    const std::size_t at = static_cast<std::size_t>(token) * k;
    const std::span<std::int64_t> choices = index.subspan(at, k);
    draw_weights(random, weight.subspan(at, k));
    if (kind_ == kind::trace) {
      const std::uint64_t line = options_.seed * 977 +
                                 slice.iteration * static_cast<std::uint64_t>(slice.all) +
                                 static_cast<std::uint64_t>(slice.first + token);
      const std::size_t from = line % static_cast<std::uint64_t>(trace_->tokens) * k;
      for (std::size_t j = 0; j < k; ++j) {
        choices[j] = trace_->index[from + j];
        weight[at + j] = trace_->weight[from + j];
      }
    } else if (kind_ == kind::one) {
      for (std::size_t j = 0; j < k; ++j) choices[j] = j == 0 || options_.duplicates ? 0 : -1;
    } else if (!distinct) {
      for (std::int64_t& choice : choices) choice = draw_one(random, share_, options_.experts);
    } else if (kind_ == kind::uniform) {
      draw_uniform(random, options_.experts, choices);
    } else {
      draw_distinct(random, share_, options_.experts, choices);
    }
    for (std::int64_t& choice : choices) {
      if (random.chance(options_.unused)) choice = -1;
      if (random.chance(options_.out_of_range)) {
        choice = (random() & 1U) != 0
                     ? options_.experts + static_cast<std::int64_t>(random.below(1000))
                     : -2 - static_cast<std::int64_t>(random.below(1000));
      }
    }
  }
}

}  // namespace eptransport::support
