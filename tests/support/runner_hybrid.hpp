// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The setting of a pair of simulated wires.
#pragma once

#include <eptransport/backends/hybrid/loopback_hybrid.hpp>

#include <cstdint>

#include "support/runner_impl.hpp"

namespace eptransport::support {

/// nvlink inside the nodes, `Outer` between them.
template <class Outer>
struct hybrid_setting {
  using transport = typename hybrid_world<profiles::nvlink, Outer>::transport;
  using world = hybrid_world<profiles::nvlink, Outer>;
  static constexpr bool counts = true;

  [[nodiscard]] static loopback_options options_of(const run_config& config,
                                                   std::uint64_t window_bytes,
                                                   std::uint32_t signals) {
    return loopback_setting<Outer>::options_of(config, window_bytes, signals);
  }
  [[nodiscard]] static wire_charge charge(const run_config& config) {
    return config.charge.value_or(Outer::caps.charge);
  }
};

}  // namespace eptransport::support
