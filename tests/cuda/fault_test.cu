// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief What each rank learns on the GPU when one of them cannot go on.

#include <eptransport/backends/loopback/cuda_loopback.cuh>
#include <eptransport/kernels/kernels.hpp>

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "cuda/device_buffer.cuh"

namespace eptransport {
namespace {

using support::device_buffer;

constexpr std::int32_t ranks = 3;
constexpr std::int64_t max_tokens = 8;
constexpr std::int64_t hidden = 16;
constexpr std::uint64_t ms = 1'000'000;

/// A wire, a message shape and the number of signal words.
template <class Profile, message_shape kMessage, signal_words kSignals>
struct setting {
  using profile = Profile;
  static group_shape shape() {
    return {.max_tokens = max_tokens,
            .hidden = hidden,
            .top_k = 2,
            .experts = 6,
            .message = kMessage,
            .signals = kSignals};
  }
};

/// One rank with a group and enough memory for one dispatch.
template <class T>
struct member {
  T& transport;
  group<T>& calls;
  std::int32_t rank;
  device_buffer<std::byte> handle;
  device_buffer<std::uint16_t> x{max_tokens * hidden};
  device_buffer<std::int64_t> index;
  device_buffer<std::int64_t> tokens;
  device_buffer<std::uint16_t> rows{ranks * max_tokens * hidden};
  device_buffer<std::uint16_t> out{max_tokens * hidden};

  member(T& transport_of, group<T>& calls_of)
      : transport(transport_of),
        calls(calls_of),
        rank(transport_of.view().rank()),
        handle(calls_of.needs().handle_bytes),
        index(every_rank()),
        tokens(std::vector<std::int64_t>{max_tokens}) {}

  /// Token t goes to two ranks, so that every rank receives from every rank.
  static std::vector<std::int64_t> every_rank() {
    std::vector<std::int64_t> all;
    for (std::int64_t t = 0; t < max_tokens; ++t) all.insert(all.end(), {t % 6, (t + 3) % 6});
    return all;
  }

  [[nodiscard]] dispatch_input input() const {
    return {.x = x.data(), .topk_index = index.data(), .device_tokens = tokens.data()};
  }
  [[nodiscard]] dispatch_output output() const { return {.rows = rows.data()}; }
  [[nodiscard]] dispatch_handle where() const { return {handle.data(), handle.size()}; }

  [[nodiscard]] result<void> dispatch(const dispatch_input& in, const dispatch_output& to) {
    return calls.dispatch(0, in, to, where());
  }
  [[nodiscard]] result<void> dispatch() { return dispatch(input(), output()); }

  /// The lane's fault once everything has ended.
  [[nodiscard]] fault_record settle() {
    const auto done = transport.executor().synchronize();
    EXPECT_TRUE(done) << done.error().message();
    return calls.fault(0);
  }

  void expect_stopped_by(std::int32_t culprit, fault_kind cause) {
    const fault_record fault = settle();
    EXPECT_EQ(fault.kind, fault_kind::peer_stopped) << describe(fault);
    EXPECT_EQ(fault.rank, rank);
    EXPECT_EQ(fault.peer, culprit) << describe(fault);
    EXPECT_EQ(fault.culprit, culprit) << describe(fault);
    EXPECT_EQ(fault.cause, cause) << describe(fault);
    const auto status = calls.status(0);
    ASSERT_FALSE(status);
    EXPECT_EQ(status.error().code, errc::peer_stopped);
  }
};

template <class Setting>
class CudaFault : public testing::Test {
 public:
  using profile = typename Setting::profile;
  using transport = cuda_loopback<profile>;
  using rank_member = member<transport>;

  /// Runs `body` on every rank with a group of its own.
  static void run(const std::function<void(rank_member&)>& body) {
    const group_shape shape = Setting::shape();
    const auto sizes = group<transport>::sizes(shape, ranks);
    ASSERT_TRUE(sizes) << sizes.error().message();
    auto world = cuda_loopback_world<profile>::create({.ranks = ranks,
                                                       .window_bytes = sizes->window_bytes,
                                                       .signals = sizes->signals,
                                                       .blocks = 4,
                                                       .patience_ns = 500 * ms});
    ASSERT_TRUE(world) << world.error().message();
    (*world)->run([&](transport& own) {
      auto made = group<transport>::create(own, shape);
      ASSERT_TRUE(made) << made.error().message();
      rank_member here(own, *made);
      body(here);
      EXPECT_EQ(here.rows.damage("rows"), "");
      EXPECT_EQ(here.out.damage("out"), "");
      EXPECT_EQ(here.handle.damage("handle"), "");
      EXPECT_TRUE(own.fault());
    });
  }
};

using settings =
    testing::Types<setting<profiles::nvlink, message_shape::direct, signal_words::per_source>,
                   setting<profiles::nvlink, message_shape::direct, signal_words::summed>,
                   setting<profiles::ib_gpu, message_shape::per_row, signal_words::per_source>,
                   setting<profiles::efa_proxy, message_shape::per_peer, signal_words::per_source>,
                   setting<profiles::efa_proxy, message_shape::per_peer, signal_words::summed>>;

struct setting_names {
  template <class Setting>
  static std::string GetName(int index) {
    static constexpr const char* names[] = {"direct", "direct_summed", "per_row", "per_peer",
                                            "per_peer_summed"};
    return names[index];
  }
};
TYPED_TEST_SUITE(CudaFault, settings, setting_names);

TYPED_TEST(CudaFault, TooManyDeviceTokensOnOneRankAreNamedOnAll) {
  this->run([](typename TestFixture::rank_member& here) {
    if (here.rank == 2) here.tokens.write({max_tokens + 1});
    EXPECT_TRUE(here.dispatch());
    if (here.rank != 2) return here.expect_stopped_by(2, fault_kind::too_many_tokens);
    const fault_record fault = here.settle();
    EXPECT_EQ(fault.kind, fault_kind::too_many_tokens) << describe(fault);
    EXPECT_EQ(fault.expected, static_cast<std::uint64_t>(max_tokens));
    EXPECT_EQ(fault.seen, static_cast<std::uint64_t>(max_tokens + 1));
    EXPECT_EQ(fault.where, stage::dispatch_send);
    EXPECT_EQ(fault.rank, 2);
    const auto again = here.dispatch();  // a poisoned lane repeats its fault
    ASSERT_FALSE(again);
    EXPECT_EQ(again.error().code, errc::capacity);
  });
}

TYPED_TEST(CudaFault, AnIndexOutOfRangeIsNamedOnAllRanks) {
  this->run([](typename TestFixture::rank_member& here) {
    if (here.rank == 0) {
      auto bad = here.every_rank();
      bad[5] = 6;
      here.index.write(bad);
    }
    EXPECT_TRUE(here.dispatch());
    if (here.rank != 0) return here.expect_stopped_by(0, fault_kind::bad_index);
    const fault_record fault = here.settle();
    EXPECT_EQ(fault.kind, fault_kind::bad_index) << describe(fault);
    EXPECT_EQ(fault.expected, 6u);
    EXPECT_EQ(fault.seen, 6u);
  });
}

TYPED_TEST(CudaFault, ArgumentsThatTheHostRefusesStopThePeersToo) {
  this->run([](typename TestFixture::rank_member& here) {
    dispatch_input in = here.input();
    in.device_tokens = nullptr;  // the host knows that there is something to read
    in.tokens = 1;
    if (here.rank == 1) in.x = nullptr;
    const auto launched = here.dispatch(in, here.output());
    if (here.rank != 1) {
      EXPECT_TRUE(launched) << launched.error().message();
      return here.expect_stopped_by(1, fault_kind::refused);
    }
    ASSERT_FALSE(launched);
    EXPECT_EQ(launched.error().code, errc::invalid_argument);
    EXPECT_EQ(here.settle().kind, fault_kind::refused);
  });
}

TYPED_TEST(CudaFault, ARankThatDoesNotComeIsNamedAtTheDeadline) {
  this->run([](typename TestFixture::rank_member& here) {
    ASSERT_TRUE(here.calls.set_timeout(300 * ms));
    ASSERT_TRUE(here.transport.barrier(60'000 * ms));
    if (here.rank == 1) return;
    EXPECT_TRUE(here.dispatch());
    const fault_record fault = here.settle();
    EXPECT_EQ(fault.kind, fault_kind::expired) << describe(fault);
    EXPECT_EQ(fault.where, stage::dispatch_recv) << describe(fault);
    EXPECT_EQ(fault.peer, 1) << describe(fault);
    EXPECT_LT(fault.seen, fault.expected) << describe(fault);
    const auto status = here.calls.status(0);
    ASSERT_FALSE(status);
    EXPECT_EQ(status.error().code, errc::timed_out);
    EXPECT_NE(status.error().message().find("peer 1"), std::string::npos);
  });
}

TYPED_TEST(CudaFault, AnOutputThatIsTooSmallIsNotOverrunAndStopsTheNextDispatch) {
  this->run([](typename TestFixture::rank_member& here) {
    dispatch_output to = here.output();
    if (here.rank == 0) {
      here.rows.resize(5 * hidden, 0);  // canaries right behind
      to = here.output();
      to.capacity = 5;
    }
    EXPECT_TRUE(here.dispatch(here.input(), to));
    const fault_record first = here.settle();
    ASSERT_TRUE(here.transport.barrier(60'000 * ms));
    const auto second = here.dispatch();
    if (here.rank != 0) {
      EXPECT_EQ(first.kind, fault_kind::none) << describe(first);
      EXPECT_TRUE(second);
      return here.expect_stopped_by(0, fault_kind::capacity);
    }
    EXPECT_EQ(first.kind, fault_kind::capacity) << describe(first);
    EXPECT_EQ(first.expected, 5u);
    EXPECT_GT(first.seen, 5u);
    ASSERT_FALSE(second);
    EXPECT_EQ(second.error().code, errc::capacity);
  });
}

TYPED_TEST(CudaFault, CallsOutOfOrderAreAFaultOfTheirRanks) {
  this->run([](typename TestFixture::rank_member& here) {
    EXPECT_TRUE(here.dispatch());
    EXPECT_EQ(here.settle().kind, fault_kind::none);
    EXPECT_TRUE(here.calls.combine_recv(0, {.out = here.out.data()}, here.where()));
    const fault_record fault = here.settle();
    EXPECT_EQ(fault.kind, fault_kind::misuse) << describe(fault);
    EXPECT_EQ(fault.where, stage::combine_recv);
    const auto status = here.calls.status(0);
    ASSERT_FALSE(status);
    EXPECT_EQ(status.error().code, errc::misuse);
  });
}

TYPED_TEST(CudaFault, AnotherLaneGoesOnAndOtherGroupsAreBuiltOnAFreshWindow) {
  using transport = typename TestFixture::transport;
  group_shape shape = TypeParam::shape();
  shape.lanes = 2;
  const auto sizes = group<transport>::sizes(shape, ranks);
  ASSERT_TRUE(sizes) << sizes.error().message();
  const std::uint64_t window = (sizes->window_bytes + 127) / 128 * 128;
  auto world =
      cuda_loopback_world<typename TestFixture::profile>::create({.ranks = ranks,
                                                                  .window_bytes = 2 * window,
                                                                  .signals = 2 * sizes->signals,
                                                                  .blocks = 4,
                                                                  .concurrent = 2,
                                                                  .patience_ns = 500 * ms});
  ASSERT_TRUE(world) << world.error().message();
  (*world)->run([&](transport& own) {
    auto first = group<transport>::create(own, shape);
    ASSERT_TRUE(first) << first.error().message();
    member<transport> here(own, *first);
    here.tokens.write({max_tokens + 1});  // on every rank
    EXPECT_TRUE(here.dispatch());
    EXPECT_EQ(here.settle().kind, fault_kind::too_many_tokens);
    here.tokens.write({max_tokens});
    EXPECT_TRUE(first->dispatch(1, here.input(), here.output(), here.where()));
    EXPECT_TRUE(own.executor().synchronize());
    EXPECT_TRUE(first->status(1));
    auto second = group<transport>::create(
        own, shape, {.window_offset = window, .first_signal = sizes->signals});
    ASSERT_TRUE(second) << second.error().message();
    member<transport> there(own, *second);
    EXPECT_TRUE(there.dispatch());
    EXPECT_EQ(there.settle().kind, fault_kind::none);
  });
}

TEST(CudaGroupCreate, RefusesMoreLanesThanTheExecutorKeepsRoomFor) {
  using transport = cuda_loopback<profiles::nvlink>;
  const group_shape shape{.max_tokens = 8, .hidden = 32, .top_k = 2, .experts = 6, .lanes = 3};
  const auto sizes = group<transport>::sizes(shape, ranks);
  ASSERT_TRUE(sizes);
  auto world = cuda_loopback_world<profiles::nvlink>::create({.ranks = ranks,
                                                              .window_bytes = sizes->window_bytes,
                                                              .signals = sizes->signals,
                                                              .concurrent = 2});
  ASSERT_TRUE(world) << world.error().message();
  (*world)->run([&](transport& own) {
    const auto refused = group<transport>::create(own, shape);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, errc::capacity);
    const std::string text = refused.error().message();
    EXPECT_NE(text.find("3 lanes"), std::string::npos) << text;
    EXPECT_NE(text.find("room for 2"), std::string::npos) << text;
  });
}

TEST(CudaGroupCreate, NamesTheRankWithAnotherShape) {
  using transport = cuda_loopback<profiles::efa_gpu>;
  group_shape shape{.max_tokens = 8, .hidden = 32, .top_k = 2, .experts = 6};
  const auto sizes = group<transport>::sizes(shape, ranks);
  ASSERT_TRUE(sizes);
  auto world = cuda_loopback_world<profiles::efa_gpu>::create(
      {.ranks = ranks, .window_bytes = sizes->window_bytes, .signals = sizes->signals});
  ASSERT_TRUE(world) << world.error().message();
  (*world)->run([&](transport& own) {
    const std::int32_t rank = own.view().rank();
    group_shape mine = shape;
    if (rank == 1) mine.hidden = 16;
    const auto made = group<transport>::create(own, mine);
    ASSERT_FALSE(made);
    EXPECT_EQ(made.error().code, errc::mismatch) << made.error().message();
    const std::string named = rank == 1 ? "rank 0" : "rank 1";
    EXPECT_NE(made.error().message().find(named), std::string::npos) << made.error().message();
    EXPECT_NE(made.error().message().find("hidden"), std::string::npos);
  });
}

}  // namespace
}  // namespace eptransport
