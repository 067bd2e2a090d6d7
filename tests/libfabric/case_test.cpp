// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Cases that users have met, over libfabric with every rank a process.
///
/// One job has as many processes as its largest case; each case is a transport of its own among the
/// first of them. tests/README.md says which case is which.
#include <eptransport/backends/libfabric/libfabric.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "libfabric/calls.hpp"
#include "libfabric/jobs.hpp"
#include "support/in_process_bootstrap.hpp"

namespace eptransport::support {
namespace {

/// What ranks 0 to `ranks` - 1 do, and what must come of it.
struct fabric_case {
  std::string name;
  int ranks;
  std::function<std::string(bootstrap&)> work;
  std::function<void(const std::vector<std::string>& said)> check;
};

using outcomes = std::vector<rank_outcome>;

/// Number `name` of the statistics that an outcome carries as JSON.
[[nodiscard]] std::uint64_t statistic(const std::string& json, const std::string& name) {
  const std::size_t at = json.find("\"" + name + "\": ");
  if (at != std::string::npos) return std::stoull(json.substr(at + name.size() + 4));
  ADD_FAILURE() << "no statistic " << name << " in " << json;
  return 0;
}

/// The cases of one job; comms, eager payloads and strictness change from case to case.
class case_list {
 public:
  explicit case_list(std::string provider) : provider_(std::move(provider)) {}

  [[nodiscard]] const std::vector<fabric_case>& all() const { return cases_; }
  [[nodiscard]] int most_ranks() const {
    int most = 0;
    for (const fabric_case& c : cases_) most = std::max(most, c.ranks);
    return most;
  }
  [[nodiscard]] const std::string& provider() const { return provider_; }

  /// Dispatch and combine; every rank may change what it is given, and `then` looks at the ends.
  void add_run(const std::string& name, run_config config,
               std::function<void(int rank, run_config&, proxy::fabric_options&)> change = {},
               std::function<void(const run_config&, outcomes)> then = verified) {
    proxy::fabric_options fabric = vary(config.proxy);
    config.channels = std::max(config.channels, config.proxy.comms);
    cases_.push_back({name, config.ranks,
                      [=](bootstrap& meeting) {
                        run_config mine = config;
                        proxy::fabric_options its = fabric;
                        if (change) change(meeting.rank(), mine, its);
                        return packed(run_rank(mine, meeting, its));
                      },
                      [=](const std::vector<std::string>& said) {
                        outcomes ends;
                        for (const std::string& one : said) ends.push_back(outcome_of(one));
                        then(config, std::move(ends));
                      }});
  }

  /// Puts and waits on a transport; what a rank returns is what it found wrong.
  void add_calls(const std::string& name, int ranks, proxied_options options,
                 proxy::fabric_options fabric,
                 std::function<std::string(libfabric&, bootstrap&)> calls) {
    fabric.provider = provider_under_test(provider_);
    options.driver.idle = proxy::polite;
    add(name, ranks, [=](bootstrap& meeting) {
      const auto made = libfabric::create(meeting, options, fabric);
      if (!made) return made.error().message();
      std::string wrong = calls(**made, meeting);
      if (!(*made)->intact()) wrong += "the window's guard zone is damaged\n";
      if (const result<void> closed = (*made)->close(); !closed) wrong += closed.error().message();
      return wrong;
    });
  }
  void add(const std::string& name, int ranks, std::function<std::string(bootstrap&)> work) {
    cases_.push_back({name, ranks, std::move(work), [](const std::vector<std::string>& said) {
                        for (std::size_t r = 0; r < said.size(); ++r) {
                          EXPECT_EQ(said[r], "") << "rank " << r;
                        }
                      }});
  }

  static void verified(const run_config& config, outcomes ends) {
    const run_result all = joined(config, std::move(ends));
    EXPECT_TRUE(all.verified) << all.why();
  }

 private:
  [[nodiscard]] proxy::fabric_options vary(proxy_config& proxy) const {
    constexpr std::uint64_t eager[] = {0, 256, 8192};
    const std::size_t n = cases_.size();
    const bool strict = n % 4 == 1;  // its messages have 8 KiB, header included
    proxy.comms = comms_under_test(1 + n % 2);
    proxy.engine.eager = strict ? 256 : eager[n % 3];
    return {.provider = provider_under_test(provider_), .strict = strict};
  }

  std::string provider_;
  std::vector<fabric_case> cases_;
};

/// Runs all of them in one job.
void run_cases(const case_list& list, std::chrono::minutes patience = std::chrono::minutes(4)) {
  const std::vector<fabric_case>& cases = list.all();
  std::vector<std::unique_ptr<meeting_room>> rooms;
  for (const fabric_case& c : cases) rooms.push_back(std::make_unique<meeting_room>(c.ranks));
  const int ranks = list.most_ranks();
  const auto patience_ns = static_cast<std::uint64_t>(std::chrono::nanoseconds(patience).count());
  meeting_room gate(ranks);  // a case begins when all have ended the one before
  const shared_array<std::atomic<std::size_t>> begun(static_cast<std::size_t>(ranks));
  const shared_array<std::atomic<std::size_t>> ended(static_cast<std::size_t>(ranks));
  auto started = rank_processes::start(ranks, [&](const bootstrap_options& who) {
    keep_freed_memory();
    proxy::detail::blob_writer said;
    for (std::size_t i = 0; i < cases.size(); ++i) {
      const auto all = gate.gather(who.rank, {}, patience_ns);
      if (!all) return all.error().message();
      if (who.rank >= cases[i].ranks) continue;
      begun[static_cast<std::size_t>(who.rank)] = i;
      in_process_bootstrap meeting(*rooms[i], who.rank);
      said.text(cases[i].work(meeting));
      ended[static_cast<std::size_t>(who.rank)] = i + 1;
    }
    const std::vector<std::byte> blob = std::move(said).take();
    return std::string(reinterpret_cast<const char*>(blob.data()), blob.size());
  });
  ASSERT_TRUE(started) << started.error().message();
  const auto endings = started->wait(patience, rank_processes::together);
  std::vector<proxy::detail::blob_reader> said;
  for (std::size_t r = 0; r < endings.size(); ++r) {
    // Whoever waits for the others at the gate is not the one that hung.
    EXPECT_TRUE(endings[r].clean())
        << "rank " << r << (endings[r].hung ? " had not ended" : " ended") << " with status "
        << endings[r].status << (ended[r] == begun[r] + 1 ? " after case '" : " in case '")
        << cases[begun[r]].name << "'";
    said.emplace_back(std::as_bytes(std::span(endings[r].said)));
  }
  if (::testing::Test::HasFailure()) return;
  for (const fabric_case& c : cases) {
    SCOPED_TRACE(c.name);
    std::vector<std::string> its;
    for (int r = 0; r < c.ranks; ++r) {
      its.push_back(said[static_cast<std::size_t>(r)].text());
      ASSERT_TRUE(said[static_cast<std::size_t>(r)].valid()) << "rank " << r;
    }
    c.check(its);
  }
}

[[nodiscard]] run_config tiny(int ranks, std::vector<std::int64_t> tokens) {
  run_config config = small_run(ranks);
  config.tokens = std::move(tokens);
  config.hidden = 8;
  config.top_k = 2;
  config.iterations = 2;
  config.mixed = true;
  return config;
}

/// Every rank but 1 is told that 1 cannot go on, by name, and long before a deadline.
void all_name_rank_1(const run_config& config, const outcomes& ends) {
  for (std::size_t r = 0; r < ends.size(); ++r) {
    const std::string why = ends[r].error + ends[r].report.error;
    EXPECT_NE(why, "") << "rank " << r;
    const bool named =
        why.find("rank 1") != std::string::npos || why.find("peer 1 ") != std::string::npos;
    EXPECT_TRUE(r == 1 || named) << "rank " << r << ": " << why;
    EXPECT_LT(ends[r].wall_ns, 0.5 * static_cast<double>(config.timeout_ns)) << "rank " << r;
  }
}

void add_counts_and_shapes(case_list& list) {
  constexpr std::int64_t many = address_sanitizer ? 512 : 4096;
  run_config some = tiny(3, {0, many, many});
  some.iterations = 1;
  list.add_run("T1 null pointers at one rank, thousands at others", some);
  std::vector<std::int64_t> one(16, 0);
  one[11] = 1;
  list.add_run("T2 one token among sixteen ranks", tiny(16, one));
  run_config uneven = tiny(6, {0, 1, 127, 128, 129, many});
  uneven.iterations = 1;
  list.add_run("T6 counts that differ", uneven);
  run_config crowd = tiny(3, {4});
  crowd.max_tokens = 4;
  crowd.mixed = false;
  list.add_run(
      "T14 more tokens than agreed", crowd,
      [](int rank, run_config& mine, proxy::fabric_options&) {
        if (rank == 1) mine.tokens = {4, 9, 4};
      },
      [](const run_config& config, const outcomes& ends) {
        all_name_rank_1(config, ends);
        for (const rank_outcome& end : ends) {
          EXPECT_NE(end.report.error.find('9'), std::string::npos) << end.report.error;
          EXPECT_NE(end.report.error.find('4'), std::string::npos) << end.report.error;
        }
      });
  for (const bool bytes : {true, false}) {
    list.add_run(
        bytes ? "T15 another hidden size" : "T15 other experts", tiny(3, {4}),
        [bytes](int rank, run_config& mine, proxy::fabric_options&) {
          if (rank != 1) return;
          mine.hidden += bytes ? 1 : 0;
          mine.experts += bytes ? 0 : 1;
        },
        all_name_rank_1);
  }
  for (const int experts : {384, 512, 513, 768, 1024}) {
    run_config config = tiny(3, {7});
    config.experts = experts;
    list.add_run("S4 " + std::to_string(experts) + " experts", config);
  }
  for (const auto& [ranks, experts] : {std::pair{3, 256}, {7, 160}, {16, 8}}) {
    run_config config = tiny(ranks, {5});
    config.experts = experts;
    list.add_run("S5 " + std::to_string(experts) + " experts over " + std::to_string(ranks),
                 config);
  }
  for (const int ranks : {1, 2, 5, 8, 12}) {
    list.add_run("S6 " + std::to_string(ranks) + " ranks", tiny(ranks, {6}));
  }
  for (const auto& nodes : {std::vector{0, 1, 2, 3, 4}, {0, 0, 1, 1, 2}, {0, 1, 0, 0, 1}}) {
    run_config config = tiny(5, {6});
    config.nodes = nodes;
    list.add_run("S8 nodes of unequal size", config);
  }
}

/// O9, R1: how many calls, and pairs.
void add_repeats(case_list& list, int calls, int pairs) {
  run_config equal = tiny(2, {1});
  equal.mixed = false;
  equal.iterations = calls;
  list.add_run("O9 equal calls", equal);
  run_config paused = tiny(3, {6});
  paused.pauses = true;
  paused.iterations = pairs;
  list.add_run("R1 no barrier, random delays", paused);
}

void add_pressure(case_list& list) {
  run_config narrow = tiny(3, {40});
  narrow.proxy.ring_slots = 4;
  narrow.proxy.engine = {
      .slots_per_peer = 2, .writes_per_peer = 2, .operations = 2, .peer_queue = 2};
  narrow.pauses = true;
  narrow.message = message_shape::per_row;
  list.add_run("O6 queues of two entries", narrow, {}, [](const run_config& config, outcomes ends) {
    for (const rank_outcome& end : ends) {
      EXPECT_GT(statistic(end.statistics, "full_stalls"), 0U) << "nothing was ever full";
    }
    case_list::verified(config, std::move(ends));
  });
  add_repeats(list, 200, 30);
  for (const std::int64_t tokens : {1, 3, 16}) {
    run_config batch = tiny(3, {tokens});
    batch.message = message_shape::per_row;
    list.add_run("R6 R10 batches of " + std::to_string(tokens) + " rows", batch, {},
                 [tokens](const run_config& config, outcomes ends) {
                   for (const rank_outcome& end : ends) {
                     const std::string& s = end.statistics;
                     const std::uint64_t posts = statistic(s, "writes") + statistic(s, "messages") +
                                                 statistic(s, "credit_writes");
                     EXPECT_GE(posts, statistic(s, "batches"));
                     // Posts that say "more follows" went out with the one that closed the batch.
                     if (tokens == 16) {
                       EXPECT_GT(posts, statistic(s, "batches"));
                     }
                   }
                   case_list::verified(config, std::move(ends));
                 });
  }
}

void add_calls(case_list& list) {
  for (const std::uint64_t eager : {0UL, 256UL, 8192UL}) {
    proxied_options options{.window_bytes = 1 << 16, .signals = 8};
    options.engine.eager = eager;
    list.add_calls("N1 N4 puts of any size, eager " + std::to_string(eager), 2, options, {},
                   puts_of_many_sizes);
  }
  proxied_options flood{.window_bytes = 4096, .signals = 3};
  list.add_calls("N2 12000 arrivals, a queue of 256", 3, flood,
                 {.completions = 256, .operations = 64},
                 [](libfabric& own, bootstrap& meeting) { return a_flood(own, meeting, 6000); });
  proxied_options slow{.window_bytes = 1 << 16, .signals = 2, .ring_slots = 64};
  list.add_calls("O6 F7 a slow consumer", 2, slow, {}, a_slow_consumer);
  for (const std::uint64_t bytes : {30'000UL, 3'000'000UL}) {
    const proxied_options amid{.window_bytes = 2 * bytes, .signals = 2, .ring_slots = 1024};
    list.add_calls("F16 closed amid puts of " + std::to_string(bytes), 3, amid, {},
                   closes_amid_puts);
  }
  const std::string provider = provider_under_test(list.provider());
  list.add("F19 eight transports in turn", 2,
           [provider](bootstrap& meeting) { return many_transports(meeting, provider); });
}

class LibfabricCases : public ::testing::TestWithParam<const char*> {};

TEST_P(LibfabricCases, HoldAmongProcesses) {
  case_list list(GetParam());
  add_counts_and_shapes(list);
  add_pressure(list);
  add_calls(list);
  run_cases(list);
}

TEST(LongLibfabricCases, HoldAtLength) {
  case_list list("shm");
  add_repeats(list, 10'000, 500);
  run_cases(list);
}

/// What takes minutes runs when EPT_FULL_SIZE names the provider.
TEST(LongLibfabricCases, HoldAtFullSize) {
  const char* provider = std::getenv("EPT_FULL_SIZE");
  if (provider == nullptr) GTEST_SKIP() << "EPT_FULL_SIZE is not set";
  case_list list(provider);
  for (const int ranks : {24, 48}) {
    list.add_run("S6 " + std::to_string(ranks) + " ranks", tiny(ranks, {6}));
  }
  add_repeats(list, 100'000, 10'000);
  run_cases(list, std::chrono::minutes(20));
}

INSTANTIATE_TEST_SUITE_P(Over, LibfabricCases, ::testing::Values("tcp", "shm"),
                         [](const auto& each) { return std::string(each.param); });
}  // namespace
}  // namespace eptransport::support
