// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief What a decode cluster makes of the calls: tokens per second, per user and in all.
#pragma once

#include <string>
#include <vector>

#include "ep_model/work.hpp"

namespace eptransport::model {

/// A way to communicate, and what the cluster does with it.
struct rollout_row {
  std::string way;
  double pair_ns = 0;          ///< of a layer, simulated, slowest rank
  double tax_ms = 0;           ///< per step
  double tokens_per_user = 0;  ///< per second
  double tokens_per_cluster = 0;
  double against_dense = 0;  ///< cluster throughput over that without any of this tax
};

/// The cluster.
struct rollout_setting {
  work_options work;        ///< of one instance: its ranks, nodes, tokens
  std::int64_t nodes = 48;  ///< of the cluster
};

/// Simulates one pair of calls per way.
/// @par Errors  as `case_of`
[[nodiscard]] result<std::vector<rollout_row>> rollout_of(const rollout_setting& setting);

/// The same for people, with every assumption.
[[nodiscard]] result<std::string> rollout_text(const rollout_setting& setting);

}  // namespace eptransport::model
