// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief One run on one wire: a thread per rank, each with its own inputs, buffers and verdict.
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
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "support/check.hpp"
#include "support/experts.hpp"
#include "support/inputs.hpp"
#include "support/lane_buffers.hpp"
#include "support/random.hpp"
#include "support/runner.hpp"
#include "support/verdict.hpp"

namespace eptransport::support {

/// The shape of the group.
[[nodiscard]] inline group_shape shape_of(const run_config& config, const problem& p) {
  return {.max_tokens = p.max_tokens,
          .hidden = p.hidden,
          .top_k = p.top_k,
          .experts = p.experts,
          .row = {p.row_bytes, p.scale_bytes},
          .placement = p.placement,
          .message = config.message,
          .signals = config.signals,
          .checks = config.checks,
          .lanes = config.lanes};
}

/// One rank of a run.
template <class Profile>
class rank_run {
 public:
  using transport = loopback<Profile>;
  using world = loopback_world<Profile>;

  rank_run(const run_config& config, const router& routes, world& everything, transport& own,
           rank_report& report, rank_verdict& verdict)
      : config_(config),
        routes_(routes),
        world_(everything),
        transport_(own),
        report_(report),
        verdict_(verdict),
        problem_(problem_of(config)),
        rank_(own.view().rank()),
        experts_(experts_of(problem_, rank_)),
        expert_(reference_expert(problem_)) {}

  void operator()() {
    if (!build()) return;
    for (int i = 0; i < config_.iterations && report_.error.empty(); ++i) iterate(i);
    finish();
  }

 private:
  using group_type = group<transport>;

  /// One lane's part of the current iteration.
  struct lane_part {
    std::unique_ptr<lane_buffers> buffers;
    std::vector<rank_input> inputs;
    expected_dispatch expected;
    std::uint64_t bad_indices = 0;  ///< of all dispatches so far
  };

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
    lanes_.resize(static_cast<std::size_t>(config_.lanes));
    for (lane_part& lane : lanes_) {
      lane.buffers = std::make_unique<lane_buffers>(
          config_, problem_, static_cast<int>(experts_.size()), group_->needs().handle_bytes);
    }
    return true;
  }

  void iterate(int i) {
    iteration_ = i;
    const bool cached = config_.cached && i % 2 == 1;
    for (int lane = 0; lane < config_.lanes; ++lane) prepare(lane, cached);
    dispatch_all(cached);
    for (int lane = 0; lane < config_.lanes && ok(); ++lane) verify_dispatch(lane);
    for (int c = 0; c < config_.combines && ok(); ++c) {
      combine_all();
      for (int lane = 0; lane < config_.lanes && ok(); ++lane) verify_combine(lane);
    }
    if (!ok()) return;
    ++report_.iterations;
    if (rank_ == 0 && config_.progress) config_.progress(i);
  }

  [[nodiscard]] bool ok() const { return report_.error.empty(); }
  [[nodiscard]] lane_part& part(int lane) { return lanes_[static_cast<std::size_t>(lane)]; }
  [[nodiscard]] std::uint64_t poison_kind(int lane) const {
    return static_cast<std::uint64_t>(iteration_ + lane + rank_);
  }

  void prepare(int lane, bool cached) {
    lane_part& mine = part(lane);
    mine.inputs = draw_inputs(config_, routes_, iteration_, lane);
    const rank_input& own = mine.inputs[static_cast<std::size_t>(rank_)];
    mine.expected = expect_dispatch(problem_, mine.inputs, rank_,
                                    {.layout = config_.layout,
                                     .alignment = config_.alignment,
                                     .capacity = config_.capacity > 0 ? config_.capacity : 0});
    if (config_.capacity == exact_capacity && config_.layout == output_layout::padded) {
      std::int64_t most = 0;
      for (const std::int64_t count : mine.expected.expert_count) most = std::max(most, count);
      mine.expected = expect_dispatch(problem_, mine.inputs, rank_,
                                      {.layout = config_.layout, .capacity = most + 1});
    }
    if (!cached) mine.bad_indices += count_bad_indices(problem_, own);
    mine.buffers->prepare(own, mine.expected, poison_kind(lane), cached);
    if (iteration_ > 0) poison_zones(lane);
  }

  /// Between the end of one exchange and the next dispatch_send, the landing zones of the former
  /// and the combine zone are free: no peer writes there before it has our next D message (INV-3).
  void poison_zones(int lane) {
    const geometry& geo = group_->layout();
    const auto statistics = group_->statistics(lane);
    if (!statistics) return;
    std::byte* base = transport_.window().data() + config_.window_offset +
                      static_cast<std::uint64_t>(lane) * geo.lane_bytes;
    const auto ranks = static_cast<std::uint64_t>(problem_.ranks);
    const std::uint64_t rows = ranks * static_cast<std::uint64_t>(problem_.max_tokens);
    poison({base + geo.zone(statistics->epoch - 1, 0), ranks * geo.zone_bytes}, poison_kind(lane));
    poison({base + geo.combine, rows * geo.return_bytes}, poison_kind(lane) + 1);
  }

  void dispatch_all(bool cached) {
    meet();
    for (int lane = 0; lane < config_.lanes && ok(); ++lane) {
      lane_buffers& b = *part(lane).buffers;
      pause();
      timed(report_.dispatch, verdict_.dispatch_ns, lane,
            config_.split ? "dispatch_send" : "dispatch", [&] {
              return config_.split
                         ? group_->dispatch_send(lane, b.input(cached), b.handle(), how())
                         : group_->dispatch(lane, b.input(cached), b.output(), b.handle(), how());
            });
      b.poison_inputs(poison_kind(lane) + 2);
    }
    for (int lane = 0; lane < config_.lanes && ok() && config_.split; ++lane) {
      lane_buffers& b = *part(lane).buffers;
      pause();
      timed_more(report_.dispatch, verdict_.dispatch_ns, lane, "dispatch_recv",
                 [&] { return group_->dispatch_recv(lane, b.output(), b.handle(), how()); });
    }
  }

  void combine_all() {
    for (int lane = 0; lane < config_.lanes; ++lane) run_stage(lane);
    meet();
    for (int lane = 0; lane < config_.lanes && ok(); ++lane) {
      lane_buffers& b = *part(lane).buffers;
      pause();
      timed(report_.combine, verdict_.combine_ns, lane, config_.split ? "combine_send" : "combine",
            [&] {
              return config_.split
                         ? group_->combine_send(lane, b.experts_output(), b.handle(), how())
                         : group_->combine(lane, b.experts_output(), b.combined(), b.handle(),
                                           how());
            });
      b.poison_y(poison_kind(lane) + 3);
    }
    for (int lane = 0; lane < config_.lanes && ok() && config_.split; ++lane) {
      lane_buffers& b = *part(lane).buffers;
      pause();
      timed_more(report_.combine, verdict_.combine_ns, lane, "combine_recv",
                 [&] { return group_->combine_recv(lane, b.combined(), b.handle(), how()); });
    }
  }

  [[nodiscard]] received result_of(lane_part& lane) const {
    return lane.buffers->result(transport_.window().data(), group_->layout().scale_offset);
  }

  void verify_dispatch(int lane) {
    if (verdict_.found()) return;
    lane_part& mine = part(lane);
    if (config_.tamper) config_.tamper(mine.buffers->touch("dispatch", rank_, iteration_));
    const received got = result_of(mine);
    std::string wrong = mine.buffers->damage();
    if (wrong.empty()) wrong = check_dispatch(problem_, mine.inputs, rank_, mine.expected, got);
    if (wrong.empty()) {
      wrong = check_slack(problem_, rank_, mine.expected, mine.buffers->rows(),
                          mine.buffers->scales(), poison_byte(poison_kind(lane)));
    }
    note("dispatch", lane, wrong);
  }

  /// After a difference the rank goes on sending, so that the others need not time out.
  void run_stage(int lane) {
    if (verdict_.found()) return;
    lane_part& mine = part(lane);
    run_experts({.hidden = problem_.hidden,
                 .top_k = problem_.top_k,
                 .row_bytes = problem_.row_bytes,
                 .scale_bytes = problem_.scale_bytes,
                 .layout = config_.layout,
                 .weights = config_.weights,
                 .experts = experts_},
                mine.buffers->completed(result_of(mine), mine.expected), mine.buffers->y());
    mine.buffers->poison_out(poison_kind(lane) + 1);
  }

  void verify_combine(int lane) {
    if (verdict_.found()) return;
    lane_part& mine = part(lane);
    if (config_.tamper) config_.tamper(mine.buffers->touch("combine", rank_, iteration_));
    const rank_input& own = mine.inputs[static_cast<std::size_t>(rank_)];
    std::string wrong = mine.buffers->damage();
    if (wrong.empty()) {
      wrong =
          check_combine(problem_, rank_, expect_combine(problem_, own, config_.weights, expert_),
                        mine.buffers->out());
    }
    note("combine", lane, wrong);
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
    report_.error = done.error().message();
    report_.failed_call = std::string(name) + ", lane " + std::to_string(lane) + ", iteration " +
                          std::to_string(iteration_);
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
      if (!ok() || verdict_.found()) continue;
      const auto iterations = static_cast<std::uint64_t>(config_.iterations);
      const auto combines = static_cast<std::uint64_t>(config_.combines);
      count("epoch", statistics->epoch, iterations * (combines > 1 ? combines : 1), lane);
      count("combines", statistics->combines, iterations * combines, lane);
      count("bad_indices", statistics->bad_indices, part(lane).bad_indices, lane);
    }
  }

  void count(const char* name, std::uint64_t got, std::uint64_t expected, int lane) {
    if (got == expected) return;
    note("statistics", lane,
         "rank " + std::to_string(rank_) + ", lane_statistics::" + name + ": expected " +
             std::to_string(expected) + ", got " + std::to_string(got));
  }

  const run_config& config_;
  const router& routes_;
  world& world_;
  transport& transport_;
  rank_report& report_;
  rank_verdict& verdict_;
  problem problem_;
  int rank_;
  std::vector<std::int32_t> experts_;
  expert_function expert_;
  random_bits pauses_{config_.seed, 0x7061757365, static_cast<std::uint64_t>(rank_)};
  std::unique_ptr<group_type> group_;
  std::vector<lane_part> lanes_;
  int iteration_ = 0;
};

/// The world's options for a run.
[[nodiscard]] inline loopback_options options_of(const run_config& config,
                                                 const group_sizes& sizes) {
  loopback_options options;
  options.ranks = config.ranks;
  options.window_bytes = config.window_offset + sizes.window_bytes;
  options.signals = config.first_signal + sizes.signals;
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

/// Runs `config` on the wire of `Profile`.
template <class Profile>
run_result run_on_wire(const run_config& config, const router& routes) {
  using world = loopback_world<Profile>;
  run_result out;
  const auto refuse = [&out](const failure& why) {
    out.error = why.message();
    out.code = why.code;
    return out;
  };
  const problem p = problem_of(config);
  const auto sizes =
      group<loopback<Profile>>::sizes(shape_of(config, p), config.ranks, config.workers);
  if (!sizes) return refuse(sizes.error());
  auto made = world::create(options_of(config, *sizes));
  if (!made) return refuse(made.error());
  world& everything = **made;
  const auto ranks = static_cast<std::size_t>(config.ranks);
  out.ranks.resize(ranks);
  std::vector<rank_verdict> verdicts(ranks);
  const auto start = std::chrono::steady_clock::now();
  everything.run([&](loopback<Profile>& own) {
    const auto rank = static_cast<std::size_t>(own.view().rank());
    rank_run<Profile>(config, routes, everything, own, out.ranks[rank], verdicts[rank])();
  });
  const std::chrono::duration<double, std::nano> wall = std::chrono::steady_clock::now() - start;
  out.wall_ns = wall.count();
  out.trace_hash = everything.trace_hash();
  out.violations = everything.violations();
  out.charge = config.charge.value_or(Profile::caps.charge);
  for (int rank = 0; rank < config.ranks; ++rank) {
    out.nodes.push_back(everything.rank(rank).view().node(rank));
  }
  sum_up(config, verdicts, out);
  return out;
}

}  // namespace eptransport::support
