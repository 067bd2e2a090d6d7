// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief All ranks' blocks of memory in one range of addresses, as one process sees them.
///
/// A *block* is one rank's signal words and window. With virtual memory management the block of
/// rank r lies at `first + r * stride` in every process, so kernels find a peer by arithmetic; the
/// handle of its physical memory travels between processes as a file descriptor, and the memory
/// lives until its last mapping is gone, whoever leaves first. Ordinary allocations lie anywhere:
/// kernels look their addresses up in a table.
#pragma once

#include <eptransport/backends/peer_memory/driver.cuh>
#include <eptransport/core/config.hpp>
#include <eptransport/core/cuda_device.cuh>
#include <eptransport/core/result.hpp>

#include <cuda.h>
#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace eptransport {

/// Where a rank's block comes from.
enum class peer_allocation {
  virtual_memory,  ///< VMM handles; between processes as file descriptors
  runtime,         ///< cudaMalloc; between processes by CUDA IPC
};

/// The blocks of all ranks of a host, in this process.
///
/// @par Threads  One host thread at a time while it is filled; then read only.
class peer_mapping {
 public:
  /// @param ranks    blocks; none is there yet
  /// @param bytes    of one block; rounded up to what the devices can map
  /// @param devices  of this process that will access the blocks
  [[nodiscard]] static result<std::unique_ptr<peer_mapping>> create(std::int32_t ranks,
                                                                    std::uint64_t bytes,
                                                                    std::vector<int> devices,
                                                                    peer_allocation kind) {
    std::unique_ptr<peer_mapping> made(new peer_mapping(std::move(devices), kind));
    made->blocks_.assign(static_cast<std::size_t>(ranks), {});
    made->stride_ = bytes;
    if (kind == peer_allocation::virtual_memory) {
      if (auto reserved = made->reserve(ranks); !reserved) return reserved.error();
    }
    return result<std::unique_ptr<peer_mapping>>(std::move(made));
  }

  peer_mapping(const peer_mapping&) = delete;
  peer_mapping& operator=(const peer_mapping&) = delete;

  /// Nothing of this process may use the blocks any more.
  ~peer_mapping() {
    for (std::size_t rank = 0; rank < blocks_.size(); ++rank) drop(rank);
    if (first_ != 0) (void)driver_.free(first_, stride_ * blocks_.size());
  }

  /// Allocates the block of `rank` on `device`, zeroed.
  [[nodiscard]] result<void> allocate(std::int32_t rank, int device) {
    const detail::device_scope scope(device);
    block& mine = at(rank);
    mine.device = device;
    if (kind_ == peer_allocation::virtual_memory) {
      const CUmemAllocationProp what = physical(device);
      CUmemGenericAllocationHandle handle = 0;
      auto made = driver_result(driver_.create(&handle, stride_, &what, 0), "cuMemCreate", sized());
      if (!made) return made;
      mine.handle = handle;
      if (auto mapped = map(rank); !mapped) return mapped;
    } else {
      void* memory = nullptr;
      auto made = cuda_result(cudaMalloc(&memory, stride_), "cudaMalloc", sized());
      if (!made) return made;
      mine.memory = static_cast<std::byte*>(memory);
      if (auto opened = open_to_devices(device); !opened) return opened;
    }
    auto zeroed = cuda_result(cudaMemset(mine.memory, 0, stride_), "cudaMemset", sized());
    if (!zeroed) return zeroed;
    return cuda_result(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  }

  /// A descriptor of the physical memory of an allocated block, for another process. The caller
  /// closes it.
  [[nodiscard]] result<int> export_descriptor(std::int32_t rank) const {
    int descriptor = -1;
    auto done = driver_result(
        driver_.export_handle(&descriptor, *blocks_[static_cast<std::size_t>(rank)].handle,
                              CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
        "cuMemExportToShareableHandle", "rank " + std::to_string(rank));
    if (!done) return done.error();
    return descriptor;
  }

  /// Maps the block that another process allocated. The descriptor stays the caller's.
  [[nodiscard]] result<void> import_descriptor(std::int32_t rank, int descriptor) {
    CUmemGenericAllocationHandle handle = 0;
    void* value = reinterpret_cast<void*>(static_cast<std::intptr_t>(descriptor));
    auto done = driver_result(
        driver_.import_handle(&handle, value, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
        "cuMemImportFromShareableHandle", "rank " + std::to_string(rank));
    if (!done) return done;
    at(rank).handle = handle;
    return map(rank);
  }

  /// The CUDA IPC handle of an allocated block.
  [[nodiscard]] result<cudaIpcMemHandle_t> export_ipc(std::int32_t rank) const {
    cudaIpcMemHandle_t handle{};
    auto done = cuda_result(cudaIpcGetMemHandle(&handle, block_of(rank)), "cudaIpcGetMemHandle");
    if (!done) return done.error();
    return handle;
  }

  /// Opens the block that another process allocated, on this process's first device.
  [[nodiscard]] result<void> import_ipc(std::int32_t rank, const cudaIpcMemHandle_t& handle) {
    const detail::device_scope scope(devices_.front());
    void* memory = nullptr;
    auto done = cuda_result(cudaIpcOpenMemHandle(&memory, handle, cudaIpcMemLazyEnablePeerAccess),
                            "cudaIpcOpenMemHandle", "rank " + std::to_string(rank));
    if (!done) return done;
    at(rank).memory = static_cast<std::byte*>(memory);
    return {};
  }

  /// Lets go of what other processes allocated. With CUDA IPC they may free it only afterwards.
  void drop_imported() {
    for (std::size_t rank = 0; rank < blocks_.size(); ++rank) {
      if (blocks_[rank].device < 0) drop(rank);
    }
  }

  [[nodiscard]] std::byte* block_of(std::int32_t rank) const {
    return blocks_[static_cast<std::size_t>(rank)].memory;
  }
  /// From one block to the next; 0 = they lie anywhere.
  [[nodiscard]] std::uint64_t stride() const noexcept {
    return kind_ == peer_allocation::virtual_memory ? stride_ : 0;
  }
  [[nodiscard]] peer_allocation kind() const noexcept { return kind_; }

 private:
  struct block {
    std::byte* memory = nullptr;
    std::optional<CUmemGenericAllocationHandle> handle{};
    int device = -1;  ///< -1: another process allocated it
  };

  peer_mapping(std::vector<int> devices, peer_allocation kind)
      : devices_(std::move(devices)), kind_(kind) {}

  [[nodiscard]] block& at(std::int32_t rank) { return blocks_[static_cast<std::size_t>(rank)]; }
  [[nodiscard]] std::string sized() const { return std::to_string(stride_) + " bytes"; }

  [[nodiscard]] static CUmemAllocationProp physical(int device) {
    CUmemAllocationProp what{};
    what.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    what.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    what.location.id = device;
    what.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    return what;
  }

  [[nodiscard]] result<void> reserve(std::int32_t ranks) {
    auto loaded = cuda_driver::load();
    if (!loaded) return loaded.error();
    driver_ = *loaded;
    for (const int device : devices_) {
      const CUmemAllocationProp what = physical(device);
      std::size_t unit = 0;
      auto asked =
          driver_result(driver_.granularity(&unit, &what, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED),
                        "cuMemGetAllocationGranularity");
      if (!asked) return asked;
      stride_ = (stride_ + unit - 1) / unit * unit;
    }
    const std::uint64_t all = stride_ * static_cast<std::uint64_t>(ranks);
    return driver_result(driver_.reserve(&first_, all, 0, 0, 0), "cuMemAddressReserve",
                         std::to_string(all) + " bytes of addresses");
  }

  /// Puts the block's physical memory at its place, for all devices of this process.
  [[nodiscard]] result<void> map(std::int32_t rank) {
    block& mine = at(rank);
    const CUdeviceptr where = first_ + stride_ * static_cast<std::uint64_t>(rank);
    auto mapped = driver_result(driver_.map(where, stride_, 0, *mine.handle, 0), "cuMemMap",
                                "rank " + std::to_string(rank));
    if (!mapped) return mapped;
    mine.memory = reinterpret_cast<std::byte*>(where);
    std::vector<CUmemAccessDesc> access;
    for (const int device : devices_) {
      CUmemAccessDesc one{};
      one.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
      one.location.id = device;
      one.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
      access.push_back(one);
    }
    return driver_result(driver_.set_access(where, stride_, access.data(), access.size()),
                         "cuMemSetAccess", "rank " + std::to_string(rank));
  }

  /// Lets the other devices of this process reach what `device` allocates.
  [[nodiscard]] result<void> open_to_devices(int device) const {
    for (const int other : devices_) {
      if (other == device) continue;
      const detail::device_scope scope(other);
      const cudaError_t status = cudaDeviceEnablePeerAccess(device, 0);
      if (status == cudaErrorPeerAccessAlreadyEnabled) {
        (void)cudaGetLastError();
        continue;
      }
      auto done = cuda_result(status, "cudaDeviceEnablePeerAccess",
                              std::to_string(other) + " to " + std::to_string(device));
      if (!done) return done;
    }
    return {};
  }

  void drop(std::size_t rank) noexcept {
    block& one = blocks_[rank];
    if (kind_ == peer_allocation::virtual_memory) {
      if (one.memory != nullptr) (void)driver_.unmap(first_ + stride_ * rank, stride_);
      if (one.handle) (void)driver_.release(*one.handle);
    } else if (one.memory != nullptr) {
      const bool imported = one.device < 0;
      const detail::device_scope scope(imported ? devices_.front() : one.device);
      (void)(imported ? cudaIpcCloseMemHandle(one.memory) : cudaFree(one.memory));
    }
    one = {};
  }

  std::vector<int> devices_;
  peer_allocation kind_;
  cuda_driver driver_{};
  CUdeviceptr first_ = 0;
  std::uint64_t stride_ = 0;
  std::vector<block> blocks_;
};

}  // namespace eptransport
