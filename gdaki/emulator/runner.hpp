// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Drives an emulated network from a thread of its own.
#pragma once

#include <eptransport/core/config.hpp>
#include <eptransport/gdaki/emulator/network.hpp>

#include <atomic>
#include <cstdint>
#include <thread>

namespace eptransport::gdaki::emulator {

/// Steps the network from construction to destruction; nobody else touches the network meanwhile.
class runner {
 public:
  explicit runner(network& net) : thread_([this, &net] { run(net); }) {}
  ~runner() {
    stop_.store(true, std::memory_order_relaxed);
    thread_.join();
  }
  runner(const runner&) = delete;
  runner& operator=(const runner&) = delete;

 private:
  void run(network& net) {
    constexpr std::uint64_t burst = 64;
    while (!stop_.load(std::memory_order_relaxed)) {
      if (net.step(burst) == 0) std::this_thread::yield();
    }
  }

  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace eptransport::gdaki::emulator
