// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The reference computation.
#include "support/oracle.hpp"

#include <algorithm>
#include <map>

namespace eptransport::support {
namespace {

/// fp32 product and sum, each rounded once, which no compiler contracts into one operation: the
/// product of two floats is exact in a double, and a double's sum of two floats rounds to fp32 as
/// the exact sum does, because 53 >= 2 * 24 + 2.
float times(float a, float b) {
  return static_cast<float>(static_cast<double>(a) * b);
}
float plus(float a, float b) {
  return static_cast<float>(static_cast<double>(a) + b);
}

/// The ranks and local indices of all experts.
struct placement_table {
  std::vector<std::int32_t> rank;
  std::vector<std::int32_t> local;

  explicit placement_table(const problem& p) : rank(owners(p)) {
    std::vector<std::int32_t> next(static_cast<std::size_t>(p.ranks), 0);
    for (const std::int32_t owner : rank) local.push_back(next[static_cast<std::size_t>(owner)]++);
  }
  /// -1 if the index names no expert.
  [[nodiscard]] std::int32_t rank_of(std::int64_t expert) const {
    const bool named = expert >= 0 && expert < static_cast<std::int64_t>(rank.size());
    return named ? rank[static_cast<std::size_t>(expert)] : -1;
  }
};

std::size_t cell(const problem& p, std::int64_t token, int choice) {
  return static_cast<std::size_t>(token) * static_cast<std::size_t>(p.top_k) +
         static_cast<std::size_t>(choice);
}

float weight_of(const rank_input& in, std::size_t at) {
  return in.weight.empty() ? 1.0F : in.weight[at];
}

bool goes_to(const problem& p, const placement_table& table, const rank_input& in,
             std::int64_t token, int rank) {
  for (int j = 0; j < p.top_k; ++j) {
    if (table.rank_of(in.index[cell(p, token, j)]) == rank) return true;
  }
  return false;
}

/// A row that arrives: whose token it is.
struct arrival {
  std::int32_t source;
  std::int64_t token;
};

/// What `rank` gets, in rank-major order: source rank, then token.
std::vector<arrival> arrivals(const problem& p, const placement_table& table,
                              std::span<const rank_input> inputs, int rank) {
  std::vector<arrival> all;
  for (int source = 0; source < p.ranks; ++source) {
    const rank_input& in = inputs[static_cast<std::size_t>(source)];
    for (std::int64_t token = 0; token < in.tokens; ++token) {
      if (goes_to(p, table, in, token, rank)) all.push_back({source, token});
    }
  }
  return all;
}

/// rank_major and in_place: one row per arrival.
void expect_by_rank(const problem& p, const placement_table& table,
                    std::span<const rank_input> inputs, int rank, std::span<const arrival> arrived,
                    expected_dispatch& out) {
  for (const arrival& from : arrived) {
    const rank_input& in = inputs[static_cast<std::size_t>(from.source)];
    out.rows.push_back(
        {.position = out.total++, .source_rank = from.source, .source_token = from.token});
    for (int j = 0; j < p.top_k; ++j) {
      const std::size_t at = cell(p, from.token, j);
      const bool ours = table.rank_of(in.index[at]) == rank;
      out.topk_index.push_back(ours ? table.local[static_cast<std::size_t>(in.index[at])] : -1);
      out.topk_weight.push_back(ours ? weight_of(in, at) : 0.0F);
    }
  }
}

/// expert_major and padded: expert, then arrival, then choice.
void expect_by_expert(const problem& p, std::span<const std::vector<expected_row>> by_expert,
                      expected_dispatch& out) {
  const std::int64_t worst = most_rows(p) * p.top_k;
  const std::int64_t stride = out.spec.capacity != 0 ? out.spec.capacity : worst;
  const std::int64_t align = out.spec.alignment;
  const bool padded = out.spec.layout == output_layout::padded;
  std::int64_t start = 0;
  for (const std::vector<expected_row>& rows : by_expert) {
    const auto count = static_cast<std::int64_t>(rows.size());
    out.expert_offset.push_back(start);
    std::int64_t position = start;
    for (const expected_row& row : rows) {
      out.rows.push_back(row);
      out.rows.back().position = position++;
    }
    const std::int64_t aligned = (count + align - 1) / align * align;
    out.total += padded ? count : aligned;
    start += padded ? stride : aligned;
  }
}

}  // namespace

std::int64_t most_rows(const problem& p) {
  return std::max(static_cast<std::int64_t>(p.ranks) * p.max_tokens, p.counted_rows);
}

std::vector<std::int32_t> owners(const problem& p) {
  if (!p.placement.empty()) return p.placement;
  std::vector<std::int32_t> rank;
  for (std::int32_t r = 0; r < p.ranks; ++r) {
    const int count = p.experts / p.ranks + (r < p.experts % p.ranks ? 1 : 0);
    rank.insert(rank.end(), static_cast<std::size_t>(count), r);
  }
  return rank;
}

std::vector<std::int32_t> experts_of(const problem& p, int rank) {
  const std::vector<std::int32_t> all = owners(p);
  std::vector<std::int32_t> mine;
  for (std::size_t e = 0; e < all.size(); ++e) {
    if (all[e] == rank) mine.push_back(static_cast<std::int32_t>(e));
  }
  return mine;
}

expected_dispatch expect_dispatch(const problem& p, std::span<const rank_input> inputs, int rank,
                                  const output_spec& spec) {
  expected_dispatch out;
  out.spec = spec;
  const placement_table table(p);
  std::vector<arrival> arrived = arrivals(p, table, inputs, rank);
  const auto all = static_cast<std::int64_t>(arrived.size());
  out.landed = spec.room.empty() ? all : std::min(all, spec.room[static_cast<std::size_t>(rank)]);
  out.dropped = all - out.landed;
  arrived.resize(static_cast<std::size_t>(out.landed));
  std::vector<std::vector<expected_row>> by_expert(experts_of(p, rank).size());
  for (const arrival& from : arrived) {
    const rank_input& in = inputs[static_cast<std::size_t>(from.source)];
    for (int j = 0; j < p.top_k; ++j) {
      const std::size_t at = cell(p, from.token, j);
      if (table.rank_of(in.index[at]) != rank) continue;
      const std::int32_t local = table.local[static_cast<std::size_t>(in.index[at])];
      by_expert[static_cast<std::size_t>(local)].push_back({.source_rank = from.source,
                                                            .source_token = from.token,
                                                            .expert = local,
                                                            .weight = weight_of(in, at),
                                                            .choice = j});
    }
  }
  for (const auto& rows : by_expert) {
    out.expert_count.push_back(static_cast<std::int64_t>(rows.size()));
  }
  if (spec.layout == output_layout::expert_major || spec.layout == output_layout::padded) {
    expect_by_expert(p, by_expert, out);
  } else {
    expect_by_rank(p, table, inputs, rank, arrived, out);
  }
  return out;
}

std::vector<std::int64_t> expect_sent(const problem& p, const rank_input& own) {
  const placement_table table(p);
  std::vector<std::int64_t> sent;
  for (int rank = 0; rank < p.ranks; ++rank) {
    std::int64_t rows = 0;
    for (std::int64_t token = 0; token < own.tokens; ++token) {
      if (goes_to(p, table, own, token, rank)) ++rows;
    }
    sent.push_back(rows);
  }
  return sent;
}

std::vector<std::int64_t> expect_node_rows(const problem& p, const rank_input& own,
                                           std::span<const int> nodes) {
  const placement_table table(p);
  std::map<int, std::int64_t> rows;
  for (std::int64_t token = 0; token < own.tokens; ++token) {
    std::map<int, bool> reached;
    for (int rank = 0; rank < p.ranks; ++rank) {
      if (goes_to(p, table, own, token, rank))
        reached[nodes[static_cast<std::size_t>(rank)]] = true;
    }
    for (const auto& [node, yes] : reached) rows[node] += yes ? 1 : 0;
  }
  std::vector<std::int64_t> out;
  for (const int node : nodes) out.push_back(rows[node]);
  return out;
}

std::vector<std::int64_t> expect_totals(const problem& p, std::span<const rank_input> inputs) {
  std::vector<std::int64_t> totals(static_cast<std::size_t>(p.ranks), 0);
  for (const rank_input& in : inputs) {
    const std::vector<std::int64_t> sent = expect_sent(p, in);
    for (std::size_t to = 0; to < totals.size(); ++to) totals[to] += sent[to];
  }
  return totals;
}

std::vector<std::int64_t> expect_kept(const problem& p, std::span<const rank_input> inputs,
                                      int source, std::span<const std::int64_t> room) {
  const auto own = static_cast<std::size_t>(source);
  std::vector<std::int64_t> kept = expect_sent(p, inputs[own]);
  if (room.empty()) return kept;
  const std::vector<std::int64_t> below = expect_totals(p, inputs.first(own));
  for (std::size_t to = 0; to < kept.size(); ++to) {
    kept[to] = std::clamp<std::int64_t>(room[to] - below[to], 0, kept[to]);
  }
  return kept;
}

std::uint64_t count_bad_indices(const problem& p, const rank_input& own) {
  return static_cast<std::uint64_t>(
      std::count_if(own.index.begin(), own.index.end(),
                    [&](std::int64_t expert) { return expert < -1 || expert >= p.experts; }));
}

namespace {

/// True if a relay adds up what `rank` returns.
bool relayed(const combine_spec& how, int rank) {
  if (how.nodes.empty()) return false;
  return how.nodes[static_cast<std::size_t>(rank)] != how.nodes[static_cast<std::size_t>(how.rank)];
}

/// Who hands the row of `rank` to the source.
int returning_rank(const combine_spec& how, int rank) {
  if (!relayed(how, rank)) return rank;
  const auto members = [&how](int of) {
    std::vector<int> list;
    for (std::size_t r = 0; r < how.nodes.size(); ++r) {
      if (how.nodes[r] == how.nodes[static_cast<std::size_t>(of)]) {
        list.push_back(static_cast<int>(r));
      }
    }
    return list;
  };
  const std::vector<int> ours = members(how.rank);
  const std::vector<int> theirs = members(rank);
  const auto index =
      static_cast<std::size_t>(std::find(ours.begin(), ours.end(), how.rank) - ours.begin());
  return theirs[index % theirs.size()];
}

}  // namespace

std::vector<std::byte> expect_combine(const problem& p, const rank_input& own, weighting weights,
                                      const expert_function& expert, const combine_spec& how) {
  const placement_table table(p);
  const auto hidden = static_cast<std::size_t>(p.hidden);
  const element part_type = how.per_expert ? p.returns : p.values;
  std::vector<std::byte> out(static_cast<std::size_t>(own.tokens) * hidden * bytes_of(p.values));
  std::vector<float> y(hidden);
  std::vector<std::int64_t> seen(static_cast<std::size_t>(p.ranks), 0);
  for (std::int64_t token = 0; token < own.tokens; ++token) {
    const row_view row{own.x.data() + static_cast<std::uint64_t>(token) * p.row_bytes,
                       own.scales.data() + static_cast<std::uint64_t>(token) * p.scale_bytes};
    std::vector<float> total(hidden, 0.0F);
    // By the rank that returns them: rows, or sums of a node's rows.
    std::map<int, std::vector<float>> returned;
    for (int rank = 0; rank < p.ranks; ++rank) {
      const auto to = static_cast<std::size_t>(rank);
      if (!goes_to(p, table, own, token, rank)) continue;
      if (seen[to]++; !how.kept.empty() && seen[to] > how.kept[to]) continue;
      std::vector<float> part(hidden, 0.0F);
      for (int j = 0; j < p.top_k; ++j) {
        const std::size_t at = cell(p, token, j);
        if (table.rank_of(own.index[at]) != rank) continue;
        const float weight = weights == weighting::none ? 1.0F : weight_of(own, at);
        expert(row, static_cast<int>(own.index[at]), y.data());
        for (std::size_t c = 0; c < hidden; ++c) part[c] = plus(part[c], times(weight, y[c]));
      }
      const int by = returning_rank(how, rank);
      std::vector<float>& sum = returned.try_emplace(by, hidden, 0.0F).first->second;
      for (std::size_t c = 0; c < hidden; ++c) {
        const float rounded = reference_round(part_type, part[c]);
        sum[c] = relayed(how, rank) ? plus(sum[c], reference_round(p.returns, rounded)) : rounded;
      }
    }
    for (const auto& [by, sum] : returned) {
      for (std::size_t c = 0; c < hidden; ++c) {
        total[c] = plus(total[c], relayed(how, by) ? reference_round(p.returns, sum[c]) : sum[c]);
      }
    }
    for (std::size_t c = 0; c < hidden; ++c) {
      const std::size_t at = static_cast<std::size_t>(token) * hidden + c;
      if (!how.bias.empty())
        total[c] = plus(total[c], reference_load(p.values, how.bias.data(), at));
      reference_store(p.values, out.data(), at, total[c]);
    }
  }
  return out;
}

float choice_value(int source, std::int64_t token, std::int64_t choice) noexcept {
  const auto mixed = static_cast<std::uint32_t>(source * 7919 + token * 613 + choice) * 2654435761U;
  return static_cast<float>(static_cast<std::int32_t>(mixed | 1U)) * 0x1p-31F;
}

std::vector<float> expect_choice_values(const problem& p, int rank, const rank_input& own,
                                        std::span<const std::int64_t> kept) {
  const placement_table table(p);
  std::vector<float> out(own.index.size(), 0.0F);
  std::vector<std::int64_t> seen(static_cast<std::size_t>(p.ranks), 0);
  for (std::int64_t token = 0; token < own.tokens; ++token) {
    for (int to = 0; to < p.ranks; ++to) {
      const auto index = static_cast<std::size_t>(to);
      if (!goes_to(p, table, own, token, to)) continue;
      if (seen[index]++; !kept.empty() && seen[index] > kept[index]) continue;
      for (int j = 0; j < p.top_k; ++j) {
        const std::size_t at = cell(p, token, j);
        if (table.rank_of(own.index[at]) == to) out[at] = choice_value(rank, token, j);
      }
    }
  }
  return out;
}

expert_function reference_expert(const problem& p) {
  return [p](const row_view& row, int expert, float* y) {
    std::uint32_t digest = 0;
    std::uint32_t factor = 0;
    const auto absorb = [&](const std::byte* bytes, std::uint64_t count) {
      for (std::uint64_t i = 0; i < count; ++i) {
        factor += 2654435761U;
        digest += (std::to_integer<std::uint32_t>(bytes[i]) + 1U) * factor;
      }
    };
    absorb(row.row, p.row_bytes);
    absorb(row.scales, p.scale_bytes);
    const std::uint32_t base = digest + (static_cast<std::uint32_t>(expert) + 1U) * 0xC2B2AE3DU;
    for (std::int64_t c = 0; c < p.hidden; ++c) {
      const std::uint64_t at = static_cast<std::uint64_t>(c) % p.row_bytes;
      std::uint32_t h = base + std::to_integer<std::uint32_t>(row.row[at]) * 0x9E3779B1U +
                        static_cast<std::uint32_t>(c + 1) * 0x85EBCA77U;
      h ^= h >> 15U;
      h *= 0x27D4EB2FU;
      const int eighth = static_cast<int>(h >> 24U) - 128;
      y[c] = static_cast<float>(eighth) / 32.0F;
    }
  };
}

}  // namespace eptransport::support
