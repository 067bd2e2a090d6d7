// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Makes a NIC's queues usable by kernels: maps rings and registers, asks about the order in
///        which the NIC's writes become visible.
///
/// @par Source  CUDA runtime API: cudaHostRegister, cudaDevAttrGPUDirectRDMAWritesOrdering
#pragma once

#include <eptransport/core/config.hpp>
#include <eptransport/core/result.hpp>
#include <eptransport/gdaki/format.hpp>
#include <eptransport/gdaki/provision/need.hpp>

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <unistd.h>
#include <utility>

namespace eptransport::gdaki::provision {

/// What a mapped range is.
enum class mapped_kind {
  memory,    ///< host memory: rings, records, completions
  registers  ///< the NIC's own: doorbells, EFA's send ring
};

/// Host pages that kernels may use; unmapped with the object.
class gpu_mapping {
 public:
  /// Maps the pages that `bytes` bytes from `first` on lie in. `device(p)` then gives the kernel's
  /// address of any `p` inside.
  /// @par Errors  `need::driver_setting` for registers, with the setting; CUDA's as text
  [[nodiscard]] static result<gpu_mapping> map(void* first, std::size_t bytes, mapped_kind what) {
    const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
    const auto begin = reinterpret_cast<std::uintptr_t>(first) / page * page;
    const auto end = (reinterpret_cast<std::uintptr_t>(first) + bytes + page - 1) / page * page;
    auto* base = reinterpret_cast<std::byte*>(begin);
    const unsigned flags = cudaHostRegisterMapped | cudaHostRegisterPortable |
                           (what == mapped_kind::registers ? cudaHostRegisterIoMemory : 0U);
    const cudaError_t made = cudaHostRegister(base, end - begin, flags);
    void* seen = nullptr;
    const cudaError_t found = made == cudaSuccess ? cudaHostGetDevicePointer(&seen, base, 0) : made;
    if (found != cudaSuccess) {
      if (made == cudaSuccess) (void)cudaHostUnregister(base);
      (void)cudaGetLastError();
      return refuse(found, what, end - begin);
    }
    return gpu_mapping(base, static_cast<std::byte*>(seen), end - begin);
  }

  /// The address by which kernels reach `host`; null outside of the mapping.
  template <class T>
  [[nodiscard]] T* device(T* host) const noexcept {
    const auto* at = reinterpret_cast<const std::byte*>(host);
    const std::byte* base = base_.get();
    if (at < base || at >= base + bytes_) return nullptr;
    return reinterpret_cast<T*>(device_ + (at - base));
  }

 private:
  struct unmap {
    void operator()(std::byte* base) const noexcept { (void)cudaHostUnregister(base); }
  };

  gpu_mapping(std::byte* base, std::byte* device, std::size_t bytes)
      : base_(base), device_(device), bytes_(bytes) {}

  [[nodiscard]] static failure refuse(cudaError_t why, mapped_kind what, std::size_t bytes) {
    const std::string text = std::to_string(bytes) + " bytes: " + cudaGetErrorString(why);
    if (what == mapped_kind::memory) {
      return missing(need::driver_setting, "cudaHostRegister",
                     text + "; the locked-memory limit (ulimit -l) may be too low");
    }
    return missing(need::driver_setting, "cudaHostRegister",
                   text +
                       "; registers of another device need the nvidia module option "
                       "NVreg_RegistryDwords=\"PeerMappingOverride=1\"");
  }

  std::unique_ptr<std::byte, unmap> base_;
  std::byte* device_;
  std::size_t bytes_;
};

/// Who sees a NIC's writes to GPU memory in the order of its counter or flag, without a flush.
enum class writes_ordering { nobody, owner, all_devices };

/// Asks the device.
/// @par Errors  `need::device_property` if the runtime does not know
[[nodiscard]] inline result<writes_ordering> writes_ordering_of(int device) {
  int value = 0;
  const cudaError_t asked =
      cudaDeviceGetAttribute(&value, cudaDevAttrGPUDirectRDMAWritesOrdering, device);
  if (asked != cudaSuccess) {
    (void)cudaGetLastError();
    return missing(need::device_property, "cudaDeviceGetAttribute", cudaGetErrorString(asked));
  }
  if (value >= cudaGPUDirectRDMAWritesOrderingAllDevices) return writes_ordering::all_devices;
  return value >= cudaGPUDirectRDMAWritesOrderingOwner ? writes_ordering::owner
                                                       : writes_ordering::nobody;
}

/// A signal may stand for the bytes before it only from `owner` on; a GPU that reads what a NIC
/// wrote to another one's memory needs `all_devices`.
/// @par Errors  `need::device_property` with what was found and needed
[[nodiscard]] inline result<void> expect_ordering(int device, bool peers_read) {
  const auto found = writes_ordering_of(device);
  if (!found) return found.error();
  const writes_ordering needed = peers_read ? writes_ordering::all_devices : writes_ordering::owner;
  if (*found >= needed) return {};
  return missing(need::device_property, "cudaDevAttrGPUDirectRDMAWritesOrdering",
                 "device " + std::to_string(device) + " orders a NIC's writes for " +
                     (*found == writes_ordering::nobody ? "nobody" : "itself alone") +
                     "; signals need " + (peers_read ? "all devices" : "the owner at least"));
}

}  // namespace eptransport::gdaki::provision
