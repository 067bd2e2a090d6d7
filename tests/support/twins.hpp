// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Memory that kernels use, where the host cannot reach it: each buffer has a twin.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace eptransport::support {

/// How long a buffer is wanted, and by whom.
enum class twin_use {
  call,    ///< until `recycle`
  run,     ///< until the end
  shared,  ///< until `recycle`; no twin: the host reads what kernels write, while they run
};

/// A host's copies of what kernels read and write. Checks, poison and canaries work on the copies,
/// which travel before and after a call. A null pointer to it stands for one memory that all reach.
///
/// @par Order    `push` and `pull` are done when they return. Neither may overlap a kernel.
/// @par Threads  One at a time.
class memory_twins {
 public:
  /// One buffer; `host == kernel` if it is shared.
  struct twin {
    std::byte* host;
    std::byte* kernel;
  };

  memory_twins() = default;
  memory_twins(const memory_twins&) = delete;
  memory_twins& operator=(const memory_twins&) = delete;
  virtual ~memory_twins() = default;

  /// `bytes` of any content, aligned to 256.
  [[nodiscard]] virtual twin take(std::uint64_t bytes, twin_use use) = 0;
  /// The end of all buffers that were taken for a call.
  virtual void recycle() = 0;

  /// All buffers, from the host to the kernels, and back.
  virtual void push() = 0;
  virtual void pull() = 0;

  /// The same for a part of the host's copy of the window.
  virtual void push(std::span<const std::byte> part) = 0;
  virtual void pull(std::span<std::byte> part) = 0;
};

}  // namespace eptransport::support
