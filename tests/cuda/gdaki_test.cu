// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The device queues on a GPU: the CPU's bytes, and requests through the emulator.
#include <gtest/gtest.h>

#include "gdaki/gpu_checks.cuh"

namespace eptransport::gdaki::bench {
namespace {

TEST(GdakiOnGpu, BuildersAndParsersGiveTheBytesOfTheCpu) {
  EXPECT_TRUE(check_builders(100'000));
}

TEST(GdakiOnGpu, QueuesDeliverThroughTheEmulator) {
  EXPECT_TRUE(check_queues(20'000));
}

}  // namespace
}  // namespace eptransport::gdaki::bench
