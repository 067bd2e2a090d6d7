// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief How an emulated NIC tells both ends: counters, completions, the error state.
#pragma once

#include <eptransport/core/config.hpp>
#include <eptransport/gdaki/emulator/network.hpp>
#include <eptransport/gdaki/emulator/outcome.hpp>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <utility>

namespace eptransport::gdaki::emulator {

inline const planned_fault* network::planned(const queue_pair& qp, std::uint64_t number,
                                             mishap what) const {
  for (const planned_fault& fault : faults_) {
    if (fault.nic == qp.setup.nic && fault.qpn == qp.setup.qpn && fault.request == number &&
        fault.what == what) {
      return &fault;
    }
  }
  return nullptr;
}

/// Pairs with the waiter's acquire of the counter: the bytes of the request come first.
inline void network::count(std::uint64_t* word) noexcept {
  if (word != nullptr) std::atomic_ref(*word).fetch_add(1, std::memory_order_release);
}

inline void network::tell(queue_pair& qp, std::uint32_t queue, const completion_facts& facts) {
  if (queue == no_queue) return;
  if (!completion_queues_[queue].write(facts)) return report(qp, violation::completion_overrun);
  ++counts_.completions;
}

/// All bytes of a request are in place: the receiver learns of it.
inline void network::arrive(queue_pair& qp, queue_pair& target, const job& j) {
  const request& r = j.what;
  if (r.what == action::write) count(target.setup.counters.remote_writes);
  const bool notified = r.what == action::write && r.has_immediate;
  if (r.what != action::send && !notified) return;
  completion_facts facts;
  facts.qpn = target.setup.qpn;
  facts.user_index = target.setup.user_index;
  facts.unsolicited = notified && target.setup.unsolicited_writes;
  facts.index = facts.unsolicited ? 0 : j.receive_id;
  facts.native = r.native;
  facts.received = true;
  facts.written = notified;
  facts.has_immediate = r.has_immediate;
  facts.immediate = r.immediate;
  facts.bytes = static_cast<std::uint32_t>(r.bytes());
  facts.source_qpn = qp.setup.qpn;
  for (const auto& [handle, nic] : nics_[target.setup.nic].handles) {
    if (nic == qp.setup.nic) facts.source_handle = handle;
  }
  tell(target, target.setup.receive_queue, facts);
}

/// Takes a request off the active list; its poster is told later.
inline void network::end(queue_pair& qp, std::size_t which, outcome how) {
  const planned_fault* fault = planned(qp, qp.active[which].number, mishap::fail);
  detail::notice note;
  note.number = qp.active[which].number;
  note.status = qp.setup.format == wire::efa ? efa_status(how) : mlx5_status(how);
  if (fault != nullptr && how == outcome::ok) note.status = fault->status;
  note.what = std::move(qp.active[which].what);
  for (std::size_t i = 0; i < which; ++i) {
    if (qp.active[i].number < note.number) {
      ++counts_.overtakes;
      break;
    }
  }
  if (which != 0) std::swap(qp.active[which], qp.active[0]);
  qp.active.pop_front();
  if (note.status != 0 && qp.setup.format == wire::mlx5) qp.failed = true;
  ++(note.status == 0 ? counts_.executed : counts_.failed);
  qp.notices.push_back(std::move(note));
}

/// Tells the poster about one finished request.
inline void network::notify(queue_pair& qp, std::size_t which) {
  const detail::notice note = std::move(qp.notices[which]);
  if (which != 0) std::swap(qp.notices[which], qp.notices[0]);
  qp.notices.pop_front();
  qp.finished += note.what.slots;
  if (planned(qp, note.number, mishap::lose_completion) != nullptr) return;
  completion_facts facts;
  facts.qpn = qp.setup.qpn;
  facts.user_index = qp.setup.user_index;
  facts.index = note.what.id;
  facts.native = note.what.native;
  facts.status = note.status;
  facts.vendor_error = note.status == 0 ? 0 : 0x77;
  if (note.what.what == action::fetch_add || note.what.what == action::compare_swap)
    facts.bytes = 8;
  const bool twice = planned(qp, note.number, mishap::repeat_completion) != nullptr;
  for (int i = 0; i < (twice ? 2 : 1); ++i) {
    if (note.what.signalled || note.status != 0) tell(qp, qp.setup.send_queue, facts);
    count(note.status == 0 ? qp.setup.counters.completed : qp.setup.counters.failed);
  }
}

}  // namespace eptransport::gdaki::emulator
