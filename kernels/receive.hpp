// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The receive half of dispatch: count arrivals, then lay the rows out for the experts.
#pragma once

#include <eptransport/core/config.hpp>
#include <eptransport/core/transport.hpp>
#include <eptransport/kernels/lane.hpp>
#include <eptransport/kernels/layout.hpp>

#include <cstddef>
#include <cstdint>

namespace eptransport::detail {

/// Checks the header that `peer` sent in this epoch. False: the lane has a fault now.
EPT_NO_EXEC_CHECK
template <class Context>
[[nodiscard]] EPT_HOST_DEVICE bool accept_header(const Context& ctx, std::int32_t peer) {
  const message_header& header = header_of(ctx, ctx.epoch, peer);
  const bool ours = header.stamp == stamp_of(ctx.epoch) && header.config == ctx.geo.config &&
                    header.rows >= 0 && header.rows <= ctx.geo.max_tokens;
  if (ours && header.stop == fault_kind::none) return true;
  if (ours) {
    raise_stopped(ctx, header, stage::dispatch_recv, peer);
  } else if (ctx.worker.thread() == 0) {
    const bool epoch = header.stamp != stamp_of(ctx.epoch);
    raise(ctx, {.kind = fault_kind::mismatch,
                .where = stage::dispatch_recv,
                .peer = peer,
                .expected = epoch ? stamp_of(ctx.epoch) : ctx.geo.config,
                .seen = epoch ? header.stamp : header.config});
  }
  return false;
}

/// Waits until `more` further puts of `peer` (summed: of all) have been counted.
EPT_NO_EXEC_CHECK
template <class Context>
[[nodiscard]] EPT_HOST_DEVICE bool await_more(const Context& ctx, std::int32_t peer,
                                              std::int64_t more) {
  const geometry& geo = ctx.geo;
  if (more == 0) return true;
  std::uint64_t* due = ctx.lane.rows_due + (ctx.epoch & 1u) * geo.sources + geo.word(peer);
  const std::uint32_t signal = geo.row_signal(ctx.epoch, peer);
  const std::uint64_t target = *due + static_cast<std::uint64_t>(more);
  if (!wait_for(ctx, {.signal = signal,
                      .target = ctx.lane.base[signal - geo.first_signal] + target,
                      .where = stage::rows,
                      .peer = geo.sources == 1 ? -1 : peer,
                      .next = ctx.epoch + 1})) {
    return false;
  }
  ctx.worker.sync();
  if (ctx.worker.thread() == 0) *due = target;
  return true;
}

/// Waits for the D messages, and for the rows that they announce. Worker w waits for the sources
/// w, w + workers, ..; with summed words worker 0 waits for all.
EPT_NO_EXEC_CHECK
template <class Context>
EPT_HOST_DEVICE void await_exchange(const Context& ctx, std::int64_t* received) {
  const geometry& geo = ctx.geo;
  const auto& worker = ctx.worker;
  const bool summed = geo.sources == 1;
  const std::int32_t step = summed ? 1 : static_cast<std::int32_t>(worker.workers());
  const std::int32_t first = static_cast<std::int32_t>(worker.worker());
  if (summed && first != 0) return;
  if (summed && geo.ranks > 1 && ctx.ok()) {
    const std::int32_t any = geo.rank == 0 ? 1 : 0;
    if (!wait_for(ctx, {.signal = geo.d_signal(ctx.epoch, any),
                        .target = d_target(ctx, ctx.epoch, any),
                        .where = stage::dispatch_recv,
                        .peer = -1,
                        .next = ctx.epoch + 1})) {
      return;
    }
  }
  std::int64_t all_more = 0;
  for (std::int32_t peer = first; peer < geo.ranks && ctx.ok(); peer += step) {
    std::int64_t more = 0;
    if (peer != geo.rank) {
      const std::uint32_t signal = geo.d_signal(ctx.epoch, peer);
      if (!summed && !wait_for(ctx, {.signal = signal,
                                     .target = d_target(ctx, ctx.epoch, peer),
                                     .where = stage::dispatch_recv,
                                     .peer = peer,
                                     .next = ctx.epoch + 1})) {
        return;
      }
      if (!accept_header(ctx, peer)) return;
      more = header_of(ctx, ctx.epoch, peer).more;
    }
    if (worker.thread() == 0 && received != nullptr) {
      received[peer] = header_of(ctx, ctx.epoch, peer).rows;
    }
    all_more += more;
    if (!summed && !await_more(ctx, peer, more)) return;
  }
  if (summed && ctx.ok()) (void)await_more(ctx, geo.rank == 0 ? 1 : 0, all_more);
}

/// A received row in rank-major order: its source, and its slot there.
struct received_row {
  std::int32_t source;
  std::int64_t slot;
};

/// Walks received rows in rank-major order.
class row_cursor {
 public:
  EPT_HOST_DEVICE row_cursor(const geometry& geo, const std::int64_t* received, std::int64_t row)
      : ranks_(geo.ranks), received_(received), at_{0, row} {
    settle();
  }
  [[nodiscard]] EPT_HOST_DEVICE const received_row& operator*() const { return at_; }
  EPT_HOST_DEVICE void next() {
    ++at_.slot;
    settle();
  }

 private:
  EPT_HOST_DEVICE void settle() {
    while (at_.source < ranks_ && at_.slot >= received_[at_.source]) {
      at_.slot -= received_[at_.source];
      ++at_.source;
    }
  }
  std::int32_t ranks_;
  const std::int64_t* received_;
  received_row at_;
};

/// All rows received from all sources.
[[nodiscard]] EPT_HOST_DEVICE inline std::int64_t received_rows(const geometry& geo,
                                                                const std::int64_t* received) {
  std::int64_t rows = 0;
  for (std::int32_t r = 0; r < geo.ranks; ++r) rows += received[r];
  return rows;
}

/// A slot in the landing zone.
template <class Context>
[[nodiscard]] EPT_HOST_DEVICE const std::byte* landed(const Context& ctx, const received_row& row) {
  return ctx.view.local() + ctx.geo.zone(ctx.epoch, row.source) + ctx.geo.slot(row.slot);
}

/// The choices of a slot; the token index lies before them.
[[nodiscard]] EPT_HOST_DEVICE inline const slot_choice* choices_of(const geometry& geo,
                                                                   const std::byte* slot) {
  return reinterpret_cast<const slot_choice*>(slot + geo.choice_offset + sizeof(std::int64_t));
}

/// The local index of an expert; -1 if it is another rank's, or unused.
[[nodiscard]] EPT_HOST_DEVICE inline std::int32_t local_expert(const geometry& geo,
                                                               std::int32_t expert) {
  return expert >= 0 && geo.placement[expert].rank == geo.rank ? geo.placement[expert].local : -1;
}

/// Copies a row's payload and says where it came from, as output row `to`.
EPT_NO_EXEC_CHECK
template <class Context>
EPT_HOST_DEVICE void emit_row(const Context& ctx, const dispatch_output& out,
                              const received_row& row, std::int64_t to) {
  const geometry& geo = ctx.geo;
  const std::byte* slot = landed(ctx, row);
  const auto index = static_cast<std::uint64_t>(to);
  if (out.layout != output_layout::in_place) {
    ctx.worker.copy(static_cast<std::byte*>(out.rows) + index * geo.row_bytes, slot, geo.row_bytes);
    if (geo.scale_bytes != 0) {
      ctx.worker.copy(static_cast<std::byte*>(out.scales) + index * geo.scale_bytes,
                      slot + geo.scale_offset, geo.scale_bytes);
    }
  }
  if (ctx.worker.thread() != 0) return;
  if (out.source_rank != nullptr) out.source_rank[to] = row.source;
  if (out.source_token != nullptr) {
    out.source_token[to] = *reinterpret_cast<const std::int64_t*>(slot + geo.choice_offset);
  }
  if (out.row_offset != nullptr && out.layout == output_layout::in_place) {
    out.row_offset[to] = static_cast<std::uint64_t>(slot - ctx.view.local());
  }
}

/// This worker's (row, choice) pairs per local expert, into the lane's counts.
///
/// The first choice that names an expert counts all of its token, so that no two threads meet.
EPT_NO_EXEC_CHECK
template <class Context>
EPT_HOST_DEVICE void count_experts(const Context& ctx, const std::int64_t* received,
                                   std::int64_t rows) {
  const auto& worker = ctx.worker;
  const geometry& geo = ctx.geo;
  std::int64_t* counts = ctx.lane.counts + worker.worker() * ctx.lane.width;
  for (std::int64_t e = worker.thread(); e < geo.local_experts; e += worker.threads()) {
    counts[e] = 0;
  }
  worker.sync();
  const share mine = share_of(worker, rows);
  row_cursor cursor(geo, received, mine.begin);
  for (std::int64_t row = mine.begin; row < mine.end; ++row, cursor.next()) {
    const slot_choice* choices = choices_of(geo, landed(ctx, *cursor));
    for (std::int32_t j = static_cast<std::int32_t>(worker.thread()); j < geo.top_k;
         j += static_cast<std::int32_t>(worker.threads())) {
      const std::int32_t local = local_expert(geo, choices[j].expert);
      if (local < 0) continue;
      std::int64_t same = 0;
      for (std::int32_t i = 0; i < geo.top_k; ++i) {
        if (choices[i].expert != choices[j].expert) continue;
        if (i < j) {
          same = 0;
          break;
        }
        ++same;
      }
      counts[local] += same;
    }
    worker.sync();
  }
}

}  // namespace eptransport::detail
