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

/// Pairs of columns of a tile, and the tiles of how many rows a thread loads before it adds the
/// first: a GPU thread keeps loads in flight; a host thread has caches for that, and long loops
/// vectorise.
template <class G>
struct sum_shape {
  static constexpr bool host = std::is_same_v<typename G::memory, host_memory>;
  static constexpr int pairs = host ? 32 : 4;
  static constexpr int rows = host ? 1 : 2;
  /// Tiles of a row that a thread sums at once; of rare types one, for the sake of the code's size.
  template <class In, class Out>
  static constexpr int tiles =
      !host && std::is_same_v<In, bf16_value> && std::is_same_v<Out, bf16_value> ? 4 : 1;
};

/// True if all bits say that 16-byte accesses are allowed.
[[nodiscard]] EPT_HOST_DEVICE inline bool aligned16(std::uint64_t bits) noexcept {
  return (bits & 15u) == 0;
}

/// The rows of a source that exist, looked up once for all columns; each thread looks for one.
struct held_rows {
  static constexpr int most = 32;

  EPT_NO_EXEC_CHECK
  template <class G, class Source>
  EPT_HOST_DEVICE held_rows(const G& g, const Source& source) {
    const std::int32_t all = source.count();
    const auto threads = static_cast<std::int32_t>(g.threads());
    EPT_ROLLED
    for (std::int32_t base = 0; base < all; base += threads) {
      const std::int32_t i = base + static_cast<std::int32_t>(g.thread());
      const std::byte* mine = i < all ? source.row(i) : nullptr;
      const float factor = Source::weighted && mine != nullptr ? source.weight(i) : 1.0F;
      const std::int32_t here = all - base < threads ? all - base : threads;
      EPT_ROLLED
      for (std::int32_t t = 0; t < here; ++t) {
        const auto from = static_cast<std::uint32_t>(t);
        const std::int64_t address =
            g.pick(static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(mine)), from);
        const std::int64_t bits =
            g.pick(std::int64_t{__builtin_bit_cast(std::int32_t, factor)}, from);
        if (address == 0) continue;
        addresses |= static_cast<std::uint64_t>(address);
        if (count == most) {
          whole = false;
          continue;
        }
        row[count] = reinterpret_cast<const std::byte*>(static_cast<std::uintptr_t>(address));
        weight[count++] = __builtin_bit_cast(float, static_cast<std::int32_t>(bits));
      }
    }
  }

  int count = 0;
  bool whole = true;            ///< all rows are here
  std::uint64_t addresses = 0;  ///< their bits together
  const std::byte* row[most];
  float weight[most];
};

/// Adds a tile of a row to sums, or to zero. A weight of 1 changes nothing.
template <bool kToZero, class Value, class G, int kPairs>
EPT_HOST_DEVICE void add_tile(const G& g, tile_sum<kPairs>& sum, const tile<Value, kPairs>& in,
                              float weight) {
  for (int e = 0; e < kPairs; ++e) {
    const two_floats v = Value::load_pair(in.pair[e]);
    const float even = kToZero ? 0.0F : sum.even[e];
    const float odd = kToZero ? 0.0F : sum.odd[e];
    sum.even[e] = g.multiply_add(even, weight, v.even);
    sum.odd[e] = g.multiply_add(odd, weight, v.odd);
  }
}

/// Sums tiles c, c + step, .. of every row, of which those below `end` exist.
EPT_NO_EXEC_CHECK
template <class In, class G, int kPairs, int kTiles>
EPT_HOST_DEVICE void sum_tiles(const G& g, tile_sum<kPairs> (&sum)[kTiles], const held_rows& held,
                               std::int64_t c, std::int64_t step, std::int64_t end) {
  using in_tile = tile<In, kPairs>;
  constexpr int rows = sum_shape<G>::rows;
  // To clear a host thread's sums would cost as much as to add a row to them.
  const bool clears = !sum_shape<G>::host || held.count == 0;
  for (int n = 0; n < kTiles && clears; ++n) sum[n].clear();
  EPT_ROLLED
  for (int first = 0; first < held.count; first += rows) {
    in_tile in[rows][kTiles];
    EPT_UNROLL
    for (int i = 0; i < rows; ++i) {
      if (first + i >= held.count) continue;
      const auto* row = reinterpret_cast<const in_tile*>(held.row[first + i]);
      EPT_UNROLL
      for (int n = 0; n < kTiles; ++n) {
        if (c + n * step < end) in[i][n] = row[c + n * step];
      }
    }
    EPT_UNROLL
    for (int i = 0; i < rows; ++i) {
      if (first + i >= held.count) continue;
      const float weight = held.weight[first + i];
      EPT_UNROLL
      for (int n = 0; n < kTiles; ++n) {
        if (sum_shape<G>::host && first == 0) {
          add_tile<true>(g, sum[n], in[i][n], weight);
        } else {
          add_tile<false>(g, sum[n], in[i][n], weight);
        }
      }
    }
  }
}

/// Adds tile c of the bias, if there is one, to the sums, rounds them, and stores tile c of `dst`.
EPT_NO_EXEC_CHECK
template <class Out, class G, int kPairs>
EPT_HOST_DEVICE void finish_tile(tile_sum<kPairs>& sum, const std::byte* bias_row, std::byte* dst,
                                 std::int64_t c) {
  using out_tile = tile<Out, kPairs>;
  if (bias_row != nullptr) {
    const out_tile bias = reinterpret_cast<const out_tile*>(bias_row)[c];
    for (int e = 0; e < kPairs; ++e) {
      const two_floats v = Out::load_pair(bias.pair[e]);
      sum.even[e] += v.even;
      sum.odd[e] += v.odd;
    }
  }
  out_tile out;
  for (int e = 0; e < kPairs; ++e) {
    if constexpr (!sum_shape<G>::host && std::is_same_v<Out, bf16_value>) {
      out.pair[e] = G::memory::bf16_pair(sum.even[e], sum.odd[e]);  // a GPU's NaNs are all alike
    } else {
      out.pair[e] = Out::store_pair({sum.even[e], sum.odd[e]});
    }
  }
  reinterpret_cast<out_tile*>(dst)[c] = out;
}

/// Sums columns [begin, end) of the rows, adds the bias, and rounds to `Out`. Out of line: it is
/// the same for all sources.
EPT_NO_EXEC_CHECK
template <class In, class Out, class G>
EPT_NOINLINE EPT_HOST_DEVICE void sum_held(const G& g, std::byte* dst, const held_rows& held,
                                           const std::byte* bias_row, std::int64_t begin,
                                           std::int64_t end) {
  constexpr int pairs = sum_shape<G>::pairs;
  constexpr int tiles = sum_shape<G>::template tiles<In, Out>;
  constexpr std::int64_t columns = 2 * pairs;
  const std::uint64_t addresses = reinterpret_cast<std::uintptr_t>(dst) | held.addresses |
                                  reinterpret_cast<std::uintptr_t>(bias_row);
  const std::int64_t wide = aligned16(addresses) ? end / columns : begin / columns;
  const std::int64_t step = g.threads();
  EPT_ROLLED
  for (std::int64_t c = begin / columns + g.thread(); c < wide; c += step * tiles) {
    tile_sum<pairs> sum[tiles];
    sum_tiles<In>(g, sum, held, c, step, wide);
    EPT_UNROLL
    for (int n = 0; n < tiles; ++n) {
      const std::int64_t at = c + n * step;
      if (at < wide) finish_tile<Out, G>(sum[n], bias_row, dst, at);
    }
  }
  EPT_ROLLED
  for (std::int64_t c = wide * columns + g.thread(); c < end; c += step) {
    float sum = 0;
    EPT_ROLLED
    for (int i = 0; i < held.count; ++i) {
      sum = g.multiply_add(sum, held.weight[i], load_value<In>(held.row[i], c));
    }
    if (bias_row != nullptr) sum += load_value<Out>(bias_row, c);
    store_value<Out>(dst, c, sum);
  }
}

/// More rows than are held at once: value by value, each row looked up again.
EPT_NO_EXEC_CHECK
template <class In, class Out, class G, class Source>
EPT_HOST_DEVICE void sum_many(const G& g, std::byte* dst, const Source& source, std::int64_t begin,
                              std::int64_t end) {
  EPT_ROLLED
  for (std::int64_t c = begin + g.thread(); c < end; c += g.threads()) {
    float sum = 0;
    EPT_ROLLED
    for (std::int32_t i = 0; i < source.count(); ++i) {
      const std::byte* row = source.row(i);
      if (row == nullptr) continue;
      sum = g.multiply_add(sum, source.weight(i), load_value<In>(row, c));
    }
    if (source.bias() != nullptr) sum += load_value<Out>(source.bias(), c);
    store_value<Out>(dst, c, sum);
  }
}

/// Calls `body.run<In, Out>()` with the value types chosen at run time.
EPT_NO_EXEC_CHECK
template <class Body>
EPT_HOST_DEVICE void with_types(element in, element out, const Body& body) {
  if (in == element::bf16 && out == element::bf16) {
    body.template run<bf16_value, bf16_value>();
  } else if (in == element::bf16) {
    body.template run<bf16_value, fp32_value>();
  } else if (in == element::fp16 && out == element::fp16) {
    body.template run<fp16_value, fp16_value>();
  } else if (in == element::fp16) {
    body.template run<fp16_value, fp32_value>();
  } else if (out == element::bf16) {
    body.template run<fp32_value, bf16_value>();
  } else if (out == element::fp16) {
    body.template run<fp32_value, fp16_value>();
  } else {
    body.template run<fp32_value, fp32_value>();
  }
}

/// The arguments of `sum_held`.
template <class G>
struct held_sum {
  const G& g;
  std::byte* dst;
  const held_rows& held;
  const std::byte* bias;
  std::int64_t begin, end;

  EPT_NO_EXEC_CHECK
  template <class In, class Out>
  EPT_HOST_DEVICE void run() const {
    sum_held<In, Out>(g, dst, held, bias, begin, end);
  }
};

/// The arguments of `sum_many`.
template <class G, class Source>
struct many_sum {
  const G& g;
  std::byte* dst;
  const Source& source;
  std::int64_t begin, end;

  EPT_NO_EXEC_CHECK
  template <class In, class Out>
  EPT_HOST_DEVICE void run() const {
    sum_many<In, Out>(g, dst, source, begin, end);
  }
};

/// As `with_types`, out of line: seldom needed.
EPT_NO_EXEC_CHECK
template <class G, class Source>
EPT_NOINLINE EPT_HOST_DEVICE void sum_many_typed(const many_sum<G, Source>& body, element in,
                                                 element out) {
  with_types(in, out, body);
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
template <class G, class Source>
EPT_HOST_DEVICE void sum_rows(const G& g, std::byte* dst, std::int64_t begin, std::int64_t end,
                              const Source& source, element in, element out) {
  const detail::held_rows held(g, source);
  if (held.whole) {
    detail::with_types(in, out, detail::held_sum<G>{g, dst, held, source.bias(), begin, end});
  } else {
    detail::sum_many_typed(detail::many_sum<G, Source>{g, dst, source, begin, end}, in, out);
  }
}

/// `sum_rows` of whole rows with the value types known when compiling.
EPT_NO_EXEC_CHECK
template <class In, class Out, class G, class Source>
EPT_HOST_DEVICE void sum_rows(const G& g, std::byte* dst, std::int64_t hidden,
                              const Source& source) {
  const detail::held_rows held(g, source);
  if (held.whole) {
    detail::sum_held<In, Out>(g, dst, held, source.bias(), 0, hidden);
  } else {
    detail::sum_many<In, Out>(g, dst, source, 0, hidden);
  }
}

}  // namespace eptransport
