// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Where the host threads of one process's ranks meet.
#pragma once

#include <eptransport/core/config.hpp>
#include <eptransport/core/result.hpp>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

namespace eptransport {

/// A barrier that ends at a deadline and names who did not come. For set-up and teardown.
///
/// @par Threads  One per rank.
class rank_barrier {
 public:
  explicit rank_barrier(std::int32_t ranks)
      : here_(static_cast<std::size_t>(ranks), false), gave_up_(here_) {}
  rank_barrier(const rank_barrier&) = delete;
  rank_barrier& operator=(const rank_barrier&) = delete;

  /// Returns when all ranks have come.
  ///
  /// @param operation  string literal: whose barrier it is, for the error
  /// @par Errors       `timed_out` with the ranks that are missing; the caller has left then
  [[nodiscard]] result<void> meet(std::int32_t rank, std::uint64_t timeout_ns,
                                  const char* operation) {
    std::unique_lock lock(mutex_);
    const auto self = static_cast<std::size_t>(rank);
    here_[self] = true;
    gave_up_[self] = false;
    if (std::find(here_.begin(), here_.end(), false) == here_.end()) {
      ++rounds_;
      std::fill(here_.begin(), here_.end(), false);
      std::fill(gave_up_.begin(), gave_up_.end(), false);
      met_.notify_all();
      return {};
    }
    const std::uint64_t round = rounds_;
    const auto limit = std::chrono::nanoseconds(std::min(timeout_ns, longest));
    if (met_.wait_for(lock, limit, [&] { return rounds_ != round; })) return {};
    here_[self] = false;
    gave_up_[self] = true;
    std::string missing;
    for (std::size_t late = 0; late < here_.size(); ++late) {
      if (!here_[late] && !gave_up_[late]) missing += " " + std::to_string(late);
    }
    return failure{errc::timed_out, operation, "did not come: rank" + missing};
  }

 private:
  static constexpr std::uint64_t longest = 1'000'000'000'000'000;  // 11 days: no overflow

  std::mutex mutex_;
  std::condition_variable met_;
  std::vector<bool> here_;
  std::vector<bool> gave_up_;  ///< came and left at their deadline
  std::uint64_t rounds_ = 0;
};

}  // namespace eptransport
