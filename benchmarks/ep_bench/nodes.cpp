// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Ranks on nodes, on the command line and under the table.
#include "ep_bench/nodes.hpp"

#include <charconv>
#include <cstdio>
#include <numeric>

namespace eptransport::bench {

std::string parse_nodes(const std::string& text, std::vector<int>& to) {
  to.clear();
  for (std::size_t at = 0; at <= text.size();) {
    const std::size_t comma = std::min(text.find(',', at), text.size());
    int value = 0;
    const auto [end, code] = std::from_chars(text.data() + at, text.data() + comma, value);
    if (code != std::errc() || end != text.data() + comma || value < 1 || value > 4096) {
      return "expected how many nodes, or the ranks of each with commas between, 1 to 4096";
    }
    to.push_back(value);
    at = comma + 1;
  }
  return {};
}

std::string place_on_nodes(options& asked) {
  support::run_config& config = asked.config;
  std::vector<int> sizes = asked.node_sizes;
  if (sizes.empty()) return {};
  if (sizes.size() == 1) {
    const int nodes = sizes[0];
    if (nodes > config.ranks) {
      return "--nodes " + std::to_string(nodes) + " for " + std::to_string(config.ranks) + " ranks";
    }
    sizes.assign(static_cast<std::size_t>(nodes), config.ranks / nodes);
    for (int n = 0; n < config.ranks % nodes; ++n) ++sizes[static_cast<std::size_t>(n)];
  }
  const int all = std::accumulate(sizes.begin(), sizes.end(), 0);
  if (!asked.ranks_given) config.ranks = all;
  if (all != config.ranks) {
    return "--nodes have " + std::to_string(all) + " ranks together, --ranks is " +
           std::to_string(config.ranks);
  }
  config.nodes.clear();
  for (std::size_t n = 0; n < sizes.size(); ++n) {
    config.nodes.insert(config.nodes.end(), static_cast<std::size_t>(sizes[n]),
                        static_cast<int>(n));
  }
  return {};
}

std::string node_lines(const measurement& row) {
  const support::run_result& r = row.result;
  if (r.ranks.empty() || r.calls == 0) return {};
  std::string text;
  for (const call_kind call : {call_kind::dispatch, call_kind::combine}) {
    const rooflines all = rooflines_of(r, call);
    if (all.inter_messages <= 0) continue;
    char line[200];
    std::snprintf(line, sizeof line,
                  "\n%s %s between nodes: %.1f messages, %.1f KiB; inside: %.1f messages, %.1f KiB",
                  row.wire.c_str(), call == call_kind::dispatch ? "dispatch" : "combine",
                  all.inter_messages, all.inter_bytes / 1024, all.messages - all.inter_messages,
                  (all.bytes - all.inter_bytes) / 1024);
    text += line;
  }
  return text.empty() ? text : text + "\n";
}

}  // namespace eptransport::bench
