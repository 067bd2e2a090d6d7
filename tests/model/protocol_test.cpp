// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The lane protocol is safe in every delivery order; each rule, when broken, is missed.

#include "protocol.hpp"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "explorer.hpp"
#include "rules.hpp"
#include "stop_protocol.hpp"

namespace eptransport::model {

namespace {

/// Every assignment of 0 or 1 rows between two ranks.
std::vector<row_pattern> every_pattern_of_two_ranks(int handles) {
  std::vector<row_pattern> all;
  for (unsigned bits = 0; bits < 1U << static_cast<unsigned>(2 * handles); ++bits) {
    row_pattern made{"bits " + std::to_string(bits), {}};
    for (unsigned rest = bits; static_cast<int>(made.rows.size()) < handles; rest >>= 2U) {
      made.rows.push_back(
          {{0, static_cast<int>(rest & 1U)}, {static_cast<int>(rest >> 1U & 1U), 0}});
    }
    all.push_back(std::move(made));
  }
  return all;
}

/// Runs each script with each choice of rules and each pattern, in every delivery order.
template <class PatternsOf>
void expect_safe(int ranks, const std::vector<lane_rules>& choices,
                 const std::vector<std::string>& scripts, PatternsOf patterns_of) {
  std::size_t runs = 0;
  std::size_t states = 0;
  for (const std::string& script : scripts) {
    const std::vector<row_pattern> patterns = patterns_of(handles_in(script));
    for (const row_pattern& pattern : patterns) {
      for (const lane_rules& rules : choices) {
        const verdict found = explore(programs_of(ranks, rules, script, pattern));
        ASSERT_TRUE(found.safe()) << title(ranks, rules, script, pattern.name) << "\n"
                                  << found.text();
        ++runs;
        states += found.states;
      }
    }
    std::printf("%s, %zu patterns, the last: %s\n", script.c_str(), patterns.size(),
                patterns.back().name.c_str());
  }
  std::printf("safe: %d ranks, %zu systems, %zu states\n", ranks, runs, states);
  EXPECT_GT(states, runs);
}

/// The patterns of `row_patterns`, of which `random` are random with up to `most` rows.
auto mixed_patterns(int ranks, int random, int most = 1) {
  return [=](int handles) { return row_patterns(ranks, handles, random, most); };
}

/// One of the patterns must lead to a violation, the first one of exactly this kind.
void expect_broken(int ranks, const lane_rules& rules, const std::string& script,
                   violation expected) {
  for (const row_pattern& pattern : row_patterns(ranks, handles_in(script), 8)) {
    const verdict found = explore(programs_of(ranks, rules, script, pattern));
    if (found.safe()) continue;
    const std::string name = title(ranks, rules, script, pattern.name);
    std::printf("%s:\n%s", name.c_str(), found.text().c_str());
    EXPECT_EQ(found.kind, expected) << name;
    ASSERT_FALSE(found.trace.empty());
    EXPECT_EQ(found.trace.back(), found.what);
    EXPECT_EQ(found.what.rfind(name_of(expected), 0), 0U) << found.what;
    return;
  }
  ADD_FAILURE() << "not found broken: " << title(ranks, rules, script, "all patterns");
}

// ---- the protocol as it is --------------------------------------------------------------------

TEST(LaneProtocol, IsSafeForTwoRanksAndFiveEpochs) {
  expect_safe(2, correct_rules(), {"DCDCDCDCDC", "DDDDD", "DDCDCDDC", "DDCCdDC"},
              mixed_patterns(2, 100, 2));
}

TEST(LaneProtocol, IsSafeForTwoRanksAndEveryPatternOfSingleRows) {
  expect_safe(2, correct_rules(), {"DCDCDCDCDC", "DDDDD"}, every_pattern_of_two_ranks);
}

TEST(LaneProtocol, IsSafeForThreeRanksAndFourEpochs) {
  expect_safe(3, correct_rules(), {"DCDCDCDC", "DDDD", "DDCDDC"}, mixed_patterns(3, 30));
}

TEST(LaneProtocol, IsSafeWithACachedHandleAfterAZeroByteExchange) {
  expect_safe(2, correct_rules(), {"Ddddd", "DCdCdCDCdC", "DddCDd"}, mixed_patterns(2, 30, 2));
  expect_safe(3, correct_rules(), {"Dddd", "DdCDdC"}, mixed_patterns(3, 10));
}

TEST(LaneProtocol, IsSafeWhenALoneCombineIsOpenedByAnEmptyExchange) {
  expect_safe(2, correct_rules(), {"DCCCCC", "DDCCdCC"}, mixed_patterns(2, 30, 2));
  expect_safe(3, correct_rules(), {"DCCCC", "DDCCC"}, mixed_patterns(3, 10));
}

TEST(LaneProtocol, IsSafeWithASingleStagingThatIsFlushed) {
  expect_safe(2, {single_staging(true)}, {"DCDCDCDCDC", "DDDDD"}, mixed_patterns(2, 30, 2));
  expect_safe(3, {single_staging(true)}, {"DCDCDCDC", "DDDD"}, mixed_patterns(3, 10));
}

// ---- one broken rule at a time ----------------------------------------------------------------

TEST(BrokenRule, ASingleLandingZoneIsOverwritten) {
  expect_broken(2, single_landing_zone(), "DCDCDC", violation::overwrite);
  expect_broken(3, single_landing_zone(), "DDD", violation::overwrite);
}

TEST(BrokenRule, DSignalsWithoutParityCountTheNextEpoch) {
  for (const bool summed : {false, true}) {
    lane_rules rules = d_signals_without_parity();
    rules.summed_signals = summed;
    expect_broken(2, rules, "DDD", violation::early_read);
    expect_broken(3, rules, "DCDCDC", violation::early_read);
  }
}

TEST(BrokenRule, RowSignalsWithoutParityCountTheNextEpochWhenDispatchesFollowEachOther) {
  for (const bool summed : {false, true}) {
    lane_rules rules = row_signals_without_parity();
    rules.summed_signals = summed;
    expect_broken(2, rules, "DDD", violation::early_read);
    expect_broken(3, rules, "DDD", violation::early_read);
  }
}

TEST(BrokenRule, APeerThatGetsNoDMessageRunsAhead) {
  expect_broken(2, no_d_message_to_empty_peers(), "DDD", violation::overwrite);
  expect_broken(3, no_d_message_to_empty_peers(), "DDD", violation::overwrite);
}

TEST(BrokenRule, ASingleStagingWithoutFlushIsRewrittenBeforeItIsRead) {
  expect_broken(2, single_staging(false), "DCDCDC", violation::source_reuse);
  expect_broken(3, single_staging(false), "DDD", violation::source_reuse);
}

TEST(BrokenRule, TheNextDispatchSentBeforeThisOneIsReceivedOverwritesAZone) {
  expect_broken(2, next_send_before_receive(), "DDD", violation::overwrite);
  expect_broken(3, next_send_before_receive(), "DDD", violation::overwrite);
}

TEST(BrokenRule, ACachedDispatchWithoutExchangeOverwritesAZone) {
  expect_broken(2, cached_dispatch_without_exchange(), "Dddd", violation::overwrite);
  expect_broken(3, cached_dispatch_without_exchange(), "Dddd", violation::overwrite);
}

TEST(BrokenRule, TwoCombinesWithoutAnExchangeBetweenThemCollide) {
  expect_broken(2, lone_combine_without_exchange(), "DCC", violation::overwrite);
  expect_broken(3, lone_combine_without_exchange(), "DCC", violation::overwrite);
}

TEST(BrokenRule, RanksThatChooseDifferentShapesReadRowsThatHaveNotLanded) {
  expect_broken(2, one_rank_of_another_shape(), "D", violation::early_read);
}

TEST(BrokenRule, RanksThatChooseDifferentShapesWaitForEver) {
  lane_rules rules{.shape = message_shape::per_row, .rank_of_other_shape = 0};
  const row_pattern only_rank_0_sends = row_patterns(2, 1, 0)[2];
  const verdict found = explore(programs_of(2, rules, "D", only_rank_0_sends));
  EXPECT_EQ(found.kind, violation::deadlock) << found.text();
}

// ---- the stop message -------------------------------------------------------------------------

struct stop_sweep {
  std::size_t runs = 0, states = 0;
  verdict bad;
};

/// Every rank, epoch, moment and set of peers heard from.
std::vector<fault> every_fault(int ranks, int epochs, bool combines) {
  std::vector<fault> faults;
  for (int rank = 0; rank < ranks; ++rank) {
    for (int epoch = 0; epoch < epochs; ++epoch) {
      for (unsigned heard = 0; heard < 1U << static_cast<unsigned>(ranks); ++heard) {
        if ((heard >> static_cast<unsigned>(rank) & 1U) != 0) continue;
        faults.push_back({rank, epoch, fault_moment::dispatch_recv, heard});
      }
      if (!combines) continue;
      faults.push_back({rank, epoch, fault_moment::before_combine});
      faults.push_back({rank, epoch, fault_moment::after_combine});
    }
  }
  return faults;
}

/// Explores all faults until the first violation.
stop_sweep sweep_faults(int ranks, const lane_rules& rules, bool combines, bool only_heard) {
  const int epochs = ranks == 2 ? 5 : 4;
  stop_sweep sum;
  for (const row_pattern& pattern : row_patterns(ranks, epochs, 4)) {
    for (const fault& one : every_fault(ranks, epochs, combines)) {
      lane on(ranks, rules, pattern.rows);
      faulty_run(on, one, only_heard).run(epochs, combines);
      sum.bad = explore(on.programs());
      ++sum.runs;
      sum.states += sum.bad.states;
      if (!sum.bad.safe()) return sum;
    }
  }
  return sum;
}

std::vector<lane_rules> per_source_rules() {
  std::vector<lane_rules> all = correct_rules();
  std::erase_if(all, [](const lane_rules& rules) { return rules.summed_signals; });
  return all;
}

TEST(StopMessage, ReachesEveryPeerThatWasHeardAndOverwritesNothing) {
  for (const int ranks : {2, 3}) {
    stop_sweep all;
    for (const lane_rules& rules : per_source_rules()) {
      for (const bool combines : {false, true}) {
        const stop_sweep sum = sweep_faults(ranks, rules, combines, true);
        ASSERT_TRUE(sum.bad.safe()) << sum.bad.text();
        all.runs += sum.runs;
        all.states += sum.states;
      }
    }
    std::printf("stop: %d ranks, %zu systems, %zu states\n", ranks, all.runs, all.states);
  }
}

TEST(StopMessage, ToAPeerWhoseDMessageHasNotArrivedOverwritesItsZone) {
  for (const bool combines : {false, true}) {
    for (const int ranks : {2, 3}) {
      // Rank 0 gives up in epoch 1 before any D message has come, and tells everybody.
      lane on(ranks, {}, row_patterns(ranks, 3, 0).front().rows);
      faulty_run(on, {0, 1, fault_moment::dispatch_recv, 0}, false).run(3, combines);
      const verdict found = explore(on.programs());
      std::printf("stop to all, %d ranks:\n%s", ranks, found.text().c_str());
      EXPECT_EQ(found.kind, violation::overwrite);
      EXPECT_EQ(found.what.rfind("OVERWRITE: r0: put zone0.0>1 tag 1002", 0), 0U) << found.what;
    }
  }
}

TEST(StopMessage, ToEverybodyIsFoundBrokenBySweepingAllFaults) {
  for (const bool combines : {false, true}) {
    EXPECT_EQ(sweep_faults(2, {}, combines, false).bad.kind, violation::overwrite);
    EXPECT_EQ(sweep_faults(3, {}, combines, false).bad.kind, violation::overwrite);
  }
}

}  // namespace
}  // namespace eptransport::model
