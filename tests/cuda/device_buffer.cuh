// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Device memory for tests: canaries on both sides, poisoned, copied as vectors.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "support/guarded.hpp"

namespace eptransport::support {

/// Ends the program when a CUDA call of a test or benchmark itself fails: nothing after it counts.
inline void must(cudaError_t status) {
  if (status == cudaSuccess) return;
  std::fprintf(stderr, "CUDA: %s, %s\n", cudaGetErrorName(status), cudaGetErrorString(status));
  std::abort();
}

/// `count` values of T in device memory between two canary zones.
template <class T>
class device_buffer {
 public:
  device_buffer() = default;
  /// @param kind  of poison
  explicit device_buffer(std::uint64_t count, std::uint64_t kind = 0) { resize(count, kind); }
  explicit device_buffer(const std::vector<T>& values) : device_buffer(values.size()) {
    write(values);
  }
  device_buffer(device_buffer&& other) noexcept { swap(other); }
  device_buffer& operator=(device_buffer&& other) noexcept {
    swap(other);
    return *this;
  }
  ~device_buffer() {
    if (memory_ != nullptr) (void)cudaFree(memory_);
  }

  /// Another size; everything is poisoned, the canaries are whole.
  void resize(std::uint64_t count, std::uint64_t kind) {
    count_ = count;
    if (memory_ == nullptr || total() > room_) {
      if (memory_ != nullptr) must(cudaFree(memory_));
      void* memory = nullptr;
      room_ = total();
      must(cudaMalloc(&memory, room_));
      memory_ = static_cast<std::byte*>(memory);
    }
    must(cudaMemset(memory_, canary, zone));
    must(cudaMemset(memory_ + zone + bytes(), canary, zone));
    poison(kind);
  }

  [[nodiscard]] T* data() const noexcept {
    return memory_ == nullptr ? nullptr : reinterpret_cast<T*>(memory_ + zone);
  }
  [[nodiscard]] std::uint64_t size() const noexcept { return count_; }
  [[nodiscard]] std::uint64_t bytes() const noexcept { return count_ * sizeof(T); }

  void poison(std::uint64_t kind) {
    if (count_ != 0) must(cudaMemset(data(), std::to_integer<int>(poison_byte(kind)), bytes()));
  }
  /// Writes from the start; the rest keeps what it holds.
  void write(const std::vector<T>& values) {
    if (values.size() > count_) must(cudaErrorInvalidValue);
    if (values.empty()) return;
    must(cudaMemcpy(data(), values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice));
  }
  /// Another size, filled with the values.
  void assign(const std::vector<T>& values) {
    resize(values.size(), 0);
    write(values);
  }
  [[nodiscard]] std::vector<T> read() const {
    std::vector<T> values(count_);
    if (count_ != 0) must(cudaMemcpy(values.data(), data(), bytes(), cudaMemcpyDeviceToHost));
    return values;
  }

  /// Where a canary was hit, in bytes relative to the buffer; empty if nowhere.
  [[nodiscard]] std::string damage(const std::string& name) const {
    if (memory_ == nullptr) return {};
    const std::string before = look(0, name + " before its start");
    return before.empty() ? look(zone + bytes(), name + " after its end") : before;
  }

 private:
  static constexpr std::uint64_t zone = 256;
  static constexpr int canary = 0xC3;

  void swap(device_buffer& other) noexcept {
    std::swap(count_, other.count_);
    std::swap(room_, other.room_);
    std::swap(memory_, other.memory_);
  }
  [[nodiscard]] std::uint64_t total() const noexcept { return zone + bytes() + zone; }

  [[nodiscard]] std::string look(std::uint64_t from, const std::string& what) const {
    unsigned char seen[zone];
    must(cudaMemcpy(seen, memory_ + from, zone, cudaMemcpyDeviceToHost));
    for (std::uint64_t at = 0; at < zone; ++at) {
      if (seen[at] != canary) {
        return "canary of " + what + " hit at byte " + std::to_string(at) + " of it";
      }
    }
    return {};
  }

  std::uint64_t count_ = 0;
  std::uint64_t room_ = 0;
  std::byte* memory_ = nullptr;
};

}  // namespace eptransport::support
