// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief What the GPU's executors share: errors, memory, and the kernels of the program.
#pragma once

#include <eptransport/core/config.hpp>
#include <eptransport/core/result.hpp>

#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <system_error>
#include <utility>

namespace eptransport {

/// Category of CUDA runtime errors; the code is a `cudaError_t`.
inline const std::error_category& cuda_category() noexcept {
  class category final : public std::error_category {
   public:
    [[nodiscard]] const char* name() const noexcept override { return "cuda"; }
    [[nodiscard]] std::string message(int value) const override {
      const auto code = static_cast<cudaError_t>(value);
      return std::string(cudaGetErrorName(code)) + ", " + cudaGetErrorString(code);
    }
  };
  static const category instance;
  return instance;
}

/// Turns a CUDA status into a result; `operation` is a literal such as "cudaMalloc".
[[nodiscard]] inline result<void> cuda_result(cudaError_t status, const char* operation,
                                              std::string detail = {}) {
  if (status == cudaSuccess) return {};
  (void)cudaGetLastError();  // what is reported here must not surface in the caller's next check
  return failure{std::error_code(static_cast<int>(status), cuda_category()), operation,
                 std::move(detail)};
}

namespace detail {

/// Threads per block that every kernel of the library can be launched with. The launch bound keeps
/// a thread within 128 registers, so that a multiprocessor always has room for 16 warps.
inline constexpr std::uint32_t max_block_threads = 512;
inline constexpr std::uint32_t warps_per_sm = 16;
/// Blocks of which a multiprocessor's shared memory (227 KiB on sm_90) holds `crew_scratch_bytes`,
/// the call, and what else a kernel keeps there: 37 KiB each.
inline constexpr std::uint32_t scratches_per_sm = 6;

/// The kernels instantiated in this program, linked before main.
///
/// The driver loads a kernel when it is first used and may wait for the device to do so; a kernel
/// that waits for one which is not loaded yet would never end. So executors load all of them when
/// they are built.
class kernel_entry {
 public:
  explicit kernel_entry(const void* kernel) noexcept : kernel_(kernel), next_(head) { head = this; }
  kernel_entry(const kernel_entry&) = delete;
  kernel_entry& operator=(const kernel_entry&) = delete;

  [[nodiscard]] const void* kernel() const noexcept { return kernel_; }

  /// Loads all kernels on the current device.
  [[nodiscard]] static result<void> load_all() {
    for (const kernel_entry* entry = head; entry != nullptr; entry = entry->next_) {
      cudaFuncAttributes unused{};
      const auto loaded = cuda_result(cudaFuncGetAttributes(&unused, entry->kernel_),
                                      "cudaFuncGetAttributes", "loading a kernel");
      if (!loaded) return loaded;
    }
    return {};
  }

 private:
  static inline const kernel_entry* head = nullptr;

  const void* kernel_;
  const kernel_entry* next_;
};

/// Makes a device current and the former one again.
class device_scope {
 public:
  explicit device_scope(int device) noexcept {
    (void)cudaGetDevice(&before_);
    (void)cudaSetDevice(device);
  }
  ~device_scope() { (void)cudaSetDevice(before_); }
  device_scope(const device_scope&) = delete;
  device_scope& operator=(const device_scope&) = delete;

 private:
  int before_ = 0;
};

/// Frees device memory, or host memory, whichever it is.
struct cuda_free {
  void operator()(std::byte* memory) const noexcept {
    cudaPointerAttributes attributes{};
    if (cudaPointerGetAttributes(&attributes, memory) != cudaSuccess) return;
    (void)(attributes.type == cudaMemoryTypeHost ? cudaFreeHost(memory) : cudaFree(memory));
  }
};
using cuda_memory = std::unique_ptr<std::byte, cuda_free>;

/// Memory, copies and limits of one GPU.
///
/// @par Threads  One host thread at a time per object. Copies run on a stream of its own that waits
///               for no other work.
class cuda_device {
 public:
  /// @par Errors  CUDA's, when the device cannot be used or a kernel cannot be loaded
  [[nodiscard]] static result<cuda_device> open(int device) {
    cuda_device made;
    made.device_ = device;
    if (auto r = cuda_result(cudaSetDevice(device), "cudaSetDevice", std::to_string(device)); !r) {
      return r.error();
    }
    int cooperative = 0;
    for (const auto& [value, attribute] : {std::pair{&made.sms_, cudaDevAttrMultiProcessorCount},
                                           std::pair{&cooperative, cudaDevAttrCooperativeLaunch}}) {
      auto r =
          cuda_result(cudaDeviceGetAttribute(value, attribute, device), "cudaDeviceGetAttribute");
      if (!r) return r.error();
    }
    if (cooperative == 0) {
      return failure{errc::unsupported, "cuda_device", "the device has no cooperative launch"};
    }
    if (auto r = kernel_entry::load_all(); !r) return r.error();
    auto made_stream = cuda_result(cudaStreamCreateWithFlags(&made.copies_, cudaStreamNonBlocking),
                                   "cudaStreamCreate");
    if (!made_stream) return made_stream.error();
    return result<cuda_device>(std::move(made));
  }

  cuda_device(cuda_device&& other) noexcept
      : device_(other.device_), sms_(other.sms_), copies_(std::exchange(other.copies_, nullptr)) {}
  cuda_device& operator=(cuda_device&& other) noexcept {
    std::swap(device_, other.device_);
    std::swap(sms_, other.sms_);
    std::swap(copies_, other.copies_);
    return *this;
  }
  ~cuda_device() {
    if (copies_ != nullptr) (void)cudaStreamDestroy(copies_);
  }

  [[nodiscard]] int device() const noexcept { return device_; }
  [[nodiscard]] std::uint32_t sms() const noexcept { return static_cast<std::uint32_t>(sms_); }

  /// INV-9: `blocks` blocks of `warps` warps are resident at once, whatever kernel they run.
  [[nodiscard]] result<void> expect_room(std::uint64_t blocks, std::uint32_t warps) const {
    if (warps == 0 || warps * 32 > max_block_threads) {
      return failure{errc::invalid_argument, "cuda_device",
                     std::to_string(warps) + " warps per block, 1 to " +
                         std::to_string(max_block_threads / 32) + " are possible"};
    }
    const std::uint32_t each = std::min(warps_per_sm / warps, scratches_per_sm);
    const std::uint64_t room = std::uint64_t{sms()} * each;
    if (blocks != 0 && blocks <= room) return {};
    return failure{errc::capacity, "cuda_device",
                   std::to_string(blocks) + " blocks of " + std::to_string(warps) +
                       " warps must run at once, the device has room for " + std::to_string(room)};
  }

  [[nodiscard]] result<std::byte*> allocate(std::uint64_t bytes) {
    const device_scope scope(device_);
    void* memory = nullptr;
    const auto made = cuda_result(cudaMalloc(&memory, bytes), "cudaMalloc", sized(bytes));
    if (!made) return made.error();
    const auto zeroed = finish(cudaMemsetAsync(memory, 0, bytes, copies_), "cudaMemsetAsync");
    if (!zeroed) {
      (void)cudaFree(memory);
      return zeroed.error();
    }
    return static_cast<std::byte*>(memory);
  }

  /// Host memory at the same address for the host and all devices.
  [[nodiscard]] result<std::byte*> allocate_shared(std::uint64_t bytes) {
    const device_scope scope(device_);
    void* memory = nullptr;
    const auto done =
        cuda_result(cudaHostAlloc(&memory, bytes, cudaHostAllocMapped | cudaHostAllocPortable),
                    "cudaHostAlloc", sized(bytes));
    if (!done) return done.error();
    std::memset(memory, 0, bytes);
    return static_cast<std::byte*>(memory);
  }

  /// `cudaFree` waits until the device is idle.
  void release(std::byte* memory) noexcept {
    const device_scope scope(device_);
    if (memory != nullptr) cuda_free{}(memory);
  }

  [[nodiscard]] result<void> copy(std::byte* dst, const std::byte* src, std::uint64_t bytes) {
    if (bytes == 0) return {};
    const device_scope scope(device_);
    return finish(cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDefault, copies_), "cudaMemcpyAsync");
  }

  /// Waits for the whole device: graph replays, which no executor sees, included.
  [[nodiscard]] result<void> synchronize() {
    const device_scope scope(device_);
    return cuda_result(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  }

  /// Starts blocks that are all resident at once, or fails.
  [[nodiscard]] result<void> launch(const void* kernel, std::uint32_t blocks, std::uint32_t warps,
                                    void** arguments, cudaStream_t stream) const {
    const device_scope scope(device_);
    return cuda_result(
        cudaLaunchCooperativeKernel(kernel, dim3(blocks), dim3(warps * 32), arguments, 0, stream),
        "cudaLaunchCooperativeKernel",
        std::to_string(blocks) + " blocks of " + std::to_string(warps) + " warps");
  }

 private:
  cuda_device() = default;

  [[nodiscard]] static std::string sized(std::uint64_t bytes) {
    return std::to_string(bytes) + " bytes";
  }
  [[nodiscard]] result<void> finish(cudaError_t status, const char* operation) {
    if (auto started = cuda_result(status, operation); !started) return started;
    return cuda_result(cudaStreamSynchronize(copies_), "cudaStreamSynchronize");
  }

  int device_ = 0;
  int sms_ = 0;
  cudaStream_t copies_ = nullptr;
};

}  // namespace detail
}  // namespace eptransport
