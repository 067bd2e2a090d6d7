// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The registered memory of one emulated NIC: keys, ranges, rights.
#pragma once

#include <eptransport/core/config.hpp>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <unordered_map>

namespace eptransport::gdaki::emulator {

/// What a registration allows; local reads are always allowed.
enum access : std::uint8_t {
  local_read = 0,
  local_write = 1,
  remote_write = 2,
  remote_read = 4,
  remote_atomic = 8,
};

/// One registration.
struct region {
  std::byte* base = nullptr;
  std::uint64_t bytes = 0;
  std::uint64_t address = 0;  ///< by which requests name the first byte; mostly `base` as a number
  std::uint32_t lkey = 0;
  std::uint32_t rkey = 0;
  std::uint8_t rights = local_read;
};

/// @par Threads  One at a time.
class memory_map {
 public:
  void add(const region& r) {
    by_lkey_[r.lkey] = r;
    by_rkey_[r.rkey] = r;
  }

  /// Requests that are being executed fail from here on.
  void remove(std::uint32_t lkey) {
    const auto found = by_lkey_.find(lkey);
    if (found == by_lkey_.end()) return;
    by_rkey_.erase(found->second.rkey);
    by_lkey_.erase(found);
  }

  /// Where `bytes` bytes at `address` lie, or null if the key, the range or a right is wrong.
  [[nodiscard]] std::byte* local(std::uint32_t lkey, std::uint64_t address, std::uint64_t bytes,
                                 std::uint8_t rights) const {
    return resolve(by_lkey_, lkey, {address, bytes, rights});
  }
  /// The same for a remote key.
  [[nodiscard]] std::byte* remote(std::uint32_t rkey, std::uint64_t address, std::uint64_t bytes,
                                  std::uint8_t rights) const {
    return resolve(by_rkey_, rkey, {address, bytes, rights});
  }

 private:
  using table = std::unordered_map<std::uint32_t, region>;
  struct wish {
    std::uint64_t address;
    std::uint64_t bytes;
    std::uint8_t rights;
  };

  [[nodiscard]] static std::byte* resolve(const table& keys, std::uint32_t key, wish w) {
    const auto found = keys.find(key);
    if (found == keys.end()) return nullptr;
    const region& r = found->second;
    if ((r.rights & w.rights) != w.rights) return nullptr;
    if (w.address < r.address || w.bytes > r.bytes) return nullptr;
    const std::uint64_t offset = w.address - r.address;
    return offset <= r.bytes - w.bytes ? r.base + offset : nullptr;
  }

  table by_lkey_;
  table by_rkey_;
};

namespace detail {

/// Writes payload. Aligned words arrive whole and release what was written before them, so that a
/// thread may wait for one.
inline void deliver(std::byte* to, const std::byte* from, std::uint64_t bytes) noexcept {
  const auto at = reinterpret_cast<std::uintptr_t>(to);
  if (bytes == 8 && at % 8 == 0) {
    std::uint64_t word = 0;
    std::memcpy(&word, from, 8);
    std::atomic_ref(*reinterpret_cast<std::uint64_t*>(to)).store(word, std::memory_order_release);
  } else if (bytes == 4 && at % 4 == 0) {
    std::uint32_t word = 0;
    std::memcpy(&word, from, 4);
    std::atomic_ref(*reinterpret_cast<std::uint32_t*>(to)).store(word, std::memory_order_release);
  } else if (bytes != 0) {
    std::memmove(to, from, bytes);
  }
}

}  // namespace detail

}  // namespace eptransport::gdaki::emulator
