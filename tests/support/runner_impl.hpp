// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief One run in one world: a thread per rank, each with its own inputs, buffers and verdict.
///
/// A *setting* says what world: `Setting::transport`, `Setting::world`, `options_of(config, bytes,
/// signals)` for `world::create`, and `charge(config)`. A world runs a function per rank, and tells
/// `messages(rank)`, `bytes(rank)`, `trace_hash()` and `violations()`.
///
/// Included by the runner_*.cpp files alone, so that the library's templates are compiled once per
/// wire.
#pragma once

#include <eptransport/backends/loopback/loopback.hpp>
#include <eptransport/kernels/kernels.hpp>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <thread>
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

/// One rank of a run.
template <class Setting>
class rank_run {
 public:
  using transport = typename Setting::transport;
  using world = typename Setting::world;

  rank_run(const run_config& config, const router& routes, world& everything, transport& own,
           rank_report& report, rank_verdict& verdict)
      : config_(config),
        world_(everything),
        transport_(own),
        report_(report),
        verdict_(verdict),
        problem_(problem_of(config)),
        rank_(own.view().rank()) {
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
    std::uint64_t extra = extra_start(config_, group_->needs());
    for (int lane = 0; lane < config_.lanes; ++lane) {
      const bool counts = problem_.counted_tokens != 0;
      part(lane).place(group_->needs().handle_bytes, group_->layout().scale_offset,
                       {.start = transport_.window().data(),
                        .own_rows = counts ? group_->counted_rows(lane) : nullptr,
                        .mine = extra});
      extra += window_layout_of(config_, problem_).lane_bytes();
    }
    return true;
  }

  void iterate(int i) {
    iteration_ = i;
    for (int lane = 0; lane < config_.lanes; ++lane) {
      if (i > 0) poison_zones(lane);
      part(lane).prepare(i);
    }
    copy_dispatches();
    dispatch_all();
    verify("dispatch", &lane_run::verify_dispatch);
    for (int c = 0; c < config_.combines && ok(); ++c) {
      // After a difference the rank goes on sending, so that the others need not time out.
      for (int lane = 0; lane < config_.lanes && !verdict_.found(); ++lane) part(lane).run_stage();
      copy_combines();
      combine_all();
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
    std::byte* base = transport_.window().data() + config_.window_offset +
                      static_cast<std::uint64_t>(lane) * geo.lane_bytes;
    const auto ranks = static_cast<std::uint64_t>(problem_.ranks);
    const std::uint64_t kind = part(lane).kind();
    poison({base + geo.zone(statistics->epoch - 1, 0), ranks * geo.zone_bytes}, kind);
    poison({base + geo.rows, geo.combine - geo.rows}, kind);
    poison({base + geo.combine, geo.staging - geo.combine}, kind + 1);
  }

  void dispatch_all() {
    meet();
    for (int lane = 0; lane < config_.lanes && ok(); ++lane) {
      lane_buffers& b = part(lane).buffers();
      pause();
      timed(report_.dispatch, verdict_.dispatch_ns, lane,
            config_.split ? "dispatch_send" : "dispatch", [&] {
              return config_.split
                         ? group_->dispatch_send(lane, b.input(), b.handle(), how())
                         : group_->dispatch(lane, b.input(), b.output(), b.handle(), how());
            });
      // A counted dispatch reads its inputs until its second half is over.
      if (!config_.split || !b.counted()) b.poison_inputs(part(lane).kind() + 2);
    }
    for (int lane = 0; lane < config_.lanes && ok() && config_.split; ++lane) {
      lane_buffers& b = part(lane).buffers();
      pause();
      timed_more(report_.dispatch, verdict_.dispatch_ns, lane, "dispatch_recv",
                 [&] { return group_->dispatch_recv(lane, b.output(), b.handle(), how()); });
      b.poison_inputs(part(lane).kind() + 2);
    }
  }

  void combine_all() {
    meet();
    for (int lane = 0; lane < config_.lanes && ok(); ++lane) {
      lane_buffers& b = part(lane).buffers();
      pause();
      timed(report_.combine, verdict_.combine_ns, lane, config_.split ? "combine_send" : "combine",
            [&] {
              return config_.split
                         ? group_->combine_send(lane, b.experts_output(), b.handle(), how())
                         : group_->combine(lane, b.experts_output(), b.combined(), b.handle(),
                                           how());
            });
      if (!b.pulls()) b.poison_y(part(lane).kind() + 3);
    }
    for (int lane = 0; lane < config_.lanes && ok() && config_.split; ++lane) {
      lane_buffers& b = part(lane).buffers();
      pause();
      timed_more(report_.combine, verdict_.combine_ns, lane, "combine_recv",
                 [&] { return group_->combine_recv(lane, b.combined(), b.handle(), how()); });
    }
  }

  void note(const char* call, int lane, const std::string& wrong) {
    if (!wrong.empty())
      verdict_.note(iteration_, std::string(call) + ", lane " + std::to_string(lane), wrong);
  }

  [[nodiscard]] typename group_type::options how() const { return {.max_sms = config_.max_sms}; }

  /// Runs one call and books its messages, bytes and modelled time.
  template <class Call>
  void timed(traffic_sum& sum, std::vector<double>& times, int lane, const char* name,
             const Call& call) {
    times.push_back(0);
    book(sum, times.back(), lane, name, call);
  }

  /// The same for the second half of a call: its time goes to its lane's first half, which was
  /// booked in the same round over the lanes.
  template <class Call>
  void timed_more(traffic_sum& sum, std::vector<double>& times, int lane, const char* name,
                  const Call& call) {
    book(sum, times[times.size() - static_cast<std::size_t>(config_.lanes - lane)], lane, name,
         call);
  }

  template <class Call>
  void book(traffic_sum& sum, double& time, int lane, const char* name, const Call& call) {
    const std::uint64_t messages = world_.messages(rank_);
    const std::uint64_t bytes = world_.bytes(rank_);
    const std::uint64_t start = transport_.view().now_ns();
    const result<void> done = call();
    time += static_cast<double>(transport_.view().now_ns() - start);
    sum.messages += world_.messages(rank_) - messages;
    sum.bytes += world_.bytes(rank_) - bytes;
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
    const std::uint64_t start = transport_.view().now_ns();
    for (std::uint64_t i = 0; i < count && there != 0; ++i) {
      std::memcpy(&copied_[i * bytes], &from[i % there * bytes], bytes);
    }
    times.push_back(static_cast<double>(transport_.view().now_ns() - start));
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
    const std::uint64_t ns = pauses_.below(std::uint64_t{1} << (6 + pauses_.below(14)));
    if (config_.schedule == run_mode::baton) {
      world_.advance(rank_, ns);
    } else {
      std::this_thread::sleep_for(std::chrono::nanoseconds(ns));
    }
  }

  void finish() {
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
         "rank " + std::to_string(rank_) + ", lane_statistics::" + name + ": expected " +
             std::to_string(expected) + ", got " + std::to_string(got));
  }

  const run_config& config_;
  world& world_;
  transport& transport_;
  rank_report& report_;
  rank_verdict& verdict_;
  problem problem_;
  int rank_;
  random_bits pauses_{config_.seed, 0x7061757365, static_cast<std::uint64_t>(rank_)};
  std::unique_ptr<group_type> group_;
  std::vector<lane_run> lanes_;
  std::vector<std::byte> copied_;
  int iteration_ = 0;
};

/// Runs `config` in the world of `Setting`.
template <class Setting>
run_result run_in(const run_config& config, const router& routes) {
  using world = typename Setting::world;
  using transport = typename Setting::transport;
  run_result out;
  const auto refuse = [&out](const failure& why) {
    out.error = why.message();
    out.code = why.code;
    return out;
  };
  const problem p = problem_of(config);
  const auto sizes = group<transport>::sizes(shape_of(config, p), config.ranks, config.workers);
  if (!sizes) return refuse(sizes.error());
  const std::uint64_t window_bytes =
      extra_start(config, *sizes) +
      static_cast<std::uint64_t>(config.lanes) * window_layout_of(config, p).lane_bytes();
  auto made = world::create(
      Setting::options_of(config, window_bytes, config.first_signal + sizes->signals));
  if (!made) return refuse(made.error());
  world& everything = **made;
  const auto ranks = static_cast<std::size_t>(config.ranks);
  out.ranks.resize(ranks);
  std::vector<rank_verdict> verdicts(ranks);
  const auto start = std::chrono::steady_clock::now();
  everything.run([&](transport& own) {
    const auto rank = static_cast<std::size_t>(own.view().rank());
    rank_run<Setting>(config, routes, everything, own, out.ranks[rank], verdicts[rank])();
  });
  const std::chrono::duration<double, std::nano> wall = std::chrono::steady_clock::now() - start;
  out.wall_ns = wall.count();
  out.trace_hash = everything.trace_hash();
  out.violations = everything.violations();
  out.charge = Setting::charge(config);
  for (int rank = 0; rank < config.ranks; ++rank) {
    out.nodes.push_back(everything.rank(rank).view().node(rank));
  }
  sum_up(config, verdicts, out);
  if constexpr (requires { Setting::observe(everything, out); }) Setting::observe(everything, out);
  return out;
}

/// The simulator, as a profile's wire.
template <class Profile>
struct loopback_setting {
  using transport = loopback<Profile>;
  using world = loopback_world<Profile>;

  [[nodiscard]] static loopback_options options_of(const run_config& config,
                                                   std::uint64_t window_bytes,
                                                   std::uint32_t signals) {
    loopback_options options;
    options.ranks = config.ranks;
    options.window_bytes = window_bytes;
    options.signals = signals;
    options.channels = config.channels;
    options.nodes = config.nodes;
    options.mode = config.schedule;
    options.order = config.order;
    options.seed = config.seed;
    options.max_chunks = config.max_chunks;
    options.counter_start = config.counter_start;
    options.workers = config.workers;
    options.max_delay_ns = config.max_delay_ns;
    options.faults = config.faults;
    options.queue_depth = config.queue_depth;
    options.charge = config.charge;
    return options;
  }
  [[nodiscard]] static wire_charge charge(const run_config& config) {
    return config.charge.value_or(Profile::caps.charge);
  }
};

/// Runs `config` on the simulated wire of `Profile`.
template <class Profile>
run_result run_on_wire(const run_config& config, const router& routes) {
  return run_in<loopback_setting<Profile>>(config, routes);
}

}  // namespace eptransport::support
