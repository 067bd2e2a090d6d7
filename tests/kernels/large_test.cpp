// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Offsets beyond 4 GiB, more than 65 535 tokens, and a hundred thousand equal calls.
///
/// Long: most of that memory is never touched, but a sanitizer would write its shadow.

#include <eptransport/backends/loopback/loopback.hpp>
#include <eptransport/kernels/kernels.hpp>

#include <cstring>
#include <memory>
#include <sys/mman.h>
#include <vector>

#include "fixture.hpp"
#include "support/runner.hpp"

namespace eptransport::testing {
namespace {

constexpr std::uint64_t gib = std::uint64_t{1} << 30;

/// Zeroed pages that cost nothing until they are written.
class untouched_memory {
 public:
  explicit untouched_memory(std::uint64_t bytes)
      : bytes_(bytes),
        start_(mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)) {}
  untouched_memory(const untouched_memory&) = delete;
  untouched_memory& operator=(const untouched_memory&) = delete;
  ~untouched_memory() {
    if (start_ != MAP_FAILED) munmap(start_, bytes_);
  }
  [[nodiscard]] bool valid() const { return start_ != MAP_FAILED; }
  [[nodiscard]] std::byte* data() const { return static_cast<std::byte*>(start_); }
  [[nodiscard]] dispatch_handle handle() const { return {data(), bytes_}; }

 private:
  std::uint64_t bytes_;
  void* start_;
};

/// A recognisable byte of row `row`.
std::byte mark(int rank, std::int64_t row, std::uint64_t at) {
  return static_cast<std::byte>(static_cast<std::uint64_t>(rank) * 101 +
                                static_cast<std::uint64_t>(row) * 31 + at * 7 + 1);
}

/// Two million tokens of 2304 bytes, of which the first, one in the middle and the last go to the
/// other rank: inputs, staging and landing zone all lie, or reach, beyond 4 GiB.
template <class Profile>
void three_of_many_rows(message_shape message) {
  constexpr std::int64_t tokens = std::int64_t{1} << 21;
  constexpr std::uint64_t row_bytes = 2304;
  static_assert(tokens * row_bytes > 4 * gib);
  using group_type = group<loopback<Profile>>;
  const group_shape shape{.counted_tokens = tokens,
                          .counted_rows = tokens,
                          .hidden = 8,
                          .top_k = 1,
                          .experts = 2,
                          .row = {row_bytes, 0},
                          .message = message};
  const auto sizes = group_type::sizes(shape, 2);
  ASSERT_TRUE(sizes) << sizes.error().message();
  ASSERT_GT(sizes->window_bytes, 4 * gib);
  const std::uint64_t landing = (sizes->window_bytes + 5 * gib) / 128 * 128;
  auto world = loopback_world<Profile>::create(
      {.ranks = 2, .window_bytes = landing + 3 * row_bytes, .signals = sizes->signals});
  ASSERT_TRUE(world) << world.error().message();
  (*world)->run([&](loopback<Profile>& transport) {
    auto calls = group_type::create(transport, shape);
    ASSERT_TRUE(calls) << calls.error().message();
    const int rank = transport.view().rank();
    const untouched_memory x(tokens * row_bytes);
    const untouched_memory memory(sizes->handle_bytes);
    ASSERT_TRUE(x.valid() && memory.valid());
    const std::vector<std::int64_t> used{0, tokens / 2 + 7, tokens - 1};
    std::vector<std::int32_t> index(tokens, -1);
    for (const std::int64_t token : used) {
      index[static_cast<std::size_t>(token)] = 1 - rank;
      std::byte* row = x.data() + static_cast<std::uint64_t>(token) * row_bytes;
      for (std::uint64_t i = 0; i < row_bytes; ++i) row[i] = mark(rank, token, i);
    }
    std::int64_t total = 0;
    std::vector<std::int64_t> source(3);
    const auto sent =
        calls->dispatch(0,
                        {.x = x.data(),
                         .topk_index = index.data(),
                         .tokens = tokens,
                         .indices = index_type::int32,
                         .mode = dispatch_mode::counted,
                         .landing = landing,
                         .landing_rows = 3},
                        {.total = &total, .source_token = source.data()}, memory.handle());
    ASSERT_TRUE(sent) << sent.error().message();
    ASSERT_EQ(total, 3);
    EXPECT_EQ(source, used);
    const std::byte* rows = transport.window().data() + landing;
    for (std::size_t i = 0; i < 3; ++i) {
      for (std::uint64_t b = 0; b < row_bytes; ++b) {
        ASSERT_EQ(rows[i * row_bytes + b], mark(1 - rank, used[i], b)) << "row " << i;
      }
    }
    std::vector<std::uint16_t> y(3 * 8);
    for (std::size_t i = 0; i < y.size(); ++i) y[i] = float_to_bf16(static_cast<float>(i + 1));
    std::vector<std::uint16_t> out(static_cast<std::size_t>(tokens) * 8, 0xFFFF);
    const auto back = calls->combine(0, {.y = y.data()}, {.out = out.data()}, memory.handle());
    ASSERT_TRUE(back) << back.error().message();
    for (std::size_t i = 0; i < 3; ++i) {
      EXPECT_EQ(std::memcmp(&out[static_cast<std::size_t>(used[i]) * 8], &y[i * 8], 16), 0) << i;
      std::memset(&out[static_cast<std::size_t>(used[i]) * 8], 0, 16);
    }
    EXPECT_EQ(std::count(out.begin(), out.end(), 0), tokens * 8);
  });
  EXPECT_EQ((*world)->violations(), "");
}

TEST(LongLarge, CountedBuffersBeyondFourGibibytesAreAddressedRight) {
  three_of_many_rows<profiles::nvlink>(message_shape::direct);
  three_of_many_rows<profiles::efa_gpu>(message_shape::per_row);
  three_of_many_rows<profiles::efa_proxy>(message_shape::per_peer);
}

/// Sixteen zones of 280 MiB: rank 7 fills all of its zone at rank 0, in both parities; the last
/// slot of the last zone lies beyond 4 GiB.
TEST(LongLarge, TheLastSlotOfAllBeyondFourGibibytesIsWrittenAndRead) {
  constexpr int ranks = 8;
  constexpr std::int64_t tokens = 300'000;
  using group_type = group<loopback<profiles::nvlink>>;
  const group_shape shape{
      .max_tokens = tokens, .hidden = 8, .top_k = 1, .experts = ranks, .row = {960, 0}};
  const auto sizes = group_type::sizes(shape, ranks);
  ASSERT_TRUE(sizes) << sizes.error().message();
  ASSERT_GT(sizes->window_bytes, 4 * gib);
  auto world = loopback_world<profiles::nvlink>::create(
      {.ranks = ranks, .window_bytes = sizes->window_bytes, .signals = sizes->signals});
  ASSERT_TRUE(world) << world.error().message();
  (*world)->run([&](loopback<profiles::nvlink>& transport) {
    auto calls = group_type::create(transport, shape);
    ASSERT_TRUE(calls) << calls.error().message();
    const geometry& geo = calls->layout();
    EXPECT_GT(geo.zone(1, ranks - 1) + geo.slot(tokens - 1), 4 * gib);
    const int rank = transport.view().rank();
    const std::int64_t count = rank == ranks - 1 ? tokens : 0;
    const untouched_memory x(static_cast<std::uint64_t>(tokens) * 960);
    const untouched_memory memory(sizes->handle_bytes);
    const std::vector<std::int64_t> index(static_cast<std::size_t>(count), 0);
    std::vector<std::uint16_t> out(static_cast<std::size_t>(count) * 8);
    for (int round = 0; round < 2; ++round) {  // both parities
      for (const std::int64_t token : {std::int64_t{0}, tokens - 1}) {
        if (count == 0) break;
        std::byte* row = x.data() + token * 960;
        for (std::uint64_t i = 0; i < 960; ++i) row[i] = mark(round, token, i);
      }
      std::int64_t total = 0;
      const std::int64_t most = rank == 0 ? tokens : 0;
      std::vector<std::uint64_t> offset(static_cast<std::size_t>(most));
      const auto sent = calls->dispatch(
          0, {.x = x.data(), .topk_index = index.data(), .tokens = count},
          {.layout = output_layout::in_place, .total = &total, .row_offset = offset.data()},
          memory.handle());
      ASSERT_TRUE(sent) << sent.error().message();
      ASSERT_EQ(total, most);
      std::vector<std::uint16_t> y(static_cast<std::size_t>(most) * 8);
      for (const std::int64_t token : {std::int64_t{0}, tokens - 1}) {
        if (most == 0) break;
        const auto at = static_cast<std::size_t>(token);
        const std::byte* row = transport.window().data() + offset[at];
        for (std::uint64_t b = 0; b < 960; ++b) ASSERT_EQ(row[b], mark(round, token, b));
        y[at * 8 + 7] = float_to_bf16(static_cast<float>(token % 100 + 1));
      }
      const auto back = calls->combine(0, {.y = y.data()}, {.out = out.data()}, memory.handle());
      ASSERT_TRUE(back) << back.error().message();
      if (count == 0) continue;
      EXPECT_EQ(out[7], float_to_bf16(1));
      EXPECT_EQ(out.back(), float_to_bf16(static_cast<float>((tokens - 1) % 100 + 1)));
    }
  });
  EXPECT_EQ((*world)->violations(), "");
}

TEST(LongLarge, MoreThan65535TokensOfEachRankEqualTheOracle) {
  using support::run_config;
  for (const output_layout layout : {output_layout::rank_major, output_layout::expert_major}) {
    for (const dispatch_mode mode : {dispatch_mode::slotted, dispatch_mode::counted}) {
      for (const char* wire : {"nvlink", "efa-gpu", "efa-proxy"}) {
        run_config config;
        config.wire = wire;
        config.ranks = 2;
        config.tokens = {70'001, 65'537};
        config.hidden = 4;
        config.top_k = 3;
        config.experts = 5;
        config.mode = mode;
        config.layout = layout;
        config.order = delivery::shuffled;
        config.iterations = 1;
        const support::run_result result = support::run(config);
        EXPECT_TRUE(result.verified) << wire << ": " << result.why();
      }
    }
  }
}

/// Each call sends one row with the call's number; counts and shapes are always the same.
TEST(LongLarge, AHundredThousandEqualCallsAreToldApart) {
  constexpr int calls_made = 100'000;
  const group_shape shape{
      .max_tokens = 1, .counted_tokens = 1, .hidden = 4, .top_k = 1, .experts = 2, .row = {8, 0}};
  for (const dispatch_mode mode : {dispatch_mode::slotted, dispatch_mode::counted}) {
    on_ranks<profiles::efa_gpu>(
        shape, {.ranks = 2, .order = delivery::shuffled, .seed = 3}, [&](const auto& self) {
          guarded_memory handle = self.handle_memory();
          const std::int64_t index = 1 - self.rank;
          for (std::int64_t call = 1; call <= calls_made; ++call) {
            std::int64_t rows[2] = {};
            const auto sent = self.calls.dispatch(
                0, {.x = &call, .topk_index = &index, .tokens = 1, .mode = mode},
                {.rows = rows, .capacity = 1}, handle_of(handle));
            ASSERT_TRUE(sent) << "call " << call << ": " << sent.error().message();
            ASSERT_EQ(rows[0], call);
          }
        });
  }
}

}  // namespace
}  // namespace eptransport::testing
