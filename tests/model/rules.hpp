// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The choices of rules that the tests explore: the correct ones, and each way to break one.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "programs.hpp"
#include "protocol.hpp"

namespace eptransport::model {

inline int handles_in(const std::string& script) {
  return static_cast<int>(std::count(script.begin(), script.end(), 'D'));
}

inline program_set programs_of(int ranks, const lane_rules& rules, const std::string& script,
                               const row_pattern& pattern) {
  lane one(ranks, rules, pattern.rows);
  one.run(script);
  return one.programs();
}

inline std::string title(int ranks, const lane_rules& rules, const std::string& script,
                         const std::string& pattern) {
  return std::to_string(ranks) + " ranks, " + script +
         (rules.shape == message_shape::per_peer ? ", per peer" : ", per row") +
         (rules.summed_signals ? ", summed" : ", per source") +
         (rules.output_in_place ? ", in place, " : ", copied, ") + pattern;
}

/// Every correct choice that a group may be built with.
inline std::vector<lane_rules> correct_rules() {
  std::vector<lane_rules> all;
  for (const message_shape shape : {message_shape::per_peer, message_shape::per_row}) {
    for (const bool summed : {false, true}) {
      for (const bool in_place : {false, true}) {
        lane_rules rules;
        rules.shape = shape;
        rules.summed_signals = summed;
        rules.output_in_place = in_place;
        all.push_back(rules);
      }
    }
  }
  return all;
}

// ---- the broken protocols ---------------------------------------------------------------------
// Where a broken rule also lets staging be rewritten too early, staging is left out, so that the
// trace shows the landing zone.

inline lane_rules single_landing_zone() {
  return {.zones_by_parity = false};
}

inline lane_rules d_signals_without_parity() {
  return {.d_signals_by_parity = false};
}

inline lane_rules row_signals_without_parity() {
  return {.shape = message_shape::per_row, .row_signals_by_parity = false};
}

inline lane_rules no_d_message_to_empty_peers() {
  return {.staging = source_staging::unlimited, .d_message_to_every_peer = false};
}

inline lane_rules single_staging(bool flushed) {
  return {.staging = source_staging::single, .flush_after_send = flushed};
}

inline lane_rules next_send_before_receive() {
  return {.staging = source_staging::unlimited, .receive_before_next_send = false};
}

inline lane_rules cached_dispatch_without_exchange() {
  return {.shape = message_shape::per_row,
          .staging = source_staging::unlimited,
          .cached_dispatch_exchanges = false};
}

inline lane_rules lone_combine_without_exchange() {
  return {.exchange_before_lone_combine = false};
}

inline lane_rules one_rank_of_another_shape() {
  return {.rank_of_other_shape = 0};
}

inline std::vector<lane_rules> broken_rules() {
  return {single_landing_zone(),           d_signals_without_parity(),
          row_signals_without_parity(),    no_d_message_to_empty_peers(),
          single_staging(false),           next_send_before_receive(),
          lone_combine_without_exchange(), cached_dispatch_without_exchange(),
          one_rank_of_another_shape()};
}

}  // namespace eptransport::model
