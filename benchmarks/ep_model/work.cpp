// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief From options to work.
#include "ep_model/work.hpp"

#include <algorithm>
#include <cmath>

#include "ep_model/simulation.hpp"
#include "ep_model/text.hpp"
#include "support/routing.hpp"

namespace eptransport::model {
namespace {

constexpr std::int64_t many = 1 << 24;

failure refuse(std::string detail) {
  return {errc::invalid_argument, "ep_model", std::move(detail)};
}

std::string choose_wires(const std::string& text, std::vector<const wire_cost*>& to) {
  std::string names;
  std::vector<const wire_cost*> found;
  for (const wire_cost* wire : wires::all) {
    names += std::string(", ") + wire->name;
    if (text == "all" || text == wire->name) found.push_back(wire);
  }
  if (found.empty()) return "expected all" + names;
  to = found;
  return {};
}

/// The experts of all tokens of one call.
result<std::vector<std::int64_t>> draw(const work_options& o, const routed_work& w) {
  const auto router = support::router::create({.kind = o.routing,
                                               .experts = static_cast<int>(w.experts),
                                               .top_k = static_cast<int>(w.top_k),
                                               .seed = static_cast<std::uint64_t>(o.seed)});
  if (!router) return refuse("--routing: " + router.error().detail);
  std::vector<std::int64_t> index(static_cast<std::size_t>(w.ranks * w.tokens * w.top_k));
  std::vector<float> weight(static_cast<std::size_t>(w.tokens * w.top_k));
  for (std::int64_t r = 0; r < w.ranks; ++r) {
    const std::span<std::int64_t> own(index.data() + r * w.tokens * w.top_k, weight.size());
    router->draw({.iteration = 0,
                  .rank = static_cast<int>(r),
                  .first = r * w.tokens,
                  .all = w.ranks * w.tokens,
                  .tokens = w.tokens},
                 own, weight);
  }
  return index;
}

}  // namespace

void work_options::add_to(arguments& options) {
  options.number("--ranks", "ranks R", ranks, 1, 65536)
      .number("--nodes", "nodes N", nodes, 1, 65536)
      .number("--tokens", "tokens T of each rank and step", tokens, 0, many)
      .number("--topk", "experts k per token", top_k, 1, 1 << 16)
      .number("--experts", "experts E of all ranks", experts, 1, many)
      .number("--hidden", "values of a row", hidden, 1, many)
      .number("--layers", "MoE layers of a step", layers, 1, 10000)
      .option("--format", "bf16|fp8", "dispatched rows; fp8: with a scale per 128 values",
              [this](const std::string& t) {
                format = t;
                return t == "bf16" || t == "fp8" ? std::string() : "expected bf16 or fp8";
              })
      .option("--routing", "KIND", "uniform, zipf:S, one, or trace:PREFIX[:LAYER]",
              [this](const std::string& t) {
                routing = t;
                return std::string();
              })
      .number("--seed", "of what is drawn", seed, 0, many)
      .option("--wire", "NAME|all", "the wire",
              [this](const std::string& t) { return choose_wires(t, wires); })
      .number("--comms", "issuers K; 0: the planner's choice", comms, 0, 256)
      .number("--compute-ms", "compute C of a step", compute_ms, 0, 1e6)
      .number("--overlap", "share of C that runs while calls are under way", overlap, 0, 1)
      .flag("--no-inner", "ranks of a node do not reach each other's memory", no_inner)
      .flag("--free-copies", "packing costs nothing, as in the simulator", free_copies);
}

result<model_case> case_of(const work_options& o, bool with_index) {
  model_case out;
  if (o.nodes > o.ranks) {
    return refuse("--nodes " + std::to_string(o.nodes) + " is more than --ranks " +
                  std::to_string(o.ranks));
  }
  if (o.top_k > o.experts) {
    return refuse("--topk " + std::to_string(o.top_k) + " is more than --experts " +
                  std::to_string(o.experts));
  }
  if (o.ranks * std::max<std::int64_t>(o.tokens, 1) > std::int64_t{1} << 28) {
    return refuse("--ranks times --tokens must be at most 2^28");
  }
  const bool fp8 = o.format == "fp8";
  out.work = {.routed = {.tokens = o.tokens,
                         .top_k = o.top_k,
                         .ranks = o.ranks,
                         .nodes = o.nodes,
                         .experts = o.experts},
              .row_bytes = o.hidden * (fp8 ? 1 : 2),
              .scale_bytes = fp8 ? (o.hidden + 127) / 128 * 4 : 0,
              .return_bytes = o.hidden * 2,
              .layers = o.layers};
  const routed_work& w = out.work.routed;
  const bool uniform = o.routing == "uniform";
  const bool zipf = o.routing.rfind("zipf:", 0) == 0;
  if (with_index || !(uniform || zipf)) {
    auto index = draw(o, w);
    if (!index) return index.error();
    out.index = std::move(*index);
  }
  if (uniform) {
    out.spread = uniform_spread(w);
  } else if (!out.index.empty() || o.tokens == 0) {
    out.spread = traced_spread(w, out.index);
  } else {
    auto index = draw(o, w);  // which experts are popular is the router's secret
    if (!index) return index.error();
    out.spread = traced_spread(w, *index);
  }
  return out;
}

plan_limits limits_of(const work_options& o, const wire_cost& wire) {
  plan_limits limits;
  limits.direct = wire.load_store;
  limits.per_row = !wire.load_store;
  limits.per_peer = !wire.load_store;
  limits.per_node = !o.no_inner && !wire.load_store && o.nodes > 1 && o.ranks % o.nodes == 0;
  limits.grouped = wire.eager_bytes.value > 0;
  limits.max_comms = o.comms > 0 ? static_cast<double>(o.comms) : wire.max_issuers.value;
  limits.compute_ns = o.overlap > 0 ? o.compute_ms * 1e6 * o.overlap : 0;
  if (o.free_copies) limits.machine = {};
  return limits;
}

std::vector<traffic_shape> shapes_on(const wire_cost& wire, bool inner) {
  if (wire.load_store) return {traffic_shape::direct, traffic_shape::all_gather};
  std::vector<traffic_shape> out{traffic_shape::per_row, traffic_shape::per_peer};
  if (wire.eager_bytes.value > 0) out.push_back(traffic_shape::grouped);
  if (inner) out.push_back(traffic_shape::per_node);
  out.push_back(traffic_shape::all_gather);
  return out;
}

arguments::setter shapes_from(std::vector<traffic_shape>& to) {
  return [&to](const std::string& value) {
    std::string names;
    to.clear();
    for (int i = 0; i <= static_cast<int>(traffic_shape::all_gather); ++i) {
      const auto shape = static_cast<traffic_shape>(i);
      names += std::string(", ") + name_of(shape);
      if (value == name_of(shape)) to.push_back(shape);
    }
    if (value == "all") return std::string();
    return to.empty() ? "expected all" + names : std::string();
  };
}

}  // namespace eptransport::model
