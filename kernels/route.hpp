// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Routing: which ranks a token goes to, and its slot at each, without atomics.
///
/// slot(token, rank) = number of earlier tokens that go to that rank: a function of the indices
/// alone, so the order of rows is deterministic. Each worker counts its contiguous share of the
/// tokens, a scan over the workers gives its first slots, and a second pass assigns.
#pragma once

#include <eptransport/core/config.hpp>
#include <eptransport/kernels/lane.hpp>
#include <eptransport/kernels/layout.hpp>

#include <cstdint>
#include <type_traits>

namespace eptransport::detail {

/// The choice `index` of [T, k] as the caller wrote it.
[[nodiscard]] EPT_HOST_DEVICE inline std::int64_t read_index(const dispatch_input& in,
                                                             std::int64_t index) noexcept {
  return in.indices == index_type::int64 ? static_cast<const std::int64_t*>(in.topk_index)[index]
                                         : static_cast<const std::int32_t*>(in.topk_index)[index];
}

/// The rank of a choice; -1 if the choice is unused or out of range.
[[nodiscard]] EPT_HOST_DEVICE inline std::int32_t rank_of(const geometry& geo,
                                                          std::int64_t expert) noexcept {
  return expert >= 0 && expert < geo.experts ? geo.placement[expert].rank : -1;
}

/// True if choice j is the first of its token that goes to `rank`.
[[nodiscard]] EPT_HOST_DEVICE inline bool leads(const geometry& geo, const dispatch_input& in,
                                                std::int64_t token, std::int32_t j,
                                                std::int32_t rank) noexcept {
  const std::int64_t first = token * geo.top_k;
  for (std::int32_t i = 0; i < j; ++i) {
    if (rank_of(geo, read_index(in, first + i)) == rank) return false;
  }
  return true;
}

/// How often the token names the expert of choice j, if j is the first to name it; else 0. So one
/// thread counts all of them, and no two threads meet in a counter.
[[nodiscard]] EPT_HOST_DEVICE inline std::int64_t repeats(const geometry& geo,
                                                          const dispatch_input& in,
                                                          std::int64_t token, std::int32_t j,
                                                          std::int64_t expert) noexcept {
  std::int64_t count = 0;
  for (std::int32_t i = 0; i < geo.top_k; ++i) {
    if (read_index(in, token * geo.top_k + i) != expert) continue;
    if (i < j) return 0;
    ++count;
  }
  return count;
}

/// First pass: this worker's tokens per destination rank, with `experts` its choices per expert as
/// well (columns R, R + 1, ..), and the check of every index.
EPT_NO_EXEC_CHECK
template <class Context>
EPT_HOST_DEVICE void count_routes(const Context& ctx, const dispatch_input& in, std::int64_t tokens,
                                  bool experts) {
  using memory = typename std::remove_reference_t<decltype(ctx.worker)>::memory;
  const auto& worker = ctx.worker;
  const geometry& geo = ctx.geo;
  std::int64_t* counts = ctx.lane.counts + worker.worker() * ctx.lane.width;
  const std::int64_t columns = geo.ranks + (experts ? geo.experts : 0);
  for (std::int64_t c = worker.thread(); c < columns; c += worker.threads()) counts[c] = 0;
  worker.sync();
  const share mine = share_of(worker, tokens);
  for (std::int64_t t = mine.begin; t < mine.end; ++t) {
    for (std::int32_t j = static_cast<std::int32_t>(worker.thread()); j < geo.top_k;
         j += static_cast<std::int32_t>(worker.threads())) {
      const std::int64_t expert = read_index(in, t * geo.top_k + j);
      const std::int32_t rank = rank_of(geo, expert);
      if (rank >= 0) {
        // Leaders of one token have different ranks: no two threads meet in a counter.
        if (leads(geo, in, t, j, rank)) ++counts[rank];
        const std::int64_t named = experts ? repeats(geo, in, t, j, expert) : 0;
        if (named != 0) counts[geo.ranks + expert] += named;  // adding 0 would race with the first
      } else if (expert != -1 && geo.checks == index_checks::checked) {
        raise(ctx, {.kind = fault_kind::bad_index,
                    .where = stage::dispatch_send,
                    .expected = static_cast<std::uint64_t>(geo.experts),
                    .seen = static_cast<std::uint64_t>(expert)});
      } else if (expert != -1) {
        memory::fetch_add(&ctx.lane.state->bad_indices, 1);
      }
    }
    worker.sync();
  }
}

/// Second pass: writes the routes of this worker's tokens into the handle.
EPT_NO_EXEC_CHECK
template <class Context>
EPT_HOST_DEVICE void assign_routes(const Context& ctx, const dispatch_input& in,
                                   std::int64_t tokens, const handle_parts& handle) {
  const auto& worker = ctx.worker;
  const geometry& geo = ctx.geo;
  std::int64_t* next = ctx.lane.starts + worker.worker() * ctx.lane.width;
  const share mine = share_of(worker, tokens);
  for (std::int64_t t = mine.begin; t < mine.end; ++t) {
    route_entry* routes = handle.routes + t * geo.top_k;
    std::int64_t led = 0;
    for (std::int32_t j = static_cast<std::int32_t>(worker.thread()); j < geo.top_k;
         j += static_cast<std::int32_t>(worker.threads())) {
      const std::int32_t rank = rank_of(geo, read_index(in, t * geo.top_k + j));
      if (rank < 0 || !leads(geo, in, t, j, rank)) continue;
      std::int32_t position = 0;  // among the token's ranks, ascending
      for (std::int32_t i = 0; i < geo.top_k; ++i) {
        const std::int32_t other = rank_of(geo, read_index(in, t * geo.top_k + i));
        if (other >= 0 && other < rank && leads(geo, in, t, i, other)) ++position;
      }
      routes[position] = {.slot = next[rank]++, .rank = rank, .unused = 0};
      ++led;
    }
    led = worker.sum(led);
    for (std::int64_t p = led + worker.thread(); p < geo.top_k; p += worker.threads()) {
      routes[p] = {.slot = 0, .rank = -1, .unused = 0};
    }
    worker.sync();
  }
}

}  // namespace eptransport::detail
