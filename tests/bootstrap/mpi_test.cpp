// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Ranks that MPI started, with threads in MPI's place.
#include <eptransport/proxy/bootstrap/mpi.hpp>

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <system_error>

#include "bootstrap/rig.hpp"

namespace eptransport {
namespace {

TEST(BootstrapMpi, RanksOfACommunicatorMeetWithoutAnySetting) {
  fake_world world(3);
  support::run_ranks(3, [&](std::int32_t rank) {
    fake_rank self{rank, &world};
    auto options = mpi_options(&self, "127.0.0.1");
    ASSERT_TRUE(options) << options.error().message();
    EXPECT_EQ(options->token.size(), 32U);
    EXPECT_GT(options->port, 0);
    options->timeout_ns = support::patience;
    const auto job = support::join(*options);
    ASSERT_TRUE(job) << job.error().message();
    EXPECT_EQ((*job)->rank(), rank);
    EXPECT_EQ((*job)->size(), 3);
    EXPECT_TRUE((*job)->agree("token", options->token, support::patience));
  });
}

TEST(BootstrapMpi, FailuresComeBackAndLeaveNoSocket) {
  const std::size_t before = support::count_descriptors();
  for (const int call : {1, 2, 3}) {
    fake_world world(1);
    world.broken_call = call;
    fake_rank self{0, &world};
    const auto options = mpi_options(&self, "127.0.0.1");
    ASSERT_FALSE(options);
    EXPECT_EQ(options.error().code, errc::transport_failed);
  }
  EXPECT_EQ(support::count_descriptors(), before);
}

}  // namespace
}  // namespace eptransport
