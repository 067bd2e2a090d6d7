// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief How an emulated NIC executes requests: who is next, checks, payload, atomics.
#pragma once

#include <eptransport/core/config.hpp>
#include <eptransport/gdaki/emulator/detail/queue_pair.hpp>
#include <eptransport/gdaki/emulator/network.hpp>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

namespace eptransport::gdaki::emulator {

inline std::uint64_t network::random() noexcept {
  random_ += 0x9e3779b97f4a7c15U;  // splitmix64
  std::uint64_t z = random_;
  z = (z ^ (z >> 30U)) * 0xbf58476d1ce4e5b9U;
  z = (z ^ (z >> 27U)) * 0x94d049bb133111ebU;
  return z ^ (z >> 31U);
}

inline std::uint64_t network::step(std::uint64_t events) {
  std::uint64_t done = 0;
  while (done < events && !senders_.empty()) {
    const std::size_t start = below(senders_.size());
    bool progress = false;
    for (std::size_t i = 0; i < senders_.size() && !progress; ++i) {
      queue_pair& qp = *senders_[(start + i) % senders_.size()];
      fetch(qp);
      progress = advance(qp);
    }
    if (!progress) break;
    ++done;
  }
  return done;
}

/// One event of a queue pair: a piece of a request, or a completion.
inline bool network::advance(queue_pair& qp) {
  if (qp.stopped || nics_[qp.setup.nic].dead) return false;
  const bool any_order = qp.setup.format == wire::efa;
  if (!qp.notices.empty() && (qp.active.empty() || below(2) == 0)) {
    notify(qp, any_order ? below(qp.notices.size()) : 0);
    return true;
  }
  if (!qp.active.empty()) {
    const std::size_t window = std::min<std::size_t>(qp.active.size(), options_.reorder_window);
    const std::size_t start = any_order ? below(window) : 0;
    if (work(qp, start)) return true;
    for (std::size_t i = 0; any_order && i < window; ++i) {
      if (work(qp, i)) return true;
    }
  }
  if (qp.notices.empty()) return false;
  notify(qp, any_order ? below(qp.notices.size()) : 0);
  return true;
}

/// True if something happened; false if the request waits for a receive buffer.
inline bool network::work(queue_pair& qp, std::size_t which) {
  job& j = qp.active[which];
  if (j.stalled != 0) {
    --j.stalled;
    return true;
  }
  if (qp.failed) {
    end(qp, which, outcome::flushed);
    return true;
  }
  const destination to = find_destination(qp, j.what);
  if (to.how != outcome::ok) {
    end(qp, which, to.how);
    return true;
  }
  if (!j.started) {
    bool wait = false;
    outcome ready = admissible(qp, *to.pair, j.what);
    if (ready == outcome::ok) ready = take_receive(*to.pair, j, wait);
    if (wait) return false;
    if (ready != outcome::ok) {
      end(qp, which, ready);
      return true;
    }
    begin(qp, j);
  }
  outcome how = outcome::ok;
  if (planned(qp, j.number, mishap::fail) == nullptr && !j.chunks.empty()) {
    const std::uint32_t piece = j.chunks.back();
    j.chunks.pop_back();
    how = deliver_piece(qp, *to.pair, j, piece);
    if (how == outcome::ok && !j.chunks.empty()) return true;
  }
  if (how == outcome::ok && planned(qp, j.number, mishap::fail) == nullptr) arrive(qp, *to.pair, j);
  end(qp, which, how);
  return true;
}

/// Cuts the payload into pieces: in order for mlx5, shuffled for EFA.
inline void network::begin(queue_pair& qp, job& j) {
  j.started = true;
  const std::uint64_t size = std::max<std::uint64_t>(j.what.bytes(), 1);
  const auto pieces =
      static_cast<std::uint32_t>((size + options_.chunk_bytes - 1) / options_.chunk_bytes);
  j.chunks.resize(pieces);
  for (std::uint32_t i = 0; i < pieces; ++i) j.chunks[i] = pieces - 1 - i;
  if (qp.setup.format != wire::efa) return;
  for (std::uint32_t i = pieces; i > 1; --i) std::swap(j.chunks[i - 1], j.chunks[below(i)]);
}

inline network::destination network::find_destination(queue_pair& qp, const request& r) {
  std::uint32_t nic = qp.remote_nic;
  std::uint32_t qpn = qp.remote_qpn;
  if (qp.setup.format == wire::efa) {
    const auto& handles = nics_[qp.setup.nic].handles;
    const auto handle = handles.find(r.handle);
    if (handle == handles.end()) return {nullptr, outcome::bad_handle};
    nic = handle->second;
    qpn = r.target_qpn;
  }
  const auto found = by_number_.find(detail::key_of(nic, qpn));
  if (nic < nics_.size() && nics_[nic].dead) return {nullptr, outcome::unresponsive};
  if (found == by_number_.end()) return {nullptr, outcome::bad_destination};
  queue_pair& pair = *found->second;
  if (qp.setup.format == wire::efa && pair.setup.qkey != r.qkey) {
    return {nullptr, outcome::bad_destination};
  }
  if (pair.failed) return {nullptr, outcome::unresponsive};
  return {&pair, outcome::ok};
}

/// Messages, and writes with immediate unless unsolicited, use up a receive entry.
inline outcome network::take_receive(queue_pair& target, job& j, bool& wait) {
  const bool message = j.what.what == action::send;
  const bool notified = j.what.what == action::write && j.what.has_immediate;
  if (!message && !(notified && !target.setup.unsolicited_writes)) return outcome::ok;
  bool empty = false;
  parsed entry = next_receive(target, empty);
  if (empty) {
    wait = target.setup.waits_for_receive;
    return outcome::receiver_not_ready;
  }
  if (!entry.ok()) {
    report(target, entry.what, entry.offset);
    return outcome::receiver_not_ready;
  }
  ++target.receives;
  j.receive_id = entry.value.id;
  if (!message) return outcome::ok;
  j.target = std::move(entry.value.local);
  request room;
  room.local = j.target;
  return room.bytes() < j.what.bytes() ? outcome::receive_too_short : outcome::ok;
}

/// Where the byte at `offset` of a list of ranges lies; `bytes` shrinks to what is contiguous.
inline std::byte* network::locate(std::uint32_t nic, const std::vector<local_range>& ranges,
                                  std::uint64_t offset, std::uint64_t& bytes,
                                  std::uint8_t rights) const {
  for (const local_range& range : ranges) {
    if (offset >= range.bytes) {
      offset -= range.bytes;
      continue;
    }
    bytes = std::min<std::uint64_t>(bytes, range.bytes - offset);
    return nics_[nic].memory.local(range.key, range.address + offset, bytes, rights);
  }
  return nullptr;
}

/// Whether the whole local side is registered; a device checks it before it sends anything.
inline bool network::registered(const queue_pair& qp, const request& r, std::uint8_t rights) const {
  for (const local_range& range : r.local) {
    const memory_map& memory = nics_[qp.setup.nic].memory;
    if (memory.local(range.key, range.address, range.bytes, rights) == nullptr) return false;
  }
  return true;
}

/// Keys, ranges and rights of both ends, as they are now.
inline outcome network::admissible(const queue_pair& qp, const queue_pair& target,
                                   const request& r) const {
  if (r.what == action::nothing) return outcome::ok;
  const bool into_local = r.what != action::write && r.what != action::send;
  if (!registered(qp, r, into_local ? local_write : local_read)) return outcome::bad_local;
  std::uint8_t right = remote_atomic;
  if (r.what == action::send) return outcome::ok;
  if (r.what == action::read) right = remote_read;
  if (r.what == action::write) right = remote_write;
  const std::uint64_t size = r.bytes();
  const std::byte* there =
      nics_[target.setup.nic].memory.remote(r.remote.key, r.remote.address, size, right);
  return size == 0 || there != nullptr ? outcome::ok : outcome::bad_remote;
}

inline outcome network::deliver_piece(queue_pair& qp, queue_pair& target, const job& j,
                                      std::uint32_t piece) {
  const request& r = j.what;
  const outcome now = admissible(qp, target, r);  // a registration may have gone meanwhile
  if (now != outcome::ok || r.what == action::nothing) return now;
  if (r.what == action::fetch_add || r.what == action::compare_swap) {
    return run_atomic(qp, target, r);
  }
  const std::uint64_t from = std::uint64_t{piece} * options_.chunk_bytes;
  const std::uint64_t to = std::min<std::uint64_t>(from + options_.chunk_bytes, r.bytes());
  return from < to ? move_bytes(qp, target, j, from, to - from) : outcome::ok;
}

/// Moves a part of the payload, range by range.
inline outcome network::move_bytes(queue_pair& qp, queue_pair& target, const job& j,
                                   std::uint64_t from, std::uint64_t bytes) {
  const request& r = j.what;
  const bool reads = r.what == action::read;
  while (bytes != 0) {
    std::uint64_t part = bytes;
    std::byte* theirs = nullptr;
    if (r.what == action::send) {
      theirs = locate(target.setup.nic, j.target, from, part, local_write);
      if (theirs == nullptr) return outcome::receive_too_short;
    }
    std::byte* mine = nullptr;
    if (!r.is_inline) {
      mine = locate(qp.setup.nic, r.local, from, part, reads ? local_write : local_read);
      if (mine == nullptr) return outcome::bad_local;
    }
    if (r.what != action::send) {
      theirs = nics_[target.setup.nic].memory.remote(r.remote.key, r.remote.address + from, part,
                                                     reads ? remote_read : remote_write);
      if (theirs == nullptr) return outcome::bad_remote;
    }
    const std::byte* source = r.is_inline ? r.data.data() + from : mine;
    detail::deliver(reads ? mine : theirs, reads ? theirs : source, part);
    from += part;
    bytes -= part;
  }
  return outcome::ok;
}

inline outcome network::run_atomic(queue_pair& qp, queue_pair& target, const request& r) {
  std::byte* theirs =
      nics_[target.setup.nic].memory.remote(r.remote.key, r.remote.address, 8, remote_atomic);
  if (theirs == nullptr || reinterpret_cast<std::uintptr_t>(theirs) % 8 != 0) {
    return outcome::bad_remote;
  }
  std::atomic_ref word(*reinterpret_cast<std::uint64_t*>(theirs));
  std::uint64_t old = r.compare;
  if (r.what == action::fetch_add) {
    old = word.fetch_add(r.operand, std::memory_order_acq_rel);
  } else {
    word.compare_exchange_strong(old, r.operand, std::memory_order_acq_rel);
  }
  std::uint64_t bytes = 8;
  std::byte* mine = locate(qp.setup.nic, r.local, 0, bytes, local_write);
  if (mine == nullptr || bytes != 8) return outcome::bad_local;
  detail::deliver(mine, reinterpret_cast<const std::byte*>(&old), 8);
  return outcome::ok;
}

}  // namespace eptransport::gdaki::emulator
