// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Ranks of a job over libfabric that are killed, leave, stop, break or cannot be reached:
/// the others' errors name them, in bounded time.
#include <eptransport/backends/libfabric/libfabric.hpp>
#include <eptransport/proxy/bootstrap/tcp_bootstrap.hpp>

#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <sys/wait.h>
#include <unistd.h>
#include <utility>
#include <vector>

#include "libfabric/jobs.hpp"

namespace eptransport::support {
namespace {

using std::chrono::milliseconds;

/// How a rank ends, and where: after its third verified dispatch, or combine.
struct death {
  const char* provider;
  const char* after;
  int victim;
  bool killed;  ///< else it exits and destroys nothing
};

/// The survivors wait for it; their errors must name it and nobody else, long before the deadline.
void lose_a_rank(const death& d) {
  constexpr int ranks = 3;
  run_config config = small_run(ranks);
  config.iterations = 1'000'000;
  config.timeout_ns = 10'000'000'000;
  auto started = rank_processes::start(ranks, [&](const bootstrap_options& options) {
    config.tamper = [&](const tamper_point& at) {
      if (at.rank != d.victim || at.iteration != 2 || at.call != std::string(d.after)) return;
      if (d.killed) (void)::raise(SIGKILL);
      ::_exit(7);
    };
    return work(options, config, {.provider = provider_under_test(d.provider)});
  });
  ASSERT_TRUE(started) << started.error().message();
  std::vector<pid_t> processes;
  for (int rank = 0; rank < ranks; ++rank) processes.push_back(started->process(rank));
  const auto start = std::chrono::steady_clock::now();
  const auto endings = started->wait(milliseconds(20'000));
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  EXPECT_LT(took.count(), 9.0) << "the deadline ended it, not the death";
  const std::string name = "rank " + std::to_string(d.victim) + " ";
  for (int rank = 0; rank < ranks; ++rank) {
    const auto& how = endings[static_cast<std::size_t>(rank)];
    EXPECT_FALSE(how.hung) << "rank " << rank;
    if (rank == d.victim) {
      EXPECT_TRUE(d.killed ? how.killed_by(SIGKILL) : WEXITSTATUS(how.status) == 7);
      continue;
    }
    EXPECT_TRUE(how.clean()) << "rank " << rank << ", status " << how.status;
    const rank_outcome outcome = outcome_of(how.said);
    EXPECT_EQ(outcome.error, "") << "rank " << rank;
    const std::string cause = outcome.fault.substr(0, outcome.fault.find("; here: "));
    EXPECT_NE(cause.find(name), std::string::npos) << "rank " << rank << ": " << outcome.fault;
    EXPECT_NE(outcome.report.error.find(name), std::string::npos)
        << "rank " << rank << ": " << outcome.report.error;
  }
  // Of a killed process nobody closes the endpoints; those who knew its addresses remove the files.
  for (const pid_t process : processes) EXPECT_EQ(shm_files(process), 0U);
}

/// Every rank dies in turn, at both moments.
void lose_ranks(const char* provider, int times) {
  for (int i = 0; i < times && !::testing::Test::HasFailure(); ++i) {
    SCOPED_TRACE("round " + std::to_string(i));
    lose_a_rank({provider, i % 2 == 0 ? "dispatch" : "combine", i % 3, true});
  }
}

TEST(LibfabricDeath, IsNamedOverTcp) {
  lose_ranks("tcp", 2);
}
TEST(LibfabricDeath, IsNamedOverShm) {
  lose_ranks("shm", 2);
}
TEST(LibfabricDeath, ARankThatExitsWithoutDestroyingIsNamed) {
  lose_a_rank({"tcp", "dispatch", 1, false});
  lose_a_rank({"shm", "combine", 2, false});
}
TEST(LongLibfabricDeath, IsNamedFiftyTimesOverTcp) {
  lose_ranks("tcp", 50);
}
TEST(LongLibfabricDeath, IsNamedFiftyTimesOverShm) {
  lose_ranks("shm", 50);
}

/// Rank 1 of three stands still after its second dispatch, until `resume` says when to go on.
[[nodiscard]] std::vector<rank_outcome> stop_a_rank(
    const char* provider, const run_config& asked,
    const std::function<void(const rank_processes&)>& resume) {
  run_config config = asked;
  auto started = rank_processes::start(config.ranks, [&](const bootstrap_options& options) {
    config.tamper = [](const tamper_point& at) {
      const bool here = at.rank == 1 && at.iteration == 1 && std::string(at.call) == "dispatch";
      if (here) (void)::raise(SIGSTOP);
    };
    return work(options, config, {.provider = provider_under_test(provider)});
  });
  std::vector<rank_outcome> outcomes;
  if (!started) {
    ADD_FAILURE() << started.error().message();
    return outcomes;
  }
  EXPECT_TRUE(started->stopped(1, milliseconds(20'000)));
  resume(*started);
  started->signal(1, SIGCONT);
  for (const auto& how : started->wait(milliseconds(30'000))) {
    EXPECT_TRUE(how.clean()) << "status " << how.status << (how.hung ? ", hung" : "");
    outcomes.push_back(outcome_of(how.said));
  }
  return outcomes;
}

class LibfabricPause : public ::testing::TestWithParam<const char*> {};

/// A rank that stops for a while and goes on: nobody may take that for a failure.
TEST_P(LibfabricPause, BelowTheDeadlineIsNoFailure) {
  const run_config config = small_run(3);
  constexpr unsigned pause_us = 300'000;
  auto outcomes =
      stop_a_rank(GetParam(), config, [](const rank_processes&) { (void)::usleep(pause_us); });
  ASSERT_EQ(outcomes.size(), 3U);
  for (const rank_outcome& outcome : outcomes) {
    EXPECT_GT(outcome.wall_ns, pause_us * 1000.0) << "nobody waited";
  }
  const run_result all = joined(config, std::move(outcomes));
  EXPECT_TRUE(all.verified) << all.why();
}

/// Beyond it, the others' errors name the rank that stands still, and it has one when it goes on.
TEST_P(LibfabricPause, BeyondTheDeadlineIsNamed) {
  constexpr std::uint64_t deadline_ns = address_sanitizer ? 2'000'000'000 : 1'000'000'000;
  run_config config = small_run(3);
  config.timeout_ns = deadline_ns;
  const auto outcomes = stop_a_rank(GetParam(), config, [](const rank_processes&) {
    (void)::usleep(deadline_ns / 1000 + 300'000);
  });
  ASSERT_EQ(outcomes.size(), 3U);
  for (const std::size_t rank : {std::size_t{0}, std::size_t{2}}) {
    const std::string& error = outcomes[rank].report.error;
    EXPECT_TRUE(error.find("peer 1,") != std::string::npos ||
                error.find("rank 1 ") != std::string::npos ||
                error.find("names rank 1") != std::string::npos)
        << "rank " << rank << ": " << error;
    // The deadline and a tenth of it, and up to a second to tell the rank that does not listen; the
    // rest is for what came before and after.
    constexpr double rest = address_sanitizer ? 3e9 : 1e9;
    EXPECT_LT(outcomes[rank].wall_ns, 1.1 * static_cast<double>(deadline_ns) + 1e9 + rest)
        << "rank " << rank;
  }
  EXPECT_NE(outcomes[1].report.error, "") << "the others gave up on it";
}

INSTANTIATE_TEST_SUITE_P(Over, LibfabricPause, ::testing::Values("tcp", "shm"),
                         [](const auto& each) { return std::string(each.param); });

/// The fabric of one rank refuses every post: waiters end at once, with the error, and by name.
TEST(LibfabricFailure, AHardErrorOfOneRankEndsAllAtOnce) {
  run_config config = small_run(3);
  auto started = rank_processes::start(3, [&](const bootstrap_options& options) {
    return work(options, config,
                {.provider = provider_under_test("tcp"), .refuse_posts = options.rank == 1});
  });
  ASSERT_TRUE(started) << started.error().message();
  for (const auto& how : started->wait(milliseconds(30'000))) {
    EXPECT_TRUE(how.clean());
    const rank_outcome outcome = outcome_of(how.said);
    EXPECT_NE(outcome.report.error, "");
    EXPECT_NE(outcome.fault.find("rank 1"), std::string::npos) << outcome.fault;
    EXPECT_NE(outcome.fault.find("was told to refuse posts"), std::string::npos) << outcome.fault;
    EXPECT_LT(outcome.wall_ns, 5e9) << "somebody waited for the deadline";
  }
}

/// Passes everything on, but gives rank 0 another address of rank 1.
class misleading final : public bootstrap {
 public:
  using change = std::function<void(std::vector<std::byte>&)>;
  misleading(bootstrap& inner, change lie) : inner_(inner), lie_(std::move(lie)) {}

  [[nodiscard]] std::int32_t rank() const noexcept override { return inner_.rank(); }
  [[nodiscard]] std::int32_t size() const noexcept override { return inner_.size(); }
  [[nodiscard]] const std::vector<rank_place>& places() const noexcept override {
    return inner_.places();
  }
  [[nodiscard]] std::size_t max_bytes() const noexcept override { return inner_.max_bytes(); }
  [[nodiscard]] result<std::vector<std::vector<std::byte>>> all_gather(
      std::span<const std::byte> bytes, std::uint64_t timeout_ns) override {
    auto all = inner_.all_gather(bytes, timeout_ns);
    // Settings come first, addresses second.
    if (all && ++gathered_ == 2 && rank() == 0) lie_((*all)[1]);
    return all;
  }
  [[nodiscard]] result<void> barrier(std::uint64_t timeout_ns) override {
    return inner_.barrier(timeout_ns);
  }
  [[nodiscard]] result<std::vector<std::byte>> broadcast(std::int32_t root,
                                                         std::span<const std::byte> bytes,
                                                         std::uint64_t timeout_ns) override {
    return inner_.broadcast(root, bytes, timeout_ns);
  }
  void abort(std::string_view why) override { inner_.abort(why); }
  [[nodiscard]] bool healthy() const noexcept override { return inner_.healthy(); }
  [[nodiscard]] result<void> status() const override { return inner_.status(); }
  [[nodiscard]] std::vector<std::int32_t> lost() const override { return inner_.lost(); }

 private:
  bootstrap& inner_;
  change lie_;
  int gathered_ = 0;
};

/// The address of an endpoint in what a rank gave: behind the provider and the number of comms.
[[nodiscard]] std::span<std::byte> first_address(std::vector<std::byte>& blob) {
  proxy::detail::blob_reader reader(blob);
  (void)reader.text();
  (void)reader.number();
  const std::span<const std::byte> found = reader.bytes();
  return std::span(blob).subspan(static_cast<std::size_t>(found.data() - blob.data()),
                                 found.size());
}

/// A peer that cannot be reached: the error comes in bounded time and names it, on both ends.
void cannot_reach(const char* provider, const misleading::change& lie) {
  run_config config = small_run(2);
  config.proxy.stall_ns = 1'000'000'000;
  config.timeout_ns = 10'000'000'000;
  auto started = rank_processes::start(2, [&](const bootstrap_options& options) {
    auto joined = tcp_bootstrap::join(options);
    if (!joined) return joined.error().message();
    misleading meeting(**joined, lie);
    return packed(run_rank(config, meeting, {.provider = provider}));
  });
  ASSERT_TRUE(started) << started.error().message();
  const auto endings = started->wait(milliseconds(30'000));
  for (std::size_t rank = 0; rank < 2; ++rank) {
    EXPECT_TRUE(endings[rank].clean());
    const rank_outcome outcome = outcome_of(endings[rank].said);
    const std::string& why = outcome.fault;
    EXPECT_NE(why.find("rank 0: "), std::string::npos) << why;  // who could not
    EXPECT_NE(why.find("to rank 1 "), std::string::npos) << why;
    EXPECT_LT(outcome.wall_ns, 5e9) << "somebody waited for the deadline";
  }
}

TEST(LibfabricFailure, APeerThatCannotBeReachedIsNamed) {
  cannot_reach("tcp", [](std::vector<std::byte>& blob) {
    const std::span<std::byte> address = first_address(blob);  // a sockaddr_in
    ASSERT_EQ(address.size(), 16U);
    address[2] = std::byte{0};
    address[3] = std::byte{1};  // nobody listens at port 1
  });
}

/// What a rank has to say that puts large pieces to the others until that fails. Rank 0 only
/// closes.
[[nodiscard]] std::string put_until_it_fails(const bootstrap_options& options) {
  constexpr std::uint64_t bytes = 4'000'000;
  constexpr std::uint64_t patience = 20'000'000'000;
  auto joined = tcp_bootstrap::join(options);
  if (!joined) return joined.error().message();
  proxied_options settings{.window_bytes = 2 * bytes, .signals = 1};
  settings.driver.idle = proxy::polite;
  auto made =
      libfabric::create(**joined, settings, {.provider = provider_under_test("tcp")}, patience);
  if (!made) return made.error().message();
  libfabric& own = **made;
  if (!(*joined)->barrier(patience)) return "the others did not come";
  const std::uint64_t end = own.view().now_ns() + patience;
  auto status = options.rank == 0 ? op_status::failed : op_status::ok;
  for (int i = 0; status == op_status::ok; ++i) {
    const put_request request{.peer = (options.rank + 1 + i % 2) % 3,
                              .dst_offset = bytes,
                              .src = own.window().data(),
                              .bytes = bytes,
                              .signal = 0};
    status = own.view().put(host_thread(), 0, request, end);
  }
  const std::string why = own.fault() ? "" : own.fault().error().message();
  (void)own.close();
  return "closed; " + why;
}

/// A rank closes amid what the others put to it: that ends the job, by name, and no process.
TEST(LibfabricFailure, ARankThatClosesAloneEndsNoProcess) {
  auto started = rank_processes::start(3, put_until_it_fails);
  ASSERT_TRUE(started) << started.error().message();
  const auto endings = started->wait(milliseconds(40'000));
  for (std::size_t rank = 0; rank < 3; ++rank) {
    EXPECT_TRUE(endings[rank].clean()) << "rank " << rank << ", status " << endings[rank].status;
    EXPECT_TRUE(endings[rank].said.starts_with("closed; ")) << endings[rank].said;
    EXPECT_EQ(endings[rank].said.find("rank 0") == std::string::npos, rank == 0)
        << "rank " << rank << ": " << endings[rank].said;
  }
}

/// A rank that joins and never builds: the others say so at their limit.
TEST(LibfabricFailure, ARankThatNeverBuildsIsNamed) {
  auto started = rank_processes::start(3, [](const bootstrap_options& options) -> std::string {
    auto joined = tcp_bootstrap::join(options);
    if (!joined) return joined.error().message();
    if (options.rank == 1) {
      (void)::usleep(1'100'000);
      return "slept";
    }
    const auto made = libfabric::create(**joined, {.window_bytes = 4096, .signals = 4},
                                        {.provider = provider_under_test("tcp")}, 700'000'000);
    return made ? "built" : made.error().message();
  });
  ASSERT_TRUE(started) << started.error().message();
  const auto endings = started->wait(milliseconds(20'000));
  EXPECT_EQ(endings[1].said, "slept");
  for (const std::size_t rank : {std::size_t{0}, std::size_t{2}}) {
    EXPECT_NE(endings[rank].said.find("rank 1"), std::string::npos) << endings[rank].said;
  }
}

}  // namespace
}  // namespace eptransport::support
