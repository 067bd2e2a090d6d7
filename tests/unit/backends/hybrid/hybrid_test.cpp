// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief What two wires promise together, and pairs that make no hybrid.
#include <eptransport/backends/hybrid/hybrid.hpp>
#include <eptransport/backends/hybrid/loopback_hybrid.hpp>

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

namespace eptransport::testing {
namespace {

using inner_wire = loopback<profiles::nvlink>;
using outer_wire = loopback<profiles::efa_gpu>;
using pair = hybrid<inner_wire, outer_wire>;

TEST(HybridPair, PromisesTheWeakerOfTheTwo) {
  EXPECT_EQ(pair::caps.peer_reach, reach::maybe);
  EXPECT_TRUE(pair::caps.node_reach);
  EXPECT_EQ(pair::caps.add, signal_add::one);
  EXPECT_EQ(pair::caps.max_signals, 512U);
  EXPECT_EQ(pair::caps.max_message, std::uint64_t{1} << 30);
  EXPECT_TRUE(pair::caps.needs_registered_source);
  EXPECT_EQ(pair::caps.inline_bytes, 0U);
  EXPECT_EQ(pair::caps.charge.issue_ns, profiles::efa_gpu::caps.charge.issue_ns);
  EXPECT_EQ(pair::caps.inner.issue_ns, profiles::nvlink::caps.charge.issue_ns);
}

/// Why the first ranks of two worlds make no hybrid with that map; empty if they do.
std::string refused(int inner_ranks, int outer_ranks, const std::vector<int>& nodes) {
  auto inner = loopback_world<profiles::nvlink>::create(
      {.ranks = inner_ranks, .window_bytes = 4096, .signals = 4});
  auto outer = loopback_world<profiles::efa_gpu>::create(
      {.ranks = outer_ranks, .window_bytes = 8192, .signals = 4});
  const auto map = node_map::from_numbers(nodes);
  if (!inner || !outer || !map) return "the worlds could not be made";
  const auto made = pair::create((*inner)->rank(0), (*outer)->rank(0), *map);
  return made ? "" : made.error().message();
}

TEST(HybridPair, PairsThatDoNotFitAreRefusedWithBothNumbers) {
  EXPECT_NE(refused(2, 4, {0, 0, 1}).find("3 ranks, the wire between nodes 4"), std::string::npos);
  EXPECT_NE(refused(3, 4, {0, 0, 1, 1}).find("joins 3 ranks, expected 2 (this node) or 4 (all)"),
            std::string::npos);
  EXPECT_NE(refused(2, 4, {0, 0, 1, 1}).find("two windows (4096 and 8192 bytes)"),
            std::string::npos);
}

TEST(HybridPair, AWordIsTheSumOfTwoHalvesAndMovesTheClockToWhatCompletedIt) {
  using world = hybrid_world<profiles::nvlink, profiles::efa_proxy>;
  auto made = world::create(
      {.ranks = 3, .window_bytes = 64, .signals = 1, .nodes = {0, 0, 1}, .counter_start = 5});
  ASSERT_TRUE(made) << made.error().message();
  (*made)->run([](world::transport& own) {
    const auto view = own.view();
    const host_thread alone;
    if (view.rank() != 0) {
      EXPECT_EQ(view.signal(alone, 0, 0, 0, 1'000'000), op_status::ok);
      return;
    }
    EXPECT_EQ(view.wait_signal(alone, 0, 6, 1'000'000), op_status::ok);
    const std::uint64_t first = view.now_ns();
    EXPECT_EQ(view.wait_signal(alone, 0, 7, 1'000'000), op_status::ok);
    EXPECT_LT(first, 3000U) << "the neighbour's";
    EXPECT_GT(view.now_ns(), 20'000U) << "the other node's, behind a proxy";
    EXPECT_EQ(view.read_signal(0), 7U);
    EXPECT_EQ(view.wait_signal(alone, 0, 8, view.now_ns() + 100), op_status::expired);
    EXPECT_EQ(view.peer_pointer(2, 0, 8), nullptr);
    EXPECT_NE(view.peer_pointer(1, 0, 8), nullptr);
  });
  EXPECT_EQ((*made)->violations(), "");
}

/// A wire of one rank whose word grows only while somebody serves it, as that of a rank which posts
/// to its NIC itself; one look of its own waits does nothing.
struct served_wire {
  std::uint64_t* word;
  std::uint64_t* clock;
  bool serves = true;

  [[nodiscard]] std::uint64_t now_ns() const { return ++*clock; }
  [[nodiscard]] std::uint64_t read_signal(std::uint32_t) const { return *word; }
  op_status wait_signal(const host_thread&, std::uint32_t, std::uint64_t, std::uint64_t) const {
    return op_status::expired;
  }
  void serve_all(const host_thread&) const {
    if (serves) ++*word;
  }
};

TEST(HybridView, WhoeverWaitsServesBothWires) {
  for (const auto& [first, second] :
       {std::pair(true, false), std::pair(false, true), std::pair(false, false)}) {
    std::uint64_t inside = 0;
    std::uint64_t between = 0;
    std::uint64_t clock = 0;
    const hybrid_view<served_wire, served_wire> view({&inside, &clock, first},
                                                     {&between, &clock, second}, nullptr);
    EXPECT_EQ(view.wait_signal(host_thread(), 0, 3, 1'000),
              first || second ? op_status::ok : op_status::expired);
    EXPECT_EQ(inside, first ? 3U : 0U);
    EXPECT_EQ(between, second ? 3U : 0U);
  }
}

}  // namespace
}  // namespace eptransport::testing
