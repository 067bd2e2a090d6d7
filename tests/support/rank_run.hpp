// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief One rank of a run, wherever its kernels run: inputs, calls, poison and verdict.
#pragma once

#include <eptransport/kernels/kernels.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "support/inputs.hpp"
#include "support/lane_buffers.hpp"
#include "support/lane_run.hpp"
#include "support/random.hpp"
#include "support/runner.hpp"
#include "support/verdict.hpp"

namespace eptransport::support {

/// The shape of the group.
[[nodiscard]] inline group_shape shape_of(const run_config& config, const problem& p) {
  const bool quantised = p.quantise != quantisation::none;
  return {.max_tokens = p.max_tokens,
          .counted_tokens = p.counted_tokens,
          .counted_rows = config.counted_rows,
          .overflow = config.overflow,
          .hidden = p.hidden,
          .top_k = p.top_k,
          .experts = p.experts,
          .row = quantised ? row_format{} : row_format{p.row_bytes, p.scale_bytes},
          .quantise = p.quantise,
          .values = p.values,
          .returns = p.returns,
          .return_weights = config.return_weights,
          .placement = p.placement,
          .message = config.message,
          .signals = config.signals,
          .checks = config.checks,
          .lanes = config.lanes};
}

/// Where what the lanes' callers keep in the window begins.
[[nodiscard]] inline std::uint64_t extra_start(const run_config& config, const group_sizes& sizes) {
  return (config.window_offset + sizes.window_bytes + 127) / 128 * 128;
}

/// Bytes of each rank's window.
[[nodiscard]] inline std::uint64_t window_bytes_of(const run_config& config,
                                                   const group_sizes& sizes) {
  return extra_start(config, sizes) + static_cast<std::uint64_t>(config.lanes) *
                                          window_layout_of(config, problem_of(config)).lane_bytes();
}

/// The node of a rank. The tables of a GPU's view are the kernels'.
template <class Transport>
[[nodiscard]] std::int32_t node_of(const Transport& transport, std::int32_t rank) {
  if constexpr (requires { transport.nodes(); }) {
    return transport.nodes()[static_cast<std::size_t>(rank)];
  } else {
    return transport.view().node(rank);
  }
}

/// What a call is, for a rig that has to know what it sends.
enum class call_part {
  dispatch,  ///< whole, or the first half
  combine,   ///< the same, after a dispatch
  combine_alone,
  second_half,
};

/// What a rank has done so far, by the rig's account.
struct rank_meter {
  std::uint64_t ns = 0;  ///< on the rig's clock
  traffic_sum sent{};    ///< if the rig counts it
};

/// One rank of a run. `Rig` is where it runs: a value with
///
/// - `transport`, and `own()`, the rank's
/// - `window()`: the transport's window as the host sees it; `twins()`: a lane's, or null
/// - `push(part)`: shows a part of the window to the kernels
/// - `meter()`; `counts`: whether it has messages. They must be those that follow from the routing;
///   where nobody counts, these are reported
/// - `groups`, if it is there and true: several puts may share a message, so what the meter has is
///   reported and compared with nothing
/// - `made(geometry, lane_run, call_part)`: a call was made
/// - `stream(lane)`: of the executor's type
/// - `pause(ns)`
template <class Rig>
class rank_run {
 public:
  using transport = typename Rig::transport;

  rank_run(const run_config& config, const router& routes, Rig& rig, rank_report& report,
           rank_verdict& verdict)
      : config_(config),
        rig_(rig),
        transport_(rig.own()),
        report_(report),
        verdict_(verdict),
        problem_(problem_of(config)),
        rank_(transport_.view().rank()) {
    for (int lane = 0; lane < config.lanes; ++lane) {
      lanes_.emplace_back(config_, routes, problem_, rank_, lane);
    }
  }

  void operator()() {
    if (!build()) return;
    for (int i = 0; i < config_.iterations && ok(); ++i) iterate(i);
    if (config_.transfer == combine_transfer::pull) close();
    finish();
  }

 private:
  using group_type = group<transport>;

  bool build() {
    auto made = group_type::create(
        transport_, shape_of(config_, problem_),
        {.window_offset = config_.window_offset, .first_signal = config_.first_signal},
        config_.timeout_ns);
    if (!made) {
      report_.error = made.error().message();
      report_.failed_call = "group::create";
      return false;
    }
    group_ = std::make_unique<group_type>(std::move(*made));
    verdict_.message = group_->message();
    verdict_.reason = group_->reason();
    if (group_->message() == message_shape::per_node) {
      std::vector<int> nodes;
      for (int r = 0; r < config_.ranks; ++r) nodes.push_back(node_of(transport_, r));
      for (lane_run& lane : lanes_) lane.use_relays(nodes);
    }
    std::uint64_t extra = extra_start(config_, group_->needs());
    std::byte* const kernels = transport_.window().data();
    for (int lane = 0; lane < config_.lanes; ++lane) {
      const bool counts = problem_.counted_tokens != 0;
      std::byte* const rows =
          counts ? rig_.window() + (group_->counted_rows(lane) - kernels) : nullptr;
      part(lane).place(group_->needs().handle_bytes, group_->layout().scale_offset,
                       {.start = rig_.window(),
                        .kernel = kernels,
                        .own_rows = rows,
                        .slotted_rows = zones(lane, 0, 2),
                        .mine = extra},
                       rig_.twins());
      extra += window_layout_of(config_, problem_).lane_bytes();
    }
    return true;
  }

  /// A part of the lane's window; the offset is that of lane 0 in a group at the window's start.
  [[nodiscard]] std::span<std::byte> lane_part(int lane, std::uint64_t offset,
                                               std::uint64_t bytes) {
    return {rig_.window() + config_.window_offset +
                static_cast<std::uint64_t>(lane) * group_->layout().lane_bytes + offset,
            bytes};
  }
  /// The landing zones of `parities` exchanges from `epoch` on.
  [[nodiscard]] std::span<std::byte> zones(int lane, std::uint64_t epoch, std::uint64_t parities) {
    const geometry& geo = group_->layout();
    return lane_part(lane, geo.zone(epoch, 0),
                     parities * static_cast<std::uint64_t>(problem_.ranks) * geo.zone_bytes);
  }

  void iterate(int i) {
    iteration_ = i;
    for (int lane = 0; lane < config_.lanes; ++lane) {
      if (i > 0) poison_zones(lane);
      part(lane).prepare(i);
      part(lane).buffers().push();
    }
    copy_dispatches();
    dispatch_all();
    verify("dispatch", &lane_run::verify_dispatch);
    for (int c = 0; c < config_.combines && ok(); ++c) {
      for (int lane = 0; lane < config_.lanes; ++lane) {
        // After a difference the rank goes on sending, so that the others need not time out.
        if (!verdict_.found()) part(lane).run_stage();
        part(lane).buffers().push();
      }
      copy_combines();
      combine_all(c > 0);
      verify("combine", &lane_run::verify_combine);
    }
    if (!ok()) return;
    ++report_.iterations;
    if (rank_ == 0 && config_.progress) config_.progress(i);
  }

  [[nodiscard]] bool ok() const { return report_.error.empty() && !report_.overflowed; }
  [[nodiscard]] lane_run& part(int lane) { return lanes_[static_cast<std::size_t>(lane)]; }

  void verify(const char* call, std::string (lane_run::*check)()) {
    for (int lane = 0; lane < config_.lanes && ok() && !verdict_.found(); ++lane) {
      lane_run& mine = part(lane);
      if (config_.tamper) config_.tamper(mine.buffers().touch(call, rank_, iteration_));
      note(call, lane, (mine.*check)());
    }
  }

  /// Between the end of one exchange and the next dispatch_send, the landing zones of the former
  /// and the combine zone are free: no peer writes there before it has our next D message (INV-3).
  /// So are counted rows and what goes with them.
  void poison_zones(int lane) {
    const geometry& geo = group_->layout();
    const auto statistics = group_->statistics(lane);
    if (!statistics) return;
    const std::uint64_t kind = part(lane).kind();
    const auto spoil = [this](std::span<std::byte> bytes, std::uint64_t with) {
      poison(bytes, with);
      rig_.push(bytes);
    };
    spoil(zones(lane, statistics->epoch - 1, 1), kind);
    spoil(lane_part(lane, geo.rows, geo.combine - geo.rows), kind);
    spoil(lane_part(lane, geo.combine, geo.staging - geo.combine), kind + 1);
  }

  void dispatch_all() {
    meet();
    const char* const first = config_.split ? "dispatch_send" : "dispatch";
    for (int lane = 0; lane < config_.lanes && ok(); ++lane) {
      lane_buffers& b = part(lane).buffers();
      pause();
      timed(report_.dispatch, verdict_.dispatch_ns, lane, first, call_part::dispatch, [&] {
        return config_.split ? group_->dispatch_send(lane, b.input(), b.handle(), how(lane))
                             : group_->dispatch(lane, b.input(), b.output(), b.handle(), how(lane));
      });
    }
    settle(first);
    if (config_.split) poison_inputs(false);
    for (int lane = 0; lane < config_.lanes && ok() && config_.split; ++lane) {
      lane_buffers& b = part(lane).buffers();
      pause();
      timed_more(report_.dispatch, verdict_.dispatch_ns, lane, "dispatch_recv",
                 [&] { return group_->dispatch_recv(lane, b.output(), b.handle(), how(lane)); });
    }
    if (config_.split) settle("dispatch_recv");
    poison_inputs(true);
  }

  /// @param counted  those of counted dispatches too, which read them until their second half is
  ///                 over
  void poison_inputs(bool counted) {
    for (int lane = 0; lane < config_.lanes; ++lane) {
      lane_buffers& b = part(lane).buffers();
      if (b.counted() && !counted) continue;
      b.poison_inputs(part(lane).kind() + 2);
      b.push();
    }
  }

  /// @param alone  no dispatch came before it
  void combine_all(bool alone) {
    meet();
    const call_part part_of_combine = alone ? call_part::combine_alone : call_part::combine;
    const char* const first = config_.split ? "combine_send" : "combine";
    for (int lane = 0; lane < config_.lanes && ok(); ++lane) {
      lane_buffers& b = part(lane).buffers();
      pause();
      timed(report_.combine, verdict_.combine_ns, lane, first, part_of_combine, [&] {
        return config_.split
                   ? group_->combine_send(lane, b.experts_output(), b.handle(), how(lane))
                   : group_->combine(lane, b.experts_output(), b.combined(), b.handle(), how(lane));
      });
    }
    settle(first);
    for (int lane = 0; lane < config_.lanes; ++lane) {
      lane_buffers& b = part(lane).buffers();
      if (b.pulls()) continue;
      b.poison_y(part(lane).kind() + 3);
      b.push();
    }
    for (int lane = 0; lane < config_.lanes && ok() && config_.split; ++lane) {
      lane_buffers& b = part(lane).buffers();
      pause();
      timed_more(report_.combine, verdict_.combine_ns, lane, "combine_recv",
                 [&] { return group_->combine_recv(lane, b.combined(), b.handle(), how(lane)); });
    }
    if (config_.split) settle("combine_recv");
  }

  /// Calls of stream executors come back before they have run. Waits for them; what went wrong in
  /// them becomes the rank's error, what they wrote becomes the host's.
  void settle(const char* call) {
    if constexpr (!group_type::executor_type::synchronous) {
      const result<void> done = transport_.executor().synchronize();
      for (int lane = 0; lane < config_.lanes && ok(); ++lane) {
        ended(lane, call, done ? group_->status(lane) : done);
      }
      for (int lane = 0; lane < config_.lanes; ++lane) part(lane).buffers().pull();
    }
  }

  void note(const char* call, int lane, const std::string& wrong) {
    if (!wrong.empty())
      verdict_.note(iteration_, std::string(call) + ", lane " + std::to_string(lane), wrong);
  }

  [[nodiscard]] typename group_type::options how(int lane) {
    return {.stream = rig_.stream(lane), .max_sms = config_.max_sms};
  }

  /// Runs one call and books its messages, bytes and modelled time.
  template <class Call>
  void timed(traffic_sum& sum, std::vector<double>& times, int lane, const char* name,
             call_part what, const Call& call) {
    times.push_back(0);
    book(sum, times.back(), lane, name, what, call);
  }

  /// The same for the second half of a call: its time goes to its lane's first half, which was
  /// booked in the same round over the lanes.
  template <class Call>
  void timed_more(traffic_sum& sum, std::vector<double>& times, int lane, const char* name,
                  const Call& call) {
    book(sum, times[times.size() - static_cast<std::size_t>(config_.lanes - lane)], lane, name,
         call_part::second_half, call);
  }

  template <class Call>
  void book(traffic_sum& sum, double& time, int lane, const char* name, call_part what,
            const Call& call) {
    const rank_meter before = rig_.meter();
    const result<void> done = call();
    if (done) rig_.made(group_->layout(), part(lane), what);
    const rank_meter after = rig_.meter();
    time += static_cast<double>(after.ns - before.ns);
    sum.messages += after.sent.messages - before.sent.messages;
    sum.bytes += after.sent.bytes - before.sent.bytes;
    sum.inter_messages += after.sent.inter_messages - before.sent.inter_messages;
    sum.inter_bytes += after.sent.inter_bytes - before.sent.inter_bytes;
    if (done) predict(lane, what);
    ended(lane, name, done);
  }

  /// What the call has to send.
  void predict(int lane, call_part what) {
    if (what == call_part::second_half) return;
    const geometry& geo = group_->layout();
    const bool dispatch = what == call_part::dispatch;
    const traffic_sum more =
        dispatch ? part(lane).dispatch_traffic(geo)
                 : part(lane).combine_traffic(geo, what == call_part::combine_alone);
    traffic_sum& sum = dispatch ? dispatch_sends_ : combine_sends_;
    sum.messages += more.messages;
    sum.bytes += more.bytes;
    sum.inter_messages += more.inter_messages;
    sum.inter_bytes += more.inter_bytes;
  }

  /// Rows that are stored or read through pointers are bytes of no message.
  void compare_traffic() {
    const auto compare = [this](const char* name, traffic_sum& sent, const traffic_sum& due) {
      if constexpr (requires { requires Rig::groups; }) return;
      if (!Rig::counts) sent = due;
      if (!ok() || verdict_.found()) return;
      count((name + std::string(" messages")).c_str(), sent.messages, due.messages, 0);
      if (group_->message() == message_shape::direct) return;
      if (group_->message() == message_shape::per_node) {
        count((name + std::string(" messages between nodes")).c_str(), sent.inter_messages,
              due.inter_messages, 0);
        count((name + std::string(" bytes between nodes")).c_str(), sent.inter_bytes,
              due.inter_bytes, 0);
        return;
      }
      if (config_.transfer == combine_transfer::pull) return;
      count((name + std::string(" bytes")).c_str(), sent.bytes, due.bytes, 0);
    };
    compare("dispatch", report_.dispatch, dispatch_sends_);
    compare("combine", report_.combine, combine_sends_);
  }

  void ended(int lane, const char* name, const result<void>& done) {
    if (done) return;
    if (part(lane).must_overflow()) return accept_overflow(lane, done.error());
    report_.error = done.error().message();
    report_.failed_call = std::string(name) + ", lane " + std::to_string(lane) + ", iteration " +
                          std::to_string(iteration_);
  }

  void accept_overflow(int lane, const failure& error) {
    report_.overflowed = true;
    std::string wrong = part(lane).verify_overflow(error, group_->fault(lane));
    (void)transport_.barrier(config_.timeout_ns);
    part(lane).buffers().pull();
    if (wrong.empty()) wrong = part(lane).verify_untouched();
    note("dispatch", lane, wrong);
  }

  /// Peers may pull until all have combined.
  void close() {
    const result<void> met = transport_.barrier(config_.timeout_ns);
    if (met || !ok()) return;
    report_.error = met.error().message();
    report_.failed_call = "the closing barrier";
  }

  /// memcpy of as many rows as the lanes' next dispatches send, own ones included.
  void copy_dispatches() {
    if (!config_.copy_baseline) return;
    std::int64_t rows = 0;
    for (const lane_run& lane : lanes_) rows += lane.rows_sent();
    verdict_.dispatch_payload.push_back(static_cast<double>(rows) *
                                        static_cast<double>(problem_.row_bytes));
    copy_rows(lanes_.front().own().x, problem_.row_bytes, rows, verdict_.dispatch_copy_ns);
  }

  /// The same for the rows that the next combines return.
  void copy_combines() {
    if (!config_.copy_baseline) return;
    std::int64_t rows = 0;
    for (const lane_run& lane : lanes_) rows += lane.rows_received();
    const auto bytes = static_cast<std::uint64_t>(problem_.hidden) * bytes_of(problem_.values);
    verdict_.combine_payload.push_back(static_cast<double>(rows) * static_cast<double>(bytes));
    copy_rows(lanes_.front().buffers().y(), bytes, rows, verdict_.combine_copy_ns);
  }

  /// Copies `rows` rows, one after another, from `from`, again and again, to memory of its own.
  void copy_rows(std::span<const std::byte> from, std::uint64_t bytes, std::int64_t rows,
                 std::vector<double>& times) {
    const auto count = static_cast<std::uint64_t>(rows);
    const std::uint64_t there = from.size() / bytes;
    if (copied_.size() < count * bytes) copied_.resize(count * bytes);
    meet();
    const std::uint64_t start = rig_.meter().ns;
    for (std::uint64_t i = 0; i < count && there != 0; ++i) {
      std::memcpy(&copied_[i * bytes], &from[i % there * bytes], bytes);
    }
    times.push_back(static_cast<double>(rig_.meter().ns - start));
  }

  /// All clocks at the latest one, if wanted.
  void meet() {
    if (!config_.align_clocks) return;
    const result<void> met = transport_.barrier(config_.timeout_ns);
    if (met || !ok()) return;
    report_.error = met.error().message();
    report_.failed_call = "barrier, iteration " + std::to_string(iteration_);
  }

  void pause() {
    if (!config_.pauses || !pauses_.chance(0.5)) return;
    rig_.pause(pauses_.below(std::uint64_t{1} << (6 + pauses_.below(14))));
  }

  void finish() {
    compare_traffic();
    for (int lane = 0; lane < config_.lanes; ++lane) {
      if (report_.fault.kind == fault_kind::none) report_.fault = group_->fault(lane);
      const auto statistics = group_->statistics(lane);
      if (!statistics) continue;
      report_.lanes.push_back(*statistics);
      if (!ok() || verdict_.found()) continue;  // an overflow, too, ends it early
      const auto iterations = static_cast<std::uint64_t>(config_.iterations);
      const auto combines = static_cast<std::uint64_t>(config_.combines);
      count("epoch", statistics->epoch, iterations * (combines > 1 ? combines : 1), lane);
      count("combines", statistics->combines, iterations * combines, lane);
      count("bad_indices", statistics->bad_indices, part(lane).bad_indices(), lane);
    }
  }

  void count(const char* name, std::uint64_t got, std::uint64_t expected, int lane) {
    if (got == expected) return;
    note("statistics", lane,
         "rank " + std::to_string(rank_) + ", " + name + ": expected " + std::to_string(expected) +
             ", got " + std::to_string(got));
  }

  const run_config& config_;
  Rig& rig_;
  transport& transport_;
  rank_report& report_;
  rank_verdict& verdict_;
  problem problem_;
  int rank_;
  random_bits pauses_{config_.seed, 0x7061757365, static_cast<std::uint64_t>(rank_)};
  std::unique_ptr<group_type> group_;
  std::vector<lane_run> lanes_;
  std::vector<std::byte> copied_;
  traffic_sum dispatch_sends_{};
  traffic_sum combine_sends_{};
  int iteration_ = 0;
};

}  // namespace eptransport::support
