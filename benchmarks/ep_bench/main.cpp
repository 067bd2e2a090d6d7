// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief ep_bench: what dispatch and combine cost on each wire, with every result verified.
#include <cstdio>
#include <string>
#include <vector>

#include "ep_bench/cli.hpp"
#include "ep_bench/cuda.hpp"
#include "ep_bench/libfabric.hpp"
#include "ep_bench/progress.hpp"
#include "ep_bench/report.hpp"
#include "support/routing.hpp"

namespace eptransport::bench {
namespace {

void run_cpu(const options& asked, std::vector<measurement>& rows) {
  for (const std::string& wire : asked.wires) {
    progress shown(wire, asked.config.iterations, asked.quiet);
    support::run_config config = asked.config;
    config.wire = wire;
    config.progress = [&shown](int iteration) { shown.done(iteration); };
    const bool virtual_clock = wire.starts_with("proxy:") || wire.starts_with("gdaki:");
    const char* clock = config.schedule == run_mode::free ? "measured"
                        : virtual_clock                   ? "virtual"
                                                          : "modelled";
    rows.push_back({.wire = wire, .result = support::run(config), .clock = clock});
    shown.finish();
  }
}

int execute(const options& asked, std::vector<measurement>& rows) {
  const support::run_config& config = asked.config;
  const auto routes = support::router::create({.kind = config.routing,
                                               .experts = config.experts,
                                               .top_k = config.top_k,
                                               .seed = config.seed});
  if (!routes) {
    std::fprintf(stderr, "ep_bench: --routing: %s\n", routes.error().detail.c_str());
    return exit_refused;
  }
#if defined(EPT_BENCH_CUDA)
  if (asked.exec == execution::cuda) return run_cuda(asked, rows);
#endif
#if defined(EPT_BENCH_LIBFABRIC)
  if (has_processes(asked.wires.front())) return run_libfabric(asked, rows);
#endif
  run_cpu(asked, rows);
  return exit_ok;
}

int write_json(const options& asked, const std::vector<measurement>& rows) {
  if (asked.json.empty()) return exit_ok;
  std::FILE* file = asked.json == "-" ? stdout : std::fopen(asked.json.c_str(), "w");
  if (file == nullptr) {
    std::fprintf(stderr, "ep_bench: --json: cannot write %s\n", asked.json.c_str());
    return exit_refused;
  }
  for (const measurement& row : rows) std::fprintf(file, "%s\n", json_of(asked, row).c_str());
  const bool written = std::fflush(file) == 0;
  if (file != stdout) std::fclose(file);
  return written ? exit_ok : exit_refused;
}

/// The status that the rows deserve; wires that could not run are named on stderr.
int judge(const std::vector<measurement>& rows) {
  int status = exit_ok;
  for (const measurement& row : rows) {
    if (row.result.error.empty()) continue;
    std::fprintf(stderr, "ep_bench: %s: %s\n", row.wire.c_str(), row.result.error.c_str());
    status = exit_refused;
  }
  for (const measurement& row : rows) {
    if (row.result.error.empty() && !row.result.verified) status = exit_not_verified;
  }
  return status;
}

int run_all(int count, const char* const* arguments) {
  const parsed read = parse(count, arguments);
  if (!read.asked) {
    std::fprintf(read.status == exit_ok ? stdout : stderr, "%s\n", read.message.c_str());
    return read.status;
  }
  const options& asked = *read.asked;
  std::vector<measurement> rows;
  if (const int status = execute(asked, rows); status != exit_ok) return status;
  if (rows.empty()) return exit_ok;  // another rank reports
  if (!asked.quiet && asked.json != "-") std::fputs(table_of(asked, rows).c_str(), stdout);
  const int written = write_json(asked, rows);
  const int judged = judge(rows);
  return judged != exit_ok ? judged : written;
}

}  // namespace
}  // namespace eptransport::bench

int main(int count, char** arguments) {
  return eptransport::bench::run_all(count, arguments);
}
