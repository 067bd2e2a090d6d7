// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief What the parts of ep_proxy_bench share: clocks, medians, memory for rings.
#pragma once

#include <eptransport/proxy/ring.hpp>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace eptransport::bench {

/// Allocations of this process so far; main.cpp counts them.
[[nodiscard]] std::uint64_t allocations() noexcept;

[[nodiscard]] inline double seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// The median of an odd number of passes, and the best.
struct rate {
  double median = 0;
  double best = 0;
};

/// Runs `pass()`, which returns operations per second, `passes` times.
template <class Pass>
[[nodiscard]] rate measure(int passes, const Pass& pass) {
  std::vector<double> all;
  for (int i = 0; i < passes; ++i) all.push_back(pass());
  std::sort(all.begin(), all.end());
  return {all[all.size() / 2], all.back()};
}

/// A ring in memory of its own.
class owned_ring {
 public:
  explicit owned_ring(std::uint64_t slots)
      : layout_(*proxy::ring_layout::of(slots)), memory_(layout_.bytes() + 128) {
    const auto at = reinterpret_cast<std::uintptr_t>(memory_.data());
    view_ = layout_.make(memory_.data() + (128 - at % 128) % 128);
  }
  [[nodiscard]] const proxy::ring_view& view() const noexcept { return view_; }

 private:
  proxy::ring_layout layout_;
  std::vector<std::byte> memory_;
  proxy::ring_view view_;
};

/// Options of the command line.
struct bench_options {
  std::uint64_t commands = 20'000'000;  ///< of each pass
  int passes = 5;
};

void bench_rings(const bench_options& options);
void bench_engine(const bench_options& options);
void bench_scaling(const bench_options& options);
void bench_idle(const bench_options& options);

}  // namespace eptransport::bench
