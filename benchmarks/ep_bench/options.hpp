// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief What one call of ep_bench is asked to do, and what it found out.
#pragma once

#include <string>
#include <vector>

#include "support/runner.hpp"

namespace eptransport::bench {

/// Where the kernels run.
enum class execution { cpu, cuda };

/// What plays the NICs of GPU-initiated wires.
enum class nic_place { thread, block };

struct options {
  support::run_config config;  ///< of every wire; `wire` and `progress` are set per run
  std::vector<std::string> wires;
  std::string format = "bf16";  ///< as it was given
  bool returns_given = false;   ///< otherwise `returns` is as `values`
  bool mode_given = false;      ///< otherwise by the number of tokens
  bool schedule_given = false;  ///< otherwise baton for simulated wires, free for others
  bool ranks_given = false;     ///< otherwise the sizes in `--nodes` may say how many
  std::vector<int> node_sizes;  ///< of `--nodes`: how many, or the ranks of each; empty: eight each
  std::string proxied_option;   ///< one that was given and needs a proxied wire
  std::string gdaki_option;     ///< one that was given and needs a GPU-initiated wire
  nic_place nic = nic_place::thread;
  execution exec = execution::cpu;
  std::string json;     ///< file to write, "-" for stdout, empty for none
  bool quiet = false;   ///< no progress and no table
  int spawn = 0;        ///< libfabric: ranks that are started here; 0: a launcher did it
  bool strict = false;  ///< libfabric: `proxy::fabric_options::strict`
};

/// One wire's result.
struct measurement {
  std::string wire;
  support::run_result result;
  std::string clock = "modelled";  ///< what the times are: "modelled", "measured" or "virtual"
};

/// What the wire's charges make of the busiest rank's messages and bytes, for one call; with
/// relays, of those between nodes.
struct rooflines {
  double messages = 0;  ///< per rank, the mean
  double bytes = 0;
  double inter_messages = 0;  ///< the part that left the node
  double inter_bytes = 0;
  double issue_ns = 0;  ///< messages x issue_ns
  double bytes_ns = 0;  ///< bytes / rate, of the channel or of the node, whichever is slower

  [[nodiscard]] const char* binds() const { return issue_ns > bytes_ns ? "issue" : "bytes"; }
};

/// Which calls of a run.
enum class call_kind { dispatch, combine };

/// What a measured run moved, all ranks together, and what memcpy did with as many bytes.
struct bandwidth {
  double payload = 0;             ///< bytes of rows per call, own ones included
  double bytes_per_s = 0;         ///< payload / mean time of a call
  double memcpy_bytes_per_s = 0;  ///< the same threads, row by row

  [[nodiscard]] double ratio() const {
    return memcpy_bytes_per_s > 0 ? bytes_per_s / memcpy_bytes_per_s : 0;
  }
};

[[nodiscard]] bandwidth bandwidth_of(const support::run_result& result, call_kind call);

[[nodiscard]] rooflines rooflines_of(const support::run_result& result, call_kind call);

}  // namespace eptransport::bench
