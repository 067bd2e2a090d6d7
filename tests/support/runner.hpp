// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Runs dispatch, experts and combine on a simulated wire and compares every iteration with
/// the oracle.
///
/// Each rank is one thread, draws the inputs of all ranks from the seed, and verifies its own part:
/// no lock is shared between ranks beyond the wire itself. Before each call outputs, handle and
/// whatever the protocol says is free are poisoned; after it, the caller's inputs are.
#pragma once

#include <eptransport/backends/gdaki/options.hpp>
#include <eptransport/backends/loopback/options.hpp>
#include <eptransport/backends/proxied/options.hpp>
#include <eptransport/core/capabilities.hpp>
#include <eptransport/core/fault.hpp>
#include <eptransport/core/result.hpp>
#include <eptransport/kernels/call.hpp>

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <system_error>
#include <vector>

#include "support/oracle.hpp"
#include "support/routing.hpp"

namespace eptransport::support {

/// `run_config::capacity`: each output has just the rows that it needs, and one more as bait.
inline constexpr std::int64_t exact_capacity = -1;

/// What a run shows to `run_config::tamper`, right before it verifies a call.
struct tamper_point {
  const char* call = "";  ///< "dispatch" or "combine"
  int rank = 0;
  int iteration = 0;
  std::span<std::byte> rows;     ///< the dispatch output; empty for in_place
  std::span<std::uint16_t> out;  ///< the combine output
  std::int64_t* total = nullptr;
  std::int64_t* source_token = nullptr;
};

/// Of wires whose name begins with "proxy:".
struct proxy_config {
  std::uint32_t comms = 1;
  std::uint64_t ring_slots = 1024;
  proxy_drive drive = proxy_drive::baton;  ///< `run_config::schedule` free: `threads` or `shared`
  std::uint32_t driver_threads = 1;
  proxy::engine_options engine{};
  proxy::srd_options srd{};   ///< of "proxy:srd"
  std::uint64_t post_ns = 0;  ///< CPU time of each post
  std::uint64_t stall_ns = 10'000'000'000;
};

/// Of wires whose name begins with "gdaki:". Under `run_config::schedule` free a host thread drives
/// the emulated NICs.
struct gdaki_config {
  std::uint32_t queue_slots = 256;
  std::uint32_t ring_every = 1;
  std::uint64_t first_index = 0;
  std::uint32_t chunk_bytes = 128;  ///< pieces in which payload arrives
  std::vector<gdaki_fault> faults{};
  std::vector<gdaki_death> deaths{};
};

/// One run.
struct run_config {
  /// A name in `wires()`, `proxied_wires()`, `hybrid_wires()` or `gdaki_wires()`; "tight",
  /// "hybrid:tight": short messages, few words.
  std::string wire = "efa-proxy";
  int ranks = 2;
  std::vector<std::int64_t> tokens{4};  ///< of each rank; one entry: of all
  bool vary_tokens = false;             ///< each call draws its count from [0, tokens]
  std::int64_t max_tokens = 0;          ///< of the shape; 0: the largest of `tokens`, at least 1
  std::int64_t hidden = 16;
  int top_k = 2;
  int experts = 4;
  std::vector<std::int32_t> placement{};
  row_format row{};  ///< row_bytes 0: bf16 rows of `hidden`; see `parse_format`
  message_shape message = message_shape::automatic;
  signal_words signals = signal_words::automatic;
  index_type indices = index_type::int64;
  index_checks checks = index_checks::checked;
  dispatch_mode mode = dispatch_mode::slotted;
  bool mixed = false;               ///< the seed chooses each call's mode, alike on all ranks
  int lanes = 1;                    ///< all in flight at once
  std::int64_t counted_tokens = 0;  ///< of the shape; 0: as `max_tokens`, if counted calls are made
  std::int64_t counted_rows = 0;    ///< of the shape; 0: ranks * counted_tokens
  overflow_policy overflow = overflow_policy::error;
  quantisation quantise = quantisation::none;  ///< not none: `row` is what it makes
  element values = element::bf16;
  element returns = element::bf16;
  bool return_weights = false;  ///< a float goes back for each choice, where combine pushes

  output_layout layout = output_layout::rank_major;
  std::int64_t alignment = 1;
  std::int64_t capacity = exact_capacity;    ///< 0: what `dispatch_output::capacity` 0 asks for
  bool metadata = true;                      ///< false: every metadata pointer is null
  weighting weights = weighting::at_expert;  ///< rank layouts: applied by the experts of the run
  bool null_weights = false;                 ///< topk_weight is null
  bool device_tokens = false;                ///< the token count is passed in memory
  bool landing = false;  ///< counted rows land behind the group's region, elsewhere on each rank
  std::vector<std::int64_t>
      landing_rows{};              ///< room of each rank, at most counted_rows; empty: all
  std::int64_t scale_columns = 0;  ///< not 0: column-major scales, columns a multiple of it long
  combine_transfer transfer = combine_transfer::push;  ///< pull: of counted calls; nvlink
  bool bias = false;
  bool split = false;   ///< halves instead of whole calls, all lanes' first halves first
  bool cached = false;  ///< every second dispatch reuses its predecessor's handle
  int combines = 1;     ///< combines after each dispatch; from the second on without a dispatch
  std::uint32_t max_sms = 0;
  std::uint64_t skew = 0;  ///< bytes by which row buffers miss their alignment; even
  std::uint64_t window_offset = 0;
  std::uint32_t first_signal = 0;

  int iterations = 4;
  std::uint64_t seed = 1;  ///< of inputs, schedule and delivery
  std::string routing = "uniform";
  double unused = 0;  ///< as in `routing_options`
  double out_of_range = 0;
  bool duplicates = false;

  run_mode schedule = run_mode::baton;
  delivery order = delivery::immediate;
  std::uint32_t workers = 1;
  std::uint32_t channels = 1;
  std::uint32_t max_chunks = 4;
  std::uint64_t counter_start = 0;
  std::uint64_t max_delay_ns = 0;
  std::uint32_t queue_depth = 0;
  std::vector<int> nodes{};
  std::optional<wire_charge> charge{};
  std::vector<loopback_fault> faults{};
  proxy_config proxy{};
  gdaki_config gdaki{};

  bool pauses = false;         ///< random pauses of each rank between calls
  bool align_clocks = false;   ///< a barrier before each call, so that its time is its own
  bool copy_baseline = false;  ///< before each call memcpy moves as many rows, for comparison
  std::uint64_t timeout_ns = 10'000'000'000;

  /// Called by rank 0 after each iteration, if set.
  std::function<void(int iteration)> progress{};
  /// Called by every rank's thread, to prove that damage is found.
  std::function<void(const tamper_point&)> tamper{};
};

/// What one rank sent, all iterations and lanes together.
struct traffic_sum {
  std::uint64_t messages = 0;
  std::uint64_t bytes = 0;
  std::uint64_t inter_messages = 0;  ///< the part that left the node
  std::uint64_t inter_bytes = 0;
};

/// How one rank fared.
struct rank_report {
  int iterations = 0;       ///< completed without an error
  bool overflowed = false;  ///< it ended as it had to: a counted call did not fit, and said so
  fault_record fault{};     ///< of the first lane that has one
  std::string error;        ///< what the first failing call returned, empty if none failed
  std::string failed_call;  ///< e.g. "dispatch, lane 0, iteration 3"
  traffic_sum dispatch{};
  traffic_sum combine{};
  std::vector<lane_statistics> lanes;
};

/// Time of one kind of call, over all calls of all ranks: modelled under `run_mode::baton`,
/// measured under `run_mode::free`.
struct call_time {
  double mean_ns = 0;
  double p99_ns = 0;
  double max_rank_ns = 0;  ///< the mean of the slowest rank
};

/// What came out.
struct run_result {
  /// Every iteration ran on every rank, every byte was as expected, and nothing was violated.
  bool verified = false;
  std::string difference;  ///< the first one, with seed and iteration; empty if none
  std::string error;       ///< why the run could not begin; empty if it did
  std::error_code code;    ///< of `error`
  std::string violations;  ///< as the simulator reports them
  std::vector<rank_report> ranks;
  int calls = 0;  ///< dispatches of each rank: iterations * lanes
  message_shape message = message_shape::automatic;
  std::string reason;  ///< why this message shape
  call_time dispatch{};
  call_time combine{};
  call_time dispatch_copy{};  ///< of the memcpy, with `run_config::copy_baseline`
  call_time combine_copy{};
  double dispatch_payload = 0;  ///< bytes of rows that a rank sends per call, its own included
  double combine_payload = 0;   ///< bytes of rows that a rank returns per call
  double wall_ns = 0;           ///< of the whole run, verification included
  std::uint64_t trace_hash = 0;
  std::uint64_t commands = 0;                 ///< proxied wires: for other ranks, of all ranks
  std::uint64_t proxy_messages = 0;           ///< of them all, what was posted, credits included
  std::uint64_t slot_bytes = 0;               ///< of a grouped message
  std::vector<std::string> proxy_threads;     ///< one engine's statistics as JSON; affinities
  std::uint64_t nic_requests = 0;             ///< GPU-initiated wires: fetched by all NICs
  std::vector<std::string> transport_faults;  ///< GPU-initiated wires: of each rank, empty: none
  wire_charge charge{};
  std::vector<int> nodes;  ///< of each rank

  /// Everything that is wrong, for people; empty if verified.
  [[nodiscard]] std::string why() const;
};

/// Names of the simulated wires.
[[nodiscard]] const std::vector<std::string>& wires();
/// Names of the wires behind proxy engines, all ranks in one process.
[[nodiscard]] const std::vector<std::string>& proxied_wires();
/// Names of pairs of simulated wires: nvlink inside the nodes, another between them. The kernels
/// see what efa-proxy promises; what the outer wire charges is that of its name.
[[nodiscard]] const std::vector<std::string>& hybrid_wires();

/// Names of the wires that kernels post to themselves, over emulated NICs, in one process.
[[nodiscard]] const std::vector<std::string>& gdaki_wires();

/// Dispatch rows and what makes them.
struct dispatch_format {
  row_format row{};
  quantisation quantise = quantisation::none;
};

/// `bf16`, `fp8`, `fp8-ue8m0` (quantised by the kernel) or `opaque:ROW[:SCALE]` (bytes) for rows of
/// `hidden` values.
///
/// @par Errors  `invalid_argument`, with what was expected
[[nodiscard]] result<dispatch_format> parse_format(const std::string& text, std::int64_t hidden);

/// Runs it. Never throws; a configuration that cannot run gives `error`.
[[nodiscard]] run_result run(const run_config& config);

}  // namespace eptransport::support
