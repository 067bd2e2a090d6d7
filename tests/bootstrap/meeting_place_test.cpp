// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The ranks of two hosts agree on where to pass descriptors, and leave no folder behind.
#include <eptransport/backends/peer_memory/meeting_place.hpp>
#include <eptransport/backends/peer_memory/rendezvous.hpp>
#include <eptransport/proxy/bootstrap/bootstrap.hpp>

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <sys/stat.h>

#include "bootstrap/rig.hpp"

namespace eptransport {
namespace {

TEST(MeetingPlace, RanksOfOneHostMeetThereAndNobodyElse) {
  support::meeting at(5);
  std::mutex mutex;
  std::set<std::string> folders;
  support::run_ranks(5, [&](std::int32_t rank) {
    auto options = at.options(rank);
    options.host_identity = rank == 1 || rank == 4 ? "one host" : "another";
    const auto job = support::join(options);
    ASSERT_TRUE(job) << job.error().message();
    const auto place = meeting_place::agree(**job, support::patience);
    ASSERT_TRUE(place) << place.error().message();
    const bool small = rank == 1 || rank == 4;
    EXPECT_EQ(place->ranks(), small ? 2 : 3);
    EXPECT_EQ(place->rank(), (*job)->places()[static_cast<std::size_t>(rank)].on_node);
    const std::string folder = std::filesystem::path(place->path()).parent_path();
    struct stat facts {};
    ASSERT_EQ(::stat(folder.c_str(), &facts), 0);
    EXPECT_EQ(facts.st_mode & 0777U, 0700U);
    {
      const std::lock_guard lock(mutex);
      folders.insert(folder);
    }
    auto met =
        local_rendezvous::join(place->path(), place->rank(), place->ranks(), support::patience);
    ASSERT_TRUE(met) << met.error().message();
    const auto all = (*met)->exchange(std::as_bytes(std::span(&rank, 1)), 0, support::patience);
    ASSERT_TRUE(all) << all.error().message();
    for (const rank_offer& offer : *all) {
      const auto theirs = std::to_integer<int>(offer.bytes[0]);
      EXPECT_EQ(theirs == 1 || theirs == 4, small);
      EXPECT_GE(offer.descriptor.get(), 0);
    }
    ASSERT_TRUE((*job)->barrier(support::patience));
  });
  EXPECT_EQ(folders.size(), 2U);
  for (const std::string& folder : folders) EXPECT_FALSE(std::filesystem::exists(folder)) << folder;
}

}  // namespace
}  // namespace eptransport
