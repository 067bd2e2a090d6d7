// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The simulator's device view: a pointer to the world, a rank, and the contract's calls.
#pragma once

#include <eptransport/backends/loopback/detail/engine.hpp>
#include <eptransport/core/config.hpp>
#include <eptransport/core/thread_group.hpp>
#include <eptransport/core/transport.hpp>

#include <cstddef>
#include <cstdint>

namespace eptransport {

/// Models `TransportView` for host threads; core/transport.hpp says what each call means.
///
/// @par Errors  A request that contradicts the contract (out of the window, an unknown peer or
///              signal, more than max_message) fails the rank's transport and is a violation.
template <class Profile>
class loopback_view {
 public:
  static constexpr capabilities caps = Profile::caps;

  /// @param inner  the wire inside the node, in a world that has two
  loopback_view(loopback_detail::engine& world, int rank, bool inner = false) noexcept
      : world_(&world), rank_(rank), inner_(inner) {}

  [[nodiscard]] std::int32_t rank() const noexcept { return rank_; }
  [[nodiscard]] std::int32_t size() const noexcept { return world_->options().ranks; }
  [[nodiscard]] std::int32_t node(std::int32_t peer) const noexcept { return world_->node(peer); }
  [[nodiscard]] std::uint32_t channels() const noexcept { return world_->options().channels; }
  [[nodiscard]] std::uint64_t now_ns() const { return world_->now_ns(rank_); }
  [[nodiscard]] std::byte* local() const noexcept { return world_->state(rank_).memory.data(); }

  /// Counts `bytes` as traffic, in statistics and in modelled time, unless `peer` is the caller.
  [[nodiscard]] std::byte* peer_pointer(std::int32_t peer, std::uint64_t offset,
                                        std::uint64_t bytes) const {
    return world_->peer_pointer(rank_, peer, offset, bytes, inner_);
  }

  template <ThreadGroup Group>
  op_status put(const Group&, std::uint32_t channel, const put_request& request,
                std::uint64_t deadline_ns) const {
    return world_->put(rank_, channel, request, deadline_ns, inner_);
  }

  template <ThreadGroup Group>
  op_status signal(const Group&, std::uint32_t channel, std::int32_t peer, std::uint32_t signal,
                   std::uint64_t deadline_ns) const {
    return world_->put(rank_, channel, {.peer = peer, .signal = signal}, deadline_ns, inner_);
  }

  [[nodiscard]] std::uint64_t read_signal(std::uint32_t signal) const {
    return world_->read_signal(rank_, signal, inner_);
  }

  template <ThreadGroup Group>
  op_status wait_signal(const Group&, std::uint32_t signal, std::uint64_t at_least,
                        std::uint64_t deadline_ns) const {
    return world_->wait_signal(rank_, signal, at_least, deadline_ns, inner_);
  }

  /// Waits for the sum of the word and that of the same index on the world's other wire: two waits
  /// by turns could not say when it happened.
  template <ThreadGroup Group, class Other>
  op_status wait_sum(const Group&, const loopback_view<Other>&, std::uint32_t signal,
                     std::uint64_t at_least, std::uint64_t deadline_ns) const {
    return world_->wait_sum(rank_, signal, at_least, deadline_ns);
  }

  /// Never waits: the simulator copies the sources, or lands them.
  template <ThreadGroup Group>
  op_status flush(const Group&, std::uint32_t channel, std::uint64_t) const {
    return world_->flush(rank_, channel);
  }

  /// Nothing is deferred.
  template <ThreadGroup Group>
  void submit(const Group&, std::uint32_t) const noexcept {}

 private:
  loopback_detail::engine* world_;
  int rank_;
  bool inner_;
};

}  // namespace eptransport
