// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief What the planner says of a work, and what would turn its verdict on all-gather.
#pragma once

#include <string>
#include <vector>

#include "ep_model/work.hpp"

namespace eptransport::model {

/// One lever, alone, and what it does to dispatch per peer against all-gather.
struct lever {
  std::string name{};
  bool flips = false;        ///< with it dispatch is the cheaper one
  double value = 0;          ///< where it flips; 0 = nowhere, or at once
  double dispatch_ns = 0;    ///< of a pair, at that value or at the lever's end
  double all_gather_ns = 0;  ///< likewise
  std::string remark{};
};

/// Each lever alone, from dispatch per peer on `wire` with one comm.
[[nodiscard]] std::vector<lever> levers_of(const model_case& c, const wire_cost& wire);

/// The same for people.
[[nodiscard]] std::string levers_text(const model_case& c, const wire_cost& wire);

}  // namespace eptransport::model
