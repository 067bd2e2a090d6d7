// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Row arithmetic: weighted sums of rows, vector-wide and in any length and value type.
#pragma once

#include <eptransport/core/config.hpp>
#include <eptransport/core/thread_group.hpp>
#include <eptransport/kernels/call.hpp>
#include <eptransport/kernels/values.hpp>

#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace eptransport {

namespace detail {

/// `kPairs` pairs of values that lie at an address which allows 16-byte accesses.
template <class Value, int kPairs>
struct alignas(16) tile {
  typename Value::pair pair[kPairs];
};

/// The sums of a tile's even and odd columns.
template <int kPairs>
struct tile_sum {
  float even[kPairs];
  float odd[kPairs];

  EPT_HOST_DEVICE void clear() {
    for (int e = 0; e < kPairs; ++e) even[e] = odd[e] = 0;
  }
};

/// Pairs of columns of a tile, and how many loads a thread issues before it adds the first: a GPU
/// thread keeps loads in flight; a host thread has caches for that, and long loops vectorise.
template <class G>
struct sum_shape {
  static constexpr bool host = std::is_same_v<typename G::memory, host_memory>;
  static constexpr int pairs = host ? 32 : 4;
  static constexpr int ahead = host ? 1 : 8;
};

/// True if all bits say that 16-byte accesses are allowed.
[[nodiscard]] EPT_HOST_DEVICE inline bool aligned16(std::uint64_t bits) noexcept {
  return (bits & 15u) == 0;
}

/// The first rows of a source, looked up once for all columns, those that exist at the front. The
/// places are fixed, and every loop over them unrolls, so that a GPU keeps them in registers.
template <class Source>
struct held_rows {
  static constexpr int most = 8;

  EPT_NO_EXEC_CHECK
  EPT_HOST_DEVICE explicit held_rows(const Source& source) {
    EPT_UNROLL
    for (int i = 0; i < most; ++i) {
      row[i] = i < source.count() ? source.row(i) : nullptr;
      weight[i] = Source::weighted && row[i] != nullptr ? source.weight(i) : 1.0F;
    }
    EPT_UNROLL
    for (int i = 0; i < most; ++i) {
      if (row[i] == nullptr) continue;
      EPT_UNROLL
      for (int to = 0; to < i; ++to) {
        if (to != count) continue;
        row[to] = row[i];
        weight[to] = weight[i];
        row[i] = nullptr;
      }
      ++count;
    }
  }

  [[nodiscard]] EPT_HOST_DEVICE std::uint64_t addresses() const {
    std::uint64_t bits = 0;
    EPT_UNROLL
    for (int i = 0; i < most; ++i) bits |= reinterpret_cast<std::uintptr_t>(row[i]);
    return bits;
  }

  int count = 0;
  const std::byte* row[most];
  float weight[most];
};

/// Adds a tile of a row to sums, or to zero.
template <class Source, bool kToZero, class Value, class G, int kPairs>
EPT_HOST_DEVICE void add_tile(const G& g, tile_sum<kPairs>& sum, const tile<Value, kPairs>& in,
                              float weight) {
  for (int e = 0; e < kPairs; ++e) {
    const two_floats v = Value::load_pair(in.pair[e]);
    const float even = kToZero ? 0.0F : sum.even[e];
    const float odd = kToZero ? 0.0F : sum.odd[e];
    sum.even[e] = Source::weighted ? g.multiply_add(even, weight, v.even) : even + v.even;
    sum.odd[e] = Source::weighted ? g.multiply_add(odd, weight, v.odd) : odd + v.odd;
  }
}

/// Sums the tiles c, c + step, .. of every row, `kTiles` of them, of which those below `end` exist.
/// The tiles of `kRows` rows are loaded before the first is added.
EPT_NO_EXEC_CHECK
template <class In, int kTiles, int kRows, int kPairs, class G, class Source>
EPT_HOST_DEVICE void sum_tiles(const G& g, tile_sum<kPairs> (&sum)[kTiles], const Source& source,
                               const held_rows<Source>& held, std::int64_t c, std::int64_t step,
                               std::int64_t end) {
  using in_tile = tile<In, kPairs>;
  const auto at = [](const std::byte* row, std::int64_t tile_index) {
    return reinterpret_cast<const in_tile*>(row) + tile_index;
  };
  // To clear a host thread's sums would cost as much as to add a row to them.
  bool clear = sum_shape<G>::host;
  if (!clear) {
    for (auto& one : sum) one.clear();
  }
  EPT_UNROLL
  for (int first = 0; first < held_rows<Source>::most; first += kRows) {
    if (first >= held.count) break;
    in_tile in[kRows][kTiles];
    EPT_UNROLL
    for (int i = 0; i < kRows; ++i) {
      EPT_UNROLL
      for (int n = 0; n < kTiles; ++n) {
        if (first + i < held.count && c + n * step < end) {
          in[i][n] = *at(held.row[first + i], c + n * step);
        }
      }
    }
    EPT_UNROLL
    for (int i = 0; i < kRows; ++i) {
      if (first + i >= held.count) continue;
      EPT_UNROLL
      for (int n = 0; n < kTiles; ++n) {
        if (sum_shape<G>::host && clear) {
          add_tile<Source, true>(g, sum[n], in[i][n], held.weight[first + i]);
        } else {
          add_tile<Source, false>(g, sum[n], in[i][n], held.weight[first + i]);
        }
      }
      clear = false;
    }
  }
  if (sum_shape<G>::host && clear) {
    for (auto& one : sum) one.clear();
  }
  for (std::int32_t i = held_rows<Source>::most; i < source.count(); ++i) {
    const std::byte* row = source.row(i);
    if (row == nullptr) continue;
    for (int n = 0; n < kTiles; ++n) {
      if (c + n * step >= end) continue;
      add_tile<Source, false>(g, sum[n], *at(row, c + n * step), source.weight(i));
    }
  }
}

/// Sums the tiles [begin, end) of a row, with the bias, rounded to `Out`.
EPT_NO_EXEC_CHECK
template <class In, class Out, int kTiles, class G, class Source>
EPT_HOST_DEVICE void sum_wide(const G& g, std::byte* dst, const Source& source,
                              const held_rows<Source>& held, std::int64_t begin, std::int64_t end) {
  constexpr int pairs = sum_shape<G>::pairs;
  constexpr int rows = sum_shape<G>::ahead / kTiles;
  using out_tile = tile<Out, pairs>;
  const std::int64_t step = g.threads();
  EPT_ROLLED
  for (std::int64_t c = begin + g.thread(); c < end; c += step * kTiles) {
    tile_sum<pairs> sum[kTiles];
    sum_tiles<In, kTiles, rows>(g, sum, source, held, c, step, end);
    EPT_UNROLL
    for (int n = 0; n < kTiles; ++n) {
      const std::int64_t at = c + n * step;
      if (at >= end) continue;
      if (source.bias() != nullptr) {
        const out_tile bias = reinterpret_cast<const out_tile*>(source.bias())[at];
        for (int e = 0; e < pairs; ++e) {
          const two_floats v = Out::load_pair(bias.pair[e]);
          sum[n].even[e] += v.even;
          sum[n].odd[e] += v.odd;
        }
      }
      out_tile out;
      for (int e = 0; e < pairs; ++e) {
        out.pair[e] = Out::store_pair({sum[n].even[e], sum[n].odd[e]});
      }
      reinterpret_cast<out_tile*>(dst)[at] = out;
    }
  }
}

}  // namespace detail

/// Sums columns [begin, end) of rows of `In` in fp32, in the order in which `source` lists them,
/// and rounds once to `Out`. `begin` is a multiple of 64.
///
/// `Source` is a small value: `count()`, `row(i)` (null = skip), `weight(i)`, which matters if
/// `weighted`, and `bias()` (a row of `Out` that is added last, or null). With no row the result is
/// the bias, or 0.
///
/// @par Threads  The group calls together; `g.sync()` before others read `dst`.
EPT_NO_EXEC_CHECK
template <class In, class Out, class G, class Source>
EPT_HOST_DEVICE void sum_rows(const G& g, std::byte* dst, std::int64_t begin, std::int64_t end,
                              const Source& source) {
  using shape = detail::sum_shape<G>;
  constexpr std::int64_t columns = 2 * shape::pairs;
  const detail::held_rows<Source> held(source);
  std::uint64_t addresses =
      reinterpret_cast<std::uintptr_t>(dst) | reinterpret_cast<std::uintptr_t>(source.bias());
  addresses |= held.addresses();
  for (std::int32_t i = detail::held_rows<Source>::most; i < source.count(); ++i) {
    addresses |= reinterpret_cast<std::uintptr_t>(source.row(i));
  }
  const std::int64_t first = begin / columns;
  const std::int64_t wide = detail::aligned16(addresses) ? end / columns : first;
  if constexpr (shape::host) {
    detail::sum_wide<In, Out, 1>(g, dst, source, held, first, wide);
  } else if (held.count <= 2) {
    detail::sum_wide<In, Out, 4>(g, dst, source, held, first, wide);
  } else {
    detail::sum_wide<In, Out, 2>(g, dst, source, held, first, wide);
  }
  for (std::int64_t c = wide * columns + g.thread(); c < end; c += g.threads()) {
    float sum = 0;
    for (std::int32_t i = 0; i < source.count(); ++i) {
      const std::byte* row = source.row(i);
      if (row == nullptr) continue;
      sum = g.multiply_add(sum, source.weight(i), detail::load_value<In>(row, c));
    }
    if (source.bias() != nullptr) sum += detail::load_value<Out>(source.bias(), c);
    detail::store_value<Out>(dst, c, sum);
  }
}

/// Sums whole rows.
EPT_NO_EXEC_CHECK
template <class In, class Out, class G, class Source>
EPT_HOST_DEVICE void sum_rows(const G& g, std::byte* dst, std::int64_t hidden,
                              const Source& source) {
  sum_rows<In, Out>(g, dst, 0, hidden, source);
}

/// `sum_rows` with the value types chosen at run time.
EPT_NO_EXEC_CHECK
template <class G, class Source>
EPT_HOST_DEVICE void sum_rows(const G& g, std::byte* dst, std::int64_t begin, std::int64_t end,
                              const Source& source, element in, element out) {
  if (in == element::bf16 && out == element::bf16) {
    sum_rows<bf16_value, bf16_value>(g, dst, begin, end, source);
  } else if (in == element::bf16) {
    sum_rows<bf16_value, fp32_value>(g, dst, begin, end, source);
  } else if (in == element::fp16 && out == element::fp16) {
    sum_rows<fp16_value, fp16_value>(g, dst, begin, end, source);
  } else if (in == element::fp16) {
    sum_rows<fp16_value, fp32_value>(g, dst, begin, end, source);
  } else if (out == element::bf16) {
    sum_rows<fp32_value, bf16_value>(g, dst, begin, end, source);
  } else if (out == element::fp16) {
    sum_rows<fp32_value, fp16_value>(g, dst, begin, end, source);
  } else {
    sum_rows<fp32_value, fp32_value>(g, dst, begin, end, source);
  }
}

}  // namespace eptransport
