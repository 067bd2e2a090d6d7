// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Where everything of a rank lies, what it starts with, and how NICs and ranks are named.
///
///     NIC memory of a rank   | signal words | queue 0: ring, completions, registers | queue 1 ..
///     own memory             | fault | nodes | peers | targets | queues | queue 0: state, .. | ..
///
/// NIC memory is what the device reads and writes; own memory is reached with atomics by whoever
/// posts. Both are filled as images on the host, whatever memory they are then copied to.
#pragma once

#include <eptransport/backends/gdaki/detail/tables.hpp>
#include <eptransport/backends/gdaki/options.hpp>
#include <eptransport/backends/gdaki/wires.hpp>
#include <eptransport/core/config.hpp>
#include <eptransport/core/result.hpp>
#include <eptransport/gdaki/queue_state.hpp>
#include <eptransport/gdaki/send_queue.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace eptransport::gdaki_detail {

/// Where a rank's memory begins, as both ends address it.
struct rank_place {
  std::byte* window = nullptr;  ///< [scratch_of(window_bytes) + scratch_bytes]
  std::byte* nic = nullptr;
  std::byte* own = nullptr;
};

/// What NICs call ranks and queue pairs. Any numbers would do; these are told apart in a dump.
struct names {
  static constexpr std::uint32_t qkey = 0x11223344;
  static constexpr std::uint32_t first_handle = 0x20;
  static constexpr std::uint32_t first_qpn = 0x10;

  [[nodiscard]] static std::uint32_t window_lkey(std::uint32_t rank) { return 0x100 + 2 * rank; }
  [[nodiscard]] static std::uint32_t window_rkey(std::uint32_t rank) {
    return 0xabc00000U + 2 * rank;
  }
  [[nodiscard]] static std::uint32_t words_lkey(std::uint32_t rank) { return 0x101 + 2 * rank; }
  [[nodiscard]] static std::uint32_t words_rkey(std::uint32_t rank) {
    return 0xabc00001U + 2 * rank;
  }
  [[nodiscard]] static std::uint16_t handle(std::uint32_t rank) {
    return static_cast<std::uint16_t>(first_handle + rank);
  }
};

/// Sizes, offsets and images for `Wire` under `options`.
template <class Wire>
class cabling {
 public:
  using format = typename Wire::format;
  using queue = typename Wire::queue;
  static constexpr bool is_efa = std::is_same_v<Wire, efa_wire>;
  static constexpr std::uint32_t completion_bytes =
      is_efa ? gdaki::efa::wide_completion : gdaki::mlx5::completion_bytes;

  /// @pre `check(options)` succeeded
  cabling(const gdaki_options& options, const std::vector<rank_place>& places)
      : options_(options), places_(places) {}

  /// What the wire, the entries and the emulated device cannot do, with both numbers.
  [[nodiscard]] static result<void> check(const gdaki_options& o);

  /// Bytes of a rank's memories.
  [[nodiscard]] static std::uint64_t window_bytes(const gdaki_options& o) {
    return scratch_of(o.window_bytes) + scratch_bytes;
  }
  [[nodiscard]] static std::uint64_t nic_bytes(const gdaki_options& o) {
    return words_bytes(o) + queues(o) * nic_stride(o);
  }
  [[nodiscard]] static std::uint64_t own_bytes(const gdaki_options& o) {
    return own_queues(o) + queues(o) * own_stride(o);
  }
  [[nodiscard]] static std::uint32_t queues(const gdaki_options& o) {
    return o.channels * Wire::queues_per_channel(o.ranks);
  }

  // What the device is told about queue `q` of `rank`.
  [[nodiscard]] std::uint64_t* words(std::uint32_t rank) const {
    return reinterpret_cast<std::uint64_t*>(places_[rank].nic);
  }
  [[nodiscard]] std::byte* ring(std::uint32_t rank, std::uint32_t q) const {
    return places_[rank].nic + words_bytes(options_) + q * nic_stride(options_);
  }
  [[nodiscard]] std::byte* completions(std::uint32_t rank, std::uint32_t q) const {
    return ring(rank, q) + ring_bytes(options_);
  }
  [[nodiscard]] std::uint32_t* doorbell(std::uint32_t rank, std::uint32_t q) const {
    return reinterpret_cast<std::uint32_t*>(completions(rank, q) + completion_ring_bytes(options_));
  }
  [[nodiscard]] std::uint32_t* record(std::uint32_t rank, std::uint32_t q) const {
    return doorbell(rank, q) + 32;
  }
  [[nodiscard]] std::uint32_t* consumer(std::uint32_t rank, std::uint32_t q) const {
    return doorbell(rank, q) + 64;
  }
  /// Queue pair numbers: posting queues first, then (EFA) one per signal word.
  [[nodiscard]] std::uint32_t qpn(std::uint32_t q) const { return names::first_qpn + q; }
  [[nodiscard]] std::uint32_t signal_qpn(std::uint32_t signal) const {
    return names::first_qpn + queues(options_) + signal;
  }

  // What the posting threads share.
  [[nodiscard]] rank_fault* fault(std::uint32_t rank) const {
    return reinterpret_cast<rank_fault*>(places_[rank].own);
  }
  [[nodiscard]] gdaki::send_queue_state* state(std::uint32_t rank, std::uint32_t q) const {
    return reinterpret_cast<gdaki::send_queue_state*>(places_[rank].own + own_queues(options_) +
                                                      q * own_stride(options_));
  }
  [[nodiscard]] std::uint32_t* slot_peer(std::uint32_t rank, std::uint32_t q) const {
    return reinterpret_cast<std::uint32_t*>(state(rank, q) + 1);
  }
  [[nodiscard]] std::uint32_t* done(std::uint32_t rank, std::uint32_t q) const {
    return slot_peer(rank, q) + options_.queue_slots;
  }

  /// The view's data of one rank.
  [[nodiscard]] tables<Wire> tables_of(std::uint32_t rank) const;
  /// What the rank's NIC memory and its own memory start with.
  [[nodiscard]] std::vector<std::byte> nic_image(std::uint32_t rank) const;
  [[nodiscard]] std::vector<std::byte> own_image(std::uint32_t rank) const;

 private:
  [[nodiscard]] static std::uint64_t up(std::uint64_t bytes) { return (bytes + 255) / 256 * 256; }
  [[nodiscard]] static std::uint64_t count(int n) { return static_cast<std::uint64_t>(n); }

  [[nodiscard]] static std::uint64_t words_bytes(const gdaki_options& o) {
    return up(std::uint64_t{o.signals} * 8);
  }
  [[nodiscard]] static std::uint64_t ring_bytes(const gdaki_options& o) {
    return up(std::uint64_t{o.queue_slots} * format::entry::bytes);
  }
  [[nodiscard]] static std::uint64_t completion_ring_bytes(const gdaki_options& o) {
    return up(std::uint64_t{o.queue_slots} * completion_bytes);
  }
  [[nodiscard]] static std::uint64_t nic_stride(const gdaki_options& o) {
    return ring_bytes(o) + completion_ring_bytes(o) + 512;
  }
  [[nodiscard]] static std::uint64_t own_nodes(const gdaki_options&) {
    return up(sizeof(rank_fault));
  }
  [[nodiscard]] static std::uint64_t own_peers(const gdaki_options& o) {
    return own_nodes(o) + up(count(o.ranks) * 4);
  }
  [[nodiscard]] static std::uint64_t own_targets(const gdaki_options& o) {
    return own_peers(o) + up(count(o.ranks) * sizeof(peer_memory));
  }
  [[nodiscard]] static std::uint64_t own_table(const gdaki_options& o) {
    const std::uint64_t targets = is_efa ? (std::uint64_t{o.signals} + 1) * count(o.ranks) : 0;
    return own_targets(o) + up(targets * sizeof(typename Wire::target));
  }
  [[nodiscard]] static std::uint64_t own_queues(const gdaki_options& o) {
    return own_table(o) + up(queues(o) * sizeof(posting_queue<queue>));
  }
  [[nodiscard]] static std::uint64_t own_stride(const gdaki_options& o) {
    return up(sizeof(gdaki::send_queue_state) + std::uint64_t{o.queue_slots} * (is_efa ? 8 : 4));
  }

  [[nodiscard]] posting_queue<queue> queue_of(std::uint32_t rank, std::uint32_t q) const;

  const gdaki_options& options_;
  const std::vector<rank_place>& places_;
};

template <class Wire>
result<void> cabling<Wire>::check(const gdaki_options& o) {
  const auto refuse = [](errc code, const std::string& why) {
    return failure{code, "gdaki_world::create", why};
  };
  const auto text = [](auto n) { return std::to_string(n); };
  if (o.ranks < 1) return refuse(errc::invalid_argument, text(o.ranks) + " ranks, at least 1");
  if (o.channels < 1) return refuse(errc::invalid_argument, "0 channels, at least 1 is needed");
  if (o.workers < 1) return refuse(errc::invalid_argument, "0 workers, at least 1 is needed");
  if (!o.nodes.empty() && o.nodes.size() != static_cast<std::size_t>(o.ranks)) {
    return refuse(errc::invalid_argument, "the node list has " + text(o.nodes.size()) +
                                              " entries for " + text(o.ranks) + " ranks");
  }
  if (is_efa && o.signals > o.max_counters) {
    return refuse(errc::capacity,
                  text(o.signals) + " signal words of a rank, the device has " +
                      text(o.max_counters) +
                      " completion counters; fewer lanes, or signal_words::summed, need fewer");
  }
  const std::uint64_t pairs =
      std::uint64_t{o.channels} * Wire::queues_per_channel(o.ranks) + (is_efa ? o.signals : 0);
  const std::uint64_t most = (is_efa ? 0xffffU : 0xffffffU) - names::first_qpn;
  if (pairs > most) {
    return refuse(
        errc::capacity,
        text(pairs) + " queue pairs of a rank, their numbers have room for " + text(most));
  }
  if (is_efa && count(o.ranks) + names::first_handle > 0xffff) {
    return refuse(errc::capacity, text(o.ranks) + " ranks, address handles have room for " +
                                      text(0xffff - names::first_handle));
  }
  return {};
}

template <class Wire>
posting_queue<typename Wire::queue> cabling<Wire>::queue_of(std::uint32_t rank,
                                                            std::uint32_t q) const {
  gdaki::send_queue_attributes a;
  a.ring = ring(rank, q);
  a.slots = options_.queue_slots;
  a.max_batch = is_efa ? options_.max_batch : 0;
  a.ring_every = options_.ring_every;
  a.qpn = qpn(q);
  a.home = options_.home;
  a.id = q;
  a.record = is_efa ? nullptr : record(rank, q);
  a.doorbell = doorbell(rank, q);
  const gdaki::polled_completion completion{
      {completions(rank, q), options_.queue_slots, completion_bytes,
       is_efa ? nullptr : consumer(rank, q)},
      is_efa ? done(rank, q) : nullptr};
  return {queue(a, state(rank, q), completion), slot_peer(rank, q)};
}

template <class Wire>
tables<Wire> cabling<Wire>::tables_of(std::uint32_t rank) const {
  std::byte* own = places_[rank].own;
  tables<Wire> t;
  t.rank = static_cast<std::int32_t>(rank);
  t.ranks = options_.ranks;
  t.channels = options_.channels;
  t.signals = options_.signals;
  t.window = places_[rank].window;
  t.window_bytes = options_.window_bytes;
  t.lkey = names::window_lkey(rank);
  for (const gdaki_fault& f : options_.faults) {
    if (f.what == gdaki_fault::kind::bad_local_key && f.rank == t.rank) t.lkey ^= 0x8000U;
  }
  t.queue_count = queues(options_);
  t.queues = reinterpret_cast<const posting_queue<queue>*>(own + own_table(options_));
  t.nodes = reinterpret_cast<const std::int32_t*>(own + own_nodes(options_));
  t.peers = reinterpret_cast<const peer_memory*>(own + own_peers(options_));
  t.targets = reinterpret_cast<const typename Wire::target*>(own + own_targets(options_));
  t.words = words(rank);
  t.fault = fault(rank);
  return t;
}

template <class Wire>
std::vector<std::byte> cabling<Wire>::nic_image(std::uint32_t rank) const {
  std::vector<std::byte> image(nic_bytes(options_));
  const auto put = [&](const void* where, const auto& value) {
    const auto* at = static_cast<const std::byte*>(where);
    std::memcpy(image.data() + (at - places_[rank].nic), &value, sizeof(value));
  };
  for (std::uint32_t s = 0; s < options_.signals; ++s) put(words(rank) + s, options_.counter_start);
  for (std::uint32_t q = 0; q < queues(options_); ++q) {
    if (is_efa) {
      put(doorbell(rank, q), gdaki::efa::doorbell(options_.first_index));
    } else {
      put(record(rank, q), gdaki::mlx5::record(options_.first_index));
      std::memset(image.data() + (completions(rank, q) - places_[rank].nic), 0xff,
                  completion_ring_bytes(options_));
    }
  }
  return image;
}

template <class Wire>
std::vector<std::byte> cabling<Wire>::own_image(std::uint32_t rank) const {
  std::vector<std::byte> image(own_bytes(options_));
  const auto ranks = static_cast<std::uint32_t>(options_.ranks);
  const auto put = [&](std::uint64_t at, const auto& value) {
    std::memcpy(image.data() + at, &value, sizeof(value));
  };
  const auto wrong = [&](gdaki_fault::kind what, std::uint32_t peer) {
    for (const gdaki_fault& f : options_.faults) {
      if (f.what == what && f.rank == static_cast<int>(rank) && f.peer == static_cast<int>(peer)) {
        return true;
      }
    }
    return false;
  };
  put(0, rank_fault{});
  for (std::uint32_t peer = 0; peer < ranks; ++peer) {
    put(own_nodes(options_) + peer * 4, static_cast<std::int32_t>(options_.nodes[peer]));
    const auto address = [](const void* p) { return reinterpret_cast<std::uintptr_t>(p); };
    peer_memory to{{address(places_[peer].window), names::window_rkey(peer)},
                   {address(words(peer)), names::words_rkey(peer)}};
    if (wrong(gdaki_fault::kind::bad_remote_key, peer)) to.window.key = to.words.key = 0xdead0000U;
    put(own_peers(options_) + peer * sizeof(to), to);
    if constexpr (is_efa) {
      const std::uint16_t handle =
          wrong(gdaki_fault::kind::bad_handle, peer) ? 1 : names::handle(peer);
      for (std::uint32_t s = 0; s <= options_.signals; ++s) {
        // The last row counts nowhere: it is the peer's first posting queue.
        const std::uint32_t number = s == options_.signals ? qpn(0) : signal_qpn(s);
        const gdaki::efa::address target{handle, static_cast<std::uint16_t>(number), names::qkey};
        put(own_targets(options_) + (std::uint64_t{s} * ranks + peer) * sizeof(target), target);
      }
    }
  }
  for (std::uint32_t q = 0; q < queues(options_); ++q) {
    put(own_table(options_) + q * sizeof(posting_queue<queue>), queue_of(rank, q));
    gdaki::send_queue_state begin;
    begin.reserved = begin.ready = begin.rung = begin.completed = options_.first_index;
    const auto at = static_cast<std::uint64_t>(reinterpret_cast<std::byte*>(state(rank, q)) -
                                               places_[rank].own);
    put(at, begin);
    for (std::uint32_t slot = 0; is_efa && slot < options_.queue_slots; ++slot) {
      put(at + sizeof(begin) + (std::uint64_t{options_.queue_slots} + slot) * 4,
          gdaki::low_word(options_.first_index));
    }
  }
  return image;
}

}  // namespace eptransport::gdaki_detail
