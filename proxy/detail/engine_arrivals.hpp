// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The engine: construction, completions, credits, the watch. Included by engine.hpp.
#pragma once

#include <eptransport/proxy/engine.hpp>

namespace eptransport::proxy {

template <ProxyEndpoint Endpoint>
engine<Endpoint>::engine(Endpoint& endpoint, const command_codec& codec, const engine_group& group,
                         const engine_plan& plan, engine_memory memory)
    : endpoint_(endpoint),
      codec_(codec),
      immediates_(plan.immediates),
      group_(group),
      options_(plan.options),
      memory_(std::move(memory)),
      window_(endpoint.window()),
      batch_limit_(std::max<std::uint32_t>(endpoint.limits().batch, 1)),
      copies_locally_(endpoint.limits().readable_window),
      queues_(std::size_t{group.ranks} * plan.options.peer_queue),
      peers_(group.ranks),
      active_(group.ranks),
      operations_(plan.options.operations),
      shadow_(group.signals),
      changed_(group.signals) {
  for (const ring_view& view : memory_.rings) {
    ring& r = rings_.emplace_back();
    r.consumer = ring_consumer(view, memory_.first_position);
    r.complete = memory_.first_position;
    r.done.resize(view.slots());
  }
  dirty_rings_.reserve(rings_.size());
  open_messages_.reserve(group.ranks);
  owing_.reserve(group.ranks);
  changed_list_.reserve(group.signals);
  free_operations_.reserve(operations_.size());
  for (std::uint32_t i = options_.operations; i-- > 0;) free_operations_.push_back(i);
  free_buffers_.reserve(options_.send_buffers);
  for (std::uint32_t i = options_.send_buffers; i-- > 0;) free_buffers_.push_back(i);
  for (peer_state& peer : peers_) {
    peer.write_credits = options_.writes_per_peer;
    peer.message_credits = options_.slots_per_peer;
  }
  // The words may begin anywhere.
  for (std::uint32_t s = 0; s < group.signals; ++s) {
    shadow_[s] = host_memory::signal_acquire(memory_.signals + s);
  }
}

template <ProxyEndpoint Endpoint>
result<void> engine<Endpoint>::prepare() {
  if (options_.eager == 0) return endpoint_.attach({});
  const std::uint64_t slots = std::uint64_t{group_.ranks - 1} * options_.slots_per_peer;
  const std::uint64_t bytes = (options_.send_buffers + slots) * options_.slot_bytes;
  buffers_.reset(
      static_cast<std::byte*>(::operator new(bytes, std::align_val_t{4096}, std::nothrow)));
  if (buffers_ == nullptr) {
    return failure{errc::out_of_memory, "engine::create",
                   std::to_string(bytes) + " bytes of slots for " + std::to_string(slots) +
                       " messages; use a smaller slot_bytes or fewer slots_per_peer"};
  }
  std::memset(buffers_.get(), 0, bytes);
  if (result<void> attached = endpoint_.attach({buffers_.get(), bytes}); !attached) {
    return attached;
  }
  for (std::uint32_t i = 0; i < slots; ++i) {
    if (endpoint_.receive(receive_slot(i), options_.slot_bytes, i) == post_result::posted) continue;
    const bool says = endpoint_.poll(std::span(completions_).first(1)) == 1 &&
                      completions_[0].kind == completion_kind::error;
    return failure{errc::unsupported, "engine::create",
                   "the endpoint took " + std::to_string(i) + " receive slots of " +
                       std::to_string(slots) +
                       (says ? ": " + endpoint_.describe(completions_[0].code) : std::string())};
  }
  return {};
}

template <ProxyEndpoint Endpoint>
bool engine<Endpoint>::reap() {
  bool any = false;
  // A full queue is read again, a few times: completions free what commands wait for.
  for (int round = 0; round < 4; ++round) {
    const std::size_t n = endpoint_.poll(completions_);
    if (n == 0) break;
    any = true;
    statistics_.polls.add(1);
    statistics_.completions.add(n);
    for (std::size_t i = 0; i < n; ++i) handle(completions_[i]);
    if (n < poll_entries) break;
  }
  return any;
}

template <ProxyEndpoint Endpoint>
void engine<Endpoint>::handle(const completion& c) {
  switch (c.kind) {
    case completion_kind::write:
    case completion_kind::send:
      return finish(c);
    case completion_kind::immediate:
      return take_immediate(c.immediate);
    case completion_kind::message:
      return take_message(c);
    case completion_kind::error:
      return fail(errc::transport_failed,
                  (c.peer < group_.ranks ? "an operation to rank " + std::to_string(c.peer)
                                         : std::string("an operation of an unknown peer")) +
                      " failed: " + endpoint_.describe(c.code));
  }
}

template <ProxyEndpoint Endpoint>
void engine<Endpoint>::finish(const completion& c) {
  if (c.context >= operations_.size() || operations_[c.context].kind == operation_kind::none) {
    return fail(errc::transport_failed, "the endpoint completed operation " +
                                            std::to_string(c.context) + ", which is not in flight");
  }
  operation& op = operations_[c.context];
  if (op.kind == operation_kind::write) mark_done(op.ring, op.position);
  if (op.kind == operation_kind::send) free_buffers_.push_back(op.buffer);
  op.kind = operation_kind::none;
  free_operations_.push_back(c.context);
}

template <ProxyEndpoint Endpoint>
void engine<Endpoint>::take_immediate(std::uint32_t immediate) {
  const immediate_codec::fields f = immediates_.decode(immediate);
  if (f.source >= group_.ranks || f.signal > immediates_.message_credit()) {
    return fail(errc::transport_failed, "immediate " + std::to_string(immediate) + " names rank " +
                                            std::to_string(f.source) + " and signal " +
                                            std::to_string(f.signal));
  }
  arrived_.add(1);
  peer_state& peer = peers_[f.source];
  if (f.signal == immediates_.write_credit()) {
    peer.write_credits += f.count;
  } else if (f.signal == immediates_.message_credit()) {
    peer.message_credits += f.count;
  } else {
    statistics_.immediates.add(1);
    count(f.signal, f.count);
    ++peer.writes_taken;
    owe(f.source);
    return;
  }
  check_credits(f.source);
}

template <ProxyEndpoint Endpoint>
void engine<Endpoint>::check_credits(std::uint32_t source) {
  const peer_state& peer = peers_[source];
  if (peer.write_credits <= options_.writes_per_peer &&
      peer.message_credits <= options_.slots_per_peer) {
    return;
  }
  fail(errc::transport_failed,
       "rank " + std::to_string(source) + " returned more credits than it was given: " +
           std::to_string(peer.write_credits) + " of " + std::to_string(options_.writes_per_peer) +
           " writes, " + std::to_string(peer.message_credits) + " of " +
           std::to_string(options_.slots_per_peer) + " messages");
}

template <ProxyEndpoint Endpoint>
void engine<Endpoint>::take_message(const completion& c) {
  arrived_.add(1);
  statistics_.arrived_messages.add(1);
  message_reader reader(receive_slot(c.context), c.bytes);
  const message_header& header = reader.header();
  const auto malformed = [&](const char* what) {
    fail(errc::transport_failed, "a message of " + std::to_string(c.bytes) +
                                     " bytes that names rank " + std::to_string(header.source) +
                                     " " + what);
  };
  if (!reader.valid() || header.source >= group_.ranks) return malformed("has no valid header");
  for (std::uint32_t i = 0; i < header.entries; ++i) {
    message_entry entry;
    const std::byte* payload = nullptr;
    if (!reader.next(entry, payload)) return malformed("ends within an entry");
    if (entry.bytes != 0) {
      if (entry.dst_offset > window_.size() || entry.bytes > window_.size() - entry.dst_offset) {
        return malformed("leads out of the window");
      }
      std::memcpy(window_.data() + entry.dst_offset, payload, entry.bytes);
    }
    if (entry.signal == no_signal) continue;
    if (entry.signal >= group_.signals) return malformed("names a signal that is not there");
    count(entry.signal, entry.count);
  }
  peer_state& peer = peers_[header.source];
  peer.write_credits += header.write_credits;
  peer.message_credits += header.message_credits;
  ++peer.messages_taken;
  owe(header.source);
  check_credits(header.source);
  // What it refuses for good, an error completion explains.
  if (endpoint_.receive(receive_slot(c.context), options_.slot_bytes, c.context) ==
      post_result::again) {
    fail(errc::transport_failed, "the endpoint had no room for a receive slot that it had before");
  }
}

template <ProxyEndpoint Endpoint>
void engine<Endpoint>::owe(std::uint32_t index) {
  peer_state& peer = peers_[index];
  if (peer.owes || (peer.writes_taken < options_.writes_per_peer / 2 &&
                    (options_.eager == 0 || peer.messages_taken < options_.slots_per_peer / 2))) {
    return;
  }
  peer.owes = true;
  owing_.push_back(index);
}

template <ProxyEndpoint Endpoint>
bool engine<Endpoint>::return_credits() {
  bool any = false;
  while (!owing_.empty()) {
    const std::uint32_t index = owing_.back();
    peer_state& peer = peers_[index];
    if (!return_credit(index, peer.writes_taken, options_.writes_per_peer,
                       immediates_.write_credit()) ||
        !return_credit(index, peer.messages_taken, options_.slots_per_peer,
                       immediates_.message_credit())) {
      break;
    }
    peer.owes = false;
    owing_.pop_back();
    any = true;
  }
  return any;
}

/// False if it has to be tried again.
template <ProxyEndpoint Endpoint>
bool engine<Endpoint>::return_credit(std::uint32_t index, std::uint32_t& taken, std::uint32_t given,
                                     std::uint32_t kind) {
  if (taken == 0 || taken < given / 2) return true;
  if (free_operations_.empty() || !unstage(true)) return false;
  const std::uint32_t n = std::min(taken, immediates_.max_count());
  staged_.there = true;
  staged_.is_send = false;
  staged_.write = write_post{.peer = index,
                             .immediate = immediates_.encode(group_.rank, kind, n),
                             .has_immediate = true,
                             .context = operation_of(operation_kind::credit, index)};
  taken -= n;
  ++peers_[index].posted;
  statistics_.credit_writes.add(1);
  return true;
}

template <ProxyEndpoint Endpoint>
void engine<Endpoint>::count(std::uint32_t signal, std::uint64_t n) noexcept {
  shadow_[signal] += n;
  if (changed_[signal] != 0) return;
  changed_[signal] = 1;
  changed_list_.push_back(signal);
}

template <ProxyEndpoint Endpoint>
void engine<Endpoint>::publish() noexcept {
  for (const std::uint32_t signal : changed_list_) {
    changed_[signal] = 0;
    // Release, pairs with signal_acquire of the waiting rank: the bytes came before.
    host_memory::signal_store(memory_.signals + signal, shadow_[signal]);
  }
  statistics_.signals.add(changed_list_.size());
  changed_list_.clear();
  for (const std::uint32_t index : dirty_rings_) {
    ring& r = rings_[index];
    r.dirty = false;
    const std::uint64_t mask = r.consumer.ring().slots() - 1;
    const std::uint64_t before = r.complete;
    while (r.done[r.complete & mask] != 0) r.done[r.complete++ & mask] = 0;
    if (r.complete != before) r.consumer.publish_complete(r.complete);
  }
  dirty_rings_.clear();
}

template <ProxyEndpoint Endpoint>
void engine<Endpoint>::fail(errc code, const std::string& why) {
  memory_.fault->report({code, "proxy engine", "rank " + std::to_string(group_.rank) + ": " + why});
}

template <ProxyEndpoint Endpoint>
void engine<Endpoint>::watch() {
  if (memory_.fault->failed()) return;
  for (operation& op : operations_) {
    if (op.kind == operation_kind::none || ++op.age < patience) continue;
    return fail(errc::timed_out,
                std::string("a ") + (op.kind == operation_kind::send ? "message" : "write") +
                    " to rank " + std::to_string(op.peer) + " was not completed in time");
  }
  // After `wind_down` commands stay where they are.
  const bool ends = winding_down_.load(std::memory_order_relaxed);
  for (std::uint32_t i = 0; i < peers_.size() && !ends; ++i) {
    peer_state& peer = peers_[i];
    const bool same = peer.first != peer.last && peer.first == peer.watched;
    peer.watched = peer.first;
    peer.stalled = same ? peer.stalled + 1 : 0;
    if (peer.stalled < patience) continue;
    return fail(
        errc::timed_out,
        std::to_string(peer.last - peer.first) + " commands for rank " + std::to_string(i) +
            " could not be posted in time; credits left: " + std::to_string(peer.write_credits) +
            " writes, " + std::to_string(peer.message_credits) + " messages");
  }
}

}  // namespace eptransport::proxy
