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

namespace eptransport {

namespace detail {

/// Eight values in one or two 16-byte accesses.
template <class Value>
struct alignas(16) eight {
  typename Value::storage value[8];
};

/// True if all bits say that 16-byte accesses are allowed.
[[nodiscard]] EPT_HOST_DEVICE inline bool aligned16(std::uint64_t bits) noexcept {
  return (bits & 15u) == 0;
}

}  // namespace detail

/// Sums rows of `In` in fp32, in the order in which `source` lists them, and rounds once to `Out`.
///
/// `Source` is a small value: `count()`, `row(i)` (null = skip), `weight(i)` and `bias()` (a row of
/// `Out` that is added last, or null). With no row the result is the bias, or 0.
///
/// @par Threads  The group calls together; `g.sync()` before others read `dst`.
EPT_NO_EXEC_CHECK
template <class In, class Out, class G, class Source>
EPT_HOST_DEVICE void sum_rows(const G& g, std::byte* dst, std::int64_t hidden,
                              const Source& source) {
  std::uint64_t addresses =
      reinterpret_cast<std::uintptr_t>(dst) | reinterpret_cast<std::uintptr_t>(source.bias());
  for (std::int32_t i = 0; i < source.count(); ++i) {
    addresses |= reinterpret_cast<std::uintptr_t>(source.row(i));
  }
  const std::int64_t wide = detail::aligned16(addresses) ? hidden / 8 : 0;
  for (std::int64_t c = g.thread(); c < wide; c += g.threads()) {
    float sum[8] = {};
    for (std::int32_t i = 0; i < source.count(); ++i) {
      const std::byte* row = source.row(i);
      if (row == nullptr) continue;
      const detail::eight<In> in = reinterpret_cast<const detail::eight<In>*>(row)[c];
      const float weight = source.weight(i);
      for (int e = 0; e < 8; ++e) sum[e] = g.multiply_add(sum[e], weight, In::load(in.value[e]));
    }
    if (source.bias() != nullptr) {
      const detail::eight<Out> bias = reinterpret_cast<const detail::eight<Out>*>(source.bias())[c];
      for (int e = 0; e < 8; ++e) sum[e] += Out::load(bias.value[e]);
    }
    detail::eight<Out> out;
    for (int e = 0; e < 8; ++e) out.value[e] = Out::store(sum[e]);
    reinterpret_cast<detail::eight<Out>*>(dst)[c] = out;
  }
  for (std::int64_t c = wide * 8 + g.thread(); c < hidden; c += g.threads()) {
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

/// `sum_rows` with the value types chosen at run time.
EPT_NO_EXEC_CHECK
template <class G, class Source>
EPT_HOST_DEVICE void sum_rows(const G& g, std::byte* dst, std::int64_t hidden, const Source& source,
                              element in, element out) {
  if (in == element::bf16 && out == element::bf16) {
    sum_rows<bf16_value, bf16_value>(g, dst, hidden, source);
  } else if (in == element::bf16) {
    sum_rows<bf16_value, fp32_value>(g, dst, hidden, source);
  } else if (in == element::fp16 && out == element::fp16) {
    sum_rows<fp16_value, fp16_value>(g, dst, hidden, source);
  } else if (in == element::fp16) {
    sum_rows<fp16_value, fp32_value>(g, dst, hidden, source);
  } else if (out == element::bf16) {
    sum_rows<fp32_value, bf16_value>(g, dst, hidden, source);
  } else if (out == element::fp16) {
    sum_rows<fp32_value, fp16_value>(g, dst, hidden, source);
  } else {
    sum_rows<fp32_value, fp32_value>(g, dst, hidden, source);
  }
}

}  // namespace eptransport
