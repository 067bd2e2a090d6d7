// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief A thread of the simulated world, as its scheduler sees it.
#pragma once

#include <eptransport/backends/loopback/detail/random.hpp>
#include <eptransport/backends/loopback/detail/timing.hpp>
#include <eptransport/core/config.hpp>
#include <eptransport/core/transport.hpp>

#include <algorithm>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace eptransport::loopback_detail {

/// What an actor waits for.
enum class blocked_on : std::uint8_t {
  nothing,
  signal,   ///< `*word` of its rank, written by deliveries
  room,     ///< a message of its rank and channel leaves the queue
  barrier,  ///< all ranks
  word,     ///< `*word` of its rank, written by its sibling workers
  helpers,  ///< the end of the helper threads that it started
};

struct actor {
  enum class state_type : std::uint8_t { ready, running, blocked, gone };

  int rank = 0;
  std::uint32_t worker = 0;
  state_type state = state_type::ready;
  blocked_on why = blocked_on::nothing;
  const std::uint64_t* word = nullptr;
  const std::uint64_t* also = nullptr;  ///< a second word that is added to the first, or null
  std::uint64_t at_least = 0;
  std::uint32_t channel = 0;
  std::uint64_t deadline_ns = no_deadline;
  bool expired = false;               ///< how the last `block` ended
  std::uint32_t helpers = 0;          ///< of worker 0: helper threads that have not left
  virtual_clock own_clock;            ///< of a helper thread
  virtual_clock* clock = &own_clock;  ///< the rank's, for worker 0
  std::condition_variable turn;       ///< its thread sleeps here
};

/// True when a counter that wraps has reached `at_least`.
[[nodiscard]] constexpr bool reached(std::uint64_t value, std::uint64_t at_least) noexcept {
  return static_cast<std::int64_t>(value - at_least) >= 0;
}

/// The actors that could run.
class ready_list {
 public:
  [[nodiscard]] bool empty() const noexcept { return list_.empty(); }
  void add(actor& a) { list_.push_back(&a); }

  [[nodiscard]] actor* take_any(dice& random) { return take(random.below(list_.size())); }

  /// The one that is furthest behind in modelled time; the dice break ties.
  [[nodiscard]] actor* take_slowest(dice& random) {
    std::size_t best = 0;
    std::uint64_t ties = 1;
    for (std::size_t at = 1; at < list_.size(); ++at) {
      const double mine = list_[at]->clock->ns;
      const double theirs = list_[best]->clock->ns;
      if (mine < theirs) ties = 0;
      if (mine < theirs || (mine <= theirs && random.below(ties + 1) == 0)) best = at;
      if (mine <= theirs) ++ties;
    }
    return take(best);
  }

  /// @pre not `empty()`
  [[nodiscard]] double slowest_ns() const {
    double slowest = list_.front()->clock->ns;
    for (const actor* each : list_) slowest = std::min(slowest, each->clock->ns);
    return slowest;
  }

 private:
  actor* take(std::size_t at) {
    actor* chosen = list_[at];
    list_[at] = list_.back();
    list_.pop_back();
    return chosen;
  }

  std::vector<actor*> list_;
};

/// What the scheduler needs from the simulated world when nobody is ready. Called under the lock.
class world_of_actors {
 public:
  virtual bool deliver_something() = 0;               ///< one step; false if nothing is in flight
  virtual std::uint64_t next_held_ns() const = 0;     ///< arrival of the next held message
  virtual void release_held(std::uint64_t upto) = 0;  ///< held messages become deliverable
  virtual virtual_clock& rank_clock(int rank) = 0;
  virtual void deadlock() = 0;  ///< fails every transport, which wakes the waits

 protected:
  ~world_of_actors() = default;
};

}  // namespace eptransport::loopback_detail
