// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief A rank whose wire keeps a proxy thread: closing ends in bounded time, says so, and leaves
/// the thread all that it needs. A rank whose wire may only be closed at rest.
#include <eptransport/backends/proxied/rank.hpp>
#include <eptransport/backends/proxied/wires.hpp>
#include <eptransport/proxy/endpoints/null.hpp>

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "support/in_process_bootstrap.hpp"

namespace eptransport {
namespace {

/// What the test and the wire share; outlives both.
struct lock_of_a_peer {
  std::atomic<bool> held = false;
  std::atomic<bool> waited_for = false;
  std::atomic<int> looks = 0;
  std::atomic<bool> broken = false;
  std::atomic<int> closed = 0;
  std::atomic<bool> withdrawn = false;
};

/// Its polls do not come back while a peer holds the lock, and find a failure once it is broken.
class locked_endpoint : public proxy::null_endpoint {
 public:
  locked_endpoint(lock_of_a_peer& lock, std::span<std::byte> window)
      : proxy::null_endpoint({.window = window}), lock_(lock) {}
  ~locked_endpoint() { ++lock_.closed; }
  std::size_t poll(std::span<proxy::completion> out) {
    if (lock_.broken.exchange(false)) {
      out[0] = {.kind = proxy::completion_kind::error};
      return 1;
    }
    while (lock_.held.load()) {
      lock_.waited_for = true;
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
    ++lock_.looks;
    return proxy::null_endpoint::poll(out);
  }

 private:
  lock_of_a_peer& lock_;
};

class locked_ports {
 public:
  using endpoint_type = locked_endpoint;
  struct options {
    lock_of_a_peer* lock = nullptr;
    bool only_at_rest = false;
  };
  static result<std::unique_ptr<locked_ports>> open(const options& o, std::span<std::byte> window,
                                                    std::uint32_t comms) {
    auto made = std::make_unique<locked_ports>();
    made->lock_ = o.lock;
    made->only_at_rest_ = o.only_at_rest;
    for (std::uint32_t k = 0; k < comms; ++k) {
      made->ends_.push_back(std::make_unique<locked_endpoint>(*o.lock, window));
    }
    return result<std::unique_ptr<locked_ports>>(std::move(made));
  }
  locked_endpoint& endpoint(std::uint32_t comm) { return *ends_[comm]; }
  [[nodiscard]] static result<std::vector<std::byte>> address() { return std::vector<std::byte>(); }
  static result<void> connect(std::span<const std::vector<std::byte>>) { return {}; }
  static void bury(std::uint32_t) {}
  [[nodiscard]] bool closes_only_at_rest() const { return only_at_rest_; }
  void withdraw() { lock_->withdrawn = true; }

 private:
  lock_of_a_peer* lock_ = nullptr;
  bool only_at_rest_ = false;
  std::vector<std::unique_ptr<locked_endpoint>> ends_;
};

struct locked_wire {
  static constexpr const char* name = "locked";
  static constexpr capabilities caps = proxied_caps;
  using ports_type = locked_ports;
};

template <class Condition>
bool soon(const Condition& done) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (!done() && std::chrono::steady_clock::now() < end) std::this_thread::yield();
  return done();
}

TEST(ProxiedRank, AThreadThatTheWireKeepsIsLeftBehind) {
  static lock_of_a_peer lock;  // the threads may look at it for as long as they live
  support::meeting_room room(1);
  auto memory = std::make_shared<std::vector<std::byte>>(4096);
  const std::weak_ptr<std::vector<std::byte>> window = memory;
  {
    support::in_process_bootstrap meeting(room, 0);
    auto rank = proxied_rank<locked_wire>::create(
        meeting, {.window = *memory, .window_owner = memory, .signals = 1, .comms = 2},
        {.lock = &lock});
    memory.reset();
    ASSERT_TRUE(rank) << rank.error().message();
    lock.held = true;
    ASSERT_TRUE(soon([&] { return lock.waited_for.load(); }));
    const auto start = std::chrono::steady_clock::now();
    const result<void> closed = (*rank)->close(50'000'000);
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(10));
    ASSERT_FALSE(closed);
    EXPECT_NE(closed.error().message().find("of 2 proxy threads did not come back"),
              std::string::npos)
        << closed.error().message();
  }
  EXPECT_FALSE(window.expired()) << "what a thread that was left behind may write to";
  // The rank and its bootstrap are gone; the threads come back to what was kept for them, and end.
  lock.held = false;
  ASSERT_TRUE(soon([&] { return lock.looks.load() > 0; }));
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  const int looks = lock.looks;
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_EQ(lock.looks.load(), looks) << "they go on";
}

/// Takes its time to say how the job is.
class slow_bootstrap final : public support::in_process_bootstrap {
 public:
  using in_process_bootstrap::in_process_bootstrap;
  [[nodiscard]] bool healthy() const noexcept override {
    while (held.load()) {
      asked = true;
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
    return true;
  }
  std::atomic<bool> held = false;
  mutable std::atomic<bool> asked = false;
};

TEST(ProxiedRank, NoThreadThatIsLeftBehindLooksAtTheBootstrap) {
  lock_of_a_peer lock;
  support::meeting_room room(1);
  slow_bootstrap meeting(room, 0);
  auto rank = proxied_rank<locked_wire>::create(meeting, {.window_bytes = 4096, .signals = 1},
                                                {.lock = &lock});
  ASSERT_TRUE(rank) << rank.error().message();
  meeting.held = true;
  ASSERT_TRUE(soon([&] { return meeting.asked.load(); }));
  std::atomic<bool> answered = false;
  std::thread answer([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    answered = true;
    meeting.held = false;
  });
  (void)(*rank)->close(1'000'000);
  EXPECT_TRUE(answered.load()) << "closed while its thread was in the bootstrap";
  answer.join();
}

/// What closing said, on a wire that is closed only at rest.
result<void> close_only_at_rest(lock_of_a_peer& lock, bool broken) {
  support::meeting_room room(1);
  support::in_process_bootstrap meeting(room, 0);
  auto rank = proxied_rank<locked_wire>::create(meeting, {.window_bytes = 4096, .signals = 1},
                                                {.lock = &lock, .only_at_rest = true});
  if (!rank) return rank.error();
  if (broken) {
    lock.broken = true;
    EXPECT_TRUE(soon([&] { return !(*rank)->fault(); }));
  }
  return (*rank)->close();
}

TEST(ProxiedRank, EndpointsThatCloseOnlyAtRestAreClosedThen) {
  lock_of_a_peer lock;
  EXPECT_TRUE(close_only_at_rest(lock, false));
  EXPECT_EQ(lock.closed, 1);
  EXPECT_FALSE(lock.withdrawn);
}

TEST(ProxiedRank, EndpointsThatCloseOnlyAtRestAreLeftBehindAfterAFailure) {
  static lock_of_a_peer lock;  // an endpoint keeps it
  const result<void> closed = close_only_at_rest(lock, true);
  ASSERT_FALSE(closed);
  EXPECT_NE(closed.error().message().find("did not come to rest"), std::string::npos)
      << closed.error().message();
  EXPECT_EQ(lock.closed, 0);
  EXPECT_TRUE(lock.withdrawn) << "peers may still write to the window";
  const int looks = lock.looks;
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_EQ(lock.looks.load(), looks) << "its thread goes on";
}

TEST(ProxiedRank, ClosesOnce) {
  lock_of_a_peer lock;
  support::meeting_room room(1);
  support::in_process_bootstrap meeting(room, 0);
  auto rank = proxied_rank<locked_wire>::create(meeting, {.window_bytes = 4096, .signals = 1},
                                                {.lock = &lock});
  ASSERT_TRUE(rank) << rank.error().message();
  EXPECT_TRUE((*rank)->close());
  EXPECT_TRUE((*rank)->close());
}

}  // namespace
}  // namespace eptransport
