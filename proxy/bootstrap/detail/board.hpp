// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Where the bootstrap's own thread leaves what callers wait for: results, causes, the dead.
#pragma once

#include <eptransport/core/config.hpp>
#include <eptransport/core/result.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

namespace eptransport::bootstrap_detail {

using clock = std::chrono::steady_clock;

[[nodiscard]] inline clock::time_point after(std::uint64_t timeout_ns) {
  constexpr std::uint64_t longest = 1'000'000'000'000'000;  // 11 days: no overflow
  return clock::now() + std::chrono::nanoseconds(std::min(timeout_ns, longest));
}

/// Any thread.
class board {
 public:
  using parts = std::vector<std::vector<std::byte>>;

  /// The first cause stays.
  void fail(failure why) {
    {
      const std::lock_guard lock(mutex_);
      if (failed_) return;
      failed_ = std::move(why);
      // Pairs with the acquire in healthy(): who reads false finds the cause.
      healthy_.store(false, std::memory_order_release);
    }
    changed_.notify_all();
  }
  void lose(std::int32_t rank) {
    const std::lock_guard lock(mutex_);
    const auto at = std::lower_bound(lost_.begin(), lost_.end(), rank);
    if (at == lost_.end() || *at != rank) lost_.insert(at, rank);
  }
  /// Calls can no longer complete, though nothing is wrong.
  void end_calls(failure why) {
    {
      const std::lock_guard lock(mutex_);
      if (!ended_) ended_ = std::move(why);
    }
    changed_.notify_all();
  }
  void deliver(std::uint32_t call, parts of_rank) {
    {
      const std::lock_guard lock(mutex_);
      delivered_ = call;
      parts_ = std::move(of_rank);
    }
    changed_.notify_all();
  }

  /// Waits for a call's parts; nullopt at the deadline.
  [[nodiscard]] std::optional<result<parts>> await(std::uint32_t call, clock::time_point end) {
    std::unique_lock lock(mutex_);
    const bool over = changed_.wait_until(
        lock, end, [&] { return failed_ || delivered_ == call || ended_.has_value(); });
    if (!over) return std::nullopt;
    // What has completed on this rank has completed, whatever came afterwards.
    if (delivered_ == call) return result<parts>(std::exchange(parts_, {}));
    if (failed_) return result<parts>(*failed_);
    return result<parts>(*ended_);
  }

  [[nodiscard]] bool healthy() const noexcept {
    return healthy_.load(std::memory_order_acquire);  // pairs with the release in fail()
  }
  [[nodiscard]] result<void> status() const {
    const std::lock_guard lock(mutex_);
    return failed_ ? result<void>(*failed_) : result<void>();
  }
  [[nodiscard]] std::vector<std::int32_t> lost() const {
    const std::lock_guard lock(mutex_);
    return lost_;
  }

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::atomic<bool> healthy_{true};
  std::optional<failure> failed_;
  std::optional<failure> ended_;
  std::vector<std::int32_t> lost_;
  std::uint32_t delivered_ = 0;  ///< number of the last call whose parts came
  parts parts_;
};

}  // namespace eptransport::bootstrap_detail
