// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief What a relay needs: who shares its node, and where rows lie that cross to a node once.
///
/// A row for a node travels to the source's *rail* there, the rank whose local index is that of the
/// source modulo the node's size. Window of a lane, behind the parts that layout.hpp lists:
///
///     zones    [2][S]  head (header, rows per rank of the node) + node slots, or + counts
///     staging  [2][N]  their sources, by parity of the epoch
///     rows     [S][C]  node slots of counted rows
///     staged_rows      their sources
///     returns  [S][T]  sums of a node's partial rows: sources of what goes back
///
/// S: sources that the busiest relay serves. A node slot is a slot and, per choice, where its row
/// goes at the rank that owns it (-1: not in this node, or not the first choice there).
#pragma once

#include <eptransport/core/config.hpp>

#include <cstddef>
#include <cstdint>

namespace eptransport {

/// Ranks by node, in memory that kernels reach.
struct node_table {
  const std::int32_t* node = nullptr;   ///< [R] of each rank
  const std::int32_t* local = nullptr;  ///< [R] index among its node's ranks
  const std::int32_t* first = nullptr;  ///< [nodes + 1] where a node's ranks begin in `ranks`
  const std::int32_t* ranks = nullptr;  ///< [R] node by node, ascending
  std::int32_t nodes = 0;

  [[nodiscard]] EPT_HOST_DEVICE std::int32_t size(std::int32_t n) const noexcept {
    return first[n + 1] - first[n];
  }
  [[nodiscard]] EPT_HOST_DEVICE std::int32_t rank_at(std::int32_t n,
                                                     std::int32_t i) const noexcept {
    return ranks[first[n] + i];
  }
  /// Who relays for `source` in node n.
  [[nodiscard]] EPT_HOST_DEVICE std::int32_t rail(std::int32_t source,
                                                  std::int32_t n) const noexcept {
    return rank_at(n, local[source] % size(n));
  }
};

/// The sources that a rank relays for, in ascending order of node, then rank. A source's index
/// among them is its place in the relay's zones.
class relayed_sources {
 public:
  EPT_HOST_DEVICE relayed_sources(const node_table& table, std::int32_t relay)
      : table_(&table),
        own_(table.node[relay]),
        step_(table.size(own_)),
        start_(table.local[relay]),
        at_(start_) {
    settle();
  }
  [[nodiscard]] EPT_HOST_DEVICE bool done() const { return node_ >= table_->nodes; }
  [[nodiscard]] EPT_HOST_DEVICE std::int32_t source() const { return table_->rank_at(node_, at_); }
  [[nodiscard]] EPT_HOST_DEVICE std::int32_t index() const { return index_; }
  EPT_HOST_DEVICE void next() {
    at_ += step_;
    ++index_;
    settle();
  }

 private:
  EPT_HOST_DEVICE void settle() {
    while (node_ < table_->nodes && (node_ == own_ || at_ >= table_->size(node_))) {
      ++node_;
      at_ = start_;
    }
  }

  const node_table* table_;
  std::int32_t own_;
  std::int32_t step_;
  std::int32_t start_;
  std::int32_t at_;
  std::int32_t node_ = 0;
  std::int32_t index_ = 0;
};

/// How many sources a rank relays for.
[[nodiscard]] EPT_HOST_DEVICE inline std::int32_t relayed_count(const node_table& table,
                                                                std::int32_t relay) {
  const std::int32_t own = table.node[relay];
  const std::int32_t step = table.size(own);
  std::int32_t count = 0;
  for (std::int32_t n = 0; n < table.nodes; ++n) {
    const std::int32_t left = table.size(n) - table.local[relay];
    if (n != own && left > 0) count += (left + step - 1) / step;
  }
  return count;
}

/// The index of `source` among those that its rail in node n relays for.
[[nodiscard]] EPT_HOST_DEVICE inline std::int32_t relayed_index(const node_table& table,
                                                                std::int32_t source,
                                                                std::int32_t n) {
  const std::int32_t step = table.size(n);
  const std::int32_t start = table.local[source] % step;
  std::int32_t index = table.local[source] / step;
  for (std::int32_t below = 0; below < table.node[source]; ++below) {
    const std::int32_t left = table.size(below) - start;
    if (below != n && left > 0) index += (left + step - 1) / step;
  }
  return index;
}

/// Sizes and places of `message_shape::per_node`; all zero in other shapes.
struct relay_layout {
  node_table table{};
  std::int32_t sources = 0;      ///< S
  std::int64_t tokens = 0;       ///< of a source in one call
  std::uint64_t head_bytes = 0;  ///< of a message to a relay
  std::uint64_t slot_bytes = 0;  ///< of a node slot
  std::uint64_t zone_bytes = 0;  ///< and of its source
  std::uint64_t zones = 0;       ///< offsets from the start of the window
  std::uint64_t staging = 0;
  std::uint64_t rows = 0;
  std::uint64_t staged_rows = 0;
  std::uint64_t returns = 0;
  std::int64_t rows_per_message = 0;     ///< node slots that fit one put behind the head
  std::int64_t counted_per_message = 0;  ///< node slots that fit one put

  /// Zone for the source with that index; offset in the window.
  [[nodiscard]] EPT_HOST_DEVICE std::uint64_t zone(std::uint64_t epoch,
                                                   std::int32_t index) const noexcept {
    return zones + ((epoch & 1u) * static_cast<std::uint64_t>(sources) +
                    static_cast<std::uint64_t>(index)) *
                       zone_bytes;
  }
  /// Source of the message to node n; offset in the window.
  [[nodiscard]] EPT_HOST_DEVICE std::uint64_t staged(std::uint64_t epoch,
                                                     std::int32_t n) const noexcept {
    return staging + ((epoch & 1u) * static_cast<std::uint64_t>(table.nodes) +
                      static_cast<std::uint64_t>(n)) *
                         zone_bytes;
  }
  /// A node slot behind the head.
  [[nodiscard]] EPT_HOST_DEVICE std::uint64_t slot(std::int64_t index) const noexcept {
    return head_bytes + static_cast<std::uint64_t>(index) * slot_bytes;
  }
  /// Row i of a source in the arrays that have a row per token of each source; bytes of one.
  [[nodiscard]] EPT_HOST_DEVICE std::uint64_t at(std::int32_t index, std::int64_t row,
                                                 std::uint64_t bytes) const noexcept {
    return static_cast<std::uint64_t>(index * tokens + row) * bytes;
  }
};

}  // namespace eptransport
