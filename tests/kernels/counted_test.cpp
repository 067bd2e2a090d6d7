// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Counted dispatch: places, overflow, caller's landing, pull; and what combine can carry.

#include <atomic>
#include <cmath>
#include <cstring>

#include "fixture.hpp"

namespace eptransport::testing {
namespace {

group_shape counted_shape() {
  group_shape shape = small_shape();
  shape.counted_tokens = 12;
  return shape;
}

loopback_options shuffled(int ranks, std::uint64_t seed) {
  return {.ranks = ranks, .order = delivery::shuffled, .seed = seed};
}

template <class Profile>
void both_modes_take_turns(const group_shape& shape, std::uint64_t seed) {
  on_ranks<Profile>(shape, shuffled(3, seed), [&](const auto& self) {
    std::mt19937_64 random(seed * 100 + static_cast<std::uint64_t>(self.rank));
    guarded_memory handle = self.handle_memory();
    for (int round = 0; round < 6; ++round) {
      const bool counted = (static_cast<std::uint64_t>(round) * 7 + seed) % 3 != 0;
      const std::int64_t most = counted ? shape.counted_tokens : shape.max_tokens;
      const auto count = static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(most + 1));
      const auto done = self.round(0, self.draw(random, count), handle_of(handle),
                                   counted ? dispatch_mode::counted : dispatch_mode::slotted);
      ASSERT_TRUE(done) << "seed " << seed << ": " << done.error().message();
    }
    EXPECT_TRUE(handle.intact());
  });
}

TEST(Counted, AndSlottedCallsTakeTurnsOnOneLaneInEveryShape) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    for (const signal_words words : {signal_words::per_source, signal_words::summed}) {
      group_shape shape = counted_shape();
      shape.signals = words;
      both_modes_take_turns<profiles::nvlink>(shape, seed);
      for (const message_shape message : {message_shape::per_row, message_shape::per_peer}) {
        shape.message = message;
        both_modes_take_turns<profiles::efa_proxy>(shape, seed);
      }
    }
  }
}

TEST(Counted, LargeBlocksTravelInSeveralMessages) {
  group_shape shape{.max_tokens = 2, .counted_tokens = 60, .hidden = 40, .top_k = 2, .experts = 4};
  for (const message_shape message : {message_shape::per_peer, message_shape::per_row}) {
    shape.message = message;
    on_ranks<tight_wire>(shape, shuffled(2, 3), [&](const auto& self) {
      std::mt19937_64 random(static_cast<std::uint64_t>(self.rank) + 1);
      guarded_memory handle = self.handle_memory();
      for (const std::int64_t count : {60, 0, 31}) {
        const auto done =
            self.round(0, self.draw(random, count), handle_of(handle), dispatch_mode::counted);
        ASSERT_TRUE(done) << done.error().message();
      }
    });
  }
}

TEST(Counted, OverflowIsKnownToEveryRankBeforeARowMoves) {
  group_shape shape = counted_shape();
  shape.counted_rows = 10;
  std::atomic<int> named = 0;
  on_ranks<profiles::efa_proxy>(shape, shuffled(3, 4), [&](const auto& self) {
    guarded_memory handle = self.handle_memory();
    tokens t;  // everything goes to expert 6, of rank 2: 12 rows, room for 10
    t.count = 4;
    t.x.assign(4 * 20, float_to_bf16(1));
    t.index.assign(12, 6);
    t.weight.assign(12, 1);
    std::byte* landing = self.calls.counted_rows(0);
    std::memset(landing, 0x77, 10 * 40);
    dispatch_input in = self.input(t);
    in.mode = dispatch_mode::counted;
    const auto done = self.calls.dispatch(0, in, {}, handle_of(handle));
    ASSERT_FALSE(done);
    EXPECT_EQ(done.error().code, errc::capacity) << done.error().message();
    EXPECT_NE(done.error().message().find("peer 2, 12 rows needed, room for 10"), std::string::npos)
        << done.error().message();
    ASSERT_TRUE(self.transport.barrier(1'000'000'000));
    for (int i = 0; i < 10 * 40; ++i) ASSERT_EQ(landing[i], std::byte{0x77});
    ++named;
  });
  EXPECT_EQ(named, 3);
}

TEST(Counted, DroppedRowsAreTheLastOnesAndAreCounted) {
  for (const message_shape message : {message_shape::per_row, message_shape::per_peer}) {
    group_shape shape = counted_shape();
    shape.counted_rows = 10;
    shape.overflow = overflow_policy::drop;
    shape.message = message;
    on_ranks<profiles::efa_gpu>(shape, shuffled(3, 4), [&](const auto& self) {
      guarded_memory handle = self.handle_memory();
      for (int round = 0; round < 3; ++round) {
        tokens t;  // rank 2 gets 4 rows of each rank and can take 10: rank 2's last two are dropped
        t.count = 4;
        for (int i = 0; i < 4 * 20; ++i) {
          t.x.push_back(float_to_bf16(static_cast<float>(self.rank * 4 + i / 20 + 1)));
        }
        t.index.assign(12, 6);
        t.weight.assign(12, 1);
        dispatch_input in = self.input(t);
        in.mode = dispatch_mode::counted;
        std::int64_t total = -1;
        std::int64_t dropped = -1;
        guarded_memory out(4 * 40);
        ASSERT_TRUE(
            self.calls.dispatch(0, in, {.total = &total, .dropped = &dropped}, handle_of(handle)));
        EXPECT_EQ(total, self.rank == 2 ? 10 : 0);
        EXPECT_EQ(dropped, self.rank == 2 ? 2 : 0);
        const auto* rows = reinterpret_cast<const std::uint16_t*>(self.calls.counted_rows(0));
        for (std::int64_t i = 0; i < total; ++i) {
          EXPECT_EQ(bf16_to_float(rows[i * 20]), static_cast<float>(i + 1));
        }
        ASSERT_TRUE(self.calls.combine(0, {.y = rows}, {.out = out.data()}, handle_of(handle)));
        for (int i = 0; i < 4; ++i) {
          const bool kept = self.rank != 2 || i < 2;
          EXPECT_EQ(bf16_to_float(out.template as<std::uint16_t>()[i * 20]),
                    kept ? static_cast<float>(self.rank * 4 + i + 1) : 0.0F);
        }
      }
    });
  }
}

TEST(Counted, RowsLandWhereTheCallerSays) {
  const group_shape shape = counted_shape();
  using group_type = group<loopback<profiles::nvlink>>;
  const auto sizes = group_type::sizes(shape, 3);
  ASSERT_TRUE(sizes);
  const std::uint64_t own = (sizes->window_bytes + 127) / 128 * 128;
  const std::uint64_t block = 36 * 40;  // 3 ranks x 12 tokens
  auto world = loopback_world<profiles::nvlink>::create(
      {.ranks = 3, .window_bytes = own + 2 * block, .signals = sizes->signals});
  ASSERT_TRUE(world);
  (*world)->run([&](loopback<profiles::nvlink>& transport) {
    auto calls = group_type::create(transport, shape);
    ASSERT_TRUE(calls) << calls.error().message();
    const node<profiles::nvlink> self{transport, *calls, shape, transport.view().rank(), 3};
    std::mt19937_64 random(static_cast<std::uint64_t>(self.rank) + 1);
    guarded_memory handles[2] = {self.handle_memory(), self.handle_memory()};
    tokens t[2];
    for (std::uint64_t layer = 0; layer < 2; ++layer) {  // both layers' rows stay alive
      t[layer] = self.draw(random, 12);
      dispatch_input in = self.input(t[layer]);
      in.mode = dispatch_mode::counted;
      // Ranks may choose different places.
      in.landing = own + (self.rank == 1 ? 1 - layer : layer) * block;
      ASSERT_TRUE(calls->dispatch(0, in, {}, handle_of(handles[layer])));
    }
    for (std::uint64_t layer = 0; layer < 2; ++layer) {
      const std::uint64_t place = own + (self.rank == 1 ? 1 - layer : layer) * block;
      for (const combine_transfer transfer : {combine_transfer::push, combine_transfer::pull}) {
        guarded_memory out(12 * 40);
        const auto done =
            calls->combine(0, {.y = transport.window().data() + place, .transfer = transfer},
                           {.out = out.data()}, handle_of(handles[layer]));
        ASSERT_TRUE(done) << done.error().message();
        EXPECT_TRUE(self.combined(t[layer], out.as<std::uint16_t>()));
      }
    }
    ASSERT_TRUE(transport.barrier(1'000'000'000)) << "peers may still pull";
    dispatch_input outside = self.input(t[0]);
    outside.mode = dispatch_mode::counted;
    outside.landing = own + block + 16;
    const auto refused = calls->dispatch(0, outside, {}, handle_of(handles[0]));
    ASSERT_FALSE(refused);
  });
  EXPECT_EQ((*world)->violations(), "");
}

TEST(Counted, ACachedDispatchSkipsTheCountsNotTheExchange) {
  for (std::uint64_t seed = 1; seed <= 10; ++seed) {
    on_ranks<profiles::efa_proxy>(counted_shape(), shuffled(3, seed), [&](const auto& self) {
      std::mt19937_64 random(seed * 10 + static_cast<std::uint64_t>(self.rank));
      guarded_memory handle = self.handle_memory();
      tokens t = self.draw(random, static_cast<std::int64_t>(random() % 13));
      ASSERT_TRUE(self.round(0, t, handle_of(handle), dispatch_mode::counted));
      for (int again = 0; again < 3; ++again) {
        t.x = self.draw(random, t.count).x;
        dispatch_input in = self.input(t);
        in.mode = dispatch_mode::counted;
        in.cached = true;
        in.tokens = 0;
        guarded_memory out(12 * 40);
        ASSERT_TRUE(self.calls.dispatch_send(0, in, handle_of(handle)));
        ASSERT_TRUE(self.calls.dispatch_recv(0, {}, handle_of(handle)));
        ASSERT_TRUE(
            self.calls.combine_send(0, {.y = self.calls.counted_rows(0)}, handle_of(handle)));
        ASSERT_TRUE(self.calls.combine_recv(0, {.out = out.data()}, handle_of(handle)));
        EXPECT_TRUE(self.combined(t, out.template as<std::uint16_t>())) << "seed " << seed;
      }
    });
  }
}

TEST(Counted, RanksThatChooseDifferentModesFindOut) {
  std::atomic<int> told = 0;
  on_ranks<profiles::efa_proxy>(counted_shape(), shuffled(3, 2), [&](const auto& self) {
    std::mt19937_64 random(static_cast<std::uint64_t>(self.rank));
    guarded_memory handle = self.handle_memory();
    const auto done = self.round(0, self.draw(random, 4), handle_of(handle),
                                 self.rank == 1 ? dispatch_mode::counted : dispatch_mode::slotted);
    ASSERT_FALSE(done);
    if (done.error().code == errc::mismatch) ++told;
    EXPECT_TRUE(self.rank == 1 || self.calls.fault(0).peer == 1 || self.calls.fault(0).culprit >= 0)
        << done.error().message();
  });
  EXPECT_GE(told, 1);
}

TEST(Counted, CachedCallsNeedAHandleOfTheirModeAndRoomForWhatTheySend) {
  on_ranks<profiles::efa_proxy>(counted_shape(), {.ranks = 2}, [&](const auto& self) {
    std::mt19937_64 random(static_cast<std::uint64_t>(self.rank) + 1);
    guarded_memory handle = self.handle_memory();
    const tokens t = self.draw(random, 5);
    ASSERT_TRUE(self.round(0, t, handle_of(handle)));
    dispatch_input in = self.input(t);
    in.mode = dispatch_mode::counted;
    in.cached = true;
    const auto done = self.calls.dispatch(0, in, {}, handle_of(handle));
    ASSERT_FALSE(done) << "the handle is of a slotted dispatch";
    EXPECT_TRUE(done.error().code == errc::misuse || done.error().code == errc::peer_stopped);
  });
  on_ranks<profiles::efa_proxy>(counted_shape(), {.ranks = 2}, [&](const auto& self) {
    guarded_memory handle = self.handle_memory();
    tokens t;
    t.count = 4;
    t.x.assign(4 * 20, float_to_bf16(1));
    t.index.assign(12, 0);  // expert 0, of rank 0
    t.weight.assign(12, 1);
    dispatch_input in = self.input(t);
    in.mode = dispatch_mode::counted;
    ASSERT_TRUE(self.calls.dispatch(0, in, {}, handle_of(handle)));
    in.cached = true;
    in.landing_rows = self.rank == 0 ? 2 : 0;  // eight rows come, and every sender must know
    const auto done = self.calls.dispatch(0, in, {}, handle_of(handle));
    ASSERT_FALSE(done);
    EXPECT_TRUE(done.error().code == errc::capacity || done.error().code == errc::peer_stopped)
        << done.error().message();
  });
}

TEST(Counted, LandingRowsBeyondTheZoneAreRefused) {
  on_ranks<profiles::efa_proxy>(counted_shape(), {.ranks = 1}, [&](const auto& self) {
    guarded_memory handle = self.handle_memory();
    const auto done = self.calls.dispatch(0, {.mode = dispatch_mode::counted, .landing_rows = 13},
                                          {}, handle_of(handle));
    ASSERT_FALSE(done);
    EXPECT_EQ(done.error().code, errc::invalid_argument);
    EXPECT_FALSE(self.calls.status(0)) << "the lane did not run it";
  });
}

TEST(Counted, PullAndPushGiveTheSameBits) {
  group_shape shape = counted_shape();
  shape.hidden = 24;
  on_ranks<profiles::nvlink>(shape, shuffled(4, 6), [&](const auto& self) {
    std::mt19937_64 random(static_cast<std::uint64_t>(self.rank) + 1);
    std::normal_distribution<float> normal;
    guarded_memory handle = self.handle_memory();
    for (int round = 0; round < 10; ++round) {
      tokens t = self.draw(random, static_cast<std::int64_t>(random() % 13));
      for (auto& value : t.x) value = float_to_bf16(normal(random));
      dispatch_input in = self.input(t);
      in.mode = dispatch_mode::counted;
      ASSERT_TRUE(self.calls.dispatch(0, in, {}, handle_of(handle)));
      guarded_memory pushed(12 * 48 + 1);
      guarded_memory pulled(12 * 48 + 1);
      const std::byte* y = self.calls.counted_rows(0);
      ASSERT_TRUE(self.calls.combine(0, {.y = y}, {.out = pushed.data()}, handle_of(handle)));
      ASSERT_TRUE(self.calls.combine(0, {.y = y, .transfer = combine_transfer::pull},
                                     {.out = pulled.data()}, handle_of(handle)));
      EXPECT_EQ(std::memcmp(pushed.data(), pulled.data(), pushed.size()), 0);
    }
    ASSERT_TRUE(self.transport.barrier(1'000'000'000)) << "peers may still pull";
  });
}

TEST(Counted, OneRankThatPullsWhileAnotherPushesIsNamed) {
  for (const signal_words words : {signal_words::per_source, signal_words::summed}) {
    group_shape shape = counted_shape();
    shape.signals = words;
    std::atomic<int> named = 0;
    on_ranks<profiles::nvlink>(shape, {.ranks = 2}, [&](const auto& self) {
      guarded_memory handle = self.handle_memory();
      tokens t;
      t.count = 3;
      t.x.assign(3 * 20, float_to_bf16(1));
      t.index = {0, 6, -1, 0, 6, -1, 0, 6, -1};  // the first and the last expert: both ranks
      t.weight.assign(9, 1);
      dispatch_input in = self.input(t);
      in.mode = dispatch_mode::counted;
      ASSERT_TRUE(self.calls.dispatch(0, in, {}, handle_of(handle)));
      guarded_memory out(3 * 40);
      const auto transfer = self.rank == 0 ? combine_transfer::pull : combine_transfer::push;
      const auto done =
          self.calls.combine(0, {.y = self.calls.counted_rows(0), .transfer = transfer},
                             {.out = out.data()}, handle_of(handle));
      ASSERT_FALSE(done);
      const fault_record fault = self.calls.fault(0);
      const bool counted_together =
          fault.kind == fault_kind::mismatch && words == signal_words::summed;
      EXPECT_EQ(fault.peer, counted_together ? -1 : 1 - self.rank) << done.error().message();
      EXPECT_TRUE(fault.kind == fault_kind::mismatch || fault.kind == fault_kind::peer_stopped)
          << done.error().message();
      if (fault.kind == fault_kind::mismatch) ++named;
      EXPECT_TRUE(fault.kind != fault_kind::mismatch ||
                  done.error().message().find("one by pull") != std::string::npos)
          << done.error().message();
    });
    EXPECT_GE(named.load(), 1);
  }
}

TEST(Counted, ACombineMayWriteOverTheRowsThatItReturns) {
  on_ranks<profiles::nvlink>(counted_shape(), {.ranks = 1}, [&](const auto& self) {
    guarded_memory handle = self.handle_memory();
    tokens t;
    t.count = 4;
    for (std::size_t i = 0; i < 4 * 20; ++i) {
      t.x.push_back(float_to_bf16(static_cast<float>(i / 20 + 1)));
    }
    t.index.assign(12, -1);
    for (const std::size_t token : {1U, 2U, 3U}) t.index[token * 3] = 0;  // token 0 stays away
    t.weight.assign(12, 1);
    dispatch_input in = self.input(t);
    in.mode = dispatch_mode::counted;
    ASSERT_TRUE(self.calls.dispatch(0, in, {}, handle_of(handle)));
    guarded_memory y(4 * 40);
    std::memcpy(y.data(), self.calls.counted_rows(0), 3 * 40);
    ASSERT_TRUE(self.calls.combine(0, {.y = y.data()}, {.out = y.data()}, handle_of(handle)));
    EXPECT_TRUE(y.intact());
    EXPECT_TRUE(self.combined(t, y.as<std::uint16_t>()));
  });
}

TEST(Counted, PullNeedsReachAndAWindow) {
  on_ranks<profiles::efa_proxy>(counted_shape(), {.ranks = 1}, [&](const auto& self) {
    guarded_memory handle = self.handle_memory();
    ASSERT_TRUE(self.calls.dispatch(0, {.mode = dispatch_mode::counted}, {}, handle_of(handle)));
    const auto done =
        self.calls.combine(0, {.y = self.calls.counted_rows(0), .transfer = combine_transfer::pull},
                           {}, handle_of(handle));
    ASSERT_FALSE(done);
    EXPECT_EQ(done.error().code, errc::unsupported);
  });
  on_ranks<profiles::nvlink>(counted_shape(), {.ranks = 1}, [&](const auto& self) {
    guarded_memory handle = self.handle_memory();
    guarded_memory y(64);
    ASSERT_TRUE(self.calls.dispatch(0, {.mode = dispatch_mode::counted}, {}, handle_of(handle)));
    const auto done = self.calls.combine(0, {.y = y.data(), .transfer = combine_transfer::pull}, {},
                                         handle_of(handle));
    ASSERT_FALSE(done);
    EXPECT_EQ(done.error().code, errc::invalid_argument);
  });
}

/// A value of `type` that is exact in all three types, and back.
void put_value(std::byte* row, std::int64_t c, element type, float value) {
  if (type == element::fp32) {
    reinterpret_cast<float*>(row)[c] = value;
  } else {
    reinterpret_cast<std::uint16_t*>(row)[c] =
        type == element::bf16 ? float_to_bf16(value) : float_to_fp16(value);
  }
}
float get_value(const std::byte* row, std::int64_t c, element type) {
  if (type == element::fp32) return reinterpret_cast<const float*>(row)[c];
  const std::uint16_t bits = reinterpret_cast<const std::uint16_t*>(row)[c];
  return type == element::bf16 ? bf16_to_float(bits) : fp16_to_float(bits);
}

TEST(Combine, SumsEveryValueTypeOnEveryWireWithBiasAndChoiceValues) {
  for (const element values : {element::bf16, element::fp16, element::fp32}) {
    for (const element returns : {values, element::fp32}) {
      for (const output_layout layout : {output_layout::rank_major, output_layout::padded}) {
        group_shape shape = counted_shape();
        shape.values = values;
        shape.returns = returns;
        shape.return_weights = true;
        shape.row = {8, 0};  // the dispatch row carries the token's number only
        on_ranks<profiles::efa_gpu>(shape, shuffled(3, 5), [&](const auto& self) {
          std::mt19937_64 random(static_cast<std::uint64_t>(self.rank) + 1);
          guarded_memory handle = self.handle_memory();
          const std::uint64_t bytes = 20 * bytes_of(values);
          const bool per_token = layout == output_layout::rank_major;
          tokens t = self.draw(random, 9);
          std::vector<std::int64_t> x(9);
          for (std::size_t i = 0; i < 9; ++i) x[i] = self.rank * 9 + static_cast<std::int64_t>(i);
          for (float& w : t.weight) w = std::isnan(w) ? w : static_cast<float>(random() % 4 + 1);
          const std::size_t most = self.worst_rows() * (per_token ? 1 : 3 * 7);
          std::vector<std::int64_t> rows(most);
          std::vector<std::int32_t> index(most * 3, -7);
          std::vector<std::int64_t> offset(7), count(7);
          dispatch_input in = self.input(t);
          in.x = x.data();
          in.mode = dispatch_mode::counted;
          dispatch_output out{.layout = layout, .rows = rows.data()};
          std::int64_t total = 0;
          out.total = &total;
          out.expert_count = count.data();
          if (per_token) out.topk_index = index.data();
          if (!per_token) out.expert_offset = offset.data();
          if (!per_token) out.capacity = static_cast<std::int64_t>(self.worst_rows()) * 3;
          ASSERT_TRUE(self.calls.dispatch(0, in, out, handle_of(handle)));
          guarded_memory y(most * bytes);
          std::vector<float> choice(most * 3, 0.0F);
          const auto fill = [&](std::int64_t row) {
            for (std::int64_t c = 0; c < 20; ++c) {
              const auto token = static_cast<float>(rows[static_cast<std::size_t>(row)]);
              put_value(y.data() + static_cast<std::uint64_t>(row) * bytes, c, values,
                        token + static_cast<float>(c % 5));
            }
          };
          for (std::int64_t row = 0; per_token && row < total; ++row) {
            fill(row);
            for (std::int64_t j = 0; j < 3; ++j) {
              const auto at = static_cast<std::size_t>(row * 3 + j);
              if (index[at] >= 0) choice[at] = static_cast<float>(100 + index[at]);
            }
          }
          for (std::int32_t e = 0; !per_token && e < self.calls.local_experts(); ++e) {
            const auto at = static_cast<std::size_t>(e);
            for (std::int64_t i = 0; i < count[at]; ++i) {
              fill(offset[at] + i);
              choice[static_cast<std::size_t>(offset[at] + i)] = static_cast<float>(100 + e);
            }
          }
          guarded_memory sum(9 * bytes);
          guarded_memory bias(9 * bytes);
          std::vector<float> back(9 * 3, -1);
          for (std::int64_t c = 0; c < 9 * 20; ++c) put_value(bias.data(), c, values, 2);
          const auto done = self.calls.combine(
              0,
              {.y = y.data(),
               .weights = per_token ? weighting::none : weighting::at_expert,
               .choice_value = choice.data()},
              {.out = sum.data(), .bias = bias.data(), .choice_value = back.data()},
              handle_of(handle));
          ASSERT_TRUE(done) << done.error().message();
          for (std::int64_t i = 0; i < 9; ++i) {
            float times = 0;
            for (std::int64_t j = 0; j < 3; ++j) {
              const auto at = static_cast<std::size_t>(i * 3 + j);
              const std::int64_t e = t.index[at];
              float local = 0;
              if (e >= 0) {
                std::int64_t first = 0;
                for (int r = 0; r < self.owner_of(e); ++r) first += 7 / 3 + (r < 7 % 3 ? 1 : 0);
                local = static_cast<float>(100 + e - first);
                if (!per_token) times += t.weight[at];
              }
              EXPECT_EQ(back[at], local) << "token " << i << " choice " << j;
            }
            if (per_token) times = static_cast<float>(self.fan_out(t, i));
            for (std::int64_t c = 0; c < 20; ++c) {
              const float one = static_cast<float>(x[static_cast<std::size_t>(i)] + c % 5);
              EXPECT_NEAR(get_value(sum.data(), i * 20 + c, values), times * one + 2,
                          values == element::bf16 ? 2.1F : 0.5F);
            }
          }
        });
      }
    }
  }
}

TEST(Quantise, BlocksAreScaledRoundedAndNeverDividedByZero) {
  for (const quantisation how : {quantisation::fp8_fp32, quantisation::fp8_ue8m0}) {
    group_shape shape{.max_tokens = 4,
                      .counted_tokens = 4,
                      .hidden = 300,
                      .top_k = 1,
                      .experts = 2,
                      .quantise = how};  // the last block has 44 values
    on_ranks<profiles::efa_gpu>(shape, shuffled(2, 3), [&](const auto& self) {
      std::mt19937_64 random(static_cast<std::uint64_t>(self.rank) + 9);
      std::normal_distribution<float> normal(0, 3);
      tokens t;
      t.count = 4;
      for (int i = 0; i < 4 * 300; ++i) {
        const bool zero = i / 300 == 1 || (i / 300 == 2 && i % 300 < 128);
        const float tiny = i / 300 == 3 ? 0x1p-120F : 1.0F;
        t.x.push_back(float_to_bf16(zero ? 0.0F : normal(random) * tiny));
      }
      t.index = {0, 0, 0, 0};  // all to rank 0
      t.weight.assign(4, 1);
      guarded_memory handle = self.handle_memory();
      const std::size_t scale_bytes = how == quantisation::fp8_fp32 ? 12 : 4;
      std::vector<std::uint8_t> rows(8 * 300);
      std::vector<std::byte> scales(8 * scale_bytes);
      std::vector<std::uint32_t> columns(3 * 16, 0xeeeeeeeeu);
      for (const dispatch_mode mode : {dispatch_mode::slotted, dispatch_mode::counted}) {
        dispatch_input in = self.input(t);
        in.mode = mode;
        ASSERT_TRUE(self.calls.dispatch(0, in, {.rows = rows.data(), .scales = scales.data()},
                                        handle_of(handle)));
        ASSERT_TRUE(self.calls.dispatch(
            0, in, {.rows = rows.data(), .scales = columns.data(), .scale_stride = 16},
            handle_of(handle)));
        if (self.rank != 0) continue;
        // Rank 0's own tokens are the first four rows: dequantise and compare.
        for (std::size_t i = 0; i < 4; ++i) {
          for (std::size_t c = 0; c < 300; ++c) {
            float scale = 0;
            if (how == quantisation::fp8_fp32) {
              std::memcpy(&scale, scales.data() + i * 12 + c / 128 * 4, 4);
            } else {
              const auto exponent = static_cast<int>(scales[i * 4 + c / 128]);
              scale = std::ldexp(1.0F, exponent - 127);
            }
            ASSERT_TRUE(std::isfinite(scale) && scale > 0);
            const std::uint8_t code = rows[i * 300 + c];
            const int e = (code >> 3) & 15;
            const float magnitude =
                e == 0 ? std::ldexp(static_cast<float>(code & 7), -9)
                       : std::ldexp(1.0F + static_cast<float>(code & 7) / 8, e - 7);
            const float got = (code & 0x80 ? -magnitude : magnitude) * scale;
            const float want = bf16_to_float(t.x[i * 300 + c]);
            // Half an ulp of e4m3: relative 2^-4, or half of the smallest step of the block.
            EXPECT_LE(std::abs(got - want),
                      std::max(std::abs(want) / 16, scale * 0x1p-10F) * 1.0001F)
                << "row " << i << " column " << c;
            EXPECT_TRUE(want != 0 || got == 0);
          }
        }
        const auto* units = reinterpret_cast<const std::uint32_t*>(scales.data());
        for (std::size_t i = 0; i < 8; ++i) {
          for (std::size_t u = 0; u < scale_bytes / 4; ++u) {
            EXPECT_EQ(columns[u * 16 + i], units[i * scale_bytes / 4 + u]);
          }
        }
        EXPECT_EQ(columns[8], 0xeeeeeeeeu) << "padding is not written";
      }
    });
  }
}

}  // namespace
}  // namespace eptransport::testing
