// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief What each rank of a run finds out on its own, and how it becomes one result.
#pragma once

#include <string>
#include <vector>

#include "support/runner.hpp"

namespace eptransport::support {

/// One rank's findings; only its own thread writes them.
struct rank_verdict {
  int iteration = -1;  ///< of the first difference
  std::string call;
  std::string difference;
  std::vector<double> dispatch_ns;  ///< one per call
  std::vector<double> combine_ns;
  std::vector<double> dispatch_copy_ns;  ///< with `run_config::copy_baseline`
  std::vector<double> combine_copy_ns;
  std::vector<double> dispatch_payload;
  std::vector<double> combine_payload;
  message_shape message = message_shape::automatic;
  std::string reason;

  [[nodiscard]] bool found() const { return !difference.empty(); }
  void note(int at_iteration, std::string at_call, std::string what) {
    if (found()) return;
    iteration = at_iteration;
    call = std::move(at_call);
    difference = std::move(what);
  }
};

/// The first difference of all ranks, and the times.
///
/// @param measured  on a real clock: the first call of each kind is left out, if there are more
void sum_up(const run_config& config, const std::vector<rank_verdict>& verdicts, bool measured,
            run_result& out);

}  // namespace eptransport::support
