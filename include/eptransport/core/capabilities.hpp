// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief What a transport promises and what it charges, as compile-time data.
#pragma once

#include <eptransport/core/config.hpp>

#include <cstdint>

namespace eptransport {

/// Whether load and store instructions reach a peer's window.
enum class reach : std::uint8_t {
  never,   ///< `peer_pointer` is null for every peer but the caller itself
  maybe,   ///< null for some peers
  always,  ///< never null: kernels write rows in place and need no staging
};

/// Order in which one peer observes two puts issued on one channel.
enum class ordering : std::uint8_t {
  none,         ///< any order (EFA SRD, adaptive routing): a signal covers only its own put
  per_channel,  ///< issue order (RC queue pair): a signal covers all earlier puts
};

/// What a peer's signal word can grow by in one operation.
enum class signal_add : std::uint8_t {
  one,  ///< exactly 1 per put (NIC completion counters, counted immediates)
  any,  ///< any amount
};

/// What the wire charges. The kernels' message shape follows from these numbers, never from the
/// backend's name; the simulator spends them as modelled time.
///
/// @par Units  nanoseconds; bytes per second
struct wire_charge {
  double issue_ns = 0;             ///< the issuer is busy this long per message
  double arrive_ns = 0;            ///< the receiver's agent is busy this long per message
  double latency_ns = 0;           ///< from the end of issue to the first byte's arrival
  double channel_bytes_per_s = 0;  ///< of one rank's one channel; 0 = unlimited
  double node_bytes_per_s = 0;     ///< of all ranks of one node together; 0 = unlimited
};

/// Promises of a transport. Kernels branch on them with `if constexpr`.
struct capabilities {
  reach peer_reach = reach::never;
  ordering put_order = ordering::none;
  signal_add add = signal_add::one;
  std::uint64_t max_signals = 0;         ///< signal words per rank; 0 = bounded by memory only
  std::uint64_t max_message = 0;         ///< bytes of one put; 0 = unlimited
  std::uint64_t inline_bytes = 0;        ///< payload that needs no registered source
  bool needs_registered_source = false;  ///< put sources must lie in the window
  bool host_progress = false;            ///< a CPU thread must run for puts to move
  wire_charge charge{};
  /// `peer_pointer` is never null for a rank of the own node, over a wire of its own; the transport
  /// then has `nodes()`, the node of each rank. Rows may cross to a node once and be fanned out.
  bool node_reach = false;
  wire_charge inner{};  ///< `node_reach`: what that wire charges
};

}  // namespace eptransport
