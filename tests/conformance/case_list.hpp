// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief All conformance cases by name: for the typed suite, and for programs in which every rank
/// is a process and one job runs them all.
#pragma once

#include <vector>

#include "cases.hpp"
#include "cases_hard.hpp"
#include "harness.hpp"

/// Name, function, and what the backend `B` must be able to do.
#define EPT_CONFORMANCE_CASES(CASE, AND)                                                       \
  CASE(WindowsStartZeroed, windows_start_zeroed, true)                                         \
  AND CASE(APutDeliversItsBytesThenItsSignal, bytes_then_signal, true)                         \
  AND CASE(NPutsCountN, puts_are_counted, true)                                                \
  AND CASE(SignalsAndPutsWithoutBytesCount, empty_messages_count, true)                        \
  AND CASE(SourcesAreFreeAfterFlush, sources_are_free_after_flush, true)                       \
  AND CASE(OnlyCountsTellArrival, only_counts_tell_arrival, true)                              \
  AND CASE(TheLargestMessageArrives, the_largest_message_arrives, true)                        \
  AND CASE(PeerPointersMatchTheTrait, peer_pointers_match_the_trait, true)                     \
  AND CASE(WaitsEndAtTheirDeadline, waits_end_at_their_deadline, true)                         \
  AND CASE(TheBarrierWaitsForAll, the_barrier_waits_for_all, true)                             \
  AND CASE(ChannelsShareTheWords, channels_share_the_words, true)                              \
  AND CASE(WorkersShareARank, workers_share_a_rank, true)                                      \
  AND CASE(CountsSurviveTheWrapOfTheCounter, counts_survive_the_wrap, B::can_start_counters)   \
  AND CASE(FullQueuesLoseNothing, full_queues_lose_nothing, B::can_limit_queues)               \
  AND CASE(AFailureEndsEveryWait, a_failure_ends_every_wait, B::can_break)

namespace conformance {

/// One case, for a loop over them.
struct named_case {
  const char* name;
  bool possible;  ///< with the backend
  void (*run)(const world_request& request, report& out);
};

/// Every case of the suite, in its order.
template <Backend B>
[[nodiscard]] std::vector<named_case> all_cases() {
#define EPT_ENTRY(name, function, possible) \
  named_case { #name, possible, [](const world_request& r, report& out) { function<B>(r, out); } }
#define EPT_COMMA ,
  return {EPT_CONFORMANCE_CASES(EPT_ENTRY, EPT_COMMA)};
#undef EPT_ENTRY
#undef EPT_COMMA
}

}  // namespace conformance
