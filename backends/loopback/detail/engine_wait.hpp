// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Waiting in the simulated world: signals, polls, flush. Included by engine.hpp.
#pragma once

#include <eptransport/backends/loopback/detail/engine.hpp>

namespace eptransport::loopback_detail {

/// Where the seed may land something and let somebody else run.
inline void engine::scheduling_point(lock_type& lock) {
  if (options_.order != delivery::shuffled || !lock.owns_lock()) return;
  if (!baton()) wire_.release_held(now_locked(0));
  if (random_.chance(eagerness_)) {
    for (std::uint64_t steps = 1 + random_.below(4); steps != 0 && wire_.step(); --steps) {
    }
  }
  actor* me = self();
  if (baton() && me != nullptr && random_.chance(preemption_)) scheduler_.yield(*me, lock);
}

/// Gives way until what is waited for may have happened. Returns early at will.
inline void engine::sleep(int rank, const wait_for& what, lock_type& lock) {
  if (!baton()) {
    if (lock.owns_lock()) {
      wire_.release_held(now_locked(rank));
      for (int steps = 0; steps < 4 && wire_.step(); ++steps) {
      }
      lock.unlock();
      host_memory::relax();
      lock.lock();
    } else {
      host_memory::relax();
    }
    return;
  }
  if (actor* me = self(); me != nullptr) {
    me->why = what.why;
    me->word = what.word;
    me->also = what.also;
    me->at_least = what.at_least;
    me->channel = what.channel;
    me->deadline_ns = what.deadline_ns;
    scheduler_.block(*me, lock);
    return;
  }
  if (what.why == blocked_on::word) {
    lock.unlock();
    host_memory::relax();
    lock.lock();
    return;
  }
  // A thread outside `run`: nobody else will act, so only the wire and the clock can.
  if (wire_.step()) return;
  const std::uint64_t held = wire_.next_held_ns();
  if (held != no_deadline && held <= what.deadline_ns) {
    wire_.release_held(held);
  } else if (what.deadline_ns == no_deadline) {
    deadlock();
  } else {
    timing_.clock(rank).pass(what.deadline_ns);
  }
}

/// `read_signal` saw nothing new. One look costs nothing. A second one at the same word, with only
/// looks in between, is a poll: others run; when nobody can, the poller's clock moves, in steps
/// that double, past held messages and other actors' deadlines.
inline void engine::poll_in_vain(int rank, std::uint32_t signal, lock_type& lock) {
  rank_state& own = state(rank);
  if (own.looked[signal] != own.streak) {
    own.looked[signal] = own.streak;
    return;
  }
  actor* me = self();
  if (me != nullptr && !scheduler_.nobody_ready()) {
    scheduler_.let_the_slowest_run(*me, lock);
    return;
  }
  if (wire_.step()) return;
  own.idle_step_ns = std::clamp(own.idle_step_ns * 2, 100.0, longest_poll_ns);
  clock(rank).ns += own.idle_step_ns;
  const std::uint64_t now = clock(rank).now_ns();
  wire_.release_held(now);
  if (me != nullptr) scheduler_.expire_before(now);
}

inline void engine::acquired(int rank, std::uint32_t signal, std::uint64_t value) {
  rank_state& own = state(rank);
  if (value != own.last_read[signal]) {
    ++own.streak;
    own.idle_step_ns = 0;
  }
  own.last_read[signal] = value;
  own.unread.acquired(signal, value);
}

inline op_status engine::wait_signal(int rank, std::uint32_t signal, std::uint64_t at_least,
                                     std::uint64_t deadline_ns, bool inner) {
  rank_state& own = state(rank);
  if (signal >= options_.signals) {
    const lock_type lock(mutex_);
    (void)admit(rank, 0, {.peer = rank, .signal = signal}, false);
    return op_status::failed;
  }
  signal = word_of(signal, inner);
  const std::uint64_t* word = &own.words[signal];
  lock_type lock = direct_ ? lock_type(mutex_, std::defer_lock) : begin_operation(rank);
  scheduling_point(lock);
  for (;;) {
    if (own.failed) return op_status::failed;
    const std::uint64_t value = host_memory::signal_acquire(word);  // pairs with signal_add
    if (reached(value, at_least)) {
      if (!baton()) return op_status::ok;
      const double when = own.arrived[signal].when(value, at_least);
      if (when > static_cast<double>(deadline_ns)) {
        clock(rank).pass(deadline_ns);
        return op_status::expired;
      }
      clock(rank).move_to(when);
      acquired(rank, signal, value);
      return op_status::ok;
    }
    if (now_locked(rank) > deadline_ns) return op_status::expired;
    sleep(
        rank,
        {.why = blocked_on::signal, .deadline_ns = deadline_ns, .word = word, .at_least = at_least},
        lock);
  }
}

inline op_status engine::wait_sum(int rank, std::uint32_t word, std::uint64_t at_least,
                                  std::uint64_t deadline_ns) {
  rank_state& own = state(rank);
  if (word >= options_.signals) {
    const lock_type lock(mutex_);
    (void)admit(rank, 0, {.peer = rank, .signal = word}, false);
    return op_status::failed;
  }
  const std::uint32_t other = word_of(word, true);
  const std::uint64_t* a = &own.words[word];
  const std::uint64_t* b = &own.words[other];
  lock_type lock = direct_ ? lock_type(mutex_, std::defer_lock) : begin_operation(rank);
  scheduling_point(lock);
  for (;;) {
    if (own.failed) return op_status::failed;
    const std::uint64_t first = host_memory::signal_acquire(a);  // pairs with signal_add
    const std::uint64_t second = host_memory::signal_acquire(b);
    if (reached(first + second, at_least)) {
      if (!baton()) return op_status::ok;
      const double when = own.arrived[word].when(first + second, at_least, &own.arrived[other]);
      if (when > static_cast<double>(deadline_ns)) {
        clock(rank).pass(deadline_ns);
        return op_status::expired;
      }
      clock(rank).move_to(when);
      acquired(rank, word, first);
      acquired(rank, other, second);
      return op_status::ok;
    }
    if (now_locked(rank) > deadline_ns) return op_status::expired;
    sleep(rank,
          {.why = blocked_on::signal,
           .deadline_ns = deadline_ns,
           .word = a,
           .at_least = at_least,
           .also = b},
          lock);
  }
}

inline std::uint64_t engine::read_signal(int rank, std::uint32_t signal, bool inner) {
  rank_state& own = state(rank);
  if (signal >= options_.signals) {
    const lock_type lock(mutex_);
    (void)admit(rank, 0, {.peer = rank, .signal = signal}, false);
    return 0;
  }
  signal = word_of(signal, inner);
  const std::uint64_t* word = &own.words[signal];
  if (direct_) return host_memory::signal_acquire(word);
  lock_type lock = begin_look();
  scheduling_point(lock);
  if (!baton()) {  // who polls instead of waiting must see the wire move as well
    wire_.release_held(now_locked(rank));
    wire_.step();
  }
  if (baton() && host_memory::signal_acquire(word) == own.last_read[signal]) {
    poll_in_vain(rank, signal, lock);
  }
  const std::uint64_t value = host_memory::signal_acquire(word);
  if (baton()) {
    clock(rank).move_to(own.arrived[signal].when(value, value));
    acquired(rank, signal, value);
  }
  return value;
}

inline op_status engine::flush(int rank, std::uint32_t channel) {
  if (state(rank).failed) return op_status::failed;
  if (direct_) return op_status::ok;
  lock_type lock = begin_operation(rank);
  wire_.flush(rank, channel);
  if (baton()) clock(rank).move_to(timing_.flushed(rank, channel));
  if (baton() && inner_) clock(rank).move_to(inner_timing_->flushed(rank, channel));
  scheduling_point(lock);
  return op_status::ok;
}

}  // namespace eptransport::loopback_detail

#include <eptransport/backends/loopback/detail/engine_world.hpp>
