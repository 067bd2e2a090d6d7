// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief libfabric's objects as owners, its codes as errors, and the blob that ranks exchange.
#pragma once

#include <eptransport/core/config.hpp>
#include <eptransport/core/result.hpp>

#include <rdma/fabric.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <system_error>
#include <vector>

namespace eptransport::proxy::detail {

/// Closes any object of libfabric.
struct fabric_close {
  template <class T>
  void operator()(T* object) const noexcept {
    (void)fi_close(&object->fid);
  }
};
template <class T>
using fabric_owner = std::unique_ptr<T, fabric_close>;

struct info_free {
  void operator()(fi_info* info) const noexcept { fi_freeinfo(info); }
};
using info_owner = std::unique_ptr<fi_info, info_free>;

/// Category of libfabric's error numbers, as positive values.
inline const std::error_category& fabric_category() noexcept {
  class category final : public std::error_category {
   public:
    [[nodiscard]] const char* name() const noexcept override { return "libfabric"; }
    [[nodiscard]] std::string message(int value) const override { return fi_strerror(value); }
  };
  static const category instance;
  return instance;
}

/// A call's negative return value as a failure.
[[nodiscard]] inline failure fabric_failure(long returned, const char* call,
                                            const std::string& detail = {}) {
  return {std::error_code(static_cast<int>(-returned), fabric_category()), call, detail};
}

/// Writes numbers and byte strings one behind the other.
class blob_writer {
 public:
  void number(std::uint64_t value) { append(&value, sizeof value); }
  void bytes(std::span<const std::byte> data) {
    number(data.size());
    append(data.data(), data.size());
  }
  void text(const std::string& value) { bytes(std::as_bytes(std::span(value))); }
  [[nodiscard]] std::vector<std::byte> take() && { return std::move(blob_); }

 private:
  void append(const void* from, std::size_t n) {
    const auto* first = static_cast<const std::byte*>(from);
    blob_.insert(blob_.end(), first, first + n);
  }
  std::vector<std::byte> blob_;
};

/// Reads them again; what came from outside is not believed.
class blob_reader {
 public:
  explicit blob_reader(std::span<const std::byte> blob) noexcept : rest_(blob) {}

  /// False once something did not fit; then all values are 0 and empty.
  [[nodiscard]] bool valid() const noexcept { return valid_; }
  [[nodiscard]] std::uint64_t number() noexcept {
    std::uint64_t value = 0;
    if (const auto from = take(sizeof value); valid_)
      std::memcpy(&value, from.data(), sizeof value);
    return value;
  }
  [[nodiscard]] std::span<const std::byte> bytes() noexcept { return take(number()); }
  [[nodiscard]] std::string text() {
    const auto from = bytes();
    return {reinterpret_cast<const char*>(from.data()), from.size()};
  }

 private:
  std::span<const std::byte> take(std::uint64_t n) noexcept {
    if (n > rest_.size()) {
      valid_ = false;
      rest_ = {};
      return {};
    }
    const auto taken = rest_.first(n);
    rest_ = rest_.subspan(n);
    return taken;
  }
  std::span<const std::byte> rest_;
  bool valid_ = true;
};

}  // namespace eptransport::proxy::detail
