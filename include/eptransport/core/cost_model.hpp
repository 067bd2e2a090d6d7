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
  std::int64_t row_bytes = 2;     ///< values of a dispatched row: hidden x bytes of a value
  std::int64_t scale_bytes = 0;   ///< of a dispatched row
  std::int64_t return_bytes = 2;  ///< of a combined row
  std::int64_t layers = 1;        ///< of a step
  landing lands = landing::slotted;
  /// Every rank sends every other one a message in each dispatch, empty or not, as this library
  /// does (INV-3). False: only ranks that get a row do, as in `messages_dispatch`.
  bool everyone = true;

  /// A slot on the wire: values, scales, token and (expert, weight) per choice.
  [[nodiscard]] constexpr double slot_bytes() const noexcept {
    return static_cast<double>(row_bytes) + static_cast<double>(scale_bytes) + 8 +
           8 * static_cast<double>(routed.top_k);
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
  return static_cast<double>(w.routed.tokens * w.routed.top_k * w.row_bytes);
}

/// Bytes that a rank takes part in when every token goes to every rank.
[[nodiscard]] constexpr double bytes_all_gather(const moe_work& w) noexcept {
  return static_cast<double>(w.routed.tokens * w.routed.ranks * w.row_bytes);
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
  double streams = 0;         ///< whose messages stay on one issuer; 0 = each may take any
  double incast = 1;          ///< what the busiest receiver takes over the mean
  double rows = 0;            ///< in the messages
  double row_bytes = 0;       ///< of one
  double receivers = 1;       ///< among which rows fall
  double variation = 0;       ///< variance of the rows that fall on one over their mean
  double more_messages = 0;   ///< that the busiest rank has by chance
  bool skips = false;         ///< peers without rows get no message
  double stored_bytes = 0;    ///< of the rank itself, by load and store inside the node
  double stored_signals = 0;  ///< signals that release them
  double relayed_bytes = 0;   ///< stored inside the node for those that sent them
  double relayed_signals = 0;
  bool stores_first = false;  ///< the wire waits for the stores: a relay adds up before it returns
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

namespace detail {

/// The smallest whole number that is not below x, and at least 1.
[[nodiscard]] constexpr double at_least_one(double x) noexcept {
  if (x >= 0x1p62) return x;  // whole anyway
  const auto whole = static_cast<double>(static_cast<std::int64_t>(x));
  return std::max(1.0, whole < x ? whole + 1 : whole);
}

/// Eager messages of at most `room` rows for one of `peers` ranks that share `rows` rows of
/// `tokens` tokens: the mean over how many it gets, one at least.
[[nodiscard]] constexpr double grouped_messages(std::int64_t tokens, double peers, double rows,
                                                double room) {
  const auto of = [room](double n) { return at_least_one(n / room); };
  const double more = peers > 0 ? std::max(0.0, rows / peers - 1) : 0;  // than one row
  if (more > 64) return (more + 1) / room + 0.5;                        // the last is half full
  const double p = tokens > 1 ? std::min(1.0, more / static_cast<double>(tokens - 1)) : 0;
  if (p >= 1) return of(static_cast<double>(tokens));
  double probability = power(1 - p, tokens - 1);  // of n further rows
  double sum = 0;
  for (std::int64_t n = 0; n < tokens; ++n) {
    sum += probability * of(static_cast<double>(n + 1));
    probability *= static_cast<double>(tokens - 1 - n) / static_cast<double>(n + 1) * p / (1 - p);
  }
  return sum;
}

}  // namespace detail

/// Whole rows of `row` bytes that an eager message takes behind its header; 0 if none.
[[nodiscard]] constexpr double rows_per_eager(const wire_cost& wire, double row) noexcept {
  const double room = wire.eager_bytes.value - header_bytes;
  return room < row ? 0 : static_cast<double>(static_cast<std::int64_t>(room / row));
}

/// Traffic of the rows of one call; a counted dispatch's counts are in `count_traffic`.
[[nodiscard]] constexpr call_traffic traffic_of(const moe_work& w, const routing_spread& s,
                                                traffic_shape shape, direction way,
                                                const wire_cost& wire, bool inner = true) {
  const bool out = way == direction::dispatch;
  const auto tokens = static_cast<double>(w.routed.tokens);
  const auto ranks = static_cast<double>(w.routed.ranks);
  const auto nodes = static_cast<double>(w.routed.nodes);
  const double locals = ranks / nodes - 1;
  const double row = out ? w.slot_bytes() : static_cast<double>(w.return_bytes);
  const double rows = tokens * s.ranks;
  const bool counted = out && w.lands == landing::counted;
  // A combine, and the rows of a counted dispatch, go only where there are rows.
  const bool headed = out && !counted;
  const double peers = headed && w.everyone ? ranks - 1 : s.peers;
  const double hit = ranks > 1 ? s.ranks / (ranks - 1) : 1;  // a token by another rank's
  call_traffic t{.incast = s.incast,
                 .rows = rows,
                 .row_bytes = row,
                 .receivers = ranks,
                 .variation = s.variation * (1 - hit)};
  t.bytes = rows * row + (headed ? header_bytes * peers : 0);
  t.packed_bytes = shape == traffic_shape::direct ? 0 : rows * row;
  t.unpacked_bytes = headed ? rows * row : 0;
  // How many ranks a rank returns rows to is a matter of chance, and so are the rows.
  const double reached = ranks > 1 ? s.peers / (ranks - 1) : 1;
  const auto by_chance = [ranks](double variance) {
    return detail::largest_of(ranks) * detail::root_of(variance);
  };
  if (!headed) {
    t.more_messages = std::min(by_chance(s.variation * s.peers * (1 - reached)),
                               std::max(0.0, ranks - 1 - s.peers));
  }
  t.skips = !headed;
  switch (shape) {
    case traffic_shape::direct:
      t.messages = peers;
      break;
    case traffic_shape::per_row:
      t.messages = rows + (out ? peers : 0);
      if (!out) t.more_messages = by_chance(t.variation * rows);
      t.packed_bytes = rows > 0 ? row : 0;  // the first; the others are written meanwhile
      break;
    case traffic_shape::per_peer:
      t.messages = peers * (counted ? 2 : 1);  // rows and their sides lie in two arrays
      t.streams = peers;
      break;
    case traffic_shape::grouped: {
      // What is too large for an eager message travels as a message per row.
      const double room = rows_per_eager(wire, row);
      t.messages = rows + (out ? peers : 0);
      if (room > 0) {
        const double each = detail::grouped_messages(w.routed.tokens, s.peers, rows, room);
        t.messages = s.peers * each + std::max(0.0, peers - s.peers);
      }
      t.streams = peers;
      break;
    }
    case traffic_shape::per_node: {
      const double rails = out && w.everyone ? nodes - 1 : s.rails;
      const double away = tokens * (s.ranks - s.local_ranks) * row * locals / (locals + 1);
      t.messages = rails;
      t.more_messages = 0;
      t.rows = tokens * s.nodes;
      t.variation = nodes > 1 ? s.variation * std::max(0.0, 1 - s.nodes / (nodes - 1)) : 0;
      t.bytes = tokens * s.nodes * row + (out ? header_bytes * rails : 0);
      t.packed_bytes = out ? tokens * s.nodes * row : 0;
      t.stored_bytes = tokens * s.local_ranks * row + (out ? 0 : away);
      t.stored_signals = locals;
      t.relayed_bytes = out ? away : 0;
      t.relayed_signals = out ? locals * rails : 0;
      t.stores_first = !out;
      break;
    }
    case traffic_shape::all_gather:
      t.messages = inner ? nodes - 1 : ranks - 1;
      t.bytes = t.messages * tokens * row;
      t.incast = 1;
      t.variation = 0;
      t.more_messages = 0;
      t.packed_bytes = 0;
      t.unpacked_bytes = 0;
      if (!inner) break;
      t.stored_bytes = tokens * row * locals * (out ? 1 : nodes);
      t.stored_signals = locals;
      t.relayed_bytes = out ? t.bytes * locals : 0;
      t.relayed_signals = out ? t.messages * locals : 0;
      t.stores_first = !out;
      break;
  }
  return t;
}

/// Traffic of the exchange of counts that a counted dispatch begins with. Relays pass them on.
[[nodiscard]] constexpr call_traffic count_traffic(const moe_work& w, traffic_shape shape) {
  const double each = header_bytes + 8 * static_cast<double>(w.routed.ranks + w.routed.experts);
  if (shape != traffic_shape::per_node) {
    const auto peers = static_cast<double>(w.routed.ranks - 1);
    return {.messages = peers, .bytes = peers * each};
  }
  const auto rails = static_cast<double>(w.routed.nodes - 1);
  const double locals =
      static_cast<double>(w.routed.ranks) / static_cast<double>(w.routed.nodes) - 1;
  return {.messages = rails,
          .bytes = rails * each,
          .stored_bytes = locals * each,
          .stored_signals = locals,
          .relayed_bytes = rails * locals * each,
          .relayed_signals = rails * locals};
}

/// Where the time of a call goes. The sum is the time from the call to its end on the last rank.
struct stage_budget {
  double pack = 0;      ///< rows to staging, until the first message can go
  double command = 0;   ///< the ring command
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
  double comms = 1;                  ///< K issuers, at most `wire_cost::max_issuers`
  bool inner = true;                 ///< ranks of a node reach each other: per_node, all_gather
  wire_cost inside = wires::nvlink;  ///< by which
  machine_cost machine{};            ///< default: copies are free, as in the simulator
};

/// How long an issuer is busy per message when K of them work: they slow each other by what they
/// cannot divide (Amdahl: K issuers do K / (1 + s (K - 1)) times as much as one).
[[nodiscard]] constexpr double issue_ns_of(const wire_cost& wire, double comms) noexcept {
  return wire.issue_ns.value * (1 + wire.serial_share.value * (comms - 1));
}

/// Links of a rank that can move at once, and what each gets while its whole node sends alike.
struct rank_links {
  double count = 1;
  double bytes_per_s = 0;  ///< of one; 0 = unlimited

  [[nodiscard]] constexpr double all() const noexcept { return count * bytes_per_s; }
};

/// The links behind K channels: one each, as far as the node's share goes round.
[[nodiscard]] constexpr rank_links links_of(const wire_cost& wire, double comms,
                                            double ranks_on_node) noexcept {
  const double channel = wire.channel_bytes_per_s.value;
  const double share = wire.node_bytes_per_s.value / std::max(ranks_on_node, 1.0);
  if (channel <= 0) return {1, share};
  if (share <= 0) return {comms, channel};
  const auto own = static_cast<double>(static_cast<std::int64_t>(share / channel));
  return {std::min(std::max(own, 1.0), comms), std::min(channel, share)};
}

/// The budget of one exchange.
[[nodiscard]] constexpr stage_budget budget_of(const call_traffic& t, const wire_cost& wire,
                                               const wire_use& use, double ranks_on_node) {
  stage_budget b;
  const double copy = use.machine.copy_bytes_per_s.value;
  b.pack = copy > 0 ? t.packed_bytes * 1e9 / copy : 0;
  b.unpack = copy > 0 ? t.unpacked_bytes * 1e9 / copy : 0;
  const wire_cost& in = use.inside;
  const double inner_rate = in.channel_bytes_per_s.value;
  const auto store = [&](double bytes, double signals) {
    if (!use.inner || signals <= 0) return 0.0;
    return signals * in.issue_ns.value + (inner_rate > 0 ? bytes * 1e9 / inner_rate : 0);
  };
  const double own_stores = store(t.stored_bytes, t.stored_signals);
  const double relaying = store(t.relayed_bytes, t.relayed_signals);
  const bool through_relay = t.relayed_signals > 0 || t.stores_first;
  if (own_stores > 0 && (through_relay || t.messages <= 0)) b.relay = in.latency_ns.value;
  if (t.messages <= 0 || t.stores_first) b.relay += own_stores;
  if (t.messages <= 0) return b;

  const double comms = std::clamp(use.comms, 1.0, std::max(wire.max_issuers.value, 1.0));
  const double issue = issue_ns_of(wire, comms);
  const double streams = t.streams > 0 ? t.streams : t.messages;
  const double each = t.messages / streams;
  const double rounds = std::max(1.0, detail::at_least_one(streams / comms) * each);
  // A message travels on one link, and the messages of one round come together.
  const double used = std::min(comms, detail::at_least_one(streams));
  const rank_links links = links_of(wire, used, ranks_on_node);
  const double bytes_ns = links.bytes_per_s > 0 ? t.bytes * 1e9 / links.bytes_per_s : 0;
  const double first = bytes_ns / std::max(t.messages, 1.0);
  const auto on_a_link = [&links](double count) {
    return links.count > 1 ? detail::at_least_one(count / links.count) : std::max(count, 1.0);
  };
  const double last_round = std::max(1.0, t.messages - (rounds - 1) * used);
  const double more_issue =
      (rounds - 1 + t.more_messages / used) * issue + (on_a_link(last_round) - 1) * first;
  const double on_busiest = std::max(1.0, on_a_link(streams) * each);
  // The busiest receiver's busiest link ends last: by a skew that is known, or by chance. Where
  // peers without rows are skipped, it is chance as well which of several links a message takes;
  // where none is, messages of a link wait for each other at both ends at once. These two factors
  // are read off the event simulation.
  const double per_link = t.rows / links.count;
  const double ends = links.count > 1 ? (t.skips ? 2 : 0.5) : 1;
  const double by_chance = detail::largest_of(t.receivers * links.count) *
                           detail::root_of(ends * t.variation * per_link);
  const double uneven = std::max((t.incast - 1) * per_link, by_chance) * t.row_bytes;
  const double more_bytes =
      (on_busiest - 1) * first + (links.bytes_per_s > 0 ? uneven * 1e9 / links.bytes_per_s : 0);
  const double more_arrive = std::max(t.messages * t.incast - 1, 0.0) * wire.arrive_ns.value;
  const double own_late =
      t.stores_first ? 0 : std::max(0.0, own_stores - issue - first - wire.latency_ns.value);
  const double relay_first = relaying / std::max(t.messages, 1.0);
  const double more_store = relaying - relay_first + own_late;
  b.command = wire.command_ns.value;
  b.poll = wire.poll_ns.value;
  b.issue = issue;
  b.transfer = first;
  b.wire = wire.latency_ns.value;
  b.arrive = wire.arrive_ns.value;
  b.relay += relay_first;
  b.wake = wire.wake_ns.value;
  if (wire.issuer_copies) {
    b.issue += (rounds - 1) * issue;
    b.transfer = bytes_ns;
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
  stage_budget b = budget_of(traffic_of(w, s, shape, way, wire, use.inner), wire, use, on_node);
  const bool counts = way == direction::dispatch && w.lands == landing::counted &&
                      shape != traffic_shape::all_gather && w.routed.ranks > 1;
  if (counts) b += budget_of(count_traffic(w, shape), wire, use, on_node);
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
