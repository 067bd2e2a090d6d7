// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Runs a rank's kernel on host threads.
#pragma once

#include <eptransport/core/config.hpp>
#include <eptransport/core/result.hpp>
#include <eptransport/core/thread_group.hpp>
#include <eptransport/core/transport.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <new>
#include <string>
#include <thread>
#include <vector>

namespace eptransport {

/// Host kernels run in the calling thread, in order: there is one stream.
struct host_stream {};

/// Hooks through which a simulator follows the threads of a launch. All null by default.
struct host_thread_hooks {
  void (*enter)(void*, std::uint32_t) = nullptr;  ///< first act of the helper that is worker n
  void (*leave)(void*) = nullptr;                 ///< its last act
  void (*spawn)(void*, std::uint32_t) = nullptr;  ///< before that many helper threads start
  void (*join)(void*) = nullptr;                  ///< before the caller joins them
  relax_hook relax{};
  void* context = nullptr;
};

/// Worker 0 is the calling thread; the others are started for the launch and joined by it.
///
/// @par Threads  One host thread at a time per object.
class host_executor {
 public:
  using stream_type = host_stream;
  using worker_type = host_worker;
  static constexpr bool synchronous = true;

  /// @param workers  host threads per launch, at least 1
  explicit host_executor(std::uint32_t workers = 1, host_thread_hooks hooks = {})
      : workers_(workers == 0 ? 1 : workers), hooks_(hooks) {}

  [[nodiscard]] std::uint32_t workers(std::uint32_t max_sms) const noexcept {
    return max_sms == 0 || max_sms > workers_ ? workers_ : max_sms;
  }

  [[nodiscard]] result<std::byte*> allocate(std::uint64_t bytes) {
    void* memory = ::operator new(bytes, std::align_val_t{alignment}, std::nothrow);
    if (memory == nullptr) {
      return failure{errc::out_of_memory, "allocate",
                     std::to_string(bytes) + " bytes of host memory"};
    }
    std::memset(memory, 0, bytes);
    return static_cast<std::byte*>(memory);
  }

  [[nodiscard]] result<std::byte*> allocate_shared(std::uint64_t bytes) { return allocate(bytes); }

  void release(std::byte* memory) noexcept {
    ::operator delete(memory, std::align_val_t{alignment}, std::nothrow);
  }

  [[nodiscard]] result<void> write(std::byte* dst, const std::byte* src, std::uint64_t bytes) {
    if (bytes != 0) std::memcpy(dst, src, bytes);
    return {};
  }

  [[nodiscard]] result<void> read(std::byte* dst, const std::byte* src, std::uint64_t bytes) {
    return write(dst, src, bytes);
  }

  [[nodiscard]] result<void> synchronize() { return {}; }

  template <class Call>
  [[nodiscard]] result<void> launch(const Call& call, std::uint32_t max_sms, host_stream = {}) {
    const std::uint32_t count = workers(max_sms);
    const auto work = [&](std::uint32_t index) {
      const host_worker worker(index, count, call.words(), hooks_.relax);
      call(worker);
    };
    if (count > 1 && hooks_.spawn != nullptr) hooks_.spawn(hooks_.context, count - 1);
    std::vector<std::thread> helpers;
    for (std::uint32_t index = 1; index < count; ++index) {
      helpers.emplace_back([&work, this, index] {
        if (hooks_.enter != nullptr) hooks_.enter(hooks_.context, index);
        work(index);
        if (hooks_.leave != nullptr) hooks_.leave(hooks_.context);
      });
    }
    work(0);
    if (count > 1 && hooks_.join != nullptr) hooks_.join(hooks_.context);
    for (std::thread& helper : helpers) helper.join();
    return {};
  }

 private:
  static constexpr std::size_t alignment = 256;

  std::uint32_t workers_;
  host_thread_hooks hooks_;
};

static_assert(Executor<host_executor>);

}  // namespace eptransport
