// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Builds the entries of an mlx5 send queue: RDMA write, read, send, inline, atomics.
///
/// An entry is a chain of 16-byte segments, big endian, in basic blocks of 64 bytes (rdma-core
/// mlx5dv.h, `struct mlx5_wqe_*_seg`; NVIDIA's PRM, "Work queue elements"):
///
///     control        {opmod:8 index:16 opcode:8 | qpn:24 ds:8 | signature:8 0:16 flags:8 | imm:32}
///     remote address {address:64 | key:32 | 0}         writes, reads, atomics
///     atomic         {swap or add:64 | compare:64}     atomics
///     data           {bytes:32 | key:32 | address:64}  one per local range, or
///     inline         {0x80000000 + bytes:32 | bytes..., padded to 16}
///
/// `index` counts basic blocks, `ds` segments. A send queue of this library takes entries of one
/// block, so inline data ends at 28 bytes for a write and 44 for a send.
#pragma once

#include <eptransport/core/config.hpp>
#include <eptransport/gdaki/segment.hpp>

#include <cstddef>
#include <cstdint>

namespace eptransport::gdaki::mlx5 {

/// What the device does with an entry; `MLX5_OPCODE_*` of mlx5dv.h.
enum class opcode : std::uint8_t {
  nop = 0x00,
  write = 0x08,
  write_immediate = 0x09,
  send = 0x0a,
  send_immediate = 0x0b,
  read = 0x10,
  compare_swap = 0x11,
  fetch_add = 0x12,
};

/// `fm_ce_se` of the control segment; `MLX5_WQE_CTRL_*` of mlx5dv.h.
enum flag : std::uint8_t {
  quiet = 0x00,      ///< no completion unless it fails
  solicited = 0x02,  ///< wakes the receiver
  notify = 0x08,     ///< always completes
  small_fence = 0x20,
  fence = 0x80,  ///< waits for earlier reads and atomics
};

/// What an entry says about its own slot.
struct place {
  std::uint16_t index = 0;  ///< basic blocks posted before it
  std::uint32_t qpn = 0;
  std::uint8_t flags = notify;
};

/// The place of the entry that starts at block `index`, counted since the queue was made.
[[nodiscard]] EPT_HOST_DEVICE constexpr place place_of(std::uint64_t index, std::uint32_t qpn,
                                                       std::uint8_t flags = notify) noexcept {
  return {static_cast<std::uint16_t>(index), qpn, flags};
}

/// One basic block.
inline constexpr std::uint32_t block_bytes = 64;
using entry = queue_entry<4>;

inline constexpr std::uint32_t max_inline_write = 28;
inline constexpr std::uint32_t max_inline_send = 44;
inline constexpr std::uint32_t inline_mark = 0x80000000;
inline constexpr std::uint32_t max_segments = 63;  ///< of one entry: `ds` has six bits

/// What a control segment holds besides its place.
struct header {
  opcode op = opcode::nop;
  std::uint32_t segments = 1;
  std::uint32_t immediate = 0;
};

/// @param what  `what.immediate` is a number; the receiver sees the same number after be32toh
[[nodiscard]] EPT_HOST_DEVICE constexpr segment control_segment(place at, header what) noexcept {
  return {{swap_bytes(std::uint32_t{at.index} << 8U | static_cast<std::uint32_t>(what.op)),
           swap_bytes(at.qpn << 8U | what.segments), std::uint32_t{at.flags} << 24U,
           swap_bytes(what.immediate)}};
}

/// The remote end of a write, a read or an atomic.
[[nodiscard]] EPT_HOST_DEVICE constexpr segment remote_segment(remote_range remote) noexcept {
  return {{swap_bytes(high_word(remote.address)), swap_bytes(low_word(remote.address)),
           swap_bytes(remote.key), 0}};
}

/// One local range.
[[nodiscard]] EPT_HOST_DEVICE constexpr segment data_segment(local_range local) noexcept {
  return {{swap_bytes(local.bytes), swap_bytes(local.key), swap_bytes(high_word(local.address)),
           swap_bytes(low_word(local.address))}};
}

/// The operands of an atomic.
[[nodiscard]] EPT_HOST_DEVICE constexpr segment atomic_segment(std::uint64_t swap_or_add,
                                                               std::uint64_t compare) noexcept {
  return {{swap_bytes(high_word(swap_or_add)), swap_bytes(low_word(swap_or_add)),
           swap_bytes(high_word(compare)), swap_bytes(low_word(compare))}};
}

/// Segments that inline data takes, its 4-byte header included.
[[nodiscard]] EPT_HOST_DEVICE constexpr std::uint32_t inline_segments(
    std::uint32_t bytes) noexcept {
  return (bytes + 4 + 15) / 16;
}

namespace detail {

[[nodiscard]] EPT_HOST_DEVICE constexpr entry rdma(place at, header what, remote_range remote,
                                                   local_range local) noexcept {
  what.segments = local.bytes == 0 ? 2 : 3;  // a range of 0 bytes would mean 2 GiB
  entry e;
  e.part[0] = control_segment(at, what);
  e.part[1] = remote_segment(remote);
  if (local.bytes != 0) e.part[2] = data_segment(local);
  return e;
}

template <std::uint32_t kSegments>
EPT_HOST_DEVICE constexpr void put_inline(queue_entry<kSegments>& e, std::uint32_t offset,
                                          const std::byte* data, std::uint32_t bytes) noexcept {
  e.part[offset / 16].word[0] = swap_bytes(bytes | inline_mark);
  place_bytes(e, offset + 4, data, bytes);
}

}  // namespace detail

/// An RDMA write of `local`.
[[nodiscard]] EPT_HOST_DEVICE constexpr entry write(place at, remote_range remote,
                                                    local_range local) noexcept {
  return detail::rdma(at, {opcode::write}, remote, local);
}

/// An RDMA write that also gives the receiver a completion with `immediate`.
[[nodiscard]] EPT_HOST_DEVICE constexpr entry write_immediate(place at, remote_range remote,
                                                              local_range local,
                                                              std::uint32_t immediate) noexcept {
  return detail::rdma(at, {opcode::write_immediate, 0, immediate}, remote, local);
}

/// An RDMA read into `local`.
[[nodiscard]] EPT_HOST_DEVICE constexpr entry read(place at, remote_range remote,
                                                   local_range local) noexcept {
  return detail::rdma(at, {opcode::read}, remote, local);
}

/// A message of one range.
[[nodiscard]] EPT_HOST_DEVICE constexpr entry send(place at, local_range local) noexcept {
  entry e;
  e.part[0] = control_segment(at, {opcode::send, local.bytes == 0 ? 1U : 2U, 0});
  if (local.bytes != 0) e.part[1] = data_segment(local);
  return e;
}

/// A message of one range with an immediate.
[[nodiscard]] EPT_HOST_DEVICE constexpr entry send_immediate(place at, local_range local,
                                                             std::uint32_t immediate) noexcept {
  entry e = send(at, local);
  const std::uint32_t segments = local.bytes == 0 ? 1 : 2;
  e.part[0] = control_segment(at, {opcode::send_immediate, segments, immediate});
  return e;
}

/// An RDMA write whose bytes travel in the entry.
/// @tparam kSegments  of the result: 4 for one basic block; more for longer data
/// @param data  [bytes]; at most `kSegments * 16 - 36`, and the provider's limit
template <std::uint32_t kSegments = 4>
[[nodiscard]] EPT_HOST_DEVICE constexpr queue_entry<kSegments> write_inline(
    place at, remote_range remote, const std::byte* data, std::uint32_t bytes) noexcept {
  queue_entry<kSegments> e;
  const std::uint32_t used = bytes == 0 ? 0 : inline_segments(bytes);
  e.part[0] = control_segment(at, {opcode::write, 2 + used, 0});
  e.part[1] = remote_segment(remote);
  if (bytes != 0) detail::put_inline(e, 32, data, bytes);
  return e;
}

/// A message whose bytes travel in the entry.
/// @param data  [bytes]; at most `kSegments * 16 - 20`, and the provider's limit
template <std::uint32_t kSegments = 4>
[[nodiscard]] EPT_HOST_DEVICE constexpr queue_entry<kSegments> send_inline(
    place at, const std::byte* data, std::uint32_t bytes) noexcept {
  queue_entry<kSegments> e;
  const std::uint32_t used = bytes == 0 ? 0 : inline_segments(bytes);
  e.part[0] = control_segment(at, {opcode::send, 1 + used, 0});
  if (bytes != 0) detail::put_inline(e, 16, data, bytes);
  return e;
}

/// Adds to a remote 64-bit word; its old value goes to `old`, both in the byte order of the queue
/// pair's atomic mode (the host's, as verbs sets it up). Both 8-byte aligned, `old.bytes` is 8.
[[nodiscard]] EPT_HOST_DEVICE constexpr entry fetch_add(place at, remote_range remote,
                                                        std::uint64_t amount,
                                                        local_range old) noexcept {
  entry e;
  e.part[0] = control_segment(at, {opcode::fetch_add, 4, 0});
  e.part[1] = remote_segment(remote);
  e.part[2] = atomic_segment(amount, 0);
  e.part[3] = data_segment(old);
  return e;
}

/// The operands of a compare-and-swap.
struct exchange {
  std::uint64_t compare = 0;
  std::uint64_t swap = 0;
};

/// Replaces a remote 64-bit word if it equals `what.compare`; as `fetch_add` otherwise.
[[nodiscard]] EPT_HOST_DEVICE constexpr entry compare_swap(place at, remote_range remote,
                                                           exchange what,
                                                           local_range old) noexcept {
  entry e;
  e.part[0] = control_segment(at, {opcode::compare_swap, 4, 0});
  e.part[1] = remote_segment(remote);
  e.part[2] = atomic_segment(what.swap, what.compare);
  e.part[3] = data_segment(old);
  return e;
}

/// The send half of a doorbell record: `producer` is the block after the last entry.
[[nodiscard]] EPT_HOST_DEVICE constexpr std::uint32_t record(std::uint64_t producer) noexcept {
  return swap_bytes(static_cast<std::uint32_t>(producer & 0xffff));
}

/// The consumer half of a completion queue's doorbell record.
[[nodiscard]] EPT_HOST_DEVICE constexpr std::uint32_t consumer_record(
    std::uint64_t consumer) noexcept {
  return swap_bytes(static_cast<std::uint32_t>(consumer & 0xffffff));
}

/// What the doorbell register takes: the head of a control segment. The device reads the queue pair
/// and the index; libmlx5 stores those of the last entry, GPU code the next index.
[[nodiscard]] EPT_HOST_DEVICE constexpr std::uint64_t doorbell(std::uint64_t producer,
                                                               std::uint32_t qpn) noexcept {
  return std::uint64_t{swap_bytes(static_cast<std::uint32_t>((producer & 0xffff) << 8U))} |
         std::uint64_t{swap_bytes(qpn << 8U)} << 32U;
}

// Captured from libmlx5 44 (Debian 12).
static_assert(write_immediate({1, 0x1a2b3, notify}, {0x1122334455667788, 0x99aabbcc},
                              {0x8877665544332211, 0x1108, 0x1234}, 0xcafef00d) ==
              entry_from_hex<4>("00 00 01 09 01 a2 b3 03 00 00 00 08 ca fe f0 0d"
                                "11 22 33 44 55 66 77 88 99 aa bb cc 00 00 00 00"
                                "00 00 12 34 00 00 11 08 88 77 66 55 44 33 22 11"));
static_assert(compare_swap({6, 0x1a2b3, notify}, {0x1122334455667788, 0x99aabbcc}, {0x42, 0x43},
                           {0x8877665544332211, 0x1108, 8}) ==
              entry_from_hex<4>("00 00 06 11 01 a2 b3 04 00 00 00 08 00 00 00 00"
                                "11 22 33 44 55 66 77 88 99 aa bb cc 00 00 00 00"
                                "00 00 00 00 00 00 00 43 00 00 00 00 00 00 00 42"
                                "00 00 00 08 00 00 11 08 88 77 66 55 44 33 22 11"));
static_assert(fetch_add({5, 0x1a2b3, notify}, {0x1122334455667788, 0x99aabbcc}, 0x42,
                        {0x8877665544332211, 0x1108, 8}) ==
              entry_from_hex<4>("00 00 05 12 01 a2 b3 04 00 00 00 08 00 00 00 00"
                                "11 22 33 44 55 66 77 88 99 aa bb cc 00 00 00 00"
                                "00 00 00 00 00 00 00 42 00 00 00 00 00 00 00 00"
                                "00 00 00 08 00 00 11 08 88 77 66 55 44 33 22 11"));
namespace detail {
[[nodiscard]] constexpr queue_entry<8> golden_inline_write() noexcept {
  std::byte data[40] = {};
  for (std::uint32_t i = 0; i < 40; ++i) data[i] = static_cast<std::byte>(i);
  return write_inline<8>({3, 0x1a2b3, notify | fence}, {0x1122334455667788, 0x99aabbcc}, data, 40);
}
}  // namespace detail
static_assert(detail::golden_inline_write() ==
              entry_from_hex<8>("00 00 03 08 01 a2 b3 05 00 00 00 88 00 00 00 00"
                                "11 22 33 44 55 66 77 88 99 aa bb cc 00 00 00 00"
                                "80 00 00 28 00 01 02 03 04 05 06 07 08 09 0a 0b"
                                "0c 0d 0e 0f 10 11 12 13 14 15 16 17 18 19 1a 1b"
                                "1c 1d 1e 1f 20 21 22 23 24 25 26 27 00 00 00 00"));

}  // namespace eptransport::gdaki::mlx5
