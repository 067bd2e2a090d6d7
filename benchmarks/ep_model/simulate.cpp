// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief `ep_model simulate`.
#include <chrono>
#include <cstdio>

#include "ep_model/rollout.hpp"
#include "ep_model/simulation.hpp"
#include "ep_model/text.hpp"

namespace eptransport::model {
namespace {

std::string call_text(const char* name, const sim_call& c, double closed) {
  return text(
      "  %-9s mean %10.1f us  p50 %10.1f  p99 %10.1f  max %10.1f   closed form %10.1f "
      "(%+.1f %% of the max)\n",
      name, c.mean_ns / 1e3, c.p50_ns / 1e3, c.p99_ns / 1e3, c.max_ns / 1e3, closed / 1e3,
      c.max_ns > 0 ? (closed / c.max_ns - 1) * 100 : 0);
}

std::string call_json(const sim_call& c, double closed) {
  return text(
      "{\"mean_ns\": %.10g, \"p50_ns\": %.10g, \"p99_ns\": %.10g, \"max_ns\": %.10g, "
      "\"closed_form_ns\": %.10g}",
      c.mean_ns, c.p50_ns, c.p99_ns, c.max_ns, closed);
}

}  // namespace

int simulate_command(const std::vector<std::string>& given) {
  work_options work;
  sim_setting setting;
  rollout_setting rollout;
  std::vector<traffic_shape> shapes{traffic_shape::per_peer};
  bool as_rollout = false;
  bool counted = false;
  double straggler_us = 0;
  double expert_us = 0;
  double rest_us = 0;
  std::string json;
  arguments options(
      "usage: ep_model simulate [OPTION...]\n\nPlays messages, proxy threads, NICs, "
      "links and relays out event by event.");
  work.add_to(options);
  options.option("--shape", "NAME|all", "shapes", shapes_from(shapes))
      .flag("--counted", "a counted dispatch", counted)
      .number("--pairs", "dispatch and combine pairs", setting.pairs, 1, 20000)
      .number("--expert-us", "compute between dispatch and combine", expert_us, 0, 1e6)
      .number("--rest-us", "compute between combine and dispatch", rest_us, 0, 1e6)
      .number("--nic-ns", "a NIC takes a message no faster", setting.nic_message_ns, 0, 1e6)
      .number("--spray-ns", "paths differ by up to this", setting.spray_ns, 0, 1e9)
      .number("--stragglers", "ranks that are late and slow", setting.stragglers, 0, 65536)
      .number("--straggler-us", "how late they begin", straggler_us, 0, 1e6)
      .number("--straggler-factor", "how much more slowly they issue", setting.straggler_factor, 1,
              1e4)
      .option("--json", "FILE|-", "JSON lines instead of text",
              [&json](const std::string& t) {
                json = t;
                return std::string();
              })
      .flag("--rollout", "a decode cluster in tokens per second", as_rollout)
      .number("--cluster-nodes", "with --rollout", rollout.nodes, 1, 1 << 20);
  if (const int status = options.parse(given); status >= 0) return status;
  const auto refuse = [](const std::string& why) {
    std::fprintf(stderr, "ep_model: %s\n", why.c_str());
    return exit_refused;
  };
  if (as_rollout) {
    rollout.work = work;
    const auto out = rollout_text(rollout);
    return out ? write_file(json.empty() ? "-" : json, *out) : refuse(out.error().detail);
  }
  auto c = case_of(work, true);
  if (!c) return refuse(c.error().detail);
  setting.work = c->work;
  setting.work.lands = counted ? landing::counted : landing::slotted;
  setting.index = std::move(c->index);
  setting.expert_ns = expert_us * 1e3;
  setting.rest_ns = rest_us * 1e3;
  setting.straggler_ns = straggler_us * 1e3;
  setting.seed = static_cast<std::uint64_t>(work.seed);
  if (!work.free_copies) setting.machine = h200;
  std::string out;
  for (const wire_cost* wire : work.wires) {
    for (const traffic_shape shape : shapes.empty() ? shapes_on(*wire, !work.no_inner) : shapes) {
      setting.wire = *wire;
      setting.shape = shape;
      setting.comms = work.comms > 0 ? static_cast<double>(work.comms) : 1;
      const auto start = std::chrono::steady_clock::now();
      const sim_result r = simulate(setting);
      const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
      if (!r.error.empty()) return refuse(std::string(name_of(shape)) + ": " + r.error);
      const priced_call p = detail::price(setting.work, c->spread, *wire, shape, setting.work.lands,
                                          setting.comms, setting.machine);
      if (json.empty()) {
        out += text(
            "%s, %s, %lld ranks on %lld nodes, %lld tokens each: %.0f messages, %.3g GB, "
            "%llu events in %.2f s\n",
            wire->name, name_of(shape), static_cast<long long>(work.ranks),
            static_cast<long long>(work.nodes), static_cast<long long>(work.tokens), r.messages,
            r.bytes / 1e9, static_cast<unsigned long long>(r.events), took.count());
        out += call_text("dispatch", r.dispatch, p.dispatch.total());
        out += call_text("combine", r.combine, p.combine.total());
        out += text(
            "  all done after %.1f us; busiest receiver %.2f x the mean; issuers busy %.0f "
            "%%, NICs %.0f %%; digest %016llx\n",
            r.total_ns / 1e3, r.busiest_in, r.issuers_busy * 100, r.nics_busy * 100,
            static_cast<unsigned long long>(r.digest));
      } else {
        out += text(
            "{\"wire\": \"%s\", \"shape\": \"%s\", \"ranks\": %lld, \"nodes\": %lld, "
            "\"tokens\": %lld, \"comms\": %g, \"messages\": %.0f, \"bytes\": %.0f, "
            "\"dispatch\": %s, \"combine\": %s, \"total_ns\": %.10g, \"incast\": %.6g, "
            "\"events\": %llu, \"wall_s\": %.3f, \"digest\": \"%016llx\"}\n",
            wire->name, name_of(shape), static_cast<long long>(work.ranks),
            static_cast<long long>(work.nodes), static_cast<long long>(work.tokens), setting.comms,
            r.messages, r.bytes, call_json(r.dispatch, p.dispatch.total()).c_str(),
            call_json(r.combine, p.combine.total()).c_str(), r.total_ns, r.busiest_in,
            static_cast<unsigned long long>(r.events), took.count(),
            static_cast<unsigned long long>(r.digest));
      }
    }
  }
  return write_file(json.empty() ? "-" : json, out);
}

}  // namespace eptransport::model
