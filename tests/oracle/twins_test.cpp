// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Runs whose kernels see another memory than the host, as on a GPU, without one.

#include "support/twins.hpp"

#include <eptransport/backends/loopback/loopback.hpp>
#include <eptransport/backends/loopback/profiles.hpp>

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "support/rank_run.hpp"
#include "support/runner_wires.hpp"

namespace eptransport::support {
namespace {

/// Both twins on the heap.
class heap_twins final : public memory_twins {
 public:
  heap_twins(std::byte* image, std::byte* window) : memory_twins(image, window) {}
  ~heap_twins() override { release_all(); }

  int copies = 0;

 private:
  static std::byte* make(std::uint64_t bytes) {
    return static_cast<std::byte*>(::operator new(bytes, std::align_val_t{256}));
  }
  [[nodiscard]] twin allocate(std::uint64_t bytes, bool shared) override {
    std::byte* host = make(bytes);
    return {host, shared ? host : make(bytes)};
  }
  void release(const twin& memory) override {
    if (memory.kernel != memory.host) ::operator delete(memory.kernel, std::align_val_t{256});
    ::operator delete(memory.host, std::align_val_t{256});
  }
  void copy(std::byte* to, const std::byte* from, std::uint64_t bytes) override {
    if (bytes != 0) std::memcpy(to, from, bytes);
    ++copies;
  }
};

TEST(Twins, LieSideBySideAndAreTakenAgain) {
  std::vector<std::byte> image(8), window(8);
  heap_twins twins(image.data(), window.data());
  const auto kept = twins.take(10, twin_use::run);
  const auto first = twins.take(300, twin_use::call);
  const auto second = twins.take(1, twin_use::call);
  const auto shared = twins.take(1, twin_use::shared);
  EXPECT_EQ(second.host - first.host, 512);
  EXPECT_EQ(second.kernel - first.kernel, 512);
  EXPECT_NE(first.host, first.kernel);
  EXPECT_EQ(shared.host, shared.kernel);
  *kept.host = std::byte{1};
  *second.host = std::byte{2};
  twins.push();
  EXPECT_EQ(*kept.kernel, std::byte{1});
  EXPECT_EQ(*second.kernel, std::byte{2});
  *second.kernel = std::byte{3};
  twins.pull();
  EXPECT_EQ(*second.host, std::byte{3});
  twins.recycle();
  EXPECT_EQ(twins.take(2, twin_use::call).host, first.host);
  EXPECT_NE(twins.take(2, twin_use::run).host, kept.host);
  const auto large = twins.take(std::uint64_t{3} << 20, twin_use::call);
  EXPECT_NE(large.host, second.host);
  image[3] = std::byte{7};
  twins.push(std::span(image).subspan(3, 2));
  EXPECT_EQ(window[3], std::byte{7});
  window[4] = std::byte{8};
  twins.pull(std::span(image).subspan(4, 1));
  EXPECT_EQ(image[4], std::byte{8});
}

/// The CPU simulator, as if its memory were out of the host's reach. Calls of synchronous executors
/// are over when they return: what they wrote is brought back by `made`.
class apart_rig {
 public:
  using transport = loopback<profiles::nvlink>;
  static constexpr bool counts = false;

  explicit apart_rig(transport& own)
      : own_(own), image_(own.window().size()), parts_(image_.data(), own.window().data()) {}

  [[nodiscard]] transport& own() { return own_; }
  [[nodiscard]] std::byte* window() { return image_.data(); }
  [[nodiscard]] memory_twins* twins() {
    lanes_.push_back(std::make_unique<heap_twins>(image_.data(), own_.window().data()));
    return lanes_.back().get();
  }
  void push(std::span<const std::byte> part) { parts_.push(part); }
  [[nodiscard]] rank_meter meter() const { return {}; }
  void made(const geometry&, lane_run& lane, call_part) { lane.buffers().pull(); }
  [[nodiscard]] auto stream(int) { return transport::executor_type::stream_type{}; }
  void pause(std::uint64_t) {}

 private:
  transport& own_;
  std::vector<std::byte> image_;
  heap_twins parts_;
  std::vector<std::unique_ptr<heap_twins>> lanes_;
};

run_result run_apart(const run_config& config) {
  run_result out;
  const auto routes = routes_of(config);
  const auto sizes =
      group<apart_rig::transport>::sizes(shape_of(config, problem_of(config)), config.ranks);
  EXPECT_TRUE(routes && sizes);
  if (!routes || !sizes) return out;
  auto world =
      loopback_world<profiles::nvlink>::create({.ranks = config.ranks,
                                                .window_bytes = window_bytes_of(config, *sizes),
                                                .signals = config.first_signal + sizes->signals});
  EXPECT_TRUE(world) << world.error().message();
  if (!world) return out;
  std::vector<rank_verdict> verdicts(static_cast<std::size_t>(config.ranks));
  out.ranks.resize(verdicts.size());
  (*world)->run([&](apart_rig::transport& own) {
    const auto rank = static_cast<std::size_t>(own.view().rank());
    apart_rig rig(own);
    rank_run<apart_rig>(config, *routes, rig, out.ranks[rank], verdicts[rank])();
  });
  out.violations = (*world)->violations();
  sum_up(config, verdicts, false, out);
  return out;
}

run_config apart(dispatch_mode mode, output_layout layout) {
  run_config c;
  c.wire = "nvlink";
  c.ranks = 3;
  c.tokens = {5, 0, 7};
  c.hidden = 24;
  c.top_k = 3;
  c.experts = 7;
  c.mode = mode;
  c.layout = layout;
  c.bias = true;
  c.return_weights = true;
  c.row = {24, 4};
  c.cached = true;
  c.skew = 6;
  return c;
}

TEST(Twins, RunsInTwoMemoriesEqualTheOracle) {
  for (const dispatch_mode mode : {dispatch_mode::slotted, dispatch_mode::counted}) {
    for (const output_layout layout : {output_layout::rank_major, output_layout::expert_major,
                                       output_layout::padded, output_layout::in_place}) {
      run_config c = apart(mode, layout);
      for (const bool other : {false, true}) {
        const bool counted = mode == dispatch_mode::counted;
        const bool by_token =
            layout == output_layout::rank_major || layout == output_layout::in_place;
        c.landing = other && counted;
        c.scale_columns = other ? 4 : 0;
        if (other && counted && by_token) c.transfer = combine_transfer::pull;
        const run_result got = run_apart(c);
        EXPECT_TRUE(got.verified) << static_cast<int>(mode) << static_cast<int>(layout) << other
                                  << "\n"
                                  << got.why();
      }
    }
  }
}

TEST(Twins, DamageToWhatCameBackIsFound) {
  run_config c = apart(dispatch_mode::counted, output_layout::rank_major);
  c.tamper = [](const tamper_point& at) {
    if (at.rank == 2 && at.iteration == 1 && std::string(at.call) == "dispatch") {
      at.rows.front() ^= std::byte{1};
    }
  };
  EXPECT_NE(run_apart(c).difference.find("row"), std::string::npos);
}

}  // namespace
}  // namespace eptransport::support
