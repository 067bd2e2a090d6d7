// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief `--nodes`, and what crossed from node to node.
#pragma once

#include <string>
#include <vector>

#include "ep_bench/options.hpp"

namespace eptransport::bench {

/// Reads "N" (as many nodes, as equal as can be) or "S0,S1,.." (their sizes).
/// @returns what was expected, or nothing
[[nodiscard]] std::string parse_nodes(const std::string& text, std::vector<int>& to);

/// Places the ranks on the nodes that were asked for. Sizes must add up to the ranks; `ranks_given`
/// false: they say how many there are.
/// @returns what is wrong, or nothing
[[nodiscard]] std::string place_on_nodes(options& asked);

/// Messages and bytes between and inside nodes, where ranks have nodes; else nothing.
[[nodiscard]] std::string node_lines(const measurement& row);

}  // namespace eptransport::bench
