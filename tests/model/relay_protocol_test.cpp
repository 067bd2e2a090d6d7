// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Dispatch and combine through relays in every delivery order; a broken rule is missed.

#include "relay_protocol.hpp"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdio>
#include <string>
#include <vector>

#include "brute_force.hpp"
#include "explorer.hpp"
#include "rules.hpp"

namespace eptransport::model {
namespace {

program_set relayed(const std::vector<int>& nodes, const relay_rules& rules,
                    const std::string& script, const row_pattern& pattern) {
  relay_lane lane(nodes, rules, pattern.rows);
  lane.run(script);
  EXPECT_EQ(lane.programs().defect(), "");
  return lane.programs();
}

void expect_safe(const std::vector<int>& nodes, const std::string& script, int random) {
  std::size_t states = 0;
  const auto ranks = static_cast<int>(nodes.size());
  const auto patterns = row_patterns(ranks, handles_in(script), random);
  for (const row_pattern& pattern : patterns) {
    const verdict found = explore(relayed(nodes, {}, script, pattern));
    ASSERT_TRUE(found.safe()) << script << ", " << pattern.name << "\n" << found.text();
    states += found.states;
  }
  std::printf("safe: %d ranks, %s, %zu patterns, %zu states\n", ranks, script.c_str(),
              patterns.size(), states);
}

/// One of the patterns must lead to a violation, the first one of exactly this kind.
void expect_broken(const std::vector<int>& nodes, const relay_rules& rules,
                   const std::string& script, violation expected) {
  const auto ranks = static_cast<int>(nodes.size());
  for (const row_pattern& pattern : row_patterns(ranks, handles_in(script), 4)) {
    const verdict found = explore(relayed(nodes, rules, script, pattern));
    if (found.safe()) continue;
    std::printf("%s, %s:\n%s", script.c_str(), pattern.name.c_str(), found.text().c_str());
    EXPECT_EQ(found.kind, expected);
    return;
  }
  ADD_FAILURE() << "not found broken: " << script;
}

const std::vector<int> two_and_one{0, 0, 1};
const std::vector<int> two_and_two{0, 0, 1, 1};

TEST(RelayProtocol, IsSafeForUnequalNodes) {
  expect_safe(two_and_one, "DCDCDCDC", 10);
  expect_safe(two_and_one, "DDDD", 4);
  expect_safe(two_and_one, "DCCDC", 4);
}

TEST(RelayProtocol, IsSafeForTwoNodesOfTwo) {
  expect_safe(two_and_two, "DDDD", 0);
  expect_safe(two_and_two, "DCDCDC", 2);
}

TEST(RelayProtocol, IsSafeForThreeNodes) {
  expect_safe({0, 0, 1, 2}, "DCD", 2);
}

TEST(RelayProtocol, BruteForceAgreesWithTheExplorer) {
  const program_set small = relayed({0, 1}, {}, "DCD", row_patterns(2, 2, 0).front());
  EXPECT_TRUE(explore(small).safe());
  const brute_force_result all = brute_force(small).run();
  EXPECT_TRUE(all.safe()) << all.states << " states";
}

TEST(BrokenRelay, ASingleRelayZoneIsOverwritten) {
  expect_broken(two_and_one, {.relay_zones_by_parity = false}, "DDD", violation::overwrite);
  expect_broken(two_and_two, {.relay_zones_by_parity = false}, "DDD", violation::overwrite);
}

TEST(BrokenRelay, RelaySignalsWithoutParityCountTheNextEpoch) {
  expect_broken(two_and_one, {.relay_signals_by_parity = false}, "DDD", violation::early_read);
}

TEST(BrokenRelay, RelaysThatWaitForTheirOwnRowsFirstWaitForEachOther) {
  expect_broken(two_and_two, {.forwards_before_own = false}, "D", violation::deadlock);
}

TEST(BrokenRelay, RelaysThatWaitForTheirOwnReturnsFirstWaitForEachOther) {
  expect_broken(two_and_two, {.returns_before_own = false}, "DC", violation::deadlock);
}

TEST(BrokenRelay, ASenderThatGatesOnItsRailsAloneOverwritesAZone) {
  expect_broken(two_and_one, {.gates_on_all = false}, "DDDD", violation::overwrite);
}

TEST(BrokenRelay, ALoneCombineWithoutAnExchangeRewritesWhatARelayStillSends) {
  expect_broken(two_and_one, {.exchange_before_lone_combine = false}, "DCCC",
                violation::source_reuse);
}

}  // namespace
}  // namespace eptransport::model
