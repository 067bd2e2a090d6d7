// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Engines over the SRD decorator: every fault either recovers or ends with its cause.
#include <eptransport/proxy/endpoints/memory.hpp>
#include <eptransport/proxy/endpoints/srd.hpp>
#include <eptransport/proxy/engine.hpp>

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "proxy/rig.hpp"

namespace eptransport::proxy {
namespace {

using testing::rig;
using testing::rig_options;
using wire = srd_endpoint<memory_endpoint>;

struct srd_rig : rig<wire> {
  srd_rig(const rig_options& options, const srd_options& faults, const memory_options& inner = {})
      : rig<wire>(options), network(windows(), 1, inner) {
    for (std::uint32_t i = 0; i < options.ranks; ++i) {
      ends.push_back(
          std::make_unique<wire>(network.endpoint(i, 0), faults, static_cast<int>(i), 0));
    }
    error = build([this](std::uint32_t r) -> wire& { return *ends[r]; });
  }
  memory_network network;
  std::vector<std::unique_ptr<wire>> ends;
  std::string error;
  engine_end end{*this};
};

constexpr std::uint32_t ranks = 3;
constexpr std::uint64_t slot = 96;

/// Each rank sends `puts` rows to every rank, each to a place of its own. After each word grew,
/// what it counts must be there: one word per source, and rows arrive in any order, so all are
/// looked at when the last has come.
std::string exchange(srd_rig& r, std::uint64_t puts, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  for (std::uint32_t from = 0; from < ranks; ++from) {
    for (std::uint64_t i = 0; i < puts * slot; ++i) {
      r.rank(from).window[i] = static_cast<std::byte>(from * 50 + i % 47 + i / slot + 1);
    }
  }
  const auto landing = [&](std::uint32_t from, std::uint64_t i) {
    return puts * slot * (1 + from) + i * slot;
  };
  for (std::uint64_t i = 0; i < puts; ++i) {
    for (std::uint32_t from = 0; from < ranks; ++from) {
      for (std::uint32_t to = 0; to < ranks; ++to) {
        r.push_or_step(from, {.src_offset = i * slot,
                              .dst_offset = landing(from, i),
                              .bytes = 1 + (i * 13) % slot,
                              .peer = to,
                              .signal = from});
      }
      if (random() % 4 == 0) r.step_all();
    }
  }
  const auto arrived = [&] {
    for (std::uint32_t to = 0; to < ranks; ++to) {
      for (std::uint32_t from = 0; from < ranks; ++from) {
        if (r.word(to, from) != puts) return false;
      }
      if (!r.complete(to)) return false;
    }
    return true;
  };
  if (!r.until(arrived, 200'000)) {
    return "not all arrived: " + r.why(0) + r.why(1) + r.why(2) + r.at(0).statistics().json();
  }
  for (std::uint32_t to = 0; to < ranks; ++to) {
    for (std::uint32_t from = 0; from < ranks; ++from) {
      for (std::uint64_t i = 0; i < puts; ++i) {
        for (std::uint64_t b = 0; b < 1 + (i * 13) % slot; ++b) {
          if (r.rank(to).window[landing(from, i) + b] != r.rank(from).window[i * slot + b]) {
            return "byte " + std::to_string(b) + " of put " + std::to_string(i) + " of rank " +
                   std::to_string(from) + " to rank " + std::to_string(to) + " is wrong";
          }
        }
      }
    }
  }
  return {};
}

rig_options shape(std::uint64_t eager) {
  rig_options o{.ranks = ranks, .signals = ranks, .window_bytes = 40 * slot * 4, .ring_slots = 32};
  o.engine.eager = eager;
  o.engine.slot_bytes = eager == 0 ? 0 : 400;
  return o;
}

TEST(Srd, EverythingArrivesWhateverTheSeed) {
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    const std::uint64_t eager = seed % 3 == 0 ? 0 : seed % 3 == 1 ? 20 : slot;
    srd_options faults{.seed = seed};
    faults.chunk_bytes = seed % 2 == 0 ? 7 : 64;
    faults.again = static_cast<double>(seed % 5) * 0.2;
    srd_rig r(shape(eager), faults);
    ASSERT_EQ(r.error, "");
    ASSERT_EQ(exchange(r, 40, seed), "") << "seed " << seed;
    for (const auto& end : r.ends) EXPECT_EQ(end->lost(), 0U) << "seed " << seed;
  }
}

TEST(Srd, TheSameSeedMakesTheSameDecisions) {
  const auto hash_of = [](std::uint64_t seed) {
    srd_rig r(shape(20), {.seed = seed});
    EXPECT_EQ(exchange(r, 20, 1), "");
    return r.ends[0]->trace_hash() ^ r.ends[1]->trace_hash();
  };
  EXPECT_EQ(hash_of(5), hash_of(5));
  EXPECT_NE(hash_of(5), hash_of(6));
}

// The queue has just the room that credits promise to keep: nothing is lost.
TEST(Srd, CreditsKeepABoundedQueueFromForgetting) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    rig_options options = shape(seed % 2 == 0 ? 0 : 20);
    options.engine.writes_per_peer = 4;
    options.engine.slots_per_peer = 2;
    srd_options faults{.seed = seed, .hold = 16};
    faults.completions = (ranks - 1) * (4 + 2 + 2 * credit_completions);
    srd_rig r(options, faults);
    ASSERT_EQ(r.error, "");
    EXPECT_EQ(exchange(r, 40, seed), "") << "seed " << seed;
    for (const auto& end : r.ends) EXPECT_EQ(end->lost(), 0U) << "seed " << seed;
  }
}

// What the test above would not see without the bound: an engine that is promised more than there
// is loses arrivals, and the counts say so.
TEST(Srd, WithoutCreditsABoundedQueueForgets) {
  rig_options options = shape(0);
  options.engine.writes_per_peer = 100;
  srd_options honest{.seed = 3, .hold = 64};
  honest.completions = 12;
  EXPECT_NE(srd_rig(options, honest).error.find("completion queue"), std::string::npos);

  /// Claims more than it has.
  struct boasting : wire {
    using wire::wire;
    [[nodiscard]] endpoint_limits limits() const {
      endpoint_limits l = wire::limits();
      l.completions = 0;
      return l;
    }
  };
  rig<boasting> r(options);
  memory_network network(r.windows(), 1, {});
  std::vector<std::unique_ptr<boasting>> ends;
  for (std::uint32_t i = 0; i < ranks; ++i) {
    ends.push_back(
        std::make_unique<boasting>(network.endpoint(i, 0), honest, static_cast<int>(i), 0));
  }
  const rig<boasting>::engine_end end{r};
  ASSERT_EQ(r.build([&](std::uint32_t i) -> boasting& { return *ends[i]; }), "");
  constexpr std::uint64_t puts = 400;
  std::uint64_t sent = 0;
  // Rank 0 does not look while the others send.
  for (std::uint64_t i = 0; i < 200'000 && sent < 2 * puts; ++i) {
    for (std::uint32_t from = 1; from < ranks; ++from) {
      if (sent < 2 * puts && r.push(from, {.peer = 0, .signal = from})) ++sent;
      (void)r.at(from).step();
    }
    if (i % 64 == 0) (void)r.at(0).step();
  }
  (void)r.until([] { return false; }, 2000);
  EXPECT_GT(ends[0]->lost(), 0U);
  EXPECT_LT(r.word(0, 1) + r.word(0, 2), sent);
}

TEST(Srd, NoBatchStaysOpen) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    srd_options faults{.seed = seed};
    faults.again = 0.6;
    srd_rig r(shape(seed % 2 == 0 ? 0 : 20), faults);
    ASSERT_EQ(r.error, "");
    ASSERT_EQ(exchange(r, 20, seed), "") << "seed " << seed;
    for (int i = 0; i < 200; ++i) r.step_all();
    for (const auto& end : r.ends) EXPECT_EQ(end->unrung(), 0U) << "seed " << seed;
  }
}

/// A post with `more` and nothing after it never leaves: the fault that the test above looks for.
TEST(Srd, AnOpenBatchIsHeldBack) {
  srd_options faults{.seed = 1};
  faults.again = 0;
  srd_rig r(shape(0), faults);
  ASSERT_EQ(r.ends[0]->write({.peer = 1, .has_immediate = true, .context = 0, .more = true}),
            post_result::posted);
  completion out[8];
  for (int i = 0; i < 1000; ++i) ASSERT_EQ(r.ends[0]->poll(out), 0U);
  EXPECT_EQ(r.ends[0]->unrung(), 1U);
}

TEST(Srd, SendersWaitForASlotAndLoseNothing) {
  rig_options options = shape(slot);
  options.engine.slot_bytes = 200;
  options.engine.slots_per_peer = 2;
  srd_rig r(options, {.seed = 9});
  ASSERT_EQ(r.error, "");
  EXPECT_EQ(exchange(r, 40, 9), "");
  // Credits are exact: no message ever found a peer without a slot.
  for (const auto& end : r.ends) EXPECT_EQ(end->not_ready(), 0U);
  // A sender that ignores them stalls until one is posted.
  std::vector<std::byte> message(16);
  memory_network bare(r.windows(), 1, {});
  wire sender(bare.endpoint(0, 0), {.seed = 1, .again = 0}, 0, 0);
  ASSERT_EQ(sender.send({.peer = 1, .data = message.data(), .bytes = 16, .context = 0}),
            post_result::posted);
  completion out[4];
  for (int i = 0; i < 100; ++i) ASSERT_EQ(sender.poll(out), 0U);
  EXPECT_GT(sender.not_ready(), 0U);
  std::vector<std::byte> slot_memory(64);
  ASSERT_EQ(bare.endpoint(1, 0).receive(slot_memory.data(), 64, 7), post_result::posted);
  std::size_t done = 0;
  for (int i = 0; i < 100; ++i) done += sender.poll(out);
  EXPECT_EQ(done, 1U);
  ASSERT_EQ(bare.endpoint(1, 0).poll(out), 1U);
  EXPECT_EQ(out[0].context, 7U);
}

TEST(Srd, ADeadPeerEndsItsSendersWithItsName) {
  for (const std::uint64_t eager : {std::uint64_t{0}, slot}) {
    srd_options faults{.seed = 4};
    faults.dead_rank = 2;
    faults.dead_after = 3;
    srd_rig r(shape(eager), faults);
    ASSERT_EQ(r.error, "");
    EXPECT_NE(exchange(r, 40, 4), "");
    EXPECT_NE(r.why(0).find("rank 2"), std::string::npos) << r.why(0);
    EXPECT_NE(r.why(1).find("does not answer"), std::string::npos) << r.why(1);
    EXPECT_NE(r.why(2).find("own adapter"), std::string::npos) << r.why(2);
  }
}

}  // namespace
}  // namespace eptransport::proxy
