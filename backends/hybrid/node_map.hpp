// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Which ranks share a node: from the identity of their hosts, in any placement.
#pragma once

#include <eptransport/core/config.hpp>
#include <eptransport/core/result.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace eptransport {

/// Nodes of any size; their ranks need not follow each other. A node's number is the order in which
/// its first rank appears; a rank's local index is its order among the ranks of its node.
class node_map {
 public:
  /// @param hosts  identity of each rank's host: equal texts share a node. Linux has one in
  ///               /proc/sys/kernel/random/boot_id; names need not tell hosts apart.
  /// @par Errors   `invalid_argument` without ranks
  [[nodiscard]] static result<node_map> from_hosts(std::span<const std::string> hosts) {
    return make(hosts);
  }
  /// The same from any numbers.
  [[nodiscard]] static result<node_map> from_numbers(std::span<const int> nodes) {
    return make(nodes);
  }

  [[nodiscard]] std::int32_t ranks() const noexcept {
    return static_cast<std::int32_t>(node_.size());
  }
  [[nodiscard]] std::int32_t nodes() const noexcept {
    return static_cast<std::int32_t>(sizes_.size());
  }
  /// Node of each rank, and its index there. [R]
  [[nodiscard]] const std::vector<std::int32_t>& node() const noexcept { return node_; }
  [[nodiscard]] const std::vector<std::int32_t>& local() const noexcept { return local_; }
  [[nodiscard]] std::int32_t node(std::int32_t rank) const { return node_[index(rank)]; }
  [[nodiscard]] std::int32_t local(std::int32_t rank) const { return local_[index(rank)]; }
  [[nodiscard]] std::int32_t size(std::int32_t node) const { return sizes_[index(node)]; }

 private:
  static std::size_t index(std::int32_t at) { return static_cast<std::size_t>(at); }

  template <class Range>
  static result<node_map> make(const Range& identities) {
    if (identities.empty()) {
      return failure{errc::invalid_argument, "node_map", "no ranks: give the host of each"};
    }
    node_map map;
    std::map<typename Range::value_type, std::int32_t> known;
    for (const auto& each : identities) {
      const auto [entry, fresh] = known.try_emplace(each, map.nodes());
      if (fresh) map.sizes_.push_back(0);
      map.node_.push_back(entry->second);
      map.local_.push_back(map.sizes_[index(entry->second)]++);
    }
    return result<node_map>(std::move(map));
  }

  std::vector<std::int32_t> node_;
  std::vector<std::int32_t> local_;
  std::vector<std::int32_t> sizes_;
};

}  // namespace eptransport
