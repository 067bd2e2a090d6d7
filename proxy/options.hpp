// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief How an engine is built, and what follows from that and the endpoint's limits.
#pragma once

#include <eptransport/core/config.hpp>
#include <eptransport/core/result.hpp>
#include <eptransport/proxy/command.hpp>
#include <eptransport/proxy/eager.hpp>
#include <eptransport/proxy/endpoint.hpp>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <limits>
#include <string>

namespace eptransport::proxy {

/// What all ranks agree on, and who this one is.
struct engine_group {
  std::uint32_t rank = 0;
  std::uint32_t ranks = 1;
  std::uint32_t signals = 0;      ///< words per rank
  std::uint64_t max_message = 0;  ///< bytes of the longest command; 0 = not known
};

/// Of one engine. All ranks give the same `eager`, `slot_bytes`, `slots_per_peer` and
/// `writes_per_peer`.
struct engine_options {
  std::uint64_t eager =
      0;  ///< payloads up to that many bytes travel inside messages; 0 = none does
  /// Of a message. Not the same as `eager`: a slot that holds one payload would group nothing.
  /// 0 = room for 8 payloads of `eager` bytes, at least 8 KiB, at most what the endpoint sends.
  std::uint64_t slot_bytes = 0;
  std::uint32_t slots_per_peer = 4;  ///< receive slots that each peer may fill
  std::uint32_t send_buffers = 0;    ///< messages being filled or in flight; 0 = 2 a peer, <= 64
  std::uint32_t writes_per_peer =
      0;                           ///< with immediate, unread by the peer; 0 = what the CQ allows
  std::uint32_t operations = 0;    ///< in flight; 0 = the endpoint's limit
  std::uint32_t peer_queue = 256;  ///< commands that may wait for one peer; a power of two
  std::uint32_t visit = 1024;      ///< commands that one visit of the rings takes at most
  std::uint32_t ring_burst = 64;   ///< of them from one ring before the next has its turn
};

/// The options with every 0 replaced.
struct engine_plan {
  engine_options options{};
  immediate_codec immediates{};
};

/// Writes with immediate that a peer may leave unread where nothing limits them.
inline constexpr std::uint32_t default_writes_per_peer = 512;

/// The longest `engine_options::peer_queue`.
inline constexpr std::uint32_t most_queued = 1U << 16;

/// Completions of credits that a peer may have on their way to us at once, for each kind of credit:
/// one is returned for each half of what was given.
inline constexpr std::uint32_t credit_completions = 4;

/// Fills in what is 0 and checks the rest against the endpoint.
///
/// @par Errors  `unsupported` where the endpoint cannot carry it, with both numbers;
///              `invalid_argument` for values that contradict each other
[[nodiscard]] inline result<engine_plan> plan_engine(const engine_options& asked,
                                                     const engine_group& group,
                                                     const endpoint_limits& limits) {
  const auto number = [](auto value) { return std::to_string(value); };
  const auto refuse = [](errc code, const std::string& why) {
    return failure{code, "engine::create", why};
  };
  engine_plan plan{asked, {}};
  engine_options& o = plan.options;
  const auto made = immediate_codec::create(group.ranks, group.signals, limits.immediate_bits);
  if (!made) return made.error();
  plan.immediates = *made;
  if (group.rank >= group.ranks) {
    return refuse(errc::invalid_argument,
                  "rank " + number(group.rank) + " of " + number(group.ranks));
  }
  if (o.peer_queue < 2 || o.peer_queue > most_queued || !std::has_single_bit(o.peer_queue) ||
      o.visit == 0 || o.ring_burst == 0) {
    return refuse(errc::invalid_argument, "peer_queue is " + number(o.peer_queue) + ", visit " +
                                              number(o.visit) + ", ring_burst " +
                                              number(o.ring_burst) +
                                              "; expected a power of two from 2 to " +
                                              number(most_queued) + " and numbers from 1");
  }
  if (limits.max_message != 0 && group.max_message > limits.max_message) {
    return refuse(errc::unsupported, "messages of " + number(group.max_message) +
                                         " bytes were promised, the endpoint writes at most " +
                                         number(limits.max_message));
  }
  if (limits.operations == 0) {
    return refuse(errc::unsupported, "the endpoint takes 0 operations, at least 1 is needed");
  }
  if (o.operations == 0) o.operations = limits.operations;
  if (o.operations > limits.operations) {
    return refuse(errc::unsupported, number(o.operations) + " operations in flight, the endpoint " +
                                         "takes " + number(limits.operations));
  }
  // Where the CPU cannot copy for it, the rank is its own peer.
  const std::uint64_t peers = group.ranks - (limits.readable_window ? 1 : 0);
  if (o.eager != 0) {
    const std::uint64_t least = sizeof(message_header) + message_bytes(o.eager);
    if (o.slot_bytes == 0) {
      o.slot_bytes =
          std::max<std::uint64_t>(sizeof(message_header) + 8 * message_bytes(o.eager), 8192);
      if (limits.max_send != 0) o.slot_bytes = std::min(o.slot_bytes, limits.max_send);
    }
    if (o.slot_bytes < least || o.slot_bytes > limits.max_send ||
        o.eager > std::numeric_limits<std::uint32_t>::max()) {
      return refuse(errc::unsupported, "eager payloads of " + number(o.eager) +
                                           " bytes need slots of " + number(least) +
                                           ", slots have " + number(o.slot_bytes) +
                                           " and the endpoint sends " + number(limits.max_send));
    }
    if (!limits.readable_window) {
      return refuse(errc::unsupported,
                    "eager payloads are copied by the CPU, which cannot read this window; use 0");
    }
    if (o.slots_per_peer < 2) {
      return refuse(errc::invalid_argument,
                    "slots_per_peer is " + number(o.slots_per_peer) + ", at least 2 are needed");
    }
    if (o.send_buffers == 0) {
      o.send_buffers = static_cast<std::uint32_t>(std::clamp<std::uint64_t>(2 * peers, 2, 64));
    }
  } else {
    o.slot_bytes = 0;
    o.slots_per_peer = 0;
    o.send_buffers = 0;
  }
  // Everything that peers may have sent us unread must fit the queue beside our own completions:
  // what overruns it is lost without a word.
  const std::uint64_t other =
      o.operations + peers * (o.slots_per_peer + 2 * std::uint64_t{credit_completions});
  const std::uint64_t room = limits.completions > other ? limits.completions - other : 0;
  if (o.writes_per_peer == 0) {
    o.writes_per_peer = std::min(default_writes_per_peer, plan.immediates.max_count());
    if (limits.completions != 0 && peers != 0) {
      o.writes_per_peer =
          static_cast<std::uint32_t>(std::min<std::uint64_t>(o.writes_per_peer, room / peers));
    }
  }
  if (o.writes_per_peer < 2 || (limits.completions != 0 && peers * o.writes_per_peer > room)) {
    return refuse(errc::unsupported,
                  "the completion queue has " + number(limits.completions) + " entries and needs " +
                      number(other + peers * std::max<std::uint64_t>(o.writes_per_peer, 2)) + ": " +
                      number(o.operations) + " operations and, for each of " + number(peers) +
                      " peers, " + number(o.slots_per_peer) + " messages, " +
                      number(2 * credit_completions) + " credits and at least 2 writes");
  }
  const std::uint32_t countable = 2 * plan.immediates.max_count();
  if (std::max(o.writes_per_peer, o.slots_per_peer) > countable) {
    return refuse(errc::unsupported,
                  number(o.writes_per_peer) + " writes and " + number(o.slots_per_peer) +
                      " messages per peer; credits of this group can return " + number(countable));
  }
  return plan;
}

}  // namespace eptransport::proxy
