// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The conformance cases: what a backend must do with the calls of the contract.
#pragma once

#include <eptransport/core/result.hpp>
#include <eptransport/core/transport.hpp>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "harness.hpp"

namespace conformance {

using eptransport::no_signal;

/// Windows of every case: peers write the lower half, sources lie in the upper half.
inline constexpr std::uint64_t source_zone = 4096;

template <Backend B>
void windows_start_zeroed(const world_request& request, report& out) {
  in_world<B>(request, out, [&](const probe<B>& p, auto& t) {
    const auto window = t.window();
    p.check(window.size() == request.window_bytes, "the window has the wrong size");
    p.check(window.data() == p.view().local(), "window() and local() differ");
    p.check(t.signals() == request.signals, "signals() is wrong");
    const auto all = p.bytes_at(0, request.window_bytes);
    const auto zero = [](std::byte b) { return b == std::byte{0}; };
    p.check(std::all_of(all.begin(), all.end(), zero), "the window is not zeroed");
  });
}

/// Every rank writes a slot of every rank, itself included, one word per source.
template <Backend B>
void bytes_then_signal(world_request request, report& out) {
  if (request.ranks == 0) request.ranks = 4;
  in_world<B>(request, out, [](const probe<B>& p, auto&) {
    constexpr std::uint64_t slot = 257;
    const auto me = static_cast<std::uint64_t>(p.rank());
    for (int peer = 0; peer < p.size(); ++peer) {
      const auto to = static_cast<std::uint64_t>(peer);
      p.fill(source_zone + to * slot, slot, me, to);
      p.put({.peer = peer,
             .dst_offset = me * slot,
             .src = p.at(source_zone + to * slot),
             .bytes = slot,
             .signal = static_cast<std::uint32_t>(p.rank())});
    }
    for (int source = 0; source < p.size(); ++source) {
      p.wait(static_cast<std::uint32_t>(source), 1);
      p.check_bytes(static_cast<std::uint64_t>(source) * slot, slot,
                    static_cast<std::uint64_t>(source), me);
    }
    p.flush();
    p.meet();
    for (int s = 0; s < p.size(); ++s) p.check_count(static_cast<std::uint32_t>(s), 1);
  });
}

/// n puts of all ranks on one word of rank 0 count n; their bytes are there when the count is.
template <Backend B>
void puts_are_counted(const world_request& request, report& out) {
  in_world<B>(request, out, [](const probe<B>& p, auto&) {
    constexpr std::uint64_t puts = 8;
    constexpr std::uint64_t slot = 33;
    const auto me = static_cast<std::uint64_t>(p.rank());
    p.fill(source_zone, slot, me, 5);
    for (std::uint64_t i = 0; i < puts; ++i) {
      p.put({.peer = 0,
             .dst_offset = (me * puts + i) * slot,
             .src = p.at(source_zone),
             .bytes = slot,
             .signal = 2});
    }
    if (p.rank() == 0) {
      const auto all = puts * static_cast<std::uint64_t>(p.size());
      p.wait(2, all);
      for (std::uint64_t i = 0; i < all; ++i) p.check_bytes(i * slot, slot, i / puts, 5);
    }
    p.flush();
    p.meet();
    p.check_count(2, p.rank() == 0 ? puts * static_cast<std::uint64_t>(p.size()) : 0);
  });
}

/// Signals without bytes, and puts of zero bytes with a null source, count like any other.
template <Backend B>
void empty_messages_count(const world_request& request, report& out) {
  in_world<B>(request, out, [](const probe<B>& p, auto&) {
    for (int peer = 0; peer < p.size(); ++peer) {
      p.signal(peer, 0);
      p.put({.peer = peer, .signal = 1});
      p.signal(peer, 1);
    }
    const auto ranks = static_cast<std::uint64_t>(p.size());
    p.wait(0, ranks);
    p.wait(1, 2 * ranks);
    p.meet();
    p.check_count(0, ranks);
    p.check_count(1, 2 * ranks);
  });
}

/// One source, overwritten after each flush.
template <Backend B>
void sources_are_free_after_flush(const world_request& request, report& out) {
  in_world<B>(request, out, [](const probe<B>& p, auto&) {
    constexpr std::uint64_t puts = 6;
    constexpr std::uint64_t slot = 129;
    const auto me = static_cast<std::uint64_t>(p.rank());
    const int peer = (p.rank() + 1) % p.size();
    for (std::uint64_t i = 0; i < puts; ++i) {
      p.fill(source_zone, slot, me, i);
      p.put({.peer = peer,
             .dst_offset = i * slot,
             .src = p.at(source_zone),
             .bytes = slot,
             .signal = 0});
      p.flush();
      p.clear(source_zone, slot);
    }
    const auto before = static_cast<std::uint64_t>((p.rank() + p.size() - 1) % p.size());
    p.wait(0, puts);
    for (std::uint64_t i = 0; i < puts; ++i) p.check_bytes(i * slot, slot, before, i);
    p.meet();
  });
}

/// Counters that start just below a wrap, at 64 and at 32 bits.
template <Backend B>
void counts_survive_the_wrap(world_request request, report& out) {
  for (const std::uint64_t start :
       {std::numeric_limits<std::uint64_t>::max() - 2, (std::uint64_t{1} << 32) - 3}) {
    request.counter_start = start;
    in_world<B>(request, out, [&](const probe<B>& p, auto&) {
      p.check(p.base(0) == start, "the counter does not start where it was asked to");
      for (std::uint64_t n = 1; n <= 6; ++n) {
        p.signal((p.rank() + 1) % p.size(), 0);
        p.wait(0, n);
        p.wait(0, n - 1);
      }
      p.meet();
      p.check_count(0, 6);
    });
  }
}

/// Random sizes, peers and channels; receivers know only how many messages come.
template <Backend B>
void only_counts_tell_arrival(world_request request, report& out) {
  if (request.ranks == 0) request.ranks = 4;
  request.channels = 2;
  in_world<B>(request, out, [&](const probe<B>& p, auto&) {
    constexpr int per_rank = 12;
    std::vector<std::uint64_t> next(static_cast<std::size_t>(p.size()), 0);
    struct expected_put {
      std::uint64_t offset, bytes, source, id;
    };
    std::vector<expected_put> mine;
    std::uint64_t free_source = source_zone;
    shared_random random(request.seed);
    for (int i = 0; i < per_rank * p.size(); ++i) {
      const int source = i % p.size();
      const auto peer = random.below(static_cast<std::uint64_t>(p.size()));
      const std::uint64_t bytes = random.below(90);
      const auto channel = static_cast<std::uint32_t>(random.below(p.view().channels()));
      const std::uint64_t offset = next[peer];
      const auto id = static_cast<std::uint64_t>(i);
      next[peer] += bytes;
      if (static_cast<int>(peer) == p.rank()) {
        mine.push_back({offset, bytes, static_cast<std::uint64_t>(source), id});
      }
      if (source != p.rank()) continue;
      p.fill(free_source, bytes, static_cast<std::uint64_t>(source), id);
      p.put({.peer = static_cast<int>(peer),
             .dst_offset = offset,
             .src = p.at(free_source),
             .bytes = bytes,
             .signal = 3},
            channel);
      free_source += bytes;
    }
    p.wait(3, mine.size());
    for (const expected_put& e : mine) p.check_bytes(e.offset, e.bytes, e.source, e.id);
    for (std::uint32_t c = 0; c < p.view().channels(); ++c) p.flush(c);
    p.meet();
    p.check_count(3, mine.size());
  });
}

/// A put of exactly max_message arrives, where the limit is small enough to try.
template <Backend B>
void the_largest_message_arrives(world_request request, report& out) {
  constexpr std::uint64_t limit = B::transport::caps.max_message;
  constexpr std::uint64_t bytes = limit == 0 || limit > 65536 ? 65536 : limit;
  request.window_bytes = 2 * bytes;
  in_world<B>(request, out, [](const probe<B>& p, auto&) {
    const auto me = static_cast<std::uint64_t>(p.rank());
    p.fill(bytes, bytes, me, 1);
    p.put({.peer = (p.rank() + 1) % p.size(), .src = p.at(bytes), .bytes = bytes, .signal = 0});
    p.wait(0, 1);
    p.check_bytes(0, bytes, static_cast<std::uint64_t>((p.rank() + p.size() - 1) % p.size()), 1);
    p.flush();
    p.meet();
  });
}

/// Addresses exist where the trait says so, and stores through them precede a later signal.
template <Backend B>
void peer_pointers_match_the_trait(const world_request& request, report& out) {
  in_world<B>(request, out, [&](const probe<B>& p, auto&) {
    constexpr auto reach = B::transport::caps.peer_reach;
    const auto me = static_cast<std::uint64_t>(p.rank());
    p.fill(source_zone, 64, me, 9);
    p.check(p.view().peer_pointer(p.rank(), 16, 8) == p.at(16), "own address is wrong");
    p.check(p.view().peer_pointer(p.rank(), request.window_bytes - 8, 8) != nullptr,
            "the last bytes have no address");
    for (int peer = 0; peer < p.size(); ++peer) {
      if (peer == p.rank()) continue;
      std::byte* there = p.view().peer_pointer(peer, me * 64, 64);
      p.check(reach != eptransport::reach::always || there != nullptr, "reach is not always");
      p.check(reach != eptransport::reach::never || there == nullptr, "reach is not never");
      if (there != nullptr) {
        p.store(there, 64, me, 9);
        p.signal(peer, static_cast<std::uint32_t>(p.rank()));
      } else {
        p.put({.peer = peer,
               .dst_offset = me * 64,
               .src = p.at(source_zone),
               .bytes = 64,
               .signal = static_cast<std::uint32_t>(p.rank())});
      }
    }
    for (int source = 0; source < p.size(); ++source) {
      if (source == p.rank()) continue;
      p.wait(static_cast<std::uint32_t>(source), 1);
      p.check_bytes(static_cast<std::uint64_t>(source) * 64, 64, static_cast<std::uint64_t>(source),
                    9);
    }
    p.flush();
    p.meet();
  });
}

/// A wait for what never comes ends at its deadline; one for what came is not hurt by a late look.
template <Backend B>
void waits_end_at_their_deadline(const world_request& request, report& out) {
  in_world<B>(request, out, [](const probe<B>& p, auto&) {
    const std::uint64_t deadline = p.view().now_ns() + 1'000'000;
    p.check(p.view().wait_signal(host_thread(), 0, p.base(0) + 1, deadline) == op_status::expired,
            "the wait did not expire");
    p.check(p.view().now_ns() > deadline, "the wait ended before its deadline");
    p.check_count(0, 0);
    p.check(p.view().wait_signal(host_thread(), 0, p.base(0), p.soon()) == op_status::ok,
            "a reached count was not seen");
    p.meet();
  });
}

}  // namespace conformance
