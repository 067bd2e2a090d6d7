// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief What a put costs the GPU, against a device that completes everything at once.
#pragma once

#include <eptransport/gdaki/device_groups.cuh>
#include <eptransport/gdaki/send_queue.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <vector>

#include "gdaki/gpu_checks.cuh"
#include "gdaki/gpu_memory.cuh"

namespace eptransport::gdaki::bench {

/// A device without latency: what it was told about is complete.
struct instant_completion {
  static constexpr bool in_order = true;

  template <class Format, class Memory, class Scope>
  EPT_HOST_DEVICE void poll(send_queue_state* state, const send_queue_attributes&) const noexcept {
    using memory = queue_memory<Memory>;
    gdaki::detail::shared_words<Memory, Scope>::raise_completed(
        state, memory::load(Scope{}, &state->rung));
  }
};

/// One queue per owner; owner q is block q (`one_block`), group q (`one_owner`) or everybody.
template <class Queue, class Group>
EPT_KERNEL void cost_kernel(const Queue* queues, std::uint32_t count_of_queues, put_plan plan,
                            std::uint64_t puts_per_group, std::uint32_t per_call) {
  const Group g;
  const std::uint32_t group = (blockIdx.x * blockDim.x + threadIdx.x) / g.threads();
  const std::uint32_t groups = gridDim.x * blockDim.x / g.threads();
  const std::uint32_t which =
      static_cast<std::uint32_t>(std::uint64_t{group} * count_of_queues / groups);
  const Queue queue = queues[which];
  const std::uint64_t deadline = device_memory::timer_ns() + plan.deadline_ns;
  for (std::uint64_t at = 0; at < puts_per_group; at += per_call) {
    const op_status status = queue.post(
        g, per_call,
        [&](std::uint64_t i, typename Queue::place_type place) {
          return put_entry<typename Queue::format>(place, plan, (at + i) * 16, 16);
        },
        deadline);
    if (status != op_status::ok) __trap();
  }
  queue.submit(g);
}

struct cost_shape {
  const char* name;
  unsigned blocks = 1;
  unsigned threads = 1;
  std::uint32_t queues = 1;
  std::uint32_t per_call = 1;
  std::uint32_t ring_every = 1;
};

/// The memory of many queues.
template <class Format, class Scope>
class queue_set {
 public:
  using queue_type = send_queue<Format, Scope, instant_completion>;
  static constexpr std::uint32_t slots = 1024;

  queue_set(const cost_shape& shape, ring_home home)
      : rings_(std::size_t{shape.queues} * slots * Format::entry::bytes, home == ring_home::host),
        records_(std::size_t{shape.queues} * 64, home == ring_home::host),
        registers_(std::size_t{shape.queues} * 64, true),
        states_(std::size_t{shape.queues} * sizeof(send_queue_state), false),
        queues_(std::size_t{shape.queues} * sizeof(queue_type), false) {
    std::vector<queue_type> all;
    for (std::uint32_t q = 0; q < shape.queues; ++q) {
      send_queue_attributes attributes;
      attributes.ring = rings_.as<std::byte>(std::size_t{q} * slots * Format::entry::bytes);
      attributes.slots = slots;
      attributes.max_batch = Format::ordered ? 0 : 64;
      attributes.ring_every = shape.ring_every;
      attributes.qpn = q;
      attributes.home = home;
      attributes.record = records_.as<std::uint32_t>(std::size_t{q} * 64);
      attributes.doorbell = registers_.as<std::uint32_t>(std::size_t{q} * 64);
      all.push_back({attributes, states_.as<send_queue_state>(q * sizeof(send_queue_state)), {}});
    }
    require(cudaMemcpy(queues_.as<queue_type>(), all.data(), all.size() * sizeof(queue_type),
                       cudaMemcpyHostToDevice),
            "cudaMemcpy");
  }
  [[nodiscard]] const queue_type* queues() const { return queues_.as<queue_type>(); }

 private:
  gpu_memory rings_, records_, registers_, states_, queues_;
};

/// Nanoseconds that a group spends per put, and puts per second of all groups; best of three.
template <class Format, class Scope, class Group>
void cost(const char* format, const cost_shape& shape, std::uint64_t puts) {
  for (const ring_home home : {ring_home::device, ring_home::host}) {
    const queue_set<Format, Scope> set(shape, home);
    using queue_type = typename queue_set<Format, Scope>::queue_type;
    const put_plan plan{{1, 5, 7}, {0x1000, 2}, {0x2000, 1, 16}, 20'000'000'000};
    const std::uint64_t rounded = (puts + shape.per_call - 1) / shape.per_call * shape.per_call;
    double best = 1e30;
    for (int run = 0; run < 4; ++run) {  // the first one warms up
      stopwatch watch;
      cost_kernel<queue_type, Group><<<shape.blocks, shape.threads>>>(
          set.queues(), shape.queues, plan, rounded, shape.per_call);
      const double ns = watch.ns();
      if (run > 0) best = std::min(best, ns);
    }
    const unsigned group = Group::memory_threads(shape.threads);
    const double groups = static_cast<double>(shape.blocks) * shape.threads / group;
    std::printf("%-5s %-46s %-6s %5u %12.1f %12.2f\n", format, shape.name,
                home == ring_home::host ? "pinned" : "HBM", shape.ring_every,
                best / static_cast<double>(rounded),
                groups * static_cast<double>(rounded) / best * 1e3);
  }
}

/// A group with its size known on the host.
struct costed_thread : gpu_thread {
  static unsigned memory_threads(unsigned) { return 1; }
};
struct costed_warp : gpu_warp {
  static unsigned memory_threads(unsigned) { return 32; }
};

template <class Format>
void measure_format(const char* name, unsigned sms, std::uint64_t puts) {
  const std::uint64_t few = puts / 4;
  cost<Format, one_owner, costed_thread>(name, {"one thread, own queue", 1, 1, 1, 1, 1}, puts);
  cost<Format, one_owner, costed_thread>(name, {"one thread, own queue", 1, 1, 1, 1, 32}, puts);
  cost<Format, one_device, costed_thread>(name, {"one thread, shareable queue", 1, 1, 1, 1, 1},
                                          puts);
  cost<Format, one_owner, costed_warp>(
      name, {"one warp, 32 puts a call, own queue", 1, 32, 1, 32, 1}, puts * 8);
  cost<Format, one_owner, costed_warp>(
      name, {"all SMs, a warp and a queue each", sms, 32, sms, 32, 1}, puts * 8);
  cost<Format, one_owner, costed_warp>(
      name, {"all SMs, 4 warps each, a queue per warp", sms, 128, sms * 4, 32, 1}, puts * 4);
  cost<Format, one_block, costed_warp>(
      name, {"all SMs, 4 warps share the SM's queue", sms, 128, sms, 32, 1}, puts);
  cost<Format, one_device, costed_warp>(name, {"all SMs, a warp each, 8 queues", sms, 32, 8, 32, 1},
                                        few);
  cost<Format, one_device, costed_warp>(name, {"all SMs, a warp each, 1 queue", sms, 32, 1, 32, 1},
                                        few);
}

/// Part 3.
inline void measure(unsigned sms, std::uint64_t puts) {
  std::printf("\n%-5s %-46s %-6s %5s %12s %12s\n", "", "who posts", "ring", "every", "ns per put",
              "M puts/s");
  measure_format<efa_format<efa::narrow>>("EFA", sms, puts);
  measure_format<mlx5_format>("mlx5", sms, puts);
}

}  // namespace eptransport::gdaki::bench
