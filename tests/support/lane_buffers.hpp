// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The caller's memory of one rank and lane: guarded, poisoned, and shown to both sides.
#pragma once

#include <eptransport/kernels/call.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "support/guarded.hpp"
#include "support/oracle.hpp"
#include "support/received.hpp"
#include "support/runner.hpp"
#include "support/twins.hpp"

namespace eptransport::support {

/// What a lane's caller keeps in the window, behind the groups' region.
struct window_layout {
  std::uint64_t landing = 0;  ///< bytes for counted rows, 0 if they land in the lane's own zone
  std::uint64_t y = 0;        ///< bytes for a y that peers pull

  [[nodiscard]] std::uint64_t lane_bytes() const { return landing + y; }
};
[[nodiscard]] window_layout window_layout_of(const run_config& config, const problem& p);

/// Where one lane's parts of the window are, as the host sees them.
struct lane_window {
  std::byte* start = nullptr;           ///< of the window
  std::byte* kernel = nullptr;          ///< the same byte, as kernels see it
  std::byte* own_rows = nullptr;        ///< the lane's own counted zone
  std::span<std::byte> slotted_rows{};  ///< the lane's landing zones of slotted rows
  std::uint64_t mine = 0;               ///< offset of the `window_layout` part
};

/// How one call of the lane goes.
struct call_plan {
  dispatch_mode mode = dispatch_mode::slotted;
  bool cached = false;
  std::uint64_t kind = 0;  ///< of poison; also varies what must not matter
  int rank = 0;
  std::int64_t room = 0;  ///< counted: rows that this rank can take
  std::vector<std::byte> bias{};
};

/// Inputs, outputs and handle of one call.
class lane_buffers {
 public:
  /// @param twins  of this lane alone, if kernels use another memory than the host; or null
  lane_buffers(const run_config& config, const problem& p, int local_experts,
               std::uint64_t handle_bytes, const lane_window& window, memory_twins* twins);

  /// New inputs of this rank and room for what it will receive; everything else is poisoned, but
  /// the handle of a cached call and a y that peers may still pull.
  void prepare(const rank_input& own, const expected_dispatch& expected, call_plan plan);

  [[nodiscard]] dispatch_input input() const;
  [[nodiscard]] dispatch_output output() const;
  [[nodiscard]] combine_input experts_output() const;
  [[nodiscard]] combine_output combined() const;
  [[nodiscard]] dispatch_handle handle() const { return {handle_.kernel(), handle_.size()}; }

  /// Before kernels run: shows them what was prepared, poison included. After: brings it back, and
  /// what the kernels wrote. Nothing to do where host and kernels share their memory.
  void push();
  void pull();

  /// What the library wrote. `scale_offset`: where in-place scales lie, from their rows.
  [[nodiscard]] received result(std::uint64_t scale_offset);
  /// The same rows, with the metadata that was not asked for filled in by the oracle.
  [[nodiscard]] received completed(const received& got, const expected_dispatch& expected) const;

  [[nodiscard]] bool counted() const { return plan_.mode == dispatch_mode::counted; }
  [[nodiscard]] bool cached() const { return plan_.cached; }
  [[nodiscard]] bool pulls() const {
    return counted() && config_.transfer == combine_transfer::pull;
  }
  [[nodiscard]] bool returns_choices() const { return config_.return_weights && !pulls(); }
  [[nodiscard]] std::span<std::byte> y() const;
  [[nodiscard]] std::span<const std::byte> out() const { return out_.bytes(); }
  [[nodiscard]] const float* returned_choices() const { return choice_out_.data(); }
  [[nodiscard]] std::span<const std::byte> bias() const { return bias_.bytes(); }
  /// Output rows and scales, padding included.
  [[nodiscard]] std::span<const std::byte> rows() const;
  [[nodiscard]] std::span<const std::byte> scales() const;
  /// Counted: where rows land; slotted: nothing.
  [[nodiscard]] std::span<std::byte> landing() const;

  /// The floats that go back per choice, by the oracle's word for what was received.
  void fill_choice_values(const expected_dispatch& expected);

  /// All that a test may damage on purpose.
  [[nodiscard]] tamper_point touch(const char* call, int rank, int iteration) const;

  void poison_inputs(std::uint64_t kind);
  void poison_y(std::uint64_t kind);
  void poison_out(std::uint64_t kind);

  /// The first canary that was hit, or an empty string.
  [[nodiscard]] std::string damage() const;

 private:
  void copy_inputs(const rank_input& own);
  void make_room(const expected_dispatch& expected);
  void make_metadata(std::uint64_t count);
  void poison_outputs();
  void gather_columns();
  template <class T>
  void renew(guarded<T>& buffer, std::uint64_t count, std::uint64_t skew = 0,
             twin_use use = twin_use::call) {
    buffer = guarded<T>(count, skew, twins_, use);
  }
  /// A byte of the window, as kernels see it.
  [[nodiscard]] std::byte* for_kernels(const std::byte* in_window) const {
    return window_.kernel + (in_window - window_.start);
  }
  [[nodiscard]] bool in_place() const { return config_.layout == output_layout::in_place; }
  [[nodiscard]] bool scales_wanted() const;
  /// Counted rank-major rows stay where they landed.
  [[nodiscard]] bool rows_stay() const {
    return counted() && config_.layout == output_layout::rank_major;
  }

  const run_config& config_;
  const problem& problem_;
  std::uint64_t local_experts_;
  lane_window window_;
  memory_twins* twins_;
  window_layout layout_;
  call_plan plan_;
  std::int64_t tokens_ = 0;
  std::int64_t capacity_ = 0;
  std::int64_t scale_stride_ = 0;
  std::uint64_t scaled_rows_ = 0;  ///< rows of one block of column-major scales
  std::vector<std::byte> gathered_scales_;
  std::string wrong_column_;
  guarded<std::byte> x_, scales_, bias_;
  guarded<std::int64_t> wide_index_;
  guarded<std::int32_t> narrow_index_;
  guarded<float> weight_;
  guarded<std::int64_t> token_count_;
  guarded<std::byte> handle_;
  guarded<std::byte> rows_, out_scales_;
  guarded<std::int64_t> total_, expert_count_, expert_offset_, source_token_, host_counts_,
      dropped_;
  guarded<std::int32_t> row_expert_, topk_index_, source_rank_;
  guarded<float> row_weight_, topk_weight_;
  guarded<std::uint64_t> row_offset_;
  guarded<std::byte> y_, out_;
  guarded<float> choice_in_, choice_out_;
  guarded_part landing_, pulled_y_;
};

}  // namespace eptransport::support
