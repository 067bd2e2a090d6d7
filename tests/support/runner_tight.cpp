// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The runner on a wire with short messages and few signal words, which no product has: what
/// fits one message elsewhere travels in several here.
#include <eptransport/core/capabilities.hpp>

#include <cstdint>

#include "support/runner_impl.hpp"
#include "support/runner_wires.hpp"

namespace eptransport::support {
namespace {

struct tight {
  static constexpr int ranks_per_node = 4;
  static constexpr capabilities caps{.peer_reach = reach::never,
                                     .put_order = ordering::none,
                                     .add = signal_add::one,
                                     .max_signals = 60,
                                     .max_message = 8192,
                                     .charge = {.issue_ns = 1000, .channel_bytes_per_s = 1e9}};
};

}  // namespace

run_result run_tight(const run_config& config, const router& routes) {
  return run_on_wire<tight>(config, routes);
}

}  // namespace eptransport::support
