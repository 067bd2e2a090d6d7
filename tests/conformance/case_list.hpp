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
#define EPT_CONFORMANCE_CASES(CASE)                                                      \
  CASE(WindowsStartZeroed, windows_start_zeroed, true)                                   \
  CASE(APutDeliversItsBytesThenItsSignal, bytes_then_signal, true)                       \
  CASE(NPutsCountN, puts_are_counted, true)                                              \
  CASE(SignalsAndPutsWithoutBytesCount, empty_messages_count, true)                      \
  CASE(SourcesAreFreeAfterFlush, sources_are_free_after_flush, true)                     \
  CASE(OnlyCountsTellArrival, only_counts_tell_arrival, true)                            \
  CASE(TheLargestMessageArrives, the_largest_message_arrives, true)                      \
  CASE(PeerPointersMatchTheTrait, peer_pointers_match_the_trait, true)                   \
  CASE(WaitsEndAtTheirDeadline, waits_end_at_their_deadline, true)                       \
  CASE(TheBarrierWaitsForAll, the_barrier_waits_for_all, true)                           \
  CASE(ChannelsShareTheWords, channels_share_the_words, true)                            \
  CASE(WorkersShareARank, workers_share_a_rank, true)                                    \
  CASE(CountsSurviveTheWrapOfTheCounter, counts_survive_the_wrap, B::can_start_counters) \
  CASE(FullQueuesLoseNothing, full_queues_lose_nothing, B::can_limit_queues)             \
  CASE(AFailureEndsEveryWait, a_failure_ends_every_wait, B::can_break)

namespace conformance {

/// One case, for a loop over them.
struct named_case {
  const char* name;
  void (*run)(const world_request& request, report& out);
};

/// Every case of the suite, in its order, for a backend that can do all that they ask for.
template <Backend B>
  requires(B::can_start_counters && B::can_limit_queues && B::can_break)
[[nodiscard]] std::vector<named_case> all_cases() {
#define EPT_ENTRY(name, function, possible) \
  {#name, [](const world_request& r, report& out) { function<B>(r, out); }},
  return {EPT_CONFORMANCE_CASES(EPT_ENTRY)};
#undef EPT_ENTRY
}

}  // namespace conformance
