// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Builds the entries of an EFA send queue: RDMA write and read, send, with 64 or 128 bytes.
///
/// Layout, little endian (`struct efa_io_tx_wqe` and `efa_io_tx_wqe_128` of the EFA driver's
/// efa_io_defs.h; efa-dp-direct uses the same):
///
///     0 request id (16) | ctrl1 (8) | ctrl2 (8)     16 queue key (32), reserved (96)
///     4 destination queue pair (16) | length (16)   32 remote memory {bytes, key, address}, or
///     8 immediate (32)                                 two local ranges, or inline bytes (send)
///    12 address handle (16) | hints (8) | 0         48 local memory {bytes, key, address}, or
///                                                      inline bytes (wide write)
///
/// ctrl1: operation 3:0, immediate 4, inline 5, descriptor 7. ctrl2: phase 0, first 2, last 3,
/// completion 4. The phase says on which lap over the ring the entry was written: it starts at 0.
#pragma once

#include <eptransport/core/config.hpp>
#include <eptransport/gdaki/segment.hpp>

#include <cstddef>
#include <cstdint>

namespace eptransport::gdaki::efa {

/// What the device does with an entry.
enum class operation : std::uint8_t { send = 0, read = 1, write = 2 };

/// A remote queue pair as one poster sees it: address handle numbers are local to its domain.
struct address {
  std::uint16_t handle = 0;
  std::uint16_t qpn = 0;
  std::uint32_t qkey = 0;
};

/// What an entry says about its own slot.
struct place {
  std::uint16_t request_id = 0;  ///< comes back in the completion; the device does not read it
  bool phase = false;
};

/// The place of the index-th entry that was ever posted to a ring of `slots` slots.
/// @param slots  a power of two, at most 32768
[[nodiscard]] EPT_HOST_DEVICE constexpr place place_of(std::uint64_t index,
                                                       std::uint32_t slots) noexcept {
  return {static_cast<std::uint16_t>(index), (index & slots) != 0};
}

/// What a request may carry besides its bytes.
struct options {
  bool has_immediate = false;
  std::uint32_t immediate = 0;  ///< delivered to the receiver as this number
  std::uint8_t hints = 0;       ///< processing hints: bit 0 = burst, packets-per-second sensitive
};

/// Entry sizes: the narrow one exists everywhere, the wide one allows inline RDMA writes.
inline constexpr std::uint32_t narrow = 64;
inline constexpr std::uint32_t wide = 128;

/// Bytes that travel inside an entry: a send has them in both sizes, a write in the wide one only.
[[nodiscard]] EPT_HOST_DEVICE constexpr std::uint32_t max_inline_send(
    std::uint32_t entry_bytes) noexcept {
  return entry_bytes - 32 - (entry_bytes == wide ? 16 : 0);
}
inline constexpr std::uint32_t max_inline_write = 80;
inline constexpr std::uint32_t max_send_ranges = 2;
inline constexpr std::uint32_t key_mask = 0xffffff;  ///< an lkey has 24 bits in an entry

/// An entry of `kBytes` bytes.
template <std::uint32_t kBytes>
using entry = queue_entry<kBytes / 16>;

namespace detail {

struct meta {
  operation op = operation::send;
  bool is_inline = false;
  std::uint16_t length = 0;
};

template <std::uint32_t kBytes>
EPT_HOST_DEVICE constexpr void set_meta(entry<kBytes>& e, place at, address to, meta m,
                                        options with) noexcept {
  const std::uint32_t ctrl1 = static_cast<std::uint32_t>(m.op) | (with.has_immediate ? 0x10U : 0U) |
                              (m.is_inline ? 0x20U : 0U) | 0x80U;
  const std::uint32_t ctrl2 = 0x1cU | (at.phase ? 1U : 0U);
  e.part[0].word[0] = at.request_id | ctrl1 << 16U | ctrl2 << 24U;
  e.part[0].word[1] = to.qpn | std::uint32_t{m.length} << 16U;
  e.part[0].word[2] = with.has_immediate ? with.immediate : 0;
  e.part[0].word[3] = to.handle | std::uint32_t{with.hints} << 16U;
  e.part[1].word[0] = to.qkey;
}

[[nodiscard]] EPT_HOST_DEVICE constexpr segment memory(std::uint32_t bytes, std::uint32_t key,
                                                       std::uint64_t at) noexcept {
  return {{bytes, key, low_word(at), high_word(at)}};
}

template <std::uint32_t kBytes>
[[nodiscard]] EPT_HOST_DEVICE constexpr entry<kBytes> rdma(operation op, place at, address to,
                                                           remote_range remote, local_range local,
                                                           options with) noexcept {
  entry<kBytes> e;
  set_meta<kBytes>(e, at, to, {op, false, 1}, with);
  e.part[2] = memory(local.bytes, remote.key, remote.address);
  e.part[3] = memory(local.bytes, local.key & key_mask, local.address);
  return e;
}

}  // namespace detail

/// An RDMA write of `local`; with an immediate the receiver gets a completion.
template <std::uint32_t kBytes = narrow>
[[nodiscard]] EPT_HOST_DEVICE constexpr entry<kBytes> write(place at, address to,
                                                            remote_range remote, local_range local,
                                                            options with = {}) noexcept {
  return detail::rdma<kBytes>(operation::write, at, to, remote, local, with);
}

/// An RDMA read into `local`.
template <std::uint32_t kBytes = narrow>
[[nodiscard]] EPT_HOST_DEVICE constexpr entry<kBytes> read(place at, address to,
                                                           remote_range remote, local_range local,
                                                           std::uint8_t hints = 0) noexcept {
  return detail::rdma<kBytes>(operation::read, at, to, remote, local, {false, 0, hints});
}

/// A message of one or two ranges; the second is left out when it has no bytes.
template <std::uint32_t kBytes = narrow>
[[nodiscard]] EPT_HOST_DEVICE constexpr entry<kBytes> send(place at, address to, local_range first,
                                                           local_range second = {},
                                                           options with = {}) noexcept {
  const std::uint16_t ranges = second.bytes == 0 ? 1 : 2;
  entry<kBytes> e;
  detail::set_meta<kBytes>(e, at, to, {operation::send, false, ranges}, with);
  e.part[2] = detail::memory(first.bytes, first.key & key_mask, first.address);
  if (ranges == 2) e.part[3] = detail::memory(second.bytes, second.key & key_mask, second.address);
  return e;
}

/// A message whose bytes travel in the entry.
/// @param data  [bytes], at most `max_inline_send(kBytes)`
template <std::uint32_t kBytes = narrow>
[[nodiscard]] EPT_HOST_DEVICE constexpr entry<kBytes> send_inline(place at, address to,
                                                                  const std::byte* data,
                                                                  std::uint16_t bytes,
                                                                  options with = {}) noexcept {
  entry<kBytes> e;
  detail::set_meta<kBytes>(e, at, to, {operation::send, true, bytes}, with);
  place_bytes(e, 32, data, bytes);
  return e;
}

/// The bytes of an inline write.
struct inline_bytes {
  const std::byte* data = nullptr;
  std::uint16_t bytes = 0;  ///< at most `max_inline_write`
};

/// An RDMA write whose bytes travel in the entry; wide entries only.
[[nodiscard]] EPT_HOST_DEVICE constexpr entry<wide> write_inline(place at, address to,
                                                                 remote_range remote,
                                                                 inline_bytes what,
                                                                 options with = {}) noexcept {
  entry<wide> e;
  detail::set_meta<wide>(e, at, to, {operation::write, true, what.bytes}, with);
  e.part[2] = detail::memory(what.bytes, remote.key, remote.address);
  place_bytes(e, 48, what.data, what.bytes);
  return e;
}

/// One receive buffer (`struct efa_io_rx_desc`): {address, request id, 16-bit length, key, marks}.
[[nodiscard]] EPT_HOST_DEVICE constexpr segment receive(std::uint16_t request_id,
                                                        local_range into) noexcept {
  const std::uint32_t bytes = into.bytes > 0xffff ? 0xffffU : into.bytes;
  return {{low_word(into.address), high_word(into.address), request_id | bytes << 16U,
           (into.key & key_mask) | 0xc0000000U}};
}

/// The value that the send doorbell takes after the entry before `producer` was written.
///
/// @par Source  The provider writes a 16-bit counter, efa-dp-direct an unmasked one: the device
///              reads no more than the lower 16 bits.
[[nodiscard]] EPT_HOST_DEVICE constexpr std::uint32_t doorbell(std::uint64_t producer) noexcept {
  return static_cast<std::uint32_t>(producer & 0xffff);
}

// Captured from a provider that knows RDMA write; the request id carries a queue pair generation.
namespace detail {
inline constexpr address golden_peer{0xa5, 0x4321, 0x99aabbcc};
inline constexpr remote_range golden_remote{0x1122334455667788, 0xdeadbeef};
inline constexpr char golden_text[] = "0123456789abcdefghijklmnopqrstuv";

[[nodiscard]] constexpr entry<wide> golden_inline_write() noexcept {
  std::byte data[32] = {};
  for (std::uint32_t i = 0; i < 32; ++i) data[i] = static_cast<std::byte>(golden_text[i]);
  return write_inline({0x21, false}, golden_peer, golden_remote, {data, 32});
}
}  // namespace detail

static_assert(write({0x20, false}, detail::golden_peer, detail::golden_remote,
                    {0x8877665544332211, 0x1103, 0x12345}, {true, 0xcafef00d, 1}) ==
              entry_from_hex<4>("20 00 92 1c 21 43 01 00 0d f0 fe ca a5 00 01 00"
                                "cc bb aa 99 00 00 00 00 00 00 00 00 00 00 00 00"
                                "45 23 01 00 ef be ad de 88 77 66 55 44 33 22 11"
                                "45 23 01 00 03 11 00 00 11 22 33 44 55 66 77 88"));
static_assert(write({0x21, false}, detail::golden_peer, detail::golden_remote, {0x10, 0x1103, 8}) ==
              entry_from_hex<4>("21 00 82 1c 21 43 01 00 00 00 00 00 a5 00 00 00"
                                "cc bb aa 99 00 00 00 00 00 00 00 00 00 00 00 00"
                                "08 00 00 00 ef be ad de 88 77 66 55 44 33 22 11"
                                "08 00 00 00 03 11 00 00 10 00 00 00 00 00 00 00"));
static_assert(read({0, false}, detail::golden_peer, detail::golden_remote,
                   {0x8877665544332211, 0x1103, 0x12345}) ==
              entry_from_hex<4>("00 00 81 1c 21 43 01 00 00 00 00 00 a5 00 00 00"
                                "cc bb aa 99 00 00 00 00 00 00 00 00 00 00 00 00"
                                "45 23 01 00 ef be ad de 88 77 66 55 44 33 22 11"
                                "45 23 01 00 03 11 00 00 11 22 33 44 55 66 77 88"));
static_assert(write<wide>({0x20, false}, detail::golden_peer, detail::golden_remote,
                          {0x8877665544332211, 0x1103, 0x12345}, {true, 0xcafef00d, 1}) ==
              entry_from_hex<8>("20 00 92 1c 21 43 01 00 0d f0 fe ca a5 00 01 00"
                                "cc bb aa 99 00 00 00 00 00 00 00 00 00 00 00 00"
                                "45 23 01 00 ef be ad de 88 77 66 55 44 33 22 11"
                                "45 23 01 00 03 11 00 00 11 22 33 44 55 66 77 88"));
static_assert(detail::golden_inline_write() ==
              entry_from_hex<8>("21 00 a2 1c 21 43 20 00 00 00 00 00 a5 00 00 00"
                                "cc bb aa 99 00 00 00 00 00 00 00 00 00 00 00 00"
                                "20 00 00 00 ef be ad de 88 77 66 55 44 33 22 11"
                                "30 31 32 33 34 35 36 37 38 39 61 62 63 64 65 66"
                                "67 68 69 6a 6b 6c 6d 6e 6f 70 71 72 73 74 75 76"));

}  // namespace eptransport::gdaki::efa
