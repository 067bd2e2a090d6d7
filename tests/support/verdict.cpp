// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief From the ranks' findings to a run's result.
#include "support/verdict.hpp"

#include <algorithm>
#include <numeric>

namespace eptransport::support {
namespace {

/// @param warm  the first call touches new pages and is left out, if there are more
call_time statistics(const std::vector<rank_verdict>& verdicts,
                     std::vector<double> rank_verdict::*member, bool warm) {
  call_time out;
  std::vector<double> all;
  for (const rank_verdict& verdict : verdicts) {
    std::vector<double> times = verdict.*member;
    if (warm && times.size() > 1) times.erase(times.begin());
    if (times.empty()) continue;
    const double sum = std::accumulate(times.begin(), times.end(), 0.0);
    out.max_rank_ns = std::max(out.max_rank_ns, sum / static_cast<double>(times.size()));
    all.insert(all.end(), times.begin(), times.end());
  }
  if (all.empty()) return out;
  std::sort(all.begin(), all.end());
  out.mean_ns = std::accumulate(all.begin(), all.end(), 0.0) / static_cast<double>(all.size());
  out.p99_ns = all[std::min(all.size() - 1, all.size() * 99 / 100)];
  return out;
}

/// Earliest iteration; then a dispatch before a combine, which its damage would reach; then rank.
bool earlier(const rank_verdict& a, const rank_verdict& b) {
  if (!b.found()) return a.found();
  if (!a.found()) return false;
  if (a.iteration != b.iteration) return a.iteration < b.iteration;
  return a.call.starts_with("dispatch") && !b.call.starts_with("dispatch");
}

}  // namespace

void sum_up(const run_config& config, const std::vector<rank_verdict>& verdicts, bool measured,
            run_result& out) {
  out.calls = config.iterations * config.lanes;
  const rank_verdict* first = &verdicts.front();
  for (const rank_verdict& verdict : verdicts) {
    if (earlier(verdict, *first)) first = &verdict;
    if (out.reason.empty()) {
      out.message = verdict.message;
      out.reason = verdict.reason;
    }
  }
  if (first->found()) {
    out.difference = "seed " + std::to_string(config.seed) + ", iteration " +
                     std::to_string(first->iteration) + ", " + first->call + ": " +
                     first->difference;
  }
  const auto take = [&](call_time& to, std::vector<double> rank_verdict::*member) {
    to = statistics(verdicts, member, measured);
  };
  take(out.dispatch, &rank_verdict::dispatch_ns);
  take(out.combine, &rank_verdict::combine_ns);
  take(out.dispatch_copy, &rank_verdict::dispatch_copy_ns);
  take(out.combine_copy, &rank_verdict::combine_copy_ns);
  out.dispatch_payload = statistics(verdicts, &rank_verdict::dispatch_payload, measured).mean_ns;
  out.combine_payload = statistics(verdicts, &rank_verdict::combine_payload, measured).mean_ns;
  const bool all_ran = std::all_of(out.ranks.begin(), out.ranks.end(), [&](const rank_report& r) {
    return r.error.empty() && (r.overflowed || r.iterations == config.iterations);
  });
  out.verified = all_ran && out.difference.empty() && out.violations.empty();
}

}  // namespace eptransport::support
