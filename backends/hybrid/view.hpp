// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The device view of two wires: load and store inside the node, puts between nodes.
#pragma once

#include <eptransport/core/config.hpp>
#include <eptransport/core/thread_group.hpp>
#include <eptransport/core/transport.hpp>

#include <cstddef>
#include <cstdint>

namespace eptransport {

/// Models `TransportView` over both views; core/transport.hpp says what each call means.
///
/// A word has a half on each wire, which alone writes it; the reader adds them. Kernels see to it
/// that in normal traffic only one half of a word grows.
template <class Intra, class Inter>
class hybrid_view {
 public:
  static constexpr bool node_reach = true;  ///< kernels may send through relays
  /// @param nodes  [R] node of each rank, then [R] its number on the inner wire; kernels read it
  EPT_HOST_DEVICE hybrid_view(const Intra& intra, const Inter& inter,
                              const std::int32_t* nodes) noexcept
      : intra_(intra), inter_(inter), nodes_(nodes) {}

  EPT_NO_EXEC_CHECK
  [[nodiscard]] EPT_HOST_DEVICE std::int32_t rank() const noexcept { return inter_.rank(); }
  EPT_NO_EXEC_CHECK
  [[nodiscard]] EPT_HOST_DEVICE std::int32_t size() const noexcept { return inter_.size(); }
  EPT_NO_EXEC_CHECK
  [[nodiscard]] EPT_HOST_DEVICE std::int32_t node(std::int32_t peer) const noexcept {
    return nodes_[peer];
  }
  /// A channel of the hybrid is one of each wire.
  EPT_NO_EXEC_CHECK
  [[nodiscard]] EPT_HOST_DEVICE std::uint32_t channels() const noexcept {
    return intra_.channels() < inter_.channels() ? intra_.channels() : inter_.channels();
  }
  EPT_NO_EXEC_CHECK
  [[nodiscard]] EPT_HOST_DEVICE std::uint64_t now_ns() const { return inter_.now_ns(); }
  EPT_NO_EXEC_CHECK
  [[nodiscard]] EPT_HOST_DEVICE std::byte* local() const noexcept { return inter_.local(); }

  EPT_NO_EXEC_CHECK
  [[nodiscard]] EPT_HOST_DEVICE std::byte* peer_pointer(std::int32_t peer, std::uint64_t offset,
                                                        std::uint64_t bytes) const {
    if (!near(peer)) return nullptr;
    return intra_.peer_pointer(inner(peer), offset, bytes);
  }

  EPT_NO_EXEC_CHECK
  template <ThreadGroup Group>
  EPT_HOST_DEVICE op_status put(const Group& g, std::uint32_t channel, const put_request& request,
                                std::uint64_t deadline_ns) const {
    if (!near(request.peer)) return inter_.put(g, channel, request, deadline_ns);
    put_request local = request;
    local.peer = inner(request.peer);
    return intra_.put(g, channel, local, deadline_ns);
  }

  EPT_NO_EXEC_CHECK
  template <ThreadGroup Group>
  EPT_HOST_DEVICE op_status signal(const Group& g, std::uint32_t channel, std::int32_t peer,
                                   std::uint32_t signal, std::uint64_t deadline_ns) const {
    if (!near(peer)) return inter_.signal(g, channel, peer, signal, deadline_ns);
    return intra_.signal(g, channel, inner(peer), signal, deadline_ns);
  }

  EPT_NO_EXEC_CHECK
  [[nodiscard]] EPT_HOST_DEVICE std::uint64_t read_signal(std::uint32_t signal) const {
    return intra_.read_signal(signal) + inter_.read_signal(signal);
  }

  /// Where the two wires can wait for the sum themselves, they do; else they look by turns.
  EPT_NO_EXEC_CHECK
  template <ThreadGroup Group>
  EPT_HOST_DEVICE op_status wait_signal(const Group& g, std::uint32_t signal,
                                        std::uint64_t at_least, std::uint64_t deadline_ns) const {
    if constexpr (requires { intra_.wait_sum(g, inter_, signal, at_least, deadline_ns); }) {
      return intra_.wait_sum(g, inter_, signal, at_least, deadline_ns);
    } else {
      for (std::uint32_t look = 1;; ++look) {
        if (reached(same(g, read_signal(signal)), at_least)) {
          g.sync();  // the first thread acquired it; the others may have looked earlier
          return op_status::ok;
        }
        const std::uint64_t now = same(g, now_ns());
        if (look % looks_between_probes == 0) {
          serve(g, intra_);
          serve(g, inter_);
          if (failed(g, intra_, signal, now) || failed(g, inter_, signal, now)) {
            return op_status::failed;
          }
        }
        if (now > deadline_ns) return op_status::expired;
        Group::memory::relax();
      }
    }
  }

  EPT_NO_EXEC_CHECK
  template <ThreadGroup Group>
  EPT_HOST_DEVICE op_status flush(const Group& g, std::uint32_t channel,
                                  std::uint64_t deadline_ns) const {
    const op_status first = intra_.flush(g, channel, deadline_ns);
    return first != op_status::ok ? first : inter_.flush(g, channel, deadline_ns);
  }

  EPT_NO_EXEC_CHECK
  template <ThreadGroup Group>
  EPT_HOST_DEVICE void submit(const Group& g, std::uint32_t channel) const {
    intra_.submit(g, channel);
    inter_.submit(g, channel);
  }

 private:
  EPT_NO_EXEC_CHECK
  [[nodiscard]] EPT_HOST_DEVICE bool near(std::int32_t peer) const {
    // A peer that does not exist is the outer wire's to refuse: it knows all ranks.
    return peer >= 0 && peer < size() && nodes_[peer] == nodes_[rank()];
  }
  EPT_NO_EXEC_CHECK
  [[nodiscard]] EPT_HOST_DEVICE std::int32_t inner(std::int32_t peer) const {
    return nodes_[size() + peer];
  }
  EPT_NO_EXEC_CHECK
  template <class Group>
  [[nodiscard]] EPT_HOST_DEVICE static std::uint64_t same(const Group& g, std::uint64_t value) {
    return static_cast<std::uint64_t>(g.first(static_cast<std::int64_t>(value)));
  }

  /// Where nobody else moves a rank's queues, whoever waits does: a wire's own wait would, but one
  /// look of it need not.
  EPT_NO_EXEC_CHECK
  template <class Group, class View>
  EPT_HOST_DEVICE static void serve(const Group& g, const View& wire) {
    if constexpr (requires { wire.serve_all(g); }) {
      if (g.thread() == 0) wire.serve_all(g);
    }
  }

  /// A wait whose deadline has come is one look, and reports a wire that failed.
  EPT_NO_EXEC_CHECK
  template <class Group, class View>
  [[nodiscard]] EPT_HOST_DEVICE static bool failed(const Group& g, const View& wire,
                                                   std::uint32_t signal, std::uint64_t now) {
    const std::uint64_t seen = same(g, wire.read_signal(signal));
    return wire.wait_signal(g, signal, seen + 1, now) == op_status::failed;
  }
  [[nodiscard]] EPT_HOST_DEVICE static bool reached(std::uint64_t word, std::uint64_t at_least) {
    return static_cast<std::int64_t>(word - at_least) >= 0;
  }
  static constexpr std::uint32_t looks_between_probes = 64;

  Intra intra_;
  Inter inter_;
  const std::int32_t* nodes_;
};

}  // namespace eptransport
