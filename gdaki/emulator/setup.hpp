// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief What an emulated device is told when queues are made, and the faults it is to show.
#pragma once

#include <eptransport/core/config.hpp>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace eptransport::gdaki::emulator {

/// Which device it plays.
enum class wire : std::uint8_t {
  efa,   ///< SRD: any order, every request completes alone
  mlx5,  ///< RC: in order, an error stops the queue pair
};

/// A completion queue. The ring starts zeroed (EFA), filled with 0xf1 or 0xff (mlx5).
struct completion_queue_setup {
  wire format = wire::efa;
  std::byte* ring = nullptr;
  std::uint32_t entries = 0;                ///< a power of two
  std::uint32_t entry_bytes = 0;            ///< 16 or 32, or 64
  bool collapsed = false;                   ///< mlx5: every completion goes to entry 0
  const std::uint32_t* consumer = nullptr;  ///< mlx5: null = overruns are not looked for
};

/// No completion queue.
inline constexpr std::uint32_t no_queue = ~std::uint32_t{0};

/// The send half of a queue pair.
struct send_ring_setup {
  const std::byte* ring = nullptr;
  std::uint32_t slots = 0;                ///< entries (EFA) or blocks (mlx5), a power of two
  std::uint32_t entry_bytes = 64;         ///< 64 or 128 (EFA), 64 (mlx5)
  std::uint32_t max_batch = 0;            ///< EFA: 0 = not looked at
  std::uint64_t first = 0;                ///< index of the first entry
  const std::uint32_t* record = nullptr;  ///< mlx5
  std::vector<const void*> doorbells;     ///< registers: 4 bytes (EFA) or 8 (mlx5), several halves
};

/// The receive half of a queue pair; null ring: it takes no messages.
struct receive_ring_setup {
  const std::byte* ring = nullptr;
  std::uint32_t slots = 0;
  std::uint32_t stride = 16;                ///< bytes per entry
  const std::uint32_t* doorbell = nullptr;  ///< the register (EFA) or the record (mlx5)
};

/// Words that the device counts in; null: not counted.
struct counter_setup {
  std::uint64_t* completed = nullptr;      ///< own requests that succeeded
  std::uint64_t* failed = nullptr;         ///< own requests that failed
  std::uint64_t* remote_writes = nullptr;  ///< writes of peers that arrived on this queue pair
};

/// One queue pair.
struct queue_pair_setup {
  wire format = wire::efa;
  std::uint32_t nic = 0;
  std::uint32_t qpn = 0;
  std::uint32_t qkey = 0;               ///< EFA
  std::uint32_t user_index = 0;         ///< mlx5: libmlx5 finds the queue pair by it
  std::uint32_t send_queue = no_queue;  ///< completion queue numbers, of `add_completion_queue`
  std::uint32_t receive_queue = no_queue;
  send_ring_setup send{};
  receive_ring_setup receive{};
  counter_setup counters{};
  bool waits_for_receive = false;   ///< true: a message waits for a buffer; false: it fails
  bool unsolicited_writes = false;  ///< EFA: a write with immediate takes no receive entry
};

/// What goes wrong with one request.
enum class mishap : std::uint8_t {
  fail,               ///< it completes with `status`, nothing was delivered
  lose_completion,    ///< it is executed and never reported
  repeat_completion,  ///< it is reported twice
  stall,              ///< it is executed only after `steps` further steps of its queue pair
};

/// One planned fault.
struct planned_fault {
  std::uint32_t nic = 0;
  std::uint32_t qpn = 0;
  std::uint64_t request = 0;  ///< counted from 0 in the order of posting
  mishap what = mishap::fail;
  std::uint8_t status = 0;  ///< `fail`: in the format's numbers
  std::uint32_t steps = 0;  ///< `stall`
};

/// How requests are scheduled.
struct schedule_options {
  std::uint64_t seed = 1;
  std::uint32_t reorder_window =
      64;                           ///< EFA: how many requests of a queue pair overtake each other
  std::uint32_t chunk_bytes = 128;  ///< payload arrives in pieces of that size, EFA in any order
};

}  // namespace eptransport::gdaki::emulator
