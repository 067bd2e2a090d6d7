// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief What jobs over libfabric have in common: a small run, what a rank said, what it left.
#pragma once

#include <eptransport/proxy/bootstrap/tcp_bootstrap.hpp>
#include <eptransport/proxy/endpoints/detail/fabric_provider.hpp>

#include <cstddef>
#include <filesystem>
#include <malloc.h>
#include <span>
#include <string>
#include <sys/types.h>

#include "support/libfabric/rank.hpp"
#include "support/processes.hpp"
#include "support/provider_under_test.hpp"

namespace eptransport::support {

/// Joins, runs the rank, and says what it found.
[[nodiscard]] inline std::string work(const bootstrap_options& options, const run_config& config,
                                      const proxy::fabric_options& fabric) {
  auto meeting = tcp_bootstrap::join(options);
  if (meeting) return packed(run_rank(config, **meeting, fabric));
  rank_outcome none;
  none.error = meeting.error().message();
  return packed(none);
}

[[nodiscard]] inline rank_outcome outcome_of(const std::string& said) {
  return unpacked(std::as_bytes(std::span(said.data(), said.size())));
}

[[nodiscard]] inline run_config small_run(int ranks) {
  run_config config;
  config.wire = "libfabric";
  config.ranks = ranks;
  config.tokens = {9};
  config.hidden = 64;
  config.top_k = 3;
  config.experts = 2 * ranks + 1;
  config.iterations = 4;
  config.schedule = run_mode::free;
  config.timeout_ns = 20'000'000'000;
  return config;
}

/// Files in /dev/shm that endpoints of a process left behind.
[[nodiscard]] inline std::size_t shm_files(pid_t process) {
  std::size_t n = 0;
  for (const auto& file : std::filesystem::directory_iterator("/dev/shm")) {
    if (file.path().filename().string().starts_with(std::to_string(process) + ":")) ++n;
  }
  return n;
}

/// A provider's endpoint takes 16 MiB at once and clears it. Where a process makes one after the
/// other, half of its time goes into pages that it has just given back; then it keeps them.
inline void keep_freed_memory() {
  (void)::mallopt(M_MMAP_THRESHOLD, 32 << 20);
  (void)::mallopt(M_TRIM_THRESHOLD, 256 << 20);
}

}  // namespace eptransport::support
