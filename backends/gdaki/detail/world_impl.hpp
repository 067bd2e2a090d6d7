// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief How a world of emulated NICs is built, run, settled and looked at.
#pragma once

#include <eptransport/backends/gdaki/gdaki.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace eptransport {

template <class Wire>
result<std::unique_ptr<gdaki_world<Wire>>> gdaki_world<Wire>::create(const gdaki_options& options) {
  if (auto fits = gdaki_detail::cabling<Wire>::check(options); !fits) return fits.error();
  std::unique_ptr<gdaki_world> world(new gdaki_world(options));
  if (auto built = world->build(); !built) return built.error();
  return result<std::unique_ptr<gdaki_world>>(std::move(world));
}

/// Null if there is no memory.
template <class Wire>
std::byte* gdaki_world<Wire>::place(std::uint64_t bytes) {
  slabs_.emplace_back(static_cast<std::byte*>(::operator new(bytes, alignment, std::nothrow)));
  return slabs_.back().get();
}

template <class Wire>
result<void> gdaki_world<Wire>::build() {
  using cabled = gdaki_detail::cabling<Wire>;
  const auto ranks = static_cast<std::uint32_t>(options_.ranks);
  cables_ = std::make_unique<cabled>(options_, places_);
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    windows_.push_back(std::make_unique<guarded_window>(cabled::window_bytes(options_)));
    std::byte* nic = place(cabled::nic_bytes(options_));
    std::byte* own = place(cabled::own_bytes(options_));
    if (!windows_.back()->valid() || nic == nullptr || own == nullptr) {
      return failure{errc::out_of_memory, "gdaki_world::create",
                     std::to_string(ranks) + " ranks with windows of " +
                         std::to_string(options_.window_bytes) + " bytes and queues of " +
                         std::to_string(cabled::nic_bytes(options_)) + " bytes"};
    }
    places_.push_back({windows_.back()->data(), nic, own});
    counts_.push_back(std::make_unique<gdaki_detail::put_counts>());
  }
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    const std::vector<std::byte> nic = cables_->nic_image(rank);
    const std::vector<std::byte> own = cables_->own_image(rank);
    std::memcpy(places_[rank].nic, nic.data(), nic.size());
    std::memcpy(places_[rank].own, own.data(), own.size());
    const auto queue = cables_->tables_of(rank).queues[0].queue;
    if (auto sound = Wire::queue::check(queue.attributes()); !sound) return sound;
  }
  gdaki_detail::plug_in<Wire>(net_, options_, *cables_, places_);
  if (options_.drive == nic_drive::baton) {
    const auto step = [](void* net) {
      return static_cast<gdaki::emulator::network*>(net)->step(1) != 0;
    };
    turns_ = std::make_unique<baton>(std::vector<baton_agent>{{&net_, step, nullptr}},
                                     options_.seed, 1'000'000'000);
  }
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    ranks_.push_back(std::make_unique<transport>(*this, rank, options_.workers));
  }
  if (turns_ == nullptr) runner_ = std::make_unique<gdaki::emulator::runner>(net_);
  return {};
}

template <class Wire>
void gdaki_world<Wire>::run(const std::function<void(transport&)>& function) {
  std::size_t first = 0;
  if (turns_ != nullptr) first = turns_->announce(ranks_.size());
  if (turns_ == nullptr && runner_ == nullptr) {
    runner_ = std::make_unique<gdaki::emulator::runner>(net_);
  }
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < ranks_.size(); ++i) {
    threads.emplace_back([&, i] {
      if (turns_ != nullptr) turns_->take(first + i);
      function(*ranks_[i]);
      if (turns_ != nullptr) turns_->leave();
    });
  }
  if (turns_ != nullptr) turns_->start();
  for (std::thread& t : threads) t.join();
  if (turns_ != nullptr) turns_->forget();
  settle();
}

/// The NICs finish what they have, and their thread rests: observers may look at the network.
template <class Wire>
void gdaki_world<Wire>::settle() {
  runner_.reset();
  std::uint64_t done = 1;
  while (done != 0) {
    for (const auto& one : ranks_) one->view().serve_all(host_thread());
    done = net_.step(1'000'000);
  }
}

template <class Wire>
std::string gdaki_world<Wire>::violations() {
  std::string text;
  for (std::size_t rank = 0; rank < windows_.size(); ++rank) {
    if (windows_[rank]->intact()) continue;
    text += "rank " + std::to_string(rank) + ": the window's guard zone is damaged\n";
  }
  for (const gdaki::emulator::finding& f : net_.findings()) {
    text += "rank " + std::to_string(f.nic) + ": its NIC saw a broken rule, " +
            gdaki::emulator::to_string(f.what) + ", in queue pair " + std::to_string(f.qpn) +
            ", entry " + std::to_string(f.index) + ", byte " + std::to_string(f.offset) + "\n";
  }
  return text;
}

template <class Wire>
result<void> gdaki_world<Wire>::fault_of(std::uint32_t rank) const {
  const gdaki_detail::rank_fault& f = *cables_->fault(rank);
  const std::uint64_t what = host_memory::load_acquire(&f.what);  // pairs with the view's claims
  if (what == 0) return {};
  const auto tables = cables_->tables_of(rank);
  if (what == gdaki_detail::rank_fault::refused) return gdaki_detail::request_failure(tables, f);
  const auto index = static_cast<std::uint32_t>(what - gdaki_detail::rank_fault::first_queue);
  const auto& posting = tables.queues[index];
  gdaki_detail::queue_report report;
  report.channel = index / Wire::queues_per_channel(options_.ranks);
  report.qpn = posting.queue.attributes().qpn;
  report.fault = posting.queue.fault(host_thread());
  report.peer = posting.slot_peer[report.fault.index & (options_.queue_slots - 1)];
  return gdaki_detail::queue_failure<Wire>(tables.rank, report);
}

template <class Wire>
result<void> gdaki_world<Wire>::barrier(std::uint32_t rank, std::uint64_t timeout_ns) {
  view_of(rank).serve_all(host_thread());  // nobody else rings what is pending
  std::uint64_t mine = 0;
  {
    const std::lock_guard lock(barrier_mutex_);
    if (const auto sound = fault_of(rank); !sound) return sound;
    mine = barrier_generation_.load(std::memory_order_relaxed);  // under the lock
    arrived_.resize(ranks_.size());
    arrived_[rank] = 1;
    if (std::count(arrived_.begin(), arrived_.end(), 1) == options_.ranks) {
      std::fill(arrived_.begin(), arrived_.end(), std::uint8_t{0});
      barrier_generation_.store(mine + 1, std::memory_order_release);
      return {};
    }
  }
  // Acquire, pairs with the store of the last to arrive.
  const auto passed = [&] { return barrier_generation_.load(std::memory_order_acquire) != mine; };
  const gdaki_detail::host_waiter waiter(*counts_[rank], turns_.get());
  const auto failed = [&] { return host_memory::load_acquire(&cables_->fault(rank)->what) != 0; };
  const op_status met = waiter.wait(failed, passed, waiter.now_ns() + timeout_ns);
  const std::lock_guard lock(barrier_mutex_);
  if (passed()) return {};
  std::string missing;
  for (std::size_t i = 0; i < arrived_.size(); ++i) {
    if (arrived_[i] == 0) missing += " " + std::to_string(i);
  }
  arrived_[rank] = 0;
  if (met == op_status::failed) return fault_of(rank);
  return failure{errc::timed_out, "barrier", "missing ranks:" + missing};
}

static_assert(check_transport<gdaki_transport<efa_wire>>());
static_assert(check_transport<gdaki_transport<mlx5_wire>>());

}  // namespace eptransport
