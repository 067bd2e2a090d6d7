// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief ep_proxy_gpu_bench: rings with GPU producers, and the way from a kernel through the
/// engine
/// back to the kernel, beside a bare flag that goes the same way.
#include <eptransport/core/memory.cuh>
#include <eptransport/core/memory.hpp>
#include <eptransport/proxy/driver.hpp>
#include <eptransport/proxy/endpoints/memory.hpp>
#include <eptransport/proxy/engine.hpp>

#include <cuda_runtime.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "cuda/proxy_rings.cuh"

namespace eptransport::bench {
namespace {

using support::must;

bool good = true;

/// No kernel runs longer, whatever becomes of the CPU's side.
constexpr std::uint64_t limit_ns = 15'000'000'000;

double seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void check(bool ok, const char* what) {
  if (ok) return;
  good = false;
  std::printf("WRONG: %s\n", what);
}

/// One consumer thread decodes what `warps` warps push; commands per second from the first one on.
double throughput(std::uint32_t warps, std::uint32_t batch, std::uint64_t count) {
  const support::pinned_rings rings(warps, 4096);
  const support::pinned_memory late(64);
  auto* flag = reinterpret_cast<std::uint64_t*>(late.data());
  const proxy::command_codec codec = support::ring_codec();
  std::uint64_t expected = 0;
  for (std::uint32_t w = 0; w < warps; ++w) {
    for (std::uint64_t i = 0; i < count; ++i) {
      const proxy::command c = support::ring_command(w, i);
      expected += (c.src_offset ^ c.dst_offset) + c.bytes + c.peer + c.signal;
    }
  }
  support::produce<<<warps, 32>>>(rings.device(), codec, 0, count, batch, nullptr,
                                  support::gpu_now() + limit_ns, flag);
  must(cudaGetLastError());
  std::vector<proxy::ring_consumer> consumers;
  for (const proxy::ring_view& view : rings.views()) consumers.emplace_back(view);
  std::uint64_t sum = 0;
  std::uint64_t left = count * warps;
  double start = 0;
  const double give_up = seconds() + 12;
  while (left != 0) {
    const std::uint64_t before = left;
    for (proxy::ring_consumer& consumer : consumers) {
      proxy::command_words words;
      for (int burst = 0; burst < 64 && consumer.peek(words); ++burst, --left) {
        const proxy::command c = codec.decode(words);
        sum += (c.src_offset ^ c.dst_offset) + c.bytes + c.peer + c.signal;
        consumer.pop();
      }
    }
    if (left == before) {
      for (proxy::ring_consumer& consumer : consumers) consumer.publish_tail();
      if (seconds() > give_up) break;
    } else if (start <= 0) {
      start = seconds();
    }
  }
  const double time = seconds() - start;
  for (proxy::ring_consumer& consumer : consumers) consumer.publish_tail();
  must(cudaDeviceSynchronize());
  check(left == 0 && sum == expected, "the commands were not those that were pushed");
  return static_cast<double>(count * warps) / time;
}

/// Spins until the word has reached `n`; false at the deadline, which is looked at now and then.
__device__ bool reached(const std::uint64_t* word, std::uint64_t n, std::uint64_t deadline_ns) {
  for (std::uint32_t spins = 1; device_memory::signal_acquire(word) < n; ++spins) {
    if (spins % 4096 == 0 && device_memory::timer_ns() > deadline_ns) return false;
  }
  return true;
}

/// One thread: pushes a command, waits for the signal; times each round in cycles.
__global__ void round_trips(proxy::ring_view ring, proxy::command_codec codec, proxy::command what,
                            const std::uint64_t* signal, std::uint32_t rounds,
                            std::uint64_t* cycles, std::uint64_t* span_ns,
                            std::uint64_t deadline_ns) {
  proxy::ring_producer<device_memory> producer(ring);
  const std::uint64_t begin_ns = device_memory::timer_ns();
  const long long begin = clock64();
  for (std::uint32_t i = 0; i < rounds; ++i) {
    const long long start = clock64();
    // The ring has far more slots than the one command in flight.
    if (!producer.push(codec.encode(what)) || !reached(signal, i + 1, deadline_ns)) break;
    cycles[i] = static_cast<std::uint64_t>(clock64() - start);
  }
  span_ns[0] = device_memory::timer_ns() - begin_ns;
  span_ns[1] = static_cast<std::uint64_t>(clock64() - begin);
}

/// The same with a flag that a CPU thread sends back.
__global__ void flag_trips(std::uint64_t* out, const std::uint64_t* back, std::uint32_t rounds,
                           std::uint64_t* cycles, std::uint64_t* span_ns,
                           std::uint64_t deadline_ns) {
  const std::uint64_t begin_ns = device_memory::timer_ns();
  const long long begin = clock64();
  for (std::uint32_t i = 0; i < rounds; ++i) {
    const long long start = clock64();
    device_memory::signal_store(out, i + 1);
    if (!reached(back, i + 1, deadline_ns)) break;
    cycles[i] = static_cast<std::uint64_t>(clock64() - start);
  }
  span_ns[0] = device_memory::timer_ns() - begin_ns;
  span_ns[1] = static_cast<std::uint64_t>(clock64() - begin);
}

struct spread {
  double p50 = 0;
  double p99 = 0;
};

/// Cycles become time by the whole run, which was timed in both.
spread spread_of(const support::device_buffer<std::uint64_t>& cycles,
                 const support::device_buffer<std::uint64_t>& span) {
  std::vector<std::uint64_t> all = cycles.read();
  const std::vector<std::uint64_t> whole = span.read();
  const double ns = static_cast<double>(whole[0]) / static_cast<double>(whole[1]);
  all.erase(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(all.size() / 10));  // warm-up
  std::sort(all.begin(), all.end());
  return {static_cast<double>(all[all.size() / 2]) * ns / 1e3,
          static_cast<double>(all[all.size() * 99 / 100]) * ns / 1e3};
}

constexpr std::uint32_t rounds = 20000;

spread bare_flag() {
  const support::pinned_memory words(512);
  auto* out = reinterpret_cast<std::uint64_t*>(words.data());
  auto* back = reinterpret_cast<std::uint64_t*>(words.data() + 256);
  support::device_buffer<std::uint64_t> cycles(rounds);
  support::device_buffer<std::uint64_t> span(2);
  std::atomic<bool> stop = false;
  std::thread echo([&] {
    for (std::uint64_t i = 1; i <= rounds; ++i) {
      while (host_memory::signal_acquire(out) < i) {
        if (stop.load(std::memory_order_relaxed)) return;
        proxy::pause_cpu();
      }
      host_memory::signal_store(back, i);
    }
  });
  flag_trips<<<1, 1>>>(out, back, rounds, cycles.data(), span.data(),
                       support::gpu_now() + limit_ns);
  must(cudaDeviceSynchronize());
  stop.store(true, std::memory_order_relaxed);
  echo.join();
  check(host_memory::signal_acquire(back) == rounds, "a flag did not come back");
  return spread_of(cycles, span);
}

/// @param to  rank that the puts of rank 0's kernel go to: 1 crosses the in-process wire
spread through_engine(std::uint32_t to, std::uint64_t eager, std::uint64_t bytes) {
  using engine = proxy::engine<proxy::memory_endpoint>;
  const support::pinned_rings rings(2, 1024);
  const support::pinned_memory memory(3 * 4096);
  std::byte* base = memory.data();
  proxy::memory_network network({{base, 4096}, {base + 4096, 4096}}, 1, {});
  auto* words = reinterpret_cast<std::uint64_t*>(base + 8192);
  const proxy::command_codec codec = *proxy::command_codec::create({2, 8, 4096, 0});
  proxy::fault_cell fault;
  proxy::engine_options options;
  options.eager = eager;
  std::vector<std::unique_ptr<engine>> engines;
  std::vector<proxy::driven> all;
  for (std::uint32_t r = 0; r < 2; ++r) {
    auto made = engine::create(network.endpoint(r, 0), codec, {r, 2, 8}, options,
                               {{rings.views()[r]}, 0, words + r * 128, &fault});
    if (!made) {
      check(false, made.error().message().c_str());
      return {};
    }
    engines.push_back(std::move(*made));
    all.push_back(proxy::drive(*engines.back()));
  }
  support::device_buffer<std::uint64_t> cycles(rounds);
  support::device_buffer<std::uint64_t> span(2);
  {
    const proxy::driver thread(all, {.idle = {.spins = ~0U, .pauses = 0, .yields = 0}});
    proxy::command c;
    c.bytes = bytes;
    c.dst_offset = 512;
    c.peer = to;
    c.signal = 3;
    round_trips<<<1, 1>>>(rings.views()[0], codec, c, words + to * 128 + 3, rounds, cycles.data(),
                          span.data(), support::gpu_now() + limit_ns);
    must(cudaDeviceSynchronize());
  }
  check(host_memory::signal_acquire(words + to * 128 + 3) == rounds, "a signal did not come");
  check(!fault.failed(), "an engine failed");
  return spread_of(cycles, span);
}

void show(const char* name, const spread& s) {
  std::printf("%-62s %7.2f %7.2f\n", name, s.p50, s.p99);
}

}  // namespace

int run() {
  cudaDeviceProp device{};
  must(cudaGetDeviceProperties(&device, 0));
  std::printf("device: %s, %u processors\n\n", device.name, std::thread::hardware_concurrency());
  std::printf("%-62s %7s\n", "GPU producers, one consumer thread: ring and decode", "M/s");
  for (const std::uint32_t batch : {32U, 1U}) {
    for (const std::uint32_t warps : {1U, 8U, 32U}) {
      std::vector<double> passes;
      for (int i = 0; i < 3; ++i) {
        passes.push_back(throughput(warps, batch, (batch == 1 ? 400'000U : 8'000'000U) / warps));
      }
      std::sort(passes.begin(), passes.end());
      std::printf("%2u rings, one warp each, %-39s %7.1f\n", warps,
                  batch == 1 ? "single commands of one lane" : "coalesced publishes of 32",
                  passes[1] / 1e6);
    }
  }
  std::printf("\n%-62s %7s %7s\n", "single commands of one thread, and back; us", "p50", "p99");
  show("bare flag: kernel, CPU thread, kernel", bare_flag());
  show("kernel, engine, signal, kernel (own rank)", through_engine(0, 0, 0));
  show("kernel, engine, in-process write, engine, signal, kernel", through_engine(1, 0, 8));
  show("the same as an eager message", through_engine(1, 64, 8));
  show("bare flag again", bare_flag());
  std::printf("\n%s\n", good ? "all checks passed" : "FAILED");
  return good ? 0 : 1;
}

}  // namespace eptransport::bench

int main() {
  return eptransport::bench::run();
}
