// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Bad input, dead peers and misuse: typed errors that name who and what, for every rank.

#include <atomic>
#include <cstring>
#include <mutex>

#include "fixture.hpp"

namespace eptransport::testing {
namespace {

using proxy_wire = profiles::efa_proxy;
using proxy_group = group<loopback<proxy_wire>>;

/// What each rank's last call returned.
class outcomes {
 public:
  explicit outcomes(int ranks) : all_(static_cast<std::size_t>(ranks)) {}
  void set(int rank, const result<void>& outcome, const fault_record& fault) {
    const std::lock_guard lock(mutex_);
    auto& mine = all_[static_cast<std::size_t>(rank)];
    mine.ok = outcome.has_value();
    mine.why = outcome ? failure{} : outcome.error();
    mine.fault = fault;
  }
  struct entry {
    bool ok = false;
    failure why{};
    fault_record fault{};
  };
  [[nodiscard]] const entry& of(int rank) const { return all_[static_cast<std::size_t>(rank)]; }

 private:
  std::mutex mutex_;
  std::vector<entry> all_;
};

TEST(Fault, ARankWithTooManyTokensStopsTheOthersByName) {
  for (const bool on_device : {false, true}) {
    for (std::uint64_t seed = 1; seed <= 10; ++seed) {
      outcomes seen(4);
      std::atomic<bool> quick = true;
      on_ranks<proxy_wire>(small_shape(), {.ranks = 4, .order = delivery::shuffled, .seed = seed},
                           [&](const auto& self) {
                             std::mt19937_64 random(static_cast<std::uint64_t>(self.rank) + seed);
                             guarded_memory handle = self.handle_memory();
                             ASSERT_TRUE(self.round(0, self.draw(random, 5), handle_of(handle)));
                             tokens t = self.draw(random, self.rank == 2 ? 11 : 9);
                             dispatch_input in = self.input(t);
                             if (on_device) in.device_tokens = &t.count;
                             guarded_memory rows(self.worst_rows() * 40);
                             const std::uint64_t start = self.transport.view().now_ns();
                             const auto done = self.calls.dispatch(0, in, {.rows = rows.data()},
                                                                   handle_of(handle));
                             if (self.transport.view().now_ns() - start > 900'000'000)
                               quick = false;
                             seen.set(self.rank, done, self.calls.fault(0));
                           });
      EXPECT_TRUE(quick) << "somebody waited for its deadline, seed " << seed;
      for (int rank = 0; rank < 4; ++rank) {
        const auto& end = seen.of(rank);
        ASSERT_FALSE(end.ok);
        EXPECT_NE(end.why.message().find("11"), std::string::npos) << end.why.message();
        EXPECT_NE(end.why.message().find("9"), std::string::npos) << end.why.message();
        if (rank == 2) {
          EXPECT_EQ(end.why.code, errc::capacity);
          continue;
        }
        EXPECT_EQ(end.why.code, errc::peer_stopped) << end.why.message();
        EXPECT_EQ(end.fault.cause, fault_kind::too_many_tokens);
        EXPECT_EQ(end.fault.culprit, 2);
      }
    }
  }
}

TEST(Fault, RefusedArgumentsStopTheOthersToo) {
  outcomes seen(3);
  on_ranks<proxy_wire>(small_shape(), {.ranks = 3}, [&](const auto& self) {
    std::mt19937_64 random(static_cast<std::uint64_t>(self.rank));
    guarded_memory handle = self.handle_memory();
    const tokens t = self.draw(random, 4);
    dispatch_input in = self.input(t);
    if (self.rank == 1) in.x = nullptr;
    guarded_memory rows(self.worst_rows() * 40);
    const auto done = self.calls.dispatch(0, in, {.rows = rows.data()}, handle_of(handle));
    seen.set(self.rank, done, self.calls.fault(0));
  });
  EXPECT_EQ(seen.of(1).why.code, errc::invalid_argument);
  EXPECT_NE(seen.of(1).why.message().find("x is null"), std::string::npos);
  for (const int rank : {0, 2}) {
    EXPECT_EQ(seen.of(rank).why.code, errc::peer_stopped) << seen.of(rank).why.message();
    EXPECT_EQ(seen.of(rank).fault.culprit, 1);
    EXPECT_EQ(seen.of(rank).fault.cause, fault_kind::refused);
  }
}

TEST(Fault, ARefusalThatComesBeforeThePeersMessagesStillReachesThem) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    outcomes seen(3);
    std::atomic<bool> quick = true;
    on_ranks<proxy_wire>(small_shape(), {.ranks = 3, .order = delivery::shuffled, .seed = seed},
                         [&](const auto& self) {
                           std::mt19937_64 random(static_cast<std::uint64_t>(self.rank) + seed);
                           guarded_memory handle = self.handle_memory();
                           tokens t = self.draw(random, 5);
                           for (std::size_t c = 0; c < t.index.size(); ++c) {
                             t.index[c] = static_cast<std::int64_t>(c % 3) * 3;  // every rank
                             t.weight[c] = 1;
                           }
                           guarded_memory rows(self.worst_rows() * 40);
                           guarded_memory out(5 * 40);
                           const std::uint64_t start = self.transport.view().now_ns();
                           auto done =
                               self.calls.dispatch_send(0, self.input(t), handle_of(handle));
                           ASSERT_TRUE(done) << done.error().message();
                           dispatch_output to{.rows = rows.data()};
                           if (self.rank == 1) to.alignment = 0;
                           done = self.calls.dispatch_recv(0, to, handle_of(handle));
                           if (done) {
                             done = self.calls.combine(0, {.y = rows.data()}, {.out = out.data()},
                                                       handle_of(handle));
                           }
                           if (self.transport.view().now_ns() - start > 900'000'000) quick = false;
                           seen.set(self.rank, done, self.calls.fault(0));
                         });
    EXPECT_TRUE(quick) << "somebody waited for its deadline, seed " << seed;
    EXPECT_EQ(seen.of(1).why.code, errc::invalid_argument) << seen.of(1).why.message();
    for (const int rank : {0, 2}) {
      EXPECT_EQ(seen.of(rank).fault.kind, fault_kind::peer_stopped)
          << "seed " << seed << ": " << seen.of(rank).why.message();
      EXPECT_EQ(seen.of(rank).fault.culprit, 1);
    }
  }
}

TEST(Fault, TheDeviceKnowsWhetherNullPointersMatter) {
  for (const std::int64_t count : {0, 3}) {
    on_ranks<proxy_wire>(small_shape(), {.ranks = 2}, [&](const auto& self) {
      guarded_memory handle = self.handle_memory();
      guarded_memory rows(self.worst_rows() * 40);
      const auto done = self.calls.dispatch(0, {.device_tokens = &count}, {.rows = rows.data()},
                                            handle_of(handle));
      EXPECT_EQ(done.has_value(), count == 0) << "null x is fine when there is nothing to read";
      EXPECT_TRUE(done || done.error().code == errc::invalid_argument ||
                  done.error().code == errc::peer_stopped);
    });
  }
}

TEST(Fault, AnIndexOutOfRangeIsAnErrorWhenCheckedAndSkippedWhenFast) {
  for (const index_checks checks : {index_checks::checked, index_checks::fast}) {
    group_shape shape = small_shape();
    shape.checks = checks;
    on_ranks<proxy_wire>(shape, {.ranks = 2}, [&](const auto& self) {
      std::mt19937_64 random(static_cast<std::uint64_t>(self.rank));
      guarded_memory handle = self.handle_memory();
      tokens t = self.draw(random, 4);
      if (self.rank == 0) {
        t.index[3] = 7;  // experts are 0 to 6
        t.index[7] = -2;
        t.index[8] = std::int64_t{1} << 40;
      }
      const auto done = self.round(0, t, handle_of(handle));
      if (checks == index_checks::fast) {
        ASSERT_TRUE(done) << done.error().message();
        EXPECT_EQ(self.calls.statistics(0)->bad_indices, self.rank == 0 ? 3U : 0U);
        return;
      }
      ASSERT_FALSE(done);
      EXPECT_EQ(done.error().code, self.rank == 0 ? errc::bad_index : errc::peer_stopped);
      EXPECT_EQ(self.calls.fault(0).seen, 7U) << done.error().message();
    });
  }
}

TEST(Fault, AnOutputThatIsTooSmallIsReportedAndNotOverrun) {
  for (const output_layout layout :
       {output_layout::rank_major, output_layout::expert_major, output_layout::padded}) {
    on_ranks<proxy_wire>(small_shape(), {.ranks = 2}, [&](const auto& self) {
      guarded_memory handle = self.handle_memory();
      tokens t;  // every choice of every token is expert 0, of rank 0
      t.count = 6;
      t.x.assign(6 * 20, float_to_bf16(1));
      t.index.assign(18, 0);
      t.weight.assign(18, 1);
      const std::int64_t needed = layout == output_layout::rank_major ? 12 : 36;
      const auto experts = static_cast<std::size_t>(self.calls.local_experts());
      const std::int64_t room = self.rank == 0 ? needed - 1 : needed;
      const std::size_t rows =
          static_cast<std::size_t>(room) * (layout == output_layout::padded ? experts : 1);
      guarded_memory out(rows * 40);
      const auto done = self.calls.dispatch(
          0, self.input(t), {.layout = layout, .rows = out.data(), .capacity = room},
          handle_of(handle));
      EXPECT_TRUE(out.intact());
      if (self.rank != 0) return;  // it received nothing, and hears of it in its next call
      ASSERT_FALSE(done);
      EXPECT_EQ(done.error().code, errc::capacity);
      EXPECT_NE(done.error().message().find(std::to_string(needed) + " rows needed, room for " +
                                            std::to_string(needed - 1)),
                std::string::npos)
          << done.error().message();
    });
  }
}

TEST(Fault, AlignmentThatDoesNotFitIsReportedBeforeAnythingIsWritten) {
  on_ranks<profiles::nvlink>(small_shape(), {.ranks = 2}, [&](const auto& self) {
    guarded_memory handle = self.handle_memory();
    tokens t;  // every choice of every token is expert 0, of rank 0
    t.count = 6;
    t.x.assign(6 * 20, float_to_bf16(1));
    t.index.assign(18, 0);
    t.weight.assign(18, 1);
    // Rank 0's 36 rows take 40 with their alignment, of which 4 are only marked.
    const std::int64_t room = self.rank == 0 ? 37 : 40;
    guarded_memory out(static_cast<std::size_t>(room) * 40);
    guarded_memory marks(static_cast<std::size_t>(room) * sizeof(std::int32_t));
    std::int64_t total = -7;
    const auto done = self.calls.dispatch(0, self.input(t),
                                          {.layout = output_layout::expert_major,
                                           .rows = out.data(),
                                           .capacity = room,
                                           .alignment = 8,
                                           .total = &total,
                                           .row_expert = marks.template as<std::int32_t>()},
                                          handle_of(handle));
    EXPECT_TRUE(out.intact());
    EXPECT_TRUE(marks.intact());
    if (self.rank != 0) return;
    ASSERT_FALSE(done);
    EXPECT_EQ(done.error().code, errc::capacity);
    EXPECT_EQ(total, -7);
  });
}

TEST(Fault, CallsOutOfOrderAreRefusedOnTheDeviceAndStayRefused) {
  on_ranks<proxy_wire>(small_shape(), {.ranks = 2}, [&](const auto& self) {
    std::mt19937_64 random(static_cast<std::uint64_t>(self.rank));
    guarded_memory handle = self.handle_memory();
    const tokens t = self.draw(random, 4);
    ASSERT_TRUE(self.calls.dispatch_send(0, self.input(t), handle_of(handle)));
    auto again = self.calls.dispatch_send(0, self.input(t), handle_of(handle));
    ASSERT_FALSE(again);
    EXPECT_EQ(again.error().code, errc::misuse) << again.error().message();
    again = self.calls.combine(0, {}, {}, handle_of(handle));
    ASSERT_FALSE(again);
    EXPECT_EQ(again.error().code, errc::misuse) << "the first fault stays";
  });
}

TEST(Fault, ASecondHalfWithAnotherHandleIsRefused) {
  on_ranks<proxy_wire>(small_shape(), {.ranks = 2}, [&](const auto& self) {
    std::mt19937_64 random(static_cast<std::uint64_t>(self.rank));
    guarded_memory handle = self.handle_memory();
    guarded_memory other = self.handle_memory();
    guarded_memory rows(self.worst_rows() * 40);
    ASSERT_TRUE(self.round(0, self.draw(random, 3), handle_of(other)));
    const tokens t = self.draw(random, 4);
    ASSERT_TRUE(self.calls.dispatch_send(0, self.input(t), handle_of(handle)));
    const auto done = self.calls.dispatch_recv(0, {.rows = rows.data()}, handle_of(other));
    ASSERT_FALSE(done);
    EXPECT_EQ(done.error().code, errc::misuse) << done.error().message();
  });
}

TEST(Fault, ADeadlineMayBeAsFarAsTheClockGoes) {
  on_ranks<proxy_wire>(small_shape(), {.ranks = 2}, [&](const auto& self) {
    std::mt19937_64 random(static_cast<std::uint64_t>(self.rank));
    guarded_memory handle = self.handle_memory();
    ASSERT_TRUE(self.calls.set_timeout(no_deadline));
    EXPECT_TRUE(self.round(0, self.draw(random, 3), handle_of(handle)));
  });
}

TEST(Fault, AHandleThatNoDispatchFilledIsRefused) {
  on_ranks<proxy_wire>(small_shape(), {.ranks = 2}, [&](const auto& self) {
    guarded_memory handle = self.handle_memory();
    const auto done = self.calls.combine(0, {}, {}, handle_of(handle));
    ASSERT_FALSE(done);
    EXPECT_EQ(done.error().code, errc::misuse) << done.error().message();
    EXPECT_TRUE(handle.intact());
  });
}

TEST(Fault, WeightsAtTheExpertNeedARowPerExpert) {
  on_ranks<proxy_wire>(small_shape(), {.ranks = 1}, [&](const auto& self) {
    std::mt19937_64 random(3);
    guarded_memory handle = self.handle_memory();
    guarded_memory rows(self.worst_rows() * 40);
    guarded_memory out(9 * 40);
    const tokens t = self.draw(random, 9);
    ASSERT_TRUE(self.calls.dispatch(0, self.input(t), {.rows = rows.data()}, handle_of(handle)));
    const auto done = self.calls.combine(0, {.y = rows.data(), .weights = weighting::at_expert},
                                         {.out = out.data()}, handle_of(handle));
    ASSERT_FALSE(done);
    EXPECT_EQ(done.error().code, errc::misuse);
  });
}

TEST(Fault, AModeThatTheGroupWasNotBuiltForIsRefused) {
  on_ranks<proxy_wire>(small_shape(), {.ranks = 1}, [&](const auto& self) {
    guarded_memory handle = self.handle_memory();
    guarded_memory rows(self.worst_rows() * 40);
    const auto done = self.calls.dispatch(0, {.mode = dispatch_mode::counted},
                                          {.rows = rows.data()}, handle_of(handle));
    ASSERT_FALSE(done);
    EXPECT_EQ(done.error().code, errc::invalid_argument);
    EXPECT_NE(done.error().message().find("counted_tokens"), std::string::npos);
  });
}

/// Runs pairs until the dead rank is noticed; returns how each rank ended.
std::unique_ptr<outcomes> with_a_dead_rank(signal_words words, message_shape message,
                                           std::uint64_t after_ops) {
  constexpr int ranks = 4;
  auto seen = std::make_unique<outcomes>(ranks);
  group_shape shape = small_shape();
  shape.signals = words;
  shape.message = message;
  loopback_options options{.ranks = ranks, .order = delivery::shuffled, .seed = after_ops + 1};
  options.faults.push_back({.kind = loopback_fault_kind::kill, .rank = 3, .after_ops = after_ops});
  on_ranks<proxy_wire>(shape, options, [&](const auto& self) {
    std::mt19937_64 random(static_cast<std::uint64_t>(self.rank) + after_ops);
    guarded_memory handle = self.handle_memory();
    ASSERT_TRUE(self.transport.barrier(1'000'000'000)) << "every group is built";
    for (int round = 0; round < 50; ++round) {
      const std::uint64_t start = self.transport.view().now_ns();
      const auto done = self.round(0, self.draw(random, 9), handle_of(handle));
      seen->set(self.rank, done, self.calls.fault(0));
      if (done) continue;
      const std::uint64_t took = self.transport.view().now_ns() - start;
      EXPECT_LE(took, 2'200'000'000U) << "dispatch and combine have a second each";
      const auto later = self.calls.combine(0, {}, {}, handle_of(handle));
      EXPECT_FALSE(later) << "the lane is poisoned";
      return;
    }
  });
  return seen;
}

TEST(Fault, ADeadPeerEndsEveryWaiterAtTheDeadlineWithItsName) {
  for (const message_shape message : {message_shape::per_peer, message_shape::per_row}) {
    for (std::uint64_t after = 3; after < 40; ++after) {  // 3: the hellos go well
      const auto seen = with_a_dead_rank(signal_words::per_source, message, after);
      bool named = false;
      for (int rank = 0; rank < 3; ++rank) {
        const auto& end = seen->of(rank);
        ASSERT_FALSE(end.ok) << "rank " << rank << ", dead after " << after;
        const fault_record& f = end.fault;
        EXPECT_TRUE(f.kind == fault_kind::expired || f.kind == fault_kind::peer_stopped)
            << end.why.message();
        EXPECT_NE(f.where, stage::none);
        EXPECT_GE(f.peer, 0) << end.why.message();
        if (f.kind == fault_kind::expired) {
          EXPECT_LT(static_cast<std::int64_t>(f.seen - f.expected), 0);
          EXPECT_GE(f.signal, 0);
        }
        const int blamed = f.kind == fault_kind::peer_stopped ? f.culprit : f.peer;
        named = named || blamed == 3;
      }
      EXPECT_TRUE(named) << "nobody names rank 3, dead after " << after;
    }
  }
}

TEST(Fault, WithSummedWordsTheHeaderStampsNameWhoIsLate) {
  int named = 0;
  for (std::uint64_t after = 3; after < 20; ++after) {
    const auto seen = with_a_dead_rank(signal_words::summed, message_shape::per_peer, after);
    for (int rank = 0; rank < 3; ++rank) {
      ASSERT_FALSE(seen->of(rank).ok);
      if (seen->of(rank).fault.where == stage::dispatch_recv && seen->of(rank).fault.peer == 3) {
        ++named;
      }
    }
  }
  EXPECT_GT(named, 5);
}

TEST(Fault, AHardErrorOfTheWireIsNotMistakenForLateness) {
  loopback_options options{.ranks = 2};
  options.faults.push_back({.kind = loopback_fault_kind::hard_error, .rank = 0, .after_ops = 5});
  outcomes seen(2);
  on_ranks<proxy_wire>(small_shape(), options, [&](const auto& self) {
    std::mt19937_64 random(static_cast<std::uint64_t>(self.rank));
    guarded_memory handle = self.handle_memory();
    for (int round = 0; round < 10; ++round) {
      const auto done = self.round(0, self.draw(random, 9), handle_of(handle));
      seen.set(self.rank, done, self.calls.fault(0));
      if (!done) return;
    }
  });
  EXPECT_EQ(seen.of(0).why.code, errc::transport_failed) << seen.of(0).why.message();
  EXPECT_FALSE(seen.of(1).ok);
}

TEST(Fault, RanksBuiltWithAnotherShapeAreNamed) {
  loopback_options options{.ranks = 3, .window_bytes = 1 << 20, .signals = 100};
  auto world = loopback_world<proxy_wire>::create(options);
  ASSERT_TRUE(world);
  (*world)->run([](loopback<proxy_wire>& transport) {
    group_shape shape = small_shape();
    const int rank = transport.view().rank();
    if (rank == 1) shape.max_tokens = 10;
    const auto made = proxy_group::create(transport, shape, {}, 1'000'000);
    ASSERT_FALSE(made);
    EXPECT_EQ(made.error().code, errc::mismatch);
    const std::string text = made.error().message();
    const char* numbers = rank == 1 ? "max_tokens 9 (here 10)" : "max_tokens 10 (here 9)";
    EXPECT_NE(text.find(numbers), std::string::npos) << text;
    EXPECT_TRUE(rank == 1 || text.find("rank 1") != std::string::npos) << text;
  });
}

TEST(Fault, ARankThatNeverComesIsNamed) {
  auto world =
      loopback_world<proxy_wire>::create({.ranks = 3, .window_bytes = 1 << 20, .signals = 100});
  ASSERT_TRUE(world);
  (*world)->run([](loopback<proxy_wire>& transport) {
    if (transport.view().rank() == 2) return;
    const auto made = proxy_group::create(transport, small_shape(), {}, 1'000'000);
    ASSERT_FALSE(made);
    EXPECT_EQ(made.error().code, errc::timed_out);
    EXPECT_NE(made.error().message().find('2'), std::string::npos) << made.error().message();
  });
}

TEST(Fault, TheSizesAreExactAndOneLessIsRefused) {
  const auto sizes = proxy_group::sizes(small_shape(), 1);
  ASSERT_TRUE(sizes);
  const auto refusal = [&](std::uint64_t window, std::uint32_t signals, std::uint64_t workspace) {
    auto world = loopback_world<proxy_wire>::create(
        {.ranks = 1, .window_bytes = window, .signals = signals});
    EXPECT_TRUE(world);
    std::string text;
    guarded_memory memory(sizes->workspace_bytes, std::byte{0});
    (*world)->run([&](loopback<proxy_wire>& transport) {
      const auto made = proxy_group::create(
          transport, small_shape(), {.workspace = memory.data(), .workspace_bytes = workspace});
      if (made) return;
      text = made.error().message();
      EXPECT_EQ(made.error().code, errc::capacity);
    });
    EXPECT_TRUE(memory.intact());
    return text;
  };
  const auto both = [](std::uint64_t needed) {
    return std::to_string(needed) + " needed, " + std::to_string(needed - 1) + " there";
  };
  EXPECT_EQ(refusal(sizes->window_bytes, sizes->signals, sizes->workspace_bytes), "");
  EXPECT_NE(refusal(sizes->window_bytes - 1, sizes->signals, sizes->workspace_bytes)
                .find(both(sizes->window_bytes)),
            std::string::npos);
  EXPECT_NE(refusal(sizes->window_bytes, sizes->signals - 1, sizes->workspace_bytes)
                .find(both(sizes->signals)),
            std::string::npos);
  EXPECT_NE(refusal(sizes->window_bytes, sizes->signals, sizes->workspace_bytes - 1)
                .find(both(sizes->workspace_bytes)),
            std::string::npos);
  on_ranks<proxy_wire>(small_shape(), {.ranks = 1}, [&](const auto& self) {
    guarded_memory handle = self.handle_memory();
    guarded_memory rows(self.worst_rows() * 40);
    const auto done =
        self.calls.dispatch(0, {}, {.rows = rows.data()}, {handle.data(), handle.size() - 1});
    ASSERT_FALSE(done);
    EXPECT_NE(done.error().message().find(std::to_string(handle.size())), std::string::npos);
  });
}

TEST(Fault, WhatTheWireCannotCarryIsRefusedWithBothNumbers) {
  using tight = group<loopback<tight_wire>>;
  group_shape wide{.max_tokens = 1, .hidden = 1000, .top_k = 1, .experts = 1};
  auto sizes = tight::sizes(wide, 2);
  ASSERT_FALSE(sizes);
  EXPECT_EQ(sizes.error().code, errc::capacity);
  EXPECT_NE(sizes.error().message().find("1000"), std::string::npos) << sizes.error().message();
  group_shape many = small_shape();
  many.lanes = 10;
  sizes = tight::sizes(many, 2);
  ASSERT_FALSE(sizes);
  EXPECT_NE(sizes.error().message().find("need 61 signal words, the wire has 60"),
            std::string::npos)
      << sizes.error().message();
  many.lanes = 9;
  sizes = tight::sizes(many, 2);
  ASSERT_TRUE(sizes) << "summed words fit";
  EXPECT_EQ(sizes->signals, 55U);
}

TEST(Fault, ImpossibleShapesAreRefusedBeforeAnythingIsBuilt) {
  const auto code = [](const group_shape& shape, int ranks = 2) {
    const auto sizes = proxy_group::sizes(shape, ranks);
    return sizes ? std::error_code{} : sizes.error().code;
  };
  group_shape shape = small_shape();
  EXPECT_EQ(code(shape), std::error_code{});
  EXPECT_EQ(code(shape, 0), errc::invalid_argument);
  for (auto* field : {&shape.max_tokens, &shape.hidden}) {
    const std::int64_t keep = *field;
    for (const std::int64_t bad :
         {std::int64_t{0}, std::int64_t{-1}, std::numeric_limits<std::int64_t>::max()}) {
      *field = bad;
      EXPECT_TRUE(code(shape)) << bad;
    }
    *field = keep;
  }
  for (auto* field : {&shape.top_k, &shape.experts, &shape.lanes}) {
    const std::int32_t keep = *field;
    *field = 0;
    EXPECT_EQ(code(shape), errc::invalid_argument);
    *field = keep;
  }
  const std::vector<std::int32_t> placement = {0, 1, 2, 0, 1, 0, 1};  // there is no rank 2
  shape.placement = placement;
  EXPECT_EQ(code(shape), errc::invalid_argument);
  shape.placement = {};
  shape.message = message_shape::direct;
  EXPECT_EQ(code(shape), errc::unsupported);
}

}  // namespace
}  // namespace eptransport::testing
