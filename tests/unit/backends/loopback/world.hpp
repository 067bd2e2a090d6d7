// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Short forms for tests of the simulator.
#pragma once

#include <eptransport/backends/loopback/loopback.hpp>

#include <cstdint>
#include <memory>

namespace eptransport::testing_loopback {

inline constexpr host_thread alone;

/// A world that must exist; a null pointer ends the test at its first use.
template <class Profile>
std::unique_ptr<loopback_world<Profile>> make(const loopback_options& options) {
  auto world = loopback_world<Profile>::create(options);
  return world ? std::move(*world) : nullptr;
}

/// Promises nothing and charges round numbers.
struct round_numbers {
  static constexpr const char* name = "round-numbers";
  static constexpr int ranks_per_node = 2;
  static constexpr capabilities caps{
      .max_message = 4096,
      .inline_bytes = 8,
      .needs_registered_source = true,
      .host_progress = true,
      .charge = {.issue_ns = 1000, .arrive_ns = 0, .latency_ns = 5000, .channel_bytes_per_s = 1e9}};
};

}  // namespace eptransport::testing_loopback
