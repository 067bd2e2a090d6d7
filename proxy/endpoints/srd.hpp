// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief A wire made worse: what an unordered, lossy-queue, multi-rail NIC may do, from a seed.
///
/// No software provider reorders, refuses or loses anything, so what the engine must survive is
/// made here, over any endpoint: posts held and released in any order, payloads torn into pieces
/// that land in any order, immediates that follow their last piece late, local completions earlier
/// or later than the remote ones, refused posts, a bounded completion queue that forgets, batches
/// that stay unsent until they are closed, rails of different delay, peers that are dead.
#pragma once

#include <eptransport/core/config.hpp>
#include <eptransport/core/result.hpp>
#include <eptransport/proxy/endpoint.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace eptransport::proxy {

/// How bad it is. Delays are in polls of the endpoint, its only clock.
struct srd_options {
  std::uint64_t seed = 1;
  std::uint32_t hold = 64;         ///< operations held at once
  std::uint32_t max_delay = 12;    ///< before a held operation may move
  std::uint32_t rail_delay = 0;    ///< more for comm k: k times this
  std::uint64_t chunk_bytes = 64;  ///< pieces of a payload, at most 64 of them; 0 = never torn
  double again = 0.1;              ///< probability that a post is refused
  std::uint32_t completions = 0;   ///< arrivals that the queue holds, more are lost; 0 = no bound
  int dead_rank = -1;              ///< dies: operations of it and to it fail
  std::uint64_t dead_after = 0;    ///< after so many operations of it, and of each other to it
  std::uint32_t error_after = 50;  ///< until the error is reported
};

/// The decorator. The same seed and the same calls make the same decisions.
///
/// @par Threads  As the inner endpoint.
template <ProxyEndpoint Inner>
class srd_endpoint {
 public:
  static constexpr int dead_peer = 1 << 20;  ///< codes of its own lie above the inner one's
  static constexpr int dead_self = dead_peer + 1;

  srd_endpoint(Inner& inner, const srd_options& options, int rank, std::uint32_t comm)
      : inner_(inner),
        options_(options),
        rank_(rank),
        delay_(comm * options.rail_delay),
        random_(options.seed * 0x9e3779b97f4a7c15U + static_cast<std::uint64_t>(rank) * 1000003U +
                comm),
        held_(std::max<std::uint32_t>(options.hold, 1)) {
    for (std::size_t i = held_.size(); i-- > 0;) free_.push_back(static_cast<std::uint32_t>(i));
    live_.reserve(held_.size());
    local_.reserve(2 * held_.size());
    const std::uint32_t inner_queue = inner.limits().completions;
    arrived_.reserve(inner_queue == 0 ? 1U << 16 : inner_queue);
  }

  [[nodiscard]] endpoint_limits limits() const {
    endpoint_limits l = inner_.limits();
    const auto most = static_cast<std::uint32_t>(held_.size());
    l.operations = l.operations == 0 ? most : std::min(l.operations, most);
    if (options_.completions != 0) l.completions = options_.completions + l.operations;
    return l;
  }
  [[nodiscard]] std::span<std::byte> window() const { return inner_.window(); }
  [[nodiscard]] result<void> attach(std::span<std::byte> memory) { return inner_.attach(memory); }
  void detach() noexcept {
    inner_.detach();
    live_.clear();
    free_.clear();
    for (std::size_t i = held_.size(); i-- > 0;) {
      held_[i].state = phase::free;
      free_.push_back(static_cast<std::uint32_t>(i));  // within what the constructor reserved
    }
    local_.clear();
    arrived_.clear();
    batch_ = 0;
  }
  post_result receive(std::byte* slot, std::uint64_t bytes, std::uint32_t context) {
    return inner_.receive(slot, bytes, context);
  }

  post_result write(const write_post& post) {
    held* op = accept(post.peer, post.context, post.more);
    if (op == nullptr) return post_result::again;
    op->is_send = false;
    op->write = post;
    op->pieces = 0;
    op->piece_bytes = post.bytes;
    if (post.bytes != 0) {
      op->piece_bytes = options_.chunk_bytes == 0 ? post.bytes : options_.chunk_bytes;
      op->piece_bytes = std::max(op->piece_bytes, (post.bytes + 63) / 64);
      const std::uint64_t n = (post.bytes + op->piece_bytes - 1) / op->piece_bytes;
      op->pieces = n == 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << n) - 1;
    }
    op->immediate_due = post.has_immediate;
    return post_result::posted;
  }

  post_result send(const send_post& post) {
    held* op = accept(post.peer, post.context, post.more);
    if (op == nullptr) return post_result::again;
    op->is_send = true;
    op->send = post;
    op->pieces = 0;
    op->immediate_due = true;  // the message itself
    return post_result::posted;
  }

  std::size_t poll(std::span<completion> out) {
    ++clock_;
    drain();
    // Every held operation may take one step, in an order that changes.
    const std::size_t n = live_.size();
    const std::size_t start = n == 0 ? 0 : below(n);
    for (std::size_t i = 0; i < n; ++i) move(live_[(start + i) % n]);
    std::erase_if(live_, [this](std::uint32_t index) { return held_[index].state == phase::free; });
    drain();
    std::size_t count = 0;
    while (count < out.size() && !local_.empty()) out[count++] = take_any(local_);
    while (count < out.size() && !arrived_.empty()) out[count++] = take_any(arrived_);
    return count;
  }

  [[nodiscard]] std::string describe(int code) const {
    if (code == dead_peer) return "the peer does not answer";
    if (code == dead_self) return "the own adapter is gone";
    return inner_.describe(code);
  }

  /// Arrivals that found the queue full. A correct engine leaves it 0.
  [[nodiscard]] std::uint64_t lost() const noexcept {
    return lost_.load(std::memory_order_relaxed);
  }
  /// Messages that found no slot at their peer and had to wait.
  [[nodiscard]] std::uint64_t not_ready() const noexcept { return not_ready_; }
  /// Hash of every decision.
  [[nodiscard]] std::uint64_t trace_hash() const noexcept { return trace_; }
  /// Operations that nobody has released with a doorbell.
  [[nodiscard]] std::size_t unrung() const noexcept { return batch_; }

 private:
  enum class phase : std::uint8_t { free, unrung, moving, dead };

  struct held {
    phase state = phase::free;
    bool is_send = false;
    bool immediate_due = false;   ///< the immediate, or the message, must still be posted
    bool completion_due = false;  ///< the local completion must still be reported
    std::uint32_t flying = 0;     ///< inner operations
    std::uint64_t pieces = 0;     ///< that must still be posted, one bit each
    std::uint64_t piece_bytes = 0;
    std::uint64_t due = 0;
    std::uint32_t peer = 0;
    std::uint32_t context = 0;
    int code = 0;
    write_post write{};
    send_post send{};
  };

  /// splitmix64.
  std::uint64_t next() noexcept {
    random_ += 0x9e3779b97f4a7c15U;
    std::uint64_t z = random_;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9U;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebU;
    z ^= z >> 31;
    trace_ = (trace_ ^ z) * 0x100000001b3U;
    return z;
  }
  std::uint64_t below(std::uint64_t bound) noexcept { return next() % bound; }
  bool chance(double p) noexcept {
    return p > 0 && static_cast<double>(next() >> 11) * 0x1p-53 < p;
  }

  /// An operation for a post, or null if it is refused.
  held* accept(std::uint32_t peer, std::uint32_t context, bool more) {
    if (free_.empty() || chance(options_.again)) return nullptr;
    const std::uint32_t index = free_.back();
    free_.pop_back();
    held& op = held_[index];
    op = held{};
    op.peer = peer;
    op.context = context;
    op.completion_due = true;
    op.due = clock_ + 1 + delay_ + below(options_.max_delay + 1);
    op.state = phase::unrung;
    const bool self = rank_ == options_.dead_rank;
    if ((self || static_cast<int>(peer) == options_.dead_rank) &&
        posted_to_dead_++ >= options_.dead_after) {
      op.state = phase::dead;
      op.code = self ? dead_self : dead_peer;
      op.due = clock_ + options_.error_after;
    }
    live_.push_back(index);
    ++batch_;
    if (!more) {
      for (const std::uint32_t one : live_) {
        if (held_[one].state == phase::unrung) held_[one].state = phase::moving;
      }
      batch_ = 0;
    }
    return &op;
  }

  /// One step of an operation, or none.
  void move(std::uint32_t index) {
    held& op = held_[index];
    if (op.state == phase::free || op.state == phase::unrung || op.due > clock_) return;
    if (op.state == phase::dead) {
      local_.push_back({.kind = completion_kind::error,
                        .context = op.context,
                        .peer = op.peer,
                        .code = op.code});
      op.due = ~std::uint64_t{0};  // it stays dead
      return;
    }
    if (op.pieces != 0) return post_piece(op, index);
    if (op.is_send) {
      if (op.immediate_due) return post_message(op, index);
      if (op.flying != 0) return;
      report(op);
    } else {
      if (op.flying != 0) return;  // the bytes are not all there
      // What comes first, the peer's completion or ours, is left to chance.
      const bool other_first = op.immediate_due && op.completion_due && chance(0.5);
      if (op.completion_due && !other_first && chance(0.7)) report(op);
      if (op.immediate_due && chance(0.7)) post_immediate(op, index);
    }
    if (!op.completion_due && !op.immediate_due && op.flying == 0) {
      op.state = phase::free;
      free_.push_back(index);
    }
  }

  void report(held& op) {
    local_.push_back({.kind = op.is_send ? completion_kind::send : completion_kind::write,
                      .context = op.context});
    op.completion_due = false;
  }

  void post_piece(held& op, std::uint32_t index) {
    std::uint64_t at = below(64);
    while ((op.pieces >> at & 1) == 0) at = (at + 1) % 64;
    const std::uint64_t offset = at * op.piece_bytes;
    const write_post piece{.peer = op.write.peer,
                           .src = op.write.src + offset,
                           .dst_offset = op.write.dst_offset + offset,
                           .bytes = std::min(op.piece_bytes, op.write.bytes - offset),
                           .context = index};
    if (inner_.write(piece) != post_result::posted) return;
    ++op.flying;
    op.pieces &= ~(std::uint64_t{1} << at);
  }

  void post_immediate(held& op, std::uint32_t index) {
    write_post post{.peer = op.write.peer,
                    .dst_offset = op.write.bytes == 0 ? 0 : op.write.dst_offset,
                    .immediate = op.write.immediate,
                    .has_immediate = true,
                    .context = index};
    if (inner_.write(post) != post_result::posted) return;
    ++op.flying;
    op.immediate_due = false;
  }

  void post_message(held& op, std::uint32_t index) {
    send_post post = op.send;
    post.context = index;
    post.more = false;
    if (inner_.send(post) != post_result::posted) {
      ++not_ready_;
      return;
    }
    ++op.flying;
    op.immediate_due = false;
  }

  /// Takes what the inner endpoint has.
  void drain() {
    for (;;) {
      const std::size_t n = inner_.poll(inner_completions_);
      for (std::size_t i = 0; i < n; ++i) sort_in(inner_completions_[i]);
      if (n < inner_completions_.size()) return;
    }
  }

  void sort_in(const completion& c) {
    switch (c.kind) {
      case completion_kind::write:
      case completion_kind::send:
        --held_[c.context].flying;
        return;
      case completion_kind::error:
        local_.push_back(c);
        return;
      case completion_kind::immediate:
      case completion_kind::message:
        if (rank_ == options_.dead_rank && posted_to_dead_ > options_.dead_after) return;
        // As `limits` says: arrivals may use what local completions leave free.
        if (options_.completions != 0 && arrived_.size() + local_.size() >= limits().completions) {
          lost_.fetch_add(1, std::memory_order_relaxed);
          return;
        }
        arrived_.push_back(c);
        return;
    }
  }

  completion take_any(std::vector<completion>& from) {
    const std::size_t at = below(from.size());
    const completion c = from[at];
    from[at] = from.back();
    from.pop_back();
    return c;
  }

  Inner& inner_;
  srd_options options_;
  int rank_;
  std::uint64_t delay_;
  std::uint64_t random_;
  std::uint64_t trace_ = 0xcbf29ce484222325U;
  std::uint64_t clock_ = 0;
  std::uint64_t posted_to_dead_ = 0;
  std::atomic<std::uint64_t> lost_ = 0;  ///< relaxed: a number that others may read meanwhile
  std::uint64_t not_ready_ = 0;
  std::size_t batch_ = 0;
  std::vector<held> held_;
  std::vector<std::uint32_t> free_;
  std::vector<std::uint32_t> live_;
  std::vector<completion> local_;
  std::vector<completion> arrived_;
  std::array<completion, 64> inner_completions_{};
};

}  // namespace eptransport::proxy
