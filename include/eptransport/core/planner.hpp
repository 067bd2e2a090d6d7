// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Chooses mode, message shape, lanes, comms and SMs for a work on a wire, and says why.
///
/// It prices every candidate with the cost model and takes the cheapest; among those within
/// `tie` of it the one with the fewest comms, then the fewest messages, because threads and
/// messages cost what the model does not see. The only place where such a choice is made.
#pragma once

#include <eptransport/core/config.hpp>
#include <eptransport/core/cost_model.hpp>
#include <eptransport/core/routing_spread.hpp>
#include <eptransport/core/wire_costs.hpp>

#include <algorithm>
#include <cstdint>
#include <string>

namespace eptransport {

/// What may be chosen.
struct plan_limits {
  bool direct = false;  ///< rows may be stored through pointers
  bool per_row = true;
  bool per_peer = true;
  bool per_node = false;    ///< there is a wire inside the node, and relays on it
  bool grouped = false;     ///< the transport groups eager messages
  bool all_gather = false;  ///< the caller can take every token of every rank
  bool slotted = true;
  bool counted = true;
  double max_comms = 1;     ///< K that the transport can open
  double window_bytes = 0;  ///< that a slotted landing zone may take; 0 = any
  double compute_ns = 0;    ///< C, of all layers; 0 = unknown
  machine_cost machine = h200;

  [[nodiscard]] constexpr bool allows(traffic_shape shape) const noexcept {
    const bool allowed[] = {direct, per_row, per_peer, per_node, grouped, all_gather};
    return allowed[static_cast<int>(shape)];
  }
};

/// A candidate and its price.
struct priced_call {
  traffic_shape shape = traffic_shape::per_peer;
  landing lands = landing::slotted;
  double comms = 1;
  double messages = 0;  ///< of both calls
  stage_budget dispatch{};
  stage_budget combine{};
  bool valid = false;

  /// Of a pair of calls.
  [[nodiscard]] constexpr double total_ns() const noexcept {
    return dispatch.total() + combine.total();
  }
};

/// The choice, and what it was chosen against.
struct call_plan {
  priced_call best{};
  priced_call second{};      ///< the cheapest with another shape, if any was allowed
  priced_call all_gather{};  ///< for comparison, allowed or not, with NVLink inside the nodes
  int lanes = 1;             ///< 2 where a second batch can use the time that one waits
  int sms = 0;               ///< that keep the wire busy; 0 = unknown
};

namespace detail {

/// Candidates whose prices differ by less are equal.
inline constexpr double plan_tie = 0.02;

/// Prices one candidate.
[[nodiscard]] constexpr priced_call price(moe_work w, const routing_spread& s,
                                          const wire_cost& wire, traffic_shape shape, landing lands,
                                          double comms, const machine_cost& machine,
                                          bool inner = true) {
  w.lands = lands;
  const wire_use use{.comms = comms, .inner = inner, .machine = machine};
  priced_call p{.shape = shape, .lands = lands, .comms = comms, .valid = true};
  for (const direction way : {direction::dispatch, direction::combine}) {
    const stage_budget b = call_budget(w, s, shape, way, wire, use);
    (way == direction::dispatch ? p.dispatch : p.combine) = b;
    p.messages += traffic_of(w, s, shape, way, wire, inner).messages;
  }
  if (lands == landing::counted) p.messages += count_traffic(w, shape).messages;
  return p;
}

/// Whether `a` is to be taken rather than `b`.
[[nodiscard]] constexpr bool better(const priced_call& a, const priced_call& b) noexcept {
  if (!a.valid || !b.valid) return a.valid;
  const double x = a.total_ns();
  const double y = b.total_ns();
  if (x < y * (1 - plan_tie) || y < x * (1 - plan_tie)) return x < y;
  if (a.comms != b.comms) return a.comms < b.comms;
  if (a.messages != b.messages) return a.messages < b.messages;
  return x < y;
}

/// Bytes of a slotted landing zone of one lane.
[[nodiscard]] constexpr double landing_bytes(const moe_work& w) noexcept {
  return 2 * static_cast<double>(w.routed.ranks) *
         (header_bytes + static_cast<double>(w.routed.tokens) * w.slot_bytes());
}

}  // namespace detail

/// Chooses. `limits` must allow at least one shape and one mode.
[[nodiscard]] constexpr call_plan plan_call(const moe_work& w, const routing_spread& s,
                                            const wire_cost& wire, const plan_limits& limits) {
  constexpr traffic_shape shapes[] = {traffic_shape::direct,   traffic_shape::per_row,
                                      traffic_shape::per_peer, traffic_shape::per_node,
                                      traffic_shape::grouped,  traffic_shape::all_gather};
  call_plan plan;
  const double most = std::max(1.0, std::min(limits.max_comms, wire.max_issuers.value));
  const bool fits = limits.window_bytes <= 0 || detail::landing_bytes(w) <= limits.window_bytes;
  // `better` is no order (ties do not chain), so the cheapest is found first.
  double least = -1;
  for (const bool find_tie : {false, true}) {
    for (const traffic_shape shape : shapes) {
      for (const landing lands : {landing::slotted, landing::counted}) {
        const bool slotted = lands == landing::slotted;
        const bool possible = slotted ? limits.slotted && (fits || !limits.counted)
                                      : limits.counted && shape != traffic_shape::all_gather;
        if (!possible || !limits.allows(shape)) continue;
        for (double comms = 1; comms <= most; comms *= 2) {
          const priced_call p =
              detail::price(w, s, wire, shape, lands, comms, limits.machine, limits.per_node);
          if (!find_tie) {
            if (least < 0 || p.total_ns() < least) least = p.total_ns();
          } else if (p.total_ns() <= least * (1 + detail::plan_tie)) {
            const bool fewer = p.comms < plan.best.comms ||
                               (p.comms == plan.best.comms && p.messages < plan.best.messages);
            if (!plan.best.valid || fewer) plan.best = p;
          }
        }
      }
    }
  }
  for (const traffic_shape shape : shapes) {
    if (shape == plan.best.shape || !limits.allows(shape)) continue;
    const priced_call p = detail::price(w, s, wire, shape, plan.best.lands, plan.best.comms,
                                        limits.machine, limits.per_node);
    if (detail::better(p, plan.second)) plan.second = p;
  }
  plan.all_gather = detail::price(w, s, wire, traffic_shape::all_gather, landing::slotted,
                                  plan.best.comms, limits.machine);
  const stage_budget& d = plan.best.dispatch;
  const double waiting = d.total() - d.pack - d.unpack;
  const double step = plan.best.total_ns() * static_cast<double>(w.layers);
  plan.lanes = waiting > d.total() / 2 && limits.compute_ns > 0.1 * step ? 2 : 1;
  const double ranks_on_node =
      static_cast<double>(w.routed.ranks) / static_cast<double>(w.routed.nodes);
  const double rate = links_of(wire, plan.best.comms, ranks_on_node).all();
  const double one = limits.machine.sm_bytes_per_s.value;
  if (rate > 0 && one > 0) plan.sms = static_cast<int>(rate / one) + 1;
  return plan;
}

namespace detail {

/// Microseconds with one digit.
[[nodiscard]] inline std::string microseconds(double ns) {
  const auto tenths = static_cast<std::int64_t>(std::min(ns / 100 + 0.5, 0x1p62));
  return std::to_string(tenths / 10) + "." + std::to_string(tenths % 10) + " us";
}

/// The stage that takes longest.
[[nodiscard]] inline std::string longest_stage(const stage_budget& b) {
  const double ns[] = {b.pack, b.command, b.poll,  b.issue, b.transfer,
                       b.wire, b.arrive,  b.relay, b.wake,  b.unpack};
  const char* names[] = {"packing", "commands", "the proxy's poll",       "issuing",  "bytes",
                         "latency", "arrivals", "stores inside the node", "the wake", "unpacking"};
  const double* longest = std::max_element(std::begin(ns), std::end(ns));
  return std::string(names[longest - std::begin(ns)]) + " takes " + microseconds(*longest);
}

}  // namespace detail

/// The reasons, one line each: shape, mode, comms, lanes, SMs, and all-gather where it is cheaper.
[[nodiscard]] inline std::string reasons_of(const call_plan& plan, const wire_cost& wire) {
  const priced_call& best = plan.best;
  std::string out = std::string(name_of(best.shape)) + ": a pair of calls takes " +
                    detail::microseconds(best.total_ns()) + " on " + wire.name;
  if (plan.second.valid) {
    out += std::string(", ") + name_of(plan.second.shape) + " " +
           detail::microseconds(plan.second.total_ns());
  }
  out += "; in dispatch " + detail::longest_stage(best.dispatch) + "\n";
  out += best.lands == landing::slotted
             ? "slotted: one exchange, a slot for every token of every source\n"
             : "counted: an exchange of counts is cheaper than copying rows out of slots, or the "
               "slots do not fit\n";
  out += std::to_string(static_cast<int>(best.comms)) +
         (best.comms > 1 ? " comms: fewer issue more slowly\n"
                         : " comm: more would gain less than 2 %, or there are none\n");
  out += std::to_string(plan.lanes) +
         (plan.lanes > 1 ? " lanes: a second batch can use the time that one waits\n"
                         : " lane: there is no known compute to hide behind the wire\n");
  out += plan.sms > 0 ? std::to_string(plan.sms) + " SMs: they copy as fast as the wire moves\n"
                      : "all SMs: nothing is known of their speed or of the wire's\n";
  if (best.shape != traffic_shape::all_gather && plan.all_gather.total_ns() < best.total_ns()) {
    out += "all-gather is cheaper here: " + detail::microseconds(plan.all_gather.total_ns()) + "\n";
  }
  return out;
}

}  // namespace eptransport
