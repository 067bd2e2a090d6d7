// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Cases of puts and waits over libfabric: what each rank does, and what it finds wrong.
#pragma once

#include <eptransport/backends/libfabric/libfabric.hpp>

#include <algorithm>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <sys/wait.h>
#include <unistd.h>
#include <utility>
#include <vector>

namespace eptransport::support {

/// One rank's puts and waits; collects what went wrong.
struct caller {
  libfabric& own;
  bootstrap& meeting;
  std::string wrong{};

  static constexpr std::uint64_t patience = 20'000'000'000;

  [[nodiscard]] std::uint64_t soon() const { return own.view().now_ns() + patience; }
  void check(bool good, const std::string& what) {
    if (!good && wrong.size() < 2000) wrong += what + "\n";
  }
  void put(const put_request& request, std::uint32_t channel = 0) {
    check(own.view().put(host_thread(), channel, request, soon()) == op_status::ok, "a put failed");
  }
  void wait(std::uint32_t signal, std::uint64_t count) {
    check(own.view().wait_signal(host_thread(), signal, count, soon()) == op_status::ok,
          "word " + std::to_string(signal) + " did not come to " + std::to_string(count));
  }
  void meet() { check(meeting.barrier(patience).has_value(), "the others did not come"); }
  void counts(std::uint32_t signal, std::uint64_t count) {
    const std::uint64_t seen = own.view().read_signal(signal);
    check(seen == count, "word " + std::to_string(signal) + " counts " + std::to_string(seen) +
                             ", not " + std::to_string(count));
  }
  [[nodiscard]] std::byte* at(std::uint64_t offset) const { return own.window().data() + offset; }
};

[[nodiscard]] inline std::byte mark(std::uint64_t of, std::uint64_t i) {
  return static_cast<std::byte>((of * 131 + i * 7) % 251 + 1);
}

/// Sizes round every limit of an inlined message that a provider is known to have.
inline std::string puts_of_many_sizes(libfabric& own, bootstrap& meeting) {
  caller me{own, meeting};
  constexpr std::uint64_t place = 1 << 15;
  constexpr std::uint64_t sizes[] = {0,   1,   63,  64,   65,   127,  128,  129,   255,
                                     256, 257, 512, 4095, 4096, 4097, 8192, 16384, 16385};
  const int peer = 1 - meeting.rank();
  std::uint64_t sent = 0;
  for (const std::uint64_t bytes : sizes) {
    const std::uint64_t key = bytes + static_cast<std::uint64_t>(meeting.rank());
    for (std::uint64_t i = 0; i < bytes; ++i) *me.at(place + i) = mark(key, i);
    me.put({.peer = peer, .src = me.at(place), .bytes = bytes, .signal = 5});
    me.wait(5, ++sent);
    for (std::uint64_t i = 0; i < bytes; ++i) {
      if (*me.at(i) == mark(bytes + static_cast<std::uint64_t>(peer), i)) continue;
      me.check(false, "byte " + std::to_string(i) + " of " + std::to_string(bytes));
      break;
    }
    me.check(*me.at(bytes) == std::byte{0}, "a byte beside the put");
    me.meet();
  }
  for (std::uint32_t s = 0; s < own.signals(); ++s) me.counts(s, s == 5 ? sent : 0);
  return me.wrong;
}

/// More arrivals than the completion queue has entries.
inline std::string a_flood(libfabric& own, bootstrap& meeting, std::uint64_t puts) {
  caller me{own, meeting};
  const int ranks = meeting.size();
  for (std::uint64_t i = 0; i < puts; ++i) {
    for (int peer = 0; peer < ranks; ++peer) {
      if (peer == meeting.rank()) continue;
      me.put({.peer = peer,
              .dst_offset = 8 * static_cast<std::uint64_t>(meeting.rank()),
              .src = me.at(64),
              .bytes = 8,
              .signal = static_cast<std::uint32_t>(meeting.rank())});
    }
  }
  for (int peer = 0; peer < ranks; ++peer) {
    if (peer != meeting.rank()) me.wait(static_cast<std::uint32_t>(peer), puts);
  }
  me.meet();
  for (int peer = 0; peer < ranks; ++peer) {
    me.counts(static_cast<std::uint32_t>(peer), peer == meeting.rank() ? 0 : puts);
  }
  return me.wrong;
}

/// Rank 1 stands still while rank 0 sends more than anything on the way can hold.
inline std::string a_slow_consumer(libfabric& own, bootstrap& meeting) {
  caller me{own, meeting};
  constexpr std::uint64_t puts = 3000;
  constexpr unsigned pause_us = 150'000;
  if (meeting.rank() == 1) {
    me.meet();
    const pid_t self = ::getpid();
    const pid_t waker = ::fork();
    if (waker == 0) {
      (void)::usleep(pause_us);
      for (;;) {  // it may not have stopped yet
        (void)::kill(self, SIGCONT);
        (void)::usleep(20'000);
      }
    }
    (void)::raise(SIGSTOP);
    (void)::kill(waker, SIGKILL);
    (void)::waitpid(waker, nullptr, 0);
    me.wait(0, puts);
    me.meet();
    me.counts(0, puts);
    return me.wrong;
  }
  me.meet();
  const std::uint64_t start = own.view().now_ns();
  (void)::usleep(20'000);
  for (std::uint64_t i = 0; i < puts; ++i) {
    me.put({.peer = 1, .src = me.at(0), .bytes = 2048, .signal = 0});
  }
  me.check(own.view().flush(host_thread(), 0, me.soon()) == op_status::ok, "the flush failed");
  me.check(own.view().now_ns() - start > 100'000'000, "nothing held the puts up");
  const auto& s = own.statistics(0);
  me.check(s.again.get() + s.credit_stalls.get() + s.full_stalls.get() > 0, "nothing was refused");
  me.meet();
  return me.wrong;
}

/// Several transports of one process, made one after another and used in turn.
inline std::string many_transports(bootstrap& meeting, const std::string& provider) {
  constexpr std::uint32_t many = 8;
  constexpr int steps = 104;
  proxied_options options{.window_bytes = 4096, .signals = 2};
  options.drive = proxy_drive::shared;
  options.driver.idle = proxy::polite;
  std::vector<std::unique_ptr<libfabric>> all;
  for (std::uint32_t n = 0; n < many; ++n) {
    auto made = libfabric::create(meeting, options, {.provider = provider});
    if (!made) return made.error().message();
    all.push_back(std::move(*made));
  }
  std::string wrong;
  const int peer = 1 - meeting.rank();
  for (int step = 0; step < steps; ++step) {
    const auto n = static_cast<std::uint64_t>(step * 5 + 3) % many;
    caller me{*all[n], meeting};
    const auto key = [&](int rank) { return static_cast<std::uint64_t>(step * 2 + rank); };
    for (std::uint64_t i = 0; i < 100; ++i) *me.at(2048 + i) = mark(key(meeting.rank()), i);
    me.put({.peer = peer, .src = me.at(2048), .bytes = 100, .signal = 1});
    me.wait(1, static_cast<std::uint64_t>(step) / many + 1);
    for (std::uint64_t i = 0; i < 100; ++i) {
      me.check(*me.at(i) == mark(key(peer), i),
               "step " + std::to_string(step) + ", byte " + std::to_string(i) + " is another's");
    }
    me.meet();
    wrong += me.wrong;
    if (!wrong.empty()) break;
  }
  // In another order on each rank; closing is a barrier, whichever of them closes.
  if (meeting.rank() == 1) std::reverse(all.begin(), all.end());
  for (auto& one : all) one.reset();
  return wrong;
}

/// Closes while puts to and from two peers are in rings, in queues and on the wire.
inline std::string closes_amid_puts(libfabric& own, bootstrap& meeting) {
  caller me{own, meeting};
  const std::uint64_t bytes = own.window().size() / 2;
  me.meet();
  for (int i = 0; i < (bytes < 100'000 ? 500 : 20); ++i) {
    me.put({.peer = (meeting.rank() + 1 + i % 2) % meeting.size(),
            .dst_offset = bytes,
            .src = me.at(0),
            .bytes = bytes,
            .signal = 0});
  }
  return me.wrong;
}

}  // namespace eptransport::support
