// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief EFA and mlx5 as wires: which queue a put takes, which entries it becomes, what counts it.
///
/// | wire      | queues of a rank    | put with signal s                    | signal alone     |
/// |-----------|---------------------|--------------------------------------|------------------|
/// | efa_wire  | one per channel     | a write to the peer's queue pair s,  | the same write,  |
/// |           |                     | whose completion counter is word s   | 4 scratch bytes  |
/// | mlx5_wire | one per channel and | a write, then a fetch-add of word s  | the fetch-add    |
/// |           | peer                | on the same connection               |                  |
#pragma once

#include <eptransport/backends/gdaki/detail/tables.hpp>
#include <eptransport/core/capabilities.hpp>
#include <eptransport/core/config.hpp>
#include <eptransport/core/transport.hpp>
#include <eptransport/core/wire_costs.hpp>
#include <eptransport/gdaki/send_queue.hpp>

#include <cstddef>
#include <cstdint>

namespace eptransport {

/// Both wires carry up to 1 GiB in one request.
inline constexpr std::uint64_t gdaki_max_message = std::uint64_t{1} << 30;

/// EFA's SRD: unordered, no atomics. A signal word is a completion counter that the NIC writes:
/// each has a queue pair of its own, and a put is addressed to the one that is to count it.
struct efa_wire {
  static constexpr const char* name = "gdaki:efa";
  static constexpr capabilities caps{.peer_reach = reach::never,
                                     .put_order = ordering::none,
                                     .add = signal_add::one,
                                     .max_signals = 512,
                                     .max_message = gdaki_max_message,
                                     .needs_registered_source = true,
                                     .charge = wires::efa_gpu.charge()};
  using format = gdaki::efa_format<>;
  using queue = gdaki::send_queue<format, gdaki::one_device, gdaki::polled_completion>;
  using target = gdaki::efa::address;

  [[nodiscard]] EPT_HOST_DEVICE static constexpr std::uint32_t queues_per_channel(
      std::int32_t) noexcept {
    return 1;
  }
  [[nodiscard]] EPT_HOST_DEVICE static constexpr std::uint32_t queue_of(std::int32_t) noexcept {
    return 0;
  }
  /// Entries of a put; one that moves nothing and counts nowhere is none.
  [[nodiscard]] EPT_HOST_DEVICE static constexpr std::uint32_t entries(
      const put_request& r) noexcept {
    return r.bytes == 0 && r.signal == no_signal ? 0 : 1;
  }
  /// The only entry of a put.
  EPT_NO_EXEC_CHECK
  [[nodiscard]] EPT_HOST_DEVICE static gdaki::efa::entry<gdaki::efa::narrow> build(
      const gdaki_detail::tables<efa_wire>& t, const put_request& r, std::uint32_t,
      gdaki::efa::place at) noexcept {
    const auto peer = static_cast<std::uint32_t>(r.peer);
    const std::uint32_t row = r.signal == no_signal ? t.signals : r.signal;
    const target to = t.targets[std::uint64_t{row} * static_cast<std::uint32_t>(t.ranks) + peer];
    gdaki::remote_range into = t.peers[peer].window;
    if (r.bytes != 0) {
      into.address += r.dst_offset;
      return gdaki::efa::write(
          at, to, into,
          {reinterpret_cast<std::uintptr_t>(r.src), t.lkey, static_cast<std::uint32_t>(r.bytes)});
    }
    const std::uint64_t scratch = gdaki_detail::scratch_of(t.window_bytes);
    into.address += scratch + gdaki_detail::scratch_target;
    const auto from = reinterpret_cast<std::uintptr_t>(t.window) + scratch;
    return gdaki::efa::write(at, to, into, {from + gdaki_detail::scratch_source, t.lkey, 4});
  }
  [[nodiscard]] static const char* status_text(std::uint8_t status) noexcept {
    return to_string(static_cast<gdaki::efa::status>(status));
  }
};

/// ConnectX, reliable connections: in order, with atomics. The fetch-add that counts a put follows
/// it on the same connection.
struct mlx5_wire {
  static constexpr const char* name = "gdaki:mlx5";
  static constexpr capabilities caps{.peer_reach = reach::never,
                                     .put_order = ordering::per_channel,
                                     .add = signal_add::any,
                                     .max_message = gdaki_max_message,
                                     .needs_registered_source = true,
                                     .charge = wires::ib_gpu.charge()};
  using format = gdaki::mlx5_format;
  using queue = gdaki::send_queue<format, gdaki::one_device, gdaki::polled_completion>;
  /// A connection knows its peer.
  struct target {};

  [[nodiscard]] EPT_HOST_DEVICE static constexpr std::uint32_t queues_per_channel(
      std::int32_t ranks) noexcept {
    return static_cast<std::uint32_t>(ranks);
  }
  [[nodiscard]] EPT_HOST_DEVICE static constexpr std::uint32_t queue_of(
      std::int32_t peer) noexcept {
    return static_cast<std::uint32_t>(peer);
  }
  [[nodiscard]] EPT_HOST_DEVICE static constexpr std::uint32_t entries(
      const put_request& r) noexcept {
    return (r.bytes != 0 ? 1U : 0U) + (r.signal != no_signal ? 1U : 0U);
  }
  /// The i-th entry of a put: its bytes, if it has any, then its signal.
  EPT_NO_EXEC_CHECK
  [[nodiscard]] EPT_HOST_DEVICE static gdaki::mlx5::entry build(
      const gdaki_detail::tables<mlx5_wire>& t, const put_request& r, std::uint32_t i,
      gdaki::mlx5::place at) noexcept {
    const gdaki_detail::peer_memory& to = t.peers[static_cast<std::uint32_t>(r.peer)];
    if (i == 0 && r.bytes != 0) {
      return gdaki::mlx5::write(
          at, {to.window.address + r.dst_offset, to.window.key},
          {reinterpret_cast<std::uintptr_t>(r.src), t.lkey, static_cast<std::uint32_t>(r.bytes)});
    }
    const std::uint64_t old = reinterpret_cast<std::uintptr_t>(t.window) +
                              gdaki_detail::scratch_of(t.window_bytes) + gdaki_detail::scratch_old;
    return gdaki::mlx5::fetch_add(
        at, {to.words.address + std::uint64_t{r.signal} * 8, to.words.key}, 1, {old, t.lkey, 8});
  }
  [[nodiscard]] static const char* status_text(std::uint8_t status) noexcept {
    return to_string(static_cast<gdaki::mlx5::status>(status));
  }
};

}  // namespace eptransport
