// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Queues of either format over an emulated network, with windows, keys and counters.
#pragma once

#include <eptransport/core/thread_group.hpp>
#include <eptransport/gdaki/emulator/network.hpp>
#include <eptransport/gdaki/send_queue.hpp>

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

namespace eptransport::gdaki::testing {

/// Zeroed memory at an aligned address that does not move.
class block {
 public:
  explicit block(std::size_t bytes, int fill = 0)
      : storage_(new(std::align_val_t{4096}) std::byte[bytes]), bytes_(bytes) {
    std::memset(storage_.get(), fill, bytes);
  }
  [[nodiscard]] std::byte* data() const { return storage_.get(); }
  [[nodiscard]] std::size_t size() const { return bytes_; }
  template <class T>
  [[nodiscard]] T* as(std::size_t offset = 0) const {
    return reinterpret_cast<T*>(storage_.get() + offset);
  }

 private:
  struct release {
    void operator()(std::byte* p) const { ::operator delete[](p, std::align_val_t{4096}); }
  };
  std::unique_ptr<std::byte[], release> storage_;
  std::size_t bytes_;
};

/// How queues of a rig are made.
struct rig_options {
  emulator::schedule_options schedule{};
  std::uint32_t nics = 2;
  std::uint32_t slots = 64;
  std::uint32_t max_batch = 0;     ///< told to the queue
  std::uint32_t strict_batch = 0;  ///< looked at by the emulator
  std::uint32_t ring_every = 1;
  std::uint32_t completion_bytes = 0;  ///< 0: the format's usual size
  std::uint64_t first = 0;             ///< index at which queues start
  std::uint64_t window_bytes = 1 << 16;
};

/// One end of a queue pair and the memory behind it.
template <class Format, class Scope, class Completion>
struct rig_queue {
  using queue_type = send_queue<Format, Scope, Completion>;

  explicit rig_queue(const rig_options& o)
      : ring(std::size_t{o.slots} * Format::entry::bytes, 0),
        completions(std::size_t{o.slots} * 64, Format::ordered ? 0xff : 0),
        words(4096),
        done(std::size_t{o.slots} * 4) {}

  block ring;
  block completions;
  block words;  ///< doorbell @0, record @64, counters @128.., consumer @256
  block done;
  send_queue_state state{};
  queue_type queue{};
  std::uint32_t qpn = 0;

  [[nodiscard]] std::uint64_t* completed() const { return words.as<std::uint64_t>(128); }
  [[nodiscard]] std::uint64_t* failed() const { return words.as<std::uint64_t>(136); }
  [[nodiscard]] std::uint64_t* remote_writes() const { return words.as<std::uint64_t>(192); }
};

/// NICs that each have one window and one queue pair per other NIC: pair (a, b) talks to (b, a).
template <class Format, class Scope, class Completion>
class rig {
 public:
  using end = rig_queue<Format, Scope, Completion>;
  static constexpr bool is_efa = !Format::ordered;
  static constexpr std::uint32_t qkey = 0x11223344;
  static constexpr std::uint8_t all_rights = emulator::local_write | emulator::remote_write |
                                             emulator::remote_read | emulator::remote_atomic;

  explicit rig(const rig_options& o = {}) : options_(o), net(o.schedule) {
    for (std::uint32_t n = 0; n < o.nics; ++n) {
      net.add_nic();
      windows.emplace_back(o.window_bytes);
      net.memory(n).add(
          {windows[n].data(), o.window_bytes, address(n), lkey(n), rkey(n), all_rights});
    }
    for (std::uint32_t a = 0; a < o.nics; ++a) {
      for (std::uint32_t b = 0; b < o.nics; ++b) {
        ends_.push_back(a == b ? nullptr : std::make_unique<end>(o));
        if (a != b) make(a, b);
      }
    }
    if constexpr (!is_efa) {
      for (std::uint32_t a = 0; a < o.nics; ++a) {
        for (std::uint32_t b = 0; b < o.nics; ++b) {
          if (a != b) net.connect(a, qpn(a, b), b, qpn(b, a));
        }
      }
    }
  }

  [[nodiscard]] end& at(std::uint32_t a, std::uint32_t b) { return *ends_[a * options_.nics + b]; }
  [[nodiscard]] auto& queue(std::uint32_t a, std::uint32_t b) { return at(a, b).queue; }
  [[nodiscard]] static std::uint32_t lkey(std::uint32_t n) { return 0x100 + n; }
  [[nodiscard]] static std::uint32_t rkey(std::uint32_t n) { return 0xabc00000 + n; }
  [[nodiscard]] std::uint64_t address(std::uint32_t n) const {
    return reinterpret_cast<std::uintptr_t>(windows[n].data());
  }
  [[nodiscard]] std::uint32_t qpn(std::uint32_t a, std::uint32_t b) const {
    return 0x10 + a * options_.nics + b;
  }
  [[nodiscard]] efa::address to(std::uint32_t a, std::uint32_t b) const {
    return {static_cast<std::uint16_t>(0x20 + b), static_cast<std::uint16_t>(qpn(b, a)), qkey};
  }
  [[nodiscard]] remote_range remote(std::uint32_t n, std::uint64_t offset) const {
    return {address(n) + offset, rkey(n)};
  }
  [[nodiscard]] local_range local(std::uint32_t n, std::uint64_t offset,
                                  std::uint32_t bytes) const {
    return {address(n) + offset, lkey(n), bytes};
  }

  /// The entry of a plain write from a's window to b's.
  [[nodiscard]] typename Format::entry write(typename Format::place_type place, std::uint32_t a,
                                             std::uint32_t b, std::uint64_t from,
                                             std::uint64_t into, std::uint32_t bytes) const {
    if constexpr (is_efa) {
      return efa::write<Format::entry::bytes>(place, to(a, b), remote(b, into),
                                              local(a, from, bytes));
    } else {
      return mlx5::write(place, remote(b, into), local(a, from, bytes));
    }
  }

 private:
  void make(std::uint32_t a, std::uint32_t b) {
    end& e = at(a, b);
    e.qpn = qpn(a, b);
    const std::uint64_t first = options_.first;
    e.state.reserved = e.state.ready = e.state.rung = e.state.completed = first;
    auto* doorbell = e.words.template as<std::uint32_t>(0);
    auto* record = e.words.template as<std::uint32_t>(64);
    doorbell[0] = is_efa ? efa::doorbell(first) : 0;
    record[0] = mlx5::record(first);

    send_queue_attributes attributes;
    attributes.ring = e.ring.data();
    attributes.slots = options_.slots;
    attributes.max_batch = options_.max_batch;
    attributes.ring_every = options_.ring_every;
    attributes.qpn = e.qpn;
    attributes.id = a * options_.nics + b;
    attributes.record = is_efa ? nullptr : record;
    attributes.doorbell = doorbell;
    const result<void> good = end::queue_type::check(attributes);
    EXPECT_TRUE(good) << (good ? "" : good.error().message());

    emulator::queue_pair_setup setup;
    setup.format = is_efa ? emulator::wire::efa : emulator::wire::mlx5;
    setup.nic = a;
    setup.qpn = e.qpn;
    setup.qkey = qkey;
    setup.unsolicited_writes = true;
    setup.send = {e.ring.data(), options_.slots, Format::entry::bytes, options_.strict_batch, first,
                  record,        {doorbell}};
    setup.counters = {e.completed(), e.failed(), e.remote_writes()};
    setup.send_queue = net.add_completion_queue(completion_queue(e));
    if constexpr (is_efa) net.add_handle(a, static_cast<std::uint16_t>(0x20 + b), b);
    net.add_queue_pair(setup);
    e.queue = {attributes, &e.state, completion_of(e, first)};
  }

  [[nodiscard]] emulator::completion_queue_setup completion_queue(end& e) const {
    emulator::completion_queue_setup setup;
    setup.format = is_efa ? emulator::wire::efa : emulator::wire::mlx5;
    setup.ring = e.completions.data();
    setup.entries = options_.slots;
    setup.entry_bytes = entry_bytes();
    setup.collapsed = std::is_same_v<Completion, collapsed_completion>;
    if (!is_efa && std::is_same_v<Completion, polled_completion>) {
      setup.consumer = e.words.template as<std::uint32_t>(256);
    }
    return setup;
  }

  [[nodiscard]] std::uint32_t entry_bytes() const {
    if (options_.completion_bytes != 0) return options_.completion_bytes;
    return is_efa ? efa::wide_completion : mlx5::completion_bytes;
  }

  [[nodiscard]] Completion completion_of(end& e, std::uint64_t first) const {
    if constexpr (std::is_same_v<Completion, counted_completion>) {
      return {e.completed(), e.failed(), first - *e.completed(), *e.failed()};
    } else if constexpr (std::is_same_v<Completion, collapsed_completion>) {
      const auto last =
          static_cast<std::uint16_t>(first - 1);  // as if the one before had completed
      auto* tail = e.completions.template as<std::uint64_t>(mlx5::tail_offset);
      *tail |= std::uint64_t{swap_bytes(std::uint32_t{last} << 16U)} << 32U;
      return {e.completions.data()};
    } else {
      for (std::uint32_t i = 0; i < options_.slots; ++i) {
        e.done.template as<std::uint32_t>()[i] = low_word(first);
      }
      return {{e.completions.data(), options_.slots, entry_bytes(),
               is_efa ? nullptr : e.words.template as<std::uint32_t>(256)},
              is_efa ? e.done.template as<std::uint32_t>() : nullptr};
    }
  }

  rig_options options_;

 public:
  emulator::network net;
  std::deque<block> windows;

 private:
  std::vector<std::unique_ptr<end>> ends_;
};

/// What typed tests run over.
template <class Format, class Scope, class Completion>
struct combination {
  using rig_type = rig<Format, Scope, Completion>;
  using format = Format;
  using scope = Scope;
  using completion = Completion;
};

/// The rules that an emulated network saw broken, for messages.
inline std::string describe(const emulator::network& net) {
  std::string text;
  for (const emulator::finding& f : net.findings()) {
    text += std::string(emulator::to_string(f.what)) + " (nic " + std::to_string(f.nic) +
            ", queue pair " + std::to_string(f.qpn) + ", index " + std::to_string(f.index) +
            ", byte " + std::to_string(f.offset) + ")\n";
  }
  return text;
}

/// A deadline so far away that only a hang meets it.
inline std::uint64_t soon() {
  return queue_memory<host_memory>::now_ns() + std::uint64_t{60'000'000'000};
}
/// A deadline that tests expect to pass.
inline std::uint64_t very_soon() {
  return queue_memory<host_memory>::now_ns() + 2'000'000;
}

}  // namespace eptransport::gdaki::testing
