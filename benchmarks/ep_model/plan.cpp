// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief `ep_model plan`.
#include "ep_model/plan.hpp"

#include <algorithm>
#include <cstdio>

#include "ep_model/text.hpp"

namespace eptransport::model {
namespace {

/// A pair of calls, copies free: what the wires alone make of it.
double pair_ns(const model_case& c, const wire_cost& wire, traffic_shape shape, double comms) {
  double sum = 0;
  for (const direction way : {direction::dispatch, direction::combine}) {
    sum += call_budget(c.work, c.spread, shape, way, wire, {.comms = comms}).total();
  }
  return sum;
}

lever of_issue_rate(const model_case& c, wire_cost wire) {
  lever out{.name = "issue rate"};
  const double given = wire.issue_ns.value;
  double low = 0;
  double high = given;
  const auto cheaper = [&](double ns) {
    wire.issue_ns.value = ns;
    return pair_ns(c, wire, traffic_shape::per_peer, 1) <=
           pair_ns(c, wire, traffic_shape::all_gather, 1);
  };
  out.flips = cheaper(0) || cheaper(given);
  for (int i = 0; i < 60 && out.flips; ++i) {
    const double middle = (low + high) / 2;
    (cheaper(middle) ? low : high) = middle;
  }
  if (out.flips) out.value = 1e3 / std::max(low, 1e-9);
  wire.issue_ns.value = out.flips ? low : 0;
  out.dispatch_ns = pair_ns(c, wire, traffic_shape::per_peer, 1);
  out.all_gather_ns = pair_ns(c, wire, traffic_shape::all_gather, 1);
  out.remark = out.flips ? text("from %.3g M messages/s on, %.0f x the %.3g M of this wire",
                                out.value, given / std::max(low, 1e-9), 1e3 / given)
                         : "no rate: the bytes and stores of all-gather cost less";
  return out;
}

lever of_comms(const model_case& c, wire_cost wire, double serial_share, const char* name) {
  lever out{.name = name};
  wire.serial_share.value = serial_share;
  wire.max_issuers.value = 64;
  for (double k = 1; k <= 64; ++k) {
    out.dispatch_ns = pair_ns(c, wire, traffic_shape::per_peer, k);
    // All-gather keeps one comm: it has a message or two.
    out.all_gather_ns = pair_ns(c, wire, traffic_shape::all_gather, 1);
    if (out.dispatch_ns > out.all_gather_ns) continue;
    out.flips = true;
    out.value = k;
    out.remark = text("from K = %.0f on", k);
    return out;
  }
  out.remark = serial_share > 0
                   ? text("no K up to 64: they slow each other, %.1f x at best", 1 / serial_share)
                   : "no K up to 64";
  return out;
}

lever of_shape(const model_case& c, const wire_cost& wire, traffic_shape shape, const char* name,
               const char* yes, const char* no) {
  lever out{.name = name};
  out.dispatch_ns = pair_ns(c, wire, shape, 1);
  out.all_gather_ns = pair_ns(c, wire, traffic_shape::all_gather, 1);
  out.flips = out.dispatch_ns <= out.all_gather_ns;
  out.remark = out.flips ? yes : no;
  return out;
}

lever of_tokens(model_case c, const wire_cost& wire) {
  lever out{.name = "tokens per rank"};
  for (std::int64_t t = std::max<std::int64_t>(c.work.routed.tokens, 1); t <= 1 << 20;
       t += t / 16 + 1) {
    c.work.routed.tokens = t;
    c.spread = uniform_spread(c.work.routed);
    out.dispatch_ns = pair_ns(c, wire, traffic_shape::per_peer, 1);
    out.all_gather_ns = pair_ns(c, wire, traffic_shape::all_gather, 1);
    out.value = static_cast<double>(t);
    if (out.dispatch_ns > out.all_gather_ns) continue;
    out.flips = true;
    out.remark = text("from about %.0f tokens per rank on (uniform routing)", out.value);
    return out;
  }
  out.value = 0;
  out.remark = "no number of tokens (uniform routing)";
  return out;
}

}  // namespace

std::vector<lever> levers_of(const model_case& c, const wire_cost& wire) {
  std::vector<lever> out;
  out.push_back(of_issue_rate(c, wire));
  out.push_back(
      of_comms(c, wire, wires::efa_proxy_comms.serial_share.value, "K comms, scaling as measured"));
  out.push_back(of_comms(c, wire, 0, "K comms, scaling perfectly"));
  wire_cost eager = wire;
  eager.eager_bytes = wires::efa_proxy_comms.eager_bytes;
  out.push_back(of_shape(c, eager, traffic_shape::grouped, "eager grouping per peer",
                         "grouped rows are cheaper",
                         "no: it takes rows per message up, but one message per peer is left"));
  out.push_back(of_shape(c, wire, traffic_shape::per_node, "one message per node",
                         "yes: as many messages as all-gather has, and fewer bytes",
                         "no: all-gather has as many messages and no header"));
  lever gpu = of_shape(c, wires::efa_gpu, traffic_shape::per_peer, "GPU posting, of both", "yes",
                       "no: all-gather gains as well, and has fewer messages");
  out.push_back(gpu);
  gpu.name = "GPU posting, of dispatch only";
  gpu.all_gather_ns = pair_ns(c, wire, traffic_shape::all_gather, 1);
  gpu.flips = gpu.dispatch_ns <= gpu.all_gather_ns;
  gpu.remark = gpu.flips ? "yes: against an all-gather that stays behind the proxy" : "no";
  out.push_back(gpu);
  out.push_back(of_tokens(c, wire));
  return out;
}

std::string levers_text(const model_case& c, const wire_cost& wire) {
  const double ours = pair_ns(c, wire, traffic_shape::per_peer, 1);
  const double theirs = pair_ns(c, wire, traffic_shape::all_gather, 1);
  std::string out =
      text("%s, a pair of calls: dispatch per peer %.1f us, all-gather %.1f us: %s is cheaper\n",
           wire.name, ours / 1e3, theirs / 1e3, ours <= theirs ? "dispatch" : "all-gather");
  out += "all-gather: one message per remote node from each rank, NVLink inside the nodes\n";
  out += text("%-32s %-6s %12s %12s  %s\n", "lever, alone", "flips", "dispatch us", "gather us",
              "where");
  for (const lever& l : levers_of(c, wire)) {
    out += text("%-32s %-6s %12.1f %12.1f  %s\n", l.name.c_str(), l.flips ? "yes" : "no",
                l.dispatch_ns / 1e3, l.all_gather_ns / 1e3, l.remark.c_str());
  }
  return out;
}

int plan_command(const std::vector<std::string>& given) {
  work_options work;
  bool levers = false;
  arguments options(
      "usage: ep_model plan [OPTION...]\n\nThe defaults are the published work: EP16 "
      "on two p5en, Qwen3-30B-A3B, two tokens per rank.");
  work.add_to(options);
  options.flag("--levers", "what, alone, would turn dispatch against all-gather", levers);
  if (const int status = options.parse(given); status >= 0) return status;
  const auto c = case_of(work, false);
  if (!c) {
    std::fprintf(stderr, "ep_model: %s\n", c.error().detail.c_str());
    return exit_refused;
  }
  std::string out;
  for (const wire_cost* wire : work.wires) {
    if (levers) {
      out += levers_text(*c, *wire) + "\n";
      continue;
    }
    const call_plan plan = plan_call(c->work, c->spread, *wire, limits_of(work, *wire));
    out += reasons_of(plan, *wire);
    const step_cost step{
        .compute_ns = work.compute_ms * 1e6,
        .tax_ns = exposed_tax_ns(plan.best.dispatch.total(), plan.best.combine.total(), work.layers,
                                 work.compute_ms * 1e6, work.overlap)};
    out += text(
        "step: %.1f ms of compute, %.2f ms of tax: %.1f tokens/s per user, %.2f of the "
        "speed without it\n\n",
        step.compute_ns / 1e6, step.tax_ns / 1e6, step.tokens_per_s(), step.kept());
  }
  return write_file("-", out);
}

}  // namespace eptransport::model
