// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Builders and queues on the GPU against the CPU and the emulator.
#pragma once

#include <eptransport/gdaki/device_groups.cuh>
#include <eptransport/gdaki/emulator/runner.hpp>
#include <eptransport/gdaki/send_queue.hpp>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <vector>

#include "gdaki/gpu_memory.cuh"
#include "gdaki/random_entries.hpp"

namespace eptransport::gdaki::bench {

inline constexpr std::uint32_t check_qpn = 0x1a2b3;
inline constexpr std::uint32_t check_slots = 64;

/// Everything that one random number gives.
struct built {
  efa::entry<64> narrow;
  efa::entry<128> wide;
  mlx5::entry mlx5;
  testing::small_words words;
};

EPT_HOST_DEVICE inline void build_all(std::uint64_t number, built& out) {
  out.narrow = testing::random_efa<64>(number, check_slots);
  out.wide = testing::random_efa<128>(number, check_slots);
  out.mlx5 = testing::random_mlx5(number, check_qpn);
  out.words = testing::random_words(number);
}

EPT_KERNEL void build_kernel(built* out, std::uint64_t count) {
  const std::uint64_t i = std::uint64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < count) build_all(i, out[i]);
}

[[nodiscard]] inline bool same(const built& a, const built& b) {
  return a.narrow == b.narrow && a.wide == b.wide && a.mlx5 == b.mlx5 &&
         a.words.efa_doorbell == b.words.efa_doorbell && a.words.record == b.words.record &&
         a.words.doorbell == b.words.doorbell && a.words.efa_narrow == b.words.efa_narrow &&
         a.words.efa_wide == b.words.efa_wide && a.words.mlx5 == b.words.mlx5;
}

/// Part 1.
[[nodiscard]] inline bool check_builders(std::uint64_t count) {
  const gpu_memory out(count * sizeof(built), true);
  auto* got = out.as<built>();
  build_kernel<<<static_cast<unsigned>((count + 127) / 128), 128>>>(got, count);
  require(cudaDeviceSynchronize(), "build_kernel");
  std::uint64_t different = 0;
  built want;
  for (std::uint64_t i = 0; i < count; ++i) {
    build_all(i, want);
    different += same(got[i], want) ? 0 : 1;
  }
  // The comparison itself must see one flipped bit.
  build_all(0, want);
  want.mlx5.part[1].word[2] ^= 1U;
  const bool sees = !same(got[0], want);
  std::printf("builders and parsers, %llu inputs per format: %llu differ from the CPU's%s\n",
              static_cast<unsigned long long>(count), static_cast<unsigned long long>(different),
              sees ? "" : " (and the comparison is blind)");
  return different == 0 && sees;
}

/// What a posting kernel needs besides its queue.
struct put_plan {
  efa::address to{};
  remote_range remote{};
  local_range local{};
  std::uint64_t deadline_ns = 0;  ///< after the kernel's start
};

template <class Format>
[[nodiscard]] EPT_HOST_DEVICE typename Format::entry put_entry(typename Format::place_type place,
                                                               const put_plan& plan,
                                                               std::uint64_t offset,
                                                               std::uint32_t bytes) {
  const remote_range remote{plan.remote.address + offset, plan.remote.key};
  const local_range local{plan.local.address + offset, plan.local.key, bytes};
  if constexpr (Format::ordered) {
    return mlx5::write(place, remote, local);
  } else {
    return efa::write<Format::entry::bytes>(place, plan.to, remote, local);
  }
}

/// Each group posts its share of `count` puts of 16 bytes, each to a place of its own.
template <class Queue, class Group>
EPT_KERNEL void put_kernel(Queue queue, put_plan plan, std::uint64_t count, std::uint32_t per_call,
                           std::uint64_t* failures) {
  const Group g;
  const std::uint32_t group = (blockIdx.x * blockDim.x + threadIdx.x) / g.threads();
  const std::uint32_t groups = gridDim.x * blockDim.x / g.threads();
  const std::uint64_t deadline = device_memory::timer_ns() + plan.deadline_ns;
  const std::uint64_t begin = count * group / groups;
  const std::uint64_t end = count * (group + 1) / groups;
  op_status status = op_status::ok;
  for (std::uint64_t at = begin; at < end && status == op_status::ok; at += per_call) {
    const std::uint64_t n = end - at < per_call ? end - at : per_call;
    status = queue.post(
        g, n,
        [&](std::uint64_t i, typename Queue::place_type place) {
          return put_entry<typename Queue::format>(place, plan, (at + i) * 16, 16);
        },
        deadline);
  }
  if (status == op_status::ok) status = queue.flush(g, deadline);
  if (status != op_status::ok && g.thread() == 0) device_memory::signal_add(failures, 1);
}

/// A queue pair of a GPU, served by an emulated NIC on the host.
template <class Format, class Scope, class Completion>
class served_queue {
 public:
  using queue_type = send_queue<Format, Scope, Completion>;
  static constexpr std::uint32_t slots = 256;
  static constexpr std::uint32_t qpn = 5;
  static constexpr bool is_efa = !Format::ordered;

  explicit served_queue(std::uint64_t puts)
      : bytes_(puts * 16),
        ring_(slots * Format::entry::bytes, true),
        completions_(slots * 64, true),
        words_(4096, true),
        done_(slots * 4, false),
        source_(bytes_, true),
        window_(bytes_, true),
        state_(sizeof(send_queue_state), false) {
    testing::entry_random random(puts);
    for (std::uint64_t i = 0; i < bytes_ / 8; ++i)
      source_.template as<std::uint64_t>()[i] = random();
    if (!is_efa) std::memset(completions_.template as<char>(), 0xff, slots * 64);
    serve();
  }

  [[nodiscard]] queue_type queue() const {
    send_queue_attributes attributes;
    attributes.ring = ring_.template as<std::byte>();
    attributes.slots = slots;
    attributes.max_batch = is_efa ? 32 : 0;
    attributes.qpn = qpn;
    attributes.record = words_.template as<std::uint32_t>(64);
    attributes.doorbell = words_.template as<std::uint32_t>(0);
    Completion completion{};
    if constexpr (std::is_same_v<Completion, counted_completion>) {
      completion.successes = words_.template as<std::uint64_t>(128);
      completion.failures = words_.template as<std::uint64_t>(136);
    } else if constexpr (std::is_same_v<Completion, collapsed_completion>) {
      completion.entry = completions_.template as<std::byte>();
    } else {
      completion.ring = {completions_.template as<std::byte>(), slots, is_efa ? 32U : 64U, nullptr};
      completion.done = done_.template as<std::uint32_t>();
    }
    return {attributes, state_.template as<send_queue_state>(), completion};
  }
  [[nodiscard]] put_plan plan() const {
    return {{1, qpn, 7},
            {reinterpret_cast<std::uintptr_t>(window_.template as<std::byte>()), 2},
            {reinterpret_cast<std::uintptr_t>(source_.template as<std::byte>()), 1, 16},
            10'000'000'000};
  }
  [[nodiscard]] emulator::network& net() { return net_; }
  [[nodiscard]] bool arrived(std::uint64_t puts) const {
    return std::memcmp(source_.template as<char>(), window_.template as<char>(), bytes_) == 0 &&
           net_.findings().empty() && net_.counts().executed == puts &&
           *words_.template as<std::uint64_t>(192) == puts;
  }

 private:
  void serve() {
    for (std::uint32_t n = 0; n < 2; ++n) {
      net_.add_nic();
      emulator::queue_pair_setup setup;
      setup.format = is_efa ? emulator::wire::efa : emulator::wire::mlx5;
      setup.nic = n;
      setup.qpn = qpn;
      setup.qkey = 7;
      if (n == 0) {
        setup.send = {ring_.template as<std::byte>(),
                      slots,
                      Format::entry::bytes,
                      0,
                      0,
                      words_.template as<std::uint32_t>(64),
                      {words_.template as<std::uint32_t>(0)}};
        setup.send_queue = net_.add_completion_queue(
            {setup.format, completions_.template as<std::byte>(), slots, is_efa ? 32U : 64U,
             std::is_same_v<Completion, collapsed_completion>, nullptr});
        setup.counters.completed = words_.template as<std::uint64_t>(128);
        setup.counters.failed = words_.template as<std::uint64_t>(136);
      } else {
        setup.counters.remote_writes = words_.template as<std::uint64_t>(192);
      }
      net_.add_queue_pair(setup);
    }
    net_.add_handle(0, 1, 1);
    if (!is_efa) net_.connect(0, qpn, 1, qpn);
    const auto add = [this](std::uint32_t n, const gpu_memory& m, std::uint32_t key) {
      net_.memory(n).add({m.template as<std::byte>(), bytes_,
                          reinterpret_cast<std::uintptr_t>(m.template as<std::byte>()), key, key,
                          emulator::local_write | emulator::remote_write});
    };
    add(0, source_, 1);
    add(1, window_, 2);
  }

  std::uint64_t bytes_;
  gpu_memory ring_, completions_, words_, done_, source_, window_, state_;
  emulator::network net_{{.seed = 5}};
};

struct check_shape {
  const char* name;
  unsigned blocks;
  unsigned threads;
};

template <class Format, class Scope, class Completion, class Group>
[[nodiscard]] bool check_queue(const check_shape& shape, std::uint64_t puts) {
  served_queue<Format, Scope, Completion> served(puts);
  const gpu_memory failures(8, true);
  // Loads the kernel now: a lazy load would wait for the running kernel of another stream.
  using queue_type = typename served_queue<Format, Scope, Completion>::queue_type;
  cudaFuncAttributes attributes{};
  require(cudaFuncGetAttributes(&attributes, put_kernel<queue_type, Group>), "put_kernel");
  {
    const emulator::runner runner(served.net());
    put_kernel<queue_type, Group><<<shape.blocks, shape.threads>>>(
        served.queue(), served.plan(), puts, 48, failures.as<std::uint64_t>());
    require(cudaDeviceSynchronize(), shape.name);
  }
  const bool good = *failures.as<std::uint64_t>() == 0 && served.arrived(puts);
  std::printf("queue over the emulator, %-44s %llu puts: %s\n", shape.name,
              static_cast<unsigned long long>(puts), good ? "ok" : "FAILED");
  return good;
}

/// Part 2.
[[nodiscard]] inline bool check_queues(std::uint64_t puts) {
  using narrow = efa_format<efa::narrow>;
  using wide = efa_format<efa::wide>;
  bool good = true;
  good &= check_queue<narrow, one_owner, counted_completion, gpu_thread>(
      {"EFA, owned by a thread, counted", 1, 1}, puts / 10);
  good &= check_queue<narrow, one_owner, counted_completion, gpu_warp>(
      {"EFA, owned by a warp, counted", 1, 32}, puts);
  good &= check_queue<wide, one_block, polled_completion, gpu_warp>(
      {"EFA 128 B, shared by a block's 8 warps, polled", 1, 256}, puts);
  good &= check_queue<narrow, one_device, counted_completion, gpu_warp>(
      {"EFA, shared by 16 blocks' warps, counted", 16, 128}, puts);
  good &= check_queue<mlx5_format, one_owner, collapsed_completion, gpu_thread>(
      {"mlx5, owned by a thread, collapsed", 1, 1}, puts / 10);
  good &= check_queue<mlx5_format, one_owner, collapsed_completion, gpu_block>(
      {"mlx5, owned by a block, collapsed", 1, 128}, puts);
  good &= check_queue<mlx5_format, one_block, polled_completion, gpu_warp>(
      {"mlx5, shared by a block's 8 warps, polled", 1, 256}, puts);
  good &= check_queue<mlx5_format, one_device, collapsed_completion, gpu_warp>(
      {"mlx5, shared by 16 blocks' warps, collapsed", 16, 128}, puts);
  return good;
}

}  // namespace eptransport::gdaki::bench
