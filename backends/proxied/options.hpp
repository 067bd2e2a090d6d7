// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief How a proxied world is built: ranks, comms, rings, who drives the engines.
#pragma once

#include <eptransport/core/config.hpp>
#include <eptransport/core/result.hpp>
#include <eptransport/proxy/driver.hpp>
#include <eptransport/proxy/endpoints/memory.hpp>
#include <eptransport/proxy/endpoints/srd.hpp>
#include <eptransport/proxy/options.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace eptransport {

/// Who steps the engines.
enum class proxy_drive {
  threads,  ///< a thread per engine, as in production
  shared,   ///< `driver_threads` threads for all engines: for machines with fewer cores
  /// No thread: ranks run one at a time, and whoever waits steps the engines and passes on, as the
  /// seed says. Replayable; the clock is virtual, so that a time-out costs no time.
  baton,
};

/// What a world is made of.
struct proxied_options {
  int ranks = 2;
  std::uint64_t window_bytes = 0;  ///< per rank
  /// Of a rank that stands alone: the window, zeroed and outliving the rank, instead of one that is
  /// made here; such as the window of the other wire of a hybrid. `window_bytes` is its size. Where
  /// kernels of a GPU use it, whole pages.
  std::span<std::byte> window = {};
  /// Keeps that window alive, also for a proxy thread that had to be left behind
  /// (`proxied_rank::close`); such as `shared_memory::window_owner()`.
  std::shared_ptr<const void> window_owner = {};
  std::uint32_t signals = 0;    ///< words per rank, each of them once per comm
  std::uint32_t channels = 1;   ///< per rank, each with a ring; channel c uses comm c mod `comms`
  std::uint32_t comms = 1;      ///< engines per rank, each with an endpoint of its own
  std::vector<int> nodes = {};  ///< node of each rank; empty: 8 ranks a node
  std::uint32_t workers = 1;    ///< host threads per rank and launch
  std::uint64_t counter_start = 0;   ///< first value of every signal
  std::uint64_t ring_slots = 1024;   ///< a power of two
  std::uint64_t first_position = 0;  ///< of every ring
  proxy::engine_options engine = {};
  proxy::memory_options wire = {};
  proxy::srd_options srd = {};  ///< for wires that are decorated; its seed is `seed`
  proxy_drive drive = proxy_drive::threads;
  std::uint32_t driver_threads = 1;   ///< `shared`
  proxy::driver_options driver = {};  ///< `cpus`: thread i is pinned to entry i, if any
  std::uint64_t seed = 1;
  int broken_rank = -1;  ///< its endpoints fail at their first post
};

namespace proxied_detail {

/// Checks what no part would.
[[nodiscard]] inline result<void> check(const proxied_options& o) {
  const auto refuse = [](const std::string& why) {
    return failure{errc::invalid_argument, "proxied_world::create", why};
  };
  const auto number = [](auto value) { return std::to_string(value); };
  if (o.ranks < 1) return refuse(number(o.ranks) + " ranks, at least 1 is needed");
  if (o.channels < 1) return refuse("0 channels, at least 1 is needed");
  if (o.workers < 1) return refuse("0 workers, at least 1 is needed");
  if (o.comms < 1) return refuse("0 comms, at least 1 is needed");
  if (o.drive == proxy_drive::shared && o.driver_threads < 1) {
    return refuse("0 driver threads, at least 1 is needed");
  }
  if (!o.nodes.empty() && o.nodes.size() != static_cast<std::size_t>(o.ranks)) {
    return refuse("the node list has " + number(o.nodes.size()) + " entries for " +
                  number(o.ranks) + " ranks");
  }
  return {};
}

}  // namespace proxied_detail
}  // namespace eptransport
