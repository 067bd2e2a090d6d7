// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief A bootstrap among threads of one process: for tests of what is built on one.
#pragma once

#include <eptransport/core/result.hpp>
#include <eptransport/proxy/bootstrap/bootstrap.hpp>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace eptransport::support {

/// Where the threads meet.
struct meeting_room {
  explicit meeting_room(std::int32_t ranks) : given(static_cast<std::size_t>(ranks)) {
    for (std::int32_t r = 0; r < ranks; ++r) places.push_back({"here", "here", 0, r});
  }

  std::vector<rank_place> places;
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<std::vector<std::byte>> given;
  std::vector<std::int32_t> arrived;
  std::vector<std::vector<std::byte>> handed_out;
  std::uint64_t round = 0;
  std::string aborted;
};

/// One thread's seat. Two things differ from the interface, both for cases in which one rank fails
/// and the others must be left alone: a call that timed out may be made again, and an abort ends
/// calls, while `healthy` stays true.
class in_process_bootstrap : public bootstrap {
 public:
  in_process_bootstrap(meeting_room& room, std::int32_t rank) : room_(room), rank_(rank) {}

  [[nodiscard]] std::int32_t rank() const noexcept override { return rank_; }
  [[nodiscard]] std::int32_t size() const noexcept override {
    return static_cast<std::int32_t>(room_.places.size());
  }
  [[nodiscard]] const std::vector<rank_place>& places() const noexcept override {
    return room_.places;
  }
  [[nodiscard]] std::size_t max_bytes() const noexcept override { return 1 << 20; }

  [[nodiscard]] result<std::vector<std::vector<std::byte>>> all_gather(
      std::span<const std::byte> bytes, std::uint64_t timeout_ns) override {
    std::unique_lock lock(room_.mutex);
    room_.given[static_cast<std::size_t>(rank_)].assign(bytes.begin(), bytes.end());
    room_.arrived.push_back(rank_);
    const std::uint64_t round = room_.round;
    if (room_.arrived.size() == room_.given.size()) {
      room_.arrived.clear();
      room_.handed_out = room_.given;
      ++room_.round;
      room_.changed.notify_all();
      return room_.handed_out;
    }
    const bool done = room_.changed.wait_for(lock, std::chrono::nanoseconds(timeout_ns), [&] {
      return room_.round != round || !room_.aborted.empty();
    });
    if (room_.round != round) return room_.handed_out;
    std::erase(room_.arrived, rank_);
    if (done) return failure{errc::peer_stopped, "in_process_bootstrap", room_.aborted};
    std::vector<std::int32_t> missing;
    for (std::int32_t r = 0; r < size(); ++r) {
      if (r != rank_ &&
          std::find(room_.arrived.begin(), room_.arrived.end(), r) == room_.arrived.end()) {
        missing.push_back(r);
      }
    }
    return failure{errc::timed_out, "in_process_bootstrap", "did not come: " + name_ranks(missing)};
  }
  [[nodiscard]] result<void> barrier(std::uint64_t timeout_ns) override {
    const auto met = all_gather({}, timeout_ns);
    return met ? result<void>() : result<void>(met.error());
  }
  [[nodiscard]] result<std::vector<std::byte>> broadcast(std::int32_t root,
                                                         std::span<const std::byte> bytes,
                                                         std::uint64_t timeout_ns) override {
    auto all = all_gather(bytes, timeout_ns);
    if (!all) return all.error();
    return std::move((*all)[static_cast<std::size_t>(root)]);
  }
  void abort(std::string_view why) override {
    const std::lock_guard lock(room_.mutex);
    if (room_.aborted.empty()) {
      room_.aborted = "rank " + std::to_string(rank_) + " aborted: " + std::string(why);
    }
    room_.changed.notify_all();
  }
  [[nodiscard]] bool healthy() const noexcept override { return true; }
  [[nodiscard]] result<void> status() const override { return {}; }
  [[nodiscard]] std::vector<std::int32_t> lost() const override { return {}; }

 private:
  meeting_room& room_;
  std::int32_t rank_;
};

}  // namespace eptransport::support
