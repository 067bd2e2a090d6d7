// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The caller's memory of one rank and lane: guarded, poisoned, and shown to both sides.
#pragma once

#include <eptransport/kernels/call.hpp>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "support/guarded.hpp"
#include "support/oracle.hpp"
#include "support/received.hpp"
#include "support/runner.hpp"

namespace eptransport::support {

/// Inputs, outputs and handle of one call.
class lane_buffers {
 public:
  lane_buffers(const run_config& config, const problem& p, int local_experts,
               std::uint64_t handle_bytes);

  /// New inputs of this rank and room for what it will receive; everything else is poisoned.
  ///
  /// @param kind         of poison
  /// @param keep_handle  the dispatch is a cached one
  void prepare(const rank_input& own, const expected_dispatch& expected, std::uint64_t kind,
               bool keep_handle);

  [[nodiscard]] dispatch_input input(bool cached) const;
  [[nodiscard]] dispatch_output output() const;
  [[nodiscard]] combine_input experts_output() const;
  [[nodiscard]] combine_output combined() const { return {.out = out_.data()}; }
  [[nodiscard]] dispatch_handle handle() const { return {handle_.data(), handle_.size()}; }

  /// What the library wrote. `window`, `scale_offset`: where in-place rows and scales lie.
  [[nodiscard]] received result(const std::byte* window, std::uint64_t scale_offset) const;
  /// The same rows, with the metadata that was not asked for filled in by the oracle.
  [[nodiscard]] received completed(const received& got, const expected_dispatch& expected) const;

  [[nodiscard]] std::uint16_t* y() const { return y_.data(); }
  [[nodiscard]] std::span<const std::uint16_t> out() const { return {out_.data(), out_.size()}; }
  [[nodiscard]] std::span<const std::byte> rows() const { return rows_.bytes(); }
  [[nodiscard]] std::span<const std::byte> scales() const { return out_scales_.bytes(); }

  /// All that a test may damage on purpose.
  [[nodiscard]] tamper_point touch(const char* call, int rank, int iteration) const;

  void poison_inputs(std::uint64_t kind);
  void poison_y(std::uint64_t kind) { poison(y_.bytes(), kind); }
  void poison_out(std::uint64_t kind) { poison(out_.bytes(), kind); }

  /// The first canary that was hit, or an empty string.
  [[nodiscard]] std::string damage() const;

 private:
  void make_room(const expected_dispatch& expected);
  void poison_outputs(std::uint64_t kind);

  const run_config& config_;
  const problem& problem_;
  std::uint64_t local_experts_;
  std::int64_t tokens_ = 0;
  std::int64_t capacity_ = 0;
  guarded<std::byte> x_, scales_;
  guarded<std::int64_t> wide_index_;
  guarded<std::int32_t> narrow_index_;
  guarded<float> weight_;
  guarded<std::int64_t> token_count_;
  guarded<std::byte> handle_;
  guarded<std::byte> rows_, out_scales_;
  guarded<std::int64_t> total_, expert_count_, expert_offset_, source_token_, host_counts_;
  guarded<std::int32_t> row_expert_, topk_index_, source_rank_;
  guarded<float> row_weight_, topk_weight_;
  guarded<std::uint64_t> row_offset_;
  guarded<std::uint16_t> y_, out_;
};

}  // namespace eptransport::support
