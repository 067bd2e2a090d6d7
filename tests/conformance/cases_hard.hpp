// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The conformance cases under pressure: failures, full queues, channels, workers, barriers.
#pragma once

#include <eptransport/core/config.hpp>
#include <eptransport/core/result.hpp>
#include <eptransport/core/thread_group.hpp>
#include <eptransport/core/transport.hpp>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "cases.hpp"
#include "harness.hpp"

namespace conformance {

/// A kernel of a test: a function of the worker, and the words through which workers meet.
template <class Function>
struct test_kernel {
  Function function;
  mutable eptransport::worker_words meeting;

  [[nodiscard]] eptransport::worker_words* words() const { return &meeting; }
  template <class W>
  void operator()(const W& worker) const {
    function(worker);
  }
};

template <class Transport, class Function>
bool launch(Transport& t, Function function) {
  const test_kernel<Function> kernel{function, {}};
  return t.executor().launch(kernel, 0).has_value() && t.executor().synchronize().has_value();
}

/// Whether a put may succeed and its failure be known only later: where an agent posts it, and
/// where a device reports when it is done.
template <Backend B>
inline constexpr bool tells_later =
    B::transport::caps.host_progress || requires { requires B::tells_later; };

/// On the broken rank the put fails, and so do the wait that another worker is in and every later
/// one; `fault()` says why. The others see silence, until their deadlines.
template <Backend B>
void a_failure_ends_every_wait(world_request request, report& out) {
  request.broken_rank = 0;
  request.workers = 2;
  in_world<B>(request, out, [](const probe<B>& p, auto& t) {
    if (p.rank() != 0) {
      const std::uint64_t deadline = p.view().now_ns() + 1'000'000;
      p.check(p.view().wait_signal(host_thread(), 0, p.base(0) + 1, deadline) == op_status::expired,
              "something came from a broken rank");
      p.check(t.fault().has_value(), "another rank's failure became ours");
      return;
    }
    const std::uint64_t deadline = p.soon();
    p.check(launch(t,
                   [&](const auto& worker) {
                     if (worker.worker() == 0) {
                       op_status status = p.view().signal(worker, 0, 1, 0, deadline);
                       // Where another agent does it, the put cannot know; a source that was
                       // copied is free though its bytes never leave. Then a wait is the first to
                       // be told.
                       if (tells_later<B> && status == op_status::ok) {
                         status = p.view().flush(worker, 0, deadline);
                         if (status == op_status::ok) {
                           status = p.view().wait_signal(worker, 0, p.base(0) + 1, deadline);
                         }
                       }
                       p.check(status == op_status::failed, "the broken put did not fail");
                     } else {
                       p.check(p.view().wait_signal(worker, 0, p.base(0) + 1, deadline) ==
                                   op_status::failed,
                               "a waiting worker was not told");
                     }
                     p.check(worker.barrier(p.view(), deadline),
                             "the workers did not meet after the failure");
                     (void)worker.last_to_leave();
                   }),
            "the launch failed");
    p.check(p.view().wait_signal(host_thread(), 0, p.base(0) + 1, deadline) == op_status::failed,
            "a later wait did not fail at once");
    p.check(p.view().put(host_thread(), 0, {.peer = 1}, deadline) == op_status::failed,
            "a later put did not fail at once");
    const auto why = t.fault();
    p.check(!why.has_value() && !why.error().message().empty(), "fault() does not say why");
    p.check(!t.barrier(B::patience_ns).has_value(), "a broken rank passed a barrier");
  });
}

/// Queues of 1 to 3 messages: callers wait, nothing is lost.
template <Backend B>
void full_queues_lose_nothing(world_request request, report& out) {
  for (const std::uint32_t depth : {1U, 2U, 3U}) {
    request.queue_depth = depth;
    in_world<B>(request, out, [](const probe<B>& p, auto&) {
      constexpr std::uint64_t puts = 10;
      constexpr std::uint64_t slot = 40;
      const auto me = static_cast<std::uint64_t>(p.rank());
      for (std::uint64_t i = 0; i < puts; ++i) {
        p.fill(source_zone + i * slot, slot, me, i);
        for (int peer = 0; peer < p.size(); ++peer) {
          p.put({.peer = peer,
                 .dst_offset = (me * puts + i) * slot,
                 .src = p.at(source_zone + i * slot),
                 .bytes = slot,
                 .signal = 0});
        }
      }
      const auto ranks = static_cast<std::uint64_t>(p.size());
      p.wait(0, puts * ranks);
      for (std::uint64_t n = 0; n < puts * ranks; ++n) {
        p.check_bytes(n * slot, slot, n / puts, n % puts);
      }
      p.flush();
      p.meet();
      p.check_count(0, puts * ranks);
    });
  }
}

/// Nobody leaves a barrier before the last has come; a missing rank is a time-out.
template <Backend B>
void the_barrier_waits_for_all(const world_request& request, report& out) {
  std::atomic<int> own = 0;
  std::atomic<int>* arrived = &own;
  if constexpr (!B::one_process) arrived = &B::arrivals();
  in_world<B>(request, out, [&](const probe<B>& p, auto& t) {
    // A backend that runs a request twice starts at a multiple of all arrivals.
    constexpr int rounds = 3;
    for (int round = 1; round <= rounds; ++round) {
      const int before = arrived->fetch_add(1);
      const int all = (before / p.size() + 1) * p.size();
      p.meet();
      p.check(arrived->load() >= all, "left a barrier early");
      p.meet();
    }
    if (p.rank() == 0) return;
    const auto alone = t.barrier(1'000'000);
    p.check(!alone.has_value() && alone.error().code == eptransport::errc::timed_out,
            "a barrier without rank 0 did not time out");
  });
}

/// The same word is fed through every channel.
template <Backend B>
void channels_share_the_words(world_request request, report& out) {
  request.channels = 3;
  in_world<B>(request, out, [](const probe<B>& p, auto&) {
    constexpr std::uint64_t slot = 50;
    const auto me = static_cast<std::uint64_t>(p.rank());
    const std::uint32_t channels = p.view().channels();
    p.check(channels >= 1, "there is no channel");
    for (std::uint32_t c = 0; c < channels; ++c) {
      p.fill(source_zone + c * slot, slot, me, c);
      for (int peer = 0; peer < p.size(); ++peer) {
        p.put({.peer = peer,
               .dst_offset = (me * channels + c) * slot,
               .src = p.at(source_zone + c * slot),
               .bytes = slot,
               .signal = 1},
              c);
      }
    }
    const auto all = static_cast<std::uint64_t>(p.size()) * channels;
    p.wait(1, all);
    for (std::uint64_t n = 0; n < all; ++n) {
      p.check_bytes(n * slot, slot, n / channels, n % channels);
    }
    for (std::uint32_t c = 0; c < channels; ++c) p.flush(c);
    p.meet();
  });
}

/// What each worker of a rank does in `workers_share_a_rank`; bits of `problems[worker]` say what
/// went wrong.
template <class View>
struct shared_rank_call {
  static constexpr std::uint64_t slot = 64;
  static constexpr std::uint32_t kinds = 9;
  static constexpr const char* names[kinds] = {
      "put of a worker",       "the workers did not meet", "put for all workers",
      "wait of a worker",      "bytes of a worker",        "wait for all workers",
      "bytes for all workers", "flush of a worker",        "the workers did not meet again"};

  View view;
  eptransport::worker_words* meeting;
  std::uint64_t* problems;  ///< [workers]
  std::uint64_t base[2];    ///< first values of words 0 and 1
  std::uint64_t deadline;

  [[nodiscard]] EPT_HOST_DEVICE eptransport::worker_words* words() const { return meeting; }

  EPT_NO_EXEC_CHECK
  template <class W>
  EPT_HOST_DEVICE void operator()(const W& worker) const {
    const std::uint64_t w = worker.worker();
    const std::uint64_t n = worker.workers();
    const auto ranks = static_cast<std::uint64_t>(view.size());
    const auto me = static_cast<std::uint64_t>(view.rank());
    const auto peer = static_cast<std::int32_t>((me + 1) % ranks);
    const std::uint64_t before = (me + ranks - 1) % ranks;
    const auto source = [&](std::uint64_t i) { return view.local() + source_zone + i * slot; };
    for (std::uint64_t i = worker.thread(); i < slot; i += worker.threads()) {
      source(w)[i] = pattern(me, w, i);
    }
    expect(worker, 0, view.put(worker, 0, to(peer, w, source(w), 1, 0), deadline));
    expect(worker, 1, worker.barrier(view, deadline));
    if (w == 0) expect(worker, 2, view.put(worker, 0, to(peer, n, source(0), n, 1), deadline));
    expect(worker, 3, view.wait_signal(worker, 0, base[0] + n, deadline));
    expect(worker, 4, intact(worker, w, before, w));
    expect(worker, 5, view.wait_signal(worker, 1, base[1] + 1, deadline));
    expect(worker, 6, intact(worker, n + w, before, w));
    expect(worker, 7, view.flush(worker, 0, deadline));
    expect(worker, 8, worker.barrier(view, deadline));
    (void)worker.last_to_leave();
  }

 private:
  [[nodiscard]] EPT_HOST_DEVICE static eptransport::put_request to(std::int32_t peer,
                                                                   std::uint64_t place,
                                                                   const std::byte* source,
                                                                   std::uint64_t slots,
                                                                   std::uint32_t signal) {
    return {.peer = peer,
            .dst_offset = place * slot,
            .src = source,
            .bytes = slots * slot,
            .signal = signal};
  }
  EPT_NO_EXEC_CHECK
  template <class W>
  [[nodiscard]] EPT_HOST_DEVICE bool intact(const W& worker, std::uint64_t place, std::uint64_t a,
                                            std::uint64_t b) const {
    bool wrong = false;
    for (std::uint64_t i = worker.thread(); i < slot; i += worker.threads()) {
      // Volatile: a GPU must not take it from a cache that peers' stores do not reach.
      const volatile auto* byte =
          reinterpret_cast<const std::uint8_t*>(view.local() + place * slot + i);
      wrong = wrong || std::byte{*byte} != pattern(a, b, i);
    }
    return !worker.any(wrong);
  }
  template <class W>
  EPT_HOST_DEVICE void expect(const W& worker, std::uint32_t what, op_status status) const {
    expect(worker, what, status == op_status::ok);
  }
  template <class W>
  EPT_HOST_DEVICE void expect(const W& worker, std::uint32_t what, bool ok) const {
    if (!ok && worker.thread() == 0) problems[worker.worker()] |= std::uint64_t{1} << what;
  }
};

/// Several workers of a rank put and wait at once. Worker 0's put carries what the others wrote
/// before the workers met: a put releases what its caller saw through a worker barrier.
template <Backend B>
void workers_share_a_rank(world_request request, report& out) {
  request.workers = 3;
  in_world<B>(request, out, [](const probe<B>& p, auto& t) {
    using call_type = shared_rank_call<typename B::transport::view_type>;
    auto& executor = t.executor();
    const std::uint64_t workers = executor.workers(0);
    p.check(source_zone >= 2 * workers * call_type::slot,
            "more workers than the case has room for");
    const std::uint64_t bytes = workers * sizeof(std::uint64_t);
    const auto problems = executor.allocate(bytes);
    const auto meeting = executor.allocate(sizeof(eptransport::worker_words));
    p.check(problems && meeting, "no memory for the workers' words");
    if (!problems || !meeting) return;
    p.meet();  // whose memory needs the whole device has it before any kernel waits
    const call_type call{t.view(),
                         reinterpret_cast<eptransport::worker_words*>(*meeting),
                         reinterpret_cast<std::uint64_t*>(*problems),
                         {p.base(0), p.base(1)},
                         p.soon()};
    p.check(executor.launch(call, 0, {}).has_value() && executor.synchronize().has_value(),
            "the launch failed");
    std::vector<std::uint64_t> found(workers);
    const auto read = executor.read(reinterpret_cast<std::byte*>(found.data()), *problems, bytes);
    p.check(read.has_value(), "the workers' findings cannot be read");
    for (std::uint64_t w = 0; w < workers; ++w) {
      for (std::uint32_t what = 0; what < call_type::kinds; ++what) {
        p.check((found[w] >> what & 1) == 0,
                "worker " + std::to_string(w) + ": " + call_type::names[what]);
      }
    }
    p.meet();
    executor.release(*problems);
    executor.release(*meeting);
  });
}

/// NOT part of the contract: data puts without a signal, then one flag that is trusted to cover
/// them. A wire without order must break it; one with order per channel must not.
template <Backend B>
void a_flag_covers_earlier_puts(world_request request, report& out) {
  request.ranks = 2;
  in_world<B>(request, out, [](const probe<B>& p, auto&) {
    constexpr std::uint64_t puts = 4;
    constexpr std::uint64_t slot = 100;
    if (p.rank() == 0) {
      for (std::uint64_t i = 0; i < puts; ++i) {
        p.fill(source_zone + i * slot, slot, 0, i);
        p.put({.peer = 1,
               .dst_offset = i * slot,
               .src = p.at(source_zone + i * slot),
               .bytes = slot});
      }
      p.signal(1, 0);
      p.flush();
    } else {
      p.wait(0, 1);
      for (std::uint64_t i = 0; i < puts; ++i) p.check_bytes(i * slot, slot, 0, i);
    }
    p.meet();
  });
}

}  // namespace conformance
