// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Supported toolchains, and the only attribute macros of the library.
#pragma once

#if __cplusplus < 202002L
#error "eptransport needs C++20 (-std=c++20)"
#endif

// Probe a header that every installation ships, so that an installed tree passes too.
#if !__has_include(<eptransport/backends/loopback/loopback.hpp>)
#error \
    "eptransport: the links include/eptransport/{backends,proxy,gdaki,kernels} are missing or dangling; copy with `cp -rL`, clone with core.symlinks=true, or use `cmake --install`"
#endif

#if defined(__CUDACC__)
#define EPT_HAS_CUDA_COMPILER 1
#define EPT_HOST_DEVICE __host__ __device__
#define EPT_DEVICE __device__
#define EPT_KERNEL __global__ __attribute__((visibility("hidden")))
// Kernel bodies are templates that run on the host or on the device, never on both in one
// instantiation; this silences nvcc's check of the instantiation that is not used.
#define EPT_NO_EXEC_CHECK _Pragma("nv_exec_check_disable")
// Before a short loop with a fixed count: an array that it indexes may then live in registers.
#define EPT_UNROLL _Pragma("unroll")
// Before a loop whose body is long or seldom runs: code once.
#define EPT_ROLLED _Pragma("unroll 1")
#define EPT_NOINLINE __noinline__
#else
#define EPT_HAS_CUDA_COMPILER 0
#define EPT_HOST_DEVICE
#define EPT_NO_EXEC_CHECK
#define EPT_NOINLINE __attribute__((noinline))
#if defined(__clang__)
#define EPT_UNROLL _Pragma("unroll")
#else
#define EPT_UNROLL _Pragma("GCC unroll 8")
#endif
#define EPT_ROLLED  // a host's code may be as long as it likes
// EPT_DEVICE and EPT_KERNEL stay undefined here: device code in a host unit is an error.
#endif

namespace eptransport {

/// Version of the library, `major * 10000 + minor * 100 + patch`.
inline constexpr int version = 100;

}  // namespace eptransport
