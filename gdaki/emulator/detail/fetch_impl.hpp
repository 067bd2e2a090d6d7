// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief How an emulated NIC learns of entries: doorbells, batches, rings.
#pragma once

#include <eptransport/core/config.hpp>
#include <eptransport/gdaki/emulator/efa_parser.hpp>
#include <eptransport/gdaki/emulator/mlx5_parser.hpp>
#include <eptransport/gdaki/emulator/network.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <utility>
#include <vector>

namespace eptransport::gdaki::emulator {

namespace detail {

/// Reads a word that a poster writes; pairs with its doorbell store, after the entries.
template <class T>
[[nodiscard]] T read_register(const void* word) noexcept {
  return std::atomic_ref(*const_cast<T*>(static_cast<const T*>(word)))
      .load(std::memory_order_acquire);
}

[[nodiscard]] inline std::uint64_t read_any(wire format, const void* word) noexcept {
  return format == wire::efa ? read_register<std::uint32_t>(word)
                             : read_register<std::uint64_t>(word);
}

}  // namespace detail

inline void network::add_queue_pair(const queue_pair_setup& setup) {
  queue_pair& qp = pairs_.emplace_back();
  qp.setup = setup;
  qp.fetched = qp.finished = setup.send.first;
  for (const void* word : setup.send.doorbells) {
    qp.registers.push_back(detail::read_any(setup.format, word));
  }
  by_number_[detail::key_of(setup.nic, setup.qpn)] = &qp;
  if (setup.send.ring != nullptr) senders_.push_back(&qp);
}

inline void network::connect(std::uint32_t nic, std::uint32_t qpn, std::uint32_t remote_nic,
                             std::uint32_t remote_qpn) {
  queue_pair& qp = *by_number_.at(detail::key_of(nic, qpn));
  qp.remote_nic = remote_nic;
  qp.remote_qpn = remote_qpn;
}

inline void network::report(queue_pair& qp, violation what, std::uint32_t offset) {
  findings_.push_back({what, qp.setup.nic, qp.setup.qpn, qp.fetched, offset});
  qp.stopped = true;
}

inline void network::fetch(queue_pair& qp) {
  if (qp.stopped || nics_[qp.setup.nic].dead || qp.setup.send.ring == nullptr) return;
  if (qp.setup.format == wire::efa) {
    fetch_efa(qp);
  } else {
    fetch_mlx5(qp);
  }
}

/// False: the entry broke a rule and the queue pair has stopped, or the NIC has died.
inline bool network::accept(queue_pair& qp, parsed&& entry) {
  nic_state& nic = nics_[qp.setup.nic];
  if (nic.mortal && nic.left-- == 0) {
    nic.dead = true;
    return false;
  }
  if (!entry.ok()) {
    report(qp, entry.what, entry.offset);
    return false;
  }
  job& j = qp.active.emplace_back();
  j.what = std::move(entry.value);
  j.number = qp.requests++;
  if (const planned_fault* stall = planned(qp, j.number, mishap::stall)) j.stalled = stall->steps;
  qp.fetched += j.what.slots;
  ++counts_.fetched;
  return true;
}

inline void network::fetch_efa(queue_pair& qp) {
  const send_ring_setup& ring = qp.setup.send;
  const std::uint64_t value = detail::read_register<std::uint32_t>(ring.doorbells[0]);
  if (value == qp.registers[0]) return;
  qp.registers[0] = value;
  const auto fresh = static_cast<std::uint16_t>(value - qp.fetched);
  if (qp.fetched + fresh - qp.finished > ring.slots) return report(qp, violation::queue_overrun);
  if (ring.max_batch != 0 && fresh > ring.max_batch) return report(qp, violation::batch_too_large);
  for (std::uint32_t i = 0; i < fresh; ++i) {
    const std::uint64_t slot = qp.fetched & (ring.slots - 1);
    const std::span<const std::byte> bytes(ring.ring + slot * ring.entry_bytes, ring.entry_bytes);
    if (!accept(qp, parse_efa_send(bytes, (qp.fetched & ring.slots) != 0))) return;
  }
}

/// Whether a doorbell that was just seen fits the record, which its poster wrote before it.
inline violation network::judge_doorbell(const queue_pair& qp, std::uint64_t value,
                                         std::uint64_t produced) const {
  if (swap_bytes(high_word(value)) >> 8U != qp.setup.qpn) return violation::wrong_queue;
  const auto index = static_cast<std::uint16_t>(swap_bytes(low_word(value)) >> 8U);
  const auto behind = static_cast<std::uint16_t>(produced - index);
  if (behind > 0x8000) return violation::record_behind;
  return behind > qp.setup.send.slots ? violation::doorbell_index : violation::none;
}

inline void network::fetch_mlx5(queue_pair& qp) {
  const send_ring_setup& ring = qp.setup.send;
  std::vector<std::uint64_t> rung;
  for (std::size_t i = 0; i < ring.doorbells.size(); ++i) {
    const std::uint64_t value = detail::read_register<std::uint64_t>(ring.doorbells[i]);
    if (value != qp.registers[i]) rung.push_back(value);
    qp.registers[i] = value;
  }
  if (rung.empty()) return;
  // pairs with the poster's record store, which its doorbell store follows
  const std::uint32_t record = swap_bytes(detail::read_register<std::uint32_t>(ring.record));
  const auto fresh = static_cast<std::uint16_t>(record - qp.fetched);
  const std::uint64_t produced = qp.fetched + fresh;
  if (fresh > 0x8000) return report(qp, violation::record_behind);
  for (const std::uint64_t value : rung) {
    const violation what = judge_doorbell(qp, value, produced);
    if (what != violation::none) return report(qp, what);
  }
  if (produced - qp.finished > ring.slots) return report(qp, violation::queue_overrun);

  constexpr std::uint32_t block = mlx5::block_bytes;
  std::array<std::byte, 16 * block> entry;  // the longest: 63 segments
  while (qp.fetched != produced) {
    const std::uint64_t blocks = std::min<std::uint64_t>(produced - qp.fetched, 16);
    for (std::uint64_t b = 0; b < blocks; ++b) {
      const std::uint64_t slot = (qp.fetched + b) & (ring.slots - 1);
      std::memcpy(entry.data() + b * block, ring.ring + slot * block, block);
    }
    const mlx5::place at{static_cast<std::uint16_t>(qp.fetched), qp.setup.qpn, 0};
    if (!accept(qp, parse_mlx5_send(std::span(entry).first(blocks * block), at))) return;
  }
}

/// The next receive entry; `empty`: there is none yet.
inline parsed network::next_receive(const queue_pair& qp, bool& empty) const {
  const receive_ring_setup& ring = qp.setup.receive;
  empty = true;
  if (ring.ring == nullptr) return {};
  const std::uint32_t word = detail::read_register<std::uint32_t>(ring.doorbell);
  const std::uint32_t produced = qp.setup.format == wire::efa ? word : swap_bytes(word);
  if (static_cast<std::uint16_t>(produced - qp.receives) == 0) return {};
  empty = false;
  const std::span<const std::byte> bytes(ring.ring + (qp.receives & (ring.slots - 1)) * ring.stride,
                                         ring.stride);
  if (qp.setup.format == wire::efa) return parse_efa_receive(bytes);
  parsed entry = parse_mlx5_receive(bytes);
  entry.value.id = static_cast<std::uint16_t>(qp.receives);
  return entry;
}

}  // namespace eptransport::gdaki::emulator
