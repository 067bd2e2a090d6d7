// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The typed suite: `INSTANTIATE_TYPED_TEST_SUITE_P(name, Conformance, backends)`.
///
/// A backend is done when this suite passes; harness.hpp says what the suite needs from it.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>

#include "cases.hpp"
#include "cases_hard.hpp"
#include "harness.hpp"

namespace conformance {

template <class B>
class Conformance : public ::testing::Test {
 protected:
  template <class Case>
  static void must_pass(const Case& run_case) {
    report out;
    const std::uint64_t seed = first_failing_seed<B>(run_case, out);
    EXPECT_EQ(seed, 0U) << "seed " << seed << ":\n" << out.text();
  }
};

TYPED_TEST_SUITE_P(Conformance);

#define EPT_CONFORMANCE_CASE(name, function)                                                    \
  TYPED_TEST_P(Conformance, name) {                                                             \
    this->must_pass([](const auto& request, auto& out) { function<TypeParam>(request, out); }); \
  }

EPT_CONFORMANCE_CASE(WindowsStartZeroed, windows_start_zeroed)
EPT_CONFORMANCE_CASE(APutDeliversItsBytesThenItsSignal, bytes_then_signal)
EPT_CONFORMANCE_CASE(NPutsCountN, puts_are_counted)
EPT_CONFORMANCE_CASE(SignalsAndPutsWithoutBytesCount, empty_messages_count)
EPT_CONFORMANCE_CASE(SourcesAreFreeAfterFlush, sources_are_free_after_flush)
EPT_CONFORMANCE_CASE(OnlyCountsTellArrival, only_counts_tell_arrival)
EPT_CONFORMANCE_CASE(TheLargestMessageArrives, the_largest_message_arrives)
EPT_CONFORMANCE_CASE(PeerPointersMatchTheTrait, peer_pointers_match_the_trait)
EPT_CONFORMANCE_CASE(WaitsEndAtTheirDeadline, waits_end_at_their_deadline)
EPT_CONFORMANCE_CASE(TheBarrierWaitsForAll, the_barrier_waits_for_all)
EPT_CONFORMANCE_CASE(ChannelsShareTheWords, channels_share_the_words)
EPT_CONFORMANCE_CASE(WorkersShareARank, workers_share_a_rank)

#undef EPT_CONFORMANCE_CASE

// Cases that need something which not every backend can be told to do.
TYPED_TEST_P(Conformance, CountsSurviveTheWrapOfTheCounter) {
  if constexpr (TypeParam::can_start_counters) {
    this->must_pass([](const auto& r, auto& out) { counts_survive_the_wrap<TypeParam>(r, out); });
  } else {
    GTEST_SKIP() << "the backend's counters start where they like";
  }
}

TYPED_TEST_P(Conformance, FullQueuesLoseNothing) {
  if constexpr (TypeParam::can_limit_queues) {
    this->must_pass([](const auto& r, auto& out) { full_queues_lose_nothing<TypeParam>(r, out); });
  } else {
    GTEST_SKIP() << "the backend's queues cannot be limited";
  }
}

TYPED_TEST_P(Conformance, AFailureEndsEveryWait) {
  if constexpr (TypeParam::can_break) {
    this->must_pass([](const auto& r, auto& out) { a_failure_ends_every_wait<TypeParam>(r, out); });
  } else {
    GTEST_SKIP() << "the backend cannot be made to fail";
  }
}

REGISTER_TYPED_TEST_SUITE_P(Conformance, WindowsStartZeroed, APutDeliversItsBytesThenItsSignal,
                            NPutsCountN, SignalsAndPutsWithoutBytesCount, SourcesAreFreeAfterFlush,
                            OnlyCountsTellArrival, TheLargestMessageArrives,
                            PeerPointersMatchTheTrait, WaitsEndAtTheirDeadline,
                            TheBarrierWaitsForAll, ChannelsShareTheWords, WorkersShareARank,
                            CountsSurviveTheWrapOfTheCounter, FullQueuesLoseNothing,
                            AFailureEndsEveryWait);

}  // namespace conformance
