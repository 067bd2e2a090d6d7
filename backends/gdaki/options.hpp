// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief How a world of emulated NICs is built: ranks, queues, drivers, what goes wrong.
#pragma once

#include <eptransport/core/config.hpp>
#include <eptransport/gdaki/emulator/setup.hpp>
#include <eptransport/gdaki/queue_memory.hpp>

#include <cstdint>
#include <vector>

namespace eptransport {

/// Who drives the emulated NICs.
enum class nic_drive {
  thread,  ///< a host thread; ranks run on real threads and the steady clock
  /// Nobody: ranks run one at a time, and whoever waits steps the NICs and passes on, as the seed
  /// says. Replayable; the clock is virtual, so that a time-out costs no time.
  baton,
};

/// Something that goes wrong with the requests of one send queue.
struct gdaki_fault {
  /// What.
  enum class kind : std::uint8_t {
    fail,             ///< the request completes with `status`; nothing was delivered
    lose_completion,  ///< it is executed and never reported
    repeat_completion,
    stall,           ///< it is executed only after `steps` further steps of its queue
    bad_remote_key,  ///< the rank has a wrong key for `peer`'s window
    bad_local_key,   ///< the rank has a wrong key for its own window
    bad_handle,      ///< EFA: the rank addresses `peer` by a handle that does not exist
  };

  int rank = 0;  ///< whose
  kind what = kind::fail;
  std::uint32_t channel = 0;
  int peer = 0;               ///< mlx5: which connection; keys and handles: whose
  std::uint64_t request = 0;  ///< of the queue, in the order of posting; mlx5 counts both of a put
  std::uint8_t status = 0;    ///< in the format's numbers
  std::uint32_t steps = 0;
};

/// A NIC that dies: it fetches nothing more and answers nobody.
struct gdaki_death {
  int rank = 0;
  std::uint64_t after = 0;  ///< requests that it still fetches
};

/// What a world is made of.
struct gdaki_options {
  int ranks = 2;
  std::uint64_t window_bytes = 0;  ///< per rank
  std::uint32_t signals = 0;       ///< words per rank
  std::uint32_t channels = 1;
  std::vector<int> nodes = {};      ///< node of each rank; empty: 8 ranks a node
  std::uint32_t workers = 1;        ///< host threads per rank and launch
  std::uint64_t counter_start = 0;  ///< first value of every signal word
  std::uint32_t queue_slots = 256;  ///< of each send queue, a power of two, at most 32768
  std::uint64_t first_index = 0;    ///< of each send queue
  gdaki::ring_home home = gdaki::ring_home::host;  ///< where queues lie, seen from the poster
  std::uint32_t max_batch = 16;                    ///< EFA: entries that a doorbell may cover
  std::uint32_t ring_every = 1;      ///< a doorbell per that many entries, a power of two
  std::uint32_t max_counters = 512;  ///< EFA: completion counters of the device
  gdaki::emulator::schedule_options schedule = {};  ///< its seed is `seed`
  nic_drive drive = nic_drive::thread;
  std::uint64_t seed = 1;
  std::vector<gdaki_fault> faults = {};
  std::vector<gdaki_death> deaths = {};
};

}  // namespace eptransport
