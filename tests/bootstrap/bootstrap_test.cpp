// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Ranks that meet, exchange, differ, stay away, abort and leave; a thread is a rank here.
#include <eptransport/proxy/bootstrap/bootstrap.hpp>
#include <eptransport/proxy/bootstrap/listening_socket.hpp>

#include <boost/asio/ip/address.hpp>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <random>
#include <set>
#include <span>
#include <string>
#include <sys/resource.h>
#include <sys/socket.h>
#include <system_error>
#include <thread>
#include <unistd.h>
#include <utility>
#include <vector>

#include "bootstrap/rig.hpp"

namespace eptransport {
namespace {

using support::joined;
using support::meeting;
using support::ms;
using support::patience;
using support::run_ranks;
using testing::TestWithParam;
using testing::Values;

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}
std::size_t index(std::int32_t rank) {
  return static_cast<std::size_t>(rank);
}

/// What rank `rank` gives in round `round`; its size and contents follow the seed.
std::vector<std::byte> gift(std::uint64_t seed, std::int32_t rank, int round) {
  std::mt19937_64 draw(seed + index(rank) * 1000 + static_cast<std::uint64_t>(round));
  const std::size_t most = round == 3 ? 700'000 : 3000;  // several frames in one round
  std::vector<std::byte> bytes(draw() % most);
  for (std::byte& b : bytes) b = static_cast<std::byte>(draw());
  return bytes;
}

class Bootstrap : public TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, Bootstrap, Values(1, 2, 3, 5, 8));

TEST_P(Bootstrap, EveryRankGetsWhatEveryRankGave) {
  const std::int32_t ranks = GetParam();
  const std::uint64_t seed = support::fresh_seed();
  SCOPED_TRACE("seed " + std::to_string(seed));
  meeting at(ranks);
  std::atomic<int> arrived{0};
  run_ranks(ranks, [&](std::int32_t rank) {
    const joined self = support::join(at.options(rank));
    ASSERT_TRUE(self) << self.error().message();
    bootstrap& b = **self;
    EXPECT_EQ(b.rank(), rank);
    EXPECT_EQ(b.size(), ranks);
    for (int round = 0; round < 12; ++round) {
      const auto all = b.all_gather(gift(seed, rank, round), patience);
      ASSERT_TRUE(all) << all.error().message();
      ASSERT_EQ(all->size(), index(ranks));
      for (std::int32_t r = 0; r < ranks; ++r) {
        ASSERT_EQ((*all)[index(r)], gift(seed, r, round)) << "of rank " << r;
      }
      ++arrived;
      ASSERT_TRUE(b.barrier(patience));
      EXPECT_GE(arrived, ranks * (round + 1));  // nobody passes before all have come
      const std::int32_t root = round % ranks;
      const auto told = b.broadcast(root, gift(seed, rank, 100 + round), patience);
      ASSERT_TRUE(told) << told.error().message();
      EXPECT_EQ(*told, gift(seed, root, 100 + round));
    }
    EXPECT_TRUE(b.agree("shape", "the same", patience));
    EXPECT_TRUE(b.healthy());
    EXPECT_TRUE(b.status());
    EXPECT_TRUE(b.lost().empty());
  });
}

TEST(BootstrapPlaces, NodesAreNumberedByTheirFirstRank) {
  meeting at(5);
  const std::vector<std::string> hosts = {"y", "x", "y", "z", "x"};
  run_ranks(5, [&](std::int32_t rank) {
    auto options = at.options(rank);
    options.host_identity = hosts[index(rank)];
    const joined self = support::join(options);
    ASSERT_TRUE(self) << self.error().message();
    EXPECT_EQ((*self)->nodes(), (std::vector<int>{0, 1, 0, 2, 1}));
    const std::vector<rank_place>& places = (*self)->places();
    EXPECT_EQ(places[4].on_node, 1);
    EXPECT_EQ(places[3].on_node, 0);
    EXPECT_EQ(places[1].identity, "x");
    EXPECT_FALSE(places[0].host.empty());
  });
}

/// All ranks fail to join, with the same code and a text that has `part`.
void expect_no_joining(meeting& at, std::int32_t ranks, errc code, const std::string& part,
                       const std::function<bool(std::int32_t, bootstrap_options&)>& change) {
  run_ranks(ranks, [&](std::int32_t rank) {
    auto options = at.options(rank);
    if (!change(rank, options)) return;
    const joined self = support::join(options);
    ASSERT_FALSE(self) << "rank " << rank;
    EXPECT_EQ(self.error().code, code) << self.error().message();
    EXPECT_TRUE(contains(self.error().detail, part)) << self.error().message();
  });
}

TEST(BootstrapJoin, RanksThatStayAwayAreNamedToAll) {
  meeting at(8);
  at.common.timeout_ns = 1000 * ms;
  expect_no_joining(at, 8, errc::timed_out, "ranks 3, 7 have not arrived at 127.0.0.1:",
                    [](std::int32_t rank, bootstrap_options&) { return rank != 3 && rank != 7; });
}

TEST(BootstrapJoin, AnotherConfigIsFoundEvenAtRankZero) {
  for (const std::int32_t odd : {0, 3}) {
    meeting at(5);
    at.common.config = "hidden=7168 topk=8";
    expect_no_joining(at, 5, errc::mismatch,
                      "rank " + std::to_string(odd) + " differs: rank " + std::to_string(odd) +
                          " has \"hidden=4096",
                      [&](std::int32_t rank, bootstrap_options& options) {
                        if (rank == odd) options.config = "hidden=4096 topk=8";
                        return true;
                      });
  }
}

/// Rank 2 of three joins with other options: it and rank 0 say why, and rank 1 too, unless it came
/// after rank 0 had gone.
void expect_refusal(const std::string& part,
                    const std::function<void(bootstrap_options&)>& change) {
  meeting at(3);
  at.common.timeout_ns = 2000 * ms;
  run_ranks(3, [&](std::int32_t rank) {
    auto options = at.options(rank);
    if (rank == 2) {
      change(options);
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
    const joined self = support::join(options);
    ASSERT_FALSE(self) << "rank " << rank;
    if (rank == 1 && self.error().code == errc::timed_out) return;
    EXPECT_EQ(self.error().code, errc::mismatch) << self.error().message();
    EXPECT_TRUE(contains(self.error().detail, part)) << self.error().message();
  });
}
TEST(BootstrapJoin, AnotherSizeOrTheSameRankTwiceIsRefusedByName) {
  expect_refusal("was told that there are 4 ranks, rank 0 that there are 3",
                 [](bootstrap_options& options) { options.size = 4; });
  expect_refusal("two processes call themselves rank 1",
                 [](bootstrap_options& options) { options.rank = 1; });
}

TEST(BootstrapJoin, AnotherTokenIsRefusedAndTheOthersWaitOn) {
  meeting at(3);
  at.common.timeout_ns = 1000 * ms;
  run_ranks(3, [&](std::int32_t rank) {
    auto options = at.options(rank);
    if (rank == 2) options.token += "?";
    const joined self = support::join(options);
    ASSERT_FALSE(self);
    EXPECT_EQ(self.error().code, rank == 2 ? errc::mismatch : errc::timed_out);
    EXPECT_TRUE(contains(self.error().detail,
                         rank == 2 ? "its token is not that of rank 0" : "rank 2 has not arrived"))
        << self.error().message();
    if (rank != 2) {
      EXPECT_TRUE(contains(self.error().detail, "connections with another token: 1"))
          << self.error().message();
    }
  });
}

TEST(BootstrapJoin, WhatKeepsARankFromRankZeroIsSaid) {
  bootstrap_options options;
  options.rank = 1;
  options.size = 2;
  options.token = "t";
  options.timeout_ns = 150 * ms;
  auto socket = listening_socket::open("127.0.0.1", 0);  // listens, and never answers
  ASSERT_TRUE(socket);
  options.port = socket->port();
  const joined mute = support::join(options);
  ASSERT_FALSE(mute);
  EXPECT_TRUE(contains(mute.error().detail,
                       "rank 1 did not reach rank 0 at 127.0.0.1:" + std::to_string(options.port)))
      << mute.error().message();
  { const listening_socket closed = std::move(*socket); }
  const joined nobody = support::join(options);
  ASSERT_FALSE(nobody);
  EXPECT_EQ(nobody.error().code, errc::timed_out);
  EXPECT_TRUE(contains(nobody.error().detail, "Connection refused")) << nobody.error().message();
  options.host = "no-such-host.invalid";
  const joined unnamed = support::join(options);
  ASSERT_FALSE(unnamed);
  EXPECT_EQ(unnamed.error().code, errc::timed_out);
  EXPECT_TRUE(contains(unnamed.error().detail, options.host)) << unnamed.error().message();
}

TEST(BootstrapJoin, AnotherServiceAtThatPortIsToldFromRankZero) {
  auto socket = listening_socket::open("127.0.0.1", 0);
  ASSERT_TRUE(socket);
  bootstrap_options options;
  options.rank = 1;
  options.size = 2;
  options.token = "t";
  options.port = socket->port();
  options.timeout_ns = 300 * ms;
  std::thread service([&] {
    const int to = ::accept4(socket->get(), nullptr, nullptr, SOCK_CLOEXEC);
    EXPECT_GT(::send(to, "HTTP/1.1 400", 12, MSG_NOSIGNAL), 0);
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    (void)::close(to);
  });
  const joined self = support::join(options);
  service.join();
  ASSERT_FALSE(self);
  EXPECT_EQ(self.error().code, errc::timed_out);
  EXPECT_TRUE(contains(self.error().detail, "these are not frames of a bootstrap"))
      << self.error().message();
}

TEST(BootstrapJoin, WhatAcceptsAndStaysSilentIsLeftAfterTheSilence) {
  auto socket = listening_socket::open("127.0.0.1", 0);
  ASSERT_TRUE(socket);
  bootstrap_options options;
  options.size = 2;
  options.token = "t";
  options.port = socket->port();
  options.beat_ns = 20 * ms;
  options.silence_ns = 100 * ms;
  bootstrap_options first = options;
  first.rank = 1;
  first.timeout_ns = patience;
  std::thread early([&first] {
    const joined self = support::join(first);
    EXPECT_TRUE(self) << self.error().message();
  });
  const int held = ::accept4(socket->get(), nullptr, nullptr, SOCK_CLOEXEC);
  EXPECT_GE(held, 0);
  options.listener = socket->release();  // rank 0 comes while the silent one holds its connection
  options.timeout_ns = patience;
  const joined self = support::join(options);
  EXPECT_TRUE(self) << self.error().message();
  early.join();
  (void)::close(held);
}

TEST(BootstrapJoin, ArgumentsThatMakeNoSenseAreRefused) {
  bootstrap_options good;
  good.token = "t";
  ASSERT_TRUE(support::join(good));  // alone
  const auto refused = [&](const std::function<void(bootstrap_options&)>& change,
                           const std::string& part) {
    bootstrap_options bad = good;
    change(bad);
    const joined self = support::join(bad);
    ASSERT_FALSE(self) << part;
    EXPECT_EQ(self.error().code, errc::invalid_argument);
    EXPECT_TRUE(contains(self.error().detail, part)) << self.error().message();
  };
  refused([](auto& o) { o.rank = 1; }, "rank 1 of 1");
  refused([](auto& o) { o.rank = -1; }, "rank -1 of 1");
  refused([](auto& o) { o.size = 0; }, "rank 0 of 0");
  refused([](auto& o) { o.token.clear(); }, "no token");
  refused([](auto& o) { o.config.assign(1025, 'x'); }, "1025 bytes, at most 1024");
  refused([](auto& o) { o.size = 2; }, "port 0");
  refused([](auto& o) { o.silence_ns = o.beat_ns; }, "silence_ns");
  auto taken = listening_socket::open("127.0.0.1", 0);
  ASSERT_TRUE(taken);
  bootstrap_options clash = good;
  clash.size = 2;
  clash.port = taken->port();
  const joined self = support::join(clash);
  ASSERT_FALSE(self);
  EXPECT_EQ(self.error().code, std::errc::address_in_use) << self.error().message();
}

TEST(BootstrapJoin, WithoutDescriptorsItIsAnError) {
  support::child starved([]() -> std::string {
    bootstrap_options options;
    options.token = "t";
    options.size = 2;
    auto socket = listening_socket::open("127.0.0.1", 0);
    options.port = socket->port();
    options.timeout_ns = 20 * ms;
    try {  // the undefined-behaviour sanitizer meets a type for the first time with descriptors
      (void)boost::asio::ip::make_address("none");
    } catch (const std::exception& thrown) {
      if (*thrown.what() == '\0') return "no reason";
    }
    const std::size_t used = support::count_descriptors();
    const auto free_port = listening_socket::open("127.0.0.1", 0)->port();
    // A limit bounds numbers, and the free ones below the highest that is taken count too.
    std::set<rlim_t> free;
    while (free.size() < 9) free.insert(static_cast<rlim_t>(::dup(socket->get())));
    for (const rlim_t each : free) (void)::close(static_cast<int>(each));
    int failures = 0;
    std::set<std::string> why;
    // One comes, the other listens; neither meets anybody, and the first two have all they want:
    // sanitizers learn types with a descriptor of their own.
    const auto try_both = [&](rlim_t most) {
      for (const std::int32_t rank : {1, 0}) {
        options.rank = rank;
        options.port = rank == 0 ? free_port : socket->port();
        rlimit limit{};
        (void)::getrlimit(RLIMIT_NOFILE, &limit);
        rlimit few = limit;
        few.rlim_cur = std::min(limit.rlim_cur, most);
        (void)::setrlimit(RLIMIT_NOFILE, &few);
        const joined self = support::join(options);
        (void)::setrlimit(RLIMIT_NOFILE, &limit);
        if (self) continue;
        ++failures;
        why.insert(self.error().code == errc::timed_out ? "late" : "starved");
      }
    };
    try_both(RLIM_INFINITY);
    for (const rlim_t each : free) try_both(each);
    return std::to_string(failures) + " failed, " + std::to_string(why.size()) + " kinds, " +
           std::to_string(support::count_descriptors() - used) + " leaked";
  });
  EXPECT_EQ(starved.wait(), "20 failed, 2 kinds, 0 leaked");
}

TEST(BootstrapCalls, AMissingRankIsNamedAndTheFailureIsFinal) {
  meeting at(3);
  std::atomic<int> through{0};
  run_ranks(3, [&](std::int32_t rank) {
    const joined self = support::join(at.options(rank));
    ASSERT_TRUE(self) << self.error().message();
    if (rank != 2) {
      const auto met = (*self)->barrier(rank == 1 ? 200 * ms : patience);
      ASSERT_FALSE(met);
      EXPECT_EQ(met.error().code, errc::timed_out);
      EXPECT_TRUE(contains(met.error().detail, "rank 2 has not come to call 2 (barrier)"))
          << met.error().message();
      ++through;
    }
    while (through < 2) std::this_thread::yield();
    const auto again = (*self)->barrier(patience);  // the late one too
    ASSERT_FALSE(again);
    EXPECT_EQ(again.error().code, errc::timed_out);
    EXPECT_FALSE((*self)->healthy());
    EXPECT_TRUE((*self)->lost().empty());  // nobody has died
  });
}

TEST(BootstrapCalls, DifferentCallsNameTheRankThatMakesThem) {
  meeting at(3);
  run_ranks(3, [&](std::int32_t rank) {
    const joined self = support::join(at.options(rank));
    ASSERT_TRUE(self) << self.error().message();
    if (rank == 2) std::this_thread::sleep_for(std::chrono::milliseconds(100));
    const auto met = rank == 2 ? (*self)->barrier(patience)
                               : result<void>((*self)->broadcast(1, {}, patience).error());
    ASSERT_FALSE(met);
    EXPECT_EQ(met.error().code, errc::misuse) << met.error().message();
    EXPECT_TRUE(contains(met.error().detail, "rank 2 calls barrier, rank "))
        << met.error().message();
  });
}

TEST(BootstrapCalls, BadArgumentsAreThisRanksAffairAndNotFinal) {
  meeting at(2);
  run_ranks(2, [&](std::int32_t rank) {
    const joined self = support::join(at.options(rank));
    ASSERT_TRUE(self) << self.error().message();
    const std::vector<std::byte> large((*self)->max_bytes() + 1);
    const auto refused = (*self)->all_gather(large, patience);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, errc::invalid_argument);
    EXPECT_TRUE(contains(refused.error().detail, "1048577")) << refused.error().message();
    EXPECT_EQ((*self)->broadcast(2, {}, patience).error().code, errc::invalid_argument);
    const auto all = (*self)->all_gather(std::span(large).first((*self)->max_bytes()), patience);
    ASSERT_TRUE(all) << all.error().message();
    EXPECT_EQ((*all)[1 - index(rank)].size(), (*self)->max_bytes());
    const auto differs = (*self)->agree("K", rank == 0 ? "1" : "2", patience);
    ASSERT_FALSE(differs);
    EXPECT_EQ(differs.error().detail, "K: rank 1 differs: rank 1 has \"2\", rank 0 has \"1\"");
    EXPECT_TRUE((*self)->barrier(patience));
  });
}

TEST(BootstrapCalls, ASecondThreadOfARankIsRefused) {
  meeting at(2);
  std::atomic<bool> refused{false};
  run_ranks(2, [&](std::int32_t rank) {
    const joined self = support::join(at.options(rank));
    ASSERT_TRUE(self) << self.error().message();
    if (rank == 1) {
      while (!refused) std::this_thread::yield();
      EXPECT_TRUE((*self)->barrier(patience));
      return;
    }
    // Both wait for rank 1, which comes once: whoever is second is told so at once.
    std::atomic<int> met{0};
    const auto call = [&] {
      const auto done = (*self)->barrier(patience);
      if (done) {
        ++met;
      } else {
        EXPECT_EQ(done.error().code, errc::misuse) << done.error().message();
        refused = true;
      }
    };
    std::thread other(call);
    call();
    other.join();
    EXPECT_EQ(met, 1);
  });
}

TEST(BootstrapAbort, ReachesAllWithItsReason) {
  for (const std::int32_t who : {0, 2}) {
    meeting at(4);
    run_ranks(4, [&](std::int32_t rank) {
      const joined self = support::join(at.options(rank));
      ASSERT_TRUE(self) << self.error().message();
      if (rank == who) {
        (*self)->abort("out of memory: 5 of 4 GiB");
        (*self)->abort("a second reason");
      }
      const auto met = (*self)->barrier(patience);
      ASSERT_FALSE(met);
      EXPECT_EQ(met.error().code, errc::peer_stopped);
      EXPECT_TRUE(contains(met.error().detail, "rank " + std::to_string(who)) &&
                  contains(met.error().detail, "has aborted: out of memory: 5 of 4 GiB"))
          << met.error().message();
      EXPECT_FALSE((*self)->healthy());
      EXPECT_EQ((*self)->status().error().detail, met.error().detail);
      EXPECT_TRUE((*self)->lost().empty());
    });
  }
}

TEST(BootstrapEnd, LeavingInOrderIsNoFaultButEndsTheCalls) {
  for (const std::int32_t who : {0, 1}) {
    meeting at(3);
    run_ranks(3, [&](std::int32_t rank) {
      joined self = support::join(at.options(rank));
      ASSERT_TRUE(self) << self.error().message();
      ASSERT_TRUE((*self)->barrier(patience));
      if (rank == who) return;
      const auto met = (*self)->barrier(patience);
      ASSERT_FALSE(met);
      EXPECT_EQ(met.error().code, errc::transport_failed);
      // The other survivor may have read it first, and gone.
      EXPECT_TRUE(contains(met.error().detail, " has left, no call can complete"))
          << met.error().message();
      EXPECT_TRUE((*self)->healthy());
      EXPECT_TRUE((*self)->lost().empty());
    });
  }
}

TEST(BootstrapEnd, BootstrapsOfOneProcessDoNotMix) {
  constexpr int groups = 4;
  std::vector<std::unique_ptr<meeting>> at;
  for (int g = 0; g < groups; ++g) at.push_back(std::make_unique<meeting>(2));
  run_ranks(2, [&](std::int32_t rank) {
    std::vector<std::unique_ptr<bootstrap>> all;
    for (int g = 0; g < groups; ++g) {
      joined self = support::join(at[static_cast<std::size_t>(g)]->options(rank));
      ASSERT_TRUE(self) << self.error().message();
      all.push_back(std::move(*self));
    }
    for (int step = 0; step < 50; ++step) {
      const auto g = static_cast<std::size_t>(step * 7 % groups);
      ASSERT_TRUE(all[g]->agree("step", std::to_string(step * 7), patience));
    }
    std::swap(all[index(rank)], all[3]);  // destroyed in another order on each rank
    all.clear();
  });
}

/// @param memory  it must be flat too, which sanitizers' allocators do not keep
void create_and_destroy(int cycles, bool memory) {
  std::size_t descriptors = 0;
  std::size_t threads = 0;
  std::size_t resident = 0;
  for (int cycle = 0; cycle < cycles; ++cycle) {
    {
      meeting at(2);
      const bool meets = cycle % 5 != 0;  // every fifth fails
      at.common.timeout_ns = meets ? patience : 5 * ms;
      run_ranks(2, [&](std::int32_t rank) {
        auto options = at.options(rank);
        if (!meets && rank == 1) return;
        const joined self = support::join(options);
        ASSERT_EQ(self.has_value(), meets);
        if (meets && cycle % 2 == 0) {
          EXPECT_TRUE((*self)->barrier(patience));
        }
      });
    }
    if (cycle == cycles / 6) {
      descriptors = support::count_descriptors();
      threads = support::count_threads();
      resident = support::resident_bytes();
    }
  }
  EXPECT_EQ(support::count_descriptors(), descriptors);
  // A thread that was joined may be listed for a moment more.
  for (int wait = 0; wait < 1000 && support::count_threads() != threads; ++wait) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_EQ(support::count_threads(), threads);
  if (memory) {
    EXPECT_LT(support::resident_bytes(), resident + (1U << 20U));
  }
}
TEST(BootstrapEnd, CreatingAndDestroyingLeavesNothing) {
  create_and_destroy(60, false);
}
TEST(LongBootstrapEnd, CreatingAndDestroyingAThousandTimesLeavesNothing) {
  create_and_destroy(1000, true);
}

}  // namespace
}  // namespace eptransport
