// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The engine: from rings to posts. Included by engine.hpp.
#pragma once

#include <eptransport/proxy/engine.hpp>

namespace eptransport::proxy {

/// One visit of the rings: commands that it finds for one peer travel together.
template <ProxyEndpoint Endpoint>
bool engine<Endpoint>::visit() {
  bool moved = false;
  for (std::uint32_t left = options_.visit; left != 0;) {
    const std::uint32_t taken = take_commands(left);
    left -= taken;
    const bool served = serve_peers();
    if (taken != 0 || served) moved = true;
    if (taken == 0) break;
  }
  close_messages();
  if (return_credits()) moved = true;
  (void)unstage(false);  // closes the batch
  return moved;
}

/// One turn of every ring.
template <ProxyEndpoint Endpoint>
std::uint32_t engine<Endpoint>::take_commands(std::uint32_t budget) {
  std::uint32_t taken = 0;
  const auto rings = static_cast<std::uint32_t>(rings_.size());
  std::uint32_t index = first_ring_;
  for (std::uint32_t i = 0; i < rings && taken < budget; ++i) {
    ring& r = rings_[index];
    const std::uint32_t most = std::min(options_.ring_burst, budget - taken);
    const std::uint64_t limit = r.complete + r.consumer.ring().slots();
    std::uint32_t n = 0;
    command_words words;
    while (n < most && r.consumer.peek(words)) {
      if (r.consumer.position() == limit || !take(index, codec_.decode(words))) {
        statistics_.full_stalls.add(1);
        break;
      }
      r.consumer.pop();
      ++n;
    }
    taken += n;
    if (++index == rings) index = 0;
  }
  if (rings != 0) first_ring_ = first_ring_ + 1 == rings ? 0 : first_ring_ + 1;
  if (taken != 0) statistics_.commands.add(taken);
  return taken;
}

/// Puts a command into its peer's queue; false if that is full.
template <ProxyEndpoint Endpoint>
bool engine<Endpoint>::take(std::uint32_t index, const command& c) {
  const bool inside =
      c.bytes == 0 || (c.src_offset <= window_.size() && c.bytes <= window_.size() - c.src_offset);
  const bool known = c.signal == no_signal || c.signal < group_.signals;
  if (c.peer >= group_.ranks || !inside || !known || c.count > max_count()) {
    fail(errc::invalid_argument,
         "a command names peer " + std::to_string(c.peer) + " of " + std::to_string(group_.ranks) +
             ", signal " + std::to_string(c.signal) + " of " + std::to_string(group_.signals) +
             ", " + std::to_string(c.bytes) + " bytes at " + std::to_string(c.src_offset) +
             " of a window of " + std::to_string(window_.size()) + ", count " +
             std::to_string(c.count) + " of at most " + std::to_string(max_count()));
    return false;
  }
  const std::uint64_t position = rings_[index].consumer.position();
  if (c.peer == group_.rank && copies_locally_) {
    copy_locally(c);
    mark_done(index, position);
    return true;
  }
  peer_state& peer = peers_[c.peer];
  if (peer.last - peer.first == options_.peer_queue) return false;
  waiting_at(c.peer, peer.last++) = waiting{c, position, index};
  if (peer.active) return true;
  peer.active = true;
  std::uint32_t at = active_first_ + active_count_++;
  if (at >= active_.size()) at -= static_cast<std::uint32_t>(active_.size());
  active_[at] = c.peer;
  return true;
}

template <ProxyEndpoint Endpoint>
void engine<Endpoint>::copy_locally(const command& c) {
  statistics_.local.add(1);
  if (c.bytes != 0) {
    if (c.dst_offset > window_.size() || c.bytes > window_.size() - c.dst_offset) {
      return fail(errc::invalid_argument,
                  std::to_string(c.bytes) + " bytes to " + std::to_string(c.dst_offset) +
                      " of the own window of " + std::to_string(window_.size()));
    }
    std::memmove(window_.data() + c.dst_offset, window_.data() + c.src_offset, c.bytes);
  }
  if (c.signal != no_signal) count(c.signal, c.count);
}

template <ProxyEndpoint Endpoint>
void engine<Endpoint>::mark_done(std::uint32_t index, std::uint64_t position) noexcept {
  ring& r = rings_[index];
  r.done[position & (r.consumer.ring().slots() - 1)] = 1;
  if (r.dirty) return;
  r.dirty = true;
  dirty_rings_.push_back(index);
}

/// Peers take turns until none can go on.
template <ProxyEndpoint Endpoint>
bool engine<Endpoint>::serve_peers() {
  bool moved = false;
  const auto size = static_cast<std::uint32_t>(active_.size());
  for (std::uint32_t stuck = 0; stuck < active_count_ && !blocked_;) {
    const std::uint32_t index = active_[active_first_];
    if (++active_first_ == size) active_first_ = 0;
    --active_count_;
    peer_state& peer = peers_[index];
    if (serve(index) != 0) {
      moved = true;
      stuck = 0;
    } else {
      ++stuck;
    }
    if (peer.first == peer.last) {
      peer.active = false;
      continue;
    }
    std::uint32_t at = active_first_ + active_count_++;
    if (at >= size) at -= size;
    active_[at] = index;
  }
  return moved;
}

/// Posts some commands of one peer; how many.
template <ProxyEndpoint Endpoint>
std::uint32_t engine<Endpoint>::serve(std::uint32_t index) {
  peer_state& peer = peers_[index];
  std::uint32_t n = 0;
  while (n < serve_burst && peer.first != peer.last) {
    const waiting& w = waiting_at(index, peer.first);
    const bool inside = options_.eager != 0 && w.what.bytes <= options_.eager;
    if (!(inside ? append(index, w) : write(index, w))) break;
    ++peer.first;
    ++n;
  }
  return n;
}

/// Adds a command to its peer's message. Its source is free at once.
template <ProxyEndpoint Endpoint>
bool engine<Endpoint>::append(std::uint32_t index, const waiting& w) {
  peer_state& peer = peers_[index];
  if (peer.message.open() && !peer.message.fits(w.what.bytes, options_.slot_bytes) &&
      !close_message(index)) {
    return false;
  }
  if (!peer.message.open()) {
    if (peer.message_credits == 0) {
      statistics_.credit_stalls.add(1);
      return false;
    }
    if (free_buffers_.empty()) return false;
    peer.buffer = free_buffers_.back();
    free_buffers_.pop_back();
    --peer.message_credits;
    peer.message = message_writer(send_buffer(peer.buffer));
    if (!peer.listed) open_messages_.push_back(index);
    peer.listed = true;
  }
  peer.message.append({.dst_offset = w.what.dst_offset,
                       .bytes = static_cast<std::uint32_t>(w.what.bytes),
                       .signal = w.what.signal,
                       .count = w.what.count,
                       .reserved = 0},
                      window_.data() + w.what.src_offset);
  statistics_.grouped.add(1);
  mark_done(w.ring, w.position);
  return true;
}

/// Stages a write; false if something is lacking.
template <ProxyEndpoint Endpoint>
bool engine<Endpoint>::write(std::uint32_t index, const waiting& w) {
  peer_state& peer = peers_[index];
  const bool signals = w.what.signal != no_signal;
  if (signals && peer.write_credits == 0) {
    statistics_.credit_stalls.add(1);
    return false;
  }
  if (free_operations_.empty() || !unstage(true)) return false;
  const std::uint32_t op = operation_of(operation_kind::write, index);
  operations_[op].ring = w.ring;
  operations_[op].position = w.position;
  staged_.there = true;
  staged_.is_send = false;
  staged_.write = write_post{
      .peer = index,
      .src = w.what.bytes == 0 ? nullptr : window_.data() + w.what.src_offset,
      .dst_offset = w.what.dst_offset,
      .bytes = w.what.bytes,
      .immediate = signals ? immediates_.encode(group_.rank, w.what.signal, w.what.count) : 0,
      .has_immediate = signals,
      .context = op};
  if (signals) {
    --peer.write_credits;
    ++peer.posted;
  }
  statistics_.writes.add(1);
  statistics_.bytes.add(w.what.bytes);
  return true;
}

/// Stages the message being filled for a peer; false if there is no operation for it.
template <ProxyEndpoint Endpoint>
bool engine<Endpoint>::close_message(std::uint32_t index) {
  peer_state& peer = peers_[index];
  if (free_operations_.empty() || !unstage(true)) return false;
  message_header header{group_.rank, 0, 0, 0};
  std::swap(header.write_credits, peer.writes_taken);
  std::swap(header.message_credits, peer.messages_taken);
  peer.message.close(header);
  const std::uint32_t op = operation_of(operation_kind::send, index);
  operations_[op].buffer = peer.buffer;
  staged_.there = true;
  staged_.is_send = true;
  staged_.send = send_post{.peer = index,
                           .data = send_buffer(peer.buffer),
                           .bytes = peer.message.bytes(),
                           .context = op};
  statistics_.bytes.add(peer.message.bytes());
  peer.message = message_writer();
  ++peer.posted;
  statistics_.messages.add(1);
  return true;
}

/// At the end of a visit nothing stays behind, unless the endpoint has no room for it.
template <ProxyEndpoint Endpoint>
void engine<Endpoint>::close_messages() {
  while (!open_messages_.empty()) {
    const std::uint32_t index = open_messages_.back();
    if (peers_[index].message.open() && !close_message(index)) return;
    peers_[index].listed = false;
    open_messages_.pop_back();
  }
}

/// Makes the post that is staged, if any; false if the endpoint refuses it.
template <ProxyEndpoint Endpoint>
bool engine<Endpoint>::unstage(bool more) {
  if (!staged_.there) return true;
  if (blocked_) return false;
  more = more && in_batch_ + 1 < batch_limit_;
  staged_.write.more = more;
  staged_.send.more = more;
  const post_result posted =
      staged_.is_send ? endpoint_.send(staged_.send) : endpoint_.write(staged_.write);
  if (posted != post_result::posted) {
    blocked_ = true;
    if (posted == post_result::again) statistics_.again.add(1);
    return false;
  }
  staged_.there = false;
  in_batch_ = more ? in_batch_ + 1 : 0;
  if (!more) statistics_.batches.add(1);
  return true;
}

}  // namespace eptransport::proxy
