// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Calls of few tokens: what every crew finds out for itself about all tokens and rows.
///
/// Where stores reach every peer and tokens are few, to look at all of them costs a crew less than
/// to wait for the other crews. What it finds lies in its scratch:
///
///     received [R]           rows from each source
///     start    [L + 1]       expert layouts: rows of an expert, then its first output row
///     below    [rows/32, L]  choices of an expert in 32 rows, then in all rows before them
///     masks    [T]           dispatch, first half: the ranks of each token, as bits
///     local    [rows, k]     second half, over the masks: local expert of each choice, or none
#pragma once

#include <eptransport/core/config.hpp>
#include <eptransport/core/thread_group.hpp>
#include <eptransport/kernels/call.hpp>
#include <eptransport/kernels/layout.hpp>

#include <cstddef>
#include <cstdint>

namespace eptransport::detail {

/// Rows whose choices are counted together.
inline constexpr std::int64_t few_chunk = 32;
/// The local expert of a choice that is another rank's, or unused.
inline constexpr std::uint16_t no_local = 0xffff;

/// Bytes of a crew's scratch before the masks.
[[nodiscard]] EPT_HOST_DEVICE inline std::int64_t few_head_bytes(const geometry& geo) noexcept {
  const std::int64_t chunks = (geo.max_tokens * geo.ranks + few_chunk - 1) / few_chunk;
  return 8 * (geo.ranks + geo.local_experts + 1) + (4 * chunks * geo.local_experts + 7) / 8 * 8;
}

/// True if every crew may look at all tokens and rows of a slotted call by itself. A property of
/// the shape: all workers of a rank agree; the messages are the same, so ranks need not.
[[nodiscard]] EPT_HOST_DEVICE inline bool few(const geometry& geo) noexcept {
  constexpr std::int64_t most_choices = 4096;  // of this rank's tokens: more are read too slowly
  constexpr std::int64_t bytes = crew_scratch_bytes;
  if (geo.message != message_shape::direct || geo.ranks > 64) return false;
  if (geo.sources == 1 && geo.ranks > 1) return false;  // a summed word has one reader
  if (geo.max_tokens > most_choices || geo.max_tokens * geo.top_k > most_choices) return false;
  if (geo.local_experts > bytes / 8) return false;
  const std::int64_t masks = 8 * geo.max_tokens;
  const std::int64_t local = 2 * geo.max_tokens * geo.ranks * geo.top_k;
  return few_head_bytes(geo) + (masks > local ? masks : local) <= bytes;
}

/// The parts of a crew's scratch.
struct few_scratch {
  std::int64_t* received;
  std::int64_t* start;
  std::uint32_t* below;
  std::uint64_t* masks;
  std::uint16_t* local;

  EPT_NO_EXEC_CHECK
  template <class W>
  [[nodiscard]] EPT_HOST_DEVICE static few_scratch of(const W& worker, const geometry& geo) {
    std::byte* bytes = worker.scratch();
    auto* received = reinterpret_cast<std::int64_t*>(bytes);
    std::int64_t* start = received + geo.ranks;
    std::byte* rest = bytes + few_head_bytes(geo);
    return {received, start, reinterpret_cast<std::uint32_t*>(start + geo.local_experts + 1),
            reinterpret_cast<std::uint64_t*>(rest), reinterpret_cast<std::uint16_t*>(rest)};
  }
};

/// Calls `body(i)` for i of [0, count), each in one thread of the crew.
EPT_NO_EXEC_CHECK
template <class W, class Body>
EPT_HOST_DEVICE void for_crew(const W& worker, std::int64_t count, const Body& body) {
  const auto step = static_cast<std::int64_t>(worker.members()) * worker.threads();
  const auto first = static_cast<std::int64_t>(worker.member()) * worker.threads();
  EPT_ROLLED
  for (std::int64_t i = first + worker.thread(); i < count; i += step) body(i);
}

/// How many of the first `count` masks have the bit of `rank`. All threads of the worker call.
EPT_NO_EXEC_CHECK
template <class W>
[[nodiscard]] EPT_HOST_DEVICE std::int64_t count_bits(const W& worker, const std::uint64_t* masks,
                                                      std::int64_t count, std::int32_t rank) {
  std::int64_t found = 0;
  EPT_ROLLED
  for (std::int64_t base = 0; base < count; base += worker.threads()) {
    const std::int64_t t = base + worker.thread();
    found += worker.count(t < count && (masks[t] >> rank & 1u) != 0);
  }
  return found;
}

}  // namespace eptransport::detail
