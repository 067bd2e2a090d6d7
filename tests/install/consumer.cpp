// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The program that each way of consuming the library must build and run.
#include <eptransport/backends/loopback/loopback.hpp>
#include <eptransport/kernels/kernels.hpp>

#include <atomic>

/// Two ranks of the simulator meet; all that a consumer's build can get wrong is needed for that.
int main() {
  using world_type = eptransport::loopback_world<eptransport::profiles::nvlink>;
  const auto world = world_type::create({.ranks = 2, .window_bytes = 4096, .signals = 1});
  if (!world) return 1;
  std::atomic<int> met = 0;
  (*world)->run([&met](auto& rank) { met += rank.barrier(1'000'000'000).has_value() ? 1 : 0; });
  return met == 2 ? 0 : 1;
}
