// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief A calendar of events: constant time per event while most lie within one turn.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <tuple>
#include <vector>

namespace eptransport::model {

/// What happens. Which fields mean what depends on the kind.
struct event {
  double ns = 0;
  std::uint32_t rank = 0;  ///< where
  std::uint32_t peer = 0;  ///< from whom
  float bytes = 0;
  std::uint8_t kind = 0;
  std::uint8_t lane = 0;    ///< comm or NIC
  std::uint16_t phase = 0;  ///< calls since the start

  /// A total order: equal keys are equal events.
  friend bool operator<(const event& a, const event& b) {
    return std::tie(a.ns, a.kind, a.rank, a.peer, a.phase, a.lane, a.bytes) <
           std::tie(b.ns, b.kind, b.rank, b.peer, b.phase, b.lane, b.bytes);
  }
};

/// Events in order of time. A bucket is sorted only when its time comes.
///
/// @pre  nothing is pushed before the time of what was popped last
class event_queue {
 public:
  /// @param width_ns  of a bucket; any positive value is correct, one with some events is fast
  explicit event_queue(double width_ns) : width_(width_ns), buckets_(bucket_count) {}

  void push(const event& e) {
    ++size_;
    const std::uint64_t at = bucket_of(e.ns);
    if (at <= now_) {
      current_.push_back(e);
      std::push_heap(current_.begin(), current_.end(), later);
    } else if (at - now_ < bucket_count) {
      buckets_[at % bucket_count].push_back(e);
    } else {
      far_.push_back(e);
      std::push_heap(far_.begin(), far_.end(), later);
    }
  }

  [[nodiscard]] bool empty() const { return size_ == 0; }

  /// @pre not empty
  event pop() {
    while (current_.empty()) advance();
    std::pop_heap(current_.begin(), current_.end(), later);
    const event e = current_.back();
    current_.pop_back();
    --size_;
    return e;
  }

 private:
  static constexpr std::uint64_t bucket_count = 1 << 14;

  static bool later(const event& a, const event& b) { return b < a; }

  [[nodiscard]] std::uint64_t bucket_of(double ns) const {
    return static_cast<std::uint64_t>(ns / width_);
  }

  /// Moves on to the next bucket, or to the next far event when no bucket has any.
  void advance() {
    if (size_ == far_.size()) {
      now_ = bucket_of(far_.front().ns);
    } else {
      ++now_;
    }
    current_.swap(buckets_[now_ % bucket_count]);
    while (!far_.empty() && bucket_of(far_.front().ns) < now_ + bucket_count) {
      std::pop_heap(far_.begin(), far_.end(), later);
      const event e = far_.back();
      far_.pop_back();
      const std::uint64_t at = bucket_of(e.ns);
      (at <= now_ ? current_ : buckets_[at % bucket_count]).push_back(e);
    }
    std::make_heap(current_.begin(), current_.end(), later);
  }

  double width_;
  std::uint64_t now_ = 0;
  std::size_t size_ = 0;
  std::vector<event> current_;  // heap: the bucket of now
  std::vector<std::vector<event>> buckets_;
  std::vector<event> far_;  // heap
};

}  // namespace eptransport::model
