// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The latency chain of one put on a GPU: build and store the entry, fence and doorbell,
///        the emulated NIC, arrival at the waiting rank.
///
///     gdaki_chain [bytes]      default 16
///
/// Rank 0 and rank 1 are warps of two blocks of one grid. Rank 0 puts and waits for the answer;
/// rank 1 answers each put with one of its own. Steps of the poster are cycles of its own clock,
/// the round trip is two whole chains. Every number is the median of 200 rounds after 20.
#include <eptransport/backends/gdaki/gdaki.cuh>

#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <vector>

// Kernels need names with external linkage, so nothing here is in an unnamed namespace.
namespace eptransport::gdaki::bench {

inline constexpr std::uint32_t rounds = 220;
inline constexpr std::uint32_t skipped = 20;

/// Cycles of one round, as rank 0 saw it.
struct sample {
  std::uint64_t post = 0;  ///< the whole put: reserve, build, store, publish, fence, doorbell
  std::uint64_t trip = 0;  ///< until the answer was seen
};

/// Both ranks' kernel: `worker_words` are not used, there is one worker.
template <class View>
struct ping {
  View view;
  std::uint64_t bytes;
  sample* samples;
  mutable worker_words meeting{};

  [[nodiscard]] EPT_HOST_DEVICE worker_words* words() const { return &meeting; }

  template <class Worker>
  EPT_DEVICE void operator()(const Worker& worker) const {
    if (worker.worker() != 0) return;
    const std::int32_t peer = 1 - view.rank();
    const std::uint64_t deadline = view.now_ns() + 5'000'000'000;
    const put_request request{.peer = peer, .src = view.local(), .bytes = bytes, .signal = 0};
    for (std::uint32_t i = 0; i < rounds; ++i) {
      if (view.rank() == 1 && view.wait_signal(worker, 0, i + 1, deadline) != op_status::ok) return;
      const long long start = clock64();
      if (view.put(worker, 0, request, deadline) != op_status::ok) return;
      view.submit(worker, 0);
      const long long posted = clock64();
      if (view.rank() == 1) continue;
      if (view.wait_signal(worker, 0, i + 1, deadline) != op_status::ok) return;
      const long long back = clock64();
      if (worker.thread() == 0) {
        samples[i] = {static_cast<std::uint64_t>(posted - start),
                      static_cast<std::uint64_t>(back - start)};
      }
    }
  }
};

template <class Member>
double median(const std::vector<sample>& all, Member member) {
  std::vector<std::uint64_t> values;
  for (std::size_t i = skipped; i < all.size(); ++i) values.push_back(all[i].*member);
  std::sort(values.begin(), values.end());
  return static_cast<double>(values[values.size() / 2]);
}

template <class Wire>
bool measure(gpu_nic nic, std::uint64_t bytes, double cycles_per_us) {
  cuda_gdaki_options options;
  options.base.ranks = 2;
  options.base.window_bytes = std::max<std::uint64_t>(bytes, 4096);
  options.base.signals = 1;
  options.base.schedule.chunk_bytes = 1U << 20U;
  options.nic = nic;
  options.blocks = 1;
  options.warps = 8;
  auto made = cuda_gdaki_world<Wire>::create(options);
  if (!made) {
    std::printf("%s: %s\n", Wire::name, made.error().message().c_str());
    return false;
  }
  using rank_type = typename cuda_gdaki_world<Wire>::rank_type;
  std::vector<sample> samples(rounds);
  bool good = true;
  (*made)->run([&](rank_type& own) {
    auto memory = own.executor().allocate(sizeof(sample) * rounds);
    if (!memory) return;
    const ping<typename rank_type::view_type> call{own.view(), bytes,
                                                   reinterpret_cast<sample*>(*memory)};
    const bool ran = own.executor().launch(call, 0, nullptr).has_value() &&
                     own.executor().synchronize().has_value() && own.fault().has_value();
    if (own.view().rank() == 0) {
      good = ran && own.executor()
                        .read(reinterpret_cast<std::byte*>(samples.data()), *memory,
                              sizeof(sample) * rounds)
                        .has_value();
    }
    own.executor().release(*memory);
  });
  good = good && samples.back().trip != 0;
  const double post = median(samples, &sample::post) / cycles_per_us;
  const double trip = median(samples, &sample::trip) / cycles_per_us;
  std::printf("%-10s %-6s %6llu B   post %6.2f us   one way %6.2f us   round trip %6.2f us   %s\n",
              Wire::name, nic == gpu_nic::block ? "block" : "thread",
              static_cast<unsigned long long>(bytes), post, trip / 2, trip, good ? "ok" : "FAILED");
  return good;
}

}  // namespace eptransport::gdaki::bench

int main(int argc, char** argv) {
  using namespace eptransport;
  const std::uint64_t bytes = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 16;
  int khz = 0;
  if (cudaDeviceGetAttribute(&khz, cudaDevAttrClockRate, 0) != cudaSuccess || khz == 0) {
    std::fprintf(stderr, "gdaki_chain: no GPU\n");
    return 2;
  }
  const double cycles_per_us = khz / 1e3;  // the highest clock: the GPU runs at it under load
  bool good = true;
  for (const gpu_nic nic : {gpu_nic::block, gpu_nic::thread}) {
    good = gdaki::bench::measure<efa_wire>(nic, bytes, cycles_per_us) && good;
    good = gdaki::bench::measure<mlx5_wire>(nic, bytes, cycles_per_us) && good;
  }
  return good ? 0 : 1;
}
