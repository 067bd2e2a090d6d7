// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The routing generators and the trace reader.
#include "support/routing.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <fstream>
#include <set>
#include <string>
#include <unistd.h>
#include <vector>

#include "support/npy.hpp"

namespace eptransport::support {
namespace {

const std::string traces = EPT_SOURCE_DIR "/benchmarks/traces/";

struct drawn {
  std::vector<std::int64_t> index;
  std::vector<float> weight;
};

drawn draw(const routing_options& options, std::int64_t tokens, token_slice slice = {}) {
  const auto made = router::create(options);
  EXPECT_TRUE(made) << options.kind;
  drawn out;
  if (!made) return out;
  slice.tokens = tokens;
  if (slice.all == 0) slice.all = tokens;
  out.index.resize(static_cast<std::size_t>(tokens) * static_cast<std::size_t>(options.top_k), 77);
  out.weight.resize(out.index.size());
  made->draw(slice, out.index, out.weight);
  return out;
}

std::string refusal(const routing_options& options) {
  const auto made = router::create(options);
  return made ? std::string() : made.error().detail;
}

void expect_distinct(const drawn& d, int top_k, int experts) {
  const auto k = static_cast<std::size_t>(top_k);
  for (std::size_t token = 0; token < d.index.size() / k; ++token) {
    std::set<std::int64_t> seen;
    for (std::size_t j = 0; j < k; ++j) {
      const std::int64_t expert = d.index[token * k + j];
      EXPECT_TRUE(expert >= 0 && expert < experts) << expert;
      EXPECT_TRUE(seen.insert(expert).second)
          << "token " << token << " names " << expert << " twice";
    }
  }
}

std::vector<int> load(const drawn& d, int experts) {
  std::vector<int> count(static_cast<std::size_t>(experts));
  for (const std::int64_t expert : d.index) {
    if (expert >= 0) ++count[static_cast<std::size_t>(expert)];
  }
  return count;
}

TEST(Routing, UniformDrawsDistinctExpertsEvenly) {
  const drawn d = draw({.kind = "uniform", .experts = 16, .top_k = 4}, 4000);
  expect_distinct(d, 4, 16);
  for (const int count : load(d, 16)) EXPECT_NEAR(count, 1000, 150);
}

TEST(Routing, UniformCanTakeEveryExpert) {
  expect_distinct(draw({.kind = "uniform", .experts = 5, .top_k = 5}, 50), 5, 5);
}

TEST(Routing, ZipfPrefersTheFirstExperts) {
  const drawn d = draw({.kind = "zipf:1.5", .experts = 16, .top_k = 2}, 2000);
  expect_distinct(d, 2, 16);
  const std::vector<int> count = load(d, 16);
  EXPECT_GT(count[0], 3 * count[3]);
  EXPECT_GT(count[3], 2 * count[15]);
}

TEST(Routing, OneSendsEverythingToOneExpert) {
  const drawn d = draw({.kind = "one", .experts = 4, .top_k = 2}, 3);
  EXPECT_EQ(d.index, (std::vector<std::int64_t>{0, -1, 0, -1, 0, -1}));
}

TEST(Routing, UnusedAndOutOfRangeChoicesComeAsOftenAsAsked) {
  const drawn d = draw({.kind = "uniform", .experts = 8, .top_k = 4, .unused = 0.25}, 4000);
  int unused = 0;
  for (const std::int64_t expert : d.index) unused += expert == -1 ? 1 : 0;
  EXPECT_NEAR(unused, 4000, 300);
  const drawn bad = draw({.kind = "uniform", .experts = 8, .top_k = 4, .out_of_range = 0.5}, 1000);
  int above = 0;
  int below = 0;
  for (const std::int64_t expert : bad.index) {
    above += expert >= 8 ? 1 : 0;
    below += expert < -1 ? 1 : 0;
  }
  EXPECT_NEAR(above, 1000, 150);
  EXPECT_NEAR(below, 1000, 150);
}

TEST(Routing, DuplicatesOccurWhenAllowed) {
  const drawn d = draw({.kind = "uniform", .experts = 4, .top_k = 3, .duplicates = true}, 200);
  int twice = 0;
  for (std::size_t t = 0; t < 200; ++t) twice += d.index[t * 3] == d.index[t * 3 + 1] ? 1 : 0;
  EXPECT_NEAR(twice, 50, 30);
}

TEST(Routing, GivesSomeTokensLargeOppositeWeights) {
  const drawn d = draw({.kind = "uniform", .experts = 16, .top_k = 4}, 800);
  int tokens = 0;
  for (std::size_t t = 0; t < 800; ++t) {
    float sum = 0;
    int large = 0;
    for (std::size_t j = 0; j < 4; ++j) {
      if (std::abs(d.weight[t * 4 + j]) < 1000) continue;
      ++large;
      sum += d.weight[t * 4 + j];
    }
    if (large == 0) continue;
    EXPECT_EQ(large, 2);
    EXPECT_EQ(sum, 0);
    ++tokens;
  }
  EXPECT_NEAR(tokens, 100, 50);
}

TEST(Routing, IsAFunctionOfSeedIterationAndRank) {
  const routing_options options{.kind = "uniform", .experts = 64, .top_k = 4, .seed = 5};
  const auto base = draw(options, 20, {.iteration = 2, .rank = 1});
  EXPECT_EQ(draw(options, 20, {.iteration = 2, .rank = 1}).index, base.index);
  EXPECT_NE(draw(options, 20, {.iteration = 3, .rank = 1}).index, base.index);
  EXPECT_NE(draw(options, 20, {.iteration = 2, .rank = 2}).index, base.index);
  routing_options other = options;
  other.seed = 6;
  EXPECT_NE(draw(other, 20, {.iteration = 2, .rank = 1}).index, base.index);
}

TEST(Routing, RefusesWhatItDoesNotKnow) {
  EXPECT_NE(refusal({.kind = "random"}).find("uniform"), std::string::npos);
  EXPECT_NE(refusal({.kind = "zipf:"}).find("needs a number"), std::string::npos);
  EXPECT_NE(refusal({.kind = "trace:/no/such/file"}).find("cannot be opened"), std::string::npos);
}

TEST(TraceRouting, HasDistinctExpertsAndWeightsThatSumToOne) {
  const drawn d =
      draw({.kind = "trace:" + traces + "moe_e256_k8:3", .experts = 256, .top_k = 8}, 512);
  expect_distinct(d, 8, 256);
  for (std::size_t t = 0; t < 512; ++t) {
    float sum = 0;
    for (std::size_t j = 0; j < 8; ++j) sum += d.weight[t * 8 + j];
    EXPECT_NEAR(sum, 1, 4e-3);
  }
}

TEST(TraceRouting, GivesEachRankItsOwnSlice) {
  const routing_options options{
      .kind = "trace:" + traces + "moe_e64_k8", .experts = 64, .top_k = 8};
  const drawn whole = draw(options, 10);
  const drawn tail = draw(options, 4, {.rank = 1, .first = 6, .all = 10});
  EXPECT_TRUE(std::equal(tail.index.begin(), tail.index.end(), whole.index.begin() + 48));
  const drawn next = draw(options, 10, {.iteration = 1});
  EXPECT_NE(next.index, whole.index);
}

TEST(TraceRouting, RefusesTooFewExpertsChoicesAndLayers) {
  const std::string file = "trace:" + traces + "moe_e256_k8";
  EXPECT_NE(refusal({.kind = file, .experts = 64, .top_k = 8}).find("there are 64"),
            std::string::npos);
  EXPECT_NE(refusal({.kind = file, .experts = 256, .top_k = 9}).find("9 are wanted"),
            std::string::npos);
  EXPECT_NE(refusal({.kind = file + ":4", .experts = 256, .top_k = 8}).find("layer 4 of 4"),
            std::string::npos);
}

/// Writes a file that lives as long as the object.
class temporary_file {
 public:
  explicit temporary_file(const std::string& content)
      : path_(::testing::TempDir() + "ept_" + std::to_string(::getpid()) + ".npy") {
    std::ofstream(path_, std::ios::binary) << content;
  }
  temporary_file(const temporary_file&) = delete;
  temporary_file& operator=(const temporary_file&) = delete;
  ~temporary_file() { std::remove(path_.c_str()); }
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  std::string path_;
};

std::string npy(char version, const std::string& dictionary, const std::string& data) {
  std::string text = "\x93NUMPY";
  text += version;
  text += '\0';
  text += static_cast<char>(dictionary.size());
  text += '\0';
  if (version == 2) text += std::string(2, '\0');
  return text + dictionary + data;
}

std::string npy_refusal(const std::string& content) {
  const temporary_file file(content);
  const auto read = read_npy(file.path());
  return read ? std::string() : read.error().detail;
}

constexpr const char* two_by_one = "{'descr': '<i2', 'fortran_order': False, 'shape': (2, 1), }\n";

TEST(NpyReader, ReadsVersionsOneAndTwo) {
  for (const char version : {'\1', '\2'}) {
    const temporary_file file(npy(version, two_by_one, std::string("\x01\x02\xff\xff", 4)));
    const auto array = read_npy(file.path());
    ASSERT_TRUE(array) << array.error().message();
    EXPECT_EQ(array->type, "<i2");
    EXPECT_EQ(array->shape, (std::vector<std::int64_t>{2, 1}));
    EXPECT_EQ(array->values, (std::vector<std::uint16_t>{0x201, 0xFFFF}));
  }
}

TEST(NpyReader, SaysWhatIsWrongWithAFile) {
  EXPECT_NE(npy_refusal("not numpy at all").find("no .npy file"), std::string::npos);
  EXPECT_NE(npy_refusal(npy(3, two_by_one, "1234")).find("version 3"), std::string::npos);
  EXPECT_NE(npy_refusal(npy(1, two_by_one, "12")).find("needs 4"), std::string::npos);
  EXPECT_NE(npy_refusal(npy(1, "{'descr': '<f4', 'fortran_order': False, 'shape': (1,), }", "1234"))
                .find("holds '<f4'"),
            std::string::npos);
  EXPECT_NE(npy_refusal(npy(1, "{'descr': '<i2', 'fortran_order': True, 'shape': (2,), }", "1234"))
                .find("C order"),
            std::string::npos);
}

TEST(HalfPrecision, ConvertsExactly) {
  EXPECT_EQ(half_to_float(0x3C00), 1.0F);
  EXPECT_EQ(half_to_float(0xC500), -5.0F);
  EXPECT_EQ(half_to_float(0x0001), 0x1p-24F);
  EXPECT_EQ(half_to_float(0x03FF), 0x1p-14F - 0x1p-24F);
  EXPECT_EQ(half_to_float(0x7BFF), 65504.0F);
  EXPECT_TRUE(std::isinf(half_to_float(0xFC00)));
  EXPECT_TRUE(std::isnan(half_to_float(0x7E00)));
}

}  // namespace
}  // namespace eptransport::support
