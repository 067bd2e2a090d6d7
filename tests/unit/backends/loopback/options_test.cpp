// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Worlds that cannot be built say why, with the numbers; those that can are as asked.
#include <eptransport/backends/loopback/loopback.hpp>
#include <eptransport/backends/loopback/options.hpp>
#include <eptransport/backends/loopback/profiles.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

namespace eptransport {
namespace {

using profiles::efa_gpu;
using profiles::efa_proxy;
using profiles::ib_gpu;
using profiles::nvlink;

template <class Profile>
std::string why_not(const loopback_options& options) {
  const auto world = loopback_world<Profile>::create(options);
  if (world) return "";
  EXPECT_EQ(world.error().code, errc::invalid_argument);
  return world.error().message();
}

TEST(LoopbackOptions, RefusesWorldsWithoutRanksChannelsWorkersOrPieces) {
  EXPECT_NE(why_not<nvlink>({.ranks = 0}).find("0 ranks"), std::string::npos);
  EXPECT_NE(why_not<nvlink>({.ranks = -3}).find("-3 ranks"), std::string::npos);
  EXPECT_NE(why_not<nvlink>({.channels = 0}).find("0 channels"), std::string::npos);
  EXPECT_NE(why_not<nvlink>({.workers = 0}).find("0 workers"), std::string::npos);
  EXPECT_NE(why_not<nvlink>({.max_chunks = 0}).find("max_chunks"), std::string::npos);
}

TEST(LoopbackOptions, RefusesMoreSignalsThanTheWireHasAndNamesBothNumbers) {
  EXPECT_EQ(why_not<efa_gpu>({.signals = 512}), "");
  const std::string why = why_not<efa_gpu>({.signals = 513});
  EXPECT_NE(why.find("513"), std::string::npos) << why;
  EXPECT_NE(why.find("512"), std::string::npos) << why;
  EXPECT_EQ(why_not<efa_proxy>({.signals = 5000}), "");
}

TEST(LoopbackOptions, RefusesNodeListsThatDoNotFit) {
  const std::string why = why_not<nvlink>({.ranks = 3, .nodes = {0, 0}});
  EXPECT_NE(why.find("2 entries for 3 ranks"), std::string::npos) << why;
  EXPECT_NE(why_not<nvlink>({.ranks = 2, .nodes = {0, -1}}).find("node -1"), std::string::npos);
}

TEST(LoopbackOptions, RefusesFaultsForRanksThatDoNotExist) {
  EXPECT_NE(why_not<nvlink>({.faults = {{.rank = 2}}}).find("rank 2 of 2"), std::string::npos);
}

TEST(LoopbackOptions, ReportsWindowsThatDoNotFitIntoMemory) {
  const auto world = loopback_world<nvlink>::create({.window_bytes = std::uint64_t{1} << 63});
  ASSERT_FALSE(world);
  EXPECT_EQ(world.error().code, errc::out_of_memory);
  EXPECT_NE(world.error().message().find("9223372036854775808 bytes"), std::string::npos);
}

TEST(LoopbackOptions, PlacesRanksByTheProfileUnlessANodeListIsGiven) {
  auto usual = loopback_world<efa_proxy>::create({.ranks = 17});
  ASSERT_TRUE(usual);
  EXPECT_EQ((*usual)->rank(0).view().node(7), 0);
  EXPECT_EQ((*usual)->rank(0).view().node(8), 1);
  EXPECT_EQ((*usual)->rank(0).view().node(16), 2);
  auto uneven = loopback_world<efa_proxy>::create({.ranks = 4, .nodes = {5, 0, 5, 5}});
  ASSERT_TRUE(uneven);
  EXPECT_EQ((*uneven)->rank(3).view().node(0), 5);
  EXPECT_EQ((*uneven)->rank(3).view().node(1), 0);
}

TEST(LoopbackProfiles, PromiseWhatTheirWiresKeep) {
  static_assert(nvlink::caps.peer_reach == reach::always);
  static_assert(ib_gpu::caps.peer_reach == reach::never);
  static_assert(ib_gpu::caps.put_order == ordering::per_channel);
  static_assert(efa_gpu::caps.put_order == ordering::none && !efa_gpu::caps.host_progress);
  static_assert(efa_proxy::caps.put_order == ordering::none && efa_proxy::caps.host_progress);
  static_assert(efa_gpu::caps.add == signal_add::one && efa_proxy::caps.add == signal_add::one);
  EXPECT_EQ(std::string(efa_proxy::name), "efa-proxy");
  // 48 layers x 2 all-to-alls x 15 messages of one token take 14.7 ms.
  EXPECT_NEAR(48 * 2 * 15 * efa_proxy::caps.charge.issue_ns, 14.7e6, 1);
}

}  // namespace
}  // namespace eptransport
