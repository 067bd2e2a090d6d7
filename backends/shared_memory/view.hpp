// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The shared memory view: a put is a copy into the peer's window, a signal an atomic add.
#pragma once

#include <eptransport/core/config.hpp>
#include <eptransport/core/memory.hpp>
#include <eptransport/core/thread_group.hpp>
#include <eptransport/core/transport.hpp>
#include <eptransport/proxy/bootstrap/bootstrap.hpp>
#include <eptransport/proxy/fault_cell.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

namespace eptransport {

namespace shared_memory_detail {

/// Where one rank's memory is mapped here.
struct mapped_rank {
  std::uint64_t* arrivals = nullptr;  ///< barriers that it came to
  std::uint64_t* words = nullptr;     ///< [signals]
  std::byte* window = nullptr;
};

/// What a rank's view and its owner share. Ranks are those of the node, numbered by their order.
struct rank_state {
  std::int32_t rank = 0;
  std::vector<mapped_rank> peers;
  std::uint64_t window_bytes = 0;
  std::uint32_t signals = 0;
  std::uint32_t channels = 1;
  bootstrap* job = nullptr;
  proxy::fault_cell fault;     ///< what this rank did wrong; of deaths the bootstrap knows
  std::uint64_t messages = 0;  ///< and bytes, to other ranks
  std::uint64_t bytes = 0;

  [[nodiscard]] const mapped_rank& own() const noexcept {
    return peers[static_cast<std::size_t>(rank)];
  }
  [[nodiscard]] bool failed() const noexcept { return fault.failed() || !job->healthy(); }
  void fail(const failure& why) {
    fault.report(why);
    job->abort(why.message());
  }
  [[nodiscard]] static std::uint64_t now_ns() {
    return static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(
                                          std::chrono::steady_clock::now().time_since_epoch())
                                          .count());
  }
};

}  // namespace shared_memory_detail

/// Models `TransportView` for host threads; core/transport.hpp says what each call means. Nothing
/// is queued: a call has done its work when it returns, and only `wait_signal` waits.
///
/// @par Errors  A request that contradicts the contract (out of the window, an unknown peer,
///              channel or signal) fails the rank's transport, and tells the job. So does the death
///              of any rank of the job.
class shared_memory_view {
 public:
  explicit shared_memory_view(shared_memory_detail::rank_state& state) noexcept : state_(&state) {}

  [[nodiscard]] std::int32_t rank() const noexcept { return state_->rank; }
  [[nodiscard]] std::int32_t size() const noexcept {
    return static_cast<std::int32_t>(state_->peers.size());
  }
  [[nodiscard]] std::int32_t node(std::int32_t) const noexcept { return 0; }
  [[nodiscard]] std::uint32_t channels() const noexcept { return state_->channels; }
  [[nodiscard]] std::uint64_t now_ns() const { return state_->now_ns(); }
  [[nodiscard]] std::byte* local() const noexcept { return state_->own().window; }
  [[nodiscard]] std::byte* peer_pointer(std::int32_t peer, std::uint64_t offset,
                                        std::uint64_t bytes) const noexcept {
    const bool known = peer >= 0 && peer < size();
    if (!known || !inside(offset, bytes)) return nullptr;
    if (peer != rank()) (void)host_memory::fetch_add(&state_->bytes, bytes);
    return of(peer).window + offset;
  }

  template <ThreadGroup Group>
  op_status put(const Group&, std::uint32_t channel, const put_request& r, std::uint64_t) const {
    if (state_->failed()) return op_status::failed;
    const bool placed = r.bytes == 0 || (r.src != nullptr && inside(r.dst_offset, r.bytes));
    if (!placed || channel >= channels() || r.peer < 0 || r.peer >= size() ||
        (r.signal != no_signal && r.signal >= state_->signals)) {
      return refuse("a put of " + std::to_string(r.bytes) + " bytes to rank " +
                    std::to_string(r.peer) + " of " + std::to_string(size()) + " at " +
                    std::to_string(r.dst_offset) + " of a window of " +
                    std::to_string(state_->window_bytes) + ", signal " + std::to_string(r.signal) +
                    " of " + std::to_string(state_->signals) + ", channel " +
                    std::to_string(channel) + " of " + std::to_string(channels()));
    }
    const shared_memory_detail::mapped_rank& to = of(r.peer);
    if (r.bytes != 0) std::memcpy(to.window + r.dst_offset, r.src, r.bytes);
    // Release, pairs with the peer's signal_acquire in read_signal.
    if (r.signal != no_signal) host_memory::signal_add(to.words + r.signal, 1);
    if (r.peer != rank()) {
      (void)host_memory::fetch_add(&state_->messages, 1);
      (void)host_memory::fetch_add(&state_->bytes, r.bytes);
    }
    return op_status::ok;
  }

  template <ThreadGroup Group>
  op_status signal(const Group& g, std::uint32_t channel, std::int32_t peer, std::uint32_t signal,
                   std::uint64_t deadline_ns) const {
    return put(g, channel, {.peer = peer, .signal = signal}, deadline_ns);
  }

  [[nodiscard]] std::uint64_t read_signal(std::uint32_t signal) const noexcept {
    // Acquire, pairs with the signal_add of the peers' put.
    return host_memory::signal_acquire(state_->own().words + signal);
  }

  template <ThreadGroup Group>
  op_status wait_signal(const Group&, std::uint32_t signal, std::uint64_t at_least,
                        std::uint64_t deadline_ns) const {
    if (signal >= state_->signals) {
      return refuse("a wait on signal " + std::to_string(signal) + " of " +
                    std::to_string(state_->signals));
    }
    for (;;) {
      if (state_->failed()) return op_status::failed;
      if (static_cast<std::int64_t>(read_signal(signal) - at_least) >= 0) return op_status::ok;
      if (now_ns() > deadline_ns) return op_status::expired;
      host_memory::relax();
    }
  }

  template <ThreadGroup Group>
  op_status flush(const Group&, std::uint32_t channel, std::uint64_t) const {
    if (channel >= channels()) return refuse("a flush of channel " + std::to_string(channel));
    return state_->failed() ? op_status::failed : op_status::ok;
  }

  template <ThreadGroup Group>
  void submit(const Group&, std::uint32_t) const noexcept {}

 private:
  [[nodiscard]] bool inside(std::uint64_t offset, std::uint64_t bytes) const noexcept {
    return offset <= state_->window_bytes && bytes <= state_->window_bytes - offset;
  }
  [[nodiscard]] const shared_memory_detail::mapped_rank& of(std::int32_t peer) const noexcept {
    return state_->peers[static_cast<std::size_t>(peer)];
  }
  op_status refuse(const std::string& why) const {
    state_->fail({errc::invalid_argument, "shared_memory_view",
                  "rank " + std::to_string(rank()) + " of its node: " + why});
    return op_status::failed;
  }

  shared_memory_detail::rank_state* state_;
};

}  // namespace eptransport
