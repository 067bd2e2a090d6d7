// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The smallest transport that keeps the contract: two threads and shared memory.
//
// You learn
//   what the contract asks of a wire, and how `check_transport` names what is missing: delete a
//   member below and compile again.
//
// You need
//   a C++20 compiler, and 01_first_put.cpp.
//
// Run
//   g++ -std=c++20 -I include examples/02_your_own_transport.cpp -o own -pthread && ./own
//
// You see
//   rank 1 received 42 after 1 put
//   a wait for a second put ended at its deadline
#include <eptransport/eptransport.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <span>
#include <thread>
#include <vector>

namespace ept = eptransport;

/// What both ranks share: a window and two signal words each.
struct shared_memory {
  std::vector<std::byte> window[2] = {std::vector<std::byte>(4096), std::vector<std::byte>(4096)};
  std::uint64_t words[2][2] = {};
  std::uint64_t at_barrier = 0;
};

/// The device view: a value, here a pointer and a rank.
struct thread_view {
  shared_memory* memory;
  std::int32_t me;

  std::int32_t rank() const { return me; }
  std::int32_t size() const { return 2; }
  std::int32_t node(std::int32_t) const { return 0; }
  std::uint32_t channels() const { return 1; }
  std::uint64_t now_ns() const {
    return static_cast<std::uint64_t>(std::chrono::steady_clock::now().time_since_epoch() /
                                      std::chrono::nanoseconds(1));
  }
  std::byte* local() const { return memory->window[me].data(); }
  std::byte* peer_pointer(std::int32_t peer, std::uint64_t offset, std::uint64_t) const {
    return memory->window[peer].data() + offset;
  }

  /// Bytes first, then the signal, with release: whoever sees the count sees the bytes.
  template <ept::ThreadGroup Group>
  ept::op_status put(const Group& group, std::uint32_t, const ept::put_request& request,
                     std::uint64_t) const {
    group.copy(peer_pointer(request.peer, request.dst_offset, request.bytes), request.src,
               request.bytes);
    group.sync();
    if (group.thread() == 0 && request.signal != ept::no_signal) {
      Group::memory::signal_add(&memory->words[request.peer][request.signal], 1);
    }
    return ept::op_status::ok;
  }
  template <ept::ThreadGroup Group>
  ept::op_status signal(const Group& group, std::uint32_t channel, std::int32_t peer,
                        std::uint32_t signal, std::uint64_t deadline_ns) const {
    return put(group, channel, {.peer = peer, .signal = signal}, deadline_ns);
  }

  std::uint64_t read_signal(std::uint32_t signal) const {
    return ept::host_memory::signal_acquire(&memory->words[me][signal]);
  }
  template <ept::ThreadGroup Group>
  ept::op_status wait_signal(const Group&, std::uint32_t signal, std::uint64_t at_least,
                             std::uint64_t deadline_ns) const {
    while (static_cast<std::int64_t>(read_signal(signal) - at_least) < 0) {
      if (now_ns() > deadline_ns) return ept::op_status::expired;
      Group::memory::relax();
    }
    return ept::op_status::ok;
  }
  template <ept::ThreadGroup Group>
  ept::op_status flush(const Group&, std::uint32_t, std::uint64_t) const {
    return ept::op_status::ok;  // put has copied already
  }
  template <ept::ThreadGroup Group>
  void submit(const Group&, std::uint32_t) const {}
};

/// The host-side owner of one rank.
struct thread_transport {
  using transport_concept = ept::transport_tag;
  using view_type = thread_view;
  using executor_type = ept::host_executor;
  static constexpr ept::capabilities caps{.peer_reach = ept::reach::always,
                                          .add = ept::signal_add::any};
  shared_memory* memory;
  std::int32_t me;
  executor_type cpu{};

  view_type view() const { return {memory, me}; }
  executor_type& executor() { return cpu; }
  std::span<std::byte> window() const { return memory->window[me]; }
  std::uint32_t signals() const { return 2; }
  ept::result<void> barrier(std::uint64_t timeout_ns) {
    const std::uint64_t deadline = view().now_ns() + timeout_ns;
    const std::uint64_t old = ept::host_memory::fetch_add(&memory->at_barrier, 1);
    while (ept::host_memory::load_acquire(&memory->at_barrier) < old / 2 * 2 + 2) {
      if (view().now_ns() > deadline) return ept::failure{ept::errc::timed_out, "barrier", ""};
      ept::host_memory::relax();
    }
    return {};
  }
  ept::result<void> fault() const { return {}; }
};
static_assert(ept::check_transport<thread_transport>());

int main() {
  constexpr ept::host_thread group;
  constexpr std::uint64_t second = 1'000'000'000;
  shared_memory memory;
  std::thread sender([&] {
    const thread_view view = thread_transport{&memory, 0}.view();
    view.local()[0] = std::byte{42};
    (void)view.put(group, 0, {.peer = 1, .src = view.local(), .bytes = 1, .signal = 0},
                   view.now_ns() + second);
  });
  const thread_view view = thread_transport{&memory, 1}.view();
  if (view.wait_signal(group, 0, 1, view.now_ns() + second) == ept::op_status::ok) {
    std::printf("rank 1 received %d after %d put\n", static_cast<int>(view.local()[0]),
                static_cast<int>(view.read_signal(0)));
  }
  if (view.wait_signal(group, 0, 2, view.now_ns() + 1000) == ept::op_status::expired) {
    std::puts("a wait for a second put ended at its deadline");
  }
  sender.join();
}
