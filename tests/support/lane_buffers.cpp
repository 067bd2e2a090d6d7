// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Sizes, poison and pointers of a call's buffers.
#include "support/lane_buffers.hpp"

#include <algorithm>
#include <cstring>

namespace eptransport::support {
namespace {

bool is_per_expert(output_layout layout) {
  return layout == output_layout::expert_major || layout == output_layout::padded;
}

template <class T>
void copy_into(const guarded<T>& to, const void* from) {
  if (to.size() != 0) std::memcpy(to.data(), from, to.bytes().size());
}

}  // namespace

lane_buffers::lane_buffers(const run_config& config, const problem& p, int local_experts,
                           std::uint64_t handle_bytes)
    : config_(config),
      problem_(p),
      local_experts_(static_cast<std::uint64_t>(local_experts)),
      token_count_(1),
      handle_(handle_bytes) {}

void lane_buffers::prepare(const rank_input& own, const expected_dispatch& expected,
                           std::uint64_t kind, bool keep_handle) {
  tokens_ = own.tokens;
  token_count_[0] = own.tokens;
  x_ = guarded<std::byte>(own.x.size(), config_.skew);
  scales_ = guarded<std::byte>(own.scales.size(), config_.skew);
  weight_ = guarded<float>(own.weight.size());
  copy_into(x_, own.x.data());
  copy_into(scales_, own.scales.data());
  copy_into(weight_, own.weight.data());
  if (config_.indices == index_type::int64) {
    wide_index_ = guarded<std::int64_t>(own.index.size());
    copy_into(wide_index_, own.index.data());
  } else {
    narrow_index_ = guarded<std::int32_t>(own.index.size());
    for (std::size_t i = 0; i < own.index.size(); ++i) {
      narrow_index_[i] = static_cast<std::int32_t>(own.index[i]);
    }
  }
  out_ = guarded<std::uint16_t>(
      static_cast<std::uint64_t>(own.tokens) * static_cast<std::uint64_t>(problem_.hidden),
      config_.skew);
  make_room(expected);
  poison_outputs(kind);
  if (!keep_handle) poison(handle_.bytes(), kind);
}

void lane_buffers::make_room(const expected_dispatch& expected) {
  const bool by_expert = is_per_expert(config_.layout);
  const bool padded = config_.layout == output_layout::padded;
  const auto slots = static_cast<std::int64_t>(problem_.ranks) * problem_.max_tokens;
  const auto local = static_cast<std::int64_t>(local_experts_);
  capacity_ = config_.capacity;
  if (capacity_ == exact_capacity) {
    capacity_ = 1 + (padded ? (expected.expert_count.empty()
                                   ? 0
                                   : *std::max_element(expected.expert_count.begin(),
                                                       expected.expert_count.end()))
                            : expected.total);
  }
  std::int64_t room = capacity_;
  if (capacity_ == 0) {
    const std::int64_t copies = by_expert ? problem_.top_k : 1;
    room = slots * copies + (padded ? 0 : local * (config_.alignment - 1));
  }
  const auto count = static_cast<std::uint64_t>(padded ? room * local : room);
  const bool in_place = config_.layout == output_layout::in_place;
  rows_ = guarded<std::byte>(in_place ? 0 : count * problem_.row_bytes, config_.skew);
  out_scales_ = guarded<std::byte>(in_place ? 0 : count * problem_.scale_bytes, config_.skew);
  y_ = guarded<std::uint16_t>(count * static_cast<std::uint64_t>(problem_.hidden), config_.skew);
  if (!config_.metadata && !in_place) return;
  const auto choices = count * static_cast<std::uint64_t>(problem_.top_k);
  row_offset_ = guarded<std::uint64_t>(in_place ? count : 0);
  if (!config_.metadata) return;
  total_ = guarded<std::int64_t>(1);
  expert_count_ = guarded<std::int64_t>(local_experts_);
  host_counts_ = guarded<std::int64_t>(1 + local_experts_);
  source_rank_ = guarded<std::int32_t>(count);
  source_token_ = guarded<std::int64_t>(count);
  if (by_expert) {
    expert_offset_ = guarded<std::int64_t>(local_experts_);
    row_weight_ = guarded<float>(count);
    if (!padded) row_expert_ = guarded<std::int32_t>(count);
  } else {
    topk_index_ = guarded<std::int32_t>(choices);
    topk_weight_ = guarded<float>(choices);
  }
}

void lane_buffers::poison_outputs(std::uint64_t kind) {
  poison(rows_.bytes(), kind);
  poison(out_scales_.bytes(), kind);
  poison(total_.bytes(), kind);
  poison(expert_count_.bytes(), kind);
  poison(expert_offset_.bytes(), kind);
  poison(host_counts_.bytes(), kind);
  poison(source_rank_.bytes(), kind);
  poison(source_token_.bytes(), kind);
  poison(row_expert_.bytes(), kind);
  poison(row_weight_.bytes(), kind);
  poison(topk_index_.bytes(), kind);
  poison(topk_weight_.bytes(), kind);
  poison(row_offset_.bytes(), kind);
  poison(y_.bytes(), kind);
  poison(out_.bytes(), kind);
}

void lane_buffers::poison_inputs(std::uint64_t kind) {
  poison(x_.bytes(), kind);
  poison(scales_.bytes(), kind);
  poison(wide_index_.bytes(), kind);
  poison(narrow_index_.bytes(), kind);
  poison(weight_.bytes(), kind);
  poison(token_count_.bytes(), kind);
}

dispatch_input lane_buffers::input(bool cached) const {
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

dispatch_output lane_buffers::output() const {
  const bool in_place = config_.layout == output_layout::in_place;
  return {.layout = config_.layout,
          .rows = in_place ? nullptr : rows_.data(),
          .scales = in_place || problem_.scale_bytes == 0 ? nullptr : out_scales_.data(),
          .capacity = capacity_,
          .alignment = config_.alignment,
          .total = total_.data(),
          .expert_count = expert_count_.data(),
          .expert_offset = expert_offset_.data(),
          .row_expert = row_expert_.data(),
          .row_weight = row_weight_.data(),
          .topk_index = topk_index_.data(),
          .topk_weight = topk_weight_.data(),
          .source_rank = source_rank_.data(),
          .source_token = source_token_.data(),
          .row_offset = row_offset_.data(),
          .host_counts = host_counts_.data()};
}

combine_input lane_buffers::experts_output() const {
  return {.y = y_.data(),
          .weights = is_per_expert(config_.layout) ? config_.weights : weighting::none};
}

received lane_buffers::result(const std::byte* window, std::uint64_t scale_offset) const {
  const bool in_place = config_.layout == output_layout::in_place;
  return {.rows = in_place ? window : rows_.data(),
          .scales = in_place ? window + scale_offset : out_scales_.data(),
          .row_offset = in_place ? row_offset_.data() : nullptr,
          .total = total_.data(),
          .expert_count = expert_count_.data(),
          .expert_offset = expert_offset_.data(),
          .row_expert = row_expert_.data(),
          .row_weight = row_weight_.data(),
          .topk_index = topk_index_.data(),
          .topk_weight = topk_weight_.data(),
          .source_rank = source_rank_.data(),
          .source_token = source_token_.data(),
          .host_counts = host_counts_.data()};
}

received lane_buffers::completed(const received& got, const expected_dispatch& expected) const {
  received out = got;
  if (out.total == nullptr) out.total = &expected.total;
  if (out.expert_count == nullptr) out.expert_count = expected.expert_count.data();
  if (out.expert_offset == nullptr) out.expert_offset = expected.expert_offset.data();
  if (out.topk_index == nullptr) out.topk_index = expected.topk_index.data();
  if (out.topk_weight == nullptr) out.topk_weight = expected.topk_weight.data();
  return out;
}

tamper_point lane_buffers::touch(const char* call, int rank, int iteration) const {
  return {.call = call,
          .rank = rank,
          .iteration = iteration,
          .rows = rows_.bytes(),
          .out = {out_.data(), out_.size()},
          .total = total_.data(),
          .source_token = source_token_.data()};
}

std::string lane_buffers::damage() const {
  std::string first;
  const auto look = [&first](const auto& buffer, const char* name) {
    if (first.empty()) first = buffer.damage(name);
  };
  look(x_, "x");
  look(scales_, "input scales");
  look(wide_index_, "topk_index");
  look(narrow_index_, "topk_index");
  look(weight_, "topk_weight");
  look(token_count_, "device_tokens");
  look(handle_, "the handle");
  look(rows_, "output rows");
  look(out_scales_, "output scales");
  look(total_, "total");
  look(expert_count_, "expert_count");
  look(expert_offset_, "expert_offset");
  look(source_token_, "source_token");
  look(host_counts_, "host_counts");
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

}  // namespace eptransport::support
