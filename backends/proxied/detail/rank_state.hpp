// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief What one rank's view, engines and owner share.
#pragma once

#include <eptransport/core/baton.hpp>
#include <eptransport/core/config.hpp>
#include <eptransport/core/guarded_window.hpp>
#include <eptransport/core/memory.hpp>
#include <eptransport/core/transport.hpp>
#include <eptransport/proxy/command.hpp>
#include <eptransport/proxy/fault_cell.hpp>
#include <eptransport/proxy/ring.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <span>
#include <vector>

namespace eptransport::proxied_detail {

/// Zeroed memory that shares its pages with nothing else, so that a GPU can map it.
class page_memory {
 public:
  static constexpr std::uint64_t page = 4096;

  page_memory() = default;
  explicit page_memory(std::uint64_t bytes)
      : bytes_((bytes + page - 1) / page * page),
        memory_(static_cast<std::byte*>(::operator new(bytes_, std::align_val_t{page}))) {
    std::memset(memory_.get(), 0, bytes_);
  }
  [[nodiscard]] std::byte* data() const noexcept { return memory_.get(); }
  [[nodiscard]] std::uint64_t bytes() const noexcept { return bytes_; }

 private:
  struct release {
    void operator()(std::byte* p) const noexcept { ::operator delete(p, std::align_val_t{page}); }
  };
  std::uint64_t bytes_ = 0;
  std::unique_ptr<std::byte, release> memory_;
};

/// One channel: a ring, and the head that the rank's producers share.
struct channel_state {
  explicit channel_state(const proxy::ring_layout& layout, std::uint64_t first)
      : memory(layout.bytes()), ring(layout.make(memory.data(), first)), head(first) {}

  page_memory memory;
  proxy::ring_view ring;
  alignas(128) std::uint64_t head;
};

/// One rank.
struct rank_state {
  /// @param window  its bytes, or memory of the caller
  template <class Window>
  rank_state(std::int32_t own, Window window) : rank(own), memory(window) {}

  std::int32_t rank;
  guarded_window memory;
  std::int32_t ranks = 1;
  std::uint32_t signals = 0;
  std::uint32_t comms = 1;
  std::uint64_t max_message = 0;
  std::uint32_t max_count = 1;
  std::vector<std::unique_ptr<channel_state>> channels;
  page_memory words;  ///< [comm][signal] counters
  proxy::command_codec codec;
  alignas(page_memory::page) proxy::fault_cell fault;  ///< alone among what engines write often
  const std::vector<int>* nodes = nullptr;
  eptransport::baton* baton = nullptr;  ///< null: real threads on the steady clock

  [[nodiscard]] std::uint64_t now_ns() const {
    if (baton != nullptr) return baton->now_ns();
    return static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(
                                          std::chrono::steady_clock::now().time_since_epoch())
                                          .count());
  }

  /// Of one comm.
  [[nodiscard]] std::uint64_t* counters(std::uint32_t comm) const noexcept {
    return reinterpret_cast<std::uint64_t*>(words.data()) + std::size_t{comm} * signals;
  }

  /// Sum over the comms; each word has its own writer.
  [[nodiscard]] std::uint64_t read_signal(std::uint32_t signal) const noexcept {
    std::uint64_t sum = 0;
    for (std::uint32_t k = 0; k < comms; ++k) {
      // Acquire, pairs with the engine's signal_store.
      sum += host_memory::signal_acquire(counters(k) + signal);
    }
    return sum;
  }

  /// True when no source of the channel's puts up to `position` is read any more.
  [[nodiscard]] bool complete(std::uint32_t channel, std::uint64_t position) const noexcept {
    // Acquire, pairs with ring_consumer::publish_complete.
    const std::uint64_t done = host_memory::signal_acquire(channels[channel]->ring.complete);
    return static_cast<std::int64_t>(done - position) >= 0;
  }
  [[nodiscard]] std::uint64_t head(std::uint32_t channel) const noexcept {
    return host_memory::load_acquire(&channels[channel]->head);
  }

  /// Waits for `done()`, a failure of the rank or the deadline.
  template <class Done>
  op_status wait(const Done& done, std::uint64_t deadline_ns) {
    struct wish {
      rank_state& self;
      const Done& done;
    } what{*this, done};
    for (;;) {
      if (fault.failed()) return op_status::failed;
      if (done()) return op_status::ok;
      if (now_ns() > deadline_ns) return op_status::expired;
      if (baton == nullptr) {
        host_memory::relax();
        continue;
      }
      baton->wait({[](void* w) {
                     const auto& it = *static_cast<wish*>(w);
                     return it.self.fault.failed() || it.done();
                   },
                   &what},
                  deadline_ns);
    }
  }

  /// Waits until all that the rank pushed is posted and complete; a fault or a second ends it.
  bool quiet() {
    return wait(
               [this] {
                 for (std::uint32_t c = 0; c < channels.size(); ++c) {
                   if (!complete(c, head(c))) return false;
                 }
                 return true;
               },
               now_ns() + 1'000'000'000) == op_status::ok;
  }
};

}  // namespace eptransport::proxied_detail
