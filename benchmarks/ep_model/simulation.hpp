// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Event simulation of dispatch and combine: ranks, rings, proxy threads, NICs, links,
/// relays.
///
/// Every message passes, in this order:
///
///     ring -> issuer (rank, comm) -> NIC out (rank, nic) -> path (latency, spray) ->
///     NIC in (peer, nic) -> agent (peer) -> [relay: stores inside the node] -> counted
///
/// Each is a server that takes one thing at a time, first come, first served. A rank combines when
/// all that its dispatch waits for has been counted, and goes on when its combine has; nothing else
/// ties ranks together, so a fast one runs up to one call ahead, as the protocol allows.
///
/// @par Assumes  the servers and charges of core/wire_costs.hpp; no losses, no retries, no PCIe, no
///               switch buffers: a receiver that is overrun delays its senders' bytes in the fabric
/// @par Deterministic  the same setting gives the same result, whatever the machine
#pragma once

#include <eptransport/core/cost_model.hpp>

#include <cstdint>
#include <string>
#include <vector>

namespace eptransport::model {

/// What is simulated.
struct sim_setting {
  moe_work work{};
  traffic_shape shape = traffic_shape::per_peer;
  wire_cost wire = wires::efa_proxy;
  wire_cost inner = wires::nvlink;  ///< inside the nodes
  machine_cost machine{};           ///< default: copies are free
  double comms = 1;
  std::vector<std::int64_t>
      index{};                  ///< [R * T, k] experts of all tokens, rank 0 first; -1 = unused
  std::int64_t pairs = 1;       ///< dispatch and combine pairs, one after another
  double expert_ns = 0;         ///< compute between dispatch and combine
  double rest_ns = 0;           ///< compute between combine and the next dispatch
  double nic_message_ns = 0;    ///< a NIC sends or takes a message no faster
  double spray_ns = 0;          ///< paths differ by up to this much
  std::int64_t stragglers = 0;  ///< the first ranks are late and slow
  double straggler_ns = 0;      ///< they begin so much later
  double straggler_factor = 1;  ///< and issue so much more slowly
  std::uint64_t seed = 1;       ///< of the spraying
};

/// Time of one kind of call over all ranks and pairs.
struct sim_call {
  double mean_ns = 0;
  double p50_ns = 0;
  double p99_ns = 0;
  double max_ns = 0;
};

/// What came out.
struct sim_result {
  std::string error{};  ///< why it could not run; empty if it did
  sim_call dispatch;
  sim_call combine;
  double total_ns = 0;  ///< until the last rank is through
  double messages = 0;  ///< of all ranks, on the wire
  double bytes = 0;
  double busiest_in = 0;    ///< bytes into the busiest rank over the mean
  double issuers_busy = 0;  ///< mean share of the time, 0 to 1
  double nics_busy = 0;
  std::uint64_t events = 0;
  std::uint64_t digest = 0;  ///< of every rank's times
};

/// Runs it.
[[nodiscard]] sim_result simulate(const sim_setting& setting);

/// Experts of all tokens: each token draws k distinct ones, all equally likely.
[[nodiscard]] std::vector<std::int64_t> uniform_index(const routed_work& w, std::uint64_t seed);

}  // namespace eptransport::model
