// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The order of calls, lifetimes, lanes and handles.

#include <algorithm>
#include <cstring>

#include "fixture.hpp"

namespace eptransport::testing {
namespace {

loopback_options shuffled(int ranks, std::uint64_t seed) {
  return {.ranks = ranks, .order = delivery::shuffled, .seed = seed};
}

TEST(Call, CombineWithoutDispatchOpensAnExchangeOfItsOwn) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    on_ranks<profiles::efa_proxy>(small_shape(), shuffled(3, seed), [&](const auto& self) {
      std::mt19937_64 random(seed * 100 + static_cast<std::uint64_t>(self.rank));
      guarded_memory handle = self.handle_memory();
      const tokens t = self.draw(random, static_cast<std::int64_t>(random() % 10));
      guarded_memory rows(self.worst_rows() * 40);
      guarded_memory out(static_cast<std::size_t>(t.count) * 40 + 1);
      ASSERT_TRUE(self.calls.dispatch(0, self.input(t), {.rows = rows.data()}, handle_of(handle)));
      for (int again = 0; again < 3; ++again) {
        std::memset(out.data(), 0xa5, out.size());
        const auto back =
            self.calls.combine(0, {.y = rows.data()}, {.out = out.data()}, handle_of(handle));
        ASSERT_TRUE(back) << back.error().message();
        EXPECT_TRUE(self.combined(t, out.template as<std::uint16_t>())) << "seed " << seed;
      }
      EXPECT_EQ(self.calls.statistics(0)->epoch, 3U);
      EXPECT_EQ(self.calls.statistics(0)->combines, 3U);
    });
  }
}

TEST(Call, TwoDispatchesMayBeCombinedInAnyOrderAfterwards) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    on_ranks<profiles::efa_gpu>(small_shape(), shuffled(3, seed), [&](const auto& self) {
      std::mt19937_64 random(seed * 100 + static_cast<std::uint64_t>(self.rank));
      guarded_memory handles[2] = {self.handle_memory(), self.handle_memory()};
      guarded_memory rows[2] = {guarded_memory(self.worst_rows() * 40),
                                guarded_memory(self.worst_rows() * 40)};
      const tokens t[2] = {self.draw(random, 9), self.draw(random, 4)};
      for (int i = 0; i < 2; ++i) {
        ASSERT_TRUE(self.calls.dispatch(0, self.input(t[i]), {.rows = rows[i].data()},
                                        handle_of(handles[i])));
      }
      for (const int i : {0, 1}) {
        guarded_memory out(9 * 40);
        ASSERT_TRUE(self.calls.combine(0, {.y = rows[i].data()}, {.out = out.data()},
                                       handle_of(handles[i])));
        EXPECT_TRUE(self.combined(t[i], out.template as<std::uint16_t>())) << "seed " << seed;
      }
    });
  }
}

TEST(Call, NineHandlesAliveOnTwoLanesInRandomOrder) {
  group_shape shape = small_shape();
  shape.lanes = 2;
  on_ranks<profiles::efa_proxy>(shape, shuffled(4, 5), [&](const auto& self) {
    std::mt19937_64 own(static_cast<std::uint64_t>(self.rank) + 40);
    std::mt19937_64 alike(7);  // all ranks make the same calls
    std::vector<guarded_memory> handles;
    std::vector<guarded_memory> rows;
    std::vector<tokens> sent(9);
    for (int i = 0; i < 9; ++i) {
      handles.push_back(self.handle_memory());
      rows.emplace_back(self.worst_rows() * 40);
    }
    for (int i = 0; i < 9; ++i) {
      const auto at = static_cast<std::size_t>(i);
      sent[at] = self.draw(own, static_cast<std::int64_t>(own() % 10));
      ASSERT_TRUE(self.calls.dispatch(static_cast<std::int32_t>(alike() % 2), self.input(sent[at]),
                                      {.rows = rows[at].data()}, handle_of(handles[at])));
    }
    for (int step = 0; step < 60; ++step) {
      const std::size_t at = alike() % 9;
      const auto lane = static_cast<std::int32_t>(alike() % 2);
      if (alike() % 2 == 0) {
        sent[at] = self.draw(own, static_cast<std::int64_t>(own() % 10));
        ASSERT_TRUE(self.calls.dispatch(lane, self.input(sent[at]), {.rows = rows[at].data()},
                                        handle_of(handles[at])));
      } else {
        guarded_memory out(9 * 40);
        ASSERT_TRUE(self.calls.combine(lane, {.y = rows[at].data()}, {.out = out.data()},
                                       handle_of(handles[at])));
        EXPECT_TRUE(self.combined(sent[at], out.template as<std::uint16_t>())) << "step " << step;
      }
    }
    for (guarded_memory& handle : handles) EXPECT_TRUE(handle.intact());
  });
}

TEST(Call, BatchOneMayBeSentBeforeBatchZeroIsCombined) {
  group_shape shape = small_shape();
  shape.lanes = 2;
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    on_ranks<profiles::efa_proxy>(shape, shuffled(3, seed), [&](const auto& self) {
      std::mt19937_64 random(seed * 100 + static_cast<std::uint64_t>(self.rank));
      guarded_memory handles[2] = {self.handle_memory(), self.handle_memory()};
      guarded_memory rows[2] = {guarded_memory(self.worst_rows() * 40),
                                guarded_memory(self.worst_rows() * 40)};
      tokens t[2];
      const auto send = [&](int batch) {
        const int lane = batch & 1;
        t[lane] = self.draw(random, static_cast<std::int64_t>(random() % 10));
        ASSERT_TRUE(self.calls.dispatch_send(lane, self.input(t[lane]), handle_of(handles[lane])));
      };
      send(0);
      for (int batch = 0; batch < 6; ++batch) {
        const int lane = batch & 1;
        ASSERT_TRUE(
            self.calls.dispatch_recv(lane, {.rows = rows[lane].data()}, handle_of(handles[lane])));
        ASSERT_TRUE(
            self.calls.combine_send(lane, {.y = rows[lane].data()}, handle_of(handles[lane])));
        std::memset(rows[lane].data(), 0x5a, rows[lane].size());
        if (batch + 1 < 6) send(batch + 1);
        guarded_memory out(9 * 40);
        ASSERT_TRUE(self.calls.combine_recv(lane, {.out = out.data()}, handle_of(handles[lane])));
        EXPECT_TRUE(self.combined(t[lane], out.template as<std::uint16_t>())) << "seed " << seed;
      }
    });
  }
}

TEST(Call, ACachedDispatchRepeatsTheRoutingOfItsHandle) {
  on_ranks<profiles::efa_gpu>(small_shape(), shuffled(3, 9), [&](const auto& self) {
    std::mt19937_64 random(static_cast<std::uint64_t>(self.rank) + 3);
    guarded_memory handle = self.handle_memory();
    tokens t = self.draw(random, 7 - self.rank * 3);
    ASSERT_TRUE(self.round(0, t, handle_of(handle)));
    for (int again = 0; again < 5; ++again) {
      t.x = self.draw(random, t.count).x;
      guarded_memory rows(self.worst_rows() * 40);
      guarded_memory out(9 * 40);
      dispatch_input in = self.input(t);
      in.tokens = 0;  // T comes from the handle
      in.cached = true;
      ASSERT_TRUE(self.calls.dispatch(0, in, {.rows = rows.data()}, handle_of(handle)));
      ASSERT_TRUE(
          self.calls.combine(0, {.y = rows.data()}, {.out = out.data()}, handle_of(handle)));
      EXPECT_TRUE(self.combined(t, out.template as<std::uint16_t>()));
    }
  });
}

TEST(Call, InPlaceRowsStayUntilTheNextDispatchSend) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    on_ranks<profiles::efa_proxy>(small_shape(), shuffled(3, seed), [&](const auto& self) {
      std::mt19937_64 random(seed * 100 + static_cast<std::uint64_t>(self.rank));
      guarded_memory handle = self.handle_memory();
      for (int round = 0; round < 4; ++round) {
        const tokens t = self.draw(random, static_cast<std::int64_t>(random() % 10));
        std::vector<std::uint64_t> offset(self.worst_rows());
        std::int64_t total = -1;
        ASSERT_TRUE(self.calls.dispatch(
            0, self.input(t),
            {.layout = output_layout::in_place, .total = &total, .row_offset = offset.data()},
            handle_of(handle)));
        guarded_memory y(self.worst_rows() * 40);
        guarded_memory out(9 * 40);
        std::vector<std::byte> before;
        const auto gather = [&](std::byte* to) {
          for (std::int64_t i = 0; i < total; ++i) {
            std::memcpy(to + i * 40,
                        self.transport.window().data() + offset[static_cast<std::size_t>(i)], 40);
          }
        };
        gather(y.data());
        ASSERT_TRUE(self.calls.combine(0, {.y = y.data()}, {.out = out.data()}, handle_of(handle)));
        EXPECT_TRUE(self.combined(t, out.template as<std::uint16_t>())) << "seed " << seed;
        guarded_memory later(y.size());
        gather(later.data());  // after combine, while fast peers may be in their next dispatch
        EXPECT_EQ(std::memcmp(y.data(), later.data(), static_cast<std::size_t>(total) * 40), 0)
            << "seed " << seed << " round " << round;
      }
    });
  }
}

TEST(Call, LargeRowsTravelInSeveralMessages) {
  group_shape shape{.max_tokens = 30, .hidden = 40, .top_k = 2, .experts = 4};
  for (const message_shape message : {message_shape::per_peer, message_shape::per_row}) {
    shape.message = message;
    on_ranks<tight_wire>(shape, shuffled(2, 3), [&](const auto& self) {
      EXPECT_LT(self.calls.layout().rows_per_message, 30);
      std::mt19937_64 random(static_cast<std::uint64_t>(self.rank) + 1);
      guarded_memory handle = self.handle_memory();
      for (const std::int64_t count : {30, 0, 29, 8, 7}) {
        const auto done = self.round(0, self.draw(random, count), handle_of(handle));
        ASSERT_TRUE(done) << done.error().message();
      }
    });
  }
}

TEST(Call, CountersMayStartAnywhereAndWrap) {
  for (const std::uint64_t start : {~std::uint64_t{0} - 2, (std::uint64_t{1} << 32) - 2,
                                    (std::uint64_t{1} << 63) - 2, std::uint64_t{0xffff}}) {
    for (const signal_words words : {signal_words::per_source, signal_words::summed}) {
      group_shape shape = small_shape();
      shape.signals = words;
      loopback_options options = shuffled(3, 4);
      options.counter_start = start;
      on_ranks<profiles::ib_gpu>(shape, options, [&](const auto& self) {
        std::mt19937_64 random(static_cast<std::uint64_t>(self.rank) + 1);
        guarded_memory handle = self.handle_memory();
        for (int round = 0; round < 12; ++round) {
          const auto done = self.round(0, self.draw(random, round % 10), handle_of(handle));
          ASSERT_TRUE(done) << done.error().message();
        }
      });
    }
  }
}

TEST(Call, NobodyHasTokensAHundredTimesAndThenEverybody) {
  on_ranks<profiles::nvlink>(small_shape(), shuffled(4, 2), [&](const auto& self) {
    guarded_memory handle = self.handle_memory();
    std::mt19937_64 random(static_cast<std::uint64_t>(self.rank) + 1);
    for (int round = 0; round < 100; ++round) {
      std::int64_t total = -1;
      std::vector<std::int64_t> counts(7, -1);
      guarded_memory rows(self.worst_rows() * 40);
      ASSERT_TRUE(self.calls.dispatch(
          0, {}, {.rows = rows.data(), .total = &total, .expert_count = counts.data()},
          handle_of(handle)));
      EXPECT_EQ(total, 0);
      for (std::int32_t e = 0; e < self.calls.local_experts(); ++e) {
        EXPECT_EQ(counts[static_cast<std::size_t>(e)], 0);
      }
      ASSERT_TRUE(self.calls.combine(0, {}, {}, handle_of(handle)));
    }
    ASSERT_TRUE(self.round(0, self.draw(random, 9), handle_of(handle)));
  });
}

TEST(Call, RanksMayOwnNoExpertsAndReplicasMayLieAnywhere) {
  const std::vector<std::int32_t> placement = {3, 1, 1, 3, 3, 1, 3};
  group_shape shape = small_shape();
  shape.placement = placement;
  on_ranks<profiles::efa_proxy>(shape, shuffled(4, 8), [&](const auto& self) {
    EXPECT_EQ(self.calls.local_experts(), self.rank == 1 ? 3 : self.rank == 3 ? 4 : 0);
    std::mt19937_64 random(static_cast<std::uint64_t>(self.rank) + 1);
    guarded_memory handle = self.handle_memory();
    const tokens t = self.draw(random, 9);
    guarded_memory rows(self.worst_rows() * 40);
    guarded_memory out(9 * 40);
    ASSERT_TRUE(self.calls.dispatch(0, self.input(t), {.rows = rows.data()}, handle_of(handle)));
    ASSERT_TRUE(self.calls.combine(0, {.y = rows.data()}, {.out = out.data()}, handle_of(handle)));
    for (std::int64_t i = 0; i < t.count; ++i) {
      bool to[4] = {};
      for (std::int64_t j = 0; j < 3; ++j) {
        const std::int64_t expert = t.index[static_cast<std::size_t>(i * 3 + j)];
        if (expert >= 0) to[placement[static_cast<std::size_t>(expert)]] = true;
      }
      const float want = static_cast<float>(std::count(to, to + 4, true)) *
                         bf16_to_float(t.x[static_cast<std::size_t>(i * 20)]);
      EXPECT_EQ(bf16_to_float(out.template as<std::uint16_t>()[i * 20]), want);
    }
  });
}

TEST(Call, SeveralWorkersPerRankGiveTheSameResult) {
  for (const std::uint32_t workers : {2U, 3U, 5U}) {
    loopback_options options = shuffled(3, workers);
    options.workers = workers;
    options.channels = 2;
    for (const message_shape message : {message_shape::per_row, message_shape::per_peer}) {
      group_shape shape = small_shape();
      shape.message = message;
      on_ranks<profiles::efa_gpu>(shape, options, [&](const auto& self) {
        std::mt19937_64 random(static_cast<std::uint64_t>(self.rank) + workers);
        guarded_memory handle = self.handle_memory();
        for (int round = 0; round < 6; ++round) {
          const auto done = self.round(0, self.draw(random, (round * 3) % 10), handle_of(handle));
          ASSERT_TRUE(done) << done.error().message();
        }
      });
    }
  }
}

}  // namespace
}  // namespace eptransport::testing
