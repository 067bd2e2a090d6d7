// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Nodes follow from the identity of hosts, not from the numbers of ranks.
#include <eptransport/backends/hybrid/node_map.hpp>

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

namespace eptransport::testing {
namespace {

TEST(NodeMap, HostsMayBeUnequalAndTheirRanksScattered) {
  const std::vector<std::string> hosts{"b", "a", "b", "c", "a", "b"};
  const auto map = node_map::from_hosts(hosts);
  ASSERT_TRUE(map) << map.error().message();
  EXPECT_EQ(map->nodes(), 3);
  EXPECT_EQ(map->node(), (std::vector<std::int32_t>{0, 1, 0, 2, 1, 0}));
  EXPECT_EQ(map->local(), (std::vector<std::int32_t>{0, 0, 1, 0, 1, 2}));
  EXPECT_EQ(map->size(0), 3);
  EXPECT_EQ(map->size(2), 1);
}

TEST(NodeMap, NumbersNeedNotBeginAtZero) {
  const std::vector<int> nodes{7, 7, -2};
  const auto map = node_map::from_numbers(nodes);
  ASSERT_TRUE(map);
  EXPECT_EQ(map->node(), (std::vector<std::int32_t>{0, 0, 1}));
}

TEST(NodeMap, NoRanksAreRefused) {
  const auto none = node_map::from_numbers({});
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().code, errc::invalid_argument);
}

}  // namespace
}  // namespace eptransport::testing
