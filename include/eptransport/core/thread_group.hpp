// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Thread groups and workers: the policy that lets one kernel source run on CPU and GPU.
#pragma once

#include <eptransport/core/config.hpp>
#include <eptransport/core/memory.hpp>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace eptransport {

/// Where one row goes, a few places at a time.
struct fan {
  static constexpr int most = 8;

  EPT_HOST_DEVICE void add(std::byte* place) noexcept { to[count++] = place; }

  int count = 0;
  std::byte* to[most];
};

/// A set of threads that enter every function below together (a warp, a block, one host thread).
///
/// | expression                 | meaning                                                       |
/// |----------------------------|---------------------------------------------------------------|
/// | `g.thread()`, `g.threads()`| index of the calling thread, and how many there are           |
/// | `g.sync()`                 | all threads arrive; writes before it are visible after it     |
/// | `g.any(b)`                 | true for all threads if it is true for one                    |
/// | `g.sum(v)`                 | sum over the threads, returned to all                         |
/// | `g.prefix(v)`              | sum over the threads below the caller                         |
/// | `g.first(v)`               | the value that thread 0 passed                                |
/// | `g.copy(dst, src, bytes)`  | copies together; a later `g.sync()` completes it              |
/// | `g.count(b)`               | how many threads passed true, returned to all                 |
/// | `g.unite(v)`               | bitwise or over the threads, returned to all                  |
/// | `g.fan_out(to, o, src, n)` | `copy` of n bytes to every address of `to` plus o, read once  |
/// | `g.pick(v, i)`             | the value that thread i passed                                |
/// | `g.maximum(v)`             | largest `float` of the threads, returned to all               |
/// | `g.maximum_of<n>(v)`       | the same among each n neighbouring threads; n divides threads |
/// | `g.multiply_add(a, w, v)`  | `a + w * v`, the product and the sum each rounded to fp32     |
///
/// @par Threads  All threads of the group call, convergently.
template <class G>
concept ThreadGroup = requires(const G& g, bool b, std::int64_t v, std::byte* dst,
                               const std::byte* src, std::uint64_t bytes, const fan& to) {
  typename G::memory;
  { g.thread() } -> std::convertible_to<std::uint32_t>;
  { g.threads() } -> std::convertible_to<std::uint32_t>;
  g.sync();
  { g.any(b) } -> std::convertible_to<bool>;
  { g.sum(v) } -> std::convertible_to<std::int64_t>;
  { g.prefix(v) } -> std::convertible_to<std::int64_t>;
  { g.first(v) } -> std::convertible_to<std::int64_t>;
  { g.count(b) } -> std::convertible_to<std::int64_t>;
  { g.unite(bytes) } -> std::convertible_to<std::uint64_t>;
  { g.maximum(float{}) } -> std::convertible_to<float>;
  { g.template maximum_of<1>(float{}) } -> std::convertible_to<float>;
  { g.multiply_add(float{}, float{}, float{}) } -> std::convertible_to<float>;
  g.copy(dst, src, bytes);
  g.fan_out(to, bytes, src, bytes);
  { g.pick(v, 0u) } -> std::convertible_to<std::int64_t>;
};

/// Half a barrier among a rank's workers.
struct arrival {
  std::uint64_t full = 0;  ///< what `worker_words::arrived` becomes when all have arrived
  bool last = false;       ///< this crew was the last
};

/// Memory that a crew shares while a call runs.
inline constexpr std::uint32_t crew_scratch_bytes = 24 * 1024;

/// One of the thread groups that make up a rank's kernel.
///
/// | expression          | meaning                                                             |
/// |---------------------|---------------------------------------------------------------------|
/// | `w.worker()`        | index of this worker among the rank's `w.workers()`                 |
/// | `w.barrier(v, d)`   | all workers of the rank arrive; false if the clock of view `v`      |
/// |                     | passed deadline `d` first. Acquire and release among the workers    |
/// | `w.last_to_leave()` | true for the last worker to call it, which then sees all writes of  |
/// |                     | the others; every worker calls it exactly once, as its last act     |
/// | `w.member()`        | index of this worker among the `w.members()` of its *crew*: workers |
/// |                     | that meet at little cost (a block)                                  |
/// | `w.crew_all(b)`     | the crew meets; true if all its workers passed true                 |
/// | `w.scratch()`       | `crew_scratch_bytes` bytes, aligned to 16, that the crew shares; at |
/// |                     | the start of a call they hold anything; `crew_all` orders accesses  |
/// | `w.arrive()`        | the first half of a barrier, by whole crews, without waiting; in    |
/// |                     | the last crew, which then sees all writes so far, `.last` is true   |
/// | `w.complete(a,v,d)` | the second half, by one worker of each crew; then `crew_all`        |
template <class W, class View>
concept Worker = ThreadGroup<W> && requires(const W& w, const View& view, std::uint64_t deadline,
                                            const arrival& a, bool b) {
  { w.worker() } -> std::convertible_to<std::uint32_t>;
  { w.workers() } -> std::convertible_to<std::uint32_t>;
  { w.barrier(view, deadline) } -> std::convertible_to<bool>;
  { w.last_to_leave() } -> std::convertible_to<bool>;
  { w.member() } -> std::convertible_to<std::uint32_t>;
  { w.members() } -> std::convertible_to<std::uint32_t>;
  { w.crew_all(b) } -> std::convertible_to<bool>;
  { w.scratch() } -> std::same_as<std::byte*>;
  { w.arrive() } -> std::same_as<arrival>;
  { w.complete(a, view, deadline) } -> std::convertible_to<bool>;
};

/// The two words through which the workers of one launch meet. Zero before the first launch;
/// the last worker to leave makes them zero again.
struct worker_words {
  std::uint64_t arrived = 0;
  std::uint64_t departed = 0;
};

/// How a host thread waits for another one; a simulator installs its scheduler here.
struct relax_hook {
  /// Returns when `*word` may have reached `at_least`, or the clock may have passed `deadline_ns`;
  /// the caller looks again. Null: `host_memory::relax`.
  void (*function)(void*, const std::uint64_t* word, std::uint64_t at_least,
                   std::uint64_t deadline_ns) = nullptr;
  void* context = nullptr;
};

/// A thread group of one host thread.
class host_thread {
 public:
  using memory = host_memory;

  [[nodiscard]] static constexpr std::uint32_t thread() noexcept { return 0; }
  [[nodiscard]] static constexpr std::uint32_t threads() noexcept { return 1; }
  static void sync() noexcept {}
  [[nodiscard]] static constexpr bool any(bool value) noexcept { return value; }
  [[nodiscard]] static constexpr std::int64_t sum(std::int64_t value) noexcept { return value; }
  [[nodiscard]] static constexpr std::int64_t prefix(std::int64_t) noexcept { return 0; }
  [[nodiscard]] static constexpr std::int64_t first(std::int64_t value) noexcept { return value; }
  [[nodiscard]] static constexpr std::int64_t pick(std::int64_t value, std::uint32_t) noexcept {
    return value;
  }
  [[nodiscard]] static constexpr std::int64_t count(bool value) noexcept { return value ? 1 : 0; }
  [[nodiscard]] static constexpr std::uint64_t unite(std::uint64_t value) noexcept { return value; }
  [[nodiscard]] static constexpr float maximum(float value) noexcept { return value; }
  template <int kThreads>
  [[nodiscard]] static constexpr float maximum_of(float value) noexcept {
    return value;
  }
  [[nodiscard]] static constexpr float multiply_add(float a, float w, float v) noexcept {
    return a + w * v;
  }

  static void copy(std::byte* dst, const std::byte* src, std::uint64_t bytes) noexcept {
    if (bytes != 0) std::memcpy(dst, src, bytes);
  }
  static void fan_out(const fan& places, std::uint64_t offset, const std::byte* src,
                      std::uint64_t bytes) noexcept {
    for (int d = 0; d < places.count; ++d) copy(places.to[d] + offset, src, bytes);
  }
};

/// One of a rank's host threads.
class host_worker : public host_thread {
 public:
  host_worker(std::uint32_t index, std::uint32_t count, worker_words* words,
              relax_hook hook) noexcept
      : index_(index), count_(count), words_(words), hook_(hook) {}

  [[nodiscard]] std::uint32_t worker() const noexcept { return index_; }
  [[nodiscard]] std::uint32_t workers() const noexcept { return count_; }

  template <class View>
  [[nodiscard]] bool barrier(const View& view, std::uint64_t deadline_ns) const noexcept {
    return complete(arrive(), view, deadline_ns);
  }

  /// Every host thread is a crew of its own.
  [[nodiscard]] static constexpr std::uint32_t member() noexcept { return 0; }
  [[nodiscard]] static constexpr std::uint32_t members() noexcept { return 1; }
  [[nodiscard]] static constexpr bool crew_all(bool value) noexcept { return value; }
  [[nodiscard]] static std::byte* scratch() noexcept {
    alignas(16) static thread_local std::byte bytes[crew_scratch_bytes];
    return bytes;
  }

  [[nodiscard]] arrival arrive() const noexcept {
    if (count_ == 1) return {.full = 0, .last = true};
    const std::uint64_t old = memory::fetch_add(&words_->arrived, 1);
    const std::uint64_t full = (old / count_ + 1) * count_;
    return {.full = full, .last = old + 1 == full};
  }
  template <class View>
  [[nodiscard]] bool complete(const arrival& at, const View& view,
                              std::uint64_t deadline_ns) const noexcept {
    while (at.full != 0 &&
           memory::load_acquire(&words_->arrived) < at.full) {  // pairs with fetch_add above
      if (view.now_ns() > deadline_ns) return false;
      relax(at.full, deadline_ns);
    }
    return true;
  }

  [[nodiscard]] bool last_to_leave() const noexcept {
    if (memory::fetch_add(&words_->departed, 1) + 1 != count_) return false;
    memory::store_release(&words_->arrived, 0);
    memory::store_release(&words_->departed, 0);
    return true;
  }

 private:
  void relax(std::uint64_t at_least, std::uint64_t deadline_ns) const noexcept {
    if (hook_.function != nullptr) {
      hook_.function(hook_.context, &words_->arrived, at_least, deadline_ns);
    } else {
      memory::relax();
    }
  }

  std::uint32_t index_;
  std::uint32_t count_;
  worker_words* words_;
  relax_hook hook_;
};

static_assert(ThreadGroup<host_thread>);

}  // namespace eptransport
