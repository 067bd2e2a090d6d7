// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The in-process wire: endpoints that write each other's windows.
#pragma once

#include <eptransport/core/config.hpp>
#include <eptransport/core/result.hpp>
#include <eptransport/proxy/endpoint.hpp>
#include <eptransport/proxy/endpoints/null.hpp>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace eptransport::proxy {

/// Of an in-process wire.
struct memory_options {
  std::uint32_t operations = 1024;   ///< of each endpoint, in flight
  std::uint32_t completions = 8192;  ///< arrivals that may wait at an endpoint
  std::uint64_t max_send = 1 << 20;
  std::uint32_t batch = 16;
  std::uint64_t post_ns = 0;  ///< CPU time of each post
};

class memory_network;

/// One rank's end on one comm. A post copies at once; its arrival waits in the peer's mailbox.
///
/// @par Threads  One at a time per endpoint; endpoints of one network at the same time.
class memory_endpoint {
 public:
  memory_endpoint(memory_network& network, std::uint32_t comm, std::span<std::byte> window);

  [[nodiscard]] endpoint_limits limits() const noexcept;
  [[nodiscard]] std::span<std::byte> window() const noexcept { return window_; }
  [[nodiscard]] result<void> attach(std::span<std::byte>) { return {}; }
  void detach() noexcept;
  post_result receive(std::byte* slot, std::uint64_t bytes, std::uint32_t context);
  post_result write(const write_post& post);
  post_result send(const send_post& post);
  std::size_t poll(std::span<completion> out);
  [[nodiscard]] std::string describe(int code) const {
    return code == out_of_window ? "the destination lies out of the peer's window"
                                 : "the message is longer than the peer's slot";
  }

 private:
  static constexpr int out_of_window = 1;
  static constexpr int slot_too_short = 2;

  struct slot {
    std::byte* data = nullptr;
    std::uint64_t bytes = 0;
    std::uint32_t context = 0;
  };

  /// A queue in an array that is made once.
  template <class T>
  class fixed_queue {
   public:
    explicit fixed_queue(std::size_t capacity) : entries_(capacity) {}
    [[nodiscard]] std::size_t size() const noexcept { return count_; }
    [[nodiscard]] bool full() const noexcept { return count_ == entries_.size(); }
    void clear() noexcept { count_ = 0; }
    void push(const T& value) noexcept {
      std::size_t at = first_ + count_++;
      if (at >= entries_.size()) at -= entries_.size();
      entries_[at] = value;
    }
    T pop() noexcept {
      const T value = entries_[first_];
      if (++first_ == entries_.size()) first_ = 0;
      --count_;
      return value;
    }

   private:
    std::vector<T> entries_;
    std::size_t first_ = 0;
    std::size_t count_ = 0;
  };

  post_result refuse(std::uint32_t peer, int code) noexcept;

  memory_network& network_;
  std::uint32_t comm_;
  std::span<std::byte> window_;
  fixed_queue<completion> local_;  ///< the owner's alone

  std::mutex mutex_;  ///< of what follows
  fixed_queue<completion> arrived_;
  fixed_queue<slot> slots_;
  std::size_t promised_ = 0;  ///< arrivals that senders are about to push
  /// A hint that saves the lock. Relaxed: whoever sees it takes the lock before it looks.
  std::atomic<std::size_t> waiting_ = 0;
};

/// All endpoints of one process: R ranks, K comms; comm k of a rank talks to comm k of the others.
class memory_network {
 public:
  /// @param windows  one per rank; they outlive the network
  memory_network(const std::vector<std::span<std::byte>>& windows, std::uint32_t comms,
                 const memory_options& options)
      : options_(options), comms_(comms) {
    for (const std::span<std::byte> window : windows) {
      for (std::uint32_t comm = 0; comm < comms; ++comm) {
        endpoints_.push_back(std::make_unique<memory_endpoint>(*this, comm, window));
      }
    }
  }

  [[nodiscard]] memory_endpoint& endpoint(std::uint32_t rank, std::uint32_t comm) {
    return *endpoints_[std::size_t{rank} * comms_ + comm];
  }
  [[nodiscard]] const memory_options& options() const noexcept { return options_; }

 private:
  memory_options options_;
  std::uint32_t comms_;
  std::vector<std::unique_ptr<memory_endpoint>> endpoints_;
};

inline memory_endpoint::memory_endpoint(memory_network& network, std::uint32_t comm,
                                        std::span<std::byte> window)
    : network_(network),
      comm_(comm),
      window_(window),
      local_(network.options().operations + 1),
      arrived_(network.options().completions),
      slots_(network.options().completions) {}

inline endpoint_limits memory_endpoint::limits() const noexcept {
  const memory_options& o = network_.options();
  return {.max_send = o.max_send,
          .operations = o.operations,
          // Local completions have a queue of their own; the engine counts them in.
          .completions = o.completions + o.operations,
          .batch = o.batch};
}

inline void memory_endpoint::detach() noexcept {
  std::unique_lock lock(mutex_);
  slots_.clear();
  while (promised_ != 0) {  // a sender is copying into a slot that it took
    lock.unlock();
    std::this_thread::yield();
    lock.lock();
  }
  slots_.clear();  // such a sender may have given one back
  arrived_.clear();
  local_.clear();
  waiting_.store(0, std::memory_order_relaxed);
}

inline post_result memory_endpoint::receive(std::byte* data, std::uint64_t bytes,
                                            std::uint32_t context) {
  const std::lock_guard lock(mutex_);
  if (slots_.full()) return post_result::again;
  slots_.push({data, bytes, context});
  return post_result::posted;
}

inline post_result memory_endpoint::refuse(std::uint32_t peer, int code) noexcept {
  local_.push({.kind = completion_kind::error, .peer = peer, .code = code});
  return post_result::failed;
}

inline post_result memory_endpoint::write(const write_post& post) {
  if (local_.full()) return post_result::again;
  memory_endpoint& peer = network_.endpoint(post.peer, comm_);
  if (post.dst_offset > peer.window_.size() || post.bytes > peer.window_.size() - post.dst_offset) {
    return refuse(post.peer, out_of_window);
  }
  if (post.has_immediate) {
    const std::lock_guard lock(peer.mutex_);
    if (peer.arrived_.size() + peer.promised_ >= network_.options().completions) {
      return post_result::again;
    }
    ++peer.promised_;
  }
  occupy_cpu(network_.options().post_ns);
  if (post.bytes != 0) {
    std::memmove(peer.window_.data() + post.dst_offset, post.src, post.bytes);
  }
  if (post.has_immediate) {
    const std::lock_guard lock(peer.mutex_);
    --peer.promised_;
    peer.arrived_.push({.kind = completion_kind::immediate, .immediate = post.immediate});
    peer.waiting_.store(peer.arrived_.size(), std::memory_order_relaxed);
  }
  local_.push({.kind = completion_kind::write, .context = post.context});
  return post_result::posted;
}

inline post_result memory_endpoint::send(const send_post& post) {
  if (local_.full()) return post_result::again;
  memory_endpoint& peer = network_.endpoint(post.peer, comm_);
  slot to;
  {
    const std::lock_guard lock(peer.mutex_);
    // Without a slot the sender stalls: receiver not ready.
    if (peer.slots_.size() == 0 ||
        peer.arrived_.size() + peer.promised_ >= network_.options().completions) {
      return post_result::again;
    }
    to = peer.slots_.pop();
    ++peer.promised_;
  }
  occupy_cpu(network_.options().post_ns);
  const bool fits = post.bytes <= to.bytes;
  if (fits) std::memcpy(to.data, post.data, post.bytes);
  {
    const std::lock_guard lock(peer.mutex_);
    --peer.promised_;
    if (fits) {
      peer.arrived_.push(
          {.kind = completion_kind::message, .context = to.context, .bytes = post.bytes});
      peer.waiting_.store(peer.arrived_.size(), std::memory_order_relaxed);
    } else {
      peer.slots_.push(to);
    }
  }
  if (!fits) return refuse(post.peer, slot_too_short);
  local_.push({.kind = completion_kind::send, .context = post.context});
  return post_result::posted;
}

inline std::size_t memory_endpoint::poll(std::span<completion> out) {
  std::size_t n = 0;
  while (n < out.size() && local_.size() != 0) out[n++] = local_.pop();
  if (n == out.size() || waiting_.load(std::memory_order_relaxed) == 0) return n;
  const std::lock_guard lock(mutex_);
  while (n < out.size() && arrived_.size() != 0) out[n++] = arrived_.pop();
  waiting_.store(arrived_.size(), std::memory_order_relaxed);
  return n;
}

static_assert(ProxyEndpoint<memory_endpoint>);

}  // namespace eptransport::proxy
