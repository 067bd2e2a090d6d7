// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Random requests through the device queues over the emulator take effect exactly once.
#include "gdaki/exactly_once.hpp"

#include <gtest/gtest-spi.h>
#include <gtest/gtest.h>

#include <cstdint>

namespace eptransport::gdaki::testing {
namespace {

template <class Combination>
class GdakiQueue : public ::testing::Test {};

using combinations =
    ::testing::Types<combination<efa_format<efa::narrow>, one_device, counted_completion>,
                     combination<efa_format<efa::narrow>, one_owner, counted_completion>,
                     combination<efa_format<efa::wide>, one_device, polled_completion>,
                     combination<efa_format<efa::narrow>, one_owner, polled_completion>,
                     combination<mlx5_format, one_device, collapsed_completion>,
                     combination<mlx5_format, one_owner, collapsed_completion>,
                     combination<mlx5_format, one_block, polled_completion>,
                     combination<mlx5_format, one_owner, polled_completion>>;
TYPED_TEST_SUITE(GdakiQueue, combinations);

template <class Combination>
void deliver(const rig_options& options, const workload& work) {
  exactly_once<typename Combination::rig_type> run(options, work, Combination::scope::shared);
  run.run();
}

TYPED_TEST(GdakiQueue, DeliversRandomRequestsExactlyOnce) {
  deliver<TypeParam>({.schedule = {.seed = 3}, .slots = 64, .max_batch = 16},
                     {.requests = 20'000, .seed = 3});
}

TYPED_TEST(GdakiQueue, DeliversWithAFewSlotsAndDeferredDoorbells) {
  deliver<TypeParam>({.schedule = {.seed = 4}, .slots = 4, .max_batch = 3, .ring_every = 8},
                     {.requests = 4'000, .seed = 4});
}

TYPED_TEST(GdakiQueue, CrossesEveryWrapOfTheIndex) {
  const std::uint64_t starts[] = {(std::uint64_t{1} << 16) - 500, (std::uint64_t{1} << 32) - 500,
                                  std::uint64_t{0} - 500};
  for (const std::uint64_t first : starts) {
    SCOPED_TRACE(first);
    deliver<TypeParam>({.schedule = {.seed = 5}, .slots = 128, .first = first},
                       {.requests = 3'000, .seed = 5});
  }
}

void deliver_with_a_flipped_bit() {
  deliver<combination<efa_format<>, one_owner, counted_completion>>(
      {.schedule = {.seed = 8}}, {.requests = 200, .seed = 8, .sabotage = true});
}

TEST(GdakiQueueControl, AFlippedBitIsFound) {
  EXPECT_NONFATAL_FAILURE(deliver_with_a_flipped_bit(), "seed 8");
}

/// Only the host preset runs these; see tests/CMakeLists.txt.
template <class Combination>
class LongGdakiQueue : public ::testing::Test {};
using long_combinations =
    ::testing::Types<combination<efa_format<efa::narrow>, one_device, counted_completion>,
                     combination<efa_format<efa::wide>, one_device, polled_completion>,
                     combination<mlx5_format, one_device, collapsed_completion>>;
TYPED_TEST_SUITE(LongGdakiQueue, long_combinations);

TYPED_TEST(LongGdakiQueue, DeliversAMillionRandomRequestsExactlyOnce) {
  deliver<TypeParam>({.schedule = {.seed = 6}, .slots = 1024, .max_batch = 64},
                     {.requests = 1'000'000, .max_group = 64, .seed = 6});
}

}  // namespace
}  // namespace eptransport::gdaki::testing
