// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Random valid configurations on the GPU against the oracle: those of kernels/random_test.
///
/// EPT_RANDOM_SEED=S runs that seed alone and shows its configuration; EPT_RANDOM_COUNT=N runs the
/// first N seeds.

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "support/gpu_run.hpp"
#include "support/random_config.hpp"

namespace eptransport {
namespace {

using support::run_config;

std::uint64_t number_from(const char* name, std::uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

TEST(CudaRandom, TwoHundredConfigurationsEqualTheOracle) {
  const bool one = std::getenv("EPT_RANDOM_SEED") != nullptr;
  const std::uint64_t first = number_from("EPT_RANDOM_SEED", 5001);
  const std::uint64_t count = one ? 1 : number_from("EPT_RANDOM_COUNT", 200);
  int failed = 0;
  for (std::uint64_t seed = first; seed < first + count && failed < 5; ++seed) {
    run_config config = support::draw_config(seed);
    config.timeout_ns = 4'000'000'000;
    if (one) std::printf("%s\n", support::describe(config).c_str());
    const support::run_result got = support::run_on_gpu(config);
    if (got.verified) continue;
    ADD_FAILURE() << "replay: EPT_RANDOM_SEED=" << seed
                  << " cuda_tests --gtest_filter=CudaRandom.*\n"
                  << support::describe(config) << "\n"
                  << got.why();
    ++failed;
  }
}

}  // namespace
}  // namespace eptransport
