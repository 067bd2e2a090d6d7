// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief One rank of a run in a process of its own, over libfabric, and how the ranks' findings
/// come together.
#pragma once

#include <eptransport/proxy/bootstrap/bootstrap.hpp>
#include <eptransport/proxy/endpoints/detail/fabric_provider.hpp>

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "support/runner.hpp"
#include "support/verdict.hpp"

namespace eptransport::support {

/// What one rank found out.
struct rank_outcome {
  std::string error;  ///< why it could not begin; empty if it did
  rank_report report{};
  rank_verdict verdict{};
  std::string fault;  ///< of its transport, empty if none
  bool intact = true;
  std::uint64_t commands = 0;
  std::uint64_t messages = 0;
  std::uint64_t slot_bytes = 0;
  std::string statistics;  ///< of comm 0, as JSON
  std::string affinity;    ///< of its first proxy thread
  std::string provider;
  double wall_ns = 0;
  int node = 0;
};

/// Runs the rank of this process. `config.ranks` is the bootstrap's size.
[[nodiscard]] rank_outcome run_rank(const run_config& config, bootstrap& meeting,
                                    const proxy::fabric_options& fabric);

/// For a pipe or an all-gather among processes of one program.
[[nodiscard]] std::string packed(const rank_outcome& outcome);
/// What did not come whole says so in its `error`.
[[nodiscard]] rank_outcome unpacked(std::span<const std::byte> bytes);

/// One result of all ranks' outcomes, as `run` makes it of threads.
[[nodiscard]] run_result joined(const run_config& config, std::vector<rank_outcome> outcomes);

}  // namespace eptransport::support
