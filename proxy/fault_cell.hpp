// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Why a rank's transport became unusable: the first cause wins, every waiter sees it.
#pragma once

#include <eptransport/core/config.hpp>
#include <eptransport/core/memory.hpp>
#include <eptransport/core/result.hpp>

#include <cstdint>
#include <mutex>
#include <optional>

namespace eptransport::proxy {

/// Shared by a rank's engines, its view and its owner.
///
/// @par Threads  Any.
class fault_cell {
 public:
  /// Keeps the first cause; the others are its consequences.
  void report(const failure& why) {
    const std::lock_guard lock(mutex_);
    if (why_) return;
    why_.emplace(why);
    host_memory::signal_store(&word_, 1);  // pairs with `failed`
  }

  /// What waiters look at.
  [[nodiscard]] bool failed() const noexcept { return host_memory::signal_acquire(&word_) != 0; }
  [[nodiscard]] const std::uint64_t* word() const noexcept { return &word_; }

  [[nodiscard]] result<void> why() const {
    const std::lock_guard lock(mutex_);
    if (why_) return *why_;
    return {};
  }

 private:
  mutable std::mutex mutex_;
  std::optional<failure> why_;
  std::uint64_t word_ = 0;
};

}  // namespace eptransport::proxy
