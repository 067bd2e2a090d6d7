// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The work and the wire that a command is asked about.
#pragma once

#include <eptransport/core/cost_model.hpp>
#include <eptransport/core/planner.hpp>
#include <eptransport/core/result.hpp>

#include <cstdint>
#include <string>
#include <vector>

#include "ep_model/cli.hpp"

namespace eptransport::model {

/// As given on the command line; the defaults are the published measurement.
struct work_options {
  std::int64_t ranks = 16;
  std::int64_t nodes = 2;
  std::int64_t tokens = 2;
  std::int64_t top_k = 8;
  std::int64_t experts = 128;
  std::int64_t hidden = 2048;
  std::int64_t layers = 48;
  std::string format = "fp8";
  std::string routing = "uniform";
  std::int64_t seed = 1;
  std::vector<const wire_cost*> wires{&wires::efa_proxy};
  std::int64_t comms = 0;  ///< 0: the planner's choice
  double compute_ms = 36.3;
  double overlap = 0;
  bool no_inner = false;  ///< ranks of a node do not reach each other's memory
  bool free_copies = false;

  /// Adds the options.
  void add_to(arguments& options);
};

/// What they mean.
struct model_case {
  moe_work work;
  routing_spread spread;
  std::vector<std::int64_t> index;  ///< [R * T, k]; filled where it was asked for
};

/// @param with_index  draws every token's experts, for the simulation
/// @par Errors  `invalid_argument`: numbers that contradict each other, unknown formats or traces
[[nodiscard]] result<model_case> case_of(const work_options& options, bool with_index);

/// What the planner may choose on such a machine.
[[nodiscard]] plan_limits limits_of(const work_options& options, const wire_cost& wire);

/// Every shape that a wire can carry.
[[nodiscard]] std::vector<traffic_shape> shapes_on(const wire_cost& wire, bool inner);

/// Sets shapes from a name, or all.
[[nodiscard]] arguments::setter shapes_from(std::vector<traffic_shape>& to);

}  // namespace eptransport::model
