// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief What one dispatch or combine costs on a wire: messages, bytes, two rooflines, a latency
/// budget by stage, and what that does to a decoding step.
///
/// A transfer cannot end before its bytes have crossed (`bytes / rate`) nor before its messages
/// have been issued (`messages * issue_ns`). Which of the two binds is the whole question: a wire
/// whose messages are dear wants few of them, whatever their size.
///
/// The stages form a pipeline. Each message passes all of them; the last one is through when every
/// stage has served one message and the slowest has served the rest:
///
///     total = sum of (first message) + max over stages of (remaining messages)
///
/// @par Assumes  equal ranks, equal shares of each stage per message, no jitter, idle resources at
///               the start. The event simulation of `ep_model simulate` drops these assumptions.
/// @par Units    nanoseconds, bytes, counts; counts are expected values, hence `double`
#pragma once

#include <eptransport/core/config.hpp>
#include <eptransport/core/routing_spread.hpp>
#include <eptransport/core/wire_costs.hpp>

#include <algorithm>
#include <cstdint>

namespace eptransport {

/// How rows travel, as far as costs go. The kernels' `message_shape` has those that they implement.
enum class traffic_shape : std::uint8_t {
  direct,      ///< rows stored through pointers, one signal per peer
  per_row,     ///< one message per row and one header per peer
  per_peer,    ///< header and rows of a peer in one message
  per_node,    ///< one message per remote node to a relay that fans it out by load and store
  grouped,     ///< rows of a peer in eager messages of at most `eager_bytes`
  all_gather,  ///< every rank gets every token: nothing is routed
};

/// How a dispatch finds its place at the receiver: `dispatch_mode`, as far as costs go.
enum class landing : std::uint8_t {
  slotted,  ///< slots for the worst case: one exchange
  counted,  ///< counts first, then rows to their final place: two exchanges
};

/// Which half of a layer's communication.
enum class direction : std::uint8_t { dispatch, combine };

/// The name of a shape.
[[nodiscard]] constexpr const char* name_of(traffic_shape shape) noexcept {
  constexpr const char* names[] = {"direct",   "per_row", "per_peer",
                                   "per_node", "grouped", "all_gather"};
  return names[static_cast<int>(shape)];
}

/// One layer's work on each rank.
struct moe_work {
  routed_work routed{};
  std::int64_t hidden = 1;        ///< H
  std::int64_t value_bytes = 2;   ///< of a dispatched value
  std::int64_t scale_bytes = 0;   ///< of a dispatched row
  std::int64_t return_bytes = 2;  ///< of a combined value
  std::int64_t layers = 1;        ///< of a step
  landing lands = landing::slotted;
  /// Every rank sends every other one a message in each dispatch, empty or not, as this library
  /// does (INV-3). False: only ranks that get a row do, as in `messages_dispatch`.
  bool everyone = true;

  /// A row on the wire: values, scales, token and (expert, weight) per choice.
  [[nodiscard]] constexpr double row() const noexcept {
    return static_cast<double>(hidden * value_bytes + scale_bytes + 8 + 8 * routed.top_k);
  }
  /// A returned row.
  [[nodiscard]] constexpr double returned() const noexcept {
    return static_cast<double>(hidden * return_bytes);
  }
};

/// Bytes of a D message's header.
inline constexpr double header_bytes = 64;

// --- The closed forms that start the argument ----------------------------------------------------

/// Messages of a dispatch, at most: one per chosen rank, and there are R - 1 others.
[[nodiscard]] constexpr std::int64_t messages_dispatch(const routed_work& w) noexcept {
  return std::min(w.tokens * w.top_k, w.ranks - 1);
}

/// Bytes of a dispatch, at most: one row per choice.
[[nodiscard]] constexpr double bytes_dispatch(const moe_work& w) noexcept {
  return static_cast<double>(w.routed.tokens * w.routed.top_k * w.hidden * w.value_bytes);
}

/// Bytes that a rank takes part in when every token goes to every rank.
[[nodiscard]] constexpr double bytes_all_gather(const moe_work& w) noexcept {
  return static_cast<double>(w.routed.tokens * w.routed.ranks * w.hidden * w.value_bytes);
}

/// The two rooflines.
[[nodiscard]] constexpr double transfer_ns(double messages, double bytes, double issue_ns,
                                           double bytes_per_s) noexcept {
  const double moving = bytes_per_s > 0 ? bytes * 1e9 / bytes_per_s : 0;
  return std::max(messages * issue_ns, moving);
}

// --- One call ------------------------------------------------------------------------------------

/// What a rank sends and takes in one exchange of a call, mean over ranks.
struct call_traffic {
  double messages = 0;        ///< issued on the wire
  double bytes = 0;           ///< in them
  double incast = 1;          ///< what the busiest receiver takes over the mean
  double stored_bytes = 0;    ///< by load and store inside the node, before or after the wire
  double stored_signals = 0;  ///< signals that release them
  double packed_bytes = 0;    ///< copied before the first message can be issued
  double unpacked_bytes = 0;  ///< copied after the last has arrived
};

/// What copies cost on the rank itself.
struct machine_cost {
  constant copy_bytes_per_s{};  ///< bytes copied per second, read and write together; 0 = free
  constant sm_bytes_per_s{};    ///< the same of one SM; 0 = unknown
};

/// One H200 with this library's kernels.
inline constexpr machine_cost h200{
    .copy_bytes_per_s = {2.1e12 / 2, origin::measured,
                         "2.1 TB/s of reads and writes, 8 x 16 blocks, one H200"},
    .sm_bytes_per_s = {2.1e12 / 2 / 128, origin::measured, "the same, per block"},
};

/// Traffic of the rows of one call; a counted dispatch's counts are in `count_traffic`.
[[nodiscard]] constexpr call_traffic traffic_of(const moe_work& w, const routing_spread& s,
                                                traffic_shape shape, direction way,
                                                const wire_cost& wire, bool inner = true) {
  const bool out = way == direction::dispatch;
  const auto tokens = static_cast<double>(w.routed.tokens);
  const auto ranks = static_cast<double>(w.routed.ranks);
  const auto nodes = static_cast<double>(w.routed.nodes);
  const double locals = ranks / nodes - 1;
  const double row = out ? w.row() : w.returned();
  const double rows = tokens * s.ranks;
  const bool counted = out && w.lands == landing::counted;
  // A combine, and the rows of a counted dispatch, go only where there are rows.
  const double peers = out && !counted && w.everyone ? ranks - 1 : s.peers;
  const double headers = out && !counted ? header_bytes * peers : 0;
  call_traffic t{.incast = s.incast};
  t.bytes = rows * row + headers;
  t.packed_bytes = shape == traffic_shape::direct ? 0 : rows * row;
  t.unpacked_bytes = out && !counted ? rows * row : 0;
  switch (shape) {
    case traffic_shape::direct:
      t.messages = peers;
      break;
    case traffic_shape::per_row:
      t.messages = rows + (out ? peers : 0);
      t.packed_bytes = rows > 0 ? row : 0;  // the first; the others are written meanwhile
      break;
    case traffic_shape::per_peer:
      t.messages = peers * (counted ? 2 : 1);  // rows and their sides lie in two arrays
      break;
    case traffic_shape::grouped: {
      const double each = peers > 0 ? t.bytes / peers : 0;
      const double room = wire.eager_bytes.value;
      // What is too large for an eager message travels as a message per row.
      const bool fits = room > 0 && row + header_bytes <= room;
      const double full = fits ? static_cast<double>(static_cast<std::int64_t>(each / room)) : 0;
      t.messages = !fits ? rows + peers : peers * (full * room < each ? full + 1 : full);
      break;
    }
    case traffic_shape::per_node: {
      const double rails = out && w.everyone ? nodes - 1 : s.rails;
      t.messages = rails;
      t.bytes = tokens * s.nodes * row + (out ? header_bytes * rails : 0);
      t.packed_bytes = tokens * s.nodes * row;
      // As a relay it stores what its rails send, or adds up what goes back to them.
      t.stored_bytes = tokens * s.ranks * row;
      t.stored_signals = locals * nodes;
      break;
    }
    case traffic_shape::all_gather:
      t.messages = inner ? nodes - 1 : ranks - 1;
      t.bytes = t.messages * tokens * row;
      t.stored_bytes = inner ? tokens * nodes * locals * row : 0;
      t.stored_signals = inner ? locals * nodes : 0;
      t.incast = 1;
      t.packed_bytes = 0;
      t.unpacked_bytes = 0;
      break;
  }
  return t;
}

/// Traffic of the exchange of counts that a counted dispatch begins with.
[[nodiscard]] constexpr call_traffic count_traffic(const moe_work& w) {
  const auto peers = static_cast<double>(w.routed.ranks - 1);
  const auto counts = static_cast<double>(w.routed.ranks + w.routed.experts);
  return {.messages = peers, .bytes = peers * (header_bytes + 8 * counts)};
}

/// Where the time of a call goes. The sum is the time from the call to its end on the slowest rank.
struct stage_budget {
  double pack = 0;      ///< rows to staging, until the first message can go
  double command = 0;   ///< ring command or queue entry
  double poll = 0;      ///< until the proxy sees it
  double issue = 0;     ///< the first message, and the others where issuing binds
  double transfer = 0;  ///< the first message's bytes, and the others' where bytes bind
  double wire = 0;      ///< latency
  double arrive = 0;    ///< at the receiver's agent
  double relay = 0;     ///< load and store inside the node
  double wake = 0;      ///< until the waiting kernel goes on
  double unpack = 0;    ///< rows to their output

  [[nodiscard]] constexpr double total() const noexcept {
    return pack + command + poll + issue + transfer + wire + arrive + relay + wake + unpack;
  }
  constexpr stage_budget& operator+=(const stage_budget& b) noexcept {
    pack += b.pack, command += b.command, poll += b.poll, issue += b.issue;
    transfer += b.transfer, wire += b.wire, arrive += b.arrive, relay += b.relay;
    wake += b.wake, unpack += b.unpack;
    return *this;
  }
};

/// How a wire is used: its issuers, what lies inside the node, what copies cost.
struct wire_use {
  double comms = 1;                         ///< K issuers, at most `wire_cost::max_issuers`
  const wire_cost* inner = &wires::nvlink;  ///< inside a node, for per_node and all_gather; or null
  machine_cost machine{};                   ///< default: copies are free, as in the simulator
};

/// How long an issuer is busy per message when K of them work: they slow each other by what they
/// cannot divide (Amdahl: K issuers do K / (1 + s (K - 1)) times as much as one).
[[nodiscard]] constexpr double issue_ns_of(const wire_cost& wire, double comms) noexcept {
  return wire.issue_ns.value * (1 + wire.serial_share.value * (comms - 1));
}

/// Bytes per second that a rank's K channels reach together while its whole node sends alike.
[[nodiscard]] constexpr double rank_bytes_per_s(const wire_cost& wire, double comms,
                                                double ranks_on_node) noexcept {
  const double own = wire.channel_bytes_per_s.value * comms;
  const double share = wire.node_bytes_per_s.value / std::max(ranks_on_node, 1.0);
  if (own <= 0) return share;
  return share <= 0 ? own : std::min(own, share);
}

/// The budget of one exchange.
[[nodiscard]] constexpr stage_budget budget_of(const call_traffic& t, const wire_cost& wire,
                                               const wire_use& use, double ranks_on_node) {
  stage_budget b;
  const double copy = use.machine.copy_bytes_per_s.value;
  b.pack = copy > 0 ? t.packed_bytes * 1e9 / copy : 0;
  b.unpack = copy > 0 ? t.unpacked_bytes * 1e9 / copy : 0;
  // Stores inside the node are shared out over the wire's messages and the rank's own node.
  double storing = 0;
  if (t.stored_signals > 0 && use.inner != nullptr) {
    const double rate = use.inner->channel_bytes_per_s.value;
    storing =
        t.stored_signals * use.inner->issue_ns.value + (rate > 0 ? t.stored_bytes * 1e9 / rate : 0);
    storing /= t.messages + 1;
    b.relay = use.inner->latency_ns.value + storing;
  }
  if (t.messages <= 0) return b;
  const double comms = std::clamp(use.comms, 1.0, std::max(wire.max_issuers.value, 1.0));
  const double issue = issue_ns_of(wire, comms);
  const auto whole = static_cast<double>(static_cast<std::int64_t>(t.messages / comms));
  const double rounds = std::max(1.0, whole * comms < t.messages ? whole + 1 : whole);
  const double rate = rank_bytes_per_s(wire, comms, ranks_on_node);
  const double moving = rate > 0 ? t.bytes * 1e9 / rate : 0;
  const double first = std::min(moving, moving / t.messages);
  const double more_issue = (rounds - 1) * issue;
  const double more_bytes = moving * t.incast - first;
  const double more_arrive = std::max(t.messages * t.incast - 1, 0.0) * wire.arrive_ns.value;
  const double more_store = storing * t.messages;
  b.command = wire.command_ns.value;
  b.poll = wire.poll_ns.value;
  b.issue = issue;
  b.transfer = first;
  b.wire = wire.latency_ns.value;
  b.arrive = wire.arrive_ns.value;
  b.wake = wire.wake_ns.value;
  if (wire.issuer_copies) {
    b.issue += more_issue;
    b.transfer = moving;
    return b;
  }
  const double slowest = std::max({more_issue, more_bytes, more_arrive, more_store});
  double& bound = slowest == more_issue    ? b.issue
                  : slowest == more_bytes  ? b.transfer
                  : slowest == more_arrive ? b.arrive
                                           : b.relay;
  bound += slowest;
  return b;
}

/// The budget of a whole call: of both exchanges where counts go first.
[[nodiscard]] constexpr stage_budget call_budget(const moe_work& w, const routing_spread& s,
                                                 traffic_shape shape, direction way,
                                                 const wire_cost& wire, const wire_use& use = {}) {
  const double on_node = static_cast<double>(w.routed.ranks) / static_cast<double>(w.routed.nodes);
  const bool inner = use.inner != nullptr;
  stage_budget b = budget_of(traffic_of(w, s, shape, way, wire, inner), wire, use, on_node);
  const bool counts = way == direction::dispatch && w.lands == landing::counted &&
                      shape != traffic_shape::all_gather && w.routed.ranks > 1;
  if (counts) b += budget_of(count_traffic(w), wire, use, on_node);
  return b;
}

// --- A step --------------------------------------------------------------------------------------

/// What communication does to a decoding step of C ns of compute.
struct step_cost {
  double compute_ns = 0;  ///< C
  double tax_ns = 0;      ///< tau: communication that nothing hides

  /// Steps per second: tokens per second of one user.
  [[nodiscard]] constexpr double tokens_per_s() const noexcept {
    return compute_ns + tax_ns > 0 ? 1e9 / (compute_ns + tax_ns) : 0;
  }
  /// C / (C + tau): what is left of the speed without communication.
  [[nodiscard]] constexpr double kept() const noexcept {
    return compute_ns + tax_ns > 0 ? compute_ns / (compute_ns + tax_ns) : 0;
  }
  /// (C + tau) / C.
  [[nodiscard]] constexpr double slowdown() const noexcept {
    return compute_ns > 0 ? (compute_ns + tax_ns) / compute_ns : 0;
  }
};

/// The tax of `layers` pairs of calls when a share `overlap` of the step's compute can run while
/// they are under way.
[[nodiscard]] constexpr double exposed_tax_ns(double dispatch_ns, double combine_ns,
                                              std::int64_t layers, double compute_ns,
                                              double overlap) noexcept {
  const double all = (dispatch_ns + combine_ns) * static_cast<double>(layers);
  return std::max(0.0, all - overlap * compute_ns);
}

}  // namespace eptransport
