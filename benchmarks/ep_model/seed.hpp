// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The published figures that the design starts from, recomputed from the constants.
#pragma once

#include <string>
#include <vector>

namespace eptransport::model {

/// One figure.
struct seed_figure {
  std::string name;
  double given = 0;
  double half_unit = 0;  ///< half a unit of the last digit that was given
  double computed = 0;
  double low = 0;   ///< the least that the rounding of the inputs allows
  double high = 0;  ///< the most
  std::string how;

  /// The given figure, as it was rounded, can come from the inputs, as they were rounded.
  [[nodiscard]] bool agrees() const {
    return low <= given + half_unit && high >= given - half_unit;
  }
};

/// A reading of "2.2 % of the wire".
struct wire_share {
  std::string inputs;
  bool stated = false;  ///< only from inputs that were published with the figure
  double percent = 0;
};

/// Every figure that the model computes.
[[nodiscard]] std::vector<seed_figure> seed_figures();

/// Readings of the share of the wire that a dispatch used, which was given as 2.2 %.
[[nodiscard]] std::vector<wire_share> wire_shares();

/// What is given and used, but not computed: inputs, measurements and fits; one line each.
[[nodiscard]] std::vector<std::string> seed_inputs();

/// All of it for people.
[[nodiscard]] std::string seed_text();

/// All of it as one JSON object.
[[nodiscard]] std::string seed_json();

}  // namespace eptransport::model
