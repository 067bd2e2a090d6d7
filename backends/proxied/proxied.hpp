// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The proxied transport: puts go through command rings to engines, which post them.
///
/// Here all ranks live in one process, over an in-process wire (wires.hpp). Channel c has a ring of
/// its own and always uses comm c mod K; comm k of a rank talks to comm k of the others, with its
/// own engine, endpoint and signal words, so engines share nothing; a reader sums the K words.
#pragma once

#include <eptransport/backends/proxied/detail/rank_parts.hpp>
#include <eptransport/backends/proxied/detail/rank_state.hpp>
#include <eptransport/backends/proxied/options.hpp>
#include <eptransport/backends/proxied/view.hpp>
#include <eptransport/backends/proxied/wires.hpp>
#include <eptransport/core/baton.hpp>
#include <eptransport/core/config.hpp>
#include <eptransport/core/host_executor.hpp>
#include <eptransport/core/result.hpp>
#include <eptransport/core/transport.hpp>
#include <eptransport/proxy/driver.hpp>
#include <eptransport/proxy/engine.hpp>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace eptransport {

template <class Wire>
class proxied_world;

/// One rank; lives in its world.
///
/// @par Threads  One host thread at a time.
template <class Wire>
class proxied {
 public:
  using transport_concept = transport_tag;
  using view_type = proxied_view;
  using executor_type = host_executor;
  static constexpr capabilities caps = Wire::caps;

  proxied(proxied_world<Wire>& world, proxied_detail::rank_state& state, std::uint32_t workers)
      : world_(world), state_(state), executor_(workers, hooks()) {}
  proxied(const proxied&) = delete;
  proxied& operator=(const proxied&) = delete;

  [[nodiscard]] view_type view() const noexcept { return view_type(state_); }
  [[nodiscard]] executor_type& executor() noexcept { return executor_; }
  [[nodiscard]] std::span<std::byte> window() const noexcept {
    return {state_.memory.data(), state_.memory.bytes()};
  }
  [[nodiscard]] std::uint32_t signals() const noexcept { return state_.signals; }
  /// Names the ranks that did not come, when it times out.
  [[nodiscard]] result<void> barrier(std::uint64_t timeout_ns) {
    return world_.barrier(state_, timeout_ns);
  }
  [[nodiscard]] result<void> fault() const { return state_.fault.why(); }
  /// For views of other devices.
  [[nodiscard]] proxied_detail::rank_state& state() noexcept { return state_; }

 private:
  struct word_wish {
    const std::uint64_t* word;
    std::uint64_t at_least;
  };
  static proxied& from(void* context) noexcept { return *static_cast<proxied*>(context); }

  /// Makes the threads of a launch actors of the baton. Real threads need no hooks.
  [[nodiscard]] host_thread_hooks hooks() noexcept {
    if (state_.baton == nullptr) return {};
    host_thread_hooks out;
    out.context = this;
    out.spawn = [](void* c, std::uint32_t n) {
      from(c).helpers_ = n;
      from(c).first_helper_ = from(c).state_.baton->announce(n);
    };
    out.enter = [](void* c, std::uint32_t worker) {
      from(c).state_.baton->take(from(c).first_helper_ + worker - 1);
    };
    out.leave = [](void* c) { from(c).state_.baton->leave(); };
    out.join = [](void* c) {
      from(c).state_.baton->wait({[](void* p) {
                                    return from(p).state_.baton->finished(from(p).first_helper_,
                                                                          from(p).helpers_);
                                  },
                                  c},
                                 no_deadline);
    };
    out.relax.context = this;
    out.relax.function = [](void* c, const std::uint64_t* word, std::uint64_t at_least,
                            std::uint64_t deadline_ns) {
      word_wish wish{word, at_least};
      from(c).state_.baton->wait({[](void* p) {
                                    const auto* w = static_cast<word_wish*>(p);
                                    return host_memory::load_acquire(w->word) >= w->at_least;
                                  },
                                  &wish},
                                 deadline_ns);
    };
    return out;
  }

  proxied_world<Wire>& world_;
  proxied_detail::rank_state& state_;
  std::size_t first_helper_ = 0;
  std::size_t helpers_ = 0;
  executor_type executor_;  ///< last: its hooks use the rest
};

/// All ranks of one process, their engines, and what an observer sees of them.
///
/// @par Threads  `run` from one thread at a time; the observers also from inside it.
template <class Wire>
class proxied_world {
 public:
  using transport = proxied<Wire>;
  using engine_type = proxy::engine<typename Wire::endpoint_type>;

  /// @par Errors  `invalid_argument`, `unsupported` with both numbers, `out_of_memory`
  [[nodiscard]] static result<std::unique_ptr<proxied_world>> create(
      const proxied_options& options) {
    if (const result<void> checked = proxied_detail::check(options); !checked) {
      return checked.error();
    }
    if (!options.window.empty()) {
      return failure{
          errc::unsupported, "proxied_world::create",
          "a window of the caller needs ranks that stand alone; this world makes one for "
          "each of its ranks"};
    }
    std::unique_ptr<proxied_world> world(new proxied_world(options));
    if (const result<void> built = world->build(); !built) return built.error();
    return result<std::unique_ptr<proxied_world>>(std::move(world));
  }

  ~proxied_world() { drivers_.clear(); }
  proxied_world(const proxied_world&) = delete;
  proxied_world& operator=(const proxied_world&) = delete;

  [[nodiscard]] transport& rank(int index) { return *ranks_[static_cast<std::size_t>(index)]; }

  /// Calls `function` once per rank, each in a thread of its own, and joins them. Afterwards all
  /// that the ranks pushed is posted; what nobody waited for may still be on its way.
  void run(const std::function<void(transport&)>& function) {
    std::size_t first = 0;
    if (baton_ != nullptr) first = baton_->announce(ranks_.size());
    std::vector<std::thread> threads;
    for (std::size_t i = 0; i < ranks_.size(); ++i) {
      threads.emplace_back([&, i] {
        if (baton_ != nullptr) baton_->take(first + i);
        function(*ranks_[i]);
        if (baton_ != nullptr) baton_->leave();
      });
    }
    if (baton_ != nullptr) baton_->start();
    for (std::thread& t : threads) t.join();
    if (baton_ != nullptr) baton_->forget();
    for (auto& state : states_) (void)state->quiet();
  }

  /// Spends time on the clock, as a computation between two calls would. `baton` only.
  void advance(int, std::uint64_t ns) {
    if (baton_ != nullptr) baton_->advance(ns);
  }

  /// Commands that the rank's engines took for other ranks, once all that was pushed is posted.
  [[nodiscard]] std::uint64_t commands(int rank) {
    return sum(rank,
               [](const proxy::engine_statistics& s) { return s.commands.get() - s.local.get(); });
  }
  /// Writes, messages and returned credits that the rank's engines posted; likewise.
  [[nodiscard]] std::uint64_t messages(int rank) {
    return sum(rank, [](const proxy::engine_statistics& s) {
      return s.writes.get() + s.messages.get() + s.credit_writes.get();
    });
  }
  /// Bytes of them: payloads of writes, whole messages; likewise.
  [[nodiscard]] std::uint64_t bytes(int rank) {
    return sum(rank, [](const proxy::engine_statistics& s) { return s.bytes.get(); });
  }

  [[nodiscard]] const proxy::engine_statistics& statistics(int rank, std::uint32_t comm) const {
    return engines_[static_cast<std::size_t>(rank) * options_.comms + comm]->statistics();
  }
  /// What the engines made of what was 0 in the options.
  [[nodiscard]] const proxy::engine_options& engine_options() const {
    return engines_.front()->options();
  }
  /// Where each proxy thread may run, as the system says.
  [[nodiscard]] std::vector<std::string> affinity() const {
    std::vector<std::string> all;
    for (const auto& d : drivers_) all.push_back(d->affinity());
    return all;
  }
  [[nodiscard]] const Wire& wire() const noexcept { return *wire_; }

  /// Hash of every decision under `proxy_drive::baton`: the same options and functions give the
  /// same. 0 where threads drive: their decisions cannot be repeated.
  [[nodiscard]] std::uint64_t trace_hash() const {
    return baton_ != nullptr ? baton_->trace_hash() * 31 + wire_->trace_hash() : 0;
  }

  /// What went wrong without stopping anybody: damaged guard zones, forgotten arrivals.
  [[nodiscard]] std::string violations() const {
    std::string text;
    for (const auto& state : states_) {
      if (state->memory.intact()) continue;
      text += "rank " + std::to_string(state->rank) + ": the window's guard zone is damaged\n";
    }
    if (wire_->lost() != 0) {
      text += std::to_string(wire_->lost()) + " arrivals were lost in full completion queues\n";
    }
    return text;
  }

 private:
  friend transport;

  explicit proxied_world(const proxied_options& options) : options_(options) {
    for (int rank = 0;
         rank < options_.ranks && options_.nodes.size() < static_cast<std::size_t>(options_.ranks);
         ++rank) {
      options_.nodes.push_back(rank / 8);
    }
  }

  result<void> build() {
    std::vector<std::span<std::byte>> windows;
    for (int rank = 0; rank < options_.ranks; ++rank) {
      auto state = proxied_detail::make_state(rank, options_, Wire::caps.max_message);
      if (!state) return state.error();
      windows.emplace_back((*state)->memory.data(), (*state)->memory.bytes());
      states_.push_back(std::move(*state));
    }
    wire_ = std::make_unique<Wire>(windows, options_);
    for (const auto& state : states_) {
      for (std::uint32_t k = 0; k < options_.comms; ++k) {
        auto& endpoint = wire_->endpoint(static_cast<std::uint32_t>(state->rank), k);
        if (state->rank == options_.broken_rank) endpoint.break_now();
        auto made = proxied_detail::make_engine(*state, options_, k, endpoint, state->fault);
        if (!made) return made.error();
        engines_.push_back(std::move(*made));
      }
    }
    start();
    return {};
  }

  void start() {
    std::vector<proxy::driven> all;
    for (const auto& e : engines_) all.push_back(proxy::drive(*e));
    if (options_.drive == proxy_drive::baton) {
      std::vector<baton_agent> agents;
      for (const proxy::driven& one : all) agents.push_back({one.engine, one.step, one.watch});
      baton_ =
          std::make_unique<baton>(std::move(agents), options_.seed, options_.driver.stall_ns / 4);
    } else {
      drivers_ = proxied_detail::start_drivers(all, options_);
    }
    for (const auto& state : states_) {
      state->baton = baton_.get();
      ranks_.push_back(std::make_unique<transport>(*this, *state, options_.workers));
    }
  }

  template <class Value>
  std::uint64_t sum(int rank, const Value& value) {
    (void)states_[static_cast<std::size_t>(rank)]->quiet();
    std::uint64_t total = 0;
    for (std::uint32_t k = 0; k < options_.comms; ++k) total += value(statistics(rank, k));
    return total;
  }

  result<void> barrier(proxied_detail::rank_state& s, std::uint64_t timeout_ns) {
    std::uint64_t mine = 0;
    {
      const std::lock_guard lock(barrier_mutex_);
      if (s.fault.failed()) return s.fault.why();
      mine = barrier_generation_.load(std::memory_order_relaxed);  // under the lock
      arrived_.resize(states_.size());
      arrived_[static_cast<std::size_t>(s.rank)] = 1;
      if (std::count(arrived_.begin(), arrived_.end(), 1) == options_.ranks) {
        std::fill(arrived_.begin(), arrived_.end(), std::uint8_t{0});
        barrier_generation_.store(mine + 1, std::memory_order_release);
        return {};
      }
    }
    // Acquire, pairs with the store of the last to arrive.
    const auto passed = [&] { return barrier_generation_.load(std::memory_order_acquire) != mine; };
    const op_status met = s.wait(passed, s.now_ns() + timeout_ns);
    const std::lock_guard lock(barrier_mutex_);
    if (passed()) return {};
    std::string missing;
    for (std::size_t i = 0; i < arrived_.size(); ++i) {
      if (arrived_[i] == 0) missing += " " + std::to_string(i);
    }
    arrived_[static_cast<std::size_t>(s.rank)] = 0;
    if (met == op_status::failed) return s.fault.why();
    return failure{errc::timed_out, "barrier", "missing ranks:" + missing};
  }

  proxied_options options_;
  std::vector<std::unique_ptr<proxied_detail::rank_state>> states_;
  std::unique_ptr<Wire> wire_;
  std::vector<std::unique_ptr<engine_type>> engines_;
  std::unique_ptr<baton> baton_;
  std::vector<std::unique_ptr<transport>> ranks_;
  std::mutex barrier_mutex_;
  std::vector<std::uint8_t> arrived_;
  std::atomic<std::uint64_t> barrier_generation_ = 0;
  std::vector<std::unique_ptr<proxy::driver>> drivers_;  ///< last made, first stopped
};

static_assert(check_transport<proxied<memory_wire>>());
static_assert(check_transport<proxied<srd_wire>>());

}  // namespace eptransport
