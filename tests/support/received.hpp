// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief What the library wrote, in plain host memory: what the checks and the experts read.
#pragma once

#include <cstddef>
#include <cstdint>

namespace eptransport::support {

/// One rank's dispatch output. A null pointer: the caller did not ask for it.
struct received {
  const std::byte* rows = nullptr;
  const std::byte* scales = nullptr;
  /// in_place: row i lies that many bytes after `rows`, its scales as many after `scales`.
  const std::uint64_t* row_offset = nullptr;
  bool packed_scales = false;  ///< in_place: the scales lie row by row all the same
  const std::int64_t* total = nullptr;
  const std::int64_t* expert_count = nullptr;
  const std::int64_t* expert_offset = nullptr;
  const std::int32_t* row_expert = nullptr;
  const float* row_weight = nullptr;
  const std::int32_t* topk_index = nullptr;
  const float* topk_weight = nullptr;
  const std::int32_t* source_rank = nullptr;
  const std::int64_t* source_token = nullptr;
  const std::int64_t* host_counts = nullptr;
  const std::int64_t* dropped = nullptr;

  /// Row `position`; `bytes` per row.
  [[nodiscard]] const std::byte* row(std::int64_t position, std::uint64_t bytes) const noexcept {
    return rows + offset(position, bytes);
  }
  [[nodiscard]] const std::byte* scale(std::int64_t position, std::uint64_t bytes) const noexcept {
    if (bytes == 0) return nullptr;
    const std::uint64_t packed = static_cast<std::uint64_t>(position) * bytes;
    return scales + (packed_scales ? packed : offset(position, bytes));
  }

 private:
  [[nodiscard]] std::uint64_t offset(std::int64_t position, std::uint64_t bytes) const noexcept {
    const auto index = static_cast<std::uint64_t>(position);
    return row_offset != nullptr ? row_offset[index] : index * bytes;
  }
};

}  // namespace eptransport::support
