// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Faulted runs over emulated NICs: full queues, failed requests, wrong keys, lost and
///        repeated completions, dead devices. Every run ends; errors name queue, peer and status.
///
/// EPT_GDAKI_SEED=S runs that seed alone.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <random>
#include <regex>
#include <string>

#include "support/runner.hpp"

namespace eptransport::support {
namespace {

using kind = gdaki_fault::kind;

constexpr kind kinds[] = {kind::fail,      kind::lose_completion, kind::repeat_completion,
                          kind::stall,     kind::bad_remote_key,  kind::bad_local_key,
                          kind::bad_handle};
constexpr int deaths = std::size(kinds);  ///< the kind after the last: a NIC dies
constexpr int full_queues = std::size(kinds) + 1;

/// One run and what must come of it.
struct faulted {
  run_config config;
  int what = 0;
  int culprit = 0;  ///< whose requests fail; whose NIC dies
  int peer = 0;
  std::uint8_t status = 0;  ///< that the error must name

  [[nodiscard]] bool is_efa() const { return config.wire == "gdaki:efa"; }
  [[nodiscard]] bool is(kind which) const { return what < deaths && kinds[what] == which; }
};

std::uint8_t status_of(kind which, bool is_efa, std::mt19937_64& random) {
  constexpr std::uint8_t efa[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  constexpr std::uint8_t mlx5[] = {0x01, 0x02, 0x04, 0x05, 0x11, 0x12, 0x13, 0x14, 0x15, 0x16};
  switch (which) {
    case kind::fail:
      return is_efa ? efa[random() % std::size(efa)] : mlx5[random() % std::size(mlx5)];
    case kind::bad_remote_key:
      return is_efa ? 7 : 0x13;
    case kind::bad_local_key:
      return is_efa ? 5 : 0x04;
    case kind::bad_handle:
      return 4;
    default:
      return 0;
  }
}

faulted draw(std::uint64_t seed) {
  std::mt19937_64 random(seed * 0x9e3779b97f4a7c15U);
  const auto below = [&random](int n) {
    return static_cast<int>(random() % static_cast<std::uint64_t>(n));
  };
  faulted f;
  f.what = static_cast<int>(seed % (full_queues + 1));
  run_config& c = f.config;
  c.wire = f.is(kind::bad_handle) || below(2) == 0 ? "gdaki:efa" : "gdaki:mlx5";
  c.ranks = 2 + below(4);
  c.tokens = {1 + below(8)};
  c.vary_tokens = below(2) == 0;
  c.hidden = 8 * (1 + below(6));
  c.top_k = 1 + below(4);
  c.experts = c.ranks * (1 + below(3));
  c.mode = below(2) == 0 ? dispatch_mode::slotted : dispatch_mode::counted;
  c.message = below(2) == 0 ? message_shape::per_row : message_shape::per_peer;
  c.signals = below(3) == 0 ? signal_words::summed : signal_words::per_source;
  c.workers = static_cast<std::uint32_t>(1 + below(2));
  c.iterations = 3;
  c.seed = seed;
  c.gdaki.queue_slots = f.what == full_queues ? 1U << below(2) : 8U << below(3);
  c.gdaki.ring_every = 1U << below(3);
  c.gdaki.first_index = random();
  f.culprit = below(c.ranks);
  f.peer = (f.culprit + 1 + below(c.ranks - 1)) % c.ranks;
  if (f.what < deaths) {
    gdaki_fault fault;
    fault.rank = f.culprit;
    fault.what = kinds[f.what];
    fault.peer = f.peer;
    fault.request = static_cast<std::uint64_t>(below(12));
    fault.status = f.status = status_of(fault.what, f.is_efa(), random);
    fault.steps = static_cast<std::uint32_t>(below(200));
    c.gdaki.faults = {fault};
  } else if (f.what == deaths) {
    f.status = f.is_efa() ? 13 : 0x15;
    c.gdaki.deaths = {{f.culprit, static_cast<std::uint64_t>(below(20))}};
  }
  return f;
}

/// The numbers in the message of a fault.
struct named {
  bool ok = false;
  int rank = -1, peer = -1, status = -1;
  std::uint64_t request = 0;
  std::string kind;
};

named parse(const std::string& text) {
  static const std::regex form(
      "gdaki:(?:efa|mlx5): the transport failed: rank (\\d+): channel (\\d+), queue pair (\\d+), "
      "request (\\d+) to rank (\\d+): ([a-z ]+), status (\\d+) \\((.+)\\)");
  std::smatch m;
  if (!std::regex_match(text, m, form)) return {};
  return {true, std::stoi(m[1]), std::stoi(m[5]), std::stoi(m[7]), std::stoull(m[4]), m[6]};
}

/// What is wrong with the outcome; empty if nothing. `named_errors` counts errors that were named.
std::string judge(const faulted& f, const run_result& result, int& named_errors) {
  if (!result.error.empty()) return "it did not begin: " + result.error;
  if (!result.violations.empty()) return "violations: " + result.violations;
  bool failed = false;
  for (const rank_report& rank : result.ranks) failed = failed || !rank.error.empty();
  const bool harmless = f.is(kind::stall) || f.what == full_queues;
  if (harmless && !result.verified) return "it was not verified: " + result.why();
  if (!failed && !result.verified) return "a wrong result without an error: " + result.difference;
  if (!result.difference.empty() && !failed) return "a wrong result: " + result.difference;
  for (int rank = 0; rank < f.config.ranks; ++rank) {
    const std::string& text = result.transport_faults[static_cast<std::size_t>(rank)];
    if (text.empty()) continue;
    const named n = parse(text);
    if (!n.ok || n.rank != rank) return "an error that does not name what it must: " + text;
    ++named_errors;
    if (f.is(kind::repeat_completion)) {
      if (n.kind != "completion of no request in flight") return "another error: " + text;
      continue;
    }
    // The other end of a failed connection gets no answers any more.
    const bool other_end = !f.is_efa() && f.what != deaths && rank != f.culprit;
    if (other_end && n.peer == f.culprit && n.status == 0x15) continue;
    if (n.kind != "completion with an error" || n.status != f.status) {
      return "expected status " + std::to_string(f.status) + ": " + text;
    }
    if (f.what == deaths) {
      if (rank == f.culprit || n.peer != f.culprit) return "another peer died: " + text;
      continue;
    }
    if (rank != f.culprit) return "another rank's request failed: " + text;
    const bool peer_is_known = f.is(kind::bad_remote_key) || f.is(kind::bad_handle) || !f.is_efa();
    if (peer_is_known && !f.is(kind::bad_local_key) && n.peer != f.peer) {
      return "another peer: " + text;
    }
    if (f.is(kind::fail)) {
      const std::uint64_t due = f.config.gdaki.first_index + f.config.gdaki.faults[0].request;
      if (n.request != (due & 0xffffffffffffU)) return "another request: " + text;
    }
  }
  const bool certain =
      f.is(kind::bad_remote_key) || f.is(kind::bad_local_key) || f.is(kind::bad_handle);
  const std::string& own = result.transport_faults[static_cast<std::size_t>(f.culprit)];
  if (certain && own.empty()) return "a wrong key or handle was not noticed";
  return {};
}

void run_seeds(std::uint64_t first, std::uint64_t count) {
  if (const char* one = std::getenv("EPT_GDAKI_SEED"); one != nullptr) {
    first = std::strtoull(one, nullptr, 10);
    count = 1;
  }
  int named_errors = 0;
  for (std::uint64_t seed = first; seed < first + count; ++seed) {
    const faulted f = draw(seed);
    const std::string wrong = judge(f, run(f.config), named_errors);
    ASSERT_EQ(wrong, "") << "EPT_GDAKI_SEED=" << seed << ", " << f.config.wire << ", fault kind "
                         << f.what;
  }
  // Most faults hit; the others were planned for requests that were never made.
  if (count > 1) {
    EXPECT_GT(named_errors, static_cast<int>(count) / 3);
  }
}

TEST(GdakiFaults, FiftyFaultedRunsEndAndNameQueuePeerAndStatus) {
  run_seeds(1, 50);
}

TEST(LongGdakiFaults, AThousandFaultedRunsEndAndNameQueuePeerAndStatus) {
  run_seeds(51, 1000);
}

TEST(GdakiFaults, ADeviceThatDiesUnderLoadOnRealThreads) {
  for (const std::string& wire : gdaki_wires()) {
    run_config config;
    config.wire = wire;
    config.ranks = 4;
    config.tokens = {32};
    config.hidden = 64;
    config.top_k = 4;
    config.experts = 8;
    config.iterations = 1000;
    config.schedule = run_mode::free;
    config.timeout_ns = 200'000'000;
    config.gdaki.deaths = {{2, 300}};
    const run_result result = run(config);
    EXPECT_EQ(result.error, "");
    EXPECT_EQ(result.violations, "");
    int named_errors = 0;
    for (int rank = 0; rank < 4; ++rank) {
      EXPECT_FALSE(result.ranks[static_cast<std::size_t>(rank)].error.empty()) << wire;
      const named n = parse(result.transport_faults[static_cast<std::size_t>(rank)]);
      if (!n.ok) continue;
      ++named_errors;
      EXPECT_NE(rank, 2);
      EXPECT_EQ(n.peer, 2);
      EXPECT_EQ(n.status, wire == "gdaki:efa" ? 13 : 0x15);
    }
    EXPECT_GE(named_errors, 1) << wire;
  }
}

TEST(GdakiFaults, AnErrorEndsTheCallAndNotItsDeadline) {
  for (const std::string& wire : gdaki_wires()) {
    run_config config;
    config.wire = wire;
    config.ranks = 3;
    config.tokens = {4};
    config.hidden = 32;
    config.experts = 6;
    config.iterations = 50;
    gdaki_fault fault;
    fault.rank = 1;
    fault.peer = 2;
    fault.request = 20;
    fault.status = 7;
    config.gdaki.faults = {fault};
    const run_result result = run(config);
    const rank_report& own = result.ranks[1];
    EXPECT_EQ(own.fault.kind, fault_kind::transport_failed) << wire << ": " << own.error;
    EXPECT_TRUE(parse(result.transport_faults[1]).ok) << result.transport_faults[1];
  }
}

}  // namespace
}  // namespace eptransport::support
