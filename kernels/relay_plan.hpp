// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief From a node of each rank to what relays need: tables, sizes, places.
#pragma once

#include <eptransport/core/config.hpp>
#include <eptransport/kernels/layout.hpp>
#include <eptransport/kernels/relay_layout.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <vector>

namespace eptransport::detail {

/// A node table as one array: node [R], local [R], first [N + 1], ranks [R].
class node_words {
 public:
  node_words() = default;

  /// @param given  any number per node; empty: eight ranks each
  node_words(std::span<const std::int32_t> given, std::int32_t ranks)
      : ranks_(static_cast<std::size_t>(ranks)) {
    std::map<std::int32_t, std::int32_t> known;
    std::vector<std::vector<std::int32_t>> members;
    std::vector<std::int32_t> local;
    for (std::int32_t r = 0; r < ranks; ++r) {
      const std::int32_t name = given.empty() ? r / 8 : given[static_cast<std::size_t>(r)];
      const auto [entry, fresh] = known.try_emplace(name, static_cast<std::int32_t>(known.size()));
      if (fresh) members.emplace_back();
      auto& node = members[static_cast<std::size_t>(entry->second)];
      words_.push_back(entry->second);
      local.push_back(static_cast<std::int32_t>(node.size()));
      node.push_back(r);
    }
    words_.insert(words_.end(), local.begin(), local.end());
    words_.push_back(0);
    for (const auto& node : members) {
      words_.push_back(words_.back() + static_cast<std::int32_t>(node.size()));
    }
    for (const auto& node : members) words_.insert(words_.end(), node.begin(), node.end());
    nodes_ = static_cast<std::int32_t>(members.size());
  }

  [[nodiscard]] std::int32_t nodes() const { return nodes_; }
  [[nodiscard]] const std::vector<std::int32_t>& words() const { return words_; }
  [[nodiscard]] std::span<const std::int32_t> of_ranks() const {
    return std::span(words_).first(ranks_);
  }

  /// The table, if the array lies at `start`.
  [[nodiscard]] node_table at(const std::int32_t* start) const {
    const std::int32_t* first = start + 2 * ranks_;
    return {start, start + ranks_, first, first + nodes_ + 1, nodes_};
  }

 private:
  std::size_t ranks_ = 0;
  std::int32_t nodes_ = 0;
  std::vector<std::int32_t> words_;
};

/// Sources that the busiest relay serves, and ranks of the largest node.
struct relay_extent {
  std::int32_t sources = 0;
  std::int32_t node_size = 1;
};

[[nodiscard]] inline relay_extent extent_of(const node_table& table, std::int32_t ranks) {
  relay_extent most;
  for (std::int32_t r = 0; r < ranks; ++r) {
    most.sources = std::max(most.sources, relayed_count(table, r));
    most.node_size = std::max(most.node_size, table.size(table.node[r]));
  }
  return most;
}

}  // namespace eptransport::detail
