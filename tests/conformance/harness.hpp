// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief What a conformance case is made of: a world request, a report, and one rank's probe.
///
/// A *backend* is a traits type:
///
/// | member                       | meaning                                                    |
/// |------------------------------|------------------------------------------------------------|
/// | `B::transport`               | models `Transport`                                         |
/// | `B::host_view(transport)`    | a view for `host_thread` groups; only where the            |
/// |                              | transport's own is for others, as a GPU's is               |
/// | `B::run(request, f, out)`    | builds the world, calls `f(transport)` once per rank, each |
/// |                              | in its own thread or process, and reports what it noticed  |
/// | `B::seeds`                   | how many seeds each case runs with                         |
/// | `B::patience_ns`             | how long something that must happen may take               |
/// | `B::one_process`             | all ranks share the memory of the test                     |
/// | `B::arrivals()`              | a counter that all ranks share; only where they do not     |
/// | `B::can_start_counters`      | honours `counter_start`                                    |
/// | `B::can_limit_queues`        | honours `queue_depth`                                      |
/// | `B::can_break`               | honours `broken_rank`                                      |
///
/// A case is a function template over the backend that leaves its findings in a report. The suite
/// demands an empty one; a negative control demands findings.
#pragma once

#include <eptransport/core/config.hpp>
#include <eptransport/core/host_executor.hpp>
#include <eptransport/core/transport.hpp>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace conformance {

using eptransport::host_thread;
using eptransport::op_status;

/// The world that a case needs.
struct world_request {
  int ranks = 0;  ///< 0: as many as the case likes
  std::uint64_t window_bytes = 8192;
  std::uint32_t signals = 8;
  std::uint32_t channels = 1;
  std::uint32_t workers = 1;
  std::uint32_t queue_depth = 0;    ///< 0 = whatever the backend likes
  std::uint64_t counter_start = 0;  ///< first value of every signal word
  int broken_rank = -1;             ///< its first put fails hard
  std::uint64_t seed = 1;
};

/// Findings of all ranks of one case.
///
/// @par Threads  Any.
class report {
 public:
  void add(const std::string& finding) {
    const std::lock_guard lock(mutex_);
    ++count_;
    if (count_ <= 8) text_ += finding + "\n";
  }
  [[nodiscard]] bool empty() const {
    const std::lock_guard lock(mutex_);
    return count_ == 0;
  }
  [[nodiscard]] std::string text() const {
    const std::lock_guard lock(mutex_);
    return text_ + (count_ > 8 ? "and more\n" : "");
  }

 private:
  mutable std::mutex mutex_;
  std::uint64_t count_ = 0;
  std::string text_;
};

/// The view that the cases call from host threads.
template <class B>
[[nodiscard]] auto host_view(typename B::transport& t) {
  if constexpr (requires { B::host_view(t); }) {
    return B::host_view(t);
  } else {
    return t.view();
  }
}

template <class B>
concept Backend =
    eptransport::Transport<typename B::transport> &&
    eptransport::TransportView<decltype(host_view<B>(std::declval<typename B::transport&>())),
                               host_thread> &&
    requires(const world_request& request, report& out,
             const std::function<void(typename B::transport&)>& per_rank) {
      { B::seeds } -> std::convertible_to<std::uint64_t>;
      { B::patience_ns } -> std::convertible_to<std::uint64_t>;
      { B::one_process } -> std::convertible_to<bool>;
      { B::can_start_counters } -> std::convertible_to<bool>;
      { B::can_limit_queues } -> std::convertible_to<bool>;
      { B::can_break } -> std::convertible_to<bool>;
      B::run(request, per_rank, out);
    };

/// A byte that depends on all its arguments, never zero.
[[nodiscard]] EPT_HOST_DEVICE constexpr std::byte pattern(std::uint64_t a, std::uint64_t b,
                                                          std::uint64_t at) noexcept {
  const std::uint64_t mixed = (a * 0x9e3779b1U + b * 0x85ebca6bU + at * 0xc2b2ae35U) >> 7;
  return static_cast<std::byte>(mixed % 255 + 1);
}

/// Random numbers that every rank can compute alike.
class shared_random {
 public:
  explicit shared_random(std::uint64_t seed) : state_(seed * 0x2545f4914f6cdd1dU + 1) {}
  std::uint64_t below(std::uint64_t bound) {
    state_ = state_ * 6364136223846793005U + 1442695040888963407U;
    return (state_ >> 33) % bound;
  }

 private:
  std::uint64_t state_;
};

/// One rank's calls, each of which must succeed, and its checks.
template <Backend B>
class probe {
 public:
  using transport = typename B::transport;
  using view_type = decltype(host_view<B>(std::declval<transport&>()));

  /// Reads the first values of the words, then waits until all ranks have done so.
  probe(transport& t, report& out) : transport_(t), view_(host_view<B>(t)), out_(out) {
    for (std::uint32_t s = 0; s < t.signals(); ++s) base_.push_back(view_.read_signal(s));
    meet();
  }

  [[nodiscard]] const view_type& view() const { return view_; }
  [[nodiscard]] int rank() const { return view_.rank(); }
  [[nodiscard]] int size() const { return view_.size(); }
  [[nodiscard]] std::byte* at(std::uint64_t offset) const { return view_.local() + offset; }
  [[nodiscard]] std::uint64_t base(std::uint32_t signal) const { return base_[signal]; }
  [[nodiscard]] std::uint64_t soon() const { return view_.now_ns() + B::patience_ns; }

  void check(bool ok, const std::string& what) const {
    if (!ok) out_.add("rank " + std::to_string(rank()) + ": " + what);
  }

  void check_ok(op_status status, const std::string& what) const {
    const char* names[] = {"ok", "expired", "failed"};
    check(status == op_status::ok, what + " ended " + names[static_cast<int>(status)]);
  }

  void put(const eptransport::put_request& request, std::uint32_t channel = 0) const {
    check_ok(view_.put(host_thread(), channel, request, soon()), "put");
    view_.submit(host_thread(), channel);
  }

  void signal(int peer, std::uint32_t signal, std::uint32_t channel = 0) const {
    check_ok(view_.signal(host_thread(), channel, peer, signal, soon()), "signal");
    view_.submit(host_thread(), channel);
  }

  /// Waits until `count` puts have been counted since the start.
  void wait(std::uint32_t signal, std::uint64_t count) const {
    check_ok(view_.wait_signal(host_thread(), signal, base_[signal] + count, soon()),
             "wait for " + std::to_string(count) + " on word " + std::to_string(signal));
  }

  void flush(std::uint32_t channel = 0) const {
    check_ok(view_.flush(host_thread(), channel, soon()), "flush");
  }

  void meet() const {
    const auto met = transport_.barrier(B::patience_ns);
    check(met.has_value(), met ? "" : met.error().message());
  }

  /// The word counts exactly `count` since the start, now that everybody is done.
  void check_count(std::uint32_t signal, std::uint64_t count) const {
    const std::uint64_t seen = view_.read_signal(signal) - base_[signal];
    check(seen == count, "word " + std::to_string(signal) + " counts " + std::to_string(seen) +
                             ", not " + std::to_string(count));
  }

  /// Writes to `memory` of any rank's window.
  void store(std::byte* memory, std::uint64_t bytes, std::uint64_t a, std::uint64_t b) const {
    std::vector<std::byte> all(bytes);
    for (std::uint64_t i = 0; i < bytes; ++i) all[i] = pattern(a, b, i);
    const auto written = transport_.executor().write(memory, all.data(), bytes);
    check(written.has_value(), written ? "" : written.error().message());
  }
  void fill(std::uint64_t offset, std::uint64_t bytes, std::uint64_t a, std::uint64_t b) const {
    store(at(offset), bytes, a, b);
  }
  void clear(std::uint64_t offset, std::uint64_t bytes) const {
    const std::vector<std::byte> zeros(bytes);
    const auto written = transport_.executor().write(at(offset), zeros.data(), bytes);
    check(written.has_value(), written ? "" : written.error().message());
  }

  [[nodiscard]] std::vector<std::byte> bytes_at(std::uint64_t offset, std::uint64_t bytes) const {
    std::vector<std::byte> all(bytes);
    const auto read = transport_.executor().read(all.data(), at(offset), bytes);
    check(read.has_value(), read ? "" : read.error().message());
    return all;
  }
  void check_bytes(std::uint64_t offset, std::uint64_t bytes, std::uint64_t a,
                   std::uint64_t b) const {
    const std::vector<std::byte> all = bytes_at(offset, bytes);
    for (std::uint64_t i = 0; i < bytes; ++i) {
      if (all[i] == pattern(a, b, i)) continue;
      check(false, "byte " + std::to_string(i) + " of " + std::to_string(bytes) + " at " +
                       std::to_string(offset) + " from rank " + std::to_string(a) + " is wrong");
      return;
    }
  }

 private:
  transport& transport_;
  view_type view_;
  report& out_;
  std::vector<std::uint64_t> base_;
};

/// Runs `per_rank(probe)` in a fresh world.
template <Backend B, class Function>
void in_world(world_request request, report& out, const Function& per_rank) {
  if (request.ranks == 0) request.ranks = 3;
  B::run(
      request,
      [&](typename B::transport& t) {
        const probe<B> p(t, out);
        per_rank(p, t);
      },
      out);
}

/// Runs a case with seeds 1, 2, ... until one leaves findings.
/// @returns that seed, or 0
template <Backend B, class Case>
std::uint64_t first_failing_seed(const Case& run_case, report& out) {
  for (std::uint64_t seed = 1; seed <= B::seeds; ++seed) {
    world_request request;
    request.seed = seed;
    run_case(request, out);
    if (!out.empty()) return seed;
  }
  return 0;
}

}  // namespace conformance
