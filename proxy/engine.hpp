// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The engine: takes commands from rings, posts them, counts what arrives.
///
/// One step: reap completions, take commands, post them peer by peer, return the credits that no
/// message took along, close the batch, publish. All state lies in flat arrays that are made at
/// construction: no allocation and no look-up by hash after it.
///
/// - A command waits in its peer's queue; peers take turns, so that one without credits holds up
///   only itself, and the rings once its queue is full.
/// - Arrival is counted: an immediate, or an entry of a message, adds to the shadow of a signal
///   word, and words that changed are published once per step. Each word has this one writer.
/// - A write with immediate needs a credit of its peer, a message needs one for its slot. The
///   receiver returns them when it has taken in half of what it gave, so neither its queue nor its
///   slots can run over.
/// - A post that the endpoint refuses stays staged and is the next to be tried; commands stay where
///   they are until it is taken. A post is marked `more` only when the next one is ready, so every
///   batch is closed.
#pragma once

#include <eptransport/core/config.hpp>
#include <eptransport/core/memory.hpp>
#include <eptransport/core/result.hpp>
#include <eptransport/core/transport.hpp>
#include <eptransport/proxy/command.hpp>
#include <eptransport/proxy/eager.hpp>
#include <eptransport/proxy/endpoint.hpp>
#include <eptransport/proxy/fault_cell.hpp>
#include <eptransport/proxy/options.hpp>
#include <eptransport/proxy/ring.hpp>
#include <eptransport/proxy/statistics.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace eptransport::proxy {

/// What an engine works on; all of it outlives the engine.
struct engine_memory {
  std::vector<ring_view> rings;      ///< each with no other consumer
  std::uint64_t first_position = 0;  ///< of every ring
  std::uint64_t* signals = nullptr;  ///< words that this engine alone writes
  fault_cell* fault = nullptr;
};

/// One engine. Its end of the wire is `Endpoint`, which outlives it.
///
/// @par Threads  `step` and `watch` from one thread at a time; `statistics` from any.
template <ProxyEndpoint Endpoint>
class engine {
 public:
  /// Registers the buffers and posts the receive slots.
  ///
  /// @par Errors  those of `plan_engine`; what the endpoint refuses; `out_of_memory` for the slots
  [[nodiscard]] static result<std::unique_ptr<engine>> create(Endpoint& endpoint,
                                                              const command_codec& codec,
                                                              const engine_group& group,
                                                              const engine_options& options,
                                                              engine_memory memory) {
    const result<engine_plan> plan = plan_engine(options, group, endpoint.limits());
    if (!plan) return plan.error();
    std::unique_ptr<engine> made(new engine(endpoint, codec, group, *plan, std::move(memory)));
    if (result<void> ready = made->prepare(); !ready) return ready.error();
    return result<std::unique_ptr<engine>>(std::move(made));
  }

  engine(const engine&) = delete;
  engine& operator=(const engine&) = delete;
  /// What is in flight is forgotten; peers must not count on it any more.
  ~engine() { endpoint_.detach(); }

  /// Does what there is to do now; never waits.
  /// @returns false if there was nothing, or after a failure
  bool step() {
    if (memory_.fault->failed()) return false;
    bool moved = reap();
    // What the endpoint refused in the last step is tried first, and closes its batch.
    blocked_ = false;
    const bool ends = winding_down_.load(std::memory_order_relaxed);
    if (unstage(false) && !ends && visit()) moved = true;
    publish();
    // Release: whoever sees it sees what arrived before.
    if (ends && in_flight() == 0) wound_down_.store(true, std::memory_order_release);
    if (moved) {
      statistics_.steps.add(1);
      idle_ = false;
    } else if (!idle_) {
      for (ring& r : rings_) r.consumer.publish_tail();
      idle_ = true;
    } else {
      statistics_.idle.add(1);
    }
    return moved;
  }

  /// From its next step on the engine begins nothing more: what is in flight ends, what arrives is
  /// counted, and commands stay where they are.
  ///
  /// @par Threads  any
  void wind_down() noexcept { winding_down_.store(true, std::memory_order_relaxed); }
  /// Nothing is in flight any more after `wind_down`. Never true after a failure.
  ///
  /// @par Threads  any
  [[nodiscard]] bool wound_down() const noexcept {
    return wound_down_.load(std::memory_order_acquire);
  }
  /// Posts to that peer, of those that arrive as completions. Once `wound_down`, from any thread.
  [[nodiscard]] std::uint64_t posted(std::uint32_t peer) const { return peers_[peer].posted; }
  /// Such posts of peers that have arrived.
  ///
  /// @par Threads  any
  [[nodiscard]] std::uint64_t arrived() const noexcept { return arrived_.get(); }

  /// Looks for what does not move: four calls without progress of an operation, or of the first
  /// command that waits for a peer, are a failure that names the peer. The caller spaces them.
  void watch();

  [[nodiscard]] const engine_statistics& statistics() const noexcept { return statistics_; }
  [[nodiscard]] engine_statistics& statistics() noexcept { return statistics_; }
  [[nodiscard]] const engine_options& options() const noexcept { return options_; }
  /// The most that one command may count.
  [[nodiscard]] std::uint32_t max_count() const noexcept {
    return std::min(codec_.max_count(), immediates_.max_count());
  }
  /// Operations in flight. The engine's thread only.
  [[nodiscard]] std::uint32_t in_flight() const noexcept {
    return static_cast<std::uint32_t>(operations_.size() - free_operations_.size());
  }

 private:
  static constexpr std::size_t poll_entries = 64;
  static constexpr std::uint32_t serve_burst = 16;  ///< commands of a peer before the next's turn
  static constexpr std::uint32_t patience = 4;      ///< calls of `watch`

  struct ring {
    ring_consumer consumer;
    std::uint64_t complete = 0;      ///< all commands below it are complete
    std::vector<std::uint8_t> done;  ///< of commands from there on, by slot
    bool dirty = false;              ///< `complete` may have grown
  };

  /// A command that waits for its peer's turn.
  struct waiting {
    command what{};
    std::uint64_t position = 0;
    std::uint32_t ring = 0;
  };

  struct peer_state {
    std::uint32_t first = 0;  ///< of the queue; runs free, masked
    std::uint32_t last = 0;
    std::uint32_t write_credits = 0;
    std::uint32_t message_credits = 0;
    std::uint32_t writes_taken = 0;  ///< of the peer's, to be returned
    std::uint32_t messages_taken = 0;
    std::uint32_t buffer = no_buffer;  ///< of the message being filled
    std::uint32_t stalled = 0;         ///< calls of `watch` that found the same first command
    std::uint32_t watched = 0;         ///< that command, as `first`
    std::uint64_t posted = 0;          ///< what arrives there as a completion
    bool active = false;               ///< in the round of peers with commands
    bool owes = false;                 ///< in the list of peers to return credits to
    bool listed = false;               ///< in the list of peers with a message being filled
    message_writer message{};
  };

  enum class operation_kind : std::uint8_t { none, write, send, credit };
  struct operation {
    operation_kind kind = operation_kind::none;
    std::uint32_t peer = 0;
    std::uint32_t ring = 0;    ///< `write`
    std::uint32_t buffer = 0;  ///< `send`
    std::uint32_t age = 0;     ///< calls of `watch` that found it
    std::uint64_t position = 0;
  };

  /// The post that is made next: it waits to learn whether another follows.
  struct staged_post {
    bool there = false;
    bool is_send = false;
    write_post write{};
    send_post send{};
  };

  static constexpr std::uint32_t no_buffer = ~std::uint32_t{0};

  engine(Endpoint& endpoint, const command_codec& codec, const engine_group& group,
         const engine_plan& plan, engine_memory memory);

  result<void> prepare();

  // Arrivals: detail/engine_arrivals.hpp.
  bool reap();
  void handle(const completion& c);
  void take_immediate(std::uint32_t immediate);
  void take_message(const completion& c);
  void finish(const completion& c);
  void check_credits(std::uint32_t source);
  void owe(std::uint32_t peer);
  bool return_credits();
  bool return_credit(std::uint32_t peer, std::uint32_t& taken, std::uint32_t given,
                     std::uint32_t kind);
  void count(std::uint32_t signal, std::uint64_t n) noexcept;
  void publish() noexcept;
  void fail(errc code, const std::string& why);

  // Posting: detail/engine_posts.hpp.
  bool visit();
  std::uint32_t take_commands(std::uint32_t budget);
  bool take(std::uint32_t index, const command& c);
  void copy_locally(const command& c);
  void mark_done(std::uint32_t index, std::uint64_t position) noexcept;
  bool serve_peers();
  std::uint32_t serve(std::uint32_t index);
  bool append(std::uint32_t index, const waiting& w);
  bool write(std::uint32_t index, const waiting& w);
  bool close_message(std::uint32_t index);
  void close_messages();
  bool unstage(bool more);

  [[nodiscard]] std::uint32_t operation_of(operation_kind kind, std::uint32_t peer) noexcept {
    const std::uint32_t index = free_operations_.back();
    free_operations_.pop_back();
    operations_[index] = operation{kind, peer, 0, 0, 0, 0};
    statistics_.max_in_flight.raise_to(in_flight());
    return index;
  }
  [[nodiscard]] std::byte* send_buffer(std::uint32_t index) noexcept {
    return buffers_.get() + index * options_.slot_bytes;
  }
  [[nodiscard]] std::byte* receive_slot(std::uint32_t index) noexcept {
    return send_buffer(options_.send_buffers + index);
  }
  [[nodiscard]] waiting& waiting_at(std::uint32_t peer, std::uint32_t at) noexcept {
    return queues_[std::size_t{peer} * options_.peer_queue + (at & (options_.peer_queue - 1))];
  }

  struct aligned_delete {
    void operator()(std::byte* p) const noexcept { ::operator delete(p, std::align_val_t{4096}); }
  };

  Endpoint& endpoint_;
  command_codec codec_;
  immediate_codec immediates_;
  engine_group group_;
  engine_options options_;
  engine_memory memory_;
  std::span<std::byte> window_;
  std::uint32_t batch_limit_;
  bool copies_locally_;  ///< commands for the own rank need no wire

  std::vector<ring> rings_;
  std::uint32_t first_ring_ = 0;  ///< has the first turn in the next sweep
  std::vector<std::uint32_t> dirty_rings_;
  std::vector<waiting> queues_;  ///< [peer][peer_queue]
  std::vector<peer_state> peers_;
  std::vector<std::uint32_t> active_;  ///< round of peers with commands; a circular array
  std::uint32_t active_first_ = 0;
  std::uint32_t active_count_ = 0;
  std::vector<std::uint32_t> open_messages_;  ///< peers
  std::vector<std::uint32_t> owing_;          ///< peers to return credits to
  std::vector<operation> operations_;
  std::vector<std::uint32_t> free_operations_;
  std::vector<std::uint32_t> free_buffers_;
  std::unique_ptr<std::byte, aligned_delete> buffers_;  ///< send buffers, then receive slots
  std::vector<std::uint64_t> shadow_;                   ///< of the signal words
  std::vector<std::uint8_t> changed_;                   ///< [signal]
  std::vector<std::uint32_t> changed_list_;
  std::array<completion, poll_entries> completions_{};
  staged_post staged_{};
  std::uint32_t in_batch_ = 0;  ///< posts since the last doorbell
  bool blocked_ = false;        ///< the endpoint refused a post in this step
  bool idle_ = false;
  std::atomic<bool> winding_down_ = false;
  std::atomic<bool> wound_down_ = false;
  counter arrived_;
  engine_statistics statistics_;
};

}  // namespace eptransport::proxy

#include <eptransport/proxy/detail/engine_arrivals.hpp>
#include <eptransport/proxy/detail/engine_posts.hpp>
