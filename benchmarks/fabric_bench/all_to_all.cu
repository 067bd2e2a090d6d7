// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief ep_all_to_all_bench: the proxy's tax on one all-to-all of small messages.
///
/// R virtual ranks of one GPU, each with engines and endpoints of its own in this process. In every
/// round a kernel starts, each rank puts one message to each other rank, and waits for the R - 1
/// it is due. A round's time runs from the first rank's start until the last rank sees its last
/// signal, on the GPU's clock. Every byte that arrives is compared.
#include <eptransport/backends/libfabric/libfabric.hpp>
#include <eptransport/backends/proxied/cuda_proxied.cuh>
#include <eptransport/backends/proxied/proxied.hpp>
#include <eptransport/core/cuda_worker.cuh>
#include <eptransport/core/memory.cuh>

#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "cuda/device_buffer.cuh"
#include "support/in_process_bootstrap.hpp"

namespace eptransport::all_to_all_bench {

using support::device_buffer;
using support::must;

constexpr std::uint32_t warps = 8;
constexpr std::uint64_t timeout_ns = 20'000'000'000;

struct asked {
  std::string wire = "shm";
  std::uint32_t ranks = 16;
  std::uint32_t comms = 1;
  std::uint64_t bytes = 256;
  std::uint64_t eager = 256;
  int rounds = 2000;
};

/// What a round tells: its ranks' first and last moments, and what was wrong.
struct rank_times {
  std::uint64_t begun;
  std::uint64_t seen;
  std::uint64_t problems;
};

[[nodiscard]] EPT_HOST_DEVICE std::uint8_t pattern(std::uint64_t round, std::uint64_t from,
                                                   std::uint64_t to, std::uint64_t at) {
  return static_cast<std::uint8_t>((round * 0x9E3779B1U + from * 131 + to * 31 + at * 7) >> 3);
}

/// Window: | landing [2 parities][ranks] | sources [ranks] |, slots of `bytes` rounded up to 16.
EPT_KERNEL void one_round(const cuda_proxied_view* views, std::uint64_t round, std::uint64_t bytes,
                          std::uint64_t deadline_after, rank_times* times) {
  const cuda_proxied_view view = views[blockIdx.x];
  const cuda_warp warp(0, 1, nullptr);
  const std::uint32_t w = threadIdx.x / cuda_warp::size;
  const auto ranks = static_cast<std::uint32_t>(view.size());
  const std::uint32_t me = blockIdx.x;
  const std::uint64_t slot = (bytes + 15) / 16 * 16;
  const std::uint64_t landing = round % 2 * ranks * slot;
  rank_times& mine = times[me];
  if (threadIdx.x == 0) mine.begun = view.now_ns();
  const std::uint64_t deadline = view.now_ns() + deadline_after;
  for (std::uint32_t i = 1 + w; i < ranks; i += warps) {
    const std::uint32_t peer = (me + i) % ranks;
    std::byte* source = view.local() + (2 * ranks + peer) * slot;
    for (std::uint64_t b = warp.thread(); b < bytes; b += cuda_warp::size) {
      source[b] = std::byte{pattern(round, me, peer, b)};
    }
    const auto done = view.put(warp, peer % view.channels(),
                               {.peer = static_cast<std::int32_t>(peer),
                                .dst_offset = landing + me * slot,
                                .src = source,
                                .bytes = bytes,
                                .signal = 0},
                               deadline);
    if (done != op_status::ok && warp.thread() == 0) device_memory::fetch_add(&mine.problems, 1);
  }
  if (w != 0) return;
  if (view.wait_signal(warp, 0, (round + 1) * (ranks - 1), deadline) != op_status::ok) {
    if (warp.thread() == 0) device_memory::fetch_add(&mine.problems, 1);
    return;
  }
  if (warp.thread() == 0) mine.seen = view.now_ns();
  for (std::uint32_t i = 1; i < ranks; ++i) {
    const std::uint32_t from = (me + i) % ranks;
    const volatile auto* row =
        reinterpret_cast<const std::uint8_t*>(view.local() + landing + from * slot);
    bool wrong = false;
    for (std::uint64_t b = warp.thread(); b < bytes; b += cuda_warp::size) {
      wrong = wrong || row[b] != pattern(round, from, me, b);
    }
    if (warp.any(wrong) && warp.thread() == 0) device_memory::fetch_add(&mine.problems, 1);
  }
}

[[noreturn]] void stop(const std::string& why) {
  std::fprintf(stderr, "ep_all_to_all_bench: %s\n", why.c_str());
  std::_Exit(2);
}

double percentile(std::vector<double> all, double part) {
  std::sort(all.begin(), all.end());
  return all[static_cast<std::size_t>(part * static_cast<double>(all.size() - 1))];
}

/// Runs the rounds over ranks that stand.
template <class Host>
bool measure(const asked& a, const std::vector<Host*>& hosts) {
  auto made = cuda_proxied_world<Host>::create(hosts, {.blocks = 1, .warps = warps});
  if (!made) stop(made.error().message());
  std::vector<cuda_proxied_view> views;
  for (std::uint32_t r = 0; r < a.ranks; ++r) {
    views.push_back((*made)->rank(static_cast<std::int32_t>(r)).view());
  }
  void* table = nullptr;
  must(cudaMalloc(&table, views.size() * sizeof views[0]));
  must(cudaMemcpy(table, views.data(), views.size() * sizeof views[0], cudaMemcpyHostToDevice));
  device_buffer<rank_times> times(a.ranks);
  std::vector<double> span;
  std::vector<double> own;
  std::uint64_t problems = 0;
  constexpr int warm_up = 100;
  for (int i = 0; i < a.rounds + warm_up; ++i) {
    times.write(std::vector<rank_times>(a.ranks));
    one_round<<<a.ranks, warps * cuda_warp::size>>>(static_cast<const cuda_proxied_view*>(table),
                                                    static_cast<std::uint64_t>(i), a.bytes,
                                                    timeout_ns, times.data());
    must(cudaGetLastError());
    must(cudaDeviceSynchronize());
    const std::vector<rank_times> got = times.read();
    std::uint64_t first = ~std::uint64_t{0};
    std::uint64_t last = 0;
    for (const rank_times& t : got) {
      problems += t.problems;
      first = std::min(first, t.begun);
      last = std::max(last, t.seen);
      if (i >= warm_up) own.push_back(static_cast<double>(t.seen - t.begun) / 1e3);
    }
    if (problems != 0) break;
    if (i >= warm_up) span.push_back(static_cast<double>(last - first) / 1e3);
  }
  must(cudaFree(table));
  for (Host* host : hosts) {
    if (const auto sound = host->fault(); !sound) stop(sound.error().message());
  }
  if (problems != 0) {
    std::printf("%-7s %2u ranks, K = %u: FAILED, %llu puts, waits or rows were wrong\n",
                a.wire.c_str(), a.ranks, a.comms, static_cast<unsigned long long>(problems));
    return false;
  }
  std::printf(
      "%-7s %2u ranks, K = %u, %4llu bytes, eager %4llu: %6.1f us p50, %6.1f p90, %6.1f p99; "
      "one rank %6.1f p50; %d rounds, every byte compared\n",
      a.wire.c_str(), a.ranks, a.comms, static_cast<unsigned long long>(a.bytes),
      static_cast<unsigned long long>(a.eager), percentile(span, 0.5), percentile(span, 0.9),
      percentile(span, 0.99), percentile(own, 0.5), a.rounds);
  std::fflush(stdout);
  return true;
}

[[nodiscard]] proxied_options options_of(const asked& a) {
  proxied_options o;
  o.ranks = static_cast<int>(a.ranks);
  o.window_bytes = (std::uint64_t{3} * a.ranks * ((a.bytes + 15) / 16 * 16) + 4095) / 4096 * 4096;
  o.signals = 1;
  o.channels = a.comms;
  o.comms = a.comms;
  o.engine.eager = a.eager;
  o.driver.idle = {.spins = 100'000, .pauses = 0, .yields = 0};  // a thread per engine, as in use
  return o;
}

bool over_memory(const asked& a) {
  auto world = proxied_world<memory_wire>::create(options_of(a));
  if (!world) stop(world.error().message());
  std::vector<proxied<memory_wire>*> hosts;
  for (int r = 0; r < static_cast<int>(a.ranks); ++r) hosts.push_back(&(*world)->rank(r));
  return measure(a, hosts);
}

/// Each rank has its own endpoints; they meet in threads of this process, for building and closing.
bool over_libfabric(const asked& a) {
  support::meeting_room room(static_cast<std::int32_t>(a.ranks));
  std::vector<std::unique_ptr<support::in_process_bootstrap>> seats;
  std::vector<std::unique_ptr<libfabric>> made(a.ranks);
  const auto together = [&a](const auto& work) {
    std::vector<std::thread> threads;
    for (std::uint32_t r = 0; r < a.ranks; ++r) threads.emplace_back([&work, r] { work(r); });
    for (std::thread& t : threads) t.join();
  };
  for (std::uint32_t r = 0; r < a.ranks; ++r) {
    seats.push_back(
        std::make_unique<support::in_process_bootstrap>(room, static_cast<std::int32_t>(r)));
  }
  together([&](std::uint32_t r) {
    auto one = libfabric::create(*seats[r], options_of(a), {.provider = a.wire});
    if (!one) stop(one.error().message());
    made[r] = std::move(*one);
  });
  std::vector<libfabric*> hosts;
  for (const auto& one : made) hosts.push_back(one.get());
  const bool good = measure(a, hosts);
  together([&](std::uint32_t r) { made[r].reset(); });
  return good;
}

int run(int count, char** words) {
  asked a;
  for (int i = 1; i < count; ++i) {
    const std::string name = words[i];
    const bool last = i + 1 == count;
    if (name == "--help" || last) {
      std::printf(
          "ep_all_to_all_bench [--wire shm|tcp|memory] [--ranks R] [--comms K] [--bytes B]\n"
          "                    [--eager B] [--rounds N]\n"
          "The time of one all-to-all of R - 1 messages per rank, R virtual ranks of one GPU "
          "whose\n"
          "messages go through proxy threads: R x K threads, so have as many cores.\n");
      return name == "--help" ? 0 : 2;
    }
    const char* value = words[++i];
    const std::uint64_t number = std::strtoull(value, nullptr, 10);
    if (name == "--wire") {
      a.wire = value;
    } else if (name == "--ranks" && number >= 2 && number <= 64) {
      a.ranks = static_cast<std::uint32_t>(number);
    } else if (name == "--comms" && number >= 1 && number <= 64) {
      a.comms = static_cast<std::uint32_t>(number);
    } else if (name == "--bytes" && number >= 1 && number <= 65536) {
      a.bytes = number;
    } else if (name == "--eager" && number <= 65536) {
      a.eager = number;
    } else if (name == "--rounds" && number >= 1 && number <= 10'000'000) {
      a.rounds = static_cast<int>(number);
    } else {
      stop("'" + name + " " + value + "' is not understood or out of range; see --help");
    }
  }
  must(cudaSetDeviceFlags(cudaDeviceScheduleBlockingSync));  // the cores belong to the proxies
  return (a.wire == "memory" ? over_memory(a) : over_libfabric(a)) ? 0 : 1;
}

}  // namespace eptransport::all_to_all_bench

int main(int count, char** words) {
  return eptransport::all_to_all_bench::run(count, words);
}
