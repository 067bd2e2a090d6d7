// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The wires that the simulator can stand for: what each promises and what it charges.
///
/// Each number says where it comes from: *measured* on two H200 of one host, *published* with its
/// source, *derived* from published numbers, or *assumed* where nothing better is known.
#pragma once

#include <eptransport/core/capabilities.hpp>
#include <eptransport/core/config.hpp>

#include <cstdint>

namespace eptransport::profiles {

/// GPUs of one host that load and store each other's memory.
struct nvlink {
  static constexpr const char* name = "nvlink";
  static constexpr int ranks_per_node = 8;  // HGX and DGX boards with eight GPUs
  static constexpr capabilities caps{
      .peer_reach = reach::always,
      .put_order = ordering::none,  // stores of many threads: only the release orders them
      .add = signal_add::any,       // release reductions
      .charge = {
          .issue_ns = 50,      // assumed: a store instruction and its share of address work
          .latency_ns = 1650,  // measured: half of a 3.3 us flag round trip; an upper bound
          .channel_bytes_per_s = 369e9,  // measured: store bandwidth to the peer
      }};
};

/// InfiniBand reliable connections, posted by the GPU (IBGDA).
struct ib_gpu {
  static constexpr const char* name = "ib-gpu";
  static constexpr int ranks_per_node = 8;
  static constexpr capabilities caps{
      .peer_reach = reach::never,
      .put_order = ordering::per_channel,     // one RC queue pair per channel and peer, no adaptive
                                              // routing of writes
      .add = signal_add::any,                 // fetch-and-add behind a write
      .max_message = std::uint64_t{1} << 31,  // InfiniBand specification: message size
      .needs_registered_source = true,
      .charge = {
          .issue_ns = 200,     // assumed: sub-microsecond build and doorbell of one queue
          .latency_ns = 8350,  // published: half of a 16.7 us put round trip, arXiv 2511.15076
          .channel_bytes_per_s = 50e9,  // line rate of a 400 Gb/s NIC, one per rank
          .node_bytes_per_s = 400e9,    // eight of them
      }};
};

/// AWS EFA (SRD, p5en), posted by the GPU: queues and completion counters in GPU memory.
struct efa_gpu {
  static constexpr const char* name = "efa-gpu";
  static constexpr int ranks_per_node = 8;
  static constexpr capabilities caps{
      .peer_reach = reach::never,
      .put_order = ordering::none,  // SRD
      .add = signal_add::one,       // NIC-written completion counters
      .max_signals = 512,           // published: counters per device, aws-ofi-nccl GIN on EFA
      .max_message = std::uint64_t{1} << 30,  // published: max_rdma_size, rdma-core efadv
      .needs_registered_source = true,
      .charge = {
          .issue_ns = 350,              // assumed: 0.2 to 0.5 us for entry, counter and doorbell
          .latency_ns = 18650,          // derived: a cross-node barrier of 19 us, less one issue
          .channel_bytes_per_s = 25e9,  // measured on p5en: effective rate of one NIC
          .node_bytes_per_s = 400e9,    // measured on p5en: sixteen NICs
      }};
};

/// AWS EFA (SRD, p5en) behind one CPU proxy thread per rank.
struct efa_proxy {
  static constexpr const char* name = "efa-proxy";
  static constexpr int ranks_per_node = 8;
  static constexpr capabilities caps{
      .peer_reach = reach::never,
      .put_order = ordering::none,
      .add = signal_add::one,  // one counted immediate per put
      .max_message = std::uint64_t{1} << 30,
      .needs_registered_source = true,
      .host_progress = true,
      .charge = {
          // derived: 14.7 ms per token over 48 layers x 2 all-to-alls x 15 messages (EP16 on two
          // p5en, Qwen3-30B-A3B); what the receiving proxy spends is inside it
          .issue_ns = 14.7e6 / (48 * 2 * 15),
          .latency_ns = 15000,          // published: OSU 0-byte latency over EFA
          .channel_bytes_per_s = 25e9,  // measured on p5en: effective rate of one NIC
          .node_bytes_per_s = 400e9,    // measured on p5en: sixteen NICs
      }};
};

}  // namespace eptransport::profiles
