// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The table.
#include <algorithm>
#include <cstdio>

#include "ep_bench/cli.hpp"
#include "ep_bench/nodes.hpp"
#include "ep_bench/report.hpp"

namespace eptransport::bench {
namespace {

using line = std::vector<std::string>;

std::string fixed(double value, int digits) {
  char text[48];
  std::snprintf(text, sizeof text, "%.*f", digits, value);
  return text;
}

std::string pair_of(double dispatch, double combine, int digits) {
  return fixed(dispatch, digits) + "/" + fixed(combine, digits);
}

std::string times(const support::call_time& time) {
  return fixed(time.mean_ns / 1e3, 1) + "/" + fixed(time.p99_ns / 1e3, 1) + "/" +
         fixed(time.max_rank_ns / 1e3, 1);
}

line header(const std::string& clock) {
  return {"wire",
          "shape",
          "messages",
          "KiB",
          "issue us",
          "bytes us",
          "binds",
          clock + " dispatch us",
          clock + " combine us",
          "wall s",
          "verified",
          "why this shape"};
}

line cells(const measurement& row) {
  const support::run_result& r = row.result;
  if (!r.error.empty())
    return {row.wire, "-", "-", "-", "-", "-", "-", "-", "-", "-", "no", r.error};
  const rooflines d = rooflines_of(r, call_kind::dispatch);
  const rooflines c = rooflines_of(r, call_kind::combine);
  const std::string binds =
      std::string(d.binds()) == c.binds() ? d.binds() : std::string(d.binds()) + "/" + c.binds();
  return {row.wire,
          name_of(r.message),
          pair_of(d.messages, c.messages, 1),
          pair_of(d.bytes / 1024, c.bytes / 1024, 1),
          pair_of(d.issue_ns / 1e3, c.issue_ns / 1e3, 1),
          pair_of(d.bytes_ns / 1e3, c.bytes_ns / 1e3, 1),
          binds,
          times(r.dispatch),
          times(r.combine),
          fixed(r.wall_ns / 1e9, 2),
          r.verified ? "yes" : "NO",
          r.reason};
}

std::string describe(const options& asked) {
  const support::run_config& c = asked.config;
  std::string tokens;
  for (const std::int64_t t : c.tokens) tokens += (tokens.empty() ? "" : ",") + std::to_string(t);
  return std::to_string(c.ranks) + " ranks, " + tokens + " tokens per rank, hidden " +
         std::to_string(c.hidden) + ", top-" + std::to_string(c.top_k) + " of " +
         std::to_string(c.experts) + ", " + asked.format + ", " + name_of(c.layout) + ", " +
         name_of(c.mode) + (c.landing ? " at the caller's place" : "") + ", " +
         name_of(c.transfer) + " " + name_of(c.values) + " (" + name_of(c.returns) +
         " on the wire), routing " + c.routing + ", seed " + std::to_string(c.seed) + ", " +
         std::to_string(c.iterations) + " iterations\n" +
         "per rank and call, dispatch/combine; rooflines: messages x issue, bytes / rate; times: "
         "mean/p99/mean of the slowest rank\n\n";
}

/// "GB/s" lines of a run that was compared with memcpy.
std::string bandwidths(const measurement& row) {
  std::string text;
  for (const call_kind call : {call_kind::dispatch, call_kind::combine}) {
    const bandwidth moved = bandwidth_of(row.result, call);
    if (moved.payload <= 0) continue;
    text += "\n" + row.wire + (call == call_kind::dispatch ? " dispatch: " : " combine:  ") +
            fixed(moved.bytes_per_s / 1e9, 2) + " GB/s of rows, memcpy of as many bytes by the " +
            "same threads " + fixed(moved.memcpy_bytes_per_s / 1e9, 2) + " GB/s, ratio " +
            fixed(moved.ratio(), 2);
  }
  return text.empty() ? text : text + "\n";
}

/// What the engines did, of a proxied wire.
std::string proxy_lines(const options& asked, const measurement& row) {
  const support::run_result& r = row.result;
  if (r.proxy_threads.empty()) return {};
  const support::proxy_config& p = asked.config.proxy;
  const double ratio = r.proxy_messages == 0 ? 0
                                             : static_cast<double>(r.commands) /
                                                   static_cast<double>(r.proxy_messages);
  std::string text = "\n" + row.wire + ": " + std::to_string(p.comms) + " comms, eager " +
                     std::to_string(p.engine.eager) + " bytes in slots of " +
                     std::to_string(r.slot_bytes) + "; " + std::to_string(r.commands) +
                     " commands for other ranks became " + std::to_string(r.proxy_messages) +
                     " messages, " + fixed(ratio, 2) + " commands each\n";
  for (const std::string& thread : r.proxy_threads) text += "  " + thread + "\n";
  return text;
}

}  // namespace

std::string table_of(const options& asked, const std::vector<measurement>& rows) {
  std::vector<line> lines{header(rows.empty() ? "modelled" : rows.front().clock)};
  for (const measurement& row : rows) lines.push_back(cells(row));
  std::vector<std::size_t> widths(lines[0].size(), 0);
  for (const line& one : lines) {
    for (std::size_t i = 0; i < one.size(); ++i) widths[i] = std::max(widths[i], one[i].size());
  }
  std::string text = describe(asked);
  for (const line& one : lines) {
    for (std::size_t i = 0; i < one.size(); ++i) {
      text += one[i];
      if (i + 1 < one.size()) text += std::string(widths[i] - one[i].size() + 2, ' ');
    }
    text += "\n";
  }
  for (const measurement& row : rows) {
    text += node_lines(row) + bandwidths(row) + proxy_lines(asked, row);
  }
  for (const measurement& row : rows) {
    if (row.result.verified || !row.result.error.empty()) continue;
    text += "\n" + row.wire + " is wrong:\n" + row.result.why();
  }
  return text;
}

}  // namespace eptransport::bench
