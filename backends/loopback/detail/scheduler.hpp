// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The baton: many threads, one of which runs at a time, chosen by the seed.
///
/// A thread is an *actor*: running (holds the baton), ready, blocked or gone. The baton changes
/// hands only inside the functions below, so that the order of all actors' acts is a function of
/// the seed. When nobody is ready, the choice is, in this order: deliver something that is in
/// flight; let the next thing happen that has a time (a held message, a deadline); give up. Under
/// `delivery::immediate` the ready actor whose rank is furthest behind in modelled time runs next,
/// and the seed breaks ties: the ledger then sees messages nearly in the order of time.
#pragma once

#include <eptransport/backends/loopback/detail/actor.hpp>
#include <eptransport/backends/loopback/detail/random.hpp>
#include <eptransport/core/config.hpp>
#include <eptransport/core/memory.hpp>
#include <eptransport/core/transport.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <vector>

namespace eptransport::loopback_detail {

/// @par Threads  Every function is called under the engine's lock.
class scheduler {
 public:
  using lock_type = std::unique_lock<std::mutex>;

  scheduler(world_of_actors& world, dice& random, trace& decisions, bool by_time)
      : world_(world), random_(random), trace_(decisions), by_time_(by_time) {}

  /// Makes one actor per rank and gives the baton to the first.
  void begin(int ranks) {
    actors_.clear();
    ready_ = {};
    by_rank_.assign(static_cast<std::size_t>(ranks), {});
    live_ = 0;
    for (int rank = 0; rank < ranks; ++rank) add(rank, 0);
    running_ = nullptr;
    pass_baton();
  }

  /// Null if that worker is no actor: a thread outside `run`.
  [[nodiscard]] actor* worker(int rank, std::uint32_t index) {
    if (live_ == 0) return nullptr;
    return by_rank_[static_cast<std::size_t>(rank)][index];
  }

  /// First act of a thread: waits until it is its turn.
  void attach(actor& self, lock_type& lock) {
    self.turn.wait(lock, [&] { return running_ == &self; });
  }

  /// Lets others run.
  void yield(actor& self, lock_type& lock) {
    make_ready(self);
    switch_from(self, lock);
  }

  /// Lets others run for a poller. Where the furthest behind runs next, the poller's clock follows
  /// the others, or it would be chosen again and again.
  void let_the_slowest_run(actor& self, lock_type& lock) {
    if (by_time_) self.clock->move_to(ready_.slowest_ns());
    yield(self, lock);
  }

  /// Sleeps until `wake`, or until the deadline (then `self.expired`).
  void block(actor& self, lock_type& lock) {
    self.state = actor::state_type::blocked;
    self.expired = false;
    switch_from(self, lock);
    self.why = blocked_on::nothing;
  }

  /// Last act of a thread that stays in no launch.
  void leave(actor& self) {
    self.state = actor::state_type::gone;
    --live_;
    if (self.worker != 0) {
      actor& parent = *worker(self.rank, 0);
      if (--parent.helpers == 0 && is_blocked(parent, blocked_on::helpers)) wake(parent);
    }
    meet_siblings(self);
    pass_baton();
  }

  /// Worker 0 is about to start `count` helper threads.
  void spawn(actor& parent, std::uint32_t count) {
    auto& siblings = by_rank_[static_cast<std::size_t>(parent.rank)];
    parent.helpers = count;
    for (std::uint32_t index = 1; index <= count; ++index) {
      if (index < siblings.size()) {
        make_ready(*siblings[index]);  // its thread of the last launch has been joined
        ++live_;
      } else {
        add(parent.rank, index);
      }
      siblings[index]->own_clock = *parent.clock;
    }
  }

  void join(actor& parent, lock_type& lock) {
    if (parent.helpers != 0) {
      parent.why = blocked_on::helpers;
      parent.deadline_ns = no_deadline;
      block(parent, lock);
    }
    for (const actor* each : by_rank_[static_cast<std::size_t>(parent.rank)]) {
      parent.clock->move_to(each->clock->ns);
    }
  }

  /// Siblings whose worker barrier is complete may go on: the running worker was its last. All
  /// their clocks meet. To be called before the running worker's clock is used again.
  void meet_siblings(actor& last) {
    const auto& siblings = by_rank_[static_cast<std::size_t>(last.rank)];
    const auto met = [](const actor& a) {
      // pairs with host_memory::fetch_add of the barrier
      return is_blocked(a, blocked_on::word) && host_memory::load_acquire(a.word) >= a.at_least;
    };
    double latest = last.clock->ns;
    for (const actor* each : siblings) {
      if (met(*each)) latest = std::max(latest, each->clock->ns);
    }
    for (actor* each : siblings) {
      if (!met(*each)) continue;
      last.clock->move_to(latest);
      each->clock->move_to(latest);
      wake(*each);
    }
  }

  /// The clock of the rank's worker that is furthest behind.
  [[nodiscard]] double earliest_clock(int rank) const {
    double earliest = world_.rank_clock(rank).ns;
    if (live_ == 0) return earliest;
    for (const actor* each : by_rank_[static_cast<std::size_t>(rank)]) {
      if (each->state != actor::state_type::gone) earliest = std::min(earliest, each->clock->ns);
    }
    return earliest;
  }

  /// A signal word of `rank` has a new value.
  void word_changed(int rank, const std::uint64_t* word) {
    if (by_rank_.empty()) return;
    for (actor* each : by_rank_[static_cast<std::size_t>(rank)]) {
      if (!is_blocked(*each, blocked_on::signal)) continue;
      if (each->word != word && each->also != word) continue;
      std::uint64_t value = host_memory::signal_acquire(each->word);
      if (each->also != nullptr) value += host_memory::signal_acquire(each->also);
      if (reached(value, each->at_least)) wake(*each);
    }
  }

  void room_in_queue(int rank, std::uint32_t channel) {
    if (by_rank_.empty()) return;
    for (actor* each : by_rank_[static_cast<std::size_t>(rank)]) {
      if (is_blocked(*each, blocked_on::room) && each->channel == channel) wake(*each);
    }
  }

  void wake_barrier() {
    for (auto& siblings : by_rank_) {
      for (actor* each : siblings) {
        if (is_blocked(*each, blocked_on::barrier)) wake(*each);
      }
    }
  }

  /// The transport of `rank` failed: nothing that depends on it is worth waiting for.
  void rank_failed(int rank) {
    if (by_rank_.empty()) return;
    for (actor* each : by_rank_[static_cast<std::size_t>(rank)]) {
      if (is_blocked(*each, blocked_on::signal) || is_blocked(*each, blocked_on::room) ||
          is_blocked(*each, blocked_on::barrier)) {
        wake(*each);
      }
    }
  }

  [[nodiscard]] bool nobody_ready() const noexcept { return ready_.empty(); }

  /// Ends waits whose deadline lies before `now_ns`; for actors that poll instead of waiting.
  void expire_before(std::uint64_t now_ns) {
    for (auto& each : actors_) {
      if (each->state == actor::state_type::blocked && each->deadline_ns < now_ns) expire(*each);
    }
  }

 private:
  static bool is_blocked(const actor& a, blocked_on why) noexcept {
    return a.state == actor::state_type::blocked && a.why == why;
  }

  void add(int rank, std::uint32_t index) {
    actors_.push_back(std::make_unique<actor>());
    actor& fresh = *actors_.back();
    fresh.rank = rank;
    fresh.worker = index;
    if (index == 0) fresh.clock = &world_.rank_clock(rank);
    by_rank_[static_cast<std::size_t>(rank)].push_back(&fresh);
    make_ready(fresh);
    ++live_;
  }

  void make_ready(actor& a) {
    a.state = actor::state_type::ready;
    ready_.add(a);
  }

  void wake(actor& a) { make_ready(a); }

  void expire(actor& a) {
    trace_.add(0x300000000U + static_cast<std::uint64_t>(a.rank));
    a.expired = true;
    a.clock->pass(a.deadline_ns);
    wake(a);
  }

  void switch_from(actor& self, lock_type& lock) {
    meet_siblings(self);
    pass_baton();
    self.turn.wait(lock, [&] { return running_ == &self; });
  }

  void pass_baton() {
    running_ = choose();
    if (running_ == nullptr) return;
    running_->state = actor::state_type::running;
    trace_.add(0x100000000U + static_cast<std::uint64_t>(running_->rank) * 64 + running_->worker);
    running_->turn.notify_one();
  }

  actor* choose() {
    while (ready_.empty()) {
      if (live_ == 0) return nullptr;
      if (world_.deliver_something()) continue;
      if (!let_time_pass()) give_up();
    }
    return by_time_ ? ready_.take_slowest(random_) : ready_.take_any(random_);
  }

  /// The next event that has a time: a held message arrives, or a deadline passes.
  bool let_time_pass() {
    actor* first = nullptr;
    for (auto& each : actors_) {
      if (each->state != actor::state_type::blocked || each->deadline_ns == no_deadline) continue;
      if (first == nullptr || each->deadline_ns < first->deadline_ns) first = each.get();
    }
    const std::uint64_t held = world_.next_held_ns();
    if (held != no_deadline && (first == nullptr || held <= first->deadline_ns)) {
      world_.release_held(held);
      return true;
    }
    if (first == nullptr) return false;
    expire(*first);
    return true;
  }

  /// Everybody waits without a deadline: fail the transports; if that frees nobody, there is no way
  /// on.
  void give_up() {
    world_.deadlock();
    if (!ready_.empty()) return;
    // check: printing the last words before an abort
    std::fputs("eptransport loopback: deadlock, every thread waits without a deadline\n", stderr);
    std::abort();
  }

  world_of_actors& world_;
  dice& random_;
  trace& trace_;
  bool by_time_;
  std::vector<std::unique_ptr<actor>> actors_;
  std::vector<std::vector<actor*>> by_rank_;  ///< [rank][worker]
  ready_list ready_;
  actor* running_ = nullptr;
  std::size_t live_ = 0;
};

}  // namespace eptransport::loopback_detail
