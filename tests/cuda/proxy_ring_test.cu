// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Command rings with a GPU for a producer and a CPU thread for a consumer, and the engine
/// between a kernel's put and its wait.
#include <eptransport/proxy/endpoints/memory.hpp>
#include <eptransport/proxy/engine.hpp>

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include "cuda/proxy_rings.cuh"

namespace eptransport {
namespace {

using namespace std::chrono_literals;
using support::must;

constexpr std::uint64_t forever_ns = 20'000'000'000;

struct ring_case {
  std::uint32_t warps;
  std::uint64_t slots;
  std::uint32_t batch;
  std::uint64_t count;
  std::uint64_t first;
};

/// Every command exactly once, in order, after its payload.
void run_case(const ring_case& c) {
  SCOPED_TRACE("warps " + std::to_string(c.warps) + " slots " + std::to_string(c.slots) +
               " batch " + std::to_string(c.batch) + " first " + std::to_string(c.first));
  const support::pinned_rings rings(c.warps, c.slots, c.first);
  const support::pinned_memory payload(c.warps * c.slots * 8);
  const support::pinned_memory late(64);
  auto* words = reinterpret_cast<std::uint64_t*>(payload.data());
  const proxy::command_codec codec = support::ring_codec();
  const std::uint64_t deadline = support::gpu_now() + forever_ns;
  support::produce<<<c.warps, 32>>>(rings.device(), codec, c.first, c.count, c.batch, words,
                                    deadline, reinterpret_cast<std::uint64_t*>(late.data()));
  must(cudaGetLastError());
  std::vector<proxy::ring_consumer> consumers;
  for (const proxy::ring_view& view : rings.views()) consumers.emplace_back(view, c.first);
  std::vector<std::uint64_t> next(c.warps);
  std::uint64_t left = c.count * c.warps;
  std::uint64_t wrong = 0;
  const auto end = std::chrono::steady_clock::now() + 15s;
  while (left != 0 && std::chrono::steady_clock::now() < end) {
    for (std::uint32_t w = 0; w < c.warps; ++w) {
      proxy::command_words entry;
      if (!consumers[w].peek(entry)) {
        consumers[w].publish_tail();
        continue;
      }
      const std::uint64_t i = next[w]++;
      if (!(codec.decode(entry) == support::ring_command(w, i))) ++wrong;
      if (words[w * c.slots + i % c.slots] != i * 3 + w) ++wrong;
      consumers[w].pop();
      --left;
    }
  }
  must(cudaDeviceSynchronize());
  EXPECT_EQ(left, 0U);
  EXPECT_EQ(wrong, 0U);
  EXPECT_EQ(host_memory::signal_acquire(reinterpret_cast<std::uint64_t*>(late.data())), 0U);
}

TEST(ProxyRingGpu, CommandsArriveOnceInOrderAfterTheirPayload) {
  for (const std::uint32_t batch : {1U, 2U, 31U, 32U}) {
    for (const std::uint64_t first :
         {std::uint64_t{0}, (std::uint64_t{1} << 32) - 8, ~std::uint64_t{0} - 40}) {
      run_case({1, 32, batch, 5000, first});
      run_case({8, 128, batch, 20000, first});
    }
  }
}

TEST(ProxyRingGpu, AKernelThatFindsNoRoomEndsAtItsDeadline) {
  const support::pinned_rings rings(1, 16);
  const support::pinned_memory late(64);
  auto* flag = reinterpret_cast<std::uint64_t*>(late.data());
  support::produce<<<1, 32>>>(rings.device(), support::ring_codec(), 0, 100, 4, nullptr,
                              support::gpu_now() + 50'000'000, flag);
  must(cudaDeviceSynchronize());
  EXPECT_EQ(host_memory::signal_acquire(flag), 1U);
}

/// Rank 0's kernel puts `count` words into rank 1's window, waits for rank 1's signal each time,
/// then flushes. Whoever reads the window after the wait must find the word.
__global__ void put_and_wait(proxy::ring_view ring, proxy::command_codec codec,
                             std::uint64_t* source, const std::uint64_t* landing,
                             const std::uint64_t* signal, std::uint64_t count,
                             std::uint64_t deadline_ns, std::uint64_t* wrong) {
  proxy::ring_producer<device_memory> producer(ring);
  std::uint64_t bad = 0;
  for (std::uint64_t i = 0; i < count; ++i) {
    source[i % 64] = i * 5 + 1;
    proxy::command c;
    c.src_offset = i % 64 * 8;
    c.dst_offset = 1024 + i % 64 * 8;
    c.bytes = 8;
    c.peer = 1;
    c.signal = 3;
    while (!producer.push(codec.encode(c)) && device_memory::timer_ns() < deadline_ns) {
    }
    while (device_memory::signal_acquire(signal) < i + 1 &&
           device_memory::timer_ns() < deadline_ns) {
    }
    if (device_memory::signal_acquire(landing + i % 64) != i * 5 + 1) ++bad;
  }
  while (device_memory::signal_acquire(ring.complete) != count &&
         device_memory::timer_ns() < deadline_ns) {
  }
  if (device_memory::timer_ns() >= deadline_ns) bad += 1'000'000;
  device_memory::signal_store(wrong, bad);
}

TEST(ProxyRingGpu, AKernelsPutsGoThroughTheEngineAndComeBackAsSignals) {
  for (const std::uint64_t eager : {0ULL, 64ULL}) {
    constexpr std::uint64_t count = 2000;
    const support::pinned_rings rings(2, 64);
    const support::pinned_memory memory(4 * 4096);
    std::byte* base = memory.data();
    proxy::memory_network network({{base, 4096}, {base + 4096, 4096}}, 1, {});
    auto* words = reinterpret_cast<std::uint64_t*>(base + 8192);
    auto* wrong = reinterpret_cast<std::uint64_t*>(base + 12288);
    *wrong = ~std::uint64_t{0};
    const auto codec = proxy::command_codec::create({2, 8, 4096, 0});
    ASSERT_TRUE(codec);
    proxy::fault_cell fault;
    using engine = proxy::engine<proxy::memory_endpoint>;
    proxy::engine_options options;
    options.eager = eager;
    std::vector<std::unique_ptr<engine>> engines;
    for (std::uint32_t r = 0; r < 2; ++r) {
      auto made = engine::create(network.endpoint(r, 0), *codec, {r, 2, 8}, options,
                                 {{rings.views()[r]}, 0, words + r * 128, &fault});
      ASSERT_TRUE(made) << made.error().message();
      engines.push_back(std::move(*made));
    }
    put_and_wait<<<1, 1>>>(rings.views()[0], *codec, reinterpret_cast<std::uint64_t*>(base),
                           reinterpret_cast<std::uint64_t*>(base + 4096 + 1024), words + 128 + 3,
                           count, support::gpu_now() + forever_ns, wrong);
    must(cudaGetLastError());
    const auto end = std::chrono::steady_clock::now() + 25s;
    while (cudaStreamQuery(nullptr) == cudaErrorNotReady &&
           std::chrono::steady_clock::now() < end) {
      for (int i = 0; i < 200; ++i) {
        (void)engines[0]->step();
        (void)engines[1]->step();
      }
    }
    must(cudaDeviceSynchronize());
    EXPECT_EQ(host_memory::signal_acquire(wrong), 0U) << "eager " << eager;
    EXPECT_FALSE(fault.failed()) << fault.why().error().message();
  }
}

}  // namespace
}  // namespace eptransport
