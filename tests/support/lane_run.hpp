// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief One lane of one rank, apart from the wire: its inputs, what comes of them, the checks.
#pragma once

#include <eptransport/core/fault.hpp>
#include <eptransport/core/result.hpp>
#include <eptransport/kernels/call.hpp>
#include <eptransport/kernels/layout.hpp>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "support/lane_buffers.hpp"
#include "support/oracle.hpp"
#include "support/received.hpp"
#include "support/routing.hpp"
#include "support/runner.hpp"

namespace eptransport::support {

/// Draws, expects, verifies. Each check returns the first difference, or an empty string.
class lane_run {
 public:
  lane_run(const run_config& config, const router& routes, const problem& p, int rank, int lane)
      : config_(config),
        routes_(routes),
        problem_(p),
        rank_(rank),
        lane_(lane),
        experts_(experts_of(p, rank)),
        expert_(reference_expert(p)) {}

  /// Before the first iteration. `scale_offset`: where in-place scales lie, from their rows.
  void place(std::uint64_t handle_bytes, std::uint64_t scale_offset, const lane_window& window,
             memory_twins* twins);

  /// Rows for other nodes go through relays; node of each rank.
  void use_relays(std::vector<int> nodes) { nodes_ = std::move(nodes); }

  /// Draws the inputs of all ranks, and poisons what this call may write.
  void prepare(int iteration);

  [[nodiscard]] lane_buffers& buffers() { return *buffers_; }
  [[nodiscard]] const lane_buffers& buffers() const { return *buffers_; }
  /// Of poison, in this iteration.
  [[nodiscard]] std::uint64_t kind() const {
    return static_cast<std::uint64_t>(iteration_ + lane_ + rank_);
  }

  [[nodiscard]] std::string verify_dispatch();
  /// The experts; also makes the combine's outputs new. A y that peers may pull stays as it is.
  void run_stage();
  [[nodiscard]] std::string verify_combine();

  /// True if this dispatch does not fit somewhere and rows may not be dropped.
  [[nodiscard]] bool must_overflow() const;
  /// The error names a rank that has no room, what it has and what it would need.
  [[nodiscard]] std::string verify_overflow(const failure& error, const fault_record& fault) const;
  /// No row moved. After a barrier of all ranks.
  [[nodiscard]] std::string verify_untouched() const;

  /// Choices that named no expert, of all dispatches so far that were not cached.
  [[nodiscard]] std::uint64_t bad_indices() const { return bad_indices_; }
  /// Rows that this rank sends in this call, and receives; its own included.
  [[nodiscard]] std::int64_t rows_sent() const;
  [[nodiscard]] std::int64_t rows_received() const { return expected_.landed; }
  /// Rows that this rank sends to itself.
  [[nodiscard]] std::int64_t rows_kept() const {
    return expect_sent(problem_, own())[static_cast<std::size_t>(rank_)];
  }
  /// What this rank sends to others in the dispatch; `geo` is that of the lane's group.
  [[nodiscard]] traffic_sum dispatch_traffic(const geometry& geo) const;
  /// The same of a combine. `alone`: it follows no dispatch.
  [[nodiscard]] traffic_sum combine_traffic(const geometry& geo, bool alone) const;
  [[nodiscard]] const expected_dispatch& expected() const { return expected_; }
  [[nodiscard]] const rank_input& own() const { return inputs_[static_cast<std::size_t>(rank_)]; }

 private:
  void expect();
  [[nodiscard]] bool near(int peer) const {
    return nodes_[static_cast<std::size_t>(peer)] == nodes_[static_cast<std::size_t>(rank_)];
  }
  [[nodiscard]] bool relays_for(const geometry& geo, int source) const;
  [[nodiscard]] traffic_sum relayed_exchange(const geometry& geo, bool rows) const;
  [[nodiscard]] traffic_sum relayed_combine(const geometry& geo, bool alone) const;
  [[nodiscard]] bool per_expert() const {
    return config_.layout == output_layout::expert_major || config_.layout == output_layout::padded;
  }
  [[nodiscard]] std::string check_landing(std::int64_t first) const;

  const run_config& config_;
  const router& routes_;
  const problem& problem_;
  int rank_;
  int lane_;
  int iteration_ = 0;
  std::vector<std::int32_t> experts_;
  expert_function expert_;
  std::uint64_t scale_offset_ = 0;
  std::unique_ptr<lane_buffers> buffers_;
  std::vector<rank_input> inputs_;
  expected_dispatch expected_;
  std::vector<std::int64_t> room_;  // of each rank, in a counted call; else empty
  std::uint64_t bad_indices_ = 0;
  std::vector<int> nodes_;  // not empty: relays
  bool offered_ = false;    // peers may pull this iteration's y
};

}  // namespace eptransport::support
