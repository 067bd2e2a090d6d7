// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief What a rank must know to join a job: who it is, where rank 0 waits, what must be alike.
#pragma once

#include <eptransport/core/config.hpp>

#include <cstdint>
#include <string>

namespace eptransport {

/// Of `tcp_bootstrap::join`. `rank_launch` fills the first five from a launcher's environment.
struct bootstrap_options {
  std::int32_t rank = 0;
  std::int32_t size = 1;
  std::string host = "127.0.0.1";  ///< rank 0's address, name or number
  std::uint16_t port = 0;          ///< where rank 0 listens; the same on all ranks
  /// The job's shared secret, the same on all ranks, not empty: a connection whose other end does
  /// not know it is turned away. Long and random (`openssl rand -hex 16`), or it keeps only
  /// mistakes out.
  std::string token{};

  std::string config{};  ///< settings that must be alike on all ranks, at most 1024 bytes; compared
  std::string host_identity{};  ///< overrides what tells hosts apart; empty: asked of the system
  /// Rank 0: a listening TCP socket to use instead of a new one, which takes `host` and `port` from
  /// it; closed by `join` on every path. -1: none.
  int listener = -1;

  std::uint64_t timeout_ns = 120'000'000'000;  ///< for `join`
  std::uint64_t beat_ns = 1'000'000'000;  ///< between signs of life; rank 0's value holds for all
  /// Without a beat, a rank is lost; rank 0's value holds. Until it is known, how long this rank
  /// waits for an answer at rank 0's address before it tries again.
  std::uint64_t silence_ns = 5'000'000'000;
};

}  // namespace eptransport
