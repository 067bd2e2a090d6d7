// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The driver calls for virtual memory, found at run time: programs start without a driver.
#pragma once

#include <eptransport/core/config.hpp>
#include <eptransport/core/cuda_device.cuh>
#include <eptransport/core/result.hpp>

#include <cuda.h>
#include <cuda_runtime.h>

#include <string>
#include <system_error>
#include <type_traits>
#include <utility>

namespace eptransport {

/// Category of CUDA driver errors; the code is a `CUresult`.
inline const std::error_category& cuda_driver_category() noexcept {
  class category final : public std::error_category {
   public:
    [[nodiscard]] const char* name() const noexcept override { return "cuda_driver"; }
    [[nodiscard]] std::string message(int value) const override {
      return "CUresult " + std::to_string(value);
    }
  };
  static const category instance;
  return instance;
}

/// Turns a driver status into a result; `operation` is a literal such as "cuMemCreate".
[[nodiscard]] inline result<void> driver_result(CUresult status, const char* operation,
                                                std::string detail = {}) {
  if (status == CUDA_SUCCESS) return {};
  return failure{std::error_code(static_cast<int>(status), cuda_driver_category()), operation,
                 std::move(detail)};
}

/// The entry points. NVIDIA, CUDA Driver API, "Virtual Memory Management".
struct cuda_driver {
  decltype(&cuMemGetAllocationGranularity) granularity = nullptr;
  decltype(&cuMemCreate) create = nullptr;
  decltype(&cuMemRelease) release = nullptr;
  decltype(&cuMemExportToShareableHandle) export_handle = nullptr;
  decltype(&cuMemImportFromShareableHandle) import_handle = nullptr;
  decltype(&cuMemAddressReserve) reserve = nullptr;
  decltype(&cuMemAddressFree) free = nullptr;
  decltype(&cuMemMap) map = nullptr;
  decltype(&cuMemUnmap) unmap = nullptr;
  decltype(&cuMemSetAccess) set_access = nullptr;

  /// @par Errors  `unsupported` naming the call that the driver lacks; CUDA's
  [[nodiscard]] static result<cuda_driver> load() {
    cuda_driver d;
    const auto find = [](auto& call, const char* name) -> result<void> {
      void* entry = nullptr;
      cudaDriverEntryPointQueryResult found{};
      // 10.2 introduced these calls; later versions of them take the same arguments.
      const auto asked = cuda_result(
          cudaGetDriverEntryPointByVersion(name, &entry, 12000, cudaEnableDefault, &found),
          "cudaGetDriverEntryPointByVersion", name);
      if (!asked) return asked;
      if (found != cudaDriverEntryPointSuccess || entry == nullptr) {
        return failure{errc::unsupported, "cuda_driver", std::string("the driver has no ") + name};
      }
      call = reinterpret_cast<std::remove_reference_t<decltype(call)>>(entry);
      return {};
    };
    for (const result<void>& one :
         {find(d.granularity, "cuMemGetAllocationGranularity"), find(d.create, "cuMemCreate"),
          find(d.release, "cuMemRelease"), find(d.export_handle, "cuMemExportToShareableHandle"),
          find(d.import_handle, "cuMemImportFromShareableHandle"),
          find(d.reserve, "cuMemAddressReserve"), find(d.free, "cuMemAddressFree"),
          find(d.map, "cuMemMap"), find(d.unmap, "cuMemUnmap"),
          find(d.set_access, "cuMemSetAccess")}) {
      if (!one) return one.error();
    }
    return d;
  }
};

}  // namespace eptransport
