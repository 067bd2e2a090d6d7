// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Pinned host memory and its twin in device memory.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "cuda/device_buffer.cuh"
#include "support/twins.hpp"

namespace eptransport::support {

/// The buffers of one lane lie side by side in chunks, so that a copy or two move them all.
class gpu_twins final : public memory_twins {
 public:
  /// @param image   the host's copy of the window; outlives this
  gpu_twins(std::byte* image, std::byte* window) : image_(image), window_(window) {
    must(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
  }
  ~gpu_twins() override {
    for (std::vector<chunk>& all : chunks_) {
      for (const chunk& one : all) {
        if (one.kernel != one.host) (void)cudaFree(one.kernel);
        (void)cudaFreeHost(one.host);
      }
    }
    (void)cudaStreamDestroy(stream_);
  }

  [[nodiscard]] twin take(std::uint64_t bytes, twin_use use) override {
    const std::uint64_t whole = (bytes + 255) / 256 * 256;
    std::vector<chunk>& all = of(use);
    auto room = std::find_if(all.begin(), all.end(),
                             [&](const chunk& one) { return one.size - one.used >= whole; });
    if (room == all.end()) {
      all.push_back(make(std::max(whole, smallest), use));
      room = all.end() - 1;
    }
    const twin taken{room->host + room->used, room->kernel + room->used};
    room->used += whole;
    return taken;
  }

  void recycle() override {
    for (const twin_use use : {twin_use::call, twin_use::shared}) {
      for (chunk& one : of(use)) one.used = 0;
    }
  }

  void push() override {
    each([this](const chunk& one) { copy(one.kernel, one.host, one.used); });
    must(cudaStreamSynchronize(stream_));
  }
  void pull() override {
    each([this](const chunk& one) { copy(one.host, one.kernel, one.used); });
    must(cudaStreamSynchronize(stream_));
  }
  void push(std::span<const std::byte> part) override {
    if (part.empty()) return;
    copy(window_ + (part.data() - image_), part.data(), part.size());
    must(cudaStreamSynchronize(stream_));
  }
  void pull(std::span<std::byte> part) override {
    if (part.empty()) return;
    copy(part.data(), window_ + (part.data() - image_), part.size());
    must(cudaStreamSynchronize(stream_));
  }

 private:
  struct chunk {
    std::byte* host;
    std::byte* kernel;
    std::uint64_t size;
    std::uint64_t used;
  };
  static constexpr std::uint64_t smallest = 1 << 20;

  [[nodiscard]] std::vector<chunk>& of(twin_use use) {
    return chunks_[static_cast<std::size_t>(use)];
  }
  [[nodiscard]] static chunk make(std::uint64_t bytes, twin_use use) {
    void* host = nullptr;
    must(cudaHostAlloc(&host, bytes, cudaHostAllocMapped | cudaHostAllocPortable));
    void* kernel = host;
    if (use != twin_use::shared) must(cudaMalloc(&kernel, bytes));
    return {static_cast<std::byte*>(host), static_cast<std::byte*>(kernel), bytes, 0};
  }
  template <class Function>
  void each(const Function& function) {
    for (const twin_use use : {twin_use::call, twin_use::run}) {
      for (const chunk& one : of(use)) {
        if (one.used != 0) function(one);
      }
    }
  }
  void copy(std::byte* to, const std::byte* from, std::uint64_t bytes) {
    must(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream_));
  }

  std::byte* image_;
  std::byte* window_;
  cudaStream_t stream_ = nullptr;
  std::vector<chunk> chunks_[3];
};

}  // namespace eptransport::support
