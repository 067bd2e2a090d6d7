// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The rollout view.
#include "ep_model/rollout.hpp"

#include "ep_model/simulation.hpp"
#include "ep_model/text.hpp"

namespace eptransport::model {
namespace {

struct way_of {
  const char* name;
  const wire_cost* wire;
  traffic_shape shape;
  double comms;
};

constexpr way_of ways[] = {
    {"EFA proxy, per row", &wires::efa_proxy, traffic_shape::per_row, 1},
    {"EFA proxy, per peer", &wires::efa_proxy, traffic_shape::per_peer, 1},
    {"EFA proxy, all-gather", &wires::efa_proxy, traffic_shape::all_gather, 1},
    {"EFA proxy, per node", &wires::efa_proxy, traffic_shape::per_node, 1},
    {"EFA proxy, per peer, 8 comms", &wires::efa_proxy_comms, traffic_shape::per_peer, 8},
    {"EFA proxy, per node, 8 comms", &wires::efa_proxy_comms, traffic_shape::per_node, 8},
    {"EFA by GPU, per peer", &wires::efa_gpu, traffic_shape::per_peer, 1},
    {"EFA by GPU, per node", &wires::efa_gpu, traffic_shape::per_node, 1},
    {"InfiniBand by GPU, per peer", &wires::ib_gpu, traffic_shape::per_peer, 1},
};

}  // namespace

result<std::vector<rollout_row>> rollout_of(const rollout_setting& setting) {
  const work_options& o = setting.work;
  auto c = case_of(o, true);
  if (!c) return c.error();
  std::vector<rollout_row> rows;
  const double compute = o.compute_ms * 1e6;
  const double users = static_cast<double>(o.tokens * o.ranks) *
                       static_cast<double>(setting.nodes) / static_cast<double>(o.nodes);
  const auto row = [&](const char* name, double pair) {
    const double tax = exposed_tax_ns(pair, 0, o.layers, compute, o.overlap);
    const step_cost step{.compute_ns = compute, .tax_ns = tax};
    rows.push_back(
        {name, pair, tax / 1e6, step.tokens_per_s(), step.tokens_per_s() * users, step.kept()});
  };
  row("no tax: C alone", 0);
  for (const way_of& way : ways) {
    const sim_result r = simulate({.work = c->work,
                                   .shape = way.shape,
                                   .wire = *way.wire,
                                   .comms = way.comms,
                                   .index = c->index});
    if (!r.error.empty()) return failure{errc::invalid_argument, "ep_model", r.error};
    row(way.name, r.total_ns);
  }
  return rows;
}

result<std::string> rollout_text(const rollout_setting& setting) {
  const work_options& o = setting.work;
  const auto rows = rollout_of(setting);
  if (!rows) return rows.error();
  std::string out = text(
      "decode cluster: %lld nodes of %lld GPUs, instances of EP%lld on %lld nodes, %lld tokens per "
      "rank and step\n\nassumed:\n"
      "  one model instance per %lld ranks: %lld of them, which share nothing\n"
      "  C = %.1f ms of compute per step at any batch: decoding is bound by reading weights\n"
      "  the tax is %lld x one simulated pair of calls, on the slowest rank; %.0f %% of C hides "
      "it\n"
      "  routing %s; hidden %lld, %s out and bf16 back, top-%lld of %lld\n"
      "  no prefill, no training, no weight updates, no sampling, no stragglers among "
      "instances\n\n",
      static_cast<long long>(setting.nodes), static_cast<long long>(o.ranks / o.nodes),
      static_cast<long long>(o.ranks), static_cast<long long>(o.nodes),
      static_cast<long long>(o.tokens), static_cast<long long>(o.ranks),
      static_cast<long long>(setting.nodes / o.nodes), o.compute_ms,
      static_cast<long long>(o.layers), o.overlap * 100, o.routing.c_str(),
      static_cast<long long>(o.hidden), o.format.c_str(), static_cast<long long>(o.top_k),
      static_cast<long long>(o.experts));
  out += text("%-30s %12s %10s %14s %16s %8s\n", "way", "pair us", "tax ms", "tok/s per user",
              "tok/s cluster", "vs C");
  for (const rollout_row& r : *rows) {
    out += text("%-30s %12.1f %10.2f %14.1f %16.0f %8.2f\n", r.way.c_str(), r.pair_ns / 1e3,
                r.tax_ms, r.tokens_per_user, r.tokens_per_cluster, r.against_dense);
  }
  const double published = o.compute_ms / 1.4;
  out += text(
      "\npublished: DeepEP over EFA raised the rollout throughput of 48 p5en nodes by 40 %%. No "
      "row "
      "does: every one only adds\ntax to the same C. The gain needs C + tau = C_before / 1.4 = "
      "%.1f "
      "ms. What can bring that about and is not modelled:\n"
      "  - expert parallelism shrinks C itself (each GPU reads fewer experts' weights; larger "
      "batches fit)\n"
      "  - the baseline pays for its own all-gathers, or all-reduces, inside its C\n"
      "  - prefill, and batches of hundreds of tokens, are bound by bytes, where routing sends "
      "fewer\n"
      "  - that DeepEP aggregates per node and runs several proxy threads; its EP degree, batch "
      "and "
      "baseline were not given\n",
      published);
  return out;
}

}  // namespace eptransport::model
