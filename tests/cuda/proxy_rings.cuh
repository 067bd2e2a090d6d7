// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Rings in pinned memory with a kernel for a producer: for tests and ep_proxy_gpu_bench.
#pragma once

#include <eptransport/core/cuda_worker.cuh>
#include <eptransport/core/memory.cuh>
#include <eptransport/core/memory.hpp>
#include <eptransport/proxy/command.hpp>
#include <eptransport/proxy/ring.hpp>

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "cuda/device_buffer.cuh"

namespace eptransport::support {

/// Pinned host memory that the GPU maps at the same address; zeroed.
class pinned_memory {
 public:
  explicit pinned_memory(std::uint64_t bytes) : bytes_(bytes) {
    void* memory = nullptr;
    must(cudaHostAlloc(&memory, bytes, cudaHostAllocPortable | cudaHostAllocMapped));
    memory_ = static_cast<std::byte*>(memory);
    for (std::uint64_t i = 0; i < bytes; ++i) memory_[i] = std::byte{0};
  }
  ~pinned_memory() { (void)cudaFreeHost(memory_); }
  pinned_memory(const pinned_memory&) = delete;
  pinned_memory& operator=(const pinned_memory&) = delete;
  [[nodiscard]] std::byte* data() const noexcept { return memory_; }
  [[nodiscard]] std::uint64_t bytes() const noexcept { return bytes_; }

 private:
  std::uint64_t bytes_;
  std::byte* memory_ = nullptr;
};

/// `count` rings one behind the other; their views in host and in device memory.
class pinned_rings {
 public:
  pinned_rings(std::uint32_t count, std::uint64_t slots, std::uint64_t first = 0)
      : layout_(*proxy::ring_layout::of(slots)),
        stride_((layout_.bytes() + 4095) / 4096 * 4096),
        memory_(count * stride_) {
    for (std::uint32_t i = 0; i < count; ++i) {
      views_.push_back(layout_.make(memory_.data() + i * stride_, first));
    }
    device_.assign(views_);
  }
  [[nodiscard]] const std::vector<proxy::ring_view>& views() const noexcept { return views_; }
  [[nodiscard]] const proxy::ring_view* device() const noexcept { return device_.data(); }

 private:
  proxy::ring_layout layout_;
  std::uint64_t stride_;
  pinned_memory memory_;
  std::vector<proxy::ring_view> views_;
  device_buffer<proxy::ring_view> device_;
};

/// The command that ring `ring` carries at index `i`; every field depends on both.
[[nodiscard]] EPT_HOST_DEVICE inline proxy::command ring_command(std::uint32_t ring,
                                                                 std::uint64_t i) {
  proxy::command c;
  c.src_offset = (i & 0xffff) * 64;
  c.dst_offset = ((i + ring) & 0xffff) * 64;
  c.bytes = 64;
  c.peer = static_cast<std::uint32_t>((i + ring) & 63);
  c.signal = static_cast<std::uint32_t>((i ^ ring) & 511);
  return c;
}

/// The codec that those commands fit.
[[nodiscard]] inline proxy::command_codec ring_codec() {
  return *proxy::command_codec::create({64, 512, std::uint64_t{1} << 30, 1 << 20});
}

static __global__ void read_timer(std::uint64_t* to) {
  device_memory::signal_store(to, device_memory::timer_ns());
}

/// The GPU's clock; deadlines of kernels are relative to it.
[[nodiscard]] inline std::uint64_t gpu_now() {
  const pinned_memory word(64);
  auto* at = reinterpret_cast<std::uint64_t*>(word.data());
  read_timer<<<1, 1>>>(at);
  must(cudaDeviceSynchronize());
  return host_memory::signal_acquire(at);
}

/// Warp w produces for ring w: `count` commands in batches of `batch` (1: lane 0 alone). Before
/// each batch every lane writes payload word [w][index % slots], which the commands release. `late`
/// is set where the deadline passed first.
static __global__ void produce(const proxy::ring_view* rings, proxy::command_codec codec,
                               std::uint64_t first, std::uint64_t count, std::uint32_t batch,
                               std::uint64_t* payload, std::uint64_t deadline_ns,
                               std::uint64_t* late) {
  const std::uint32_t w = (blockIdx.x * blockDim.x + threadIdx.x) / cuda_warp::size;
  const cuda_warp warp(0, 1, nullptr);
  proxy::ring_producer<device_memory> producer(rings[w], first);
  const std::uint64_t slots = rings[w].slots();
  for (std::uint64_t i = 0; i < count;) {
    const std::uint64_t n = count - i < batch ? count - i : batch;
    while (!producer.fits(n)) {
      producer.see_tail(static_cast<std::uint64_t>(
          warp.first(static_cast<std::int64_t>(device_memory::signal_acquire(rings[w].tail)))));
      if (warp.any(device_memory::timer_ns() > deadline_ns)) {
        if (warp.thread() == 0) device_memory::signal_store(late, 1);
        return;
      }
    }
    warp.sync();
    if (payload != nullptr && warp.thread() < n) {
      payload[w * slots + (i + warp.thread()) % slots] = (i + warp.thread()) * 3 + w;
    }
    if (batch == 1) {
      if (warp.thread() == 0) (void)producer.push(codec.encode(ring_command(w, i)));
      // The other lanes follow: all hold the same producer.
      if (warp.thread() != 0) producer.advance(1);
      warp.sync();
    } else {
      (void)proxy::push_batch(
          warp, producer, n, [&](std::uint64_t k) { return codec.encode(ring_command(w, i + k)); });
    }
    i += n;
  }
}

}  // namespace eptransport::support
