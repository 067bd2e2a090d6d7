// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Posts random requests from several threads and checks that each took effect exactly once.
#pragma once

#include <eptransport/gdaki/emulator/runner.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <thread>
#include <vector>

#include "gdaki/rig.hpp"
#include "support/random.hpp"

namespace eptransport::gdaki::testing {

/// How much is posted, and how.
struct workload {
  std::uint64_t requests = 20'000;  ///< in all
  std::uint32_t threads = 3;        ///< posters per queue pair if it is shared, else 1
  std::uint32_t max_group = 24;     ///< entries per call of `post`
  std::uint64_t seed = 1;
  bool sabotage = false;  ///< flips one delivered bit before the check
};

/// One random request: a range of the poster's window to the same place of the peer's.
struct random_request {
  std::uint64_t offset = 0;
  std::uint32_t bytes = 0;
  bool is_inline = false;
  bool is_atomic = false;  ///< adds 1 to the peer's first word instead
};

/// The window: 64 bytes of words, then the payload of every request with a gap of a byte or more.
inline std::vector<random_request> random_requests(const workload& w, std::uint64_t count,
                                                   std::uint64_t stream, bool atomics,
                                                   std::uint32_t max_inline,
                                                   std::uint64_t& window_bytes) {
  support::random_bits random{w.seed, stream};
  std::vector<random_request> all(count);
  std::uint64_t offset = 64;
  for (random_request& r : all) {
    r.is_atomic = atomics && random.chance(0.1);
    r.bytes = static_cast<std::uint32_t>(random.chance(0.9) ? 1 + random.below(48)
                                                            : 1 + random.below(700));
    r.is_inline = r.bytes <= max_inline && random.chance(0.5);
    r.offset = offset + random.below(8);
    if (!r.is_atomic) offset = r.offset + r.bytes + 1;
  }
  window_bytes = offset + 8;
  return all;
}

template <class Rig>
class exactly_once {
 public:
  exactly_once(rig_options options, const workload& w, bool shared) : work_(w), shared_(shared) {
    std::uint64_t window = 0;
    // mlx5 sources may be reused after the flush only, so every request has its own bytes.
    plan_ = random_requests(w, w.requests / pairs, 7, !Rig::is_efa, max_inline(), window);
    options.nics = 2;
    options.window_bytes = window;
    rig_.emplace(options);
    for (std::uint32_t n = 0; n < 2; ++n) {
      copies_[n].assign(window, std::byte{0});
      support::random_bits random{w.seed, 11, n};
      random.fill(copies_[n]);
    }
  }

  void run() {
    // Each NIC sends its copy to the other one, whose window is poisoned; sources are read from a
    // registration of the copy itself.
    for (std::uint32_t n = 0; n < 2; ++n) {
      std::memset(rig_->windows[n].data(), 0xa5, rig_->windows[n].size());
      std::memset(rig_->windows[n].data(), 0, 64);
      rig_->net.memory(n).add({copies_[n].data(), copies_[n].size(), source(n, 0), source_key, 0x77,
                               emulator::local_write});
    }
    {
      emulator::runner runner(rig_->net);
      std::vector<std::thread> posters;
      const std::uint32_t threads = shared_ ? work_.threads : 1;
      for (std::uint32_t n = 0; n < 2; ++n) {
        for (std::uint32_t t = 0; t < threads; ++t) {
          posters.emplace_back([this, n, t, threads] { post_share(n, t, threads); });
        }
      }
      for (std::thread& poster : posters) poster.join();
    }
    if (work_.sabotage) rig_->windows[0].data()[plan_.back().offset] ^= std::byte{4};
    verify();
  }

 private:
  static constexpr std::uint32_t pairs = 2;
  static constexpr std::uint32_t source_key = 0x5eed;

  [[nodiscard]] static constexpr std::uint32_t max_inline() {
    if constexpr (!Rig::is_efa) return mlx5::max_inline_write;
    return Rig::end::queue_type::entry::bytes == efa::wide ? efa::max_inline_write : 0;
  }
  [[nodiscard]] std::uint64_t source(std::uint32_t n, std::uint64_t offset) const {
    return reinterpret_cast<std::uintptr_t>(copies_[n].data()) + offset;
  }

  template <class Place>
  [[nodiscard]] auto entry_of(const random_request& r, const Place& place, std::uint32_t n) const {
    const std::uint32_t other = 1 - n;
    const local_range from{source(n, r.offset), source_key, r.bytes};
    if constexpr (Rig::is_efa) {
      constexpr std::uint32_t bytes = Rig::end::queue_type::entry::bytes;
      const efa::address to = rig_->to(n, other);
      if constexpr (bytes == efa::wide) {
        if (r.is_inline) {
          return efa::write_inline(
              place, to, rig_->remote(other, r.offset),
              {copies_[n].data() + r.offset, static_cast<std::uint16_t>(r.bytes)});
        }
      }
      return efa::write<bytes>(place, to, rig_->remote(other, r.offset), from);
    } else {
      if (r.is_atomic) {
        return mlx5::fetch_add(place, rig_->remote(other, 0), 1, {source(n, 8), source_key, 8});
      }
      if (r.is_inline) {
        return mlx5::write_inline(place, rig_->remote(other, r.offset),
                                  copies_[n].data() + r.offset, r.bytes);
      }
      return mlx5::write(place, rig_->remote(other, r.offset), from);
    }
  }

  void post_share(std::uint32_t n, std::uint32_t t, std::uint32_t threads) {
    const auto& queue = rig_->queue(n, 1 - n);
    const host_thread group;
    support::random_bits random{work_.seed, 13, n, t};
    const std::uint64_t begin = plan_.size() * t / threads;
    const std::uint64_t end = plan_.size() * (t + 1) / threads;
    for (std::uint64_t next = begin; next < end;) {
      const std::uint64_t count = std::min(end - next, 1 + random.below(work_.max_group));
      const op_status status = queue.post(
          group, count,
          [&](std::uint64_t i, const auto& place) { return entry_of(plan_[next + i], place, n); },
          soon());
      if (status != op_status::ok) return fail(n, t, "post");
      next += count;
      if (random.chance(0.01) && queue.flush(group, soon()) != op_status::ok) {
        return fail(n, t, "flush");
      }
    }
    if (queue.flush(group, soon()) != op_status::ok) return fail(n, t, "last flush");
  }

  void fail(std::uint32_t n, std::uint32_t t, const char* what) {
    const queue_fault fault = rig_->queue(n, 1 - n).fault(host_thread{});
    ADD_FAILURE() << what << " of nic " << n << ", thread " << t
                  << " failed: " << to_string(fault.kind) << ", status " << int{fault.status}
                  << ", index " << fault.index;
  }

  void verify() {
    EXPECT_TRUE(rig_->net.findings().empty()) << describe(rig_->net);
    std::uint64_t writes = 0;
    for (const random_request& r : plan_) writes += r.is_atomic ? 0 : 1;
    for (std::uint32_t n = 0; n < 2; ++n) {
      EXPECT_EQ(*rig_->at(n, 1 - n).remote_writes(), writes);
      EXPECT_EQ(*rig_->at(n, 1 - n).completed(), plan_.size());
      EXPECT_EQ(*rig_->windows[n].template as<std::uint64_t>(0), plan_.size() - writes);
      verify_window(n);
    }
    EXPECT_EQ(rig_->net.counts().fetched, plan_.size() * 2);
    EXPECT_EQ(rig_->net.counts().executed, plan_.size() * 2);
    if (plan_.size() >= 10'000) {
      EXPECT_EQ(rig_->net.counts().overtakes > 0, Rig::is_efa) << "the wire has its own order";
    }
  }

  /// Every byte is what the peer sent there, or still poison.
  void verify_window(std::uint32_t n) {
    const std::byte* got = rig_->windows[n].data();
    const std::vector<std::byte>& sent = copies_[1 - n];
    std::uint64_t upto = 64;
    std::uint64_t wrong = 0;
    for (const random_request& r : plan_) {
      if (r.is_atomic) continue;
      for (; upto < r.offset; ++upto) wrong += got[upto] == std::byte{0xa5} ? 0 : 1;
      wrong += std::memcmp(got + upto, sent.data() + upto, r.bytes) == 0 ? 0 : 1;
      upto += r.bytes;
    }
    EXPECT_EQ(wrong, 0U) << "nic " << n << ", seed " << work_.seed;
  }

  workload work_;
  bool shared_;
  std::optional<Rig> rig_;
  std::vector<random_request> plan_;
  std::vector<std::byte> copies_[2];
};

}  // namespace eptransport::gdaki::testing
