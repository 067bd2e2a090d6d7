// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Memory that kernels use, where the host cannot reach it: each buffer has a twin.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

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
/// Buffers lie side by side in chunks, so that a copy or two move them all.
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

  memory_twins(const memory_twins&) = delete;
  memory_twins& operator=(const memory_twins&) = delete;
  virtual ~memory_twins() = default;

  /// `bytes` of any content, aligned to 256.
  [[nodiscard]] twin take(std::uint64_t bytes, twin_use use);
  /// The end of all buffers that were taken for a call.
  void recycle();

  /// All buffers, from the host to the kernels, and back.
  void push();
  void pull();

  /// The same for a part of the host's copy of the window.
  void push(std::span<const std::byte> part);
  void pull(std::span<std::byte> part);

 protected:
  /// @param image, window  the first byte of the window for the host, and for kernels
  memory_twins(std::byte* image, std::byte* window) : image_(image), window_(window) {}
  /// For destructors.
  void release_all();

  /// Aligned to 256.
  [[nodiscard]] virtual twin allocate(std::uint64_t bytes, bool shared) = 0;
  virtual void release(const twin& memory) = 0;
  /// May return before it is done; `wait` waits for all.
  virtual void copy(std::byte* to, const std::byte* from, std::uint64_t bytes) = 0;
  virtual void wait() {}

 private:
  struct chunk {
    twin memory;
    std::uint64_t size;
    std::uint64_t used;
  };

  [[nodiscard]] std::vector<chunk>& of(twin_use use) {
    return chunks_[static_cast<std::size_t>(use)];
  }

  std::byte* image_;
  std::byte* window_;
  std::vector<chunk> chunks_[3];
};

}  // namespace eptransport::support
