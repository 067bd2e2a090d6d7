// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The two rooflines: messages against issue rate, bytes against bandwidth; and what was
/// measured against memcpy.
#include <algorithm>
#include <map>

#include "ep_bench/options.hpp"

namespace eptransport::bench {

rooflines rooflines_of(const support::run_result& result, call_kind call) {
  rooflines out;
  if (result.ranks.empty() || result.calls == 0) return out;
  const auto calls = static_cast<double>(result.calls);
  const auto ranks = static_cast<double>(result.ranks.size());
  std::map<int, double> node_bytes;
  double most_messages = 0;
  double most_bytes = 0;
  for (std::size_t rank = 0; rank < result.ranks.size(); ++rank) {
    const support::rank_report& report = result.ranks[rank];
    const support::traffic_sum& sum =
        call == call_kind::dispatch ? report.dispatch : report.combine;
    const bool relays = result.message == message_shape::per_node;
    const double inter_messages = static_cast<double>(sum.inter_messages) / calls;
    const double inter_bytes = static_cast<double>(sum.inter_bytes) / calls;
    const double all_messages = static_cast<double>(sum.messages) / calls;
    const double all_bytes = static_cast<double>(sum.bytes) / calls;
    out.messages += all_messages / ranks;
    out.bytes += all_bytes / ranks;
    out.inter_messages += inter_messages / ranks;
    out.inter_bytes += inter_bytes / ranks;
    const double messages = relays ? inter_messages : all_messages;
    const double bytes = relays ? inter_bytes : all_bytes;
    most_messages = std::max(most_messages, messages);
    most_bytes = std::max(most_bytes, bytes);
    if (rank < result.nodes.size()) node_bytes[result.nodes[rank]] += bytes;
  }
  const wire_charge& charge = result.charge;
  out.issue_ns = most_messages * charge.issue_ns;
  if (charge.channel_bytes_per_s > 0) out.bytes_ns = most_bytes * 1e9 / charge.channel_bytes_per_s;
  if (charge.node_bytes_per_s > 0) {
    for (const auto& [node, bytes] : node_bytes) {
      out.bytes_ns = std::max(out.bytes_ns, bytes * 1e9 / charge.node_bytes_per_s);
    }
  }
  return out;
}

bandwidth bandwidth_of(const support::run_result& result, call_kind call) {
  const bool first = call == call_kind::dispatch;
  const double ranks = static_cast<double>(result.ranks.size());
  const double ns = first ? result.dispatch.mean_ns : result.combine.mean_ns;
  const double copy_ns = first ? result.dispatch_copy.mean_ns : result.combine_copy.mean_ns;
  bandwidth out;
  out.payload = ranks * (first ? result.dispatch_payload : result.combine_payload);
  if (ns > 0) out.bytes_per_s = out.payload / ns * 1e9;
  if (copy_ns > 0) out.memcpy_bytes_per_s = out.payload / copy_ns * 1e9;
  return out;
}

}  // namespace eptransport::bench
