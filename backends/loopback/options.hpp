// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief How a loopback world is built: ranks, windows, schedule, faults.
#pragma once

#include <eptransport/core/capabilities.hpp>
#include <eptransport/core/config.hpp>
#include <eptransport/core/result.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace eptransport {

/// How the ranks' threads run.
enum class run_mode {
  baton,  ///< one thread at a time, chosen by the seed: replayable, virtual clock, modelled time
  free,   ///< real threads on the steady clock: for race detectors and for speed; no modelled time
};

/// When a put lands.
enum class delivery {
  immediate,  ///< at issue, bytes then signal
  shuffled,   ///< torn into pieces that land late and in any order the profile allows
};

/// What an injected fault does.
enum class loopback_fault_kind {
  refuse,      ///< the wire says "try again" `count` times before it takes the operation
  hard_error,  ///< the operation fails, and the rank's transport with it
  lose,        ///< `count` messages vanish, bytes and signal
  late,        ///< `count` messages arrive `delay_ns` later than the wire's latency
  kill,        ///< the rank dies: its operations fail, others see silence
};

/// One injected fault.
struct loopback_fault {
  // Not `using enum`: g++ 12 gives up on those names inside templates.
  static constexpr auto refuse = loopback_fault_kind::refuse;
  static constexpr auto hard_error = loopback_fault_kind::hard_error;
  static constexpr auto lose = loopback_fault_kind::lose;
  static constexpr auto late = loopback_fault_kind::late;
  static constexpr auto kill = loopback_fault_kind::kill;

  loopback_fault_kind kind = loopback_fault_kind::lose;
  int rank = 0;                 ///< whose operation
  std::uint64_t after_ops = 0;  ///< how many puts and signals of that rank go well before it
  std::uint64_t count = 1;      ///< `refuse`: refusals; `lose`, `late`: messages in a row
  std::uint64_t delay_ns = 0;   ///< `late`
};

/// What a world is made of.
struct loopback_options {
  int ranks = 2;
  std::uint64_t window_bytes = 0;  ///< per rank
  std::uint32_t signals = 0;       ///< words per rank
  std::uint32_t channels = 1;      ///< per rank
  std::vector<int> nodes = {};     ///< node of each rank; empty: rank / Profile::ranks_per_node
  run_mode mode = run_mode::baton;
  delivery order = delivery::immediate;
  std::uint64_t seed = 1;           ///< of every scheduling and delivery decision
  std::uint32_t max_chunks = 4;     ///< `shuffled`: pieces of one put
  std::uint64_t counter_start = 0;  ///< first value of every signal word
  std::uint32_t workers = 1;        ///< host threads per rank and launch
  std::uint64_t max_delay_ns = 0;   ///< `shuffled`: random extra latency per message
  std::vector<loopback_fault> faults = {};
  std::uint32_t queue_depth = 0;  ///< messages in flight per rank and channel; 0 = unlimited
  std::optional<wire_charge> charge = {};  ///< replaces the profile's in modelled time
  /// `baton` only. A put must not touch bytes of an earlier put that is in flight, or that has
  /// landed and whose signal the owner has not acquired yet.
  bool check_double_writes = true;
};

/// What one rank sent to others.
struct loopback_traffic {
  std::uint64_t messages = 0;        ///< puts and signals
  std::uint64_t bytes = 0;           ///< of puts, and asked for through `peer_pointer`
  std::uint64_t inter_messages = 0;  ///< the part of them that left the node
  std::uint64_t inter_bytes = 0;
};

namespace loopback_detail {

/// Checks the options against the profile, with both numbers in each message.
[[nodiscard]] inline result<void> check(const loopback_options& options, const capabilities& caps) {
  const auto refuse = [](const std::string& why) {
    return failure{errc::invalid_argument, "loopback_world::create", why};
  };
  const auto number = [](auto value) { return std::to_string(value); };
  if (options.ranks < 1) return refuse(number(options.ranks) + " ranks, at least 1 is needed");
  if (options.channels < 1) return refuse("0 channels, at least 1 is needed");
  if (options.workers < 1) return refuse("0 workers, at least 1 is needed");
  if (options.max_chunks < 1) return refuse("max_chunks is 0, at least 1 is needed");
  if (caps.max_signals != 0 && options.signals > caps.max_signals) {
    return refuse(number(options.signals) + " signals, the wire has " + number(caps.max_signals));
  }
  if (!options.nodes.empty() && options.nodes.size() != static_cast<std::size_t>(options.ranks)) {
    return refuse("the node list has " + number(options.nodes.size()) + " entries for " +
                  number(options.ranks) + " ranks");
  }
  for (const int node : options.nodes) {
    if (node < 0) return refuse("node " + number(node) + ", nodes are not negative");
  }
  for (const loopback_fault& fault : options.faults) {
    if (fault.rank < 0 || fault.rank >= options.ranks) {
      return refuse("a fault for rank " + number(fault.rank) + " of " + number(options.ranks));
    }
  }
  return {};
}

}  // namespace loopback_detail
}  // namespace eptransport
