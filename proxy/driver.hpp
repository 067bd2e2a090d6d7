// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The proxy thread: steps one engine or several, backs off when idle, watches for stalls.
#pragma once

#include <eptransport/core/config.hpp>
#include <eptransport/core/result.hpp>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#if defined(__linux__)
#include <pthread.h>
#include <sched.h>
#endif

namespace eptransport::proxy {

/// How a thread whose engines have nothing to do goes quiet: so many empty rounds of each kind,
/// then the next kind. A zero skips a stage.
struct idle_policy {
  std::uint32_t spins = 1000;     ///< nothing between rounds
  std::uint32_t pauses = 10000;   ///< a pause instruction between rounds
  std::uint32_t yields = 100000;  ///< another thread may run
  std::uint64_t nap_ns = 0;       ///< from then on; 0 = it goes on yielding
};

/// For machines with fewer cores than threads, and for tests.
inline constexpr idle_policy polite{.spins = 0, .pauses = 0, .yields = 200, .nap_ns = 50'000};

/// Of a proxy thread.
struct driver_options {
  idle_policy idle{};
  std::vector<int> cpus{};  ///< pins the thread to these; empty: it runs where the system likes
  std::uint64_t stall_ns = 10'000'000'000;  ///< what does not move for that long is a failure
};

/// Tells the processor that this is a spin.
inline void pause_cpu() noexcept {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#else
  std::this_thread::yield();
#endif
}

/// What to drive, without its type. The pointers outlive the driver.
struct driven {
  void* engine = nullptr;
  bool (*step)(void*) = nullptr;
  void (*watch)(void*) = nullptr;
  void (*napped)(void*) = nullptr;
};

/// Any engine as `driven`.
template <class Engine>
[[nodiscard]] driven drive(Engine& engine) noexcept {
  return {&engine, [](void* e) { return static_cast<Engine*>(e)->step(); },
          [](void* e) { static_cast<Engine*>(e)->watch(); },
          [](void* e) { static_cast<Engine*>(e)->statistics().naps.add(1); }};
}

/// A thread that drives engines until it is destroyed.
///
/// @par Threads  `affinity` from any; the rest from the owner's.
class driver {
 public:
  driver(std::vector<driven> engines, driver_options options)
      : engines_(std::move(engines)), options_(std::move(options)), thread_([this] { run(); }) {
    // Only then does `affinity` say where the thread really runs.
    while (!started_.load(std::memory_order_acquire)) std::this_thread::yield();
  }
  /// Waits for the thread, however long it stays in an engine; see `stop_until`.
  ~driver() {
    request_stop();
    if (thread_.joinable()) thread_.join();
    while (!ended_.load(std::memory_order_acquire)) std::this_thread::yield();
  }
  driver(const driver&) = delete;
  driver& operator=(const driver&) = delete;

  /// Asks the thread to end as soon as it is back from an engine.
  void request_stop() noexcept { stop_.store(true, std::memory_order_relaxed); }
  /// Ends the thread. False if it has not come back from an engine by then: it is on its own from
  /// now on, ends when it does, and until then needs the driver and all that it drives.
  [[nodiscard]] bool stop_until(std::chrono::steady_clock::time_point end) {
    using clock = std::chrono::steady_clock;
    request_stop();
    // Acquire, pairs with the release at the thread's end.
    while (!ended_.load(std::memory_order_acquire)) {
      if (clock::now() > end) {
        if (thread_.joinable()) thread_.detach();
        return false;
      }
      std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
    if (thread_.joinable()) thread_.join();
    return true;
  }

  /// The CPUs that the thread may use, as the system reports them, like "0-3,8"; "unknown" where it
  /// does not. A pinning that the system refused shows here.
  [[nodiscard]] const std::string& affinity() const noexcept { return affinity_; }

 private:
  void run() {
    pin();
    started_.store(true, std::memory_order_release);
    using clock = std::chrono::steady_clock;
    // Four looks at the same thing are a failure: it comes after 0.75 to 1.25 of the limit.
    const auto between = std::chrono::nanoseconds(options_.stall_ns / 4);
    auto next_watch = clock::now() + between;
    std::uint64_t empty = 0;
    for (std::uint32_t round = 0; !stop_.load(std::memory_order_relaxed); ++round) {
      bool moved = false;
      for (const driven& e : engines_) moved = e.step(e.engine) || moved;
      empty = moved ? 0 : empty + 1;
      if (empty != 0) rest(empty);
      if ((round & 1023U) != 0 && empty < quiet()) continue;
      if (clock::now() < next_watch) continue;
      for (const driven& e : engines_) e.watch(e.engine);
      next_watch = clock::now() + between;
    }
    ended_.store(true, std::memory_order_release);
  }

  /// Empty rounds after which the thread does not burn its CPU any more.
  [[nodiscard]] std::uint64_t quiet() const noexcept {
    return std::uint64_t{options_.idle.spins} + options_.idle.pauses;
  }

  void rest(std::uint64_t empty) {
    const idle_policy& idle = options_.idle;
    if (empty <= idle.spins) return;
    if (empty <= quiet()) return pause_cpu();
    if (idle.nap_ns == 0 || empty <= quiet() + idle.yields) return std::this_thread::yield();
    for (const driven& e : engines_) e.napped(e.engine);
    std::this_thread::sleep_for(std::chrono::nanoseconds(idle.nap_ns));
  }

  void pin() {
    affinity_ = "unknown";
#if defined(__linux__)
    cpu_set_t set;
    if (!options_.cpus.empty()) {
      CPU_ZERO(&set);
      for (const int cpu : options_.cpus) {
        if (cpu >= 0 && cpu < CPU_SETSIZE) CPU_SET(static_cast<std::size_t>(cpu), &set);
      }
      (void)pthread_setaffinity_np(pthread_self(), sizeof set, &set);
    }
    CPU_ZERO(&set);
    if (pthread_getaffinity_np(pthread_self(), sizeof set, &set) != 0) return;
    affinity_.clear();
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
      if (!CPU_ISSET(static_cast<std::size_t>(cpu), &set)) continue;
      int last = cpu;
      while (last + 1 < CPU_SETSIZE && CPU_ISSET(static_cast<std::size_t>(last + 1), &set)) ++last;
      affinity_ += (affinity_.empty() ? "" : ",") + std::to_string(cpu) +
                   (last > cpu ? "-" + std::to_string(last) : "");
      cpu = last;
    }
#endif
  }

  std::vector<driven> engines_;
  driver_options options_;
  std::string affinity_;
  std::atomic<bool> started_ = false;
  std::atomic<bool> stop_ = false;
  std::atomic<bool> ended_ = false;
  std::thread thread_;  ///< last: it uses all of the above
};

}  // namespace eptransport::proxy
