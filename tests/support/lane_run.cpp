// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief From a drawn call to its verdict.
#include "support/lane_run.hpp"

#include <algorithm>
#include <functional>
#include <memory>
#include <numeric>
#include <span>

#include "support/check.hpp"
#include "support/experts.hpp"
#include "support/inputs.hpp"

namespace eptransport::support {

void lane_run::place(std::uint64_t handle_bytes, std::uint64_t scale_offset,
                     const lane_window& window, memory_twins* twins) {
  scale_offset_ = scale_offset;
  buffers_ = std::make_unique<lane_buffers>(config_, problem_, static_cast<int>(experts_.size()),
                                            handle_bytes, window, twins);
}

void lane_run::expect() {
  output_spec wanted{.layout = config_.layout,
                     .alignment = config_.alignment,
                     .capacity = config_.capacity > 0 ? config_.capacity : 0,
                     .room = room_};
  expected_ = expect_dispatch(problem_, inputs_, rank_, wanted);
  if (config_.capacity != exact_capacity || config_.layout != output_layout::padded) return;
  wanted.capacity = 1;
  for (const std::int64_t count : expected_.expert_count) {
    wanted.capacity = std::max(wanted.capacity, count + 1);
  }
  expected_ = expect_dispatch(problem_, inputs_, rank_, wanted);
}

void lane_run::prepare(int iteration) {
  iteration_ = iteration;
  const bool cached = config_.cached && iteration % 2 == 1;
  const dispatch_mode mode = mode_of(config_, iteration, lane_);
  const bool counted = mode == dispatch_mode::counted;
  inputs_ = draw_inputs(config_, routes_, iteration, lane_);
  room_ = counted ? rooms_of(config_) : std::vector<std::int64_t>{};
  offered_ = false;
  expect();
  if (!cached) bad_indices_ += count_bad_indices(problem_, own());
  buffers_->prepare(own(), expected_,
                    {.mode = mode,
                     .cached = cached,
                     .kind = kind(),
                     .rank = rank_,
                     .room = counted ? room_[static_cast<std::size_t>(rank_)] : 0,
                     .bias = config_.bias ? draw_bias(config_, iteration, rank_, own().tokens)
                                          : std::vector<std::byte>{}});
}

std::string lane_run::verify_dispatch() {
  const received got = buffers_->result(scale_offset_);
  std::string wrong = buffers_->damage();
  if (wrong.empty() && must_overflow()) {
    wrong = "rank " + std::to_string(rank_) + ": a rank has no room for its rows, nobody minded";
  }
  if (wrong.empty()) wrong = check_dispatch(problem_, inputs_, rank_, expected_, got);
  if (wrong.empty()) {
    wrong = check_slack(problem_, rank_, expected_, buffers_->rows(), buffers_->scales(),
                        poison_byte(kind()));
  }
  return wrong.empty() ? check_landing(expected_.landed) : wrong;
}

std::string lane_run::check_landing(std::int64_t first) const {
  const std::span<const std::byte> zone = buffers_->landing();
  return check_left_alone(rank_, "landing row", zone, problem_.row_bytes,
                          static_cast<std::uint64_t>(first), zone.size() / problem_.row_bytes + 1,
                          poison_byte(kind()));
}

void lane_run::run_stage() {
  buffers_->poison_out(kind() + 1);
  if (offered_) return;
  offered_ = buffers_->pulls();
  buffers_->poison_y(kind() + 3);
  buffers_->fill_choice_values(expected_);
  run_experts({.hidden = problem_.hidden,
               .top_k = problem_.top_k,
               .row_bytes = problem_.row_bytes,
               .scale_bytes = problem_.scale_bytes,
               .layout = config_.layout,
               .weights = config_.weights,
               .experts = experts_,
               .values = problem_.values},
              buffers_->completed(buffers_->result(scale_offset_), expected_),
              buffers_->y().data());
}

std::string lane_run::verify_combine() {
  const std::vector<std::int64_t> kept = expect_kept(problem_, inputs_, rank_, room_);
  const combine_spec how{.per_expert = per_expert(),
                         .kept = kept,
                         .bias = buffers_->bias(),
                         .nodes = nodes_,
                         .rank = rank_};
  std::string wrong = buffers_->damage();
  if (wrong.empty()) {
    wrong = check_combine(problem_, rank_,
                          expect_combine(problem_, own(), config_.weights, expert_, how),
                          buffers_->out());
  }
  if (!wrong.empty() || !buffers_->returns_choices()) return wrong;
  return check_choice_values(problem_, rank_, expect_choice_values(problem_, rank_, own(), kept),
                             buffers_->returned_choices());
}

bool lane_run::must_overflow() const {
  if (room_.empty() || config_.overflow == overflow_policy::drop) return false;
  const std::vector<std::int64_t> totals = expect_totals(problem_, inputs_);
  return !std::equal(totals.begin(), totals.end(), room_.begin(), std::less_equal<>());
}

std::string lane_run::verify_overflow(const failure& error, const fault_record& fault) const {
  const std::vector<std::int64_t> totals = expect_totals(problem_, inputs_);
  const auto culprit = static_cast<std::size_t>(fault.peer);
  if (error.code == errc::capacity && culprit < totals.size() && totals[culprit] > room_[culprit] &&
      fault.seen == static_cast<std::uint64_t>(totals[culprit]) &&
      fault.expected == static_cast<std::uint64_t>(room_[culprit])) {
    return {};
  }
  return "rank " + std::to_string(rank_) + ", not the overflow that there is: " + error.message();
}

std::string lane_run::verify_untouched() const {
  const std::string wrong = buffers_->damage();
  return wrong.empty() ? check_landing(0) : wrong;
}

bool lane_run::relays_for(const geometry& geo, int source) const {
  if (near(source)) return false;
  const node_table& table = geo.relay.table;
  return table.local[source] % table.size(table.node[rank_]) == table.local[rank_];
}

/// An exchange through relays, and the rows that go with it or after it.
traffic_sum lane_run::relayed_exchange(const geometry& geo, bool rows) const {
  traffic_sum sum;
  const relay_layout& relay = geo.relay;
  const bool counted = rows && buffers_->counted();
  const std::uint64_t body =
      counted && !buffers_->cached() ? geo.counts_bytes() - sizeof(message_header) : 0;
  const std::vector<std::int64_t> to_node = expect_node_rows(problem_, own(), nodes_);
  std::vector<bool> seen(static_cast<std::size_t>(relay.table.nodes));
  for (int peer = 0; peer < problem_.ranks; ++peer) {
    const auto at = static_cast<std::size_t>(peer);
    if (peer != rank_ && near(peer)) ++sum.messages;  // the D message
    if (relays_for(geo, peer)) {                      // those of a source, passed on
      sum.messages += static_cast<std::uint64_t>(relay.table.size(relay.table.node[rank_])) - 1;
    }
    const auto node = static_cast<std::size_t>(relay.table.node[peer]);
    if (near(peer) || seen[node]) continue;
    seen[node] = true;
    const std::int64_t many = rows ? to_node[at] : 0;
    const std::int64_t rest = many - std::min(many, relay.rows_per_message);
    sum.inter_messages +=
        1 + static_cast<std::uint64_t>(counted ? geometry::pieces(many, relay.counted_per_message)
                                               : geometry::pieces(rest, relay.rows_per_message));
    sum.inter_bytes +=
        relay.head_bytes + body + static_cast<std::uint64_t>(many) * relay.slot_bytes;
  }
  if (counted) {  // what was stored is released by a signal to each rank that got rows
    for (int source = 0; source < problem_.ranks; ++source) {
      if (source != rank_ && !relays_for(geo, source)) continue;
      const std::vector<std::int64_t> kept = expect_kept(problem_, inputs_, source, room_);
      for (int to = 0; to < problem_.ranks; ++to) {
        if (to != rank_ && near(to) && kept[static_cast<std::size_t>(to)] > 0) ++sum.messages;
      }
    }
  }
  sum.messages += sum.inter_messages;
  return sum;
}

traffic_sum lane_run::relayed_combine(const geometry& geo, bool alone) const {
  traffic_sum sum = alone ? relayed_exchange(geo, false) : traffic_sum{};
  for (int peer = 0; peer < problem_.ranks; ++peer) {
    if (peer != rank_ && near(peer)) ++sum.messages;
    if (!relays_for(geo, peer)) continue;
    const auto rows = expect_node_rows(problem_, inputs_[static_cast<std::size_t>(peer)],
                                       nodes_)[static_cast<std::size_t>(rank_)];
    const auto messages = static_cast<std::uint64_t>(geo.return_messages(rows));
    sum.messages += messages;
    sum.inter_messages += messages;
    sum.inter_bytes += static_cast<std::uint64_t>(rows) * geo.return_bytes;
  }
  return sum;
}

traffic_sum lane_run::dispatch_traffic(const geometry& geo) const {
  if (!nodes_.empty()) return relayed_exchange(geo, true);
  traffic_sum sum;
  const std::vector<std::int64_t> kept = expect_kept(problem_, inputs_, rank_, room_);
  for (int peer = 0; peer < problem_.ranks; ++peer) {
    if (peer == rank_) continue;
    const std::int64_t rows = kept[static_cast<std::size_t>(peer)];
    const auto many = static_cast<std::uint64_t>(rows);
    sum.messages += 1;
    if (buffers_->counted()) {
      sum.messages += static_cast<std::uint64_t>(geo.counted_messages(rows));
      sum.bytes += buffers_->cached() ? sizeof(message_header) : geo.counts_bytes();
      sum.bytes += many * (geo.row_bytes + geo.side_bytes);
      continue;
    }
    const std::int64_t rest = rows - std::min(rows, geo.rows_per_message);
    if (geo.message == message_shape::per_row) sum.messages += many;
    if (geo.message == message_shape::per_peer) {
      sum.messages += static_cast<std::uint64_t>(geometry::pieces(rest, geo.rows_per_message));
    }
    sum.bytes += sizeof(message_header) + many * geo.slot_bytes;
  }
  return sum;
}

traffic_sum lane_run::combine_traffic(const geometry& geo, bool alone) const {
  if (!nodes_.empty()) return relayed_combine(geo, alone);
  traffic_sum sum;
  const bool pull = buffers_->pulls();
  const std::vector<std::int64_t> mine = expect_kept(problem_, inputs_, rank_, room_);
  for (int peer = 0; peer < problem_.ranks; ++peer) {
    if (peer == rank_) continue;
    if (alone) {
      sum.messages += 1;
      sum.bytes += sizeof(message_header);
    }
    if (pull) {  // an offer goes out, rows come in
      sum.messages += 1;
      sum.bytes +=
          sizeof(message_header) +
          static_cast<std::uint64_t>(mine[static_cast<std::size_t>(peer)]) * geo.value_bytes;
      continue;
    }
    const std::int64_t rows =
        expect_kept(problem_, inputs_, peer, room_)[static_cast<std::size_t>(rank_)];
    sum.messages += static_cast<std::uint64_t>(geo.return_messages(rows));
    sum.bytes += static_cast<std::uint64_t>(rows) * geo.return_bytes;
  }
  return sum;
}

std::int64_t lane_run::rows_sent() const {
  const std::vector<std::int64_t> sent = expect_sent(problem_, own());
  return std::accumulate(sent.begin(), sent.end(), std::int64_t{0});
}

}  // namespace eptransport::support
