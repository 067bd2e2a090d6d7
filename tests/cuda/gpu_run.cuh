// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Runs dispatch, experts and combine on the GPU simulator and compares every iteration with
/// the oracle, bit for bit: what support/runner_impl.hpp does on the CPU.
///
/// Each rank has a host thread that draws the inputs of all ranks from the seed, computes the
/// experts on the host, and verifies its own part.
#pragma once

#include <eptransport/backends/loopback/cuda_loopback.cuh>
#include <eptransport/kernels/kernels.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cuda/gpu_buffers.cuh"
#include "support/check.hpp"
#include "support/experts.hpp"
#include "support/inputs.hpp"
#include "support/routing.hpp"
#include "support/runner.hpp"
#include "support/verdict.hpp"

namespace eptransport::support {

/// How the GPU is used.
struct gpu_options {
  std::uint32_t blocks = 0;  ///< per rank; 0: as many as fit, at most 16
  std::uint32_t warps = 8;   ///< per block
  bool timed = false;        ///< one lane, no halves: each grid is measured with CUDA events
};

/// What was measured: one entry per call, all ranks' kernels together.
struct gpu_times {
  std::vector<double> dispatch_ns;
  std::vector<double> combine_ns;
  double dispatch_bytes = 0;  ///< of memory read and written, the mean of a call, all ranks
  double combine_bytes = 0;
};

/// Bytes that a call has to read or write for its rows, whatever the caches do; one rank's part.
struct row_traffic {
  double dispatch = 0;
  double combine = 0;
};

/// Rows in all their copies: x to (staging to) zone to output; y to (staging to) zone to out.
[[nodiscard]] inline row_traffic traffic_of(const geometry& geo, const rank_input& own,
                                            const std::vector<std::int64_t>& sent,
                                            const expected_dispatch& expected) {
  const double payload = static_cast<double>(geo.row_bytes + geo.scale_bytes);
  const double slot = static_cast<double>(geo.slot_bytes);
  const double back = static_cast<double>(geo.return_bytes);
  double all = 0;
  double remote = 0;
  for (std::size_t r = 0; r < sent.size(); ++r) {
    all += static_cast<double>(sent[r]);
    if (static_cast<std::int32_t>(r) != geo.rank) remote += static_cast<double>(sent[r]);
  }
  const bool in_place = expected.spec.layout == output_layout::in_place;
  const double rows = static_cast<double>(expected.rows.size());
  row_traffic t;
  t.dispatch = all * (payload + slot) + (in_place ? 0 : rows * 2 * payload);
  if (geo.message == message_shape::per_peer) t.dispatch += remote * 2 * slot;
  if (geo.message == message_shape::per_row) {
    t.dispatch += remote * (slot - payload) + static_cast<double>(own.tokens) * (payload + slot);
  }
  t.combine = rows * back + all * 2 * back + static_cast<double>(own.tokens) * back;
  if (geo.message != message_shape::direct) t.combine += remote * 2 * back;
  return t;
}

/// One rank of a run.
template <class Profile>
class gpu_rank_run {
 public:
  using transport = cuda_loopback<Profile>;
  using world = cuda_loopback_world<Profile>;

  gpu_rank_run(const run_config& config, const router& routes, world& everything, transport& own)
      : config_(config),
        routes_(routes),
        world_(everything),
        transport_(own),
        problem_(problem_of(config)),
        rank_(own.view().rank()),
        experts_(experts_of(problem_, rank_)),
        expert_(reference_expert(problem_)) {}

  /// @param timed  rank 0 writes here, if not null
  void run(gpu_times* timed) {
    timed_ = rank_ == 0 ? timed : nullptr;
    if (!build()) return;
    for (int i = 0; i < config_.iterations && ok(); ++i) iterate(i);
    finish();
  }

  rank_report report;
  rank_verdict verdict;
  row_traffic rows_moved;  ///< all calls

 private:
  using group_type = group<transport>;

  struct lane_part {
    std::unique_ptr<gpu_buffers> buffers;
    std::vector<rank_input> inputs;
    expected_dispatch expected;
    received got;
    std::uint64_t bad_indices = 0;
  };

  [[nodiscard]] bool ok() const { return report.error.empty(); }
  [[nodiscard]] lane_part& part(int lane) { return lanes_[static_cast<std::size_t>(lane)]; }
  [[nodiscard]] std::uint64_t poison_kind(int lane) const {
    return static_cast<std::uint64_t>(iteration_ + lane + rank_);
  }
  [[nodiscard]] typename group_type::options how() const { return {.max_sms = config_.max_sms}; }

  bool build() {
    auto made = group_type::create(
        transport_, gpu_shape(config_, problem_),
        {.window_offset = config_.window_offset, .first_signal = config_.first_signal},
        config_.timeout_ns);
    if (!expect(made, "group::create")) return false;
    group_ = std::make_unique<group_type>(std::move(*made));
    verdict.message = group_->message();
    verdict.reason = group_->reason();
    lanes_.resize(static_cast<std::size_t>(config_.lanes));
    for (lane_part& lane : lanes_) {
      lane.buffers = std::make_unique<gpu_buffers>(config_, problem_, experts_.size(),
                                                   group_->needs().handle_bytes);
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
    ++report.iterations;
    if (rank_ == 0 && config_.progress) config_.progress(i);
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
    book(mine);
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
    const std::uint64_t all = ranks * static_cast<std::uint64_t>(problem_.max_tokens);
    const int byte = std::to_integer<int>(poison_byte(poison_kind(lane)));
    must(cudaMemset(base + geo.zone(statistics->epoch - 1, 0), byte, ranks * geo.zone_bytes));
    must(cudaMemset(base + geo.combine, byte, all * geo.return_bytes));
  }

  void dispatch_all(bool cached) {
    for (int lane = 0; lane < config_.lanes && ok(); ++lane) {
      gpu_buffers& b = *part(lane).buffers;
      if (config_.split) {
        (void)expect(group_->dispatch_send(lane, b.input(cached), b.handle(), how()),
                     "dispatch_send");
      } else {
        (void)expect(group_->dispatch(lane, b.input(cached), b.output(), b.handle(), how()),
                     "dispatch");
      }
    }
    for (int lane = 0; lane < config_.lanes && ok() && config_.split; ++lane) {
      gpu_buffers& b = *part(lane).buffers;
      (void)expect(group_->dispatch_recv(lane, b.output(), b.handle(), how()), "dispatch_recv");
    }
    settle();
    if (timed_ != nullptr && ok()) timed_->dispatch_ns.push_back(last_ns());
    for (int lane = 0; lane < config_.lanes; ++lane) {
      part(lane).buffers->poison_inputs(poison_kind(lane) + 2);
    }
  }

  void combine_all() {
    for (int lane = 0; lane < config_.lanes && ok(); ++lane) {
      gpu_buffers& b = *part(lane).buffers;
      const combine_input y = run_stage(lane);
      if (config_.split) {
        (void)expect(group_->combine_send(lane, y, b.handle(), how()), "combine_send");
      } else {
        (void)expect(group_->combine(lane, y, b.combined(), b.handle(), how()), "combine");
      }
    }
    for (int lane = 0; lane < config_.lanes && ok() && config_.split; ++lane) {
      gpu_buffers& b = *part(lane).buffers;
      (void)expect(group_->combine_recv(lane, b.combined(), b.handle(), how()), "combine_recv");
    }
    settle();
    if (timed_ != nullptr && ok()) timed_->combine_ns.push_back(last_ns());
    for (int lane = 0; lane < config_.lanes; ++lane) {
      part(lane).buffers->poison_y(poison_kind(lane) + 3);
    }
  }

  /// Waits for the kernels; their faults become the rank's error.
  void settle() {
    (void)expect(transport_.executor().synchronize(), "synchronize");
    for (int lane = 0; lane < config_.lanes; ++lane) {
      (void)expect(group_->status(lane), ("status of lane " + std::to_string(lane)).c_str());
    }
  }

  [[nodiscard]] double last_ns() {
    const auto ns = world_.last_grid_ns();
    return expect(ns, "last_grid_ns") ? *ns : 0;
  }

  void verify_dispatch(int lane) {
    lane_part& mine = part(lane);
    mine.got = mine.buffers->download(transport_.window(), group_->layout().scale_offset);
    if (verdict.found()) return;
    std::string wrong = mine.buffers->damage();
    if (wrong.empty()) {
      wrong = check_dispatch(problem_, mine.inputs, rank_, mine.expected, mine.got);
    }
    if (wrong.empty()) wrong = mine.buffers->check_untouched(rank_, mine.expected);
    note("dispatch", lane, wrong);
  }

  /// After a difference the rank goes on sending, so that the others need not time out.
  [[nodiscard]] combine_input run_stage(int lane) {
    lane_part& mine = part(lane);
    std::vector<std::uint16_t> y = mine.buffers->blank_y();
    if (!verdict.found()) {
      run_experts({.hidden = problem_.hidden,
                   .top_k = problem_.top_k,
                   .row_bytes = problem_.row_bytes,
                   .scale_bytes = problem_.scale_bytes,
                   .layout = config_.layout,
                   .weights = config_.weights,
                   .experts = experts_},
                  mine.got, y.data());
    }
    mine.buffers->poison_out(poison_kind(lane) + 1);
    return mine.buffers->experts_output(y);
  }

  void verify_combine(int lane) {
    if (verdict.found()) return;
    lane_part& mine = part(lane);
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
    if (wrong.empty()) return;
    verdict.note(iteration_, std::string(call) + ", lane " + std::to_string(lane), wrong);
  }

  /// Messages and bytes of a call, computed from the routing: the GPU counts nothing.
  void book(const lane_part& mine) {
    const geometry& geo = group_->layout();
    const auto self = static_cast<std::size_t>(rank_);
    const std::vector<std::int64_t> sent = expect_sent(problem_, mine.inputs[self]);
    for (std::size_t peer = 0; peer < sent.size(); ++peer) {
      if (peer == self) continue;
      const auto rows = static_cast<std::uint64_t>(sent[peer]);
      report.dispatch.messages += 1 + (geo.message == message_shape::per_row ? rows : 0);
      report.dispatch.bytes += sizeof(message_header) + rows * geo.slot_bytes;
      const std::int64_t back = expect_sent(problem_, mine.inputs[peer])[self];
      report.combine.messages += static_cast<std::uint64_t>(geo.return_messages(back));
      report.combine.bytes += static_cast<std::uint64_t>(back) * geo.return_bytes;
    }
    const row_traffic t = traffic_of(geo, mine.inputs[self], sent, mine.expected);
    rows_moved.dispatch += t.dispatch;
    rows_moved.combine += t.combine;
  }

  template <class Result>
  bool expect(const Result& done, const char* call) {
    if (done) return true;
    if (!ok()) return false;
    report.error = done.error().message();
    report.failed_call = std::string(call) + ", iteration " + std::to_string(iteration_);
    return false;
  }

  void finish() {
    const auto fault = transport_.fault();
    (void)expect(fault, "transport");
    for (int lane = 0; lane < config_.lanes; ++lane) {
      if (report.fault.kind == fault_kind::none) report.fault = group_->fault(lane);
      const auto statistics = group_->statistics(lane);
      if (!statistics) continue;
      report.lanes.push_back(*statistics);
      if (!ok() || verdict.found()) continue;
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

 public:
  /// The shape of the group.
  [[nodiscard]] static group_shape gpu_shape(const run_config& config, const problem& p) {
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

 private:
  const run_config& config_;
  const router& routes_;
  world& world_;
  transport& transport_;
  problem problem_;
  int rank_;
  std::vector<std::int32_t> experts_;
  expert_function expert_;
  std::unique_ptr<group_type> group_;
  std::vector<lane_part> lanes_;
  int iteration_ = 0;
  gpu_times* timed_ = nullptr;
};

/// What of `config` this runner cannot do; empty if it can do it all.
[[nodiscard]] inline const char* beyond_gpu_run(const run_config& config) {
  if (config.mode != dispatch_mode::slotted || config.mixed) return "counted dispatch";
  if (config.quantise != quantisation::none) return "in-kernel quantisation";
  if (config.values != element::bf16 || config.returns != element::bf16) return "rows but bf16";
  if (config.return_weights || config.bias) return "returned weights and bias";
  if (config.landing || config.scale_columns != 0) return "landing zones and scale columns";
  if (config.transfer != combine_transfer::push) return "combine by pull";
  return "";
}

/// Runs `config` on the wire of `Profile`. Schedule, delivery and faults of the CPU simulator do
/// not apply.
///
/// @param times  filled if `how.timed`
template <class Profile>
run_result run_on_gpu(const run_config& config, const router& routes, const gpu_options& how = {},
                      gpu_times* times = nullptr) {
  using rank_run = gpu_rank_run<Profile>;
  using world = cuda_loopback_world<Profile>;
  run_result out;
  const auto refuse = [&out](const failure& why) {
    out.error = why.message();
    out.code = why.code;
    return out;
  };
  if (const std::string what = beyond_gpu_run(config); !what.empty()) {
    return refuse({errc::unsupported, "run_on_gpu", "the GPU runner does not do " + what});
  }
  const problem p = problem_of(config);
  // The window does not depend on the number of workers.
  const auto sizes =
      group<cuda_loopback<Profile>>::sizes(rank_run::gpu_shape(config, p), config.ranks);
  if (!sizes) return refuse(sizes.error());
  auto made = world::create({.ranks = config.ranks,
                             .window_bytes = config.window_offset + sizes->window_bytes,
                             .signals = config.first_signal + sizes->signals,
                             .channels = config.channels,
                             .counter_start = config.counter_start,
                             .blocks = how.blocks,
                             .warps = how.warps});
  if (!made) return refuse(made.error());
  world& everything = **made;
  if (how.timed) everything.time_grids();
  std::vector<std::unique_ptr<rank_run>> runs;
  for (int rank = 0; rank < config.ranks; ++rank) {
    runs.push_back(std::make_unique<rank_run>(config, routes, everything, everything.rank(rank)));
  }
  const auto start = std::chrono::steady_clock::now();
  everything.run([&](cuda_loopback<Profile>& own) {
    runs[static_cast<std::size_t>(own.view().rank())]->run(how.timed ? times : nullptr);
  });
  const std::chrono::duration<double, std::nano> wall = std::chrono::steady_clock::now() - start;
  out.wall_ns = wall.count();
  out.charge = Profile::caps.charge;
  std::vector<rank_verdict> verdicts;
  const double calls = config.iterations * config.lanes;
  for (int rank = 0; rank < config.ranks; ++rank) {
    rank_run& run = *runs[static_cast<std::size_t>(rank)];
    out.nodes.push_back(everything.rank(rank).view().node(rank));
    if (rank == 0 && how.timed && times != nullptr) {
      run.verdict.dispatch_ns = times->dispatch_ns;
      run.verdict.combine_ns = times->combine_ns;
    }
    if (times != nullptr) {
      times->dispatch_bytes += run.rows_moved.dispatch / calls;
      times->combine_bytes += run.rows_moved.combine / calls;
    }
    out.ranks.push_back(run.report);
    verdicts.push_back(run.verdict);
  }
  sum_up(config, verdicts, out);
  return out;
}

}  // namespace eptransport::support
