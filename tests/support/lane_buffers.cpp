// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Sizes, poison and pointers of a call's buffers.
#include "support/lane_buffers.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

namespace eptransport::support {
namespace {

/// Landing zones begin at one of as many multiples of 16.
constexpr std::uint64_t landing_places = 8;

bool is_per_expert(output_layout layout) {
  return layout == output_layout::expert_major || layout == output_layout::padded;
}

template <class T>
void copy_into(const guarded<T>& to, const void* from) {
  if (to.size() != 0) std::memcpy(to.data(), from, to.bytes().size());
}

std::uint64_t round_up(std::uint64_t value, std::uint64_t unit) {
  return (value + unit - 1) / unit * unit;
}

std::uint64_t value_bytes(const problem& p) {
  return static_cast<std::uint64_t>(p.hidden) * bytes_of(p.values);
}

}  // namespace

window_layout window_layout_of(const run_config& config, const problem& p) {
  const auto rows = static_cast<std::uint64_t>(p.counted_rows);
  window_layout out;
  if (config.landing) {
    out.landing = round_up(rows * p.row_bytes + 16 * landing_places + 2 * guarded_part::zone, 128);
  }
  if (config.transfer == combine_transfer::pull) {
    out.y = round_up((rows + 1) * value_bytes(p) + config.skew + 2 * guarded_part::zone, 128);
  }
  return out;
}

lane_buffers::lane_buffers(const run_config& config, const problem& p, int local_experts,
                           std::uint64_t handle_bytes, const lane_window& window,
                           memory_twins* twins)
    : config_(config),
      problem_(p),
      local_experts_(static_cast<std::uint64_t>(local_experts)),
      window_(window),
      twins_(twins),
      layout_(window_layout_of(config, p)),
      handle_(handle_bytes, 0, twins, twin_use::run) {
  if (layout_.y == 0) return;
  const std::uint64_t bytes = static_cast<std::uint64_t>(p.counted_rows + 1) * value_bytes(p);
  std::byte* start = window_.start + window_.mine + layout_.landing;
  pulled_y_ = guarded_part({start, layout_.y}, config.skew, bytes);
}

void lane_buffers::prepare(const rank_input& own, const expected_dispatch& expected,
                           call_plan plan) {
  plan_ = std::move(plan);
  if (twins_ != nullptr) twins_->recycle();
  tokens_ = own.tokens;
  renew(token_count_, 1);
  token_count_[0] = own.tokens;
  copy_inputs(own);
  renew(out_, static_cast<std::uint64_t>(own.tokens) * value_bytes(problem_), config_.skew);
  renew(choice_out_, returns_choices() ? own.index.size() : 0);
  if (counted() && config_.landing) {
    const std::uint64_t place =
        (plan_.kind + 5 * static_cast<std::uint64_t>(plan_.rank)) % landing_places;
    landing_ = guarded_part({window_.start + window_.mine, layout_.landing}, 16 * place,
                            static_cast<std::uint64_t>(plan_.room) * problem_.row_bytes);
  }
  make_room(expected);
  poison_outputs();
  if (!plan_.cached) poison(handle_.bytes(), plan_.kind);
}

void lane_buffers::copy_inputs(const rank_input& own) {
  const bool raw = problem_.quantise != quantisation::none;
  const std::vector<std::byte>& x = raw ? own.raw : own.x;
  renew(x_, x.size(), config_.skew);
  renew(scales_, raw ? 0 : own.scales.size(), config_.skew);
  renew(weight_, own.weight.size());
  renew(bias_, plan_.bias.size(), config_.skew);
  copy_into(x_, x.data());
  copy_into(scales_, own.scales.data());
  copy_into(weight_, own.weight.data());
  copy_into(bias_, plan_.bias.data());
  if (config_.indices == index_type::int64) {
    renew(wide_index_, own.index.size());
    copy_into(wide_index_, own.index.data());
    return;
  }
  renew(narrow_index_, own.index.size());
  for (std::size_t i = 0; i < own.index.size(); ++i) {
    narrow_index_[i] = static_cast<std::int32_t>(own.index[i]);
  }
}

void lane_buffers::make_room(const expected_dispatch& expected) {
  const bool padded = config_.layout == output_layout::padded;
  const auto local = static_cast<std::int64_t>(local_experts_);
  const std::vector<std::int64_t>& counts = expected.expert_count;
  capacity_ = config_.capacity;
  if (capacity_ == exact_capacity) {
    const std::int64_t most = counts.empty() ? 0 : *std::max_element(counts.begin(), counts.end());
    capacity_ = 1 + (padded ? most : expected.total);
  }
  std::int64_t room = capacity_;
  if (capacity_ == 0) {
    const std::int64_t copies = is_per_expert(config_.layout) ? problem_.top_k : 1;
    room = most_rows(problem_) * copies + (padded ? 0 : local * (config_.alignment - 1));
  }
  const auto count = static_cast<std::uint64_t>(padded ? room * local : room);
  renew(rows_, in_place() || rows_stay() ? 0 : count * problem_.row_bytes, config_.skew);
  scale_stride_ = 0;
  scaled_rows_ = static_cast<std::uint64_t>(room);
  std::uint64_t scale_rows = scales_wanted() ? count : 0;
  std::uint64_t skew = config_.skew;
  if (config_.scale_columns != 0) {
    const auto columns = static_cast<std::uint64_t>(config_.scale_columns);
    scale_stride_ = static_cast<std::int64_t>(round_up(scaled_rows_, columns));
    scale_rows = scale_rows == 0
                     ? 0
                     : static_cast<std::uint64_t>(scale_stride_) * (padded ? local_experts_ : 1);
    skew = skew / 4 * 4;
  }
  renew(out_scales_, scale_rows * problem_.scale_bytes, skew);
  renew(y_, pulls() ? 0 : count * value_bytes(problem_), config_.skew);
  const auto per_row =
      is_per_expert(config_.layout) ? 1 : static_cast<std::uint64_t>(problem_.top_k);
  renew(choice_in_, returns_choices() ? count * per_row : 0);
  renew(row_offset_, in_place() ? count : 0);
  if (config_.metadata) make_metadata(count);
}

void lane_buffers::make_metadata(std::uint64_t count) {
  const auto choices = count * static_cast<std::uint64_t>(problem_.top_k);
  renew(total_, 1);
  renew(dropped_, 1);
  renew(expert_count_, local_experts_);
  renew(host_counts_, 1 + local_experts_, 0, twin_use::shared);
  renew(source_rank_, count);
  renew(source_token_, count);
  if (is_per_expert(config_.layout)) {
    renew(expert_offset_, local_experts_);
    renew(row_weight_, count);
    if (config_.layout != output_layout::padded) renew(row_expert_, count);
  } else {
    renew(topk_index_, choices);
    renew(topk_weight_, choices);
  }
}

void lane_buffers::poison_outputs() {
  const std::uint64_t kind = plan_.kind;
  for (const std::span<std::byte> bytes :
       {rows_.bytes(), out_scales_.bytes(), total_.bytes(), dropped_.bytes(), expert_count_.bytes(),
        expert_offset_.bytes(), host_counts_.bytes(), source_rank_.bytes(), source_token_.bytes(),
        row_expert_.bytes(), row_weight_.bytes(), topk_index_.bytes(), topk_weight_.bytes(),
        row_offset_.bytes(), y_.bytes(), out_.bytes(), choice_in_.bytes(), choice_out_.bytes(),
        landing()}) {
    poison(bytes, kind);
  }
}

void lane_buffers::poison_inputs(std::uint64_t kind) {
  for (const std::span<std::byte> bytes :
       {x_.bytes(), scales_.bytes(), wide_index_.bytes(), narrow_index_.bytes(), weight_.bytes(),
        token_count_.bytes()}) {
    poison(bytes, kind);
  }
}

void lane_buffers::poison_y(std::uint64_t kind) {
  poison(y(), kind);
  poison(choice_in_.bytes(), kind);
}

void lane_buffers::poison_out(std::uint64_t kind) {
  poison(out_.bytes(), kind);
  poison(choice_out_.bytes(), kind);
}

bool lane_buffers::scales_wanted() const {
  if (problem_.scale_bytes == 0) return false;
  // Slotted in-place scales lie behind their rows; a copy may be had as well.
  return !in_place() || counted() || plan_.kind % 2 == 1 || config_.scale_columns != 0;
}

std::span<std::byte> lane_buffers::y() const {
  return pulls() ? pulled_y_.bytes() : y_.bytes();
}

std::span<std::byte> lane_buffers::landing() const {
  if (!counted()) return {};
  if (config_.landing) return landing_.bytes();
  return {window_.own_rows, static_cast<std::uint64_t>(problem_.counted_rows) * problem_.row_bytes};
}

std::span<const std::byte> lane_buffers::rows() const {
  return rows_stay() ? landing() : rows_.bytes();
}

std::span<const std::byte> lane_buffers::scales() const {
  if (scale_stride_ == 0) return out_scales_.bytes();
  return gathered_scales_;
}

void lane_buffers::push() {
  if (twins_ == nullptr) return;
  twins_->push();
  twins_->push(landing_.all());
  if (counted() && !config_.landing) twins_->push(landing());
  twins_->push(pulled_y_.all());
}

void lane_buffers::pull() {
  if (twins_ == nullptr) return;
  twins_->pull();
  twins_->pull(landing_.all());
  if (counted() && !config_.landing) twins_->pull(landing());
  twins_->pull(pulled_y_.all());
  if (in_place() && !counted()) twins_->pull(window_.slotted_rows);
}

dispatch_input lane_buffers::input() const {
  const bool wide = config_.indices == index_type::int64;
  const bool cached = plan_.cached;
  dispatch_input in{.indices = config_.indices, .mode = plan_.mode};
  if (counted() && config_.landing) {
    in.landing = static_cast<std::uint64_t>(landing_.bytes().data() - window_.start);
  }
  if (counted() && !config_.landing_rows.empty()) in.landing_rows = plan_.room;
  in.cached = cached;
  if (tokens_ == 0 && !cached && !config_.device_tokens) return in;  // pointers may be null
  in.x = x_.kernel();
  in.scales = scales_.size() == 0 ? nullptr : scales_.kernel();
  in.topk_index = wide ? static_cast<const void*>(wide_index_.kernel())
                       : static_cast<const void*>(narrow_index_.kernel());
  in.topk_weight = config_.null_weights ? nullptr : weight_.kernel();
  in.tokens = config_.device_tokens || cached ? 0 : tokens_;
  in.device_tokens = config_.device_tokens && !cached ? token_count_.kernel() : nullptr;
  return in;
}

dispatch_output lane_buffers::output() const {
  void* rows = in_place() ? nullptr : rows_.kernel();
  if (rows_stay()) rows = plan_.kind % 2 == 0 ? nullptr : for_kernels(landing().data());
  return {.layout = config_.layout,
          .rows = rows,
          .scales = scales_wanted() ? out_scales_.kernel() : nullptr,
          .scale_stride = scale_stride_,
          .capacity = capacity_,
          .alignment = config_.alignment,
          .total = total_.kernel(),
          .expert_count = expert_count_.kernel(),
          .expert_offset = expert_offset_.kernel(),
          .row_expert = row_expert_.kernel(),
          .row_weight = row_weight_.kernel(),
          .topk_index = topk_index_.kernel(),
          .topk_weight = topk_weight_.kernel(),
          .source_rank = source_rank_.kernel(),
          .source_token = source_token_.kernel(),
          .row_offset = in_place() ? row_offset_.kernel() : nullptr,
          .dropped = dropped_.kernel(),
          .host_counts = host_counts_.kernel()};
}

combine_input lane_buffers::experts_output() const {
  return {.y = pulls() ? for_kernels(y().data()) : y_.kernel(),
          .weights = is_per_expert(config_.layout) ? config_.weights : weighting::none,
          .choice_value = returns_choices() ? choice_in_.kernel() : nullptr,
          .transfer = pulls() ? combine_transfer::pull : combine_transfer::push};
}

combine_output lane_buffers::combined() const {
  return {.out = out_.kernel(),
          .bias = config_.bias ? bias_.kernel() : nullptr,
          .choice_value = returns_choices() ? choice_out_.kernel() : nullptr};
}

/// Column-major scales, row by row; what lies between the rows and the columns' end is untouched.
void lane_buffers::gather_columns() {
  const std::uint64_t units = problem_.scale_bytes / 4;
  const auto stride = static_cast<std::uint64_t>(scale_stride_);
  const std::uint64_t blocks = out_scales_.size() / (units * stride * 4);
  gathered_scales_.assign(blocks * scaled_rows_ * units * 4, std::byte{});
  wrong_column_.clear();
  const std::byte left = poison_byte(plan_.kind);
  const std::byte untouched[4] = {left, left, left, left};
  for (std::uint64_t b = 0; b < blocks; ++b) {
    for (std::uint64_t u = 0; u < units; ++u) {
      for (std::uint64_t i = 0; i < stride; ++i) {
        const std::byte* from = out_scales_.data() + 4 * ((b * units + u) * stride + i);
        if (i < scaled_rows_) {
          std::memcpy(&gathered_scales_[4 * ((b * scaled_rows_ + i) * units + u)], from, 4);
        } else if (std::memcmp(from, untouched, 4) != 0 && wrong_column_.empty()) {
          wrong_column_ = "scale column " + std::to_string(u) + " of block " + std::to_string(b) +
                          " was written at row " + std::to_string(i) + ", it has " +
                          std::to_string(scaled_rows_);
        }
      }
    }
  }
}

received lane_buffers::result(std::uint64_t scale_offset) {
  const std::byte* rows = in_place()    ? window_.start
                          : rows_stay() ? landing().data()
                                        : rows_.data();
  if (scale_stride_ != 0 && out_scales_.size() != 0) gather_columns();
  const bool beside = in_place() && !scales_wanted();
  // A cached counted dispatch does not know again what was dropped.
  const bool knows_dropped = !(plan_.cached && counted());
  return {.rows = rows,
          .scales = beside ? window_.start + scale_offset : scales().data(),
          .row_offset = in_place() ? row_offset_.data() : nullptr,
          .packed_scales = !beside,
          .total = total_.data(),
          .expert_count = expert_count_.data(),
          .expert_offset = expert_offset_.data(),
          .row_expert = row_expert_.data(),
          .row_weight = row_weight_.data(),
          .topk_index = topk_index_.data(),
          .topk_weight = topk_weight_.data(),
          .source_rank = source_rank_.data(),
          .source_token = source_token_.data(),
          .host_counts = host_counts_.data(),
          .dropped = knows_dropped ? dropped_.data() : nullptr};
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

void lane_buffers::fill_choice_values(const expected_dispatch& expected) {
  if (!returns_choices()) return;
  const bool per_expert = is_per_expert(config_.layout);
  for (const expected_row& row : expected.rows) {
    if (per_expert) {
      choice_in_[static_cast<std::uint64_t>(row.position)] =
          choice_value(row.source_rank, row.source_token, row.choice);
      continue;
    }
    for (int j = 0; j < problem_.top_k; ++j) {
      const auto at = static_cast<std::uint64_t>(row.position * problem_.top_k + j);
      choice_in_[at] =
          expected.topk_index[at] < 0 ? 0.0F : choice_value(row.source_rank, row.source_token, j);
    }
  }
}

tamper_point lane_buffers::touch(const char* call, int rank, int iteration) const {
  return {.call = call,
          .rank = rank,
          .iteration = iteration,
          .rows = rows_stay() ? landing() : rows_.bytes(),
          .out = {reinterpret_cast<std::uint16_t*>(out_.data()), out_.size() / 2},
          .total = total_.data(),
          .source_token = source_token_.data()};
}

std::string lane_buffers::damage() const {
  std::string first = wrong_column_;
  const auto look = [&first](const auto& buffer, const char* name) {
    if (first.empty()) first = buffer.damage(name);
  };
  look(x_, "x");
  look(scales_, "input scales");
  look(wide_index_, "topk_index");
  look(narrow_index_, "topk_index");
  look(weight_, "topk_weight");
  look(token_count_, "device_tokens");
  look(bias_, "bias");
  look(handle_, "the handle");
  look(rows_, "output rows");
  look(out_scales_, "output scales");
  look(landing_, "the landing zone");
  look(pulled_y_, "y in the window");
  look(total_, "total");
  look(dropped_, "dropped");
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
  look(choice_in_, "choice_value");
  look(out_, "combine output");
  look(choice_out_, "combine choice_value");
  return first;
}

}  // namespace eptransport::support
