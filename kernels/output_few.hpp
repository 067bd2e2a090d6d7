// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Outputs of few rows without barriers: every crew looks at all rows in its scratch.
#pragma once

#include <eptransport/core/config.hpp>
#include <eptransport/kernels/few.hpp>
#include <eptransport/kernels/lane.hpp>
#include <eptransport/kernels/layout.hpp>
#include <eptransport/kernels/output_rows.hpp>
#include <eptransport/kernels/pieces.hpp>
#include <eptransport/kernels/receive.hpp>

#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace eptransport::detail {

/// Notes the local expert of every choice of every row, and how many choices each expert has below
/// each chunk of rows and in all (`start`). By the whole crew.
EPT_NO_EXEC_CHECK
template <class Context>
EPT_NOINLINE EPT_HOST_DEVICE void look_at_rows(const Context& ctx, const landed_rows& landed,
                                               std::int64_t rows, const few_scratch& scratch) {
  using memory = typename std::remove_reference_t<decltype(ctx.worker)>::memory;
  const geometry& geo = ctx.geo;
  const auto& worker = ctx.worker;
  const std::int64_t experts = geo.local_experts;
  const std::int64_t chunks = (rows + few_chunk - 1) / few_chunk;
  for_crew(worker, chunks * experts, [&](std::int64_t i) { scratch.below[i] = 0; });
  (void)worker.crew_all(true);
  for_crew(worker, rows, [&](std::int64_t row) {
    const row_cursor cursor(geo, scratch.received, row);
    const slot_choice* choices = landed.choices(*cursor);
    std::uint32_t* counts = scratch.below + row / few_chunk * experts;
    EPT_ROLLED
    for (std::int32_t first = 0; first < geo.top_k; first += fan::most) {
      const local_choices some(geo, choices, first);
      EPT_UNROLL
      for (int n = 0; n < fan::most; ++n) {
        if (first + n >= geo.top_k) continue;
        const std::int32_t local = some.local[n];
        scratch.local[row * geo.top_k + first + n] =
            local < 0 ? no_local : static_cast<std::uint16_t>(local);
        if (local >= 0) memory::crew_add(counts + local, 1);
      }
    }
  });
  (void)worker.crew_all(true);
  for_crew(worker, experts, [&](std::int64_t e) {
    std::uint32_t sum = 0;
    EPT_ROLLED
    for (std::int64_t c = 0; c < chunks; ++c) {
      std::uint32_t& count = scratch.below[c * experts + e];
      const std::uint32_t here = count;
      count = sum;
      sum += here;
    }
    scratch.start[e] = sum;
  });
  (void)worker.crew_all(true);
}

/// What the output says of one expert. One thread.
EPT_HOST_DEVICE inline void tell_expert(const geometry& geo, const dispatch_output& out,
                                        std::int64_t e, std::int64_t count, std::int64_t start) {
  if (out.expert_count != nullptr) out.expert_count[e] = count;
  if (out.host_counts != nullptr) out.host_counts[1 + e] = count;
  if (!per_expert(out.layout)) return;
  if (out.expert_offset != nullptr) out.expert_offset[e] = start;
  if (out.row_expert == nullptr || out.layout == output_layout::padded) return;
  const std::int64_t end = start + expert_room(geo, out, count);
  for (std::int64_t row = start + count; row < end; ++row) out.row_expert[row] = -1;
}

/// Turns the counts of `look_at_rows` into first output rows, and checks that the experts' rows
/// fit. `tells`: writes what the output says of the experts. One worker; false: they do not fit.
EPT_NO_EXEC_CHECK
template <class Context>
[[nodiscard]] EPT_NOINLINE EPT_HOST_DEVICE bool start_experts(const Context& ctx,
                                                              const dispatch_output& out,
                                                              const few_scratch& scratch,
                                                              bool tells) {
  const geometry& geo = ctx.geo;
  const auto& worker = ctx.worker;
  const bool expert_wise = per_expert(out.layout);
  const bool padded = out.layout == output_layout::padded;
  const std::int64_t room = expert_wise ? out.capacity : 0;
  std::int64_t end = 0;
  std::int64_t counted = 0;
  bool fits = true;
  EPT_ROLLED
  for (std::int64_t e = worker.thread(); e < geo.local_experts; e += worker.threads()) {
    const std::int64_t count = scratch.start[e];
    counted += count;
    if (expert_wise) end += expert_room(geo, out, count);
    if (!padded || room == 0 || count <= room) continue;
    fits = false;
    raise_capacity(ctx, room, count, static_cast<std::int32_t>(e));
  }
  end = worker.sum(end);
  counted = worker.sum(counted);
  if (!padded && room != 0 && end > room) {
    fits = false;
    if (worker.thread() == 0) raise_capacity(ctx, room, end, -1);
  }
  if (worker.any(!fits)) return false;  // before anything is written: it might not fit either
  std::int64_t below = 0;
  EPT_ROLLED
  for (std::int64_t base = 0; base < geo.local_experts; base += worker.threads()) {
    const std::int64_t e = base + worker.thread();
    const bool is = e < geo.local_experts;
    const std::int64_t count = is ? scratch.start[e] : 0;
    const std::int64_t takes = is && expert_wise ? expert_room(geo, out, count) : 0;
    const std::int64_t start = below + worker.prefix(takes);
    below += worker.sum(takes);
    if (is) scratch.start[e] = start;
    if (is && tells) tell_expert(geo, out, e, count, start);
  }
  if (tells && expert_wise && worker.thread() == 0) emit_total(out, padded ? counted : end);
  return true;
}

/// Output rows of the choices `first`, `first + 1`, .. of a received row.
struct choice_places {
  std::int64_t at[fan::most];  ///< -1 = not an expert of this rank
};

/// Finds them: those of lower chunks come before, and those of the same expert in this chunk.
EPT_NO_EXEC_CHECK
template <class Context>
[[nodiscard]] EPT_NOINLINE EPT_HOST_DEVICE choice_places
place_few(const Context& ctx, const few_scratch& scratch, std::int64_t row, std::int32_t first) {
  const geometry& geo = ctx.geo;
  const auto& worker = ctx.worker;
  const std::uint16_t* local = scratch.local;
  const std::int64_t chunk = row / few_chunk;
  const std::int64_t begin = chunk * few_chunk * geo.top_k;
  choice_places found;
  EPT_ROLLED
  for (std::int32_t n = 0; n < fan::most; ++n) {
    found.at[n] = -1;
    const std::int64_t own = row * geo.top_k + first + n;
    if (first + n >= geo.top_k || local[own] == no_local) continue;
    const std::uint16_t e = local[own];
    std::int64_t before = scratch.start[e] + scratch.below[chunk * geo.local_experts + e];
    EPT_ROLLED
    for (std::int64_t base = begin; base < own; base += worker.threads()) {
      const std::int64_t i = base + worker.thread();
      before += worker.count(i < own && local[i] == e);
    }
    found.at[n] = before;
  }
  return found;
}

/// What is about the output rows of some choices of a row, and where they are, in `places` [k].
EPT_NO_EXEC_CHECK
template <class Context>
EPT_NOINLINE EPT_HOST_DEVICE void note_few(const Context& ctx, const dispatch_output& out,
                                           const landed_rows& landed, const received_row& row,
                                           std::int32_t first, const choice_places& found,
                                           place_entry* places, const few_scratch& scratch) {
  const geometry& geo = ctx.geo;
  const auto& worker = ctx.worker;
  const slot_choice* choices = landed.choices(row);
  for (auto n = static_cast<std::int32_t>(worker.thread()); n < fan::most && first + n < geo.top_k;
       n += static_cast<std::int32_t>(worker.threads())) {
    const std::int64_t to = found.at[n];
    const float weight = choices[first + n].weight;
    places[first + n] = {.position = to, .weight = weight, .unused = 0};
    if (to < 0) continue;
    if (out.row_weight != nullptr) out.row_weight[to] = weight;
    if (out.row_expert != nullptr) {
      out.row_expert[to] = scratch.local[row.index * geo.top_k + first + n];
    }
    if (out.source_rank != nullptr) out.source_rank[to] = row.source;
    if (out.source_token != nullptr) out.source_token[to] = landed.token(row);
  }
  if (geo.scale_bytes == 0 || out.scales == nullptr) return;
  fan scales;
  EPT_ROLLED
  for (const std::int64_t to : found.at) {
    if (to < 0) continue;
    if (out.scale_stride != 0) emit_scales(ctx, out, landed.side(row), to);
    scales.add(static_cast<std::byte*>(out.scales) +
               static_cast<std::uint64_t>(to) * geo.scale_bytes);
  }
  if (out.scale_stride == 0) worker.fan_out(scales, 0, landed.side(row), geo.scale_bytes);
}

/// Copies this worker's share of the rows to their output rows. The unit behind a row's last is
/// what goes with it.
EPT_NO_EXEC_CHECK
template <class Context>
EPT_HOST_DEVICE void emit_few_pieces(const Context& ctx, const dispatch_output& out,
                                     const landed_rows& landed, const handle_parts& handle,
                                     const few_scratch& scratch, std::int64_t rows) {
  const geometry& geo = ctx.geo;
  const bool expert_wise = per_expert(out.layout);
  const std::int64_t units = units_of(static_cast<std::int64_t>(geo.row_bytes), unit_bytes);
  for_pieces(ctx.worker, rows, units + 1, [&](const piece& part) {
    const row_cursor cursor(geo, scratch.received, part.row);
    const bool side = part.end > units;
    const piece values{part.row, part.begin, side ? units : part.end};
    const std::int32_t choices = expert_wise ? geo.top_k : 1;
    EPT_ROLLED
    for (std::int32_t first = 0; first < choices; first += fan::most) {
      positions to;
      if (expert_wise) {
        const choice_places found = place_few(ctx, scratch, part.row, first);
        EPT_ROLLED
        for (const std::int64_t at : found.at) {
          if (at >= 0) to.add(at);
        }
        if (side) {
          note_few(ctx, out, landed, *cursor, first, found, handle.places + part.row * geo.top_k,
                   scratch);
        }
      } else {
        to.add(part.row);
        if (side) emit_about(ctx, out, landed, *cursor, part.row);
        if (side) emit_choices(ctx, out, landed, *cursor);
      }
      if (values.begin < values.end) emit_values(ctx, out, landed, *cursor, values, to);
    }
  });
}

/// Lays out few rows, of which `scratch.received` says where they came from. All workers call.
EPT_NO_EXEC_CHECK
template <class Context>
EPT_HOST_DEVICE void emit_few(const Context& ctx, const dispatch_output& out,
                              const landed_rows& landed, const handle_parts& handle,
                              const few_scratch& scratch) {
  const auto& worker = ctx.worker;
  const bool expert_wise = per_expert(out.layout);
  std::int64_t rows = received_rows(ctx.geo, scratch.received);
  if (out.layout == output_layout::rank_major && rows > 0 &&
      !expect_pointer(ctx, out.rows, stage::dispatch_recv)) {
    rows = 0;
  }
  // The last crew has the least to copy.
  const bool tells = worker.worker() - worker.member() + worker.members() >= worker.workers();
  if (expert_wise) {
    look_at_rows(ctx, landed, rows, scratch);
    const bool fits = worker.member() != 0 || start_experts(ctx, out, scratch, tells);
    if (!worker.crew_all(fits)) return;
  }
  const std::int64_t room = out.layout == output_layout::rank_major ? out.capacity : 0;
  if (room == 0 || rows <= room) {
    emit_few_pieces(ctx, out, landed, handle, scratch, rows);
  } else if (worker.thread() == 0) {
    raise_capacity(ctx, room, rows, -1);
  }
  if (!tells) return;
  if (!expert_wise && (out.expert_count != nullptr || out.host_counts != nullptr)) {
    look_at_rows(ctx, landed, rows, scratch);
    if (worker.member() == 0) (void)start_experts(ctx, out, scratch, true);
  }
  if (worker.member() != 0 || worker.thread() != 0) return;
  if (!expert_wise) emit_total(out, rows);
  if (out.dropped != nullptr) *out.dropped = 0;
}

}  // namespace eptransport::detail
