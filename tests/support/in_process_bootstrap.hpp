// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief A bootstrap without a network: among threads of one process, or among processes that it
/// forked. For tests of what is built on one.
///
/// The room lies in anonymous shared memory, so that children see the same one. What a rank gives
/// in one round lies beside what it gives in the next: it comes to the round after that only when
/// all have taken what they came for.
#pragma once

#include <eptransport/core/result.hpp>
#include <eptransport/proxy/bootstrap/bootstrap.hpp>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <memory>
#include <new>
#include <pthread.h>
#include <span>
#include <string>
#include <string_view>
#include <sys/mman.h>
#include <utility>
#include <vector>

namespace eptransport::support {

/// Zeroed memory that forked children share with their parent.
template <class T>
class shared_array {
 public:
  explicit shared_array(std::size_t n) : n_(n) {
    void* const at = ::mmap(nullptr, n * sizeof(T), PROT_READ | PROT_WRITE,
                            MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED) throw std::bad_alloc();
    first_ = static_cast<T*>(at);
  }
  shared_array(const shared_array&) = delete;
  shared_array& operator=(const shared_array&) = delete;
  ~shared_array() { (void)::munmap(first_, n_ * sizeof(T)); }

  [[nodiscard]] T& operator[](std::size_t i) const { return first_[i]; }

 private:
  std::size_t n_;
  T* first_;
};

/// Where the ranks meet. Made before the threads or processes that sit in it.
class meeting_room {
 public:
  static constexpr std::size_t max_bytes = 1 << 16;  ///< of one rank in one round

  explicit meeting_room(std::int32_t ranks) : table_(1), given_(2 * std::size_t(ranks)) {
    for (std::int32_t r = 0; r < ranks; ++r) places.push_back({"here", "here", 0, r});
    pthread_mutexattr_t mutex;
    (void)::pthread_mutexattr_init(&mutex);
    (void)::pthread_mutexattr_setpshared(&mutex, PTHREAD_PROCESS_SHARED);
    (void)::pthread_mutex_init(&table().mutex, &mutex);
    pthread_condattr_t condition;
    (void)::pthread_condattr_init(&condition);
    (void)::pthread_condattr_setpshared(&condition, PTHREAD_PROCESS_SHARED);
    (void)::pthread_condattr_setclock(&condition, CLOCK_MONOTONIC);
    (void)::pthread_cond_init(&table().changed, &condition);
  }

  /// What all of them gave; `timed_out` names who did not come. See `in_process_bootstrap`.
  [[nodiscard]] result<std::vector<std::vector<std::byte>>> gather(std::int32_t rank,
                                                                   std::span<const std::byte> bytes,
                                                                   std::uint64_t timeout_ns) {
    if (bytes.size() > max_bytes) {
      return failure{errc::invalid_argument, "meeting_room",
                     std::to_string(bytes.size()) + " bytes, at most " + std::to_string(max_bytes)};
    }
    const timespec end = after(timeout_ns);
    const guard lock(*this);
    const std::uint64_t round = table().round;
    seat& mine = given(round, rank);
    mine.bytes = bytes.size();
    if (!bytes.empty()) std::memcpy(mine.data, bytes.data(), bytes.size());
    mine.round = round + 1;
    if (++table().arrived == places.size()) {
      table().arrived = 0;
      ++table().round;
      (void)::pthread_cond_broadcast(&table().changed);
      return taken(round);
    }
    int waited = 0;
    while (table().round == round && table().aborted[0] == '\0' && waited == 0) {
      waited = ::pthread_cond_timedwait(&table().changed, &table().mutex, &end);
    }
    if (table().round != round) return taken(round);
    mine.round = 0;
    --table().arrived;
    if (waited == 0) return failure{errc::peer_stopped, "in_process_bootstrap", table().aborted};
    std::vector<std::int32_t> missing;
    for (std::int32_t r = 0; r < std::ssize(places); ++r) {
      if (given(round, r).round != round + 1 && r != rank) missing.push_back(r);
    }
    return failure{errc::timed_out, "in_process_bootstrap", "did not come: " + name_ranks(missing)};
  }

  void abort(std::int32_t rank, std::string_view why) {
    const guard lock(*this);
    if (table().aborted[0] == '\0') {
      const std::string text = "rank " + std::to_string(rank) + " aborted: " + std::string(why);
      (void)text.copy(table().aborted, sizeof table().aborted - 1);
    }
    (void)::pthread_cond_broadcast(&table().changed);
  }

  /// Who ended the calls, and why; empty: nobody.
  [[nodiscard]] std::string aborted() {
    const guard lock(*this);
    return table().aborted;
  }

  std::vector<rank_place> places;

 private:
  struct head {
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    std::uint64_t round;
    std::uint64_t arrived;
    char aborted[4096];
  };
  struct seat {
    std::uint64_t round;  ///< in which it came, plus 1
    std::size_t bytes;
    std::byte data[max_bytes];
  };
  struct guard {
    explicit guard(meeting_room& it) : room(it) { (void)::pthread_mutex_lock(&room.table().mutex); }
    ~guard() { (void)::pthread_mutex_unlock(&room.table().mutex); }
    guard(const guard&) = delete;
    guard& operator=(const guard&) = delete;
    meeting_room& room;
  };

  [[nodiscard]] head& table() { return table_[0]; }
  [[nodiscard]] seat& given(std::uint64_t round, std::int32_t rank) {
    return given_[round % 2 * places.size() + static_cast<std::size_t>(rank)];
  }
  [[nodiscard]] std::vector<std::vector<std::byte>> taken(std::uint64_t round) {
    std::vector<std::vector<std::byte>> all;
    for (std::int32_t r = 0; r < std::ssize(places); ++r) {
      seat& s = given(round, r);
      all.emplace_back(s.data, s.data + s.bytes);
    }
    return all;
  }
  [[nodiscard]] static timespec after(std::uint64_t ns) {
    timespec end{};
    (void)::clock_gettime(CLOCK_MONOTONIC, &end);
    const std::uint64_t sum = static_cast<std::uint64_t>(end.tv_nsec) + ns;
    end.tv_sec += static_cast<time_t>(sum / 1'000'000'000);
    end.tv_nsec = static_cast<long>(sum % 1'000'000'000);
    return end;
  }

  shared_array<head> table_;
  shared_array<seat> given_;
};

/// One rank's seat. Two things differ from the interface, both for cases in which one rank fails
/// and the others must be left alone: a call that timed out may be made again, and an abort ends
/// calls, while `healthy` stays true. Nobody hears of a death.
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
  [[nodiscard]] std::size_t max_bytes() const noexcept override { return meeting_room::max_bytes; }

  [[nodiscard]] result<std::vector<std::vector<std::byte>>> all_gather(
      std::span<const std::byte> bytes, std::uint64_t timeout_ns) override {
    return room_.gather(rank_, bytes, timeout_ns);
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
  void abort(std::string_view why) override { room_.abort(rank_, why); }
  [[nodiscard]] bool healthy() const noexcept override { return true; }
  [[nodiscard]] result<void> status() const override { return {}; }
  [[nodiscard]] std::vector<std::int32_t> lost() const override { return {}; }

 private:
  meeting_room& room_;
  std::int32_t rank_;
};

}  // namespace eptransport::support
