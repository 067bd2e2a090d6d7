// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The explorer finds what it must on systems of a few lines, and agrees with brute force.

#include "explorer.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "brute_force.hpp"
#include "programs.hpp"
#include "protocol.hpp"
#include "rules.hpp"
#include "stop_protocol.hpp"

namespace eptransport::model {
namespace {

// ---- the explorer itself, on systems of a few lines -------------------------------------------

TEST(Explorer, APutThatIsAwaitedReadAndClosedIsSafe) {
  program_set two(2);
  two.write(0, "staging", 7);
  two.put(0, {{"zone"}, "arrived", 7, "staging"});
  two.wait(1, "arrived", 1);
  two.open(1, "zone", 7);
  two.close(1, "zone", 7);
  EXPECT_TRUE(explore(two).safe());
  EXPECT_TRUE(brute_force(two, 2).run().safe());
}

TEST(Explorer, AReadThatDoesNotWaitIsEarly) {
  program_set two(2);
  two.put(0, {{"zone"}, "arrived", 7});
  two.open(1, "zone", 7);
  two.close(1, "zone", 7);
  EXPECT_EQ(explore(two).kind, violation::early_read);
  EXPECT_EQ(brute_force(two).run().kinds.count(violation::early_read), 1U);
}

TEST(Explorer, AnotherSignalSaysNothingAboutAnEarlierPut) {
  program_set two(2);
  two.put(0, {{"zone"}, "first", 7});
  two.put(0, {{}, "second", 0});
  two.wait(1, "second", 1);
  two.open(1, "zone", 7);
  EXPECT_EQ(explore(two).kind, violation::early_read);
  EXPECT_EQ(brute_force(two).run().kinds.count(violation::early_read), 1U);
}

TEST(Explorer, ASecondPutIntoALocationThatIsBeingReadOverwrites) {
  program_set two(2);
  two.put(0, {{"zone"}, "arrived", 1});
  two.put(0, {{"zone"}, "arrived", 2});
  two.wait(1, "arrived", 1);
  two.open(1, "zone", 1);
  two.close(1, "zone", 1);
  EXPECT_EQ(explore(two).kind, violation::overwrite);
  EXPECT_EQ(brute_force(two).run().kinds.count(violation::overwrite), 1U);
}

TEST(Explorer, TwoPutsInFlightToOneLocationLandInEitherOrder) {
  program_set two(2);
  two.put(0, {{"zone"}, "arrived", 1});
  two.put(0, {{"zone"}, "arrived", 2});
  two.wait(1, "arrived", 2);
  two.open(1, "zone", 2);
  two.close(1, "zone", 2);
  EXPECT_EQ(explore(two).kind, violation::overwrite);
  EXPECT_EQ(brute_force(two).run().kinds.count(violation::overwrite), 1U);
}

TEST(Explorer, AReaderThatSaysDoneBeforeItClosesIsOverwritten) {
  for (const bool too_early : {false, true}) {
    program_set two(2);
    two.put(0, {{"zone"}, "arrived", 1});
    two.wait(1, "arrived", 1);
    two.open(1, "zone", 1);
    if (too_early) two.put(1, {{}, "done", 0});
    two.close(1, "zone", 1);
    if (!too_early) two.put(1, {{}, "done", 0});
    two.wait(0, "done", 1);
    two.put(0, {{"zone"}, "arrived", 2});
    EXPECT_EQ(explore(two).kind, too_early ? violation::overwrite : violation::none);
    EXPECT_EQ(brute_force(two).run().kinds.count(violation::overwrite), too_early ? 1U : 0U);
  }
}

TEST(Explorer, AFlushAndNothingLessFreesASource) {
  for (const bool flushed : {false, true}) {
    program_set one(1);
    one.write(0, "staging", 1);
    one.put(0, {{"there"}, "arrived", 1, "staging"});
    if (flushed) one.flush(0);
    one.write(0, "staging", 2);
    EXPECT_EQ(explore(one).kind, flushed ? violation::none : violation::source_reuse);
    EXPECT_EQ(brute_force(one).run().kinds.count(violation::source_reuse), flushed ? 0U : 1U);
  }
}

TEST(Explorer, TwoThatWaitForEachOtherAreADeadlock) {
  program_set two(2);
  for (int rank = 0; rank < 2; ++rank) {
    two.wait(rank, "to " + std::to_string(rank), 1);
    two.put(rank, {{}, "to " + std::to_string(1 - rank), 0});
  }
  EXPECT_EQ(explore(two).kind, violation::deadlock);
  EXPECT_EQ(brute_force(two).run().kinds.count(violation::deadlock), 1U);
}

TEST(Explorer, WhatTheModelCannotExpressIsRefused) {
  program_set two(2);
  two.put(0, {{"zone"}, "arrived", 1});
  two.write(1, "zone", 2);
  EXPECT_EQ(explore(two).kind, violation::malformed);
}

TEST(Explorer, AnExplorationThatIsCutShortIsNotSafe) {
  const row_pattern ones = row_patterns(2, 2, 0).front();
  const program_set programs = programs_of(2, {}, "DCDC", ones);
  EXPECT_EQ(explorer(programs, 5).run().kind, violation::limit);
  EXPECT_FALSE(brute_force(programs, 1, 5).run().safe());
}

// ---- the reduction against brute force --------------------------------------------------------

struct tally {
  std::size_t safe = 0, broken = 0, states = 0;
};

void expect_agreement(const program_set& programs, const std::string& name, tally& sum,
                      int pieces = 1) {
  const verdict reduced = explore(programs);
  const brute_force_result plain = brute_force(programs, pieces).run();
  ASSERT_TRUE(plain.exhaustive) << name << ": " << plain.states << " states";
  ASSERT_NE(reduced.kind, violation::limit) << name;
  ASSERT_EQ(reduced.safe(), plain.safe()) << name << "\n" << reduced.text();
  if (!reduced.safe()) {
    EXPECT_EQ(plain.kinds.count(reduced.kind), 1U) << name << "\n" << reduced.text();
  }
  ++(reduced.safe() ? sum.safe : sum.broken);
  sum.states += plain.states;
}

TEST(Reduction, AgreesWithBruteForceOnCorrectAndBrokenRules) {
  tally sum;
  std::vector<lane_rules> all = correct_rules();
  for (const lane_rules& rules : broken_rules()) all.push_back(rules);
  for (const lane_rules& rules : all) {
    for (const std::string script : {"DDD", "DCD", "DdC", "DCC"}) {
      for (const row_pattern& pattern : row_patterns(2, handles_in(script), 1)) {
        expect_agreement(programs_of(2, rules, script, pattern),
                         title(2, rules, script, pattern.name), sum);
      }
    }
  }
  std::printf("agreed: %zu safe, %zu broken, %zu plain states\n", sum.safe, sum.broken, sum.states);
  EXPECT_GE(sum.safe, 20U);
  EXPECT_GE(sum.broken, 20U);
}

/// Each exchange of two neighbouring steps of a small program: most break it, some do not.
TEST(Reduction, AgreesWithBruteForceOnMutants) {
  tally sum;
  for (const lane_rules& rules : correct_rules()) {
    for (const row_pattern& pattern : row_patterns(2, 2, 1)) {
      const program_set original = programs_of(2, rules, "DCD", pattern);
      for (std::size_t at = 0; at + 1 < original.program(0).size(); ++at) {
        program_set mutant = original;
        mutant.swap_with_next(0, at);
        if (!mutant.defect().empty()) continue;
        expect_agreement(
            mutant, title(2, rules, "DCD", pattern.name) + ", swapped " + std::to_string(at), sum);
      }
    }
  }
  std::printf("agreed: %zu safe, %zu broken, %zu plain states\n", sum.safe, sum.broken, sum.states);
  EXPECT_GE(sum.safe, 20U);
  EXPECT_GE(sum.broken, 20U);
}

TEST(Reduction, AgreesWithBruteForceWhenBytesTear) {
  tally sum;
  std::vector<lane_rules> all = broken_rules();
  all.emplace_back();
  for (lane_rules rules : all) {
    if (rules.staging == source_staging::by_parity) rules.staging = source_staging::unlimited;
    for (const std::string script : {"DD", "DDD"}) {
      for (const std::size_t which : {1U, 2U}) {
        const row_pattern pattern = row_patterns(2, handles_in(script), 0)[which];
        expect_agreement(programs_of(2, rules, script, pattern),
                         title(2, rules, script, pattern.name), sum, 2);
      }
    }
  }
  std::printf("agreed: %zu safe, %zu broken, %zu plain states\n", sum.safe, sum.broken, sum.states);
  EXPECT_GE(sum.safe, 2U);
  EXPECT_GE(sum.broken, 2U);
}

TEST(Reduction, AgreesWithBruteForceOnThreeRanks) {
  tally sum;
  for (lane_rules rules : {lane_rules(), d_signals_without_parity(), single_landing_zone()}) {
    rules.staging = source_staging::unlimited;
    for (const bool summed : {false, true}) {
      rules.summed_signals = summed;
      const row_pattern zeros = row_patterns(3, 2, 0)[1];
      expect_agreement(programs_of(3, rules, "DD", zeros), title(3, rules, "DD", zeros.name), sum);
    }
  }
  std::printf("agreed: %zu safe, %zu broken, %zu plain states\n", sum.safe, sum.broken, sum.states);
}

/// A random system, made from one schedule in which it does nothing wrong.
class random_system {
 public:
  explicit random_system(unsigned seed) : generator_(seed), made_(2) {
    for (int i = 0; i < 12; ++i) step();
    for (const auto& [process, location] : readers_) close(process, location);
  }
  [[nodiscard]] const program_set& programs() const { return made_; }

 private:
  int below(int bound) { return static_cast<int>(generator_() % static_cast<unsigned>(bound)); }
  static std::string zone(int location) { return "zone" + std::to_string(location); }
  static std::string signal(int process) { return "to " + std::to_string(process); }
  [[nodiscard]] bool is_read(int location) const {
    return std::any_of(readers_.begin(), readers_.end(),
                       [&](const auto& one) { return one.second == location; });
  }
  void close(int process, int location) {
    made_.close(process, zone(location), content_[static_cast<std::size_t>(location)]);
  }

  void wait(int process, int count) {
    made_.wait(process, signal(process), count);
    sent_[static_cast<std::size_t>(process)] -= count;
  }

  void step() {
    const int p = below(2);
    const int location = below(2);
    const std::size_t self = static_cast<std::size_t>(p);
    int& tag = content_[static_cast<std::size_t>(location)];
    switch (below(5)) {
      case 0:  // put
        if (is_read(location)) return;
        tag = ++last_tag_;
        made_.put(p, {{zone(location)}, signal(1 - p), tag});
        ++sent_[1 - self];
        return;
      case 1:  // a signal alone
        made_.put(p, {{}, signal(1 - p), 0});
        ++sent_[1 - self];
        return;
      case 2:  // wait, mostly for all that has been sent
        wait(p, below(4) == 0 ? sent_[self] / 2 : sent_[self]);
        return;
      case 3:  // open
        if (tag == 0 || opened_.count({p, tag}) != 0) return;
        opened_.insert({p, tag});
        readers_.emplace_back(p, location);
        made_.open(p, zone(location), tag);
        return;
      default:  // close
        if (readers_.empty()) return;
        close(readers_.front().first, readers_.front().second);
        readers_.erase(readers_.begin());
    }
  }

  std::mt19937 generator_;
  program_set made_;
  std::vector<int> content_ = {0, 0};
  std::vector<int> sent_ = {0, 0};  // to each process, not waited for yet
  int last_tag_ = 0;
  std::set<std::pair<int, int>> opened_;      // (process, tag)
  std::vector<std::pair<int, int>> readers_;  // (process, location), not closed yet
};

TEST(Reduction, AgreesWithBruteForceOnRandomSystems) {
  tally sum;
  constexpr unsigned first_seed = 1;
  constexpr unsigned systems = 1000;
  for (unsigned seed = first_seed; seed < first_seed + systems; ++seed) {
    const random_system one(seed);
    ASSERT_EQ(one.programs().defect(), "") << "seed " << seed;
    expect_agreement(one.programs(), "seed " + std::to_string(seed), sum);
  }
  std::printf("seeds from %u, agreed: %zu safe, %zu broken, %zu plain states\n", first_seed,
              sum.safe, sum.broken, sum.states);
  EXPECT_GE(sum.safe, 20U);
  EXPECT_GE(sum.broken, 20U);
}

TEST(Reduction, AgreesWithBruteForceOnStopMessages) {
  tally sum;
  for (const bool only_heard : {false, true}) {
    for (const row_pattern& pattern : row_patterns(2, 2, 1)) {
      for (const unsigned heard : {0U, 2U}) {
        lane on(2, {}, pattern.rows);
        faulty_run(on, {0, 1, fault_moment::dispatch_recv, heard}, only_heard).run(2, true);
        expect_agreement(on.programs(), "stop, " + pattern.name, sum);
      }
    }
  }
  std::printf("agreed: %zu safe, %zu broken, %zu plain states\n", sum.safe, sum.broken, sum.states);
  EXPECT_GE(sum.safe, 1U);
  EXPECT_GE(sum.broken, 1U);
}

}  // namespace
}  // namespace eptransport::model
