// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The baton: ranks run one at a time, and whoever waits steps the agents that serve them
/// (proxy engines, emulated devices).
///
/// All decisions come from the seed and are made by the thread that holds the baton, so the same
/// seed and the same functions give the same run. The clock is virtual: it moves a little with
/// every decision, and jumps to the next deadline when nothing else can happen.
#pragma once

#include <eptransport/core/config.hpp>

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace eptransport {

/// What a thread waits for: `ready(context)`, which may take the world's locks.
struct baton_condition {
  bool (*ready)(void*) = nullptr;
  void* context = nullptr;
};

/// Something that works for the ranks, a little at a time.
struct baton_agent {
  void* self = nullptr;
  bool (*step)(void*) = nullptr;   ///< does a little; false if there was nothing to do
  void (*watch)(void*) = nullptr;  ///< called now and then on the virtual clock; may be null
};

/// The baton of one world, which decides whose turn it is.
///
/// @par Threads  `wait` and `pass_*` from the thread that holds the baton, or from a thread that is
///               no actor while no actor runs; `take` from a new actor's thread.
class baton {
 public:
  /// @param watch_ns  how often agents are watched
  baton(std::vector<baton_agent> agents, std::uint64_t seed, std::uint64_t watch_ns)
      : agents_(std::move(agents)),
        random_(seed * 0x9e3779b97f4a7c15U + 77),
        watch_every_(watch_ns),
        next_watch_(watch_every_) {}

  [[nodiscard]] std::uint64_t now_ns() const noexcept { return now_; }
  void advance(std::uint64_t ns) noexcept { now_ += ns; }
  [[nodiscard]] std::uint64_t trace_hash() const noexcept { return trace_; }

  /// Announces threads; each calls `take` with its number. @returns the first number
  std::size_t announce(std::size_t count) {
    const std::lock_guard lock(mutex_);
    const std::size_t first = actors_.size();
    for (std::size_t i = 0; i < count; ++i) actors_.push_back(std::make_unique<actor>());
    return first;
  }

  /// First act of an announced thread: returns when it is its turn.
  void take(std::size_t number) {
    std::unique_lock lock(mutex_);
    self() = number;
    actor& me = *actors_[number];
    me.turn.wait(lock, [&] { return me.running; });
  }

  /// Starts the first of the announced threads; called by a thread that is none of them.
  void start() {
    const std::unique_lock lock(mutex_);
    hand_over(choose());
  }

  /// Last act of an announced thread.
  void leave() {
    const std::unique_lock lock(mutex_);
    actor& me = *actors_[self()];
    me.finished = true;
    me.running = false;
    ++finished_;
    self() = nobody;
    if (finished_ < actors_.size()) hand_over(choose());
  }

  /// All actors have left; their numbers are used again.
  void forget() {
    const std::lock_guard lock(mutex_);
    actors_.clear();
    finished_ = 0;
  }

  [[nodiscard]] bool finished(std::size_t first, std::size_t count) const {
    for (std::size_t i = first; i < first + count; ++i) {
      if (!actors_[i]->finished) return false;
    }
    return true;
  }

  /// Others run, until the condition holds or the clock has passed the deadline.
  void wait(baton_condition what, std::uint64_t deadline_ns) {
    std::unique_lock lock(mutex_);
    if (self() == nobody) {
      outsider_ = {what, deadline_ns, true};
      while (!due(outsider_)) progress();
      outsider_.waiting = false;
      return;
    }
    actor& me = *actors_[self()];
    me.what = {what, deadline_ns, true};
    const std::size_t next = choose();
    if (next == self()) return;
    me.running = false;
    hand_over(next);
    me.turn.wait(lock, [&] { return me.running; });
  }

 private:
  static constexpr std::size_t nobody = ~std::size_t{0};
  static constexpr std::uint64_t decision_ns = 20;
  static constexpr int quiet_rounds = 400;  ///< of all agents, before the clock jumps

  struct wish {
    baton_condition what{};
    std::uint64_t deadline_ns = 0;
    bool waiting = false;
  };
  struct actor {
    std::condition_variable turn;
    bool running = false;
    bool finished = false;
    wish what{};
  };

  /// Which actor the calling thread is, in its world; a thread belongs to one world at a time.
  static std::size_t& self() noexcept {
    thread_local std::size_t number = nobody;
    return number;
  }

  std::uint64_t below(std::uint64_t bound) noexcept {
    random_ = random_ * 6364136223846793005U + 1442695040888963407U;
    const std::uint64_t value = (random_ >> 33) % bound;
    trace_ = (trace_ ^ value) * 0x100000001b3U;
    return value;
  }

  [[nodiscard]] bool due(const wish& w) const {
    return !w.waiting || w.what.ready(w.what.context) || now_ > w.deadline_ns;
  }

  void hand_over(std::size_t next) {
    actor& chosen = *actors_[next];
    chosen.what.waiting = false;
    chosen.running = true;
    chosen.turn.notify_one();
  }

  /// The actor that goes on; steps agents until there is one.
  std::size_t choose() {
    // Agents get a few turns even when somebody could go on at once.
    for (std::uint64_t n = below(4); n > 0; --n) progress();
    for (;;) {
      const std::size_t first = below(actors_.size());
      for (std::size_t i = 0; i < actors_.size(); ++i) {
        const std::size_t at = (first + i) % actors_.size();
        if (actors_[at]->finished || !due(actors_[at]->what)) continue;
        actors_[at]->what.waiting = false;
        return at;
      }
      progress();
    }
  }

  /// Steps some agent; when all have been quiet for long, the clock jumps.
  void progress() {
    now_ += decision_ns;
    if (agents_.empty()) return jump();
    const baton_agent& a = agents_[below(agents_.size())];
    if (a.step(a.self)) {
      quiet_ = 0;
    } else if (++quiet_ > quiet_rounds * agents_.size()) {
      quiet_ = 0;
      jump();
    }
    if (now_ < next_watch_) return;
    next_watch_ = now_ + watch_every_;
    for (const baton_agent& one : agents_) {
      if (one.watch != nullptr) one.watch(one.self);
    }
  }

  void jump() {
    std::uint64_t next = next_watch_;
    const auto look = [&next](const wish& w) {
      if (w.waiting && w.deadline_ns < next) next = w.deadline_ns;
    };
    look(outsider_);
    for (const auto& one : actors_) {
      if (!one->finished) look(one->what);
    }
    if (next >= now_) now_ = next + 1;
  }

  std::vector<baton_agent> agents_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<actor>> actors_;
  wish outsider_{};
  std::size_t finished_ = 0;
  std::uint64_t random_;
  std::uint64_t trace_ = 0xcbf29ce484222325U;
  std::uint64_t now_ = 0;
  std::uint64_t quiet_ = 0;
  std::uint64_t watch_every_;
  std::uint64_t next_watch_;
};

}  // namespace eptransport
