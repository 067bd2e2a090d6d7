// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The contract between ranks that exchange messages, as a kernel over any GPU wire.
#pragma once

#include <eptransport/core/memory.cuh>
#include <eptransport/core/thread_group.hpp>
#include <eptransport/core/transport.hpp>

#include <cstddef>
#include <cstdint>

namespace eptransport::support {

constexpr std::uint64_t cell = 1024;
/// Byte `at` of the message from `from` to `to` in `round`.
[[nodiscard]] EPT_HOST_DEVICE constexpr std::uint8_t pattern(std::int32_t from, std::int32_t to,
                                                             std::uint64_t round,
                                                             std::uint64_t at) {
  return static_cast<std::uint8_t>(static_cast<std::uint64_t>(from * 37 + to * 11) + round * 101 +
                                   at * 3 + at / 251);
}

/// Bytes of the message of `round`: all lengths, short and long, odd and even.
[[nodiscard]] EPT_HOST_DEVICE constexpr std::uint64_t length(std::uint64_t round) {
  return round * 67 % (cell + 1);
}

/// Every worker of every rank sends to every peer and checks what came, round after round.
///
/// Window: [2 parities][ranks][workers] cells received, then [2][workers] cells as sources. Signal:
/// one per (source, worker). A cell of one parity is free when the peer's next message shows that
/// it has read it: it sends that only afterwards.
template <class View>
struct all_to_all_call {
  View view;
  worker_words* shared;
  std::uint64_t rounds;
  std::uint64_t base;       ///< value of every signal before the call
  std::uint64_t* problems;  ///< [4] timed out, failed, wrong bytes, counter too high

  [[nodiscard]] EPT_HOST_DEVICE worker_words* words() const { return shared; }

  template <class W>
  EPT_DEVICE void operator()(const W& w) const {
    const std::uint64_t deadline = view.now_ns() + 30'000'000'000;
    for (std::uint64_t round = 0; round < rounds; ++round) {
      for (std::int32_t peer = 0; peer < view.size(); ++peer) send(w, peer, round, deadline);
      view.submit(w, 0);
      for (std::int32_t peer = 0; peer < view.size(); ++peer) receive(w, peer, round, deadline);
    }
    (void)w.last_to_leave();
  }

 private:
  template <class W>
  EPT_DEVICE std::uint64_t inbox(const W& w, std::int32_t from, std::uint64_t round) const {
    const std::uint64_t ranks = static_cast<std::uint64_t>(view.size());
    return ((round % 2 * ranks + static_cast<std::uint64_t>(from)) * w.workers() + w.worker()) *
           cell;
  }
  template <class W>
  EPT_DEVICE std::uint64_t outbox(const W& w, std::uint64_t round) const {
    const std::uint64_t ranks = static_cast<std::uint64_t>(view.size());
    return (2 * ranks * w.workers() + round % 2 * w.workers() + w.worker()) * cell;
  }
  template <class W>
  EPT_DEVICE std::uint32_t word(const W& w, std::int32_t from) const {
    return static_cast<std::uint32_t>(from) * w.workers() + w.worker();
  }
  template <class W>
  EPT_DEVICE void note(const W& w, op_status status) const {
    if (status == op_status::ok || w.thread() != 0) return;
    device_memory::fetch_add(problems + (status == op_status::expired ? 0 : 1), 1);
  }

  template <class W>
  EPT_DEVICE void send(const W& w, std::int32_t peer, std::uint64_t round,
                       std::uint64_t deadline) const {
    const std::uint64_t bytes = length(round);
    std::byte* source = view.local() + outbox(w, round);
    w.sync();  // the source of the message before this one has been read
    for (std::uint64_t i = w.thread(); i < bytes; i += w.threads()) {
      source[i] = static_cast<std::byte>(pattern(view.rank(), peer, round, i));
    }
    const std::uint64_t to = inbox(w, view.rank(), round);
    std::byte* direct = view.peer_pointer(peer, to, bytes);
    if (direct == nullptr || round % 3 == 0) {
      note(w, view.put(w, 0,
                       {.peer = peer,
                        .dst_offset = to,
                        .src = source,
                        .bytes = bytes,
                        .signal = word(w, view.rank())},
                       deadline));
    } else {
      w.sync();
      w.copy(direct, source, bytes);
      note(w, view.signal(w, 0, peer, word(w, view.rank()), deadline));
    }
    note(w, view.flush(w, 0, deadline));
  }

  template <class W>
  EPT_DEVICE void receive(const W& w, std::int32_t peer, std::uint64_t round,
                          std::uint64_t deadline) const {
    const std::uint32_t signal = word(w, peer);
    note(w, view.wait_signal(w, signal, base + round + 1, deadline));
    const std::uint64_t count = view.read_signal(signal) - base;
    if (count > round + 2) device_memory::fetch_add(problems + 3, 1);
    const std::byte* got = view.local() + inbox(w, peer, round);
    bool good = true;
    for (std::uint64_t i = w.thread(); i < length(round); i += w.threads()) {
      good = good && got[i] == static_cast<std::byte>(pattern(peer, view.rank(), round, i));
    }
    if (!good) device_memory::fetch_add(problems + 2, 1);
    w.sync();
  }
};

}  // namespace eptransport::support
