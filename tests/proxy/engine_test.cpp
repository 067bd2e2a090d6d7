// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The engine over the in-process wire and the null endpoint.
#include <eptransport/proxy/endpoints/memory.hpp>
#include <eptransport/proxy/endpoints/null.hpp>
#include <eptransport/proxy/engine.hpp>

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "proxy/rig.hpp"

namespace eptransport::proxy {
namespace {

using testing::rig;
using testing::rig_options;

struct memory_rig : rig<memory_endpoint> {
  explicit memory_rig(const rig_options& options, const memory_options& wire = {})
      : rig<memory_endpoint>(options), network(windows(), 1, wire) {
    error = build([this](std::uint32_t r) -> memory_endpoint& { return network.endpoint(r, 0); });
  }
  memory_network network;
  std::string error;
  engine_end end{*this};
};

TEST(Engine, APutCopiesItsBytesAndCountsOnce) {
  for (const std::uint64_t eager : {0ULL, 256ULL}) {
    rig_options options;
    options.engine.eager = eager;
    memory_rig r(options);
    ASSERT_EQ(r.error, "");
    std::memset(r.rank(0).window.data() + 100, 7, 33);
    ASSERT_TRUE(
        r.push(0, {.src_offset = 100, .dst_offset = 1001, .bytes = 33, .peer = 1, .signal = 3}));
    ASSERT_TRUE(r.until([&] { return r.word(1, 3) == 1 && r.complete(0); }));
    EXPECT_EQ(r.rank(1).window[1000], std::byte{0});
    EXPECT_EQ(r.rank(1).window[1001], std::byte{7});
    EXPECT_EQ(r.rank(1).window[1033], std::byte{7});
    EXPECT_EQ(r.rank(1).window[1034], std::byte{0});
    EXPECT_EQ(r.at(0).statistics().messages.get(), eager == 0 ? 0U : 1U);
    EXPECT_EQ(r.at(0).statistics().writes.get(), eager == 0 ? 1U : 0U);
  }
}

TEST(Engine, ARunOfRowsIsOneWriteThatCountsThemAll) {
  memory_rig r({});
  ASSERT_EQ(r.error, "");
  for (std::size_t i = 0; i < 160; ++i) r.rank(0).window[i] = static_cast<std::byte>(i + 1);
  ASSERT_TRUE(r.push(0, {.dst_offset = 512, .bytes = 160, .peer = 1, .signal = 0, .count = 10}));
  ASSERT_TRUE(r.until([&] { return r.word(1, 0) == 10; }));
  EXPECT_EQ(std::memcmp(r.rank(1).window.data() + 512, r.rank(0).window.data(), 160), 0);
  EXPECT_EQ(r.at(0).statistics().writes.get(), 1U);
}

TEST(Engine, CommandsForOnePeerInOneVisitTravelInOneMessage) {
  rig_options options{.ranks = 3};
  options.engine.eager = 64;
  memory_rig r(options);
  ASSERT_EQ(r.error, "");
  for (std::uint32_t i = 0; i < 20; ++i) {
    const std::uint64_t at = i * 64ULL;
    std::memset(r.rank(0).window.data() + at, static_cast<int>(i + 1), 50);
    ASSERT_TRUE(r.push(
        0, {.src_offset = at, .dst_offset = at, .bytes = 50, .peer = 1 + i % 2, .signal = 2}));
  }
  ASSERT_TRUE(r.until([&] { return r.word(1, 2) == 10 && r.word(2, 2) == 10; }));
  EXPECT_EQ(r.at(0).statistics().messages.get(), 2U);
  EXPECT_EQ(r.at(0).statistics().grouped.get(), 20U);
  EXPECT_EQ(r.at(1).statistics().arrived_messages.get(), 1U);
  for (std::uint32_t i = 0; i < 20; ++i) {
    const auto& window = r.rank(1 + i % 2).window;
    EXPECT_EQ(window[i * 64ULL + 49], static_cast<std::byte>(i + 1));
    EXPECT_EQ(window[i * 64ULL + 50], std::byte{0});
  }
}

// Far more commands than slots, credits, operations and queue entries: all wait, none is lost.
TEST(Engine, ScarceResourcesHoldCommandsUpAndLoseNone) {
  for (const std::uint64_t eager : {0ULL, 16ULL, 40ULL}) {
    rig_options options{.ranks = 3, .signals = 4, .rings = 2, .ring_slots = 8};
    options.first_position = ~std::uint64_t{0} - 5;
    options.engine.eager = eager;
    options.engine.slot_bytes = eager == 0 ? 0 : 200;
    options.engine.slots_per_peer = 2;
    options.engine.send_buffers = eager == 0 ? 0 : 2;
    options.engine.writes_per_peer = 2;
    options.engine.operations = 3;
    options.engine.peer_queue = 2;
    options.engine.visit = 5;
    options.engine.ring_burst = 2;
    memory_rig r(options);
    ASSERT_EQ(r.error, "");
    constexpr std::uint64_t puts = 3000;
    std::mt19937_64 random(eager);
    std::uint64_t expected[3] = {};
    for (std::uint64_t i = 0; i < puts; ++i) {
      for (std::uint32_t rank = 0; rank < 3; ++rank) {
        const auto peer = static_cast<std::uint32_t>(random() % 3);
        r.push_or_step(rank,
                       {.src_offset = random() % 64,
                        .dst_offset = 1024 + random() % 512,
                        .bytes = random() % 60,
                        .peer = peer,
                        .signal = 1},
                       static_cast<std::uint32_t>(i % 2));
        ++expected[peer];
      }
    }
    EXPECT_TRUE(r.until([&] {
      for (std::uint32_t rank = 0; rank < 3; ++rank) {
        if (r.word(rank, 1) != expected[rank] || !r.complete(rank, 0) || !r.complete(rank, 1)) {
          return false;
        }
      }
      return true;
    })) << "eager "
        << eager << ": " << r.why(0) << r.at(0).statistics().json();
    EXPECT_GT(r.at(0).statistics().full_stalls.get(), 0U);
    EXPECT_LE(r.at(0).statistics().max_in_flight.get(), 3U);
    for (std::uint32_t rank = 0; rank < 3; ++rank) EXPECT_EQ(r.why(rank), "");
  }
}

/// Takes nothing for a given time, then everything; counts what it was offered.
class reluctant_endpoint {
 public:
  reluctant_endpoint(memory_endpoint& inner, std::uint64_t refusals)
      : inner_(inner), refusals_(refusals) {}
  [[nodiscard]] endpoint_limits limits() const { return inner_.limits(); }
  [[nodiscard]] std::span<std::byte> window() const { return inner_.window(); }
  [[nodiscard]] result<void> attach(std::span<std::byte> memory) { return inner_.attach(memory); }
  void detach() noexcept { inner_.detach(); }
  post_result receive(std::byte* slot, std::uint64_t bytes, std::uint32_t context) {
    if (receives-- != 0) return inner_.receive(slot, bytes, context);
    broken_ = true;
    return post_result::failed;
  }
  post_result write(const write_post& post) {
    return refuse() ? post_result::again : inner_.write(post);
  }
  post_result send(const send_post& post) {
    return refuse() ? post_result::again : inner_.send(post);
  }
  std::size_t poll(std::span<completion> out) {
    ++polls;
    if (!broken_) return inner_.poll(out);
    out[0] = {.kind = completion_kind::error, .peer = ~std::uint32_t{0}, .code = torn_slot};
    return 1;
  }
  [[nodiscard]] std::string describe(int code) const {
    return code == torn_slot ? "the slot is torn" : inner_.describe(code);
  }
  std::uint64_t polls = 0;
  std::uint64_t receives = ~std::uint64_t{0};  ///< receive slots that it takes

 private:
  static constexpr int torn_slot = 12345;
  bool refuse() { return refusals_ != 0 && refusals_-- != 0; }
  bool broken_ = false;
  memory_endpoint& inner_;
  std::uint64_t refusals_;
};

// Writes, messages and credits of three ranks are counted where they are posted and where they
// arrive; what was not begun stays in the rings.
TEST(Engine, WindingDownEndsWhatIsInFlightAndBeginsNothing) {
  rig_options options{.ranks = 3, .ring_slots = 64};
  options.engine.eager = 16;
  options.engine.writes_per_peer = 4;
  options.engine.slots_per_peer = 2;
  options.engine.peer_queue = 2;
  memory_rig r(options);
  ASSERT_EQ(r.error, "");
  for (std::uint32_t i = 0; i < 600; ++i) {
    for (std::uint32_t rank = 0; rank < 3; ++rank) {
      r.push_or_step(rank,
                     {.dst_offset = 1024, .bytes = i % 2 * 60, .peer = (rank + 1 + i % 2) % 3});
    }
  }
  for (std::uint32_t rank = 0; rank < 3; ++rank) {
    EXPECT_FALSE(r.at(rank).wound_down());
    r.at(rank).wind_down();
  }
  const std::uint64_t begun = r.at(0).statistics().commands.get();
  ASSERT_TRUE(r.until([&] {
    for (std::uint32_t rank = 0; rank < 3; ++rank) {
      std::uint64_t posted = 0;
      for (std::uint32_t from = 0; from < 3; ++from) posted += r.at(from).posted(rank);
      if (!r.at(rank).wound_down() || r.at(rank).arrived() != posted) return false;
    }
    return true;
  }));
  for (std::uint32_t rank = 0; rank < 3; ++rank) {
    EXPECT_GT(r.at(rank).statistics().credit_writes.get(), 0U);
    EXPECT_GT(r.at(rank).statistics().messages.get(), 0U);
    EXPECT_GT(r.at(rank).statistics().writes.get(), 0U);
    EXPECT_FALSE(r.complete(rank)) << "all was done before";
    EXPECT_EQ(r.why(rank), "");
  }
  EXPECT_EQ(r.at(0).statistics().commands.get(), begun);
}

TEST(Engine, RefusedAMillionTimesAPostGoesOutOnce) {
  constexpr std::uint64_t refusals = 1'000'000;
  for (const std::uint64_t eager : {0ULL, 64ULL}) {
    rig_options options;
    options.engine.eager = eager;
    rig<reluctant_endpoint> r(options);
    memory_network network(r.windows(), 1, {});
    std::vector<std::unique_ptr<reluctant_endpoint>> ends;
    for (std::uint32_t i = 0; i < 2; ++i) {
      ends.push_back(
          std::make_unique<reluctant_endpoint>(network.endpoint(i, 0), i == 0 ? refusals : 0));
    }
    const rig<reluctant_endpoint>::engine_end end{r};
    ASSERT_EQ(r.build([&](std::uint32_t i) -> reluctant_endpoint& { return *ends[i]; }), "");
    r.rank(0).window[9] = std::byte{42};
    ASSERT_TRUE(r.push(0, {.src_offset = 9, .dst_offset = 99, .bytes = 1, .peer = 1, .signal = 0}));
    ASSERT_TRUE(r.until([&] { return r.word(1, 0) != 0; }, 2 * refusals));
    for (int i = 0; i < 100; ++i) r.step_all();
    EXPECT_EQ(r.word(1, 0), 1U);
    EXPECT_EQ(r.rank(1).window[99], std::byte{42});
    EXPECT_EQ(r.at(0).statistics().again.get(), refusals);
    EXPECT_GE(ends[0]->polls, refusals);  // it drained the completion queue between the tries
    EXPECT_EQ(r.at(0).in_flight(), 0U);
  }
}

TEST(Engine, SaysWhyAReceiveSlotWasRefused) {
  // At construction, and when the slot of the first message goes back.
  for (const bool later : {false, true}) {
    rig_options options;
    options.engine.eager = 64;
    rig<reluctant_endpoint> r(options);
    memory_network network(r.windows(), 1, {});
    std::vector<std::unique_ptr<reluctant_endpoint>> ends;
    for (std::uint32_t i = 0; i < 2; ++i) {
      ends.push_back(std::make_unique<reluctant_endpoint>(network.endpoint(i, 0), 0));
    }
    ends[1]->receives = later ? options.engine.slots_per_peer : 1;
    const rig<reluctant_endpoint>::engine_end end{r};
    const std::string refused =
        r.build([&](std::uint32_t i) -> reluctant_endpoint& { return *ends[i]; });
    if (!later) {
      EXPECT_NE(refused.find("took 1 receive slots of 4: the slot is torn"), std::string::npos)
          << refused;
      continue;
    }
    ASSERT_EQ(refused, "");
    ASSERT_TRUE(r.push(0, {.bytes = 8, .peer = 1, .signal = 0}));
    EXPECT_TRUE(r.until([&] { return !r.why(1).empty(); }, 1000));
    EXPECT_NE(r.why(1).find("failed: the slot is torn"), std::string::npos) << r.why(1);
  }
}

TEST(Engine, FlushSaysExactlyWhichSourcesAreFree) {
  null_options wire;
  std::vector<std::byte> window(64);
  wire.window = window;
  wire.rank_bits = 1;
  rig_options options{.window_bytes = 64};
  rig<null_endpoint> r(options);
  std::vector<null_endpoint> ends(2, null_endpoint(wire));
  const rig<null_endpoint>::engine_end end{r};
  ASSERT_EQ(r.build([&](std::uint32_t i) -> null_endpoint& { return ends[i]; }), "");
  for (int i = 0; i < 5; ++i) ASSERT_TRUE(r.push(0, {.bytes = 8, .peer = 1, .signal = 0}));
  EXPECT_EQ(host_memory::signal_acquire(r.rank(0).rings[0].complete), 0U);
  (void)r.at(0).step();  // posted, not completed
  EXPECT_EQ(host_memory::signal_acquire(r.rank(0).rings[0].complete), 0U);
  (void)r.at(0).step();
  EXPECT_EQ(host_memory::signal_acquire(r.rank(0).rings[0].complete), 5U);
}

TEST(Engine, ACommandThatLeavesItsBoundsFailsTheRankByName) {
  for (const command& bad : {command{.src_offset = 4000, .bytes = 200, .peer = 1},
                             command{.dst_offset = 4000, .bytes = 200, .peer = 0},
                             command{.dst_offset = 4000, .bytes = 200, .peer = 1}}) {
    memory_rig r({});
    ASSERT_EQ(r.error, "");
    ASSERT_TRUE(r.push(0, bad));
    ASSERT_TRUE(r.until([&] { return r.rank(0).fault.failed(); }, 1000));
    EXPECT_NE(r.why(0).find("rank 0"), std::string::npos);
    EXPECT_NE(r.why(0).find("window"), std::string::npos) << r.why(0);
    EXPECT_FALSE(r.rank(1).fault.failed());
  }
}

TEST(Engine, AMessageFromOutsideIsNotBelieved) {
  rig_options options;
  options.engine.eager = 64;
  std::mt19937_64 random(3);
  for (int i = 0; i < 300; ++i) {
    memory_rig r(options);
    ASSERT_EQ(r.error, "");
    std::vector<std::byte> message(16 + random() % 100);
    for (std::byte& b : message) b = static_cast<std::byte>(random());
    if (i % 2 == 0) {  // a plausible header, wild entries
      const message_header header{0, 1 + static_cast<std::uint32_t>(random() % 3), 0, 0};
      std::memcpy(message.data(), &header, sizeof header);
    }
    ASSERT_EQ(
        r.network.endpoint(0, 0).send({.peer = 1, .data = message.data(), .bytes = message.size()}),
        post_result::posted);
    ASSERT_TRUE(r.until([&] { return r.rank(1).fault.failed(); }, 100)) << "message " << i;
  }
}

TEST(Engine, WhatTheEndpointCannotCarryIsRefusedWithBothNumbers) {
  const auto error_of = [](const rig_options& options, const memory_options& wire) {
    return memory_rig(options, wire).error;
  };
  rig_options large;
  large.engine.eager = 5000;
  large.engine.slot_bytes = 4096;
  EXPECT_NE(error_of(large, {}).find("slots have 4096"), std::string::npos) << error_of(large, {});
  large.engine.slot_bytes = 0;
  memory_options short_messages;
  short_messages.max_send = 4096;
  EXPECT_NE(error_of(large, short_messages).find("the endpoint sends 4096"), std::string::npos);
  memory_options small_queue;
  small_queue.completions = 8;
  EXPECT_NE(error_of({}, small_queue).find("completion queue has 1032"), std::string::npos)
      << error_of({}, small_queue);
  EXPECT_FALSE(plan_engine({}, {0, 4, 1U << 31}, {.operations = 8}));
  const auto narrow = plan_engine({}, {0, 2, 8, 4096}, {.max_message = 1024, .operations = 8});
  ASSERT_FALSE(narrow);
  EXPECT_NE(narrow.error().message().find("4096 bytes were promised"), std::string::npos);
  EXPECT_NE(narrow.error().message().find("at most 1024"), std::string::npos);
  rig_options greedy;
  greedy.engine.operations = 5000;
  EXPECT_NE(error_of(greedy, {}).find("5000 operations"), std::string::npos);
}

TEST(Engine, WhatDoesNotMoveIsAFailureThatNamesThePeer) {
  rig_options options;
  rig<reluctant_endpoint> r(options);
  memory_network network(r.windows(), 1, {});
  std::vector<std::unique_ptr<reluctant_endpoint>> ends;
  for (std::uint32_t i = 0; i < 2; ++i) {
    ends.push_back(std::make_unique<reluctant_endpoint>(network.endpoint(i, 0), ~0ULL));
  }
  const rig<reluctant_endpoint>::engine_end end{r};
  ASSERT_EQ(r.build([&](std::uint32_t i) -> reluctant_endpoint& { return *ends[i]; }), "");
  ASSERT_TRUE(r.push(0, {.peer = 1, .signal = 0}));
  for (int i = 0; i < 3; ++i) {
    (void)r.at(0).step();
    r.at(0).watch();
    EXPECT_FALSE(r.rank(0).fault.failed());
  }
  (void)r.at(0).step();
  r.at(0).watch();
  EXPECT_TRUE(r.rank(0).fault.failed());
  EXPECT_NE(r.why(0).find("to rank 1"), std::string::npos) << r.why(0);
}

/// Reports one local completion twice.
class repeating_endpoint : public reluctant_endpoint {
 public:
  explicit repeating_endpoint(memory_endpoint& inner) : reluctant_endpoint(inner, 0) {}
  std::size_t poll(std::span<completion> out) {
    const std::size_t n = reluctant_endpoint::poll(out);
    for (std::size_t i = 0; i < n && n < out.size() && !repeated_; ++i) {
      if (out[i].kind != completion_kind::write) continue;
      repeated_ = true;
      out[n] = out[i];
      return n + 1;
    }
    return n;
  }

 private:
  bool repeated_ = false;
};

TEST(Engine, ACompletionThatComesTwiceIsAFailureAndNotASecondOperation) {
  rig<repeating_endpoint> r({});
  memory_network network(r.windows(), 1, {});
  std::vector<std::unique_ptr<repeating_endpoint>> ends;
  for (std::uint32_t i = 0; i < 2; ++i) {
    ends.push_back(std::make_unique<repeating_endpoint>(network.endpoint(i, 0)));
  }
  const rig<repeating_endpoint>::engine_end end{r};
  ASSERT_EQ(r.build([&](std::uint32_t i) -> repeating_endpoint& { return *ends[i]; }), "");
  ASSERT_TRUE(r.push(0, {.bytes = 8, .peer = 1, .signal = 0}));
  ASSERT_TRUE(r.until([&] { return r.rank(0).fault.failed(); }, 100));
  EXPECT_NE(r.why(0).find("which is not in flight"), std::string::npos) << r.why(0);
  EXPECT_EQ(r.at(0).in_flight(), 0U);
}

TEST(Engine, NothingTouchesTheSlotsOfAnEngineThatIsGone) {
  std::vector<std::byte> windows(2 * 4096);
  memory_network network({{windows.data(), 4096}, {windows.data() + 4096, 4096}}, 1, {});
  const command_codec codec = *command_codec::create({2, 8, 4096, 0});
  std::vector<std::uint64_t> words(8);
  fault_cell fault;
  engine_options options;
  options.eager = 64;
  options.slots_per_peer = 2;
  const std::vector<std::byte> message(64, std::byte{7});
  const auto send = [&] {
    return network.endpoint(0, 0).send(
        {.peer = 1, .data = message.data(), .bytes = message.size(), .context = 0});
  };
  for (int life = 0; life < 3; ++life) {
    EXPECT_EQ(send(), post_result::again) << "no slot is posted, life " << life;
    const auto made = engine<memory_endpoint>::create(network.endpoint(1, 0), codec, {1, 2, 8},
                                                      options, {{}, 0, words.data(), &fault});
    ASSERT_TRUE(made) << made.error().message();
    EXPECT_EQ(send(), post_result::posted);
    std::vector<completion> out(4);
    (void)network.endpoint(0, 0).poll(out);
  }
}

TEST(Engine, CreditsThatWereNeverGivenAreAFailure) {
  for (const bool by_message : {false, true}) {
    rig_options options;
    options.engine.eager = 64;
    memory_rig r(options);
    ASSERT_EQ(r.error, "");
    const auto immediates = immediate_codec::create(2, options.signals, 32);
    ASSERT_TRUE(immediates);
    const message_header header{0, 0, 1, 0};
    const write_post credit{.peer = 1,
                            .immediate = immediates->encode(0, immediates->message_credit(), 1),
                            .has_immediate = true};
    ASSERT_EQ(by_message ? r.network.endpoint(0, 0).send(
                               {.peer = 1,
                                .data = reinterpret_cast<const std::byte*>(&header),
                                .bytes = sizeof header})
                         : r.network.endpoint(0, 0).write(credit),
              post_result::posted);
    ASSERT_TRUE(r.until([&] { return r.rank(1).fault.failed(); }, 100));
    EXPECT_NE(r.why(1).find("more credits than it was given"), std::string::npos) << r.why(1);
  }
}

TEST(Engine, StatisticsAreOneJsonObject) {
  memory_rig r({});
  ASSERT_TRUE(r.push(0, {.peer = 1, .signal = 0}));
  ASSERT_TRUE(r.until([&] { return r.word(1, 0) == 1; }));
  const std::string text = r.at(0).statistics().json();
  EXPECT_NE(text.find("\"commands\": 1,"), std::string::npos) << text;
  EXPECT_NE(text.find("\"writes\": 1,"), std::string::npos) << text;
  EXPECT_EQ(text.front(), '{');
  EXPECT_EQ(text.back(), '}');
  EXPECT_NE(r.at(1).statistics().json().find("\"immediates\": 1,"), std::string::npos);
}

}  // namespace
}  // namespace eptransport::proxy
