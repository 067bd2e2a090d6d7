// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief One emulated queue pair: what it was told, what it has fetched, what is on its way.
#pragma once

#include <eptransport/core/config.hpp>
#include <eptransport/gdaki/emulator/outcome.hpp>
#include <eptransport/gdaki/emulator/request.hpp>
#include <eptransport/gdaki/emulator/setup.hpp>
#include <eptransport/gdaki/emulator/violation.hpp>

#include <cstdint>
#include <deque>
#include <vector>

namespace eptransport::gdaki::emulator::detail {

/// A request on its way.
struct job {
  request what{};
  std::uint64_t number = 0;  ///< requests of this queue pair before it
  bool started = false;
  std::vector<std::uint32_t> chunks;  ///< payload pieces still to deliver, next one last
  std::vector<local_range> target;    ///< of a message: the receive buffer
  std::uint16_t receive_id = 0;
  std::uint64_t stalled = 0;  ///< steps to wait
};

/// A completion that the poster has not been told of.
struct notice {
  request what{};
  std::uint64_t number = 0;
  std::uint8_t status = 0;  ///< in the format's numbers
};

struct queue_pair {
  queue_pair_setup setup{};
  std::uint32_t remote_nic = 0;  ///< mlx5: the connected peer
  std::uint32_t remote_qpn = no_queue;
  bool failed = false;   ///< mlx5: error state, everything is flushed
  bool stopped = false;  ///< after a violation: nothing more happens

  std::uint64_t fetched = 0;             ///< slots
  std::uint64_t finished = 0;            ///< slots whose request was reported or executed quietly
  std::uint64_t requests = 0;            ///< fetched
  std::uint64_t receives = 0;            ///< receive entries used
  std::vector<std::uint64_t> registers;  ///< last value seen of each doorbell register
  std::deque<job> active;
  std::deque<notice> notices;
};

/// Queue pair numbers are a NIC's own.
[[nodiscard]] inline std::uint64_t key_of(std::uint32_t nic, std::uint32_t qpn) noexcept {
  return std::uint64_t{nic} << 32U | qpn;
}

}  // namespace eptransport::gdaki::emulator::detail
