// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The wires that the simulator can stand for: what each promises and what it charges.
///
/// What a wire charges, and where each number comes from, is in core/wire_costs.hpp.
#pragma once

#include <eptransport/core/capabilities.hpp>
#include <eptransport/core/config.hpp>
#include <eptransport/core/wire_costs.hpp>

#include <cstdint>

namespace eptransport::profiles {

/// GPUs of one host that load and store each other's memory.
struct nvlink {
  static constexpr const char* name = wires::nvlink.name;
  static constexpr int ranks_per_node = 8;  // HGX and DGX boards with eight GPUs
  static constexpr capabilities caps{
      .peer_reach = reach::always,
      .put_order = ordering::none,  // stores of many threads: only the release orders them
      .add = signal_add::any,       // release reductions
      .charge = wires::nvlink.charge(),
  };
};

/// InfiniBand reliable connections, posted by the GPU (IBGDA).
struct ib_gpu {
  static constexpr const char* name = wires::ib_gpu.name;
  static constexpr int ranks_per_node = 8;
  static constexpr capabilities caps{
      .peer_reach = reach::never,
      .put_order = ordering::per_channel,     // one RC queue pair per channel and peer, no adaptive
                                              // routing of writes
      .add = signal_add::any,                 // fetch-and-add behind a write
      .max_message = std::uint64_t{1} << 31,  // InfiniBand specification: message size
      .needs_registered_source = true,
      .charge = wires::ib_gpu.charge(),
  };
};

/// AWS EFA (SRD, p5en), posted by the GPU: queues and completion counters in GPU memory.
struct efa_gpu {
  static constexpr const char* name = wires::efa_gpu.name;
  static constexpr int ranks_per_node = 8;
  static constexpr capabilities caps{
      .peer_reach = reach::never,
      .put_order = ordering::none,  // SRD
      .add = signal_add::one,       // NIC-written completion counters
      .max_signals = 512,           // published: counters per device, aws-ofi-nccl GIN on EFA
      .max_message = std::uint64_t{1} << 30,  // published: max_rdma_size, rdma-core efadv
      .needs_registered_source = true,
      .charge = wires::efa_gpu.charge(),
  };
};

/// AWS EFA (SRD, p5en) behind one CPU proxy thread per rank.
struct efa_proxy {
  static constexpr const char* name = wires::efa_proxy.name;
  static constexpr int ranks_per_node = 8;
  static constexpr capabilities caps{
      .peer_reach = reach::never,
      .put_order = ordering::none,
      .add = signal_add::one,  // one counted immediate per put
      .max_message = std::uint64_t{1} << 30,
      .needs_registered_source = true,
      .host_progress = true,
      .charge = wires::efa_proxy.charge(),
  };
};

}  // namespace eptransport::profiles
