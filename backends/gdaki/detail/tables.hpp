// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief What a rank's view reads: its queues, its peers' addresses and keys, its signal words.
///
/// Plain data, filled once by the host, read by every thread that posts or waits. Pointers are
/// valid where those threads run.
#pragma once

#include <eptransport/core/config.hpp>
#include <eptransport/core/transport.hpp>
#include <eptransport/gdaki/segment.hpp>

#include <cstddef>
#include <cstdint>

namespace eptransport::gdaki_detail {

/// Registered behind every window: where a signal without bytes comes from and goes to, and where
/// the old value of an atomic ends up. Nobody reads any of it.
inline constexpr std::uint64_t scratch_bytes = 64;
inline constexpr std::uint64_t scratch_source = 0;  ///< own, 4 bytes
inline constexpr std::uint64_t scratch_target = 8;  ///< a peer's, 4 bytes
inline constexpr std::uint64_t scratch_old = 16;    ///< own, 8 bytes

/// Where the scratch of a window begins.
[[nodiscard]] EPT_HOST_DEVICE constexpr std::uint64_t scratch_of(
    std::uint64_t window_bytes) noexcept {
  return (window_bytes + 63) / 64 * 64;
}

/// One rank as another one names it.
struct peer_memory {
  gdaki::remote_range window{};  ///< its first byte; the scratch lies behind it
  gdaki::remote_range words{};   ///< its signal words, where peers add to them
};

/// The first thing that went wrong, in memory that a rank's threads reach with atomics.
///
/// `what`: 0 nothing; 1 `request` contradicts the contract; 2 + i: queue i has a fault.
struct rank_fault {
  std::uint64_t what = 0;
  std::uint64_t claimed = 0;  ///< whoever fills `request`
  put_request request{};
  std::uint32_t channel = 0;

  static constexpr std::uint64_t refused = 1;
  static constexpr std::uint64_t first_queue = 2;
};

/// A send queue and to whom its entries go.
template <class Queue>
struct posting_queue {
  Queue queue{};
  std::uint32_t* slot_peer = nullptr;  ///< [slots], the rank that the entry in a slot names
};

/// Everything.
template <class Wire>
struct tables {
  using queue_type = posting_queue<typename Wire::queue>;

  std::int32_t rank = 0;
  std::int32_t ranks = 1;
  std::uint32_t channels = 1;
  std::uint32_t signals = 0;
  std::byte* window = nullptr;
  std::uint64_t window_bytes = 0;
  std::uint32_t lkey = 0;                          ///< of window and scratch
  std::uint32_t queue_count = 0;                   ///< channels * Wire::queues_per_channel(ranks)
  const queue_type* queues = nullptr;              ///< [queue_count], channel by channel
  const std::int32_t* nodes = nullptr;             ///< [ranks]
  const peer_memory* peers = nullptr;              ///< [ranks]
  const typename Wire::target* targets = nullptr;  ///< [signals + 1][ranks]; some wires have none
  const std::uint64_t* words = nullptr;            ///< [signals]
  rank_fault* fault = nullptr;
};

}  // namespace eptransport::gdaki_detail
