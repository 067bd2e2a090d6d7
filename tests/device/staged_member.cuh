// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief One rank's caller in tests of streams and graphs: buffers that never move, all traffic
/// with the host in stream order, the oracle afterwards.
///
/// The experts of these tests return each row as it is, so that dispatch and combine follow each
/// other in one stream without the host.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "cuda/device_buffer.cuh"
#include "support/check.hpp"
#include "support/cuda/peer_group.cuh"
#include "support/inputs.hpp"
#include "support/numbers.hpp"
#include "support/oracle.hpp"
#include "support/received.hpp"
#include "support/runner.hpp"

namespace eptransport::support {

/// Host and device memory of the same layout: arrays one after the other, each aligned to 256.
class mirrored_arrays {
 public:
  ~mirrored_arrays() {
    if (host_ != nullptr) (void)cudaFreeHost(host_);
  }
  mirrored_arrays() = default;
  mirrored_arrays(const mirrored_arrays&) = delete;
  mirrored_arrays& operator=(const mirrored_arrays&) = delete;

  /// Before `allocate`. Returns the offset of `count` values of T.
  template <class T>
  [[nodiscard]] std::uint64_t take(std::int64_t count) {
    const std::uint64_t offset = bytes_;
    bytes_ = (bytes_ + static_cast<std::uint64_t>(count) * sizeof(T) + 255) / 256 * 256;
    return offset;
  }
  void allocate() {
    device_.resize(bytes_, 0);
    void* memory = nullptr;
    must(cudaHostAlloc(&memory, bytes_ + 1, cudaHostAllocDefault));
    host_ = static_cast<std::byte*>(memory);
  }

  template <class T>
  [[nodiscard]] T* host(std::uint64_t offset) const {
    return reinterpret_cast<T*>(host_ + offset);
  }
  template <class T>
  [[nodiscard]] T* device(std::uint64_t offset) const {
    return reinterpret_cast<T*>(device_.data() + offset);
  }
  void upload(cudaStream_t stream) {
    must(cudaMemcpyAsync(device_.data(), host_, bytes_, cudaMemcpyHostToDevice, stream));
  }
  void download(cudaStream_t stream) {
    must(cudaMemcpyAsync(host_, device_.data(), bytes_, cudaMemcpyDeviceToHost, stream));
  }
  void poison(std::uint64_t kind, cudaStream_t stream) {
    must(cudaMemsetAsync(device_.data(), std::to_integer<int>(poison_byte(kind)), bytes_, stream));
  }
  [[nodiscard]] std::string damage(const char* name) const { return device_.damage(name); }

 private:
  device_buffer<std::byte> device_;
  std::byte* host_ = nullptr;
  std::uint64_t bytes_ = 0;
};

/// Buffers, handle and stream of one rank on one lane.
///
/// @par Threads  One at a time; calls of several members may be made by one thread, since none
///               waits but `settle`.
class staged_member {
 public:
  using group_type = group<peer_memory>;

  /// @param config  slotted or counted; bf16 rows; padded, expert_major or rank_major
  staged_member(peer_memory& transport, group_type& calls, const run_config& config, int lane)
      : transport_(transport),
        calls_(calls),
        config_(config),
        problem_(problem_of(config)),
        rank_(transport.view().rank()),
        lane_(lane),
        by_expert_(config.layout != output_layout::rank_major) {
    const detail::device_scope scope(transport.device());
    must(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    most_ = std::max(problem_.max_tokens, problem_.counted_tokens);
    const std::int64_t tokens = most_;
    const std::int64_t choices = tokens * problem_.top_k;
    const auto row = static_cast<std::int64_t>(problem_.row_bytes);
    local_ = static_cast<std::int64_t>(experts_of(problem_, rank_).size());
    const std::int64_t worst = problem_.ranks * tokens * (by_expert_ ? problem_.top_k : 1);
    rows_ = config.layout == output_layout::padded ? worst * local_ : worst;
    if (config.layout == output_layout::expert_major) rows_ += local_ * (config.alignment - 1);
    in_.count = inputs_.take<std::int64_t>(1);
    in_.index = inputs_.take<std::int64_t>(choices);
    in_.weight = inputs_.take<float>(choices);
    in_.x = inputs_.take<std::byte>(tokens * row);
    inputs_.allocate();
    const std::int64_t per_row = by_expert_ ? 1 : problem_.top_k;
    out_.total = outputs_.take<std::int64_t>(1);
    out_.expert_count = outputs_.take<std::int64_t>(local_);
    out_.expert_offset = outputs_.take<std::int64_t>(local_);
    out_.source_token = outputs_.take<std::int64_t>(rows_);
    out_.source_rank = outputs_.take<std::int32_t>(rows_);
    out_.index = outputs_.take<std::int32_t>(rows_ * per_row);
    out_.weight = outputs_.take<float>(rows_ * per_row);
    out_.rows = outputs_.take<std::byte>(rows_ * row);
    out_.combined = outputs_.take<std::uint16_t>(tokens * problem_.hidden);
    outputs_.allocate();
    handle_.resize(calls.needs().handle_bytes, 0);
    must(cudaDeviceSynchronize());
  }
  staged_member(const staged_member&) = delete;
  staged_member& operator=(const staged_member&) = delete;
  ~staged_member() {
    const detail::device_scope scope(transport_.device());
    for (cudaGraphExec_t graph : graphs_) (void)cudaGraphExecDestroy(graph);
    (void)cudaStreamDestroy(stream_);
  }

  [[nodiscard]] cudaStream_t stream() const { return stream_; }
  /// For the calls from now on.
  void use_lane(int lane) { lane_ = lane; }

  /// Uploads the inputs of this rank and poisons the outputs, in stream order.
  void prepare(const std::vector<rank_input>& all, std::uint64_t kind) {
    const detail::device_scope scope(transport_.device());
    const rank_input& own = all[static_cast<std::size_t>(rank_)];
    *inputs_.host<std::int64_t>(in_.count) = own.tokens;
    std::memcpy(inputs_.host<std::byte>(in_.index), own.index.data(), own.index.size() * 8);
    std::memcpy(inputs_.host<std::byte>(in_.weight), own.weight.data(), own.weight.size() * 4);
    std::memcpy(inputs_.host<std::byte>(in_.x), own.x.data(), own.x.size());
    inputs_.upload(stream_);
    outputs_.poison(kind, stream_);
    kind_ = kind;
  }

  /// As `prepare` does, for a further combine of the same dispatch.
  void poison_combined() {
    const detail::device_scope scope(transport_.device());
    must(cudaMemsetAsync(outputs_.device<std::byte>(out_.combined),
                         std::to_integer<int>(poison_byte(kind_)),
                         static_cast<std::uint64_t>(most_ * problem_.hidden) * 2, stream_));
  }

  [[nodiscard]] dispatch_input input() const {
    return {.x = inputs_.device<std::byte>(in_.x),
            .topk_index = inputs_.device<std::int64_t>(in_.index),
            .topk_weight = inputs_.device<float>(in_.weight),
            .device_tokens = inputs_.device<std::int64_t>(in_.count),
            .mode = config_.mode};
  }
  [[nodiscard]] dispatch_output output() const {
    const bool whole = config_.layout == output_layout::expert_major;
    const bool counted_rows = !by_expert_ && config_.mode == dispatch_mode::counted;
    return {
        .layout = config_.layout,
        .rows = counted_rows ? nullptr : outputs_.device<std::byte>(out_.rows),
        .alignment = config_.alignment,
        .total = outputs_.device<std::int64_t>(out_.total),
        .expert_count = outputs_.device<std::int64_t>(out_.expert_count),
        .expert_offset = by_expert_ ? outputs_.device<std::int64_t>(out_.expert_offset) : nullptr,
        .row_expert = whole ? outputs_.device<std::int32_t>(out_.index) : nullptr,
        .row_weight = by_expert_ ? outputs_.device<float>(out_.weight) : nullptr,
        .topk_index = by_expert_ ? nullptr : outputs_.device<std::int32_t>(out_.index),
        .topk_weight = by_expert_ ? nullptr : outputs_.device<float>(out_.weight),
        .source_rank = outputs_.device<std::int32_t>(out_.source_rank),
        .source_token = outputs_.device<std::int64_t>(out_.source_token)};
  }
  [[nodiscard]] combine_input returned() const {
    return {.y = landed_rows(), .weights = by_expert_ ? weighting::at_expert : weighting::none};
  }
  [[nodiscard]] combine_output combined() const {
    return {.out = outputs_.device<std::byte>(out_.combined)};
  }
  [[nodiscard]] dispatch_handle handle() const { return {handle_.data(), handle_.size()}; }
  [[nodiscard]] group_type::options how() const { return {.stream = stream_}; }

  [[nodiscard]] result<void> dispatch() {
    return calls_.dispatch(lane_, input(), output(), handle(), how());
  }
  [[nodiscard]] result<void> dispatch_send() {
    return calls_.dispatch_send(lane_, input(), handle(), how());
  }
  [[nodiscard]] result<void> dispatch_recv() {
    return calls_.dispatch_recv(lane_, output(), handle(), how());
  }
  [[nodiscard]] result<void> combine() {
    return calls_.combine(lane_, returned(), combined(), handle(), how());
  }
  [[nodiscard]] result<void> combine_send() {
    return calls_.combine_send(lane_, returned(), handle(), how());
  }
  [[nodiscard]] result<void> combine_recv() {
    return calls_.combine_recv(lane_, combined(), handle(), how());
  }

  /// Captures what `function` launches on this member's stream; the index is for `replay`.
  template <class Function>
  [[nodiscard]] result<std::size_t> capture(const Function& function) {
    const detail::device_scope scope(transport_.device());
    must(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal));
    const result<void> made = function();
    cudaGraph_t graph = nullptr;
    must(cudaStreamEndCapture(stream_, &graph));
    if (!made) return made.error();
    cudaGraphExec_t ready = nullptr;
    must(cudaGraphInstantiate(&ready, graph, 0));
    must(cudaGraphDestroy(graph));
    must(cudaGraphUpload(ready, stream_));
    must(cudaStreamSynchronize(stream_));
    graphs_.push_back(ready);
    return graphs_.size() - 1;
  }
  void replay(std::size_t graph) {
    const detail::device_scope scope(transport_.device());
    must(cudaGraphLaunch(graphs_[graph], stream_));
  }

  /// Brings the outputs back, in stream order.
  void fetch() {
    const detail::device_scope scope(transport_.device());
    outputs_.download(stream_);
    if (landed_rows() != outputs_.device<std::byte>(out_.rows)) {
      must(cudaMemcpyAsync(outputs_.host<std::byte>(out_.rows), landed_rows(),
                           static_cast<std::uint64_t>(rows_) * problem_.row_bytes,
                           cudaMemcpyDeviceToHost, stream_));
    }
  }
  void settle() { must(cudaStreamSynchronize(stream_)); }

  /// The first difference from the oracle, after `settle`; empty if there is none.
  [[nodiscard]] std::string verify(const std::vector<rank_input>& all) const {
    if (const auto status = calls_.status(lane_); !status) return status.error().message();
    const expected_dispatch expected = expect_dispatch(
        problem_, all, rank_, {.layout = config_.layout, .alignment = config_.alignment});
    const received got = host_view();
    std::string wrong = check_dispatch(problem_, all, rank_, expected, got);
    const bool own_rows = landed_rows() == outputs_.device<std::byte>(out_.rows);
    const std::span<const std::byte> rows(got.rows,
                                          static_cast<std::uint64_t>(rows_) * problem_.row_bytes);
    if (wrong.empty() && own_rows) {
      wrong = check_slack(problem_, rank_, expected, rows, {}, poison_byte(kind_));
    }
    if (wrong.empty()) wrong = verify_combine(all);
    if (wrong.empty()) wrong = inputs_.damage("the inputs");
    return wrong.empty() ? outputs_.damage("the outputs") : wrong;
  }

 private:
  struct input_offsets {
    std::uint64_t count, index, weight, x;
  };
  struct output_offsets {
    std::uint64_t total, expert_count, expert_offset, source_token, source_rank, index, weight,
        rows, combined;
  };

  /// Where dispatch leaves the rows: the caller's buffer, or the window.
  [[nodiscard]] std::byte* landed_rows() const {
    const bool stay = !by_expert_ && config_.mode == dispatch_mode::counted;
    return stay ? calls_.counted_rows(lane_) : outputs_.device<std::byte>(out_.rows);
  }

  [[nodiscard]] received host_view() const {
    const bool whole = config_.layout == output_layout::expert_major;
    return {.rows = outputs_.host<std::byte>(out_.rows),
            .total = outputs_.host<std::int64_t>(out_.total),
            .expert_count = outputs_.host<std::int64_t>(out_.expert_count),
            .expert_offset = by_expert_ ? outputs_.host<std::int64_t>(out_.expert_offset) : nullptr,
            .row_expert = whole ? outputs_.host<std::int32_t>(out_.index) : nullptr,
            .row_weight = by_expert_ ? outputs_.host<float>(out_.weight) : nullptr,
            .topk_index = by_expert_ ? nullptr : outputs_.host<std::int32_t>(out_.index),
            .topk_weight = by_expert_ ? nullptr : outputs_.host<float>(out_.weight),
            .source_rank = outputs_.host<std::int32_t>(out_.source_rank),
            .source_token = outputs_.host<std::int64_t>(out_.source_token)};
  }

  [[nodiscard]] std::string verify_combine(const std::vector<rank_input>& all) const {
    const rank_input& own = all[static_cast<std::size_t>(rank_)];
    const std::span<const std::byte> out(outputs_.host<std::byte>(out_.combined),
                                         static_cast<std::uint64_t>(most_ * problem_.hidden) * 2);
    const std::uint64_t unit = static_cast<std::uint64_t>(problem_.hidden) * 2;
    const auto tokens = static_cast<std::uint64_t>(own.tokens);
    const std::int64_t hidden = problem_.hidden;
    const expert_function identity = [hidden](const row_view& row, int, float* y) {
      for (std::int64_t c = 0; c < hidden; ++c) {
        y[c] = reference_load(element::bf16, row.row, static_cast<std::uint64_t>(c));
      }
    };
    const std::vector<std::byte> expected =
        by_expert_ ? expect_combine(problem_, own, weighting::at_expert, identity)
                   : expect_row_per_rank(own);
    std::string wrong = check_combined(problem_, rank_, expected, out.first(tokens * unit));
    if (!wrong.empty()) return wrong;
    return check_left_alone(rank_, "out", out, unit, tokens, static_cast<std::uint64_t>(most_),
                            poison_byte(kind_));
  }

  /// One unweighted row from each rank of the token's experts.
  [[nodiscard]] std::vector<std::byte> expect_row_per_rank(const rank_input& own) const {
    const std::vector<std::int32_t> owner = owners(problem_);
    const auto hidden = static_cast<std::uint64_t>(problem_.hidden);
    std::vector<std::byte> out(static_cast<std::uint64_t>(own.tokens) * hidden * 2);
    for (std::uint64_t t = 0; t < static_cast<std::uint64_t>(own.tokens); ++t) {
      std::vector<bool> to(static_cast<std::size_t>(problem_.ranks), false);
      const auto k = static_cast<std::uint64_t>(problem_.top_k);
      for (std::uint64_t c = t * k; c < (t + 1) * k; ++c) {
        if (own.index[c] < 0 || own.index[c] >= problem_.experts) continue;
        to[static_cast<std::size_t>(owner[static_cast<std::size_t>(own.index[c])])] = true;
      }
      for (std::uint64_t c = t * hidden; c < (t + 1) * hidden; ++c) {
        float sum = 0;
        for (const bool one : to) {
          if (one) sum += reference_load(element::bf16, own.x.data(), c);
        }
        reference_store(element::bf16, out.data(), c, sum);
      }
    }
    return out;
  }

  peer_memory& transport_;
  group_type& calls_;
  run_config config_;
  problem problem_;
  int rank_;
  int lane_;
  bool by_expert_;
  std::int64_t most_ = 0;  ///< tokens of a call
  std::int64_t local_ = 0;
  std::int64_t rows_ = 0;
  std::uint64_t kind_ = 0;
  cudaStream_t stream_ = nullptr;
  input_offsets in_{};
  output_offsets out_{};
  mirrored_arrays inputs_;
  mirrored_arrays outputs_;
  device_buffer<std::byte> handle_;
  std::vector<cudaGraphExec_t> graphs_;
};

}  // namespace eptransport::support
