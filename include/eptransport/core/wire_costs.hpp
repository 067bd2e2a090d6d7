// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief What wires charge, as data: every constant stands beside where it comes from.
///
/// The one table of such numbers. The simulator's profiles take their charges from it, the cost
/// model and the planner compute with it. A transport of your own states its `wire_charge` in its
/// `capabilities`; `wire_cost_of` makes a wire of that.
#pragma once

#include <eptransport/core/capabilities.hpp>
#include <eptransport/core/config.hpp>

#include <cstdint>

namespace eptransport {

/// How far a constant can be trusted.
enum class origin : std::uint8_t {
  measured,   ///< by this project, on hardware that the note names
  published,  ///< by others; the note names the source
  derived,    ///< computed from published numbers; the note says how
  assumed,    ///< nothing better is known
};

/// The name of an origin.
[[nodiscard]] constexpr const char* name_of(origin from) noexcept {
  switch (from) {
    case origin::measured:
      return "measured";
    case origin::published:
      return "published";
    case origin::derived:
      return "derived";
    case origin::assumed:
      break;
  }
  return "assumed";
}

/// A number and its source.
struct constant {
  double value = 0;
  origin from = origin::assumed;
  const char* note = "";
};

/// One wire.
///
/// @par Units  nanoseconds; bytes per second; counts
struct wire_cost {
  const char* name = "";
  int ranks_per_node = 8;
  bool proxied = false;     ///< a CPU thread posts for the kernel
  bool load_store = false;  ///< stores reach every peer's window
  /// The thread that issues also moves the bytes: issue and transfer add up instead of overlapping.
  bool issuer_copies = false;
  constant issue_ns{};             ///< `wire_charge::issue_ns`: one message, one issuer
  constant arrive_ns{};            ///< `wire_charge::arrive_ns`
  constant latency_ns{};           ///< `wire_charge::latency_ns`
  constant channel_bytes_per_s{};  ///< of one rank's one channel; 0 = unlimited
  constant node_bytes_per_s{};     ///< of all ranks of one node; 0 = unlimited
  constant command_ns{};           ///< proxied: the kernel stores a ring command
  constant poll_ns{};              ///< proxied: until an idle proxy has seen the first command
  constant wake_ns{};              ///< from the counted arrival until the waiting kernel goes on
  constant max_issuers{1};         ///< comms or send queues of a rank that can issue at once
  constant serial_share{};         ///< of the issuing that further issuers do not divide, 0 to 1
  constant eager_bytes{};          ///< largest grouped message; 0 = the wire does not group

  /// What a transport over this wire states in its capabilities.
  [[nodiscard]] constexpr wire_charge charge() const noexcept {
    return {issue_ns.value, arrive_ns.value, latency_ns.value, channel_bytes_per_s.value,
            node_bytes_per_s.value};
  }
};

/// The wire that a transport's capabilities describe. What they do not state is zero.
[[nodiscard]] constexpr wire_cost wire_cost_of(const capabilities& caps, int ranks_per_node = 8) {
  constexpr origin from = origin::assumed;
  constexpr const char* note = "the transport's capabilities";
  wire_cost wire;
  wire.name = "this wire";
  wire.ranks_per_node = ranks_per_node;
  wire.proxied = caps.host_progress;
  wire.load_store = caps.peer_reach == reach::always;
  wire.issue_ns = {caps.charge.issue_ns, from, note};
  wire.arrive_ns = {caps.charge.arrive_ns, from, note};
  wire.latency_ns = {caps.charge.latency_ns, from, note};
  wire.channel_bytes_per_s = {caps.charge.channel_bytes_per_s, from, note};
  wire.node_bytes_per_s = {caps.charge.node_bytes_per_s, from, note};
  return wire;
}

/// The wires that are known by name.
namespace wires {

/// GPUs of one host that load and store each other's memory.
inline constexpr wire_cost nvlink{
    .name = "nvlink",
    .load_store = true,
    .issue_ns = {50, origin::assumed, "a store instruction and its share of address work"},
    .latency_ns = {1650, origin::measured,
                   "half of a 3.3 us GPU-CPU-GPU flag round trip on an H200 host: an upper bound"},
    .channel_bytes_per_s = {369e9, origin::measured, "stores to the peer, 2 x H200"},
};

/// InfiniBand reliable connections, posted by the GPU.
inline constexpr wire_cost ib_gpu{
    .name = "ib-gpu",
    .issue_ns = {200, origin::assumed, "sub-microsecond build and doorbell of one queue"},
    .latency_ns = {8350, origin::published,
                   "half of a 16.7 us put round trip through NCCL GIN, arXiv 2511.15076"},
    .channel_bytes_per_s = {50e9, origin::published, "line rate of a 400 Gb/s NIC, one per rank"},
    .node_bytes_per_s = {400e9, origin::published, "eight such NICs"},
    .max_issuers = {8, origin::assumed, "send queues of a rank that warps share out"},
};

/// AWS EFA (SRD, p5en), posted by the GPU.
inline constexpr wire_cost efa_gpu{
    .name = "efa-gpu",
    .issue_ns = {350, origin::assumed, "0.2 to 0.5 us for entry, counter and doorbell"},
    .latency_ns = {18650, origin::derived, "a cross-node barrier of 19 us, less one issue"},
    .channel_bytes_per_s = {25e9, origin::published, "effective rate of one NIC of a p5en"},
    .node_bytes_per_s = {400e9, origin::published, "sixteen NICs of a p5en"},
    .max_issuers = {8, origin::assumed, "send queues of a rank that warps share out"},
};

/// AWS EFA (SRD, p5en) behind one CPU proxy thread per rank.
inline constexpr wire_cost efa_proxy{
    .name = "efa-proxy",
    .proxied = true,
    .issue_ns = {14.7e6 / (48 * 2 * 15), origin::derived,
                 "14.7 ms per token over 48 layers x 2 all-to-alls x 15 messages (EP16, two p5en, "
                 "Qwen3-30B-A3B); what the receiving proxy spends is inside it"},
    .latency_ns = {15000, origin::published, "OSU 0-byte latency over EFA"},
    .channel_bytes_per_s = {25e9, origin::published, "effective rate of one NIC of a p5en"},
    .node_bytes_per_s = {400e9, origin::published, "sixteen NICs of a p5en"},
    .max_issuers = {1, origin::published, "one proxy thread"},
};

/// The same with eight comms, each with its thread, and eager messages grouped per peer.
inline constexpr wire_cost efa_proxy_comms{
    .name = "efa-proxy-comms",
    .proxied = true,
    .issue_ns = efa_proxy.issue_ns,
    .latency_ns = efa_proxy.latency_ns,
    .channel_bytes_per_s = efa_proxy.channel_bytes_per_s,
    .node_bytes_per_s = efa_proxy.node_bytes_per_s,
    .max_issuers = {8, origin::published, "K = 8 comms"},
    .serial_share = {(8 / 4.3 - 1) / 7, origin::derived,
                     "4.3 x the transport bandwidth at K = 8, read as Amdahl's law"},
    .eager_bytes = {8192, origin::published, "largest message of efa-direct, about its MTU"},
};

/// A libfabric proxy over shared memory inside one host.
inline constexpr wire_cost shm_proxy{
    .name = "shm-proxy",
    .proxied = true,
    .issue_ns = {1e9 / 1.05e6, origin::measured,
                 "1.05 M writes of 64 B a second, libfabric 1.17 shm, one endpoint, H200 host"},
    .latency_ns = {1000, origin::assumed, "a cache line between two threads that poll, and a look"},
    .channel_bytes_per_s = {5.4e9, origin::measured, "64 KiB writes, libfabric 1.17 shm, 2 vCPU"},
    .command_ns = {9, origin::measured, "108 M commands/s per proxy thread, CPU producer, 2 vCPU"},
    .poll_ns = {1650, origin::measured, "half of the 3.3 us flag round trip, H200 host"},
    .wake_ns = {1650, origin::measured, "half of the 3.3 us flag round trip, H200 host"},
    .max_issuers = {8, origin::measured, "1.05 to 10.0 M/s from one endpoint and thread to eight"},
    .eager_bytes = {4096, origin::measured, "inject size of libfabric 1.17 shm"},
};

/// A libfabric proxy over TCP between two processes of one host.
inline constexpr wire_cost tcp_proxy{
    .name = "tcp-proxy",
    .proxied = true,
    .issue_ns = {1e9 / 0.19e6, origin::measured,
                 "0.19 M writes of 64 B a second, libfabric 1.17 tcp;ofi_rxm, one endpoint, H200 "
                 "host"},
    .latency_ns = {20000, origin::assumed, "a loopback socket and two system calls"},
    .channel_bytes_per_s = {3.0e9, origin::measured,
                            "64 KiB writes, libfabric 1.17 tcp;ofi_rxm, 2 vCPU"},
    .command_ns = {9, origin::measured, "108 M commands/s per proxy thread, CPU producer, 2 vCPU"},
    .poll_ns = {1650, origin::measured, "half of the 3.3 us flag round trip, H200 host"},
    .wake_ns = {1650, origin::measured, "half of the 3.3 us flag round trip, H200 host"},
    .max_issuers = {8, origin::measured, "0.19 to 1.78 M/s from one endpoint and thread to eight"},
    .eager_bytes = {16384, origin::assumed, "bounce buffers of ofi_rxm"},
};

/// All of them.
inline constexpr const wire_cost* all[] = {&nvlink,          &ib_gpu,    &efa_gpu,  &efa_proxy,
                                           &efa_proxy_comms, &shm_proxy, &tcp_proxy};

}  // namespace wires

}  // namespace eptransport
