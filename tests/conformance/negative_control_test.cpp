// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The conformance suite can fail: each flaw is found by the case that is there for it.
#include <eptransport/backends/loopback/profiles.hpp>

#include <gtest/gtest.h>

#include <cstdint>

#include "cases.hpp"
#include "cases_hard.hpp"
#include "flawed.hpp"
#include "harness.hpp"
#include "loopback_backend.hpp"

namespace conformance {
namespace {

using eptransport::profiles::efa_gpu;
using eptransport::profiles::efa_proxy;
using eptransport::profiles::ib_gpu;
using eptransport::profiles::nvlink;

#define EPT_FIRST_FAILING_SEED(backend, function)                                                \
  [] {                                                                                           \
    report out;                                                                                  \
    return first_failing_seed<backend>(                                                          \
        [](const auto& request, auto& findings) { function<backend>(request, findings); }, out); \
  }()

template <flaw kFlaw>
using spoilt = flawed_backend<efa_gpu, kFlaw>;

TEST(NegativeControl, TheWrapperWithoutAFlawPasses) {
  using backend = spoilt<flaw::none>;
  EXPECT_EQ(EPT_FIRST_FAILING_SEED(backend, bytes_then_signal), 0U);
  EXPECT_EQ(EPT_FIRST_FAILING_SEED(backend, sources_are_free_after_flush), 0U);
  EXPECT_EQ(EPT_FIRST_FAILING_SEED(backend, counts_survive_the_wrap), 0U);
}

TEST(NegativeControl, SignalsBeforeBytesAreFound) {
  using backend = spoilt<flaw::signals_before_bytes>;
  EXPECT_NE(EPT_FIRST_FAILING_SEED(backend, bytes_then_signal), 0U);
  EXPECT_NE(EPT_FIRST_FAILING_SEED(backend, puts_are_counted), 0U);
  EXPECT_NE(EPT_FIRST_FAILING_SEED(backend, only_counts_tell_arrival), 0U);
}

TEST(NegativeControl, AnEarlyFlushIsFound) {
  using backend = spoilt<flaw::flush_returns_early>;
  EXPECT_NE(EPT_FIRST_FAILING_SEED(backend, sources_are_free_after_flush), 0U);
}

TEST(NegativeControl, DoubleCountsAreFound) {
  using backend = spoilt<flaw::counts_twice>;
  EXPECT_NE(EPT_FIRST_FAILING_SEED(backend, puts_are_counted), 0U);
}

TEST(NegativeControl, UncountedEmptyPutsAreFound) {
  using backend = spoilt<flaw::forgets_empty_puts>;
  EXPECT_NE(EPT_FIRST_FAILING_SEED(backend, empty_messages_count), 0U);
}

TEST(NegativeControl, DroppedPutsAreFound) {
  using backend = spoilt<flaw::drops_when_busy>;
  EXPECT_NE(EPT_FIRST_FAILING_SEED(backend, full_queues_lose_nothing), 0U);
}

TEST(NegativeControl, ShortWaitsAreFound) {
  using backend = spoilt<flaw::waits_for_less>;
  EXPECT_NE(EPT_FIRST_FAILING_SEED(backend, bytes_then_signal), 0U);
  EXPECT_NE(EPT_FIRST_FAILING_SEED(backend, waits_end_at_their_deadline), 0U);
}

TEST(NegativeControl, UnsignedComparisonsAreFoundByTheWrap) {
  using backend = spoilt<flaw::waits_as_unsigned>;
  EXPECT_EQ(EPT_FIRST_FAILING_SEED(backend, puts_are_counted), 0U);
  EXPECT_NE(EPT_FIRST_FAILING_SEED(backend, counts_survive_the_wrap), 0U);
}

TEST(NegativeControl, HiddenExpiriesAreFound) {
  using backend = spoilt<flaw::ignores_deadlines>;
  EXPECT_NE(EPT_FIRST_FAILING_SEED(backend, waits_end_at_their_deadline), 0U);
}

// The receiver that trusts order: what every unordered wire of the simulator must expose, and what
// an ordered one must keep.

TEST(OrderTrustingReceiver, IsExposedByEveryUnorderedProfile) {
  EXPECT_NE(EPT_FIRST_FAILING_SEED(loopback_baton<efa_gpu>, a_flag_covers_earlier_puts), 0U);
  EXPECT_NE(EPT_FIRST_FAILING_SEED(loopback_baton<efa_proxy>, a_flag_covers_earlier_puts), 0U);
  EXPECT_NE(EPT_FIRST_FAILING_SEED(loopback_baton<nvlink>, a_flag_covers_earlier_puts), 0U);
}

TEST(OrderTrustingReceiver, WorksWhereTheProfileKeepsOrderPerChannel) {
  report out;
  const std::uint64_t seed = first_failing_seed<loopback_baton<ib_gpu>>(
      [](const auto& request, auto& findings) {
        a_flag_covers_earlier_puts<loopback_baton<ib_gpu>>(request, findings);
      },
      out);
  EXPECT_EQ(seed, 0U) << out.text();
}

}  // namespace
}  // namespace conformance
