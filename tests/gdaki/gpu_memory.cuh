// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief CUDA memory, errors and times for checks and benchmarks of the device queues.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace eptransport::gdaki::bench {

inline void require(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(status));
  std::exit(1);
}

/// Zeroed memory that the GPU reaches: its own, or pinned host memory that the CPU reaches too.
class gpu_memory {
 public:
  gpu_memory(std::size_t bytes, bool pinned) : pinned_(pinned) {
    if (pinned) {
      require(cudaHostAlloc(&data_, bytes, cudaHostAllocMapped), "cudaHostAlloc");
      std::memset(data_, 0, bytes);
    } else {
      require(cudaMalloc(&data_, bytes), "cudaMalloc");
      require(cudaMemset(data_, 0, bytes), "cudaMemset");
    }
  }
  ~gpu_memory() {
    if (pinned_) {
      cudaFreeHost(data_);
    } else {
      cudaFree(data_);
    }
  }
  gpu_memory(const gpu_memory&) = delete;
  gpu_memory& operator=(const gpu_memory&) = delete;

  template <class T>
  [[nodiscard]] T* as(std::size_t offset = 0) const {
    return reinterpret_cast<T*>(static_cast<std::byte*>(data_) + offset);
  }

 private:
  bool pinned_;
  void* data_ = nullptr;
};

/// Milliseconds that a launch took.
class stopwatch {
 public:
  stopwatch() {
    require(cudaEventCreate(&start_), "cudaEventCreate");
    require(cudaEventCreate(&stop_), "cudaEventCreate");
    require(cudaEventRecord(start_), "cudaEventRecord");
  }
  ~stopwatch() {
    cudaEventDestroy(start_);
    cudaEventDestroy(stop_);
  }
  stopwatch(const stopwatch&) = delete;
  stopwatch& operator=(const stopwatch&) = delete;

  [[nodiscard]] double ns() {
    require(cudaGetLastError(), "launch");
    require(cudaEventRecord(stop_), "cudaEventRecord");
    require(cudaEventSynchronize(stop_), "kernel");
    float ms = 0;
    require(cudaEventElapsedTime(&ms, start_, stop_), "cudaEventElapsedTime");
    return static_cast<double>(ms) * 1e6;
  }

 private:
  cudaEvent_t start_{};
  cudaEvent_t stop_{};
};

}  // namespace eptransport::gdaki::bench
