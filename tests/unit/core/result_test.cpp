// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Results hold a value or a failure, and failures read well.
#include <eptransport/core/result.hpp>

#include <gtest/gtest.h>

#include <memory>
#include <set>
#include <string>
#include <system_error>

namespace eptransport {
namespace {

result<int> half(int value) {
  if (value % 2 != 0) return failure{errc::invalid_argument, "half", "3 is odd"};
  return value / 2;
}

result<void> check(bool ok) {
  if (!ok) return failure{std::make_error_code(std::errc::io_error), "check", ""};
  return {};
}

TEST(Result, HoldsItsValue) {
  const result<int> four = half(8);
  ASSERT_TRUE(four.has_value());
  EXPECT_TRUE(static_cast<bool>(four));
  EXPECT_EQ(*four, 4);
  result<std::string> text = std::string("abc");
  text->push_back('d');
  EXPECT_EQ(*text, "abcd");
}

TEST(Result, HoldsItsFailure) {
  const result<int> none = half(3);
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().code, errc::invalid_argument);
  EXPECT_EQ(none.error().message(), "half: invalid argument: 3 is odd");
}

TEST(Result, CarriesValuesThatOnlyMove) {
  result<std::unique_ptr<int>> owner(std::make_unique<int>(5));
  const std::unique_ptr<int> taken = *std::move(owner);
  EXPECT_EQ(*taken, 5);
}

TEST(Result, WithoutAValueKeepsNativeCodes) {
  EXPECT_TRUE(check(true));
  const result<void> failed = check(false);
  ASSERT_FALSE(failed);
  EXPECT_EQ(failed.error().code, std::errc::io_error);
  EXPECT_EQ(failed.error().message().rfind("check: ", 0), 0U);
  EXPECT_EQ(failed.error().message().back(), failed.error().code.message().back());
}

TEST(Result, EveryCodeHasAMessageOfItsOwn) {
  std::set<std::string> messages;
  for (int value = 1; value <= static_cast<int>(errc::transport_failed); ++value) {
    const std::error_code code = static_cast<errc>(value);
    EXPECT_TRUE(static_cast<bool>(code));
    EXPECT_NE(code.message(), "unknown error") << value;
    EXPECT_TRUE(messages.insert(code.message()).second) << code.message();
  }
  EXPECT_EQ(std::error_code(9999, error_category()).message(), "unknown error");
  EXPECT_EQ(std::string(error_category().name()), "eptransport");
}

}  // namespace
}  // namespace eptransport
