// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Pinned host memory and its twin in device memory.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "cuda/device_buffer.cuh"
#include "support/twins.hpp"

namespace eptransport::support {

/// The buffers of one lane, or a rank's window. Copies run on a stream that waits for no kernel.
class gpu_twins final : public memory_twins {
 public:
  gpu_twins(std::byte* image, std::byte* window) : memory_twins(image, window) {
    must(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
  }
  ~gpu_twins() override {
    release_all();
    (void)cudaStreamDestroy(stream_);
  }

 private:
  [[nodiscard]] twin allocate(std::uint64_t bytes, bool shared) override {
    void* host = nullptr;
    must(cudaHostAlloc(&host, bytes, cudaHostAllocMapped | cudaHostAllocPortable));
    void* kernel = host;
    if (!shared) must(cudaMalloc(&kernel, bytes));
    return {static_cast<std::byte*>(host), static_cast<std::byte*>(kernel)};
  }
  void release(const twin& memory) override {
    if (memory.kernel != memory.host) (void)cudaFree(memory.kernel);
    (void)cudaFreeHost(memory.host);
  }
  void copy(std::byte* to, const std::byte* from, std::uint64_t bytes) override {
    if (bytes != 0) must(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream_));
  }
  void wait() override { must(cudaStreamSynchronize(stream_)); }

  cudaStream_t stream_ = nullptr;
};

}  // namespace eptransport::support
