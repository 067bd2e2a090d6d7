// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The shared memory transport passes the conformance suite: a thread per rank, each with
/// mappings of its own.
#include <eptransport/backends/shared_memory/shared_memory.hpp>

#include <gtest/gtest.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <thread>
#include <vector>

#include "conformance.hpp"
#include "support/in_process_bootstrap.hpp"

namespace conformance {

/// A seat that can hear of a death: nothing else can fail on this wire.
class seat final : public eptransport::support::in_process_bootstrap {
 public:
  using in_process_bootstrap::in_process_bootstrap;

  void hear_of_a_death() { heard_ = true; }
  [[nodiscard]] bool healthy() const noexcept override { return !heard_; }
  [[nodiscard]] eptransport::result<void> status() const override {
    if (!heard_) return {};
    return eptransport::failure{eptransport::errc::transport_failed, "seat", "rank 2 has died"};
  }

 private:
  std::atomic<bool> heard_ = false;
};

/// A rank that hears of a death behind its first barrier, if it is to.
class fragile_rank {
 public:
  using inner = eptransport::shared_memory;
  using transport_concept = eptransport::transport_tag;
  using view_type = inner::view_type;
  using executor_type = inner::executor_type;
  static constexpr eptransport::capabilities caps = inner::caps;

  fragile_rank(inner& own, seat* breaks) : own_(own), breaks_(breaks) {}
  [[nodiscard]] view_type view() const { return own_.view(); }
  [[nodiscard]] executor_type& executor() { return own_.executor(); }
  [[nodiscard]] std::span<std::byte> window() const { return own_.window(); }
  [[nodiscard]] std::uint32_t signals() const { return own_.signals(); }
  [[nodiscard]] eptransport::result<void> fault() const { return own_.fault(); }
  [[nodiscard]] eptransport::result<void> barrier(std::uint64_t timeout_ns) {
    const auto met = own_.barrier(timeout_ns);
    if (breaks_ != nullptr) breaks_->hear_of_a_death();
    return met;
  }

 private:
  inner& own_;
  seat* breaks_;
};

struct shared_memory_backend {
  using transport = fragile_rank;
  static constexpr std::uint64_t seeds = 3;
  static constexpr std::uint64_t patience_ns = 60'000'000'000;
  static constexpr bool one_process = true;
  static constexpr bool can_start_counters = true;
  static constexpr bool can_limit_queues = true;  // there is none
  static constexpr bool can_break = true;

  static void run(const world_request& request, const std::function<void(transport&)>& per_rank,
                  report& out) {
    eptransport::support::meeting_room room(request.ranks);
    std::vector<std::thread> ranks;
    for (std::int32_t r = 0; r < request.ranks; ++r) {
      ranks.emplace_back([&, r] {
        seat meeting(room, r);
        const auto made =
            eptransport::shared_memory::create(meeting, {.window_bytes = request.window_bytes,
                                                         .signals = request.signals,
                                                         .channels = request.channels,
                                                         .workers = request.workers,
                                                         .counter_start = request.counter_start});
        if (!made) return out.add(made.error().message());
        transport own(**made, r == request.broken_rank ? &meeting : nullptr);
        per_rank(own);
        if (!(*made)->intact()) out.add("a window's guard zone is damaged");
      });
    }
    for (std::thread& rank : ranks) rank.join();
  }
};

INSTANTIATE_TYPED_TEST_SUITE_P(SharedMemory, Conformance, ::testing::Types<shared_memory_backend>);

}  // namespace conformance
