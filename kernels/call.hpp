// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief What a caller says: the shape that all ranks agree on, and the arguments of the calls.
///
/// Vocabulary: R ranks, T tokens of this rank (any number, 0 included, different per rank), H
/// hidden, k choices per token, E experts. *Dispatch* copies each token's row once to every rank
/// that owns one of its experts; *combine* sums the experts' results back into the token's row.
/// `group.hpp` has the calls themselves.
#pragma once

#include <eptransport/core/config.hpp>

#include <cstddef>
#include <cstdint>
#include <span>

namespace eptransport {

/// How rows travel. Same result; the choice is a matter of what the wire charges.
enum class message_shape : std::uint32_t {
  automatic,  ///< chosen from `caps` when the group is built
  per_row,    ///< one put per row: wires that issue cheaply
  per_peer,   ///< the rows of a peer packed into one put: wires that charge per message
  direct,     ///< rows stored through pointers, one signal per peer: wires with reach always
  per_node,   ///< direct inside the node; a row crosses to each other node once, in one message
              ///< per node, to a relay that fans it out: wires with `node_reach`
};

/// How a dispatch finds its place at the receiver.
enum class dispatch_mode : std::uint32_t {
  slotted,    ///< the receiver has `max_tokens` slots per source: no count exchange (decode)
  counted,    ///< counts first, then rows to their final place (prefill, training)
  automatic,  ///< `group::mode()`, which the plan prefers for its largest slotted call; the
              ///< arguments must suit both, and pull, landing and null rows need counted
};

/// How received rows are laid out for the experts.
enum class output_layout : std::uint32_t {
  rank_major,    ///< one row per (source token), ordered by source rank, then token
  expert_major,  ///< one row per (token, local expert), experts one after the other, aligned
  padded,        ///< one row per (token, local expert), `capacity` rows per local expert;
                 ///< capacity 0: the most that a rank can receive, times k
  in_place,      ///< rows stay in the landing zone; `row_offset` lists them in rank-major order;
                 ///< slotted scales lie `group::layout().scale_offset` bytes behind their row
};

/// Type of the expert indices.
enum class index_type : std::uint32_t { int32, int64 };

/// Type of the values that combine adds up.
enum class element : std::uint32_t { bf16, fp16, fp32 };

/// Bytes of one value.
[[nodiscard]] EPT_HOST_DEVICE constexpr std::uint64_t bytes_of(element type) noexcept {
  return type == element::fp32 ? 4 : 2;
}

/// What dispatch does to a row on its way.
enum class quantisation : std::uint32_t {
  none,       ///< copies it
  fp8_fp32,   ///< bf16 in, e4m3 out, one fp32 scale per 128 values (the last block may be short)
  fp8_ue8m0,  ///< the same with power-of-two scales, four exponent bytes per 32-bit word
};

/// What happens to rows beyond the receiver's capacity in a counted dispatch.
enum class overflow_policy : std::uint32_t {
  error,  ///< a fault on every rank, before a row moves, that names the rank and both numbers
  drop,  ///< the last rows in rank-major order are not sent; `dispatch_output::dropped` counts them
};

/// How combine moves rows.
enum class combine_transfer : std::uint32_t {
  push,  ///< the expert rank reduces and sends
  pull,  ///< the source reads y in its peers' windows: reach always, counted, one row per token
};

/// What happens to an expert index outside [-1, experts).
enum class index_checks : std::uint32_t {
  checked,  ///< a fault (`errc::bad_index`), before any row is sent
  fast,     ///< counted in `lane_statistics::bad_indices`; the slot is skipped
};

/// Where combine applies the top-k weights.
enum class weighting : std::uint32_t {
  none,       ///< rows are summed as they are
  at_expert,  ///< each expert's row is multiplied by its weight; expert_major and padded only
};

/// Whether a receiver has one signal word per source, or one for all.
enum class signal_words : std::uint32_t {
  automatic,   ///< per source where the wire's `max_signals` allows
  per_source,  ///< names who is late, and lets a peer's stop end a wait at once
  summed,      ///< a handful of words, whatever R is
};

/// Bytes of an opaque dispatch row and of its scales. The library copies them and looks at
/// neither, so that any quantisation passes through.
struct row_format {
  std::uint64_t row_bytes = 0;
  std::uint64_t scale_bytes = 0;
};

/// Rows of `hidden` bf16 values.
[[nodiscard]] constexpr row_format bf16_rows(std::int64_t hidden) noexcept {
  return {static_cast<std::uint64_t>(hidden) * 2, 0};
}

/// Rows of `hidden` FP8 values, quantised by the caller, with one fp32 scale per 128 of them.
[[nodiscard]] constexpr row_format fp8_rows(std::int64_t hidden) noexcept {
  return {static_cast<std::uint64_t>(hidden), (static_cast<std::uint64_t>(hidden) + 127) / 128 * 4};
}

/// Values per scale of in-kernel FP8.
inline constexpr std::int64_t fp8_block = 128;

/// What in-kernel quantisation makes of `hidden` values.
[[nodiscard]] constexpr row_format quantised_rows(std::int64_t hidden, quantisation how) noexcept {
  if (how == quantisation::none) return bf16_rows(hidden);
  if (how == quantisation::fp8_fp32) return fp8_rows(hidden);
  const auto blocks = static_cast<std::uint64_t>((hidden + fp8_block - 1) / fp8_block);
  return {static_cast<std::uint64_t>(hidden), (blocks + 3) / 4 * 4};
}

/// What all ranks of a group agree on. Ranks that differ are found when the group is built.
struct group_shape {
  std::int64_t max_tokens = 0;      ///< largest T of any rank in a slotted call; 0 = none are made
  std::int64_t counted_tokens = 0;  ///< largest T of any rank in a counted call; 0 = none are made
  std::int64_t counted_rows =
      0;  ///< rows a rank can take in a counted call; 0 = R * counted_tokens
  overflow_policy overflow = overflow_policy::error;
  std::int64_t hidden = 0;   ///< values of a combine row, at least 1
  std::int32_t top_k = 0;    ///< choices per token, at least 1
  std::int32_t experts = 0;  ///< at least 1; an index names one of these
  row_format row{};          ///< dispatch rows; default: what `quantise` makes of `hidden`
  quantisation quantise = quantisation::none;
  element values = element::bf16;   ///< of y and out
  element returns = element::bf16;  ///< of combine rows on the wire: `values`, or fp32
  bool return_weights = false;      ///< combine also returns a float per choice (gradients)
  /// Rank of each expert, [experts]; empty: contiguous, the first `experts % R` ranks own one more.
  /// A rank may own none. Local indices follow the order of the table. Copied at construction.
  std::span<const std::int32_t> placement{};
  message_shape message = message_shape::automatic;
  signal_words signals = signal_words::automatic;
  index_checks checks = index_checks::checked;
  std::int32_t lanes = 1;  ///< dispatch/combine pairs that may be in flight at once
};

/// Memory that a group needs before it can be built.
struct group_sizes {
  std::uint64_t window_bytes = 0;     ///< of the transport's window
  std::uint32_t signals = 0;          ///< of the transport's signal words
  std::uint64_t workspace_bytes = 0;  ///< of ordinary memory that kernels reach
  std::uint64_t handle_bytes = 0;     ///< per live handle, ordinary memory that kernels reach
};

/// Where a group lives. The default takes the start of the window and allocates the workspace.
struct group_memory {
  std::uint64_t window_offset = 0;  ///< multiple of 128; the region must never have been used
  std::uint32_t first_signal = 0;
  std::byte* workspace = nullptr;  ///< zeroed, aligned to 128, of the caller; outlives the group
  std::uint64_t workspace_bytes = 0;
};

/// Routing, slots and source map of one dispatch, in the caller's memory of `handle_bytes` bytes,
/// aligned to 16. It is an argument of combine and of a cached dispatch, so that backward passes,
/// recomputation and several live layers each keep their own.
struct dispatch_handle {
  std::byte* memory = nullptr;
  std::uint64_t bytes = 0;
};

/// Tokens to send. Pointers are memory that kernels reach, read only until the kernel completes; in
/// a counted dispatch by halves, until dispatch_recv completes.
struct dispatch_input {
  const void* x = nullptr;  ///< [T, row_bytes], quantised: [T, H] bf16; may be null when T is 0
  const void* scales = nullptr;                 ///< [T, scale_bytes]; null if scale_bytes is 0
  const void* topk_index = nullptr;             ///< [T, k] of `indices`; -1 = unused choice
  const float* topk_weight = nullptr;           ///< [T, k]; null = 1; ignored where the index is -1
  std::int64_t tokens = 0;                      ///< T, if `device_tokens` is null
  const std::int64_t* device_tokens = nullptr;  ///< [1], read by the kernel: for CUDA graphs
  index_type indices = index_type::int64;
  dispatch_mode mode = dispatch_mode::slotted;
  /// Counted: where in the own window this rank takes rows, bytes from its start, a multiple of 16,
  /// outside the group's region; 0 = the lane's own zone (`group::counted_rows`).
  std::uint64_t landing = 0;
  std::int64_t landing_rows = 0;  ///< rows that fit there; 0 = `group_shape::counted_rows`
  bool cached = false;            ///< the handle already holds the routing of these indices, and T
};

/// Where received rows go. n = rows of the output; any metadata pointer may be null.
///
/// Metadata describes output rows: for rank_major and in_place one row per received token, for
/// expert_major and padded one row per (token, local expert). A token that names one expert twice
/// counts twice.
struct dispatch_output {
  output_layout layout = output_layout::rank_major;
  /// [capacity, row_bytes]; padded: [local_experts, capacity, row_bytes]. A counted rank_major
  /// dispatch leaves the rows where they landed: null, or that address.
  void* rows = nullptr;
  void* scales = nullptr;  ///< the same with scale_bytes
  /// 0: scales row by row. Else column by column, in 32-bit units: unit u of row i at
  /// [u * scale_stride + i] (padded: within the expert's block of units * scale_stride).
  std::int64_t scale_stride = 0;
  std::int64_t capacity = 0;      ///< rows (padded: per local expert); 0 = the worst case fits
  std::int64_t alignment = 1;     ///< expert_major: each expert starts at a multiple of it
  std::int64_t* total = nullptr;  ///< [1] n; expert_major: alignment padding included
  std::int64_t* expert_count = nullptr;   ///< [local_experts] rows without padding
  std::int64_t* expert_offset = nullptr;  ///< [local_experts] first row; expert layouts only
  std::int32_t* row_expert = nullptr;    ///< [rows] expert layouts: local expert; alignment rows -1
  float* row_weight = nullptr;           ///< [n] expert layouts: weight of (token, expert)
  std::int32_t* topk_index = nullptr;    ///< [n, k] rank_major, in_place: local expert or -1
  float* topk_weight = nullptr;          ///< [n, k] rank_major, in_place: 0 where the index is -1
  std::int32_t* source_rank = nullptr;   ///< [n]
  std::int64_t* source_token = nullptr;  ///< [n]
  std::uint64_t* row_offset = nullptr;   ///< [n] in_place: bytes from the start of the window
  std::int64_t* dropped = nullptr;       ///< [1] rows for this rank that did not fit; not if cached
  std::int64_t* host_counts = nullptr;  ///< [1 + local_experts] memory the host may read: n, counts
};

/// What the experts made. Read only until the kernel completes.
struct combine_input {
  /// [n, H] `values` in the layout of the dispatch: rank_major and in_place take one row per
  /// received token, already summed over this rank's experts; the others one per (token, expert).
  const void* y = nullptr;
  weighting weights = weighting::none;
  /// With `group_shape::return_weights`: a float to return for each choice, e.g. the gradient of
  /// its weight. rank_major and in_place: [n, k], zero for other ranks' experts; the others: [n].
  const float* choice_value = nullptr;
  /// Ranks that differ in it are named where messages say so, and time out where none were due.
  /// pull, which returns no choice values: y lies in the window and is frozen until the lane's next
  /// dispatch returns; before a window is torn down, all ranks meet in a barrier.
  combine_transfer transfer = combine_transfer::push;
};

/// The result.
struct combine_output {
  /// [T, H] `values`: for each token the sum, in fp32 and in rank order, of the rows that the ranks
  /// of its experts returned, plus the bias, rounded once; 0 (or the bias) without experts.
  void* out = nullptr;
  const void* bias = nullptr;     ///< [T, H] `values`, or null
  float* choice_value = nullptr;  ///< [T, k] what the experts' ranks returned per choice, or null
};

/// How a call runs.
template <class Stream>
struct launch_options {
  Stream stream{};
  std::uint32_t max_sms = 0;  ///< SMs (host: threads) to use; 0 = the executor's default
};

/// Counters of a lane.
struct lane_statistics {
  std::uint64_t epoch = 0;        ///< exchanges so far
  std::uint64_t combines = 0;     ///< combines so far
  std::uint64_t bad_indices = 0;  ///< skipped by `index_checks::fast`
};

}  // namespace eptransport
