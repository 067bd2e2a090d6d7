// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief What a proxied world of one process refuses to build.
#include <eptransport/backends/proxied/proxied.hpp>
#include <eptransport/backends/proxied/wires.hpp>

#include <gtest/gtest.h>

#include <cstddef>
#include <string>
#include <vector>

namespace eptransport::testing {
namespace {

TEST(ProxiedWorld, OneWindowCannotServeAllItsRanks) {
  std::vector<std::byte> memory(4096);
  const auto made = proxied_world<memory_wire>::create(
      {.ranks = 2, .window_bytes = 4096, .window = memory, .signals = 1});
  ASSERT_FALSE(made);
  EXPECT_EQ(made.error().code, errc::unsupported);
  EXPECT_NE(made.error().message().find("ranks that stand alone"), std::string::npos);
}

}  // namespace
}  // namespace eptransport::testing
