// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Litmus tests of the memory rules: a message, a signal, and a reader on another GPU.
///
/// Each warp of one rank exchanges messages with the same warp of the other, round after round. The
/// complete protocols must never show a stale byte. The ones with a step left out prove nothing by
/// passing: what they showed is printed and kept in docs/performance.md.

#include <eptransport/backends/peer_memory/peer_memory.cuh>

#include <cuda_runtime.h>

#include <gtest/gtest.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "cuda/device_buffer.cuh"
#include "device/devices.hpp"

// Named: a kernel cannot be hidden and have a type of an unnamed namespace.
namespace eptransport::litmus_test {

using support::device_buffer;
using support::must;
using support::rank_devices;

/// Who writes and reads, and what is left out.
enum class protocol {
  plain,          ///< stores, sync, release; acquire, sync, loads: what `put` does
  bulk,           ///< bulk store, full wait, release; acquire, proxy fence, bulk load
  plain_to_bulk,  ///< stores, read by a bulk load
  bulk_to_plain,  ///< bulk store, read by loads
  // from here on one step is missing
  bulk_unpublished,      ///< no proxy fence between filling shared memory and the bulk store
  bulk_wait_read,        ///< waits for the source only, not for the bytes to land
  bulk_no_proxy_fence,   ///< no proxy fence between acquire and bulk load
  plain_relaxed_signal,  ///< the signal is not a release
  signal_first,  ///< the control: stores only once the reader has looked; all must be found stale
};

constexpr const char* names[] = {"plain",
                                 "bulk",
                                 "plain_to_bulk",
                                 "bulk_to_plain",
                                 "bulk_unpublished",
                                 "bulk_wait_read",
                                 "bulk_no_proxy_fence",
                                 "plain_relaxed_signal",
                                 "signal_first"};

constexpr std::uint32_t message = 1024;
constexpr std::uint32_t warps = 4;
constexpr std::uint32_t blocks = 48;
constexpr std::uint32_t units = blocks * warps;

[[nodiscard]] EPT_DEVICE std::uint32_t pattern(std::uint32_t unit, std::uint64_t round,
                                               std::uint32_t at) {
  return (unit * 0x9E3779B1u) ^ (static_cast<std::uint32_t>(round) * 0x85EBCA77u) ^
         (at * 0xC2B2AE3Du);
}

/// Relaxed, unlike every operation of the library.
EPT_DEVICE void add_relaxed(std::uint64_t* word) {
  asm volatile("red.relaxed.sys.global.add.u64 [%0], 1;" ::"l"(__cvta_generic_to_global(word))
               : "memory");
}

/// Window: [2 parities][units] messages, then two signal words per unit: for messages, and for the
/// control's "has looked". A message of one parity may be overwritten once the peer's next message
/// has come: it reads before it sends.
template <protocol kHow>
struct litmus_call {
  peer_memory_view view;
  std::uint64_t rounds;
  std::uint64_t* stale;  ///< [2] rounds with a wrong word; deadlines passed

  [[nodiscard]] EPT_HOST_DEVICE static worker_words* words() { return nullptr; }

  static constexpr bool stores_bulk = kHow == protocol::bulk || kHow == protocol::bulk_to_plain ||
                                      kHow == protocol::bulk_unpublished ||
                                      kHow == protocol::bulk_wait_read ||
                                      kHow == protocol::bulk_no_proxy_fence;
  static constexpr bool loads_bulk = kHow == protocol::bulk || kHow == protocol::plain_to_bulk ||
                                     kHow == protocol::bulk_unpublished ||
                                     kHow == protocol::bulk_wait_read ||
                                     kHow == protocol::bulk_no_proxy_fence;

  template <class W>
  EPT_DEVICE void operator()(const W& w) const {
    __shared__ alignas(128) std::byte out[warps][message];
    __shared__ alignas(128) std::byte in[warps][message];
    __shared__ alignas(8) std::uint64_t barriers[warps];
    const std::uint32_t unit = w.worker();
    const std::uint32_t lane = unit % warps;
    const std::uint64_t deadline = view.now_ns() + 20'000'000'000;
    if (w.thread() == 0) device_memory::bulk_barrier_init(barriers + lane);
    w.sync();
    for (std::uint64_t round = 0; round < rounds; ++round) {
      if constexpr (kHow != protocol::signal_first) send(w, unit, round, out[lane]);
      signal(w, unit);
      if (!arrived(w, unit, round + 1, deadline)) {
        if (w.thread() == 0) device_memory::fetch_add(stale + 1, 1);
        return;
      }
      const bool wrong = !receive(w, unit, round, in[lane], barriers + lane);
      if (w.any(wrong) && w.thread() == 0) device_memory::fetch_add(stale, 1);
      w.sync();
      if constexpr (kHow == protocol::signal_first) {
        signal(w, units + unit);
        if (!arrived(w, units + unit, round + 1, deadline)) return;
        send(w, unit, round, out[lane]);
      }
    }
  }

 private:
  [[nodiscard]] EPT_DEVICE static std::uint64_t place(std::uint32_t unit, std::uint64_t round) {
    return (round % 2 * units + unit) * message;
  }
  /// 16 to 1024 bytes.
  [[nodiscard]] EPT_DEVICE static std::uint32_t bytes_of(std::uint64_t round) {
    return (static_cast<std::uint32_t>(round) * 7 % (message / 16) + 1) * 16;
  }

  template <class W>
  EPT_DEVICE void send(const W& w, std::uint32_t unit, std::uint64_t round, std::byte* out) const {
    const std::int32_t peer = 1 - view.rank();
    const std::uint32_t bytes = bytes_of(round);
    std::byte* to = view.peer_pointer(peer, place(unit, round), bytes);
    for (std::uint32_t i = w.thread(); i < bytes / 4; i += w.threads()) {
      const std::uint32_t word = pattern(unit, round, i);
      if constexpr (stores_bulk) {
        *(reinterpret_cast<volatile std::uint32_t*>(out) + i) = word;
      } else {
        device_memory::store(reinterpret_cast<std::uint32_t*>(to) + i, word);
      }
    }
    if constexpr (stores_bulk) {
      if constexpr (kHow != protocol::bulk_unpublished) device_memory::publish_shared();
      w.sync();
      if (w.thread() == 0) {
        device_memory::bulk_store(to, out, bytes);
        device_memory::bulk_commit();
        if constexpr (kHow == protocol::bulk_wait_read) {
          device_memory::bulk_wait_read();
        } else {
          device_memory::bulk_wait();
        }
      }
    }
  }

  [[nodiscard]] EPT_DEVICE static std::uint64_t word_at(std::uint32_t unit) {
    return 2ull * units * message + unit * sizeof(std::uint64_t);
  }
  template <class W>
  EPT_DEVICE void signal(const W& w, std::uint32_t unit) const {
    auto* word = reinterpret_cast<std::uint64_t*>(
        view.peer_pointer(1 - view.rank(), word_at(unit), sizeof(std::uint64_t)));
    w.sync();
    if (w.thread() != 0) return;
    if constexpr (kHow == protocol::plain_relaxed_signal) {
      add_relaxed(word);
    } else {
      device_memory::signal_add(word, 1);
    }
  }
  template <class W>
  [[nodiscard]] EPT_DEVICE bool arrived(const W& w, std::uint32_t unit, std::uint64_t count,
                                        std::uint64_t deadline) const {
    const auto* word = reinterpret_cast<const std::uint64_t*>(view.local() + word_at(unit));
    bool late = false;
    while (w.thread() == 0 && !late && device_memory::signal_acquire(word) < count) {
      late = view.now_ns() > deadline;
    }
    const bool any = w.any(late);
    w.sync();
    return !any;
  }

  template <class W>
  [[nodiscard]] EPT_DEVICE bool receive(const W& w, std::uint32_t unit, std::uint64_t round,
                                        std::byte* in, std::uint64_t* barrier) const {
    const std::uint32_t bytes = bytes_of(round);
    const std::byte* from = view.local() + place(unit, round);
    if constexpr (loads_bulk) {
      if (w.thread() == 0) {
        if constexpr (kHow != protocol::bulk_no_proxy_fence) device_memory::acquire_bulk();
        device_memory::bulk_load(in, from, bytes, barrier);
      }
      while (!device_memory::bulk_arrived(barrier, static_cast<std::uint32_t>(round & 1))) {
      }
    }
    bool good = true;
    for (std::uint32_t i = w.thread(); i < bytes / 4; i += w.threads()) {
      std::uint32_t word = 0;
      if constexpr (loads_bulk) {
        word = *(reinterpret_cast<volatile std::uint32_t*>(in) + i);
      } else {
        word = device_memory::load(reinterpret_cast<const std::uint32_t*>(from) + i);
      }
      good = good && word == pattern(unit, round, i);
    }
    return good;
  }
};

/// Rounds with a stale word, over all warps of both ranks.
template <protocol kHow>
std::uint64_t run(const rank_devices& devices, std::uint64_t rounds) {
  auto world = peer_memory_world::create(
      devices.of_rank, {.window_bytes = units * (2ull * message + 2 * sizeof(std::uint64_t)),
                        .blocks = blocks,
                        .warps = warps});
  EXPECT_TRUE(world) << world.error().message();
  if (!world) return ~std::uint64_t{0};
  std::vector<device_buffer<std::uint64_t>> stale(2);
  const auto start = std::chrono::steady_clock::now();
  for (std::size_t r = 0; r < 2; ++r) {
    peer_memory& rank = (*world)->rank(static_cast<int>(r));
    must(cudaSetDevice(rank.device()));
    stale[r].resize(2, 0);
    stale[r].write({0, 0});
    must(cudaDeviceSynchronize());
  }
  std::vector<cudaStream_t> streams(2);
  for (std::size_t r = 0; r < 2; ++r) {
    peer_memory& rank = (*world)->rank(static_cast<int>(r));
    must(cudaSetDevice(rank.device()));
    must(cudaStreamCreateWithFlags(&streams[r], cudaStreamNonBlocking));
    const auto launched = rank.executor().launch(
        litmus_call<kHow>{rank.view(), rounds, stale[r].data()}, 0, streams[r]);
    EXPECT_TRUE(launched) << launched.error().message();
  }
  std::uint64_t seen = 0;
  for (std::size_t r = 0; r < 2; ++r) {
    must(cudaStreamSynchronize(streams[r]));
    must(cudaStreamDestroy(streams[r]));
    const std::vector<std::uint64_t> got = stale[r].read();
    seen += got[0];
    EXPECT_EQ(got[1], 0u) << "a message never came";
  }
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  std::printf("%-22s %s %6.1f million messages, %llu stale, %.2f s\n",
              names[static_cast<std::size_t>(kHow)],
              devices.of_rank[0] == devices.of_rank[1] ? "one GPU " : "two GPUs",
              2e-6 * static_cast<double>(rounds) * units, static_cast<unsigned long long>(seen),
              took.count());
  return seen;
}

std::uint64_t rounds_of(std::uint64_t otherwise) {
  const char* asked = std::getenv("EPT_LITMUS_ROUNDS");
  return asked != nullptr ? std::strtoull(asked, nullptr, 10) : otherwise;
}

class Litmus : public testing::TestWithParam<rank_devices> {};
INSTANTIATE_TEST_SUITE_P(OneGpu, Litmus, testing::Values(support::one_gpu));
INSTANTIATE_TEST_SUITE_P(TwoGpus, Litmus, testing::Values(support::two_gpus));

TEST_P(Litmus, ACompleteProtocolNeverShowsAStaleByte) {
  const std::uint64_t rounds = rounds_of(500'000);
  EXPECT_EQ(run<protocol::plain>(GetParam(), rounds), 0u);
  EXPECT_EQ(run<protocol::bulk>(GetParam(), rounds), 0u);
  EXPECT_EQ(run<protocol::plain_to_bulk>(GetParam(), rounds), 0u);
  EXPECT_EQ(run<protocol::bulk_to_plain>(GetParam(), rounds), 0u);
}

TEST_P(Litmus, WhatHappensWithAStepLeftOutIsPrinted) {
  const std::uint64_t rounds = rounds_of(200'000);
  (void)run<protocol::bulk_unpublished>(GetParam(), rounds);
  (void)run<protocol::bulk_wait_read>(GetParam(), rounds);
  (void)run<protocol::bulk_no_proxy_fence>(GetParam(), rounds);
  (void)run<protocol::plain_relaxed_signal>(GetParam(), rounds);
}

TEST_P(Litmus, TheCheckFindsEveryMessageThatComesAfterItsReader) {
  const std::uint64_t rounds = rounds_of(5'000);
  EXPECT_EQ(run<protocol::signal_first>(GetParam(), rounds), 2 * units * rounds);
}

}  // namespace eptransport::litmus_test
