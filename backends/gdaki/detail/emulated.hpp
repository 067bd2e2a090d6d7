// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Plugs the queues of all ranks into an emulated network.
#pragma once

#include <eptransport/backends/gdaki/detail/cabling.hpp>
#include <eptransport/backends/gdaki/options.hpp>
#include <eptransport/core/config.hpp>
#include <eptransport/gdaki/emulator/network.hpp>

#include <cstdint>

namespace eptransport::gdaki_detail {

/// Which requests of `net` go wrong, as planned.
template <class Wire>
void plan_mishaps(gdaki::emulator::network& net, const gdaki_options& o,
                  const cabling<Wire>& cables) {
  using gdaki::emulator::mishap;
  for (const gdaki_fault& f : o.faults) {
    gdaki::emulator::planned_fault planned;
    planned.nic = static_cast<std::uint32_t>(f.rank);
    planned.qpn =
        cables.qpn(f.channel * Wire::queues_per_channel(o.ranks) + Wire::queue_of(f.peer));
    planned.request = f.request;
    planned.status = f.status;
    planned.steps = f.steps;
    switch (f.what) {
      case gdaki_fault::kind::fail:
        planned.what = mishap::fail;
        break;
      case gdaki_fault::kind::lose_completion:
        planned.what = mishap::lose_completion;
        break;
      case gdaki_fault::kind::repeat_completion:
        planned.what = mishap::repeat_completion;
        break;
      case gdaki_fault::kind::stall:
        planned.what = mishap::stall;
        break;
      default:
        continue;  // in the rank's tables
    }
    net.plan(planned);
  }
  for (const gdaki_death& d : o.deaths) {
    net.plan_death(static_cast<std::uint32_t>(d.rank), d.after);
  }
}

/// One NIC per rank, with its registrations and queue pairs; connected where the wire connects.
template <class Wire>
void plug_in(gdaki::emulator::network& net, const gdaki_options& o, const cabling<Wire>& cables,
             const std::vector<rank_place>& places) {
  namespace emulator = gdaki::emulator;
  using cabled = cabling<Wire>;
  constexpr emulator::wire kind = cabled::is_efa ? emulator::wire::efa : emulator::wire::mlx5;
  const auto ranks = static_cast<std::uint32_t>(o.ranks);
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    (void)net.add_nic();
    const auto address = [](const void* p) { return reinterpret_cast<std::uintptr_t>(p); };
    net.memory(rank).add({places[rank].window, cabled::window_bytes(o),
                          address(places[rank].window), names::window_lkey(rank),
                          names::window_rkey(rank),
                          emulator::local_write | emulator::remote_write});
    auto* words = reinterpret_cast<std::byte*>(cables.words(rank));
    net.memory(rank).add({words, std::uint64_t{o.signals} * 8, address(words),
                          names::words_lkey(rank), names::words_rkey(rank),
                          emulator::remote_atomic});
    for (std::uint32_t q = 0; q < cabled::queues(o); ++q) {
      emulator::completion_queue_setup completions{kind, cables.completions(rank, q), o.queue_slots,
                                                   cabled::completion_bytes};
      if (!cabled::is_efa) completions.consumer = cables.consumer(rank, q);
      emulator::queue_pair_setup pair{.format = kind,
                                      .nic = rank,
                                      .qpn = cables.qpn(q),
                                      .qkey = names::qkey,
                                      .send_queue = net.add_completion_queue(completions)};
      // The batch is not looked at: a NIC that polls its doorbell sees several rings as one.
      pair.send.ring = cables.ring(rank, q);
      pair.send.slots = o.queue_slots;
      pair.send.entry_bytes = cabled::format::entry::bytes;
      pair.send.first = o.first_index;
      pair.send.record = cables.record(rank, q);
      pair.send.doorbells = {cables.doorbell(rank, q)};
      net.add_queue_pair(pair);
    }
    if constexpr (cabled::is_efa) {
      for (std::uint32_t peer = 0; peer < ranks; ++peer) {
        net.add_handle(rank, names::handle(peer), peer);
      }
      for (std::uint32_t s = 0; s < o.signals; ++s) {
        emulator::queue_pair_setup counted{
            .format = kind, .nic = rank, .qpn = cables.signal_qpn(s), .qkey = names::qkey};
        counted.counters.remote_writes = cables.words(rank) + s;
        net.add_queue_pair(counted);
      }
    }
  }
  if constexpr (!cabled::is_efa) {
    for (std::uint32_t rank = 0; rank < ranks; ++rank) {
      for (std::uint32_t q = 0; q < cabled::queues(o); ++q) {
        const std::uint32_t peer = q % ranks;
        net.connect(rank, cables.qpn(q), peer, cables.qpn(q / ranks * ranks + rank));
      }
    }
  }
  plan_mishaps<Wire>(net, o, cables);
}

}  // namespace eptransport::gdaki_detail
