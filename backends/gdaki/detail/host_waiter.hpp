// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief How host threads wait on emulated NICs: by yielding, or by passing the baton.
#pragma once

#include <eptransport/backends/gdaki/detail/look.hpp>
#include <eptransport/core/baton.hpp>
#include <eptransport/core/config.hpp>
#include <eptransport/core/memory.hpp>
#include <eptransport/core/transport.hpp>
#include <eptransport/gdaki/queue_memory.hpp>

#include <atomic>
#include <cstdint>

namespace eptransport::gdaki_detail {

/// Puts of one rank to other ranks.
struct put_counts {
  std::atomic<std::uint64_t> messages = 0;
  std::atomic<std::uint64_t> bytes = 0;
};

/// The view's `Waiter` on the CPU.
class host_waiter {
 public:
  using memory = host_memory;
  static constexpr std::uint32_t serve_every = 1;

  explicit host_waiter(put_counts& counts, baton* turns) noexcept
      : counts_(&counts), turns_(turns) {}

  [[nodiscard]] std::uint64_t now_ns() const {
    return turns_ != nullptr ? turns_->now_ns() : gdaki::queue_memory<host_memory>::now_ns();
  }

  /// An error that `done` finds is as good as one that was there before.
  template <class Failed, class Done>
  op_status wait(const Failed& failed, const Done& done, std::uint64_t deadline_ns) const {
    if (turns_ == nullptr) {
      return look_until<host_memory>(failed, done, [&] { return now_ns() > deadline_ns; });
    }
    struct wish {
      const Failed& failed;
      const Done& done;
    } what{failed, done};
    for (;;) {
      const bool reached = !failed() && done();
      if (failed()) return op_status::failed;
      if (reached) return op_status::ok;
      if (now_ns() > deadline_ns) return op_status::expired;
      turns_->wait({[](void* w) {
                      const auto& it = *static_cast<wish*>(w);
                      return it.failed() || it.done() || it.failed();
                    },
                    &what},
                   deadline_ns);
    }
  }

  void note(std::uint64_t bytes) const noexcept {
    counts_->messages.fetch_add(1,
                                std::memory_order_relaxed);  // a statistic, nothing pairs with it
    counts_->bytes.fetch_add(bytes, std::memory_order_relaxed);
  }

 private:
  put_counts* counts_;
  baton* turns_;
};

}  // namespace eptransport::gdaki_detail
