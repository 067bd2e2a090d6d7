// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Random valid configurations against the oracle. A failing seed replays exactly.
///
/// EPT_RANDOM_SEED=S runs that seed alone and shows its configuration; EPT_RANDOM_COUNT=N runs the
/// first N seeds of a suite.

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <set>
#include <string>

#include "support/random_config.hpp"
#include "support/runner.hpp"

namespace eptransport::testing {
namespace {

using support::draw_config;
using support::run_config;
using support::run_result;

/// A number from the environment, or `otherwise`.
std::uint64_t number_from(const char* name, std::uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

/// What a person needs to see and repeat a failure; empty if all is well.
std::string report_of(const run_config& config, const run_result& result) {
  if (result.verified) return {};
  return "replay: EPT_RANDOM_SEED=" + std::to_string(config.seed) +
         " kernel_tests --gtest_filter=Random.AHundredConfigurationsEqualTheOracle\n" +
         support::describe(config) + "\n" + result.why();
}

void run_seeds(std::uint64_t first, std::uint64_t count) {
  if (std::getenv("EPT_RANDOM_SEED") != nullptr) {
    first = number_from("EPT_RANDOM_SEED", first);
    count = 1;
    std::printf("%s\n", support::describe(draw_config(first)).c_str());
  } else {
    count = number_from("EPT_RANDOM_COUNT", count);
  }
  int failed = 0;
  for (std::uint64_t seed = first; seed < first + count && failed < 5; ++seed) {
    const run_config config = draw_config(seed);
    const std::string report = report_of(config, support::run(config));
    if (report.empty()) continue;
    ADD_FAILURE() << report;
    ++failed;
  }
}

TEST(Random, AHundredConfigurationsEqualTheOracle) {
  run_seeds(1, 100);
}

TEST(LongRandom, TwoThousandConfigurationsEqualTheOracle) {
  run_seeds(1001, 2000);
}

TEST(Random, AFailureNamesItsSeedAndItsConfiguration) {
  run_config config = draw_config(1);
  config.tamper = [](const support::tamper_point& at) {
    if (at.total != nullptr) *at.total += 1;
  };
  config.metadata = true;
  const std::string report = report_of(config, support::run(config));
  EXPECT_NE(report.find("EPT_RANDOM_SEED=1 kernel_tests --gtest_filter=Random."),
            std::string::npos);
  EXPECT_NE(report.find("hidden=" + std::to_string(config.hidden)), std::string::npos);
  EXPECT_NE(report.find("total rows"), std::string::npos) << report;
}

TEST(Random, TheSameSeedDrawsAndRunsTheSame) {
  EXPECT_EQ(support::describe(draw_config(7)), support::describe(draw_config(7)));
  EXPECT_NE(support::describe(draw_config(7)), support::describe(draw_config(8)));
  EXPECT_EQ(support::run(draw_config(7)).trace_hash, support::run(draw_config(7)).trace_hash);
}

TEST(Random, AHundredConfigurationsTakeEveryChoice) {
  std::set<std::string> seen;
  const auto note = [&seen](const char* what, auto value) {
    seen.insert(what + std::to_string(static_cast<int>(value)));
  };
  for (std::uint64_t seed = 1; seed <= 100; ++seed) {
    const run_config c = draw_config(seed);
    seen.insert(c.wire);
    note("ranks ", c.ranks);
    note("layout ", c.layout);
    note("message ", c.message);
    note("signals ", c.signals);
    note("mode ", c.mixed ? 2 : static_cast<int>(c.mode));
    note("quantise ", c.quantise);
    note("values ", c.values);
    note("workers ", c.workers);
    note("lanes ", c.lanes);
    note("overflow ", c.overflow);
    note("transfer ", c.transfer);
    note("landing ", c.landing);
    note("cached ", c.cached);
    note("split ", c.split);
    note("bias ", c.bias);
    note("columns ", c.scale_columns != 0);
    note("floats ", c.return_weights);
  }
  EXPECT_EQ(seen.size(), 5U + 12 + 4 + 4 + 3 + 3 + 3 + 3 + 3 + 2 + 2 + 2 + 2 + 2 + 2 + 2 + 2 + 2);
}

}  // namespace
}  // namespace eptransport::testing
