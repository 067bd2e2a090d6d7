// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Rails and relays: every source of another node has one relay, at a place of its own.
#include <eptransport/kernels/relay_layout.hpp>
#include <eptransport/kernels/relay_plan.hpp>

#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <set>
#include <vector>

namespace eptransport::testing {
namespace {

TEST(RelayLayout, EverySourceHasOneRelayPerOtherNodeAndAPlaceThere) {
  std::mt19937_64 random(20);
  for (int round = 0; round < 200; ++round) {
    const auto ranks = static_cast<std::int32_t>(1 + random() % 24);
    std::vector<std::int32_t> nodes;
    for (std::int32_t r = 0; r < ranks; ++r) {
      nodes.push_back(static_cast<std::int32_t>(random() % 6) * 3 + 1);
    }
    const detail::node_words words(nodes, ranks);
    const node_table table = words.at(words.words().data());
    ASSERT_EQ(table.nodes, static_cast<std::int32_t>(std::set(nodes.begin(), nodes.end()).size()));
    const detail::relay_extent most = detail::extent_of(table, ranks);
    std::int32_t served = 0;
    for (std::int32_t relay = 0; relay < ranks; ++relay) {
      std::int32_t index = 0;
      for (relayed_sources at(table, relay); !at.done(); at.next(), ++index) {
        EXPECT_EQ(at.index(), index);
        EXPECT_NE(nodes[static_cast<std::size_t>(at.source())],
                  nodes[static_cast<std::size_t>(relay)]);
        EXPECT_EQ(table.rail(at.source(), table.node[relay]), relay);
        EXPECT_EQ(relayed_index(table, at.source(), table.node[relay]), index);
      }
      EXPECT_EQ(relayed_count(table, relay), index);
      EXPECT_LE(index, most.sources);
      served += index;
    }
    EXPECT_EQ(served, ranks * (table.nodes - 1)) << "each source by one relay per other node";
  }
}

TEST(RelayLayout, WithoutANodeMapEightRanksShareANode) {
  const detail::node_words words({}, 20);
  const node_table table = words.at(words.words().data());
  EXPECT_EQ(table.nodes, 3);
  EXPECT_EQ(table.size(0), 8);
  EXPECT_EQ(table.size(2), 4);
  EXPECT_EQ(table.rail(7, 2), 19) << "local index 7, modulo 4";
  EXPECT_EQ(detail::extent_of(table, 20).sources, 4) << "two of each node of eight";
}

}  // namespace
}  // namespace eptransport::testing
