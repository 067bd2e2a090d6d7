// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The typed suite: `INSTANTIATE_TYPED_TEST_SUITE_P(name, Conformance, backends)`.
///
/// A backend is done when this suite passes; harness.hpp says what the suite needs from it.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>

#include "case_list.hpp"
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

#define EPT_NOTHING
#define EPT_COMMA ,
#define EPT_NAME(name, function, possible) name
#define EPT_TYPED_TEST(name, function, possible)                                          \
  TYPED_TEST_P(Conformance, name) {                                                       \
    using B = TypeParam;                                                                  \
    if constexpr (possible) {                                                             \
      this->must_pass([](const auto& request, auto& out) { function<B>(request, out); }); \
    } else {                                                                              \
      GTEST_SKIP() << "the backend says no to " #possible;                                \
    }                                                                                     \
  }
// The names must be there before gtest makes text of them.
#define EPT_REGISTER(...) REGISTER_TYPED_TEST_SUITE_P(Conformance, __VA_ARGS__)

EPT_CONFORMANCE_CASES(EPT_TYPED_TEST, EPT_NOTHING)
EPT_REGISTER(EPT_CONFORMANCE_CASES(EPT_NAME, EPT_COMMA));

#undef EPT_REGISTER
#undef EPT_TYPED_TEST
#undef EPT_NAME
#undef EPT_COMMA
#undef EPT_NOTHING

}  // namespace conformance
