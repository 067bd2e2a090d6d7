// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The command ring is correct in every interleaving, and each broken rule is found broken.

#include "ring_model.hpp"

#include <gtest/gtest.h>

#include <string>

namespace eptransport::model {
namespace {

std::string text_of(const ring_verdict& v) {
  std::string text = v.wrong + "\n";
  for (const std::string& line : v.trace) text += "  " + line + "\n";
  return text;
}

void expect_correct(const ring_rules& rules) {
  const ring_verdict v = ring_explorer(rules).run();
  EXPECT_EQ(v.wrong, "") << text_of(v);
  EXPECT_GT(v.states, 100U);
}

void expect_broken(const ring_rules& rules, const std::string& how) {
  const ring_verdict v = ring_explorer(rules).run();
  EXPECT_NE(v.wrong.find(how), std::string::npos) << "found: " << text_of(v);
}

TEST(RingModel, OneProducerIsCorrectInEveryInterleaving) {
  expect_correct({.slots = 2, .commands = 7});
  expect_correct({.slots = 3, .commands = 7});
  expect_correct({.slots = 4, .commands = 6, .publish_every = 1});
  expect_correct({.slots = 4, .commands = 9, .publish_every = 4, .publish_when_dry = false});
}

TEST(RingModel, ProducersThatShareAHeadAreCorrectInEveryInterleaving) {
  expect_correct({.slots = 2, .commands = 3, .producers = 2});
  expect_correct({.slots = 3, .commands = 3, .producers = 2});
}

TEST(RingModel, ParityInOneWordAloneMixesTwoCommands) {
  ring_rules rules{.slots = 2, .commands = 3};
  rules.parity_in_both_words = false;
  // Two stores without release may be seen in either order, as two halves of one may.
  rules.entry_releases = false;
  expect_broken(rules, "are of two commands");
}

TEST(RingModel, EntriesThatDoNotReleaseComeBeforeTheirPayload) {
  ring_rules rules{.slots = 2, .commands = 3};
  rules.entry_releases = false;
  expect_broken(rules, "the payload of command");
}

TEST(RingModel, SlotsThatAreNeitherClearedNorMarkedByLapAreTakenTwice) {
  ring_rules rules{.slots = 2, .commands = 4};
  rules.lap_in_parity = false;
  expect_broken(rules, "lost, repeated or out of order");
}

TEST(RingModel, AProducerThatTrustsInRoomOverwrites) {
  ring_rules rules{.slots = 2, .commands = 5};
  rules.looks_at_tail = false;
  EXPECT_NE(ring_explorer(rules).run().wrong, "");
}

TEST(RingModel, ATailThatIsPublishedBeforeThePayloadIsReadLosesIt) {
  ring_rules rules{.slots = 2, .commands = 5};
  rules.reads_before_tail = false;
  expect_broken(rules, "the payload of command");
}

TEST(RingModel, ATailThatIsNeverPublishedStopsTheRing) {
  ring_rules rules{.slots = 2, .commands = 5};
  rules.publish_every = 100;
  rules.publish_when_dry = false;
  expect_broken(rules, "nothing can move");
}

}  // namespace
}  // namespace eptransport::model
