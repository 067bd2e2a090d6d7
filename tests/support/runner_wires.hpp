// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The runner for each wire; each family of wires is compiled in a file of its own.
#pragma once

#include <eptransport/core/capabilities.hpp>

#include <cstdint>
#include <string>

#include "support/routing.hpp"
#include "support/runner.hpp"

namespace eptransport::support {

/// Short messages and few signal words: what fits one message elsewhere travels in several here.
struct tight_profile {
  static constexpr const char* name = "tight";
  static constexpr int ranks_per_node = 4;
  static constexpr capabilities caps{.peer_reach = reach::never,
                                     .put_order = ordering::none,
                                     .add = signal_add::one,
                                     .max_signals = 60,
                                     .max_message = 8192,
                                     .charge = {.issue_ns = 1000, .channel_bytes_per_s = 1e9}};
};

/// Why nobody can run `config`; empty if it makes sense.
[[nodiscard]] std::string wrong_with(const run_config& config);
/// The routing that it names.
[[nodiscard]] result<router> routes_of(const run_config& config);

run_result run_nvlink(const run_config& config, const router& routes);
run_result run_ib_gpu(const run_config& config, const router& routes);
run_result run_efa_gpu(const run_config& config, const router& routes);
run_result run_efa_proxy(const run_config& config, const router& routes);
run_result run_proxy_memory(const run_config& config, const router& routes);
run_result run_proxy_srd(const run_config& config, const router& routes);
run_result run_gdaki_efa(const run_config& config, const router& routes);
run_result run_gdaki_mlx5(const run_config& config, const router& routes);
run_result run_hybrid(const run_config& config, const router& routes);
run_result run_hybrid_tight(const run_config& config, const router& routes);
run_result run_tight(const run_config& config, const router& routes);

}  // namespace eptransport::support
