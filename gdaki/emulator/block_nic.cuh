// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Emulated NICs as blocks of a GPU: they read the queues, copy between GPU memories and
///        answer in the format, so that a put costs what it would cost the posting GPU.
///
/// Entries of a queue are taken in batches: parsed by a thread each, copied by the whole block,
/// then counted and completed. Delivery is in order for both formats; the CPU's emulator
/// (network.hpp) is the strict and unordered one. It knows the requests that the gdaki transport
/// posts: writes and fetch-adds with one local range.
#pragma once

#include <eptransport/core/config.hpp>
#include <eptransport/core/memory.cuh>
#include <eptransport/gdaki/efa_cqe.hpp>
#include <eptransport/gdaki/efa_wqe.hpp>
#include <eptransport/gdaki/mlx5_cqe.hpp>
#include <eptransport/gdaki/mlx5_wqe.hpp>
#include <eptransport/gdaki/queue_memory.cuh>

#include <cstddef>
#include <cstdint>

namespace eptransport::gdaki::emulator {

/// The memory of one rank that requests may name.
struct block_memory {
  std::byte* window = nullptr;
  std::uint64_t window_bytes = 0;  ///< with its scratch
  std::uint64_t* words = nullptr;  ///< signal words
  std::uint32_t signals = 0;
  std::uint32_t window_lkey = 0;
  std::uint32_t window_rkey = 0;
  std::uint32_t words_rkey = 0;
};

/// One send queue, and how far the NIC is with it.
struct block_queue {
  const std::byte* ring = nullptr;
  const void* doorbell = nullptr;
  std::byte* completions = nullptr;
  std::uint32_t slots = 0;
  std::uint32_t qpn = 0;
  std::uint32_t rank = 0;
  std::uint32_t peer = 0;      ///< mlx5: of the connection
  std::uint64_t fetched = 0;   ///< entries
  std::uint64_t produced = 0;  ///< completions
  std::uint64_t busy = 0;      ///< 1 while a block serves it
  std::uint64_t failed = 0;    ///< mlx5: error state
};

/// All NICs of a GPU. Lies in its memory.
struct block_network {
  const block_memory* memories = nullptr;  ///< [ranks]
  block_queue* queues = nullptr;           ///< [queue_count]; block b of n serves b, b + n, ..
  std::uint32_t ranks = 0;
  std::uint32_t queue_count = 0;
  std::uint32_t first_handle = 0;   ///< EFA: of rank 0
  std::uint32_t first_qpn = 0;      ///< of a rank's posting queues
  std::uint32_t first_counted = 0;  ///< EFA: queue pair of signal 0
  std::uint32_t qkey = 0;
  std::uint64_t* findings = nullptr;  ///< entries that a device would not understand
};

/// What an entry asks for, with addresses resolved.
struct block_request {
  std::byte* to = nullptr;
  const std::byte* from = nullptr;
  std::uint64_t bytes = 0;
  std::uint64_t* word = nullptr;  ///< grows by `amount`; null: none
  std::uint64_t amount = 1;
  std::byte* old = nullptr;  ///< mlx5: where the old value goes
  std::uint16_t id = 0;
  std::uint8_t native = 0;
  std::uint8_t status = 0;
  bool notify = true;
  bool understood = true;
};

namespace detail {

/// Both formats' entries are 16 words of 4 bytes.
inline constexpr std::uint32_t entry_words = 16;

[[nodiscard]] EPT_DEVICE inline std::uint64_t two_words(std::uint32_t low,
                                                        std::uint32_t high) noexcept {
  return std::uint64_t{high} << 32U | low;
}
[[nodiscard]] EPT_DEVICE inline bool in_window(const block_memory& m, std::uint64_t address,
                                               std::uint64_t bytes) noexcept {
  const std::uint64_t offset = address - reinterpret_cast<std::uintptr_t>(m.window);
  return offset <= m.window_bytes && bytes <= m.window_bytes - offset;
}

/// An EFA write.
[[nodiscard]] EPT_DEVICE inline block_request parse_efa(const block_network& net,
                                                        const block_queue& q,
                                                        const std::uint32_t* w,
                                                        std::uint64_t index) noexcept {
  block_request r;
  r.id = static_cast<std::uint16_t>(w[0]);
  r.native = static_cast<std::uint8_t>(efa::operation::write);
  const std::uint32_t phase = (index & q.slots) != 0 ? 1 : 0;
  r.understood = (w[0] >> 16U & 0xffU) == 0x82 && w[0] >> 24U == (0x1cU | phase) &&
                 w[1] >> 16U == 1 && w[8] == w[12] && w[13] <= efa::key_mask;
  if (!r.understood) return r;
  const auto fail = [&r](efa::status why) {
    r.status = static_cast<std::uint8_t>(why);
    return r;
  };
  const std::uint32_t peer = (w[3] & 0xffffU) - net.first_handle;
  const block_memory& own = net.memories[q.rank];
  const std::uint64_t from = two_words(w[14], w[15]);
  const std::uint64_t to = two_words(w[10], w[11]);
  r.bytes = w[12];
  if (peer >= net.ranks) return fail(efa::status::invalid_address_handle);
  if (w[13] != own.window_lkey || !in_window(own, from, r.bytes)) {
    return fail(efa::status::invalid_local_key);
  }
  const block_memory& there = net.memories[peer];
  const std::uint32_t qpn = w[1] & 0xffffU;
  const std::uint32_t counted = qpn - net.first_counted;
  if (w[4] != net.qkey || qpn < net.first_qpn ||
      (qpn >= net.first_counted && counted >= there.signals)) {
    return fail(efa::status::bad_destination_qp);
  }
  if (w[9] != there.window_rkey || !in_window(there, to, r.bytes)) {
    return fail(efa::status::remote_bad_address);
  }
  r.from = reinterpret_cast<const std::byte*>(from);
  r.to = reinterpret_cast<std::byte*>(to);
  if (qpn >= net.first_counted) r.word = there.words + counted;
  return r;
}

/// An mlx5 write or fetch-add.
[[nodiscard]] EPT_DEVICE inline block_request parse_mlx5(const block_network& net,
                                                         const block_queue& q,
                                                         const std::uint32_t* w,
                                                         std::uint64_t index) noexcept {
  block_request r;
  const std::uint32_t head = swap_bytes(w[0]);
  r.id = static_cast<std::uint16_t>(head >> 8U);
  r.native = static_cast<std::uint8_t>(head);
  r.notify = (w[2] >> 24U & mlx5::notify) != 0;
  const bool adds = r.native == static_cast<std::uint8_t>(mlx5::opcode::fetch_add);
  const bool writes = r.native == static_cast<std::uint8_t>(mlx5::opcode::write);
  const std::uint32_t segments = adds ? 4 : 3;
  r.understood = (adds || writes) && r.id == static_cast<std::uint16_t>(index) &&
                 swap_bytes(w[1]) == (q.qpn << 8U | segments);
  if (!r.understood) return r;
  const auto fail = [&r](mlx5::status why) {
    r.status = static_cast<std::uint8_t>(why);
    return r;
  };
  if (q.failed != 0) return fail(mlx5::status::flushed);
  const block_memory& own = net.memories[q.rank];
  const block_memory& there = net.memories[q.peer];
  const std::uint64_t to = two_words(swap_bytes(w[5]), swap_bytes(w[4]));
  const std::uint32_t rkey = swap_bytes(w[6]);
  const std::uint32_t* local = w + (adds ? 12 : 8);
  r.bytes = swap_bytes(local[0]);
  const std::uint64_t mine = two_words(swap_bytes(local[3]), swap_bytes(local[2]));
  if (swap_bytes(local[1]) != own.window_lkey || !in_window(own, mine, r.bytes)) {
    return fail(mlx5::status::local_protection);
  }
  if (adds) {
    const std::uint64_t offset = to - reinterpret_cast<std::uintptr_t>(there.words);
    if (rkey != there.words_rkey || offset / 8 >= there.signals || offset % 8 != 0) {
      return fail(mlx5::status::remote_access);
    }
    r.bytes = 0;
    r.word = there.words + offset / 8;
    r.amount = two_words(swap_bytes(w[9]), swap_bytes(w[8]));
    r.old = reinterpret_cast<std::byte*>(mine);
    return r;
  }
  if (rkey != there.window_rkey || !in_window(there, to, r.bytes)) {
    return fail(mlx5::status::remote_access);
  }
  r.from = reinterpret_cast<const std::byte*>(mine);
  r.to = reinterpret_cast<std::byte*>(to);
  return r;
}

/// Copies by the whole block; nobody waits.
EPT_DEVICE inline void copy_by_block(std::byte* to, const std::byte* from,
                                     std::uint64_t bytes) noexcept {
  const auto both = reinterpret_cast<std::uintptr_t>(to) | reinterpret_cast<std::uintptr_t>(from);
  std::uint64_t done = 0;
  if (both % 16 == 0) {
    const std::uint64_t whole = bytes / 16;
    for (std::uint64_t i = threadIdx.x; i < whole; i += blockDim.x) {
      std::uint32_t a = 0, b = 0, c = 0, d = 0;
      asm volatile("ld.relaxed.gpu.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                   : "=r"(a), "=r"(b), "=r"(c), "=r"(d)
                   : "l"(__cvta_generic_to_global(from + i * 16))
                   : "memory");
      asm volatile(
          "st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(__cvta_generic_to_global(to + i * 16)),
          "r"(a), "r"(b), "r"(c), "r"(d)
          : "memory");
    }
    done = whole * 16;
  }
  for (std::uint64_t i = done + threadIdx.x; i < bytes; i += blockDim.x) {
    std::uint32_t byte = 0;
    asm volatile("ld.global.u8 %0, [%1];"
                 : "=r"(byte)
                 : "l"(__cvta_generic_to_global(from + i))
                 : "memory");
    to[i] = static_cast<std::byte>(byte);
  }
}

/// One thread: the completion of a request, as completion_writer.hpp writes it.
template <bool kEfa>
EPT_DEVICE inline void complete(const block_queue& q, const block_request& r,
                                std::uint64_t number) noexcept {
  constexpr std::uint32_t entry_bytes = kEfa ? efa::wide_completion : mlx5::completion_bytes;
  std::byte* entry = q.completions + (number & (q.slots - 1)) * entry_bytes;
  auto* word = reinterpret_cast<std::uint32_t*>(entry);
  const bool odd_lap = (number & q.slots) != 0;
  if constexpr (kEfa) {
    const std::uint32_t flags = (odd_lap ? 0U : 1U) | 1U << 1U | std::uint32_t{r.native} << 4U;
    word[1] = q.qpn & 0xffffU;
    for (int i = 2; i < 8; ++i) word[i] = 0;
    device_memory::publish();
    queue_memory<device_memory>::write_record(word,
                                              r.id | std::uint32_t{r.status} << 16U | flags << 24U);
  } else {
    const auto opcode = r.status == 0 ? mlx5::cqe_opcode::request : mlx5::cqe_opcode::request_error;
    word[13] = r.status == 0 ? 0 : std::uint32_t{r.status} << 24U;
    const std::uint32_t low = swap_bytes(std::uint32_t{r.native} << 24U | (q.qpn & 0xffffffU));
    const std::uint32_t high =
        swap_bytes(std::uint32_t{r.id} << 16U | static_cast<std::uint32_t>(opcode) << 4U |
                   (odd_lap ? 1U : 0U));
    device_memory::signal_store(reinterpret_cast<std::uint64_t*>(entry + mlx5::tail_offset),
                                two_words(low, high));
  }
}

/// Entries that the poster has rung for and that were not fetched.
template <bool kEfa>
[[nodiscard]] EPT_DEVICE inline std::uint32_t fresh_entries(const block_queue& q) noexcept {
  std::uint32_t rung = 0;
  if constexpr (kEfa) {
    rung = queue_memory<device_memory>::acquire(static_cast<const std::uint32_t*>(q.doorbell));
  } else {
    const std::uint64_t value =
        queue_memory<device_memory>::acquire(static_cast<const std::uint64_t*>(q.doorbell));
    rung = swap_bytes(low_word(value)) >> 8U;
  }
  return static_cast<std::uint16_t>(rung - static_cast<std::uint32_t>(q.fetched));
}

}  // namespace detail

/// A block that plays the NICs it is told to.
///
/// @tparam kEfa  EFA or mlx5
template <bool kEfa>
class block_nic {
 public:
  static constexpr std::uint32_t batch = 16;
  static constexpr std::uint32_t most_queues = 512;  ///< that one block serves

  /// Serves queues `block`, `block + blocks`, .. until `left` says that all `working` blocks have
  /// gone and nothing is left to do. All threads of the block.
  EPT_DEVICE static void serve(const block_network& net, std::uint32_t block, std::uint32_t blocks,
                               std::uint64_t* left, std::uint64_t working) noexcept {
    __shared__ std::uint32_t pending[most_queues];
    __shared__ std::uint32_t pending_count;
    __shared__ bool over;
    for (;;) {
      if (threadIdx.x == 0) {
        over = device_memory::load_acquire(left) == working;  // pairs with the blocks' last act
        pending_count = 0;
      }
      __syncthreads();
      for (std::uint32_t i = block + threadIdx.x * blocks; i < net.queue_count;
           i += blockDim.x * blocks) {
        if (detail::fresh_entries<kEfa>(net.queues[i]) == 0) continue;
        const std::uint32_t at = atomicAdd(&pending_count, 1U);
        if (at < most_queues) pending[at] = i;
      }
      __syncthreads();
      const std::uint32_t count = pending_count < most_queues ? pending_count : most_queues;
      const bool last = over;
      for (std::uint32_t i = 0; i < count; ++i) serve_queue(net, net.queues[pending[i]]);
      __syncthreads();
      if (count == 0 && last) return;
      if (count == 0) device_memory::relax();
    }
  }

 private:
  /// Everything that is rung for in one queue, a batch at a time.
  EPT_DEVICE static void serve_queue(const block_network& net, block_queue& q) noexcept {
    __shared__ alignas(16) std::uint32_t entries[batch][detail::entry_words];
    __shared__ block_request requests[batch];
    __shared__ std::uint32_t fresh;
    __shared__ bool mine;
    // Grids of other lanes have NICs too: one block at a time.
    if (threadIdx.x == 0) mine = device_memory::claim(&q.busy, 1);
    __syncthreads();
    const bool ours = mine;
    __syncthreads();  // all have read it before the next queue's answer
    if (!ours) return;
    for (;;) {
      if (threadIdx.x == 0) fresh = detail::fresh_entries<kEfa>(q);
      __syncthreads();
      const std::uint32_t count = fresh < batch ? fresh : batch;
      if (count == 0) break;
      fetch(q, count, entries);
      __syncthreads();
      if (threadIdx.x < count) {
        const std::uint64_t index = q.fetched + threadIdx.x;
        if constexpr (kEfa) {
          requests[threadIdx.x] = detail::parse_efa(net, q, entries[threadIdx.x], index);
        } else {
          requests[threadIdx.x] = detail::parse_mlx5(net, q, entries[threadIdx.x], index);
        }
      }
      __syncthreads();
      for (std::uint32_t i = 0; i < count; ++i) {
        const block_request& r = requests[i];
        if (r.status == 0 && r.understood) detail::copy_by_block(r.to, r.from, r.bytes);
      }
      __syncthreads();
      if (threadIdx.x == 0) finish(net, q, requests, count);
      __syncthreads();
    }
    if (threadIdx.x == 0) device_memory::store_release(&q.busy, 0);
    __syncthreads();
  }

  EPT_DEVICE static void fetch(const block_queue& q, std::uint32_t count,
                               std::uint32_t (&entries)[batch][detail::entry_words]) noexcept {
    for (std::uint32_t i = threadIdx.x; i < count * detail::entry_words; i += blockDim.x) {
      const std::uint32_t n = i / detail::entry_words;
      const std::uint64_t slot = (q.fetched + n) & (q.slots - 1);
      const auto* words = reinterpret_cast<const std::uint32_t*>(q.ring + slot * 64);
      entries[n][i % detail::entry_words] = device_memory::load(words + i % detail::entry_words);
    }
  }

  /// Counts, then completes. One thread; what the block copied comes before.
  EPT_DEVICE static void finish(const block_network& net, block_queue& q,
                                const block_request* requests, std::uint32_t count) noexcept {
    for (std::uint32_t i = 0; i < count; ++i) {
      const block_request& r = requests[i];
      if (!r.understood) device_memory::signal_add(net.findings, 1);
      if (!r.understood || r.status != 0 || r.word == nullptr) continue;
      // Pairs with the waiter's acquire of its word.
      device_memory::signal_add(r.word, r.amount);
    }
    for (std::uint32_t i = 0; i < count; ++i) {
      const block_request& r = requests[i];
      if (!kEfa && r.status != 0) q.failed = 1;
      if (r.understood && (r.notify || r.status != 0)) detail::complete<kEfa>(q, r, q.produced++);
    }
    q.fetched += count;
  }
};

}  // namespace eptransport::gdaki::emulator
