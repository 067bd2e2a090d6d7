// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief `--exec cuda --wire peer-memory`: dispatch and combine between real GPUs.
///
/// Kernel time: CUDA events between calls that were enqueued while the streams were held, so that
/// the host is out of it; the few microseconds between two kernels of a stream are in it. Of each
/// call the slowest rank counts. Host-observed time: a thread per rank, from its call until its
/// stream has ended, after a barrier of the threads. The same run verifies the calls against the
/// oracle and measures copies of the same machine as limits.
#include <cuda_runtime.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cuda/device_buffer.cuh"
#include "ep_bench/cli.hpp"
#include "ep_bench/cuda.hpp"
#include "support/cuda/peer_group.cuh"
#include "support/gpu_run.hpp"
#include "support/inputs.hpp"
#include "support/peer_run.hpp"
#include "support/rank_run.hpp"
#include "support/runner_wires.hpp"

namespace eptransport::bench {

// Named: a kernel cannot be hidden and have a type of an unnamed namespace.
/// Copies the first half of one rank's window to the second half of another's, all workers alike.
struct copy_call {
  peer_memory_view view;
  std::int32_t from;
  std::int32_t to;
  std::uint64_t bytes;

  [[nodiscard]] EPT_HOST_DEVICE static worker_words* words() { return nullptr; }

  template <class W>
  EPT_DEVICE void operator()(const W& w) const {
    constexpr std::uint64_t piece = 32768;
    for (std::uint64_t at = w.worker() * piece; at < bytes; at += w.workers() * piece) {
      w.copy(view.peer_pointer(to, bytes + at, piece), view.peer_pointer(from, at, piece), piece);
    }
  }
};

namespace {

using support::device_buffer;
using support::must;
using support::problem;
using support::rank_input;
using support::run_config;

/// Holds a stream until the host says so, or 2 s have passed.
__global__ void hold(const std::uint64_t* go) {
  const std::uint64_t end = device_memory::timer_ns() + 2'000'000'000;
  while (device_memory::signal_acquire(go) == 0 && device_memory::timer_ns() < end) {
    device_memory::relax();
  }
}

/// A sorted series of times in microseconds.
struct series {
  std::vector<double> us;

  void add(double value) { us.insert(std::upper_bound(us.begin(), us.end(), value), value); }
  [[nodiscard]] double mean() const {
    return us.empty() ? 0
                      : std::accumulate(us.begin(), us.end(), 0.0) / static_cast<double>(us.size());
  }
  /// The smallest value that `percent` of the times do not exceed.
  [[nodiscard]] double percentile(std::size_t percent) const {
    if (us.empty()) return 0;
    const std::size_t rank = (us.size() * percent + 99) / 100;
    return us[std::max<std::size_t>(rank, 1) - 1];
  }
  [[nodiscard]] std::string text() const {
    char line[96];
    std::snprintf(line, sizeof line, "%7.1f mean %7.1f p50 %7.1f p99 %7.1f max", mean(),
                  percentile(50), percentile(99), percentile(100));
    return line;
  }
};

/// Bytes that one rank moves in a call; the mean over the ranks.
struct volume {
  double link = 0;    ///< to the other GPUs
  double memory = 0;  ///< read and written in its own memory
};

/// One rank: buffers, stream, graph.
class caller {
 public:
  caller(peer_memory& transport, group<peer_memory>& calls, const run_config& config,
         const std::vector<rank_input>& inputs)
      : transport_(transport),
        calls_(calls),
        config_(config),
        problem_(support::problem_of(config)) {
    const auto rank = static_cast<std::size_t>(transport.view().rank());
    const rank_input& own = inputs[rank];
    must(cudaSetDevice(transport.device()));
    must(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    const auto k = static_cast<std::uint64_t>(problem_.top_k);
    const bool per_expert =
        config.layout == output_layout::expert_major || config.layout == output_layout::padded;
    const auto local = support::experts_of(problem_, static_cast<int>(rank)).size();
    std::uint64_t rows = static_cast<std::uint64_t>(support::most_rows(problem_));
    if (per_expert) rows *= config.layout == output_layout::padded ? local : k;
    index_.assign(own.index);
    weight_.assign(own.weight);
    x_.assign(problem_.quantise == quantisation::none ? own.x : own.raw);
    scales_.assign(own.scales);
    tokens_ = own.tokens;
    rows_.resize(config.layout == output_layout::in_place ? 0 : rows * problem_.row_bytes, 0);
    out_scales_.resize(rows * problem_.scale_bytes, 0);
    metadata_.resize(rows * 16 + 64 * 1024 + 8 * local, 0);
    counts_.resize(1 + 2 * local, 0);
    const std::uint64_t row = static_cast<std::uint64_t>(problem_.hidden) * bytes_of(config.values);
    y_.resize(rows * row, 0);
    must(cudaMemset(y_.data(), 0x3F, y_.bytes()));  // 0.75 in bf16
    out_.resize(static_cast<std::uint64_t>(tokens_) * row, 0);
    handle_.resize(calls.needs().handle_bytes, 0);
    per_expert_ = per_expert;
    rows_count_ = rows;
    must(cudaDeviceSynchronize());
  }
  caller(const caller&) = delete;
  caller& operator=(const caller&) = delete;
  ~caller() {
    if (graph_ != nullptr) (void)cudaGraphExecDestroy(graph_);
    (void)cudaStreamDestroy(stream_);
  }

  [[nodiscard]] cudaStream_t stream() const { return stream_; }
  [[nodiscard]] int device() const { return transport_.device(); }
  [[nodiscard]] result<void> status() const { return calls_.status(0); }

  [[nodiscard]] result<void> dispatch() {
    const bool opaque = problem_.quantise == quantisation::none && problem_.scale_bytes != 0;
    const bool stays =
        config_.layout == output_layout::in_place ||
        (config_.layout == output_layout::rank_major && config_.mode == dispatch_mode::counted);
    auto* at = metadata_.data();
    return calls_.dispatch(0,
                           {.x = x_.data(),
                            .scales = opaque ? scales_.data() : nullptr,
                            .topk_index = index_.data(),
                            .topk_weight = weight_.data(),
                            .tokens = tokens_,
                            .mode = config_.mode},
                           {.layout = config_.layout,
                            .rows = stays ? nullptr : rows_.data(),
                            .scales = problem_.scale_bytes == 0 ? nullptr : out_scales_.data(),
                            .total = counts_.data(),
                            .expert_count = counts_.data() + 1,
                            .row_weight = per_expert_ ? reinterpret_cast<float*>(at) : nullptr,
                            .source_rank = reinterpret_cast<std::int32_t*>(at + 4 * rows_count_),
                            .source_token = reinterpret_cast<std::int64_t*>(at + 8 * rows_count_)},
                           handle(), {.stream = stream_});
  }
  [[nodiscard]] result<void> combine() {
    return calls_.combine(
        0, {.y = y_.data(), .weights = per_expert_ ? weighting::at_expert : weighting::none},
        {.out = out_.data()}, handle(), {.stream = stream_});
  }
  [[nodiscard]] result<void> both() {
    auto dispatched = dispatch();
    return dispatched ? combine() : dispatched;
  }

  void capture() {
    must(cudaSetDevice(device()));
    must(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal));
    const auto made = both();
    cudaGraph_t graph = nullptr;
    must(cudaStreamEndCapture(stream_, &graph));
    if (!made) must(cudaErrorStreamCaptureInvalidated);
    must(cudaGraphInstantiate(&graph_, graph, 0));
    must(cudaGraphDestroy(graph));
    must(cudaGraphUpload(graph_, stream_));
    must(cudaStreamSynchronize(stream_));
  }
  [[nodiscard]] result<void> replay() {
    return cuda_result(cudaGraphLaunch(graph_, stream_), "cudaGraphLaunch");
  }

 private:
  [[nodiscard]] dispatch_handle handle() const { return {handle_.data(), handle_.size()}; }

  peer_memory& transport_;
  group<peer_memory>& calls_;
  const run_config& config_;
  problem problem_;
  cudaStream_t stream_ = nullptr;
  cudaGraphExec_t graph_ = nullptr;
  std::int64_t tokens_ = 0;
  bool per_expert_ = false;
  std::uint64_t rows_count_ = 0;
  device_buffer<std::int64_t> index_, counts_;
  device_buffer<float> weight_;
  device_buffer<std::byte> x_, scales_, rows_, out_scales_, metadata_, y_, out_, handle_;
};

/// Ends the program: nothing that was measured counts.
[[noreturn]] void fail(const failure& why) {
  std::fprintf(stderr, "ep_bench: %s\n", why.message().c_str());
  std::exit(1);
}

using callers = std::vector<std::unique_ptr<caller>>;
using step = std::function<result<void>(caller&)>;

/// Events between `steps` of every rank, `rounds` times, in streams that are held until all is
/// enqueued. Returns a series per step, of the slowest rank each time; the first rounds are left
/// out.
std::vector<series> between_events(const callers& all, const std::vector<step>& steps, int rounds) {
  constexpr int left_out = 5;
  std::uint64_t* go = nullptr;
  must(cudaHostAlloc(reinterpret_cast<void**>(&go), sizeof *go,
                     cudaHostAllocMapped | cudaHostAllocPortable));
  std::vector<std::vector<double>> slowest(steps.size());
  for (int done = 0; done < rounds;) {
    const int batch = std::min(rounds - done, 40);
    *go = 0;
    std::vector<std::vector<cudaEvent_t>> events(all.size());
    const auto mark = [&](std::size_t r) {
      events[r].emplace_back();
      must(cudaEventCreate(&events[r].back()));
      must(cudaEventRecord(events[r].back(), all[r]->stream()));
    };
    const auto each = [&](const auto& body) {
      for (std::size_t r = 0; r < all.size(); ++r) {
        must(cudaSetDevice(all[r]->device()));
        body(r);
        mark(r);
      }
    };
    each([&](std::size_t r) {
      hold<<<1, 1, 0, all[r]->stream()>>>(go);
      must(cudaGetLastError());
    });
    // Rank by rank for each step: streams of one GPU may share a queue, in which a rank's later
    // calls must not stand before another's earlier ones.
    for (int i = 0; i < batch + left_out; ++i) {
      for (const step& one : steps) {
        each([&](std::size_t r) {
          if (const auto done = one(*all[r]); !done) fail(done.error());
        });
      }
    }
    host_memory::signal_add(go, 1);  // pairs with the acquire in hold()
    for (const auto& one : all) must(cudaStreamSynchronize(one->stream()));
    for (std::size_t i = static_cast<std::size_t>(left_out) * steps.size() + 1;
         i < events[0].size(); ++i) {
      float most = 0;
      for (const auto& marks : events) {
        float ms = 0;
        must(cudaEventElapsedTime(&ms, marks[i - 1], marks[i]));
        most = std::max(most, ms);
      }
      slowest[(i - 1) % steps.size()].push_back(static_cast<double>(most) * 1e3);
    }
    for (const auto& marks : events) {
      for (cudaEvent_t one : marks) must(cudaEventDestroy(one));
    }
    done += batch;
  }
  must(cudaFreeHost(go));
  std::vector<series> out(steps.size());
  for (std::size_t s = 0; s < steps.size(); ++s) {
    for (const double us : slowest[s]) out[s].add(us);
  }
  return out;
}

/// From the call until the stream has ended, in a thread per rank; the slowest rank each time.
series host_observed(const callers& all, const step& one, int rounds) {
  constexpr int left_out = 10;
  const auto ranks = static_cast<int>(all.size());
  std::atomic<int> arrived = 0;
  std::vector<std::vector<double>> us(all.size());
  std::vector<std::thread> threads;
  for (std::size_t r = 0; r < all.size(); ++r) {
    threads.emplace_back([&, r] {
      must(cudaSetDevice(all[r]->device()));
      for (int i = 0; i < rounds + left_out; ++i) {
        arrived.fetch_add(1);
        while (arrived.load() < (i + 1) * ranks) {
        }
        const auto start = std::chrono::steady_clock::now();
        if (const auto done = one(*all[r]); !done) fail(done.error());
        must(cudaStreamSynchronize(all[r]->stream()));
        const std::chrono::duration<double, std::micro> took =
            std::chrono::steady_clock::now() - start;
        us[r].push_back(took.count());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  series out;
  for (std::size_t i = left_out; i < us[0].size(); ++i) {
    double most = 0;
    for (const auto& mine : us) most = std::max(most, mine[i]);
    out.add(most);
  }
  return out;
}

/// GPUs of this machine, at least 1.
int gpus() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess && count > 0 ? count : 1;
}

/// GB/s of large copies by kernels, every GPU at once: stores to the next GPU, loads from it, and
/// within each GPU (read plus written).
struct copy_limits {
  double store = 0;
  double load = 0;
  double memory = 0;
};

/// @par Errors  as `peer_memory_world::create`
result<copy_limits> measure_copies(const std::vector<int>& devices) {
  constexpr std::uint64_t bytes = std::uint64_t{256} << 20;
  constexpr int times = 8;
  const auto share =
      static_cast<std::uint32_t>(devices.size()) > static_cast<std::uint32_t>(gpus())
          ? static_cast<std::uint32_t>(devices.size() / static_cast<std::size_t>(gpus()))
          : 1U;
  auto world = peer_memory_world::create(
      devices, {.window_bytes = 2 * bytes, .blocks = 128 / share, .warps = 16});
  if (!world) return world.error();
  const std::int32_t ranks = (*world)->size();
  const auto run = [&](int source, int target) {  // relative to the rank that copies
    std::vector<cudaEvent_t> marks(2 * devices.size());
    for (std::int32_t r = 0; r < ranks; ++r) {
      peer_memory& rank = (*world)->rank(r);
      const auto i = static_cast<std::size_t>(r);
      must(cudaSetDevice(rank.device()));
      must(cudaEventCreate(&marks[2 * i]));
      must(cudaEventCreate(&marks[2 * i + 1]));
      const copy_call call{rank.view(), (r + source) % ranks, (r + target) % ranks, bytes};
      for (int n = 0; n <= times; ++n) {
        if (n == 1) must(cudaEventRecord(marks[2 * i], nullptr));
        if (const auto done = rank.executor().launch(call, 0, nullptr); !done) fail(done.error());
      }
      must(cudaEventRecord(marks[2 * i + 1], nullptr));
    }
    double slowest = 0;
    for (std::size_t i = 0; i < devices.size(); ++i) {
      float ms = 0;
      must(cudaEventSynchronize(marks[2 * i + 1]));
      must(cudaEventElapsedTime(&ms, marks[2 * i], marks[2 * i + 1]));
      slowest = std::max(slowest, static_cast<double>(ms));
    }
    for (cudaEvent_t one : marks) must(cudaEventDestroy(one));
    return static_cast<double>(bytes) * times / slowest / 1e6;
  };
  copy_limits limits;
  limits.memory = 2 * run(0, 0);
  if (ranks > 1) {
    limits.store = run(0, 1);
    limits.load = run(1, 0);
  }
  return limits;
}

/// What the layout and message shape imply, from the routing; the mean over the ranks.
std::pair<volume, volume> volumes(const problem& p, const geometry& geo, const run_config& config,
                                  const std::vector<rank_input>& inputs) {
  volume d;
  volume c;
  const bool counted = config.mode == dispatch_mode::counted;
  const bool stays = config.layout == output_layout::in_place ||
                     (counted && config.layout == output_layout::rank_major);
  const auto payload = static_cast<double>(geo.row_bytes + geo.scale_bytes);
  const auto slot = static_cast<double>(counted ? geo.row_bytes + geo.side_bytes : geo.slot_bytes);
  const auto back = static_cast<double>(geo.return_bytes);
  const double raw =
      geo.quantise == quantisation::none ? payload : static_cast<double>(geo.hidden) * 2;
  for (std::size_t r = 0; r < inputs.size(); ++r) {
    const auto sent = support::expect_sent(p, inputs[r]);
    const auto all =
        static_cast<double>(std::accumulate(sent.begin(), sent.end(), std::int64_t{0}));
    const double remote = all - static_cast<double>(sent[r]);
    const auto expected =
        support::expect_dispatch(p, inputs, static_cast<int>(r), {.layout = config.layout});
    const auto rows = static_cast<double>(expected.rows.size());
    d.link += remote * slot;
    d.memory +=
        all * raw + static_cast<double>(expected.landed) * slot + (stays ? 0 : rows * 2 * payload);
    c.link += static_cast<double>(expected.landed - sent[r]) * back;
    c.memory += rows * static_cast<double>(geo.value_bytes) + all * 2 * back +
                static_cast<double>(inputs[r].tokens) * static_cast<double>(geo.value_bytes);
  }
  const auto ranks = static_cast<double>(inputs.size());
  return {{d.link / ranks, d.memory / ranks}, {c.link / ranks, c.memory / ranks}};
}

void print_call(const char* call, const series& times, const volume& moved,
                const copy_limits& limits) {
  const auto rate = [&](double bytes) { return bytes / times.mean() / 1e3; };
  const auto share = [](double a, double b) { return b > 0 ? 100 * a / b : 0.0; };
  std::printf("%-8s kernel us %s (cuda events, slowest rank, %zu calls)\n", call,
              times.text().c_str(), times.us.size());
  std::printf(
      "         to peers %8.3f MiB, %6.1f GB/s, %4.1f %% of copies; own memory %8.3f MiB, "
      "%6.1f GB/s, %4.1f %% of copies\n",
      moved.link / 1048576, rate(moved.link), share(rate(moved.link), limits.store),
      moved.memory / 1048576, rate(moved.memory), share(rate(moved.memory), limits.memory));
}

/// Measures on a world of its own. Empty, or why it could not.
std::string measure(const options& asked, support::run_result& result) {
  const run_config& config = asked.config;
  const auto routes = support::routes_of(config);
  if (!routes) return routes.error().message();
  const problem p = support::problem_of(config);
  const group_shape shape = support::shape_of(config, p);
  const auto sizes = group<peer_memory>::sizes(shape, config.ranks);
  if (!sizes) return sizes.error().message();
  std::vector<int> devices;
  for (int rank = 0; rank < config.ranks; ++rank) devices.push_back(rank % gpus());
  peer_memory_shape memory;
  memory.window_bytes = sizes->window_bytes;
  memory.signals = sizes->signals;
  memory.blocks = config.max_sms;
  auto world = peer_memory_world::create(devices, memory);
  if (!world) return world.error().message();
  std::vector<std::unique_ptr<group<peer_memory>>> groups(devices.size());
  std::string wrong;
  (*world)->run([&](peer_memory& own) {
    auto made = group<peer_memory>::create(own, shape);
    const auto rank = static_cast<std::size_t>(own.view().rank());
    if (made) groups[rank] = std::make_unique<group<peer_memory>>(std::move(*made));
  });
  const std::vector<rank_input> inputs = support::draw_inputs(config, *routes, 0, 0);
  callers all;
  for (std::size_t r = 0; r < groups.size(); ++r) {
    if (groups[r] == nullptr) return "the group could not be built";
    all.push_back(
        std::make_unique<caller>((*world)->rank(static_cast<int>(r)), *groups[r], config, inputs));
  }
  const int rounds = config.iterations;
  const step dispatch = [](caller& c) { return c.dispatch(); };
  const step combine = [](caller& c) { return c.combine(); };
  const step pair = [](caller& c) { return c.both(); };
  const step replay = [](caller& c) { return c.replay(); };
  const std::vector<series> calls = between_events(all, {dispatch, combine}, rounds);
  for (const auto& one : all) one->capture();
  const series graph = between_events(all, {replay}, rounds)[0];
  const series eager_host = host_observed(all, pair, rounds);
  const series graph_host = host_observed(all, replay, rounds);
  const series dispatch_host = host_observed(all, dispatch, rounds);
  for (const auto& one : all) {
    if (const auto status = one->status(); !status) wrong = status.error().message();
  }
  const auto measured = measure_copies(devices);
  if (!measured) return measured.error().message();
  const copy_limits& limits = *measured;
  const auto [d, c] = volumes(p, groups[0]->layout(), config, inputs);
  if (!asked.quiet && asked.json != "-") {
    std::printf(
        "copies by kernels, all GPUs at once, GB/s: stores to a peer %.0f, loads %.0f, in a GPU "
        "%.0f; calls: %u blocks of %u warps\n",
        limits.store, limits.load, limits.memory,
        (*world)->rank(0).executor().workers(0) / memory.warps, memory.warps);
    print_call("dispatch", calls[0], d, limits);
    print_call("combine", calls[1], c, limits);
    std::printf("pair     graph replay, events between replays, us %s\n", graph.text().c_str());
    std::printf("pair     host-observed us %s\n", eager_host.text().c_str());
    std::printf("pair     host-observed, graph replay, us %s\n", graph_host.text().c_str());
    std::printf("dispatch host-observed us %s\n", dispatch_host.text().c_str());
  }
  const auto time_of = [](const series& s) {
    return support::call_time{
        .mean_ns = s.mean() * 1e3, .p99_ns = s.percentile(99) * 1e3, .max_rank_ns = s.mean() * 1e3};
  };
  result.dispatch = time_of(calls[0]);
  result.combine = time_of(calls[1]);
  return wrong;
}

}  // namespace

int run_peers(const options& asked, std::vector<measurement>& rows) {
  run_config checked = asked.config;
  checked.wire = support::peer_memory_wire;
  // The oracle works row by row on the host: one call of thousands of tokens is seconds of it.
  const std::int64_t most = *std::max_element(checked.tokens.begin(), checked.tokens.end());
  checked.iterations = std::min(checked.iterations, most > 1024 ? 1 : 3);
  checked.align_clocks = false;
  // Ranks that share a GPU cannot wait for it by themselves, as a checked run does: then the same
  // kernels are checked as virtual ranks of one grid.
  const bool share = checked.ranks > gpus();
  if (share) {
    std::fprintf(stderr, "%d ranks share %d GPU%s: no link is measured; checked in one grid\n",
                 checked.ranks, gpus(), gpus() == 1 ? "" : "s");
    checked.wire = "nvlink";
  }
  measurement row{.wire = support::peer_memory_wire,
                  .result = share ? support::run_on_gpu(checked) : support::run_on_peers(checked),
                  .clock = "measured"};
  if (share) row.result.reason += "; checked as virtual ranks of one grid";
  if (row.result.error.empty() && row.result.verified) {
    row.result.error = measure(asked, row.result);
  }
  rows.push_back(std::move(row));
  return exit_ok;
}

}  // namespace eptransport::bench
