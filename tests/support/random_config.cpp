// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Draws the fields of a run one after the other, each within what the others allow.
#include "support/random_config.hpp"

#include <algorithm>
#include <initializer_list>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "support/inputs.hpp"
#include "support/random.hpp"

namespace eptransport::support {
namespace {

/// One call of one lane may take about that long, all ranks together.
constexpr double call_budget_ns = 4e6;
/// Bytes of one rank's output where it asks for the worst case.
constexpr double output_budget = 4e6;

class generator {
 public:
  explicit generator(std::uint64_t seed) : random_{seed, 0x636f6e666967} { config_.seed = seed; }

  run_config operator()() {
    draw_group();
    draw_rows();
    draw_tokens();
    draw_values();
    draw_routing();
    draw_output();
    draw_room();
    draw_wire();
    draw_call();
    return std::move(config_);
  }

 private:
  [[nodiscard]] std::int64_t between(std::int64_t least, std::int64_t most) {
    return least +
           static_cast<std::int64_t>(random_.below(static_cast<std::uint64_t>(most - least) + 1));
  }
  [[nodiscard]] int whole(int least, int most) { return static_cast<int>(between(least, most)); }
  [[nodiscard]] bool chance(double probability) { return random_.chance(probability); }
  template <class T>
  [[nodiscard]] T any_of(std::initializer_list<T> choices) {
    return choices.begin()[random_.below(choices.size())];
  }

  void draw_group() {
    config_.ranks = chance(0.1) ? 1 : whole(2, 12);
    config_.top_k = chance(0.7) ? whole(1, 8) : whole(9, 16);
    config_.experts = chance(0.5) ? whole(1, 24) : whole(1, 600);
    config_.lanes = chance(0.3) ? 2 : 1;
    config_.iterations = whole(2, 5);
    config_.wire = any_of<const char*>({"nvlink", "ib-gpu", "efa-gpu", "efa-proxy", "tight"});
    config_.mode = any_of({dispatch_mode::slotted, dispatch_mode::counted});
    config_.mixed = chance(0.35);
    draw_placement();
  }

  void draw_placement() {
    if (chance(0.5)) return;
    const int owners = chance(0.5) ? config_.ranks : whole(1, config_.ranks);
    for (int e = 0; e < config_.experts; ++e) {
      config_.placement.push_back((whole(0, owners - 1) * 5 + 3) % config_.ranks);
    }
  }

  void draw_rows() {
    const int size = whole(0, 9);
    config_.hidden = size < 5 ? whole(1, 70) : size < 8 ? whole(71, 400) : whole(401, 3000);
    if (chance(0.2)) config_.hidden = (config_.hidden + 127) / 128 * 128;
    // One row of the wire with short messages must fit into one of them.
    if (config_.wire == "tight") config_.hidden = std::min<std::int64_t>(config_.hidden, 1500);
    switch (whole(0, 5)) {
      case 0:
        config_.row = fp8_rows(config_.hidden);
        break;
      case 1:
        config_.row = {static_cast<std::uint64_t>(whole(1, 600)),
                       static_cast<std::uint64_t>(whole(0, 40))};
        break;
      case 2:
        config_.quantise = any_of({quantisation::fp8_fp32, quantisation::fp8_ue8m0});
        break;
      default:
        break;
    }
  }

  void draw_tokens() {
    const double ranks = config_.ranks;
    const double k = config_.top_k;
    const auto hidden = static_cast<double>(config_.hidden);
    const double token_ns = ranks * (ranks * (hidden + k * 25 + ranks * k * 3) + k * hidden * 6);
    const double most = std::clamp(call_budget_ns / token_ns, 1.0, 200.0);
    const auto each = between(0, static_cast<std::int64_t>(most));
    const int how = whole(0, 5);
    config_.tokens.assign(static_cast<std::size_t>(config_.ranks), each);
    if (how == 0) config_.tokens.assign(config_.tokens.size(), 0);
    for (std::int64_t& tokens : config_.tokens) {
      if (how <= 1 || how == 5) continue;  // all alike
      tokens = chance(0.3) ? 0 : between(0, static_cast<std::int64_t>(most));
    }
    if (how <= 1) config_.tokens[random_.below(config_.tokens.size())] = between(1, 3);
    config_.vary_tokens = chance(0.4);
    const std::int64_t largest =
        std::max<std::int64_t>(1, *std::max_element(config_.tokens.begin(), config_.tokens.end()));
    const bool slotted = config_.mixed || config_.mode == dispatch_mode::slotted;
    const bool counted = config_.mixed || config_.mode == dispatch_mode::counted;
    // A group may be built for a mode that is never called, and for more tokens than come.
    if (chance(0.3) || (!slotted && chance(0.2))) config_.max_tokens = largest + between(0, 9);
    if (chance(0.3) || (!counted && chance(0.2))) config_.counted_tokens = largest + between(0, 9);
  }

  void draw_values() {
    config_.values = any_of({element::bf16, element::bf16, element::fp16, element::fp32});
    config_.returns = chance(0.4) ? element::fp32 : config_.values;
    config_.return_weights = chance(0.4);
    config_.bias = chance(0.3);
    config_.skew = chance(0.4) ? bytes_of(config_.values) * random_.below(9) : 0;
  }

  void draw_routing() {
    config_.routing = any_of<const char*>({"uniform", "uniform", "zipf:1.2", "one"});
    config_.unused = chance(0.5) ? random_.unit() * 0.6 : 0;
    if (chance(0.05)) config_.unused = 1;
    config_.duplicates = chance(0.3);
    if (chance(0.25)) {
      config_.checks = index_checks::fast;
      config_.out_of_range = random_.unit() * 0.3;
    }
    config_.indices = any_of({index_type::int32, index_type::int64});
    config_.null_weights = chance(0.15);
    config_.weights = chance(0.8) ? weighting::at_expert : weighting::none;
  }

  void draw_output() {
    config_.layout = any_of({output_layout::rank_major, output_layout::expert_major,
                             output_layout::padded, output_layout::in_place});
    config_.alignment = any_of<std::int64_t>({1, 1, 2, 7, 16, 128});
    const problem p = problem_of(config_);
    const bool padded = config_.layout == output_layout::padded;
    const double worst = static_cast<double>(most_rows(p)) * p.top_k *
                         (static_cast<double>(p.row_bytes) + static_cast<double>(p.hidden) * 4) *
                         (padded ? p.experts : 1);
    if (worst < output_budget && chance(0.3)) config_.capacity = 0;
    config_.metadata = chance(0.85);
    const bool whole_units = p.scale_bytes != 0 && p.scale_bytes % 4 == 0;
    if (whole_units && chance(0.4)) config_.scale_columns = any_of<std::int64_t>({1, 4, 16});
  }

  void draw_room() {
    const problem p = problem_of(config_);
    if (p.counted_tokens == 0) return;
    config_.landing = chance(0.4);
    if (chance(0.3)) config_.counted_rows = p.counted_rows + between(0, 20);
    if (chance(0.25)) config_.overflow = overflow_policy::drop;
    // Too little room, and mostly the right to drop what does not fit.
    if (chance(config_.overflow == overflow_policy::drop ? 0.7 : 0.04)) {
      config_.counted_rows = between(1, p.counted_rows);
    }
    if (!chance(0.3)) return;
    const std::int64_t most = problem_of(config_).counted_rows;
    const bool tight = config_.overflow == overflow_policy::drop;
    for (int rank = 0; rank < config_.ranks; ++rank) {
      config_.landing_rows.push_back(tight ? between(1, most) : most);
    }
  }

  void draw_wire() {
    const bool nvlink = config_.wire == "nvlink";
    config_.message =
        any_of({message_shape::automatic, message_shape::per_row, message_shape::per_peer});
    if (nvlink && chance(0.4)) config_.message = message_shape::direct;
    config_.signals = any_of({signal_words::automatic, signal_words::summed});
    if (config_.wire != "tight" && chance(0.3)) config_.signals = signal_words::per_source;
    const bool by_token =
        config_.layout == output_layout::rank_major || config_.layout == output_layout::in_place;
    const bool counted = config_.mixed || config_.mode == dispatch_mode::counted;
    if (nvlink && by_token && counted && chance(0.5)) config_.transfer = combine_transfer::pull;
    config_.order = chance(0.8) ? delivery::shuffled : delivery::immediate;
    config_.max_chunks = static_cast<std::uint32_t>(whole(1, 6));
    config_.max_delay_ns = chance(0.3) ? random_.below(200'000) : 0;
    config_.workers = static_cast<std::uint32_t>(chance(0.5) ? 1 : whole(2, 3));
    config_.channels = static_cast<std::uint32_t>(whole(1, 3));
    config_.queue_depth = chance(0.2) ? static_cast<std::uint32_t>(whole(1, 4)) : 0;
    config_.counter_start = any_of<std::uint64_t>(
        {0, 0, 0xFFFF'FFFF'FFFF'FFFEU, 0xFFFF'FFFDU, 0x7FFF'FFFF'FFFF'FFFFU, random_()});
    if (chance(0.3)) {
      for (int rank = 0; rank < config_.ranks; ++rank) config_.nodes.push_back(whole(0, 3));
    }
    config_.window_offset = chance(0.3) ? 128 * random_.below(20) : 0;
    // The wire with few words has none to spare.
    const bool spare = config_.wire != "tight" && chance(0.3);
    config_.first_signal = spare ? static_cast<std::uint32_t>(random_.below(9)) : 0;
  }

  void draw_call() {
    config_.device_tokens = chance(0.3);
    config_.split = chance(0.5);
    config_.cached = chance(0.3);
    config_.combines = chance(0.15) ? (chance(0.5) ? 0 : 2) : 1;
    config_.max_sms = chance(0.1) ? 1 : 0;
    config_.pauses = chance(0.5);
  }

  random_bits random_;
  run_config config_;
};

/// `name=value `, in one line.
class line {
 public:
  line& add(const char* name, const std::string& value) {
    text_ += (text_.empty() ? "" : " ") + std::string(name) + "=" + value;
    return *this;
  }
  line& add(const char* name, double value) { return add(name, std::to_string(value)); }
  template <class T>
  line& add(const char* name, T value) {
    if constexpr (std::is_enum_v<T>) {
      return add(name, std::to_string(static_cast<int>(value)));
    } else {
      return add(name, std::to_string(value));
    }
  }
  template <class T>
  line& list(const char* name, const std::vector<T>& values) {
    std::string all;
    for (std::size_t i = 0; i < std::min(values.size(), shown); ++i) {
      all += (all.empty() ? "" : ",") + std::to_string(values[i]);
    }
    if (values.size() > shown) all += ",.. of " + std::to_string(values.size());
    return add(name, "[" + all + "]");
  }
  [[nodiscard]] const std::string& text() const { return text_; }

 private:
  static constexpr std::size_t shown = 24;
  std::string text_;
};

}  // namespace

run_config draw_config(std::uint64_t seed) {
  return generator(seed)();
}

std::string describe(const run_config& c) {
  line out;
  out.add("wire", c.wire).add("ranks", c.ranks).list("tokens", c.tokens);
  out.add("vary_tokens", c.vary_tokens).add("max_tokens", c.max_tokens).add("hidden", c.hidden);
  out.add("top_k", c.top_k).add("experts", c.experts).list("placement", c.placement);
  out.add("row_bytes", c.row.row_bytes).add("scale_bytes", c.row.scale_bytes);
  out.add("message", c.message).add("signals", c.signals).add("indices", c.indices);
  out.add("checks", c.checks).add("mode", c.mode).add("mixed", c.mixed).add("lanes", c.lanes);
  out.add("counted_tokens", c.counted_tokens).add("counted_rows", c.counted_rows);
  out.add("overflow", c.overflow).add("quantise", c.quantise).add("values", c.values);
  out.add("returns", c.returns).add("return_weights", c.return_weights).add("layout", c.layout);
  out.add("alignment", c.alignment).add("capacity", c.capacity).add("metadata", c.metadata);
  out.add("weights", c.weights).add("null_weights", c.null_weights);
  out.add("device_tokens", c.device_tokens).add("landing", c.landing);
  out.list("landing_rows", c.landing_rows).add("scale_columns", c.scale_columns);
  out.add("transfer", c.transfer).add("bias", c.bias).add("split", c.split);
  out.add("cached", c.cached).add("combines", c.combines).add("max_sms", c.max_sms);
  out.add("skew", c.skew).add("window_offset", c.window_offset).add("first_signal", c.first_signal);
  out.add("iterations", c.iterations).add("seed", c.seed).add("routing", c.routing);
  out.add("unused", c.unused).add("out_of_range", c.out_of_range).add("duplicates", c.duplicates);
  out.add("schedule", c.schedule).add("order", c.order).add("workers", c.workers);
  out.add("channels", c.channels).add("max_chunks", c.max_chunks);
  out.add("counter_start", c.counter_start).add("max_delay_ns", c.max_delay_ns);
  out.add("queue_depth", c.queue_depth).list("nodes", c.nodes).add("pauses", c.pauses);
  return out.text();
}

}  // namespace eptransport::support
