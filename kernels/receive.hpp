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
[[nodiscard]] EPT_HOST_DEVICE bool accept_header(const Context& ctx, std::int32_t peer,
                                                 const dispatch_input& in) {
  const message_header& header = header_of(ctx, ctx.epoch, peer);
  const bool fresh = header.stamp == stamp_of(ctx.epoch);
  if (fresh && header.stop != fault_kind::none &&
      header.config == ctx.geo.config_of(dispatch_mode::slotted)) {
    raise_stopped(ctx, header, stage::dispatch_recv, peer);
    return false;
  }
  const std::int64_t most =
      in.mode == dispatch_mode::counted ? ctx.geo.counted_tokens : ctx.geo.max_tokens;
  const std::uint64_t config = ctx.geo.config_of(in.mode, in.cached);
  if (fresh && header.config == config && header.rows >= 0 && header.rows <= most) {
    return true;
  }
  if (ctx.worker.thread() == 0) {
    raise(ctx, {.kind = fault_kind::mismatch,
                .where = stage::dispatch_recv,
                .peer = peer,
                .expected = fresh ? config : stamp_of(ctx.epoch),
                .seen = fresh ? header.config : header.stamp});
  }
  return false;
}

/// Waits until `more` further puts have been counted on a word whose consumption is kept in `due`,
/// one entry per source. `what.target` is filled in here.
EPT_NO_EXEC_CHECK
template <class Context>
[[nodiscard]] EPT_HOST_DEVICE bool await_due(const Context& ctx, std::uint64_t* due, awaited what,
                                             std::int64_t more) {
  if (more == 0) return true;
  due += what.peer < 0 ? 0 : ctx.geo.word(what.peer);
  const std::uint64_t target = *due + static_cast<std::uint64_t>(more);
  what.target = ctx.lane.base[what.signal - ctx.geo.first_signal] + target;
  if (!wait_for(ctx, what)) return false;
  ctx.worker.sync();
  if (ctx.worker.thread() == 0) *due = target;
  return true;
}

/// Waits for the D message of `peer`, accepts it, and returns how many further puts it announces;
/// -1: the lane has a fault now.
EPT_NO_EXEC_CHECK
template <class Context>
[[nodiscard]] EPT_HOST_DEVICE std::int64_t await_header(const Context& ctx, std::int32_t peer,
                                                        const dispatch_input& in) {
  if (peer == ctx.geo.rank) return 0;
  if (ctx.geo.sources != 1 && !wait_for(ctx, {.signal = ctx.geo.d_signal(ctx.epoch, peer),
                                              .target = d_target(ctx, ctx.epoch, peer),
                                              .where = stage::dispatch_recv,
                                              .peer = peer,
                                              .next = ctx.epoch + 1})) {
    return -1;
  }
  if (!accept_header(ctx, peer, in)) return -1;
  return header_of(ctx, ctx.epoch, peer).more;
}

/// Waits for the D messages, and for the slotted puts that they announce. Worker w waits for the
/// sources w, w + workers, ..; with summed words worker 0 waits for all. Notes the rows per source
/// in the handle, if there is one.
EPT_NO_EXEC_CHECK
template <class Context>
EPT_HOST_DEVICE void await_exchange(const Context& ctx, const handle_parts* handle,
                                    const dispatch_input& in) {
  const geometry& geo = ctx.geo;
  const auto& worker = ctx.worker;
  const bool summed = geo.sources == 1;
  std::uint64_t* due = ctx.lane.rows_due + (ctx.epoch & 1u) * geo.sources;
  awaited more_of{.signal = geo.row_signal(ctx.epoch, 0),
                  .target = 0,
                  .where = stage::rows,
                  .peer = -1,
                  .next = ctx.epoch + 1};
  if (summed && worker.worker() != 0) return;
  if (summed && geo.ranks > 1 &&
      !wait_for(ctx, {.signal = geo.d_signal(ctx.epoch, 0),
                      .target = d_target(ctx, ctx.epoch, 0),
                      .where = stage::dispatch_recv,
                      .peer = -1,
                      .next = ctx.epoch + 1})) {
    return;
  }
  const std::int32_t step = summed ? 1 : static_cast<std::int32_t>(worker.workers());
  std::int64_t all = 0;
  for (std::int32_t peer = static_cast<std::int32_t>(worker.worker()); peer < geo.ranks && ctx.ok();
       peer += step) {
    const std::int64_t more = await_header(ctx, peer, in);
    if (more < 0) return;
    all += more;
    if (worker.thread() == 0 && handle != nullptr) {
      // The own header may be another worker's, and not there yet.
      handle->received[peer] =
          peer == geo.rank ? handle->sent[peer] : header_of(ctx, ctx.epoch, peer).rows;
    }
    more_of.peer = peer;
    more_of.signal = geo.row_signal(ctx.epoch, peer);
    if (!summed && !await_due(ctx, due, more_of, more)) return;
  }
  more_of.peer = -1;
  if (summed && ctx.ok()) (void)await_due(ctx, due, more_of, all);
}

/// A received row: its source, its slot there, and its place in rank-major order.
struct received_row {
  std::int32_t source;
  std::int64_t slot;
  std::int64_t index;
};

/// Walks received rows in rank-major order.
class row_cursor {
 public:
  EPT_HOST_DEVICE row_cursor(const geometry& geo, const std::int64_t* received, std::int64_t row)
      : ranks_(geo.ranks), received_(received), at_{0, row, row} {
    settle();
  }
  [[nodiscard]] EPT_HOST_DEVICE const received_row& operator*() const { return at_; }
  EPT_HOST_DEVICE void next() {
    ++at_.slot;
    ++at_.index;
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

/// Where the rows of this dispatch landed.
struct landed_rows {
  const std::byte* window;
  const geometry* geo;
  std::uint64_t epoch;
  dispatch_mode mode;
  std::uint64_t landing;  ///< counted: offset of the first row

  [[nodiscard]] EPT_HOST_DEVICE const std::byte* row(const received_row& r) const {
    if (mode == dispatch_mode::counted) {
      return window + landing + static_cast<std::uint64_t>(r.index) * geo->row_bytes;
    }
    return window + geo->zone(epoch, r.source) + geo->slot(r.slot);
  }
  [[nodiscard]] EPT_HOST_DEVICE const std::byte* side(const received_row& r) const {
    if (mode == dispatch_mode::counted) {
      return window + geo->sides + static_cast<std::uint64_t>(r.index) * geo->side_bytes;
    }
    return row(r) + geo->scale_offset;
  }
  [[nodiscard]] EPT_HOST_DEVICE std::int64_t token(const received_row& r) const {
    return *reinterpret_cast<const std::int64_t*>(info(r));
  }
  [[nodiscard]] EPT_HOST_DEVICE const slot_choice* choices(const received_row& r) const {
    return reinterpret_cast<const slot_choice*>(info(r) + sizeof(std::int64_t));
  }

 private:
  [[nodiscard]] EPT_HOST_DEVICE const std::byte* info(const received_row& r) const {
    return side(r) + (geo->choice_offset - geo->scale_offset);
  }
};

template <class Context>
[[nodiscard]] EPT_HOST_DEVICE landed_rows landed(const Context& ctx, const dispatch_input& in) {
  return {ctx.view.local(), &ctx.geo, ctx.epoch, in.mode,
          in.landing != 0 ? in.landing : ctx.geo.rows};
}

/// Raises a capacity fault if `needed` rows do not fit; capacity 0 = they do.
EPT_NO_EXEC_CHECK
template <class Context>
EPT_HOST_DEVICE void expect_room(const Context& ctx, std::int64_t capacity, std::int64_t needed,
                                 std::int32_t expert) {
  if (capacity == 0 || needed <= capacity || ctx.worker.thread() != 0) return;
  raise(ctx, {.kind = fault_kind::capacity,
              .where = stage::dispatch_recv,
              .peer = ctx.geo.rank,
              .expert = expert,
              .expected = static_cast<std::uint64_t>(capacity),
              .seen = static_cast<std::uint64_t>(needed)});
}

/// Slotted: where combine rows will lie. Nothing but the shape decides.
EPT_NO_EXEC_CHECK
template <class Context>
EPT_HOST_DEVICE void note_slotted_bases(const Context& ctx, const handle_parts& handle) {
  if (ctx.worker.worker() != 0) return;
  for (std::int64_t r = ctx.worker.thread(); r < ctx.geo.ranks; r += ctx.worker.threads()) {
    handle.sent_base[r] = r * ctx.geo.max_tokens;
    handle.return_base[r] = ctx.geo.rank * ctx.geo.max_tokens;
  }
}

/// All rows received from all sources.
[[nodiscard]] EPT_HOST_DEVICE inline std::int64_t received_rows(const geometry& geo,
                                                                const std::int64_t* received) {
  std::int64_t rows = 0;
  for (std::int32_t r = 0; r < geo.ranks; ++r) rows += received[r];
  return rows;
}

/// The local index of an expert; -1 if it is another rank's, or unused.
[[nodiscard]] EPT_HOST_DEVICE inline std::int32_t local_expert(const geometry& geo,
                                                               std::int32_t expert) {
  if (expert < 0 || expert >= geo.experts || geo.placement[expert].rank != geo.rank) return -1;
  return geo.placement[expert].local;
}

}  // namespace eptransport::detail
