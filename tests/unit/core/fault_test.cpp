// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Fault records become lines that name who, where, what was expected and what was seen.
#include <eptransport/core/fault.hpp>

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <type_traits>

namespace eptransport {
namespace {

static_assert(std::is_trivially_copyable_v<fault_record>);

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST(Fault, AnExpiredWaitNamesStagePeerSignalAndBothCounts) {
  const fault_record f{.kind = fault_kind::expired,
                       .where = stage::dispatch_recv,
                       .rank = 3,
                       .peer = 5,
                       .signal = 17,
                       .expected = 12,
                       .seen = 11,
                       .epoch = 40};
  const std::string text = describe(f);
  for (const char* part : {"rank 3", "dispatch_recv", "epoch 40", "deadline passed", "peer 5",
                           "signal 17", "expected 12", "seen 11"}) {
    EXPECT_TRUE(has(text, part)) << part << " is not in: " << text;
  }
}

TEST(Fault, AStoppedPeerPassesOnItsCauseAndItsCulprit) {
  fault_record f{.kind = fault_kind::peer_stopped,
                 .where = stage::combine_recv,
                 .rank = 0,
                 .peer = 1,
                 .expected = 64,
                 .seen = 65};
  f.cause = fault_kind::too_many_tokens;
  f.culprit = 2;
  const std::string text = describe(f);
  EXPECT_TRUE(has(text, "peer 1")) << text;
  EXPECT_TRUE(has(text, "too many tokens")) << text;
  EXPECT_TRUE(has(text, "rank 2")) << text;
  f.culprit = 1;
  EXPECT_FALSE(has(describe(f), "it names")) << describe(f);
}

TEST(Fault, LimitsNameBothNumbers) {
  const fault_record tokens{.kind = fault_kind::too_many_tokens, .expected = 128, .seen = 129};
  EXPECT_TRUE(has(describe(tokens), "129 tokens, at most 128")) << describe(tokens);
  const fault_record rows{.kind = fault_kind::capacity, .expected = 1000, .seen = 1001};
  EXPECT_TRUE(has(describe(rows), "1001 rows needed, room for 1000")) << describe(rows);
  const fault_record index{.kind = fault_kind::bad_index, .expected = 256, .seen = 300};
  EXPECT_TRUE(has(describe(index), "300")) << describe(index);
}

TEST(Fault, EveryKindAndStageHasANameOfItsOwn) {
  std::set<std::string> names;
  for (auto k = std::uint32_t{0}; k <= static_cast<std::uint32_t>(fault_kind::misuse); ++k) {
    const std::string name = to_string(static_cast<fault_kind>(k));
    EXPECT_NE(name, "unknown");
    EXPECT_TRUE(names.insert(name).second) << name;
  }
  names.clear();
  for (auto s = std::uint32_t{0}; s <= static_cast<std::uint32_t>(stage::combine_recv); ++s) {
    const std::string name = to_string(static_cast<stage>(s));
    EXPECT_NE(name, "unknown");
    EXPECT_TRUE(names.insert(name).second) << name;
  }
  EXPECT_EQ(std::string(to_string(static_cast<stage>(999))), "unknown");
  EXPECT_EQ(std::string(to_string(static_cast<fault_kind>(999))), "unknown");
}

TEST(Fault, BecomesAFailureWithTheCodeOfItsKind) {
  const fault_record f{.kind = fault_kind::expired, .where = stage::rows, .rank = 1};
  const failure why = to_failure(f, "dispatch");
  EXPECT_EQ(why.code, errc::timed_out);
  EXPECT_EQ(why.message(), "dispatch: timed out: " + describe(f));
  EXPECT_EQ(to_errc(fault_kind::peer_stopped), errc::peer_stopped);
  EXPECT_EQ(to_errc(fault_kind::mismatch), errc::mismatch);
  EXPECT_EQ(to_errc(fault_kind::too_many_tokens), errc::capacity);
  EXPECT_EQ(to_errc(fault_kind::capacity), errc::capacity);
  EXPECT_EQ(to_errc(fault_kind::bad_index), errc::bad_index);
  EXPECT_EQ(to_errc(fault_kind::misuse), errc::misuse);
  EXPECT_EQ(to_errc(fault_kind::transport_failed), errc::transport_failed);
}

}  // namespace
}  // namespace eptransport
