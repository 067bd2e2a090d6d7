// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Modelled time: what the wire's charges make of the messages that were sent.
///
/// There is no event queue. Each rank has a clock, and each resource a time at which it is free:
///
///     rank clock -> issuer (issue_ns) -> link (bytes / rate) -> latency_ns -> receiver (arrive_ns)
///
/// A put starts at the latest of its rank's clock and its issuer's free time; the issuer is the
/// (rank, channel), or the rank's one proxy where the wire needs host progress. A wait moves the
/// waiter's clock to the arrival that made its word reach the value. Each worker has a clock; they
/// meet at the latest one in a worker barrier and at the end of a launch. What a rank sends to
/// itself costs nothing.
#pragma once

#include <eptransport/core/capabilities.hpp>
#include <eptransport/core/config.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <utility>
#include <vector>

namespace eptransport::loopback_detail {

/// The clock of one worker of one rank.
struct virtual_clock {
  double ns = 0;
  std::uint64_t at_least = 0;  ///< a deadline too large for a double's precision

  /// The clock as deadlines see it.
  [[nodiscard]] std::uint64_t now_ns() const noexcept {
    return std::max(static_cast<std::uint64_t>(ns), at_least);
  }

  void move_to(double later_ns) noexcept { ns = std::max(ns, later_ns); }

  /// Reads more than `deadline_ns` afterwards, whatever its size.
  void pass(std::uint64_t deadline_ns) noexcept {
    const std::uint64_t after = deadline_ns == ~std::uint64_t{0} ? deadline_ns : deadline_ns + 1;
    at_least = std::max(at_least, after);
    move_to(static_cast<double>(at_least));
  }
};

/// What the ledger must know of a world.
struct timing_shape {
  int ranks = 0;
  std::uint32_t channels = 1;
  std::uint32_t queue_depth = 0;
  bool host_progress = false;
  wire_charge charge;
};

/// One message, as the ledger sees it.
struct parcel {
  int rank = 0;
  std::uint32_t channel = 0;
  int peer = 0;
  std::uint64_t bytes = 0;
  double extra_ns = 0;  ///< added to the wire's latency
};

/// @par Units  nanoseconds since the world was made.
/// @par Threads  Under the engine's lock.
class timing {
 public:
  /// Assumed: a thread that posts to its own queue stores an entry and rings, and does not wait for
  /// the NIC. A proxied rank stores one ring command, which is counted with the proxy.
  static constexpr double post_ns = 20;

  timing(const timing_shape& shape, std::vector<int> nodes)
      : shape_(shape), nodes_(std::move(nodes)) {
    const auto ranks = static_cast<std::size_t>(shape.ranks);
    clocks_.resize(ranks);
    receiver_free_.assign(ranks, 0);
    stores_end_.assign(ranks, 0);
    lanes_.resize(ranks * shape.channels);
    proxy_free_.assign(ranks, 0);
    int last = 0;
    for (const int node : nodes_) last = std::max(last, node);
    node_free_.assign(static_cast<std::size_t>(last) + 1, 0);
  }

  /// The clock of the rank's worker 0, which outlives every launch.
  [[nodiscard]] virtual_clock& clock(int rank) noexcept { return at(clocks_, rank); }

  /// Charges one message, which leaves no earlier than `after_ns`, and returns its arrival.
  double send(const parcel& p, virtual_clock& now, double after_ns = 0) {
    if (p.rank == p.peer) return now.ns;
    const wire_charge& charge = shape_.charge;
    lane& own = lanes_[static_cast<std::size_t>(p.rank) * shape_.channels + p.channel];
    wait_for_slot(own, now);
    double& issuer = shape_.host_progress ? at(proxy_free_, p.rank) : own.issuer_free;
    issuer = std::max({now.ns, after_ns, issuer}) + charge.issue_ns;
    const double sent = transfer(p.rank, own, issuer, p.bytes);
    if (!shape_.host_progress) now.ns += std::min(post_ns, charge.issue_ns);
    if (shape_.queue_depth != 0) own.in_flight.push_back(sent + charge.latency_ns);
    double arrival = sent + charge.latency_ns + p.extra_ns;
    if (charge.arrive_ns > 0) {
      double& agent = at(receiver_free_, p.peer);
      agent = std::max(agent, arrival) + charge.arrive_ns;
      arrival = agent;
    }
    return arrival;
  }

  /// Charges loads and stores through a peer's address; later messages of the rank follow them.
  void store(int rank, std::uint64_t bytes, const virtual_clock& now) {
    lane& own = lanes_[static_cast<std::size_t>(rank) * shape_.channels];
    at(stores_end_, rank) = transfer(rank, own, now.ns, bytes);
  }

  /// When the rank's last store or load through a peer's address is over.
  [[nodiscard]] double stores_end(int rank) const noexcept { return at(stores_end_, rank); }

  /// When the sources of the channel's messages have been read.
  [[nodiscard]] double flushed(int rank, std::uint32_t channel) const noexcept {
    return lanes_[static_cast<std::size_t>(rank) * shape_.channels + channel].link_free;
  }

  /// All ranks meet at the latest clock.
  void meet() {
    double latest = 0;
    for (const virtual_clock& c : clocks_) latest = std::max(latest, c.ns);
    for (virtual_clock& c : clocks_) c.ns = latest;
  }

  /// Nothing that was sent before `now` delays anything.
  void idle(double now) {
    for (double& free : receiver_free_) free = std::min(free, now);
    for (double& free : stores_end_) free = std::min(free, now);
    for (double& free : proxy_free_) free = std::min(free, now);
    for (double& free : node_free_) free = std::min(free, now);
    for (lane& each : lanes_) {
      each.issuer_free = std::min(each.issuer_free, now);
      each.link_free = std::min(each.link_free, now);
      each.in_flight.clear();
    }
  }

 private:
  /// One (rank, channel).
  struct lane {
    double issuer_free = 0;
    double link_free = 0;
    std::deque<double> in_flight;  ///< when each message's queue slot is free again
  };

  template <class T>
  [[nodiscard]] static T& at(std::vector<T>& list, int rank) noexcept {
    return list[static_cast<std::size_t>(rank)];
  }
  template <class T>
  [[nodiscard]] static const T& at(const std::vector<T>& list, int rank) noexcept {
    return list[static_cast<std::size_t>(rank)];
  }

  void wait_for_slot(lane& own, virtual_clock& now) {
    if (shape_.queue_depth == 0) return;
    while (own.in_flight.size() >= shape_.queue_depth) {
      now.move_to(own.in_flight.front());
      own.in_flight.pop_front();
    }
  }

  /// @returns when the last byte has left, over the channel's and the node's
  /// link
  double transfer(int rank, lane& own, double ready, std::uint64_t bytes) {
    const auto amount = static_cast<double>(bytes);
    const double channel_rate = shape_.charge.channel_bytes_per_s;
    const double node_rate = shape_.charge.node_bytes_per_s;
    const double start = std::max(ready, own.link_free);
    double end = std::max(start, at(stores_end_, rank));
    if (channel_rate > 0) end = std::max(end, start + amount * 1e9 / channel_rate);
    own.link_free = end;
    if (node_rate > 0) {
      double& shared = at(node_free_, at(nodes_, rank));
      shared = std::max(shared, start) + amount * 1e9 / node_rate;
      end = std::max(end, shared);
    }
    return end;
  }

  timing_shape shape_;
  std::vector<int> nodes_;
  std::vector<virtual_clock> clocks_;  ///< [rank]
  std::vector<double> receiver_free_;  ///< [rank]
  std::vector<double> stores_end_;     ///< [rank]
  std::vector<double> proxy_free_;     ///< [rank]
  std::vector<double> node_free_;      ///< [node]
  std::vector<lane> lanes_;            ///< [rank][channel]
};

/// The arrivals counted in one signal word that its owner has not lived through yet.
class arrivals {
 public:
  /// A message arrived; the word is `value` now.
  void add(double at_ns, double owner_clock) {
    if (at_ns > owner_clock) later_.push_back(at_ns);
    if (later_.size() >= prune_at) {
      std::erase_if(later_, [&](double t) { return t <= owner_clock; });
      prune_at = std::max<std::size_t>(64, later_.size() * 2);
    }
  }

  /// When the word, now `value`, reached `at_least`; 0 if the owner's clock is past that. With
  /// `other`, `value` and `at_least` are of the sum of two words.
  [[nodiscard]] double when(std::uint64_t value, std::uint64_t at_least,
                            const arrivals* other = nullptr) {
    if (other == nullptr) return nth_of(later_, value, at_least);
    std::vector<double> both = later_;
    both.insert(both.end(), other->later_.begin(), other->later_.end());
    return nth_of(both, value, at_least);
  }

 private:
  [[nodiscard]] static double nth_of(std::vector<double>& later, std::uint64_t value,
                                     std::uint64_t at_least) {
    const std::uint64_t lived = value - later.size();
    const auto need = static_cast<std::int64_t>(at_least - lived);
    if (need <= 0 || later.empty()) return 0;
    const auto nth = later.begin() + std::min<std::ptrdiff_t>(
                                         need - 1, static_cast<std::ptrdiff_t>(later.size()) - 1);
    std::nth_element(later.begin(), nth, later.end());
    return *nth;
  }

  std::vector<double> later_;
  std::size_t prune_at = 64;
};

}  // namespace eptransport::loopback_detail
