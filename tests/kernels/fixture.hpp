// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Ranks in a simulated world, each with a group, for tests that drive the call directly.
///
/// Rows are small integers and the expert is the identity, so that every result is exact in bf16
/// and a test can say what it must be in one line.
#pragma once

#include <eptransport/backends/loopback/loopback.hpp>
#include <eptransport/kernels/kernels.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "support/wire_groups.hpp"

namespace eptransport::testing {

/// A wire with tight limits: short messages and few signal words.
struct tight_wire {
  static constexpr const char* name = "tight";
  static constexpr int ranks_per_node = 1;
  static constexpr capabilities caps{.peer_reach = reach::never,
                                     .put_order = ordering::none,
                                     .add = signal_add::one,
                                     .max_signals = 60,
                                     .max_message = 1000,
                                     .charge = {.issue_ns = 1000, .channel_bytes_per_s = 1e9}};
};

/// Memory with an alignment and a poisoned guard behind it.
class guarded_memory {
 public:
  explicit guarded_memory(std::size_t bytes, std::byte poison = std::byte{0xa5})
      : bytes_(bytes), memory_(bytes + guard + 128, poison) {
    const auto address = reinterpret_cast<std::uintptr_t>(memory_.data());
    start_ = memory_.data() + (128 - address % 128) % 128;
    for (std::size_t i = 0; i < guard; ++i) start_[bytes_ + i] = std::byte{0xcc};
  }
  [[nodiscard]] std::byte* data() noexcept { return start_; }
  [[nodiscard]] std::size_t size() const noexcept { return bytes_; }
  template <class U>
  [[nodiscard]] U* as() noexcept {
    return reinterpret_cast<U*>(start_);
  }
  [[nodiscard]] bool intact() const noexcept {
    for (std::size_t i = 0; i < guard; ++i) {
      if (start_[bytes_ + i] != std::byte{0xcc}) return false;
    }
    return true;
  }

 private:
  static constexpr std::size_t guard = 64;
  std::size_t bytes_;
  std::vector<std::byte> memory_;
  std::byte* start_ = nullptr;
};

/// One round's tokens of one rank.
struct tokens {
  std::int64_t count = 0;
  std::vector<std::uint16_t> x;
  std::vector<std::int64_t> index;
  std::vector<float> weight;
};

template <class Profile>
struct node {
  loopback<Profile>& transport;
  group<loopback<Profile>>& calls;
  const group_shape& shape;
  int rank;
  int ranks;

  [[nodiscard]] guarded_memory handle_memory() const {
    return guarded_memory(calls.needs().handle_bytes);
  }

  /// Random integers in [1, 8], random experts, some unused (their weights are NaN).
  [[nodiscard]] tokens draw(std::mt19937_64& random, std::int64_t count) const {
    tokens t;
    t.count = count;
    for (std::int64_t i = 0; i < count * shape.hidden; ++i) {
      t.x.push_back(float_to_bf16(static_cast<float>(random() % 8 + 1)));
    }
    for (std::int64_t i = 0; i < count * shape.top_k; ++i) {
      const auto expert =
          static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(shape.experts + 2)) - 2;
      t.index.push_back(expert < 0 ? -1 : expert);
      t.weight.push_back(expert < 0 ? std::numeric_limits<float>::quiet_NaN() : 1.0F);
    }
    return t;
  }

  [[nodiscard]] dispatch_input input(const tokens& t) const {
    return {.x = t.x.data(),
            .topk_index = t.index.data(),
            .topk_weight = t.weight.data(),
            .tokens = t.count};
  }

  /// In how many different ranks' experts token i has a choice.
  [[nodiscard]] int fan_out(const tokens& t, std::int64_t i) const {
    std::vector<bool> seen(static_cast<std::size_t>(ranks));
    int count = 0;
    for (std::int64_t j = 0; j < shape.top_k; ++j) {
      const std::int64_t expert = t.index[static_cast<std::size_t>(i * shape.top_k + j)];
      if (expert < 0 || expert >= shape.experts) continue;
      const int owner = owner_of(expert);
      if (!seen[static_cast<std::size_t>(owner)]) ++count;
      seen[static_cast<std::size_t>(owner)] = true;
    }
    return count;
  }

  /// The contiguous split of call.hpp, by counting it out.
  [[nodiscard]] int owner_of(std::int64_t expert) const {
    std::int64_t first = 0;
    for (int r = 0; r < ranks; ++r) {
      first += shape.experts / ranks + (r < shape.experts % ranks ? 1 : 0);
      if (expert < first) return r;
    }
    return -1;
  }

  [[nodiscard]] std::size_t worst_rows() const {
    return static_cast<std::size_t>(ranks) *
           static_cast<std::size_t>(std::max(shape.max_tokens, shape.counted_tokens));
  }

  /// True if `out` is, for each token, fan-out times its row.
  [[nodiscard]] ::testing::AssertionResult combined(const tokens& t,
                                                    const std::uint16_t* out) const {
    for (std::int64_t i = 0; i < t.count; ++i) {
      for (std::int64_t c = 0; c < shape.hidden; ++c) {
        const auto at = static_cast<std::size_t>(i * shape.hidden + c);
        const float want = static_cast<float>(fan_out(t, i)) * bf16_to_float(t.x[at]);
        const float got = bf16_to_float(out[at]);
        if (got != want) {
          return ::testing::AssertionFailure() << "rank " << rank << " token " << i << " column "
                                               << c << ": expected " << want << ", got " << got;
        }
      }
    }
    return ::testing::AssertionSuccess();
  }

  /// Dispatch and combine, rank-major, with the identity as expert. The first error ends it.
  result<void> round(std::int32_t lane, const tokens& t, dispatch_handle handle,
                     dispatch_mode mode = dispatch_mode::slotted) const {
    guarded_memory rows(worst_rows() * static_cast<std::size_t>(shape.hidden) * 2);
    guarded_memory out(static_cast<std::size_t>(t.count * shape.hidden) * 2);
    dispatch_input in = input(t);
    in.mode = mode;
    if (auto sent = calls.dispatch(lane, in, {.rows = rows.data()}, handle); !sent) return sent;
    if (auto back = calls.combine(lane, {.y = rows.data()}, {.out = out.data()}, handle); !back) {
      return back;
    }
    EXPECT_TRUE(rows.intact() && out.intact());
    EXPECT_TRUE(combined(t, out.as<std::uint16_t>()));
    return {};
  }
};

[[nodiscard]] inline dispatch_handle handle_of(guarded_memory& memory) {
  return {memory.data(), memory.size()};
}

/// Builds a world and a group per rank, and runs `body` once per rank.
template <class Profile>
void on_ranks(const group_shape& shape, loopback_options options,
              const std::function<void(const node<Profile>&)>& body,
              std::uint64_t timeout_ns = 1'000'000'000) {
  using group_type = group<loopback<Profile>>;
  const auto sizes = group_type::sizes(shape, options.ranks, options.workers);
  ASSERT_TRUE(sizes) << sizes.error().message();
  options.window_bytes = sizes->window_bytes;
  options.signals = sizes->signals;
  auto world = loopback_world<Profile>::create(options);
  ASSERT_TRUE(world) << world.error().message();
  (*world)->run([&](loopback<Profile>& transport) {
    auto calls = group_type::create(transport, shape, {}, timeout_ns);
    ASSERT_TRUE(calls) << calls.error().message();
    body({transport, *calls, shape, transport.view().rank(), options.ranks});
  });
  EXPECT_EQ((*world)->violations(), "");
}

/// A small shape that leaves nothing aligned by accident.
[[nodiscard]] inline group_shape small_shape() {
  return {.max_tokens = 9, .hidden = 20, .top_k = 3, .experts = 7};
}

}  // namespace eptransport::testing

namespace eptransport {

extern template class group<loopback<testing::tight_wire>>;  // compiled in tight_wire.cpp

}  // namespace eptransport
