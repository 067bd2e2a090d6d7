// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The caller's memory of one rank and lane on the GPU: guarded, poisoned, brought back.
#pragma once

#include <eptransport/kernels/call.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "cuda/device_buffer.cuh"
#include "support/check.hpp"
#include "support/oracle.hpp"
#include "support/received.hpp"
#include "support/runner.hpp"

namespace eptransport::support {

/// Inputs, outputs and handle of one call.
class gpu_buffers {
 public:
  gpu_buffers(const run_config& config, const problem& p, std::uint64_t local_experts,
              std::uint64_t handle_bytes)
      : config_(config),
        problem_(p),
        local_(local_experts),
        by_expert_(config.layout == output_layout::expert_major ||
                   config.layout == output_layout::padded),
        padded_(config.layout == output_layout::padded),
        in_place_(config.layout == output_layout::in_place),
        handle_(handle_bytes) {
    void* memory = nullptr;
    must(cudaHostAlloc(&memory, (1 + local_) * sizeof(std::int64_t), cudaHostAllocMapped));
    host_counts_ = static_cast<std::int64_t*>(memory);
  }
  gpu_buffers(const gpu_buffers&) = delete;
  gpu_buffers& operator=(const gpu_buffers&) = delete;
  ~gpu_buffers() { (void)cudaFreeHost(host_counts_); }

  /// Uploads this rank's inputs and makes room for what it will receive, poisoned.
  ///
  /// @param keep_handle  the dispatch is a cached one
  void prepare(const rank_input& own, const expected_dispatch& expected, std::uint64_t kind,
               bool keep_handle) {
    tokens_ = own.tokens;
    kind_ = kind;
    x_.assign(own.x);
    scales_.assign(own.scales);
    weight_.assign(own.weight);
    wide_index_.assign(own.index);
    narrow_index_.assign(std::vector<std::int32_t>(own.index.begin(), own.index.end()));
    token_count_.assign({own.tokens});
    if (!keep_handle) handle_.poison(kind);
    make_room(expected);
  }

  [[nodiscard]] dispatch_handle handle() const { return {handle_.data(), handle_.size()}; }

  [[nodiscard]] dispatch_input input(bool cached) const {
    const bool wide = config_.indices == index_type::int64;
    if (tokens_ == 0 && !cached && !config_.device_tokens) {
      return {.indices = config_.indices, .mode = config_.mode};  // pointers may be null
    }
    return {.x = x_.data(),
            .scales = problem_.scale_bytes == 0 ? nullptr : scales_.data(),
            .topk_index = wide ? static_cast<const void*>(wide_index_.data())
                               : static_cast<const void*>(narrow_index_.data()),
            .topk_weight = config_.null_weights ? nullptr : weight_.data(),
            .tokens = config_.device_tokens || cached ? 0 : tokens_,
            .device_tokens = config_.device_tokens && !cached ? token_count_.data() : nullptr,
            .indices = config_.indices,
            .mode = config_.mode,
            .cached = cached};
  }

  [[nodiscard]] dispatch_output output() const {
    return {.layout = config_.layout,
            .rows = in_place_ ? nullptr : rows_.data(),
            .scales = in_place_ || problem_.scale_bytes == 0 ? nullptr : out_scales_.data(),
            .capacity = capacity_,
            .alignment = config_.alignment,
            .total = total_.data(),
            .expert_count = expert_count_.data(),
            .expert_offset = by_expert_ ? expert_offset_.data() : nullptr,
            .row_expert = by_expert_ && !padded_ ? row_expert_.data() : nullptr,
            .row_weight = by_expert_ ? row_weight_.data() : nullptr,
            .topk_index = by_expert_ ? nullptr : topk_index_.data(),
            .topk_weight = by_expert_ ? nullptr : topk_weight_.data(),
            .source_rank = source_rank_.data(),
            .source_token = source_token_.data(),
            .row_offset = in_place_ ? row_offset_.data() : nullptr,
            .host_counts = host_counts_};
  }

  /// Brings back what dispatch wrote; valid until the next call.
  ///
  /// @param window, scale_offset  where in-place rows and scales lie
  [[nodiscard]] received download(std::span<const std::byte> window, std::uint64_t scale_offset) {
    if (in_place_) {
      host_.rows.resize(window.size());
      must(cudaMemcpy(host_.rows.data(), window.data(), window.size(), cudaMemcpyDeviceToHost));
    } else {
      host_.rows = rows_.read();
    }
    host_.scales = out_scales_.read();
    host_.total = total_.read();
    host_.expert_count = expert_count_.read();
    host_.expert_offset = expert_offset_.read();
    host_.source_token = source_token_.read();
    host_.row_expert = row_expert_.read();
    host_.topk_index = topk_index_.read();
    host_.source_rank = source_rank_.read();
    host_.row_weight = row_weight_.read();
    host_.topk_weight = topk_weight_.read();
    host_.row_offset = row_offset_.read();
    return {.rows = host_.rows.data(),
            .scales = in_place_ ? host_.rows.data() + scale_offset : host_.scales.data(),
            .row_offset = in_place_ ? host_.row_offset.data() : nullptr,
            .total = host_.total.data(),
            .expert_count = host_.expert_count.data(),
            .expert_offset = by_expert_ ? host_.expert_offset.data() : nullptr,
            .row_expert = by_expert_ && !padded_ ? host_.row_expert.data() : nullptr,
            .row_weight = by_expert_ ? host_.row_weight.data() : nullptr,
            .topk_index = by_expert_ ? nullptr : host_.topk_index.data(),
            .topk_weight = by_expert_ ? nullptr : host_.topk_weight.data(),
            .source_rank = host_.source_rank.data(),
            .source_token = host_.source_token.data(),
            .host_counts = host_counts_};
  }

  /// The bytes that `download` brought back and dispatch had to leave alone.
  [[nodiscard]] std::string check_untouched(int rank, const expected_dispatch& expected) const {
    if (in_place_) return {};
    return check_slack(problem_, rank, expected, host_.rows, host_.scales, poison_byte(kind_));
  }

  /// Room for the experts' results on the host, with the device's poison.
  [[nodiscard]] std::vector<std::uint16_t> blank_y() const { return y_.read(); }
  [[nodiscard]] combine_input experts_output(const std::vector<std::uint16_t>& y) {
    y_.write(y);
    return {.y = y_.data(), .weights = by_expert_ ? config_.weights : weighting::none};
  }
  [[nodiscard]] combine_output combined() const { return {.out = out_.data()}; }
  [[nodiscard]] std::vector<std::uint16_t> out() const { return out_.read(); }

  void poison_out(std::uint64_t kind) { out_.poison(kind); }
  void poison_y(std::uint64_t kind) { y_.poison(kind); }
  void poison_inputs(std::uint64_t kind) {
    x_.poison(kind);
    scales_.poison(kind);
    weight_.poison(kind);
    wide_index_.poison(kind);
    narrow_index_.poison(kind);
    token_count_.poison(kind);
  }

  /// The first canary that was hit, or an empty string.
  [[nodiscard]] std::string damage() const {
    std::string first;
    const auto look = [&first](const auto& buffer, const char* name) {
      if (first.empty()) first = buffer.damage(name);
    };
    look(x_, "x");
    look(scales_, "input scales");
    look(weight_, "topk_weight");
    look(wide_index_, "topk_index");
    look(narrow_index_, "topk_index");
    look(token_count_, "device_tokens");
    look(handle_, "the handle");
    look(rows_, "output rows");
    look(out_scales_, "output scales");
    look(total_, "total");
    look(expert_count_, "expert_count");
    look(expert_offset_, "expert_offset");
    look(source_token_, "source_token");
    look(row_expert_, "row_expert");
    look(topk_index_, "output topk_index");
    look(source_rank_, "source_rank");
    look(row_weight_, "row_weight");
    look(topk_weight_, "output topk_weight");
    look(row_offset_, "row_offset");
    look(y_, "y");
    look(out_, "combine output");
    return first;
  }

 private:
  /// Rows of the output: what is needed and one more as bait, or what capacity 0 asks for.
  void make_room(const expected_dispatch& expected) {
    const std::vector<std::int64_t>& counts = expected.expert_count;
    capacity_ = config_.capacity;
    if (capacity_ == exact_capacity) {
      const std::int64_t most =
          counts.empty() ? 0 : *std::max_element(counts.begin(), counts.end());
      capacity_ = 1 + (padded_ ? most : expected.total);
    }
    std::int64_t room = capacity_;
    if (capacity_ == 0) {
      const std::int64_t slots = problem_.ranks * problem_.max_tokens;
      room = slots * (by_expert_ ? problem_.top_k : 1);
      if (!padded_) room += static_cast<std::int64_t>(local_) * (config_.alignment - 1);
    }
    const std::uint64_t count = static_cast<std::uint64_t>(room) * (padded_ ? local_ : 1);
    const auto hidden = static_cast<std::uint64_t>(problem_.hidden);
    const std::uint64_t choices = count * static_cast<std::uint64_t>(problem_.top_k);
    rows_.resize(in_place_ ? 0 : count * problem_.row_bytes, kind_);
    out_scales_.resize(in_place_ ? 0 : count * problem_.scale_bytes, kind_);
    total_.resize(1, kind_);
    expert_count_.resize(local_, kind_);
    expert_offset_.resize(by_expert_ ? local_ : 0, kind_);
    source_rank_.resize(count, kind_);
    source_token_.resize(count, kind_);
    row_expert_.resize(by_expert_ && !padded_ ? count : 0, kind_);
    row_weight_.resize(by_expert_ ? count : 0, kind_);
    topk_index_.resize(by_expert_ ? 0 : choices, kind_);
    topk_weight_.resize(by_expert_ ? 0 : choices, kind_);
    row_offset_.resize(in_place_ ? count : 0, kind_);
    y_.resize(count * hidden, kind_);
    out_.resize(static_cast<std::uint64_t>(tokens_) * hidden, kind_);
    for (std::uint64_t i = 0; i <= local_; ++i) host_counts_[i] = -1;
  }

  const run_config& config_;
  const problem& problem_;
  std::uint64_t local_;
  bool by_expert_, padded_, in_place_;
  std::int64_t tokens_ = 0;
  std::int64_t capacity_ = 0;
  std::uint64_t kind_ = 0;
  device_buffer<std::byte> handle_;
  device_buffer<std::byte> x_, scales_, rows_, out_scales_;
  device_buffer<std::int64_t> wide_index_, token_count_, total_, expert_count_, expert_offset_,
      source_token_;
  device_buffer<std::int32_t> narrow_index_, row_expert_, topk_index_, source_rank_;
  device_buffer<float> weight_, row_weight_, topk_weight_;
  device_buffer<std::uint64_t> row_offset_;
  device_buffer<std::uint16_t> y_, out_;
  std::int64_t* host_counts_ = nullptr;

  struct {
    std::vector<std::byte> rows, scales;
    std::vector<std::int64_t> total, expert_count, expert_offset, source_token;
    std::vector<std::int32_t> row_expert, topk_index, source_rank;
    std::vector<float> row_weight, topk_weight;
    std::vector<std::uint64_t> row_offset;
  } host_;
};

}  // namespace eptransport::support
