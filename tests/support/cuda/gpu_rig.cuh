// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief One rank of a run whose kernels run on a GPU, and a run of all ranks of a world.
#pragma once

#include <eptransport/core/result.hpp>
#include <eptransport/kernels/kernels.hpp>

#include <cuda_runtime.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <thread>
#include <vector>

#include "support/cuda/gpu_twins.cuh"
#include "support/gpu_run.hpp"
#include "support/rank_run.hpp"
#include "support/verdict.hpp"

namespace eptransport::support {

/// Bytes that calls have to read or write for their rows, whatever the caches do.
struct row_traffic {
  double dispatch = 0;
  double combine = 0;
};

/// One dispatch and one combine of a rank. Rows in all their copies: x to (staging to) their place,
/// to the output unless they stay there; y to (staging to) zone to out, or straight to out.
[[nodiscard]] inline row_traffic traffic_of(const geometry& geo, const lane_run& lane) {
  const lane_buffers& buffers = lane.buffers();
  const output_layout layout = lane.expected().spec.layout;
  const bool counted = buffers.counted();
  const bool stays =
      layout == output_layout::in_place || (counted && layout == output_layout::rank_major);
  const auto payload = static_cast<double>(geo.row_bytes + geo.scale_bytes);
  const double raw =
      geo.quantise == quantisation::none ? payload : static_cast<double>(geo.hidden) * 2;
  const auto slot = static_cast<double>(counted ? geo.row_bytes + geo.side_bytes : geo.slot_bytes);
  const auto value = static_cast<double>(geo.value_bytes);
  const auto back = static_cast<double>(geo.return_bytes);
  const auto all = static_cast<double>(lane.rows_sent());
  const auto remote = static_cast<double>(lane.rows_sent() - lane.rows_kept());
  const auto tokens = static_cast<double>(lane.own().tokens);
  const auto rows = static_cast<double>(lane.expected().rows.size());
  row_traffic t;
  t.dispatch = all * (raw + slot) + (stays ? 0 : rows * 2 * payload);
  if (geo.message == message_shape::per_peer) t.dispatch += remote * 2 * slot;
  if (geo.message == message_shape::per_row) {
    t.dispatch += remote * (slot - payload) + tokens * (payload + slot);
  }
  t.combine = rows * value + tokens * value;
  if (buffers.pulls()) return t;
  // A whole combine reads the own rank's rows in y, if they go back as they lie there.
  const bool home = layout == output_layout::rank_major || layout == output_layout::in_place;
  t.combine += (home && geo.values == geo.wire ? remote : all) * 2 * back;
  if (geo.message != message_shape::direct) t.combine += remote * 2 * back;
  return t;
}

/// A rank of a world of GPU ranks: the simulator's, or real ones.
template <class World>
class gpu_rig {
 public:
  using transport = typename World::rank_type;
  static constexpr bool counts = false;

  /// @param timed  each grid is measured; only where the world runs all ranks in one
  gpu_rig(World& everything, transport& own, bool timed)
      : world_(everything),
        own_(own),
        timed_(timed),
        image_(new std::byte[own.window().size()]),
        parts_(image_.get(), own.window().data()) {}

  gpu_rig(const gpu_rig&) = delete;
  gpu_rig& operator=(const gpu_rig&) = delete;
  ~gpu_rig() {
    for (const cudaStream_t one : streams_) (void)cudaStreamDestroy(one);
  }

  [[nodiscard]] transport& own() { return own_; }
  [[nodiscard]] std::byte* window() { return image_.get(); }
  [[nodiscard]] memory_twins* twins() {
    lanes_.push_back(std::make_unique<gpu_twins>(image_.get(), own_.window().data()));
    return lanes_.back().get();
  }
  void push(std::span<const std::byte> part) { parts_.push(part); }
  [[nodiscard]] rank_meter meter() const {
    const auto now = std::chrono::steady_clock::now().time_since_epoch();
    const auto ns = static_cast<std::uint64_t>(std::chrono::nanoseconds(now).count());
    return {.ns = timed_ ? static_cast<std::uint64_t>(grids_ns_) : ns};
  }

  void made(const geometry& geo, lane_run& lane, call_part what) {
    if (!timed_) return;
    if constexpr (requires { world_.last_grid_ns(); }) {
      const auto grid = world_.last_grid_ns();
      if (grid) grids_ns_ += *grid;
    }
    if (what == call_part::second_half) return;
    const row_traffic rows = traffic_of(geo, lane);
    if (what == call_part::dispatch) {
      moved_.dispatch += rows.dispatch;
    } else {
      moved_.combine += rows.combine;
    }
  }
  /// Each lane has one of its own, so that their kernels may run at once.
  [[nodiscard]] cudaStream_t stream(int lane) {
    while (streams_.size() <= static_cast<std::size_t>(lane)) {
      must(cudaStreamCreateWithFlags(&streams_.emplace_back(), cudaStreamNonBlocking));
    }
    return streams_[static_cast<std::size_t>(lane)];
  }
  void pause(std::uint64_t ns) { std::this_thread::sleep_for(std::chrono::nanoseconds(ns)); }

  [[nodiscard]] const row_traffic& moved() const { return moved_; }

 private:
  World& world_;
  transport& own_;
  bool timed_;
  std::unique_ptr<std::byte[]> image_;
  gpu_twins parts_;
  std::vector<std::unique_ptr<gpu_twins>> lanes_;
  std::vector<cudaStream_t> streams_;
  double grids_ns_ = 0;
  row_traffic moved_{};
};

/// A run that could not begin.
[[nodiscard]] inline run_result refused(const failure& why) {
  run_result out;
  out.error = why.message();
  out.code = why.code;
  return out;
}

/// Runs `config` on the ranks of `everything`, each in a host thread of its own.
template <class World>
run_result run_in(World& everything, const run_config& config, const router& routes,
                  const gpu_options& how, gpu_times* times) {
  using transport = typename World::rank_type;
  run_result out;
  const auto ranks = static_cast<std::size_t>(config.ranks);
  out.ranks.resize(ranks);
  std::vector<rank_verdict> verdicts(ranks);
  std::vector<row_traffic> moved(ranks);
  const auto start = std::chrono::steady_clock::now();
  everything.run([&](transport& own) {
    const auto rank = static_cast<std::size_t>(own.view().rank());
    gpu_rig<World> rig(everything, own, how.timed);
    rank_run<gpu_rig<World>>(config, routes, rig, out.ranks[rank], verdicts[rank])();
    moved[rank] = rig.moved();
  });
  const std::chrono::duration<double, std::nano> wall = std::chrono::steady_clock::now() - start;
  out.wall_ns = wall.count();
  out.charge = config.charge.value_or(transport::caps.charge);
  const double dispatches = config.iterations * config.lanes;
  for (int rank = 0; rank < config.ranks; ++rank) {
    const transport& one = everything.rank(rank);
    out.nodes.push_back(node_of(one, rank));
    if (const auto sound = one.fault(); !sound) out.violations += sound.error().message() + "\n";
    if (times == nullptr || !how.timed) continue;
    const row_traffic& rows = moved[static_cast<std::size_t>(rank)];
    times->dispatch_bytes += rows.dispatch / dispatches;
    if (config.combines > 0) times->combine_bytes += rows.combine / dispatches / config.combines;
  }
  if (times != nullptr && how.timed) {
    times->dispatch_ns = verdicts.front().dispatch_ns;
    times->combine_ns = verdicts.front().combine_ns;
  }
  sum_up(config, verdicts, true, out);
  return out;
}

}  // namespace eptransport::support
