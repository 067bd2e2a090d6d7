// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Runs on the GPU simulator; the one place where its kernels are compiled for runs.
#include <eptransport/backends/loopback/cuda_loopback.cuh>
#include <eptransport/backends/loopback/profiles.hpp>
#include <eptransport/kernels/kernels.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "support/cuda/gpu_twins.cuh"
#include "support/gpu_run.hpp"
#include "support/rank_run.hpp"
#include "support/runner_wires.hpp"
#include "support/verdict.hpp"

namespace eptransport::support {
namespace {

/// Bytes that calls have to read or write for their rows, whatever the caches do.
struct row_traffic {
  double dispatch = 0;
  double combine = 0;
};

/// One dispatch and one combine of a rank. Rows in all their copies: x to (staging to) their place,
/// to the output unless they stay there; y to (staging to) zone to out, or straight to out.
[[nodiscard]] row_traffic traffic_of(const geometry& geo, const lane_run& lane) {
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
  t.combine += all * 2 * back;
  if (geo.message != message_shape::direct) t.combine += remote * 2 * back;
  return t;
}

/// A rank of the GPU simulator.
template <class Profile>
class gpu_rig {
 public:
  using transport = cuda_loopback<Profile>;
  static constexpr bool counts = false;

  gpu_rig(cuda_loopback_world<Profile>& everything, transport& own, bool timed)
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
    const auto grid = world_.last_grid_ns();
    if (grid) grids_ns_ += *grid;
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
  cuda_loopback_world<Profile>& world_;
  transport& own_;
  bool timed_;
  std::unique_ptr<std::byte[]> image_;
  gpu_twins parts_;
  std::vector<std::unique_ptr<gpu_twins>> lanes_;
  std::vector<cudaStream_t> streams_;
  double grids_ns_ = 0;
  row_traffic moved_{};
};

[[nodiscard]] run_result refused(const failure& why) {
  run_result out;
  out.error = why.message();
  out.code = why.code;
  return out;
}

[[nodiscard]] cuda_loopback_options options_of(const run_config& config, const gpu_options& how,
                                               const group_sizes& sizes) {
  cuda_loopback_options options;
  options.ranks = config.ranks;
  options.window_bytes = window_bytes_of(config, sizes);
  options.signals = config.first_signal + sizes.signals;
  options.channels = config.channels;
  options.counter_start = config.counter_start;
  options.blocks = how.blocks;
  options.warps = how.warps;
  options.concurrent = static_cast<std::uint32_t>(config.lanes);
  options.patience_ns = config.timeout_ns;
  return options;
}

template <class Profile>
run_result run_on(const run_config& config, const router& routes, const gpu_options& how,
                  gpu_times* times) {
  using transport = cuda_loopback<Profile>;
  // The window does not depend on the number of workers.
  const auto sizes = group<transport>::sizes(shape_of(config, problem_of(config)), config.ranks);
  if (!sizes) return refused(sizes.error());
  auto made = cuda_loopback_world<Profile>::create(options_of(config, how, *sizes));
  if (!made) return refused(made.error());
  cuda_loopback_world<Profile>& everything = **made;
  if (how.timed) everything.time_grids();
  run_result out;
  const auto ranks = static_cast<std::size_t>(config.ranks);
  out.ranks.resize(ranks);
  std::vector<rank_verdict> verdicts(ranks);
  std::vector<row_traffic> moved(ranks);
  const auto start = std::chrono::steady_clock::now();
  everything.run([&](transport& own) {
    const auto rank = static_cast<std::size_t>(own.view().rank());
    gpu_rig<Profile> rig(everything, own, how.timed);
    rank_run<gpu_rig<Profile>>(config, routes, rig, out.ranks[rank], verdicts[rank])();
    moved[rank] = rig.moved();
  });
  const std::chrono::duration<double, std::nano> wall = std::chrono::steady_clock::now() - start;
  out.wall_ns = wall.count();
  out.charge = config.charge.value_or(Profile::caps.charge);
  const double dispatches = config.iterations * config.lanes;
  for (int rank = 0; rank < config.ranks; ++rank) {
    const transport& one = everything.rank(rank);
    out.nodes.push_back(one.view().node(rank));
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

struct wire_entry {
  const char* name;
  run_result (*run)(const run_config&, const router&, const gpu_options&, gpu_times*);
};

template <class Profile>
constexpr wire_entry entry{Profile::name, run_on<Profile>};

constexpr wire_entry table[] = {entry<profiles::nvlink>, entry<profiles::ib_gpu>,
                                entry<profiles::efa_gpu>, entry<profiles::efa_proxy>,
                                entry<tight_profile>};

}  // namespace

run_result run_on_gpu(const run_config& config, const gpu_options& how, gpu_times* times) {
  const auto refuse = [](errc code, const std::string& why) {
    return refused({code, "run_on_gpu", why});
  };
  if (const std::string wrong = wrong_with(config); !wrong.empty()) {
    return refuse(errc::invalid_argument, wrong);
  }
  if (!config.faults.empty()) {
    return refuse(errc::unsupported, "the GPU's wire delivers at once, no fault can be injected");
  }
  if (config.copy_baseline) {
    return refuse(errc::unsupported, "memcpy by host threads is no baseline for GPU kernels");
  }
  const auto routes = routes_of(config);
  if (!routes) return refused(routes.error());
  for (const wire_entry& wire : table) {
    if (config.wire == wire.name) return wire.run(config, *routes, how, times);
  }
  return refuse(errc::invalid_argument, "no wire '" + config.wire + "' on the GPU");
}

}  // namespace eptransport::support
