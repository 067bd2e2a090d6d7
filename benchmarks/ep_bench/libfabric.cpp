// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief ep_bench over libfabric: ranks that are processes, and their findings in one row.
#include "ep_bench/libfabric.hpp"

#if defined(EPT_BENCH_LIBFABRIC)

#include <eptransport/proxy/bootstrap/launch.hpp>
#include <eptransport/proxy/bootstrap/tcp_bootstrap.hpp>

#include <chrono>
#include <cstddef>
#include <cstdio>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "ep_bench/cli.hpp"
#include "support/libfabric/rank.hpp"
#include "support/processes.hpp"

namespace eptransport::bench {
namespace {

[[nodiscard]] proxy::fabric_options fabric_of(const options& asked) {
  proxy::fabric_options fabric;
  const std::string& wire = asked.wires.front();
  fabric.provider =
      wire.substr((wire.starts_with(pair_prefix) ? pair_prefix : libfabric_prefix).size());
  fabric.strict = asked.strict;
  return fabric;
}

[[nodiscard]] support::rank_outcome join_and_run(const bootstrap_options& who,
                                                 const support::run_config& config,
                                                 const proxy::fabric_options& fabric,
                                                 std::unique_ptr<bootstrap>& meeting) {
  auto joined = tcp_bootstrap::join(who);
  if (!joined) {
    support::rank_outcome none;
    none.error = joined.error().message();
    return none;
  }
  meeting = std::move(*joined);
  return support::run_rank(config, *meeting, fabric);
}

[[nodiscard]] support::rank_outcome unpack(const void* data, std::size_t bytes) {
  return support::unpacked({static_cast<const std::byte*>(data), bytes});
}

int refuse(const std::string& why) {
  std::fprintf(stderr, "ep_bench: %s\n", why.c_str());
  return exit_refused;
}

int spawn(const options& asked, support::run_config config, std::vector<measurement>& rows) {
  auto started = support::rank_processes::start(asked.spawn, [&](bootstrap_options who) {
    std::unique_ptr<bootstrap> meeting;
    if (!config.nodes.empty()) {  // simulated hosts
      who.host_identity =
          "node " + std::to_string(config.nodes[static_cast<std::size_t>(who.rank)]);
    }
    return support::packed(join_and_run(who, config, fabric_of(asked), meeting));
  });
  if (!started) return refuse(started.error().message());
  std::vector<support::rank_outcome> outcomes;
  for (const auto& how : started->wait(std::chrono::hours(1))) {
    outcomes.push_back(unpack(how.said.data(), how.said.size()));
  }
  rows.push_back({.wire = asked.wires.front(),
                  .result = support::joined(config, std::move(outcomes)),
                  .clock = "measured"});
  return exit_ok;
}

/// One rank of a launcher. Rank 0 hears the others; if it cannot, everybody says what he knows.
int run_launched(const options& asked, support::run_config config, std::vector<measurement>& rows) {
  const auto launch = rank_launch::from_environment();
  if (!launch) return refuse(launch.error().message() + "; or use --spawn R");
  std::unique_ptr<bootstrap> meeting;
  const support::rank_outcome own =
      join_and_run(launch->options(), config, fabric_of(asked), meeting);
  if (meeting == nullptr) return refuse(own.error);
  const std::string packed = support::packed(own);
  const auto all = meeting->all_gather(std::as_bytes(std::span(packed.data(), packed.size())),
                                       config.timeout_ns);
  if (!all) {
    const std::string& why = own.error.empty() ? own.fault : own.error;
    return refuse("rank " + std::to_string(launch->rank) + ": " +
                  (why.empty() ? all.error().message() : why));
  }
  std::vector<support::rank_outcome> outcomes;
  for (const auto& bytes : *all) outcomes.push_back(unpack(bytes.data(), bytes.size()));
  support::run_result result = support::joined(config, std::move(outcomes));
  if (launch->rank != 0) return result.verified ? exit_ok : exit_not_verified;
  rows.push_back({.wire = asked.wires.front(), .result = std::move(result), .clock = "measured"});
  return exit_ok;
}

}  // namespace

int processes_of(const options& asked) {
  if (asked.spawn > 0) return asked.spawn;
  const auto launch = rank_launch::from_environment();
  return launch ? launch->size : 0;
}

int run_libfabric(const options& asked, std::vector<measurement>& rows) {
  support::run_config config = asked.config;
  config.wire = asked.wires.front();
  return asked.spawn > 0 ? spawn(asked, std::move(config), rows)
                         : run_launched(asked, std::move(config), rows);
}

}  // namespace eptransport::bench

#endif
