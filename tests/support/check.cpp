// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The comparisons, and how a difference is put into words.
#include "support/check.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <vector>

#include "support/guarded.hpp"

namespace eptransport::support {
namespace {

std::string hex(std::uint64_t value, int digits) {
  char text[24];
  std::snprintf(text, sizeof text, "0x%0*llx", digits, static_cast<unsigned long long>(value));
  return text;
}

std::string decimal(float value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.9g", static_cast<double>(value));
  return text;
}

std::string say(std::int64_t value) {
  return std::to_string(value);
}
std::string say(float value) {
  return decimal(value) + " (" + hex(std::bit_cast<std::uint32_t>(value), 8) + ")";
}

bool same(std::int64_t a, std::int64_t b) {
  return a == b;
}
bool same(float a, float b) {
  return std::bit_cast<std::uint32_t>(a) == std::bit_cast<std::uint32_t>(b);
}

std::string at_rank(int rank) {
  return "rank " + std::to_string(rank) + ", ";
}

/// "" or "rank 3, expert_count[2]: expected 4, got 5".
template <class T>
std::string compare(int rank, const std::string& what, T expected, T got) {
  if (same(expected, got)) return {};
  return at_rank(rank) + what + ": expected " + say(expected) + ", got " + say(got);
}

template <class T>
std::string compare_list(int rank, const char* name, const std::vector<T>& expected, const T* got) {
  if (got == nullptr) return {};
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const std::string what = std::string(name) + "[" + std::to_string(i) + "]";
    if (same(expected[i], got[i])) continue;
    return compare(rank, what, expected[i], got[i]);
  }
  return {};
}

std::string name_row(int rank, const expected_row& row) {
  std::string text = at_rank(rank) + "row " + std::to_string(row.position) + " (source rank " +
                     std::to_string(row.source_rank) + ", token " +
                     std::to_string(row.source_token);
  if (row.expert >= 0) text += ", local expert " + std::to_string(row.expert);
  return text + ")";
}

/// The first byte that differs, in words.
std::string compare_bytes(const std::string& where, const char* what, const std::byte* expected,
                          const std::byte* got, std::uint64_t bytes) {
  if (bytes == 0 || std::memcmp(expected, got, bytes) == 0) return {};
  std::uint64_t at = 0;
  while (expected[at] == got[at]) ++at;
  std::uint64_t wrong = 0;
  for (std::uint64_t i = at; i < bytes; ++i) wrong += expected[i] != got[i] ? 1 : 0;
  return where + ", " + what + " byte " + std::to_string(at) + ": expected " +
         hex(std::to_integer<std::uint64_t>(expected[at]), 2) + ", got " +
         hex(std::to_integer<std::uint64_t>(got[at]), 2) + " (" + std::to_string(wrong) + " of " +
         std::to_string(bytes) + " bytes differ)";
}

/// Which source row the bytes are, for people who hunt a swap.
std::string identify(const problem& p, std::span<const rank_input> inputs, const std::byte* row) {
  for (int rank = 0; rank < p.ranks; ++rank) {
    const rank_input& in = inputs[static_cast<std::size_t>(rank)];
    for (std::int64_t token = 0; token < in.tokens; ++token) {
      const std::byte* x = in.x.data() + static_cast<std::uint64_t>(token) * p.row_bytes;
      if (std::memcmp(row, x, p.row_bytes) == 0) {
        return "; these are the bytes of source rank " + std::to_string(rank) + ", token " +
               std::to_string(token);
      }
    }
  }
  return {};
}

template <class T>
std::string compare_cell(int rank, const expected_row& row, const char* what, T expected, T got) {
  if (same(expected, got)) return {};
  return name_row(rank, row) + ", " + what + ": expected " + say(expected) + ", got " + say(got);
}

std::string check_row_metadata(const problem& p, int rank, const expected_dispatch& expected,
                               const expected_row& row, const received& got) {
  const auto at = static_cast<std::size_t>(row.position);
  std::string wrong;
  const auto need = [&](const auto* list, const char* what, auto value) {
    if (list == nullptr || !wrong.empty()) return;
    wrong = compare_cell(rank, row, what, value, static_cast<decltype(value)>(list[at]));
  };
  need(got.source_rank, "source_rank", static_cast<std::int64_t>(row.source_rank));
  need(got.source_token, "source_token", row.source_token);
  if (row.expert >= 0) {
    need(got.row_expert, "row_expert", static_cast<std::int64_t>(row.expert));
    need(got.row_weight, "row_weight", row.weight);
    return wrong;
  }
  for (int j = 0; j < p.top_k && wrong.empty(); ++j) {
    const std::size_t cell = at * static_cast<std::size_t>(p.top_k) + static_cast<std::size_t>(j);
    const std::string choice = "choice " + std::to_string(j) + ", ";
    if (got.topk_index != nullptr) {
      wrong = compare_cell<std::int64_t>(rank, row, (choice + "topk_index").c_str(),
                                         expected.topk_index[cell], got.topk_index[cell]);
    }
    if (got.topk_weight != nullptr && wrong.empty()) {
      wrong = compare_cell(rank, row, (choice + "topk_weight").c_str(), expected.topk_weight[cell],
                           got.topk_weight[cell]);
    }
  }
  return wrong;
}

/// expert_major: row_expert is -1 in the padding.
std::string check_padding_marks(int rank, const expected_dispatch& expected, const received& got) {
  if (expected.spec.layout != output_layout::expert_major || got.row_expert == nullptr) return {};
  for (std::size_t e = 0; e < expected.expert_count.size(); ++e) {
    const std::int64_t begin = expected.expert_offset[e] + expected.expert_count[e];
    const std::int64_t end =
        e + 1 < expected.expert_offset.size() ? expected.expert_offset[e + 1] : expected.total;
    for (std::int64_t row = begin; row < end; ++row) {
      const std::string what = "row_expert[" + std::to_string(row) + "] (padding)";
      const std::string wrong = compare<std::int64_t>(rank, what, -1, got.row_expert[row]);
      if (!wrong.empty()) return wrong;
    }
  }
  return {};
}

}  // namespace

std::string check_counts(int rank, const expected_dispatch& expected, const received& got) {
  std::string wrong;
  if (got.total != nullptr) wrong = compare(rank, "total rows", expected.total, *got.total);
  if (wrong.empty()) {
    wrong = compare_list(rank, "expert_count", expected.expert_count, got.expert_count);
  }
  if (wrong.empty()) {
    wrong = compare_list(rank, "expert_offset", expected.expert_offset, got.expert_offset);
  }
  if (wrong.empty() && got.host_counts != nullptr) {
    std::vector<std::int64_t> all{expected.total};
    all.insert(all.end(), expected.expert_count.begin(), expected.expert_count.end());
    wrong = compare_list(rank, "host_counts", all, got.host_counts);
  }
  if (wrong.empty() && got.dropped != nullptr) {
    wrong = compare(rank, "dropped rows", expected.dropped, *got.dropped);
  }
  return wrong;
}

std::string check_rows(const problem& p, std::span<const rank_input> inputs, int rank,
                       const expected_dispatch& expected, const received& got) {
  for (const expected_row& row : expected.rows) {
    const rank_input& source = inputs[static_cast<std::size_t>(row.source_rank)];
    const auto token = static_cast<std::uint64_t>(row.source_token);
    const std::byte* bytes = got.row(row.position, p.row_bytes);
    const std::string where = name_row(rank, row);
    std::string wrong =
        compare_bytes(where, "row", source.x.data() + token * p.row_bytes, bytes, p.row_bytes);
    if (!wrong.empty()) return wrong + identify(p, inputs, bytes);
    wrong = compare_bytes(where, "scale", source.scales.data() + token * p.scale_bytes,
                          got.scale(row.position, p.scale_bytes), p.scale_bytes);
    if (!wrong.empty()) return wrong;
  }
  return {};
}

std::string check_metadata(const problem& p, int rank, const expected_dispatch& expected,
                           const received& got) {
  for (const expected_row& row : expected.rows) {
    std::string wrong = check_row_metadata(p, rank, expected, row, got);
    if (!wrong.empty()) return wrong;
  }
  return check_padding_marks(rank, expected, got);
}

std::string check_left_alone(int rank, const char* what, std::span<const std::byte> buffer,
                             std::uint64_t unit, std::uint64_t begin, std::uint64_t end,
                             std::byte poison) {
  const std::uint64_t stop = std::min<std::uint64_t>(end * unit, buffer.size());
  if (begin * unit >= stop) return {};
  if (all_are(buffer.subspan(begin * unit, stop - begin * unit), poison)) return {};
  for (std::uint64_t at = begin * unit; at < stop; ++at) {
    if (buffer[at] == poison) continue;
    return at_rank(rank) + what + " " + std::to_string(at / unit) + " byte " +
           std::to_string(at % unit) + ": expected to be left alone, got " +
           hex(std::to_integer<std::uint64_t>(buffer[at]), 2);
  }
  return {};
}

std::string check_slack(const problem& p, int rank, const expected_dispatch& expected,
                        std::span<const std::byte> rows, std::span<const std::byte> scales,
                        std::byte poison) {
  const auto check = [&](std::uint64_t begin, std::uint64_t end) {
    std::string wrong = check_left_alone(rank, "row", rows, p.row_bytes, begin, end, poison);
    if (wrong.empty() && p.scale_bytes != 0) {
      wrong = check_left_alone(rank, "scales of row", scales, p.scale_bytes, begin, end, poison);
    }
    return wrong;
  };
  const std::uint64_t scaled = p.scale_bytes == 0 ? 0 : scales.size() / p.scale_bytes;
  const std::uint64_t all = std::max<std::uint64_t>(rows.size() / p.row_bytes, scaled);
  if (expected.spec.layout != output_layout::padded) {
    return check(static_cast<std::uint64_t>(expected.total), all);
  }
  for (std::size_t e = 0; e < expected.expert_count.size(); ++e) {
    const auto begin =
        static_cast<std::uint64_t>(expected.expert_offset[e] + expected.expert_count[e]);
    const std::uint64_t end = e + 1 < expected.expert_offset.size()
                                  ? static_cast<std::uint64_t>(expected.expert_offset[e + 1])
                                  : all;
    std::string wrong = check(begin, end);
    if (!wrong.empty()) return wrong;
  }
  return {};
}

std::string check_dispatch(const problem& p, std::span<const rank_input> inputs, int rank,
                           const expected_dispatch& expected, const received& got) {
  std::string wrong = check_counts(rank, expected, got);
  if (wrong.empty()) wrong = check_rows(p, inputs, rank, expected, got);
  if (wrong.empty()) wrong = check_metadata(p, rank, expected, got);
  return wrong;
}

std::string check_combined(const problem& p, int rank, std::span<const std::byte> expected,
                           std::span<const std::byte> got) {
  const std::uint64_t bytes = bytes_of(p.values);
  if (expected.size() != got.size()) {
    return compare(rank, "combined values", static_cast<std::int64_t>(expected.size() / bytes),
                   static_cast<std::int64_t>(got.size() / bytes));
  }
  if (expected.empty() || std::memcmp(expected.data(), got.data(), got.size()) == 0) return {};
  for (std::uint64_t i = 0; i < expected.size() / bytes; ++i) {
    if (std::memcmp(&expected[i * bytes], &got[i * bytes], bytes) == 0) continue;
    const float wanted = reference_load(p.values, expected.data(), i);
    const float came = reference_load(p.values, got.data(), i);
    if (std::isnan(wanted) && std::isnan(came)) continue;
    const auto hidden = static_cast<std::uint64_t>(p.hidden);
    const auto bits = [&](std::span<const std::byte> from) {
      std::uint64_t value = 0;
      std::memcpy(&value, &from[i * bytes], bytes);
      return " (" + hex(value, static_cast<int>(bytes) * 2) + ")";
    };
    return at_rank(rank) + "combined token " + std::to_string(i / hidden) + ", column " +
           std::to_string(i % hidden) + ": expected " + decimal(wanted) + bits(expected) +
           ", got " + decimal(came) + bits(got);
  }
  return {};
}

std::string check_choice_values(const problem& p, int rank, std::span<const float> expected,
                                const float* got) {
  for (std::size_t i = 0; i < expected.size(); ++i) {
    if (same(expected[i], got[i])) continue;
    const auto k = static_cast<std::size_t>(p.top_k);
    return compare(
        rank,
        "returned value of token " + std::to_string(i / k) + ", choice " + std::to_string(i % k),
        expected[i], got[i]);
  }
  return {};
}

}  // namespace eptransport::support
