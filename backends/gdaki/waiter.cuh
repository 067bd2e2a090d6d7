// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief How a GPU thread waits for a NIC: by looking, until the deadline.
#pragma once

#include <eptransport/backends/gdaki/detail/look.hpp>
#include <eptransport/core/config.hpp>
#include <eptransport/core/memory.cuh>
#include <eptransport/core/transport.hpp>
#include <eptransport/gdaki/queue_memory.cuh>

#include <cstdint>

namespace eptransport::gdaki_detail {

/// The view's `Waiter` on a GPU.
struct device_waiter {
  using memory = device_memory;
  /// A visit to a queue takes as long as several looks at a word.
  static constexpr std::uint32_t serve_every = 32;

  [[nodiscard]] EPT_DEVICE static std::uint64_t now_ns() noexcept {
    return device_memory::timer_ns();
  }

  template <class Failed, class Done>
  EPT_DEVICE static op_status wait(const Failed& failed, const Done& done,
                                   std::uint64_t deadline_ns) noexcept {
    return look_until<device_memory>(failed, done, [&] { return now_ns() >= deadline_ns; });
  }

  /// Nobody counts on the GPU.
  EPT_DEVICE static void note(std::uint64_t) noexcept {}
};

}  // namespace eptransport::gdaki_detail
