// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The whole engine over the null endpoint, and how K engines on K threads scale.
#include <eptransport/core/memory.hpp>
#include <eptransport/proxy/command.hpp>
#include <eptransport/proxy/driver.hpp>
#include <eptransport/proxy/endpoints/null.hpp>
#include <eptransport/proxy/engine.hpp>
#include <eptransport/proxy/fault_cell.hpp>
#include <eptransport/proxy/ring.hpp>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "proxy_bench/measure.hpp"

namespace eptransport::bench {
namespace {

using proxy::command;
using proxy::command_codec;
using proxy::null_endpoint;
using engine = proxy::engine<null_endpoint>;

constexpr std::uint32_t ranks = 16;
constexpr std::uint32_t signals = 64;

/// An engine with all that it works on.
struct rig {
  rig(std::uint32_t rings, std::uint64_t slots, std::uint64_t post_ns) : window(1 << 20) {
    const auto immediates = proxy::immediate_codec::create(ranks, signals, 32);
    endpoint = std::make_unique<null_endpoint>(proxy::null_options{
        .window = window, .post_ns = post_ns, .rank_bits = immediates->rank_bits()});
    codec = *command_codec::create({ranks, signals, window.size(), 0});
    std::vector<proxy::ring_view> views;
    for (std::uint32_t i = 0; i < rings; ++i) {
      memory.push_back(std::make_unique<owned_ring>(slots));
      views.push_back(memory.back()->view());
      producers.emplace_back(views.back());
    }
    auto made = engine::create(*endpoint, codec, {0, ranks, signals}, {},
                               {std::move(views), 0, words.data(), &fault});
    if (!made) {
      std::fprintf(stderr, "ep_proxy_bench: %s\n", made.error().message().c_str());
      std::exit(2);
    }
    works = std::move(*made);
  }

  [[nodiscard]] command numbered(std::uint64_t i) const {
    return {.src_offset = (i & 1023) * 64,
            .dst_offset = (i & 1023) * 64,
            .bytes = 64,
            .peer = 1 + static_cast<std::uint32_t>(i % (ranks - 1)),
            .signal = static_cast<std::uint32_t>(i & (signals - 1))};
  }
  [[nodiscard]] std::uint64_t counted() const {
    std::uint64_t sum = 0;
    for (const std::uint64_t& word : words) sum += host_memory::signal_acquire(&word);
    return sum;
  }

  std::vector<std::byte> window;
  std::unique_ptr<null_endpoint> endpoint;
  command_codec codec;
  std::vector<std::unique_ptr<owned_ring>> memory;
  std::vector<proxy::ring_producer<host_memory>> producers;
  std::vector<std::uint64_t> words = std::vector<std::uint64_t>(signals);
  proxy::fault_cell fault;
  std::unique_ptr<engine> works;
};

/// One thread pushes and steps in turns: only the steps are timed.
double engine_pass(std::uint64_t n, std::uint32_t rings, std::uint64_t& allocated) {
  rig r(rings, 1024, 0);
  std::uint64_t pushed = 0;
  double time = 0;
  const std::uint64_t before = allocations();
  while (pushed < n) {
    for (auto& producer : r.producers) {
      while (producer.push(r.codec.encode(r.numbered(pushed)))) ++pushed;
    }
    const double start = seconds();
    while (r.works->step()) {
    }
    (void)r.works->step();
    time += seconds() - start;
  }
  allocated += allocations() - before;
  if (r.counted() != pushed) {
    std::printf("engine: WRONG, %llu of %llu commands were counted: %s\n",
                static_cast<unsigned long long>(r.counted()),
                static_cast<unsigned long long>(pushed), r.works->statistics().json().c_str());
  }
  return static_cast<double>(pushed) / time;
}

/// K engines, each with a thread, rings and an endpoint of its own; one thread keeps rings full.
double scaling_pass(std::uint64_t n, std::uint32_t comms, std::uint64_t post_ns) {
  std::vector<std::unique_ptr<rig>> rigs;
  for (std::uint32_t k = 0; k < comms; ++k)
    rigs.push_back(std::make_unique<rig>(1, 65536, post_ns));
  const std::uint64_t each = std::min<std::uint64_t>(n, 60000);
  for (auto& r : rigs) {
    for (std::uint64_t i = 0; i < each; ++i) {
      if (!r->producers[0].push(r->codec.encode(r->numbered(i)))) std::printf("scaling: WRONG\n");
    }
  }
  std::vector<std::unique_ptr<proxy::driver>> threads;
  const double start = seconds();
  for (auto& r : rigs) {
    threads.push_back(std::make_unique<proxy::driver>(
        std::vector<proxy::driven>{proxy::drive(*r->works)}, proxy::driver_options{}));
  }
  for (auto& r : rigs) {
    while (r->counted() != each) std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
  return static_cast<double>(each * comms) / (seconds() - start);
}

}  // namespace

void bench_engine(const bench_options& options) {
  std::printf("\n%-58s %8s  %8s\n", "engine, null endpoint, millions of operations per second",
              "median", "best");
  std::uint64_t allocated = 0;
  for (const std::uint32_t rings : {1U, 32U}) {
    const rate r = measure(options.passes,
                           [&] { return engine_pass(options.commands / 4, rings, allocated); });
    std::printf("%2u rings: decode, credits, post, completion, signal %9s %8.1f  %8.1f\n", rings,
                "", r.median / 1e6, r.best / 1e6);
  }
  std::printf("allocations while it ran: %llu\n", static_cast<unsigned long long>(allocated));
}

void bench_scaling(const bench_options& options) {
  const unsigned cores = std::thread::hardware_concurrency();
  std::printf("\n%-58s %8s  %8s\n", "K engines on K threads, each post occupies its CPU for 2 us",
              "kops/s", "x K=1");
  double one = 0;
  for (std::uint32_t comms = 1; comms <= 8 && comms <= std::max(cores, 2U); comms *= 2) {
    const rate r =
        measure(options.passes, [&] { return scaling_pass(options.commands, comms, 2000); });
    if (comms == 1) one = r.median;
    std::printf("K = %u (%u processors here) %41.0f  %8.2f\n", comms, cores, r.median / 1e3,
                r.median / one);
  }
}

}  // namespace eptransport::bench
