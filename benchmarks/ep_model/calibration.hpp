// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Fits a wire's constants to measured calls, and says how well they predict what they have
/// not seen.
#pragma once

#include <eptransport/core/cost_model.hpp>
#include <eptransport/core/result.hpp>

#include <cstdint>
#include <string>
#include <vector>

namespace eptransport::model {

/// One measured call: a line of ep_bench's JSON, dispatch or combine.
struct measured_call {
  std::string wire;
  std::string shape;
  std::string mode;
  std::string call;   ///< "dispatch" or "combine"
  std::string clock;  ///< "modelled" or "measured"
  std::int64_t ranks = 0;
  std::int64_t tokens = 0;
  double messages = 0;  ///< per rank
  double bytes = 0;     ///< per rank
  double ns = 0;
  bool held_out = false;  ///< kept from the fit
  double predicted_ns = 0;
};

/// Constants that explain the calls of one wire, shape, mode and call.
struct calibration {
  std::string wire;
  std::string shape;
  std::string mode;
  std::string call;
  std::string clock;
  bool issuer_copies = false;  ///< the form that fitted better: issue and bytes add up
  double fixed_ns = 0;         ///< whatever the messages and bytes: latency, routing, sums
  double issue_ns = 0;
  double bytes_per_s = 0;
  std::vector<measured_call> points{};
  double fitted_median = 0;  ///< of |predicted / measured - 1| over the points of the fit
  double held_out_median = 0;
  double held_out_worst = 0;
  std::int64_t held_out = 0;
};

/// Reads JSON lines of ep_bench.
/// @par Errors  `invalid_argument`: what is missing in which line
[[nodiscard]] result<std::vector<measured_call>> read_calls(const std::string& path);

/// Fits each (wire, shape, mode, call) on its own; every second size in between, by bytes, is held
/// out. Groups with fewer than four sizes are left out.
[[nodiscard]] std::vector<calibration> calibrate(std::vector<measured_call> calls);

/// For people, and as CSV with one row per point.
[[nodiscard]] std::string calibration_text(const std::vector<calibration>& all);
[[nodiscard]] std::string calibration_csv(const std::vector<calibration>& all);

}  // namespace eptransport::model
