// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Messages of the simulated world: from a put to its landing. Included by engine.hpp.
#pragma once

#include <eptransport/backends/loopback/detail/engine.hpp>

namespace eptransport::loopback_detail {

inline engine::engine(const capabilities& caps, const loopback_options& options,
                      std::vector<int> nodes, const capabilities* inner)
    : caps_(caps),
      inner_(inner == nullptr ? std::nullopt : std::optional(*inner)),
      options_(options),
      nodes_(std::move(nodes)),
      direct_(options.mode == run_mode::free && options.order == delivery::immediate &&
              options.faults.empty()),
      random_(options.seed),
      eagerness_(std::uint32_t{3} * (static_cast<std::uint32_t>(random_.below(5)))),
      preemption_(1 + static_cast<std::uint32_t>(random_.below(8))),
      scheduler_(*this, random_, trace_, options.order == delivery::immediate),
      wire_(*this, random_, trace_,
            {.ranks = options.ranks,
             .channels = options.channels,
             .in_order = caps.put_order == ordering::per_channel}),
      timing_({.ranks = options.ranks,
               .channels = options.channels,
               .queue_depth = options.queue_depth,
               .host_progress = caps.host_progress,
               .charge = options.charge.value_or(caps.charge)},
              nodes_),
      at_barrier_(static_cast<std::size_t>(options.ranks)),
      came_(static_cast<std::size_t>(options.ranks)) {
  if (inner_) {
    inner_timing_ = std::make_unique<timing>(timing_shape{.ranks = options.ranks,
                                                          .channels = options.channels,
                                                          .queue_depth = options.queue_depth,
                                                          .host_progress = inner_->host_progress,
                                                          .charge = inner_->charge},
                                             nodes_);
  }
  for (int rank = 0; rank < options.ranks; ++rank) {
    ranks_.push_back(std::make_unique<rank_state>(options_, options.signals * (inner_ ? 2U : 1U)));
    for (const loopback_fault& fault : options_.faults) {
      if (fault.rank == rank) ranks_.back()->faults.push_back(fault);
    }
  }
}

inline bool engine::valid() const noexcept {
  for (const auto& each : ranks_) {
    if (!each->memory.valid()) return false;
  }
  return true;
}

inline std::uint64_t engine::now_locked(int rank) {
  if (baton()) return clock(rank).now_ns();
  const auto age = std::chrono::steady_clock::now() - born_;
  return static_cast<std::uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(age).count());
}

inline std::uint64_t engine::now_ns(int rank) {
  if (!baton()) return now_locked(rank);
  const lock_type lock = begin_look();
  return now_locked(rank);
}

inline std::byte* engine::peer_pointer(int rank, int peer, std::uint64_t offset,
                                       std::uint64_t bytes, bool inner) {
  if (!valid_rank(peer) || !state(peer).memory.contains(offset, bytes)) {
    const lock_type lock(mutex_);
    violations_.add("rank " + std::to_string(rank) + " asked for the address of " +
                    std::to_string(bytes) + " bytes at " + std::to_string(offset) + " of rank " +
                    std::to_string(peer) + ", the window has " +
                    std::to_string(options_.window_bytes));
    return nullptr;
  }
  std::byte* address = state(peer).memory.data() + offset;
  if (peer == rank) return address;
  if (caps_of(inner).peer_reach == reach::never) return nullptr;
  if (inner && node(peer) != node(rank)) return nullptr;
  count(rank, peer, 0, bytes);
  if (baton()) {
    const lock_type lock = begin_look();
    (inner ? *inner_timing_ : timing_).store(rank, bytes, clock(rank));
  }
  return address;
}

inline void engine::count(int rank, int peer, std::uint64_t messages, std::uint64_t bytes) {
  if (rank == peer) return;
  rank_state& own = state(rank);
  own.messages.fetch_add(messages,
                         std::memory_order_relaxed);  // statistics: no pair
  own.bytes.fetch_add(bytes, std::memory_order_relaxed);
  if (node(rank) == node(peer)) return;
  own.inter_messages.fetch_add(messages, std::memory_order_relaxed);
  own.inter_bytes.fetch_add(bytes, std::memory_order_relaxed);
}

/// @returns what contradicts the contract, or an empty text
inline std::string engine::wrong_with(int rank, std::uint32_t channel, const put_request& request,
                                      bool inner) {
  const auto number = [](auto value) { return std::to_string(value); };
  const capabilities& caps = caps_of(inner);
  if (!valid_rank(request.peer)) {
    return "peer " + number(request.peer) + " of " + number(options_.ranks) + " ranks";
  }
  if (channel >= options_.channels) {
    return "channel " + number(channel) + " of " + number(options_.channels);
  }
  if (inner && node(request.peer) != node(rank)) {
    return "peer " + number(request.peer) + " of another node, over the wire inside the node";
  }
  if (request.signal != no_signal && request.signal >= options_.signals) {
    return "signal " + number(request.signal) + " of " + number(options_.signals);
  }
  if (caps.max_message != 0 && request.bytes > caps.max_message) {
    return number(request.bytes) + " bytes, max_message is " + number(caps.max_message);
  }
  if (!state(request.peer).memory.contains(request.dst_offset, request.bytes)) {
    return number(request.bytes) + " bytes at " + number(request.dst_offset) + " of rank " +
           number(request.peer) + ", its window has " + number(options_.window_bytes);
  }
  if (caps.needs_registered_source && request.bytes > caps.inline_bytes &&
      !state(rank).memory.contains(request.src, request.bytes)) {
    return number(request.bytes) + " bytes from outside the own window";
  }
  return {};
}

/// Fails the rank's transport if the request contradicts the contract.
inline bool engine::admit(int rank, std::uint32_t channel, const put_request& request, bool inner) {
  const std::string wrong = wrong_with(rank, channel, request, inner);
  if (wrong.empty()) return true;
  violations_.add("put of rank " + std::to_string(rank) + ": " + wrong);
  fail(rank, errc::invalid_argument, "put", "rank " + std::to_string(rank) + ": " + wrong);
  return false;
}

inline op_status engine::put(int rank, std::uint32_t channel, const put_request& request,
                             std::uint64_t deadline_ns, bool inner) {
  if (direct_) return put_directly(rank, channel, request, inner);
  lock_type lock = begin_operation(rank);
  if (state(rank).failed) return op_status::failed;
  if (!admit(rank, channel, request, inner)) return op_status::failed;
  const verdict what = strike(rank, channel, request, deadline_ns, lock);
  if (what.status != op_status::ok) return what.status;
  const op_status room = wait_for_room(rank, channel, deadline_ns, lock);
  if (room != op_status::ok) return room;
  send(rank, channel, request, what, inner);
  scheduling_point(lock);
  return op_status::ok;
}

/// Free threads, immediate delivery: the caller copies, then releases the signal.
inline op_status engine::put_directly(int rank, std::uint32_t channel, const put_request& request,
                                      bool inner) {
  if (state(rank).failed) return op_status::failed;
  if (!wrong_with(rank, channel, request, inner).empty()) {
    const lock_type lock(mutex_);
    (void)admit(rank, channel, request, inner);
    return op_status::failed;
  }
  count(rank, request.peer, 1, request.bytes);
  rank_state& peer = state(request.peer);
  if (request.bytes != 0) {
    std::memcpy(peer.memory.data() + request.dst_offset, request.src, request.bytes);
  }
  const std::uint32_t word = word_of(request.signal, inner);
  if (request.signal != no_signal) host_memory::signal_add(&peer.words[word], 1);
  return op_status::ok;
}

inline op_status engine::wait_for_room(int rank, std::uint32_t channel, std::uint64_t deadline_ns,
                                       lock_type& lock) {
  if (options_.queue_depth == 0) return op_status::ok;
  while (wire_.in_flight(rank, channel) >= options_.queue_depth) {
    if (now_locked(rank) > deadline_ns) return op_status::expired;
    sleep(rank, {.why = blocked_on::room, .deadline_ns = deadline_ns, .channel = channel}, lock);
    if (state(rank).failed) return op_status::failed;
  }
  return op_status::ok;
}

/// Charges a message to its wire and returns its arrival. What a rank issues on one wire follows
/// what it stored and loaded on the other before: it may have been made of that.
inline double engine::charge(int rank, const parcel& p, bool inner) {
  if (!inner_) return timing_.send(p, clock(rank));
  timing& own = inner ? *inner_timing_ : timing_;
  const timing& other = inner ? timing_ : *inner_timing_;
  return own.send(p, clock(rank), other.stores_end(rank));
}

/// Charges the message and puts it on the wire, or lands it.
inline void engine::send(int rank, std::uint32_t channel, const put_request& request,
                         const verdict& what, bool inner) {
  count(rank, request.peer, 1, request.bytes);
  auto m = std::make_unique<message>();
  m->source = rank;
  m->channel = channel;
  m->request = request;
  m->request.signal = word_of(request.signal, inner);
  m->serial = serial_++;
  m->ordered = caps_of(inner).put_order == ordering::per_channel;
  const bool shuffled = options_.order == delivery::shuffled;
  std::uint64_t extra_ns = what.late_ns;
  if (shuffled && options_.max_delay_ns != 0) extra_ns += random_.below(options_.max_delay_ns + 1);
  if (baton()) {
    m->arrival_ns = charge(rank,
                           {.rank = rank,
                            .channel = channel,
                            .peer = request.peer,
                            .bytes = request.bytes,
                            .extra_ns = static_cast<double>(extra_ns)},
                           inner);
    if (what.late_ns != 0) m->held_until = static_cast<std::uint64_t>(m->arrival_ns) + 1;
    claim(*m);
  } else if (extra_ns != 0) {
    m->held_until = now_locked(rank) + extra_ns;
  }
  if (what.lost) {
    state(request.peer).unread.drop(request.dst_offset, m->serial);
    return;
  }
  // On an ordered wire nothing overtakes what is held up.
  const bool behind = wire_.in_flight(rank, channel) != 0;
  if (shuffled || m->held_until != 0 || behind) {
    if (shuffled) {
      m->pieces = tear(request.bytes, options_.max_chunks, random_);
    } else if (request.bytes != 0) {
      m->pieces = {{0, request.bytes}};
    }
    wire_.send(std::move(m));
    return;
  }
  if (request.bytes != 0) land_piece(*m, {0, request.bytes});
  land_signal(*m);
}

inline void engine::claim(const message& m) {
  if (!options_.check_double_writes || m.request.bytes == 0) return;
  const put_request& r = m.request;
  if (state(r.peer).unread.claim(r.dst_offset, r.bytes, m.serial) == 0) return;
  violations_.add("rank " + std::to_string(m.source) + " wrote " + std::to_string(r.bytes) +
                  " bytes at " + std::to_string(r.dst_offset) + " of rank " +
                  std::to_string(r.peer) + " over an earlier put that was not acquired yet");
}

inline void engine::land_piece(const message& m, piece p) {
  std::memcpy(state(m.request.peer).memory.data() + m.request.dst_offset + p.offset,
              m.bytes() + p.offset, p.bytes);
}

inline void engine::land_signal(const message& m) {
  const put_request& r = m.request;
  rank_state& peer = state(r.peer);
  if (r.signal == no_signal) {
    if (r.bytes != 0) peer.unread.drop(r.dst_offset, m.serial);
  } else {
    std::uint64_t* word = &peer.words[r.signal];
    host_memory::signal_add(word, 1);  // pairs with signal_acquire in wait_signal, read_signal
    if (baton()) {
      peer.arrived[r.signal].add(m.arrival_ns, scheduler_.earliest_clock(r.peer));
      if (options_.check_double_writes && r.bytes != 0) {
        peer.unread.landed(r.signal, host_memory::signal_acquire(word), r.dst_offset, m.serial);
      }
    }
    scheduler_.word_changed(r.peer, word);
  }
  scheduler_.room_in_queue(m.source, m.channel);
}

}  // namespace eptransport::loopback_detail

#include <eptransport/backends/loopback/detail/engine_wait.hpp>
