// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The memory-order vocabulary: the device half, one PTX instruction per function.
///
/// memory.hpp has the table of operations and what each pairs with. All pointers are to global
/// memory (device memory, or pinned host memory that the GPU maps), generic addresses.
///
/// Scopes: words that peers, NICs or CPUs share are accessed at system scope, words of one rank's
/// own workers at GPU scope. A rank's workers are blocks of one GPU, so its barrier is in scope of
/// everything it orders, and a later system-scope release is cumulative over it (PTX ISA, memory
/// consistency model, causality order).
#pragma once

#include <eptransport/core/config.hpp>

#include <cstddef>
#include <cstdint>

namespace eptransport {

/// Device twin of `host_memory`.
///
/// Ordinary bytes are copied with `load` and `store`: weak `ld.global` and `st.global`, ordered by
/// the release and acquire around them. They are assembly for two reasons: the compiler can neither
/// turn the load into `ld.global.nc`, whose cache is not coherent with what a peer writes while the
/// kernel runs, nor move it above the acquire that it follows.
struct device_memory {
  /// Adds to a signal word; pairs with `signal_acquire` of the waiting rank.
  EPT_DEVICE static void signal_add(std::uint64_t* word, std::uint64_t amount) noexcept {
    asm volatile("red.release.sys.global.add.u64 [%0], %1;" ::"l"(global(word)), "l"(amount)
                 : "memory");
  }

  /// Reads a signal word; pairs with `signal_add`, or with the NIC's write of a counter.
  [[nodiscard]] EPT_DEVICE static std::uint64_t signal_acquire(const std::uint64_t* word) noexcept {
    std::uint64_t value = 0;
    asm volatile("ld.acquire.sys.global.u64 %0, [%1];"
                 : "=l"(value)
                 : "l"(global(word))
                 : "memory");
    return value;
  }

  /// Writes a word that this thread alone ever writes; pairs with `signal_acquire` here or on the
  /// host. For words in host memory, where the GPU must not read, modify and write.
  EPT_DEVICE static void signal_store(std::uint64_t* word, std::uint64_t value) noexcept {
    asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(global(word)), "l"(value) : "memory");
  }

  /// Orders the caller's earlier writes before a hand-over (ring entry, doorbell); pairs with the
  /// acquire of the proxy thread, NIC or peer that reads them next.
  EPT_DEVICE static void publish() noexcept { asm volatile("fence.acq_rel.sys;" ::: "memory"); }

  /// Makes what was acquired through the generic proxy readable by bulk copies of this thread, and
  /// what was read overwritable by them.
  EPT_DEVICE static void acquire_bulk() noexcept {
    asm volatile("fence.proxy.async;" ::: "memory");
  }

  /// Makes what the caller wrote to shared memory readable by bulk stores. Then `sync`, then the
  /// issuing thread's `bulk_store`.
  EPT_DEVICE static void publish_shared() noexcept {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  }

  /// Starts a copy from shared to global memory; both aligned to 16, `bytes` a multiple of it. One
  /// thread. The bytes have landed after `bulk_commit` and `bulk_wait` of the same thread.
  EPT_DEVICE static void bulk_store(std::byte* to, const std::byte* shared_from,
                                    std::uint32_t bytes) noexcept {
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(global(to)),
                 "r"(shared(shared_from)), "r"(bytes)
                 : "memory");
  }
  EPT_DEVICE static void bulk_commit() noexcept {
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
  }
  /// Until everything that this thread committed has been written: only then may a release follow.
  EPT_DEVICE static void bulk_wait() noexcept {
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
  }
  /// Until the sources have been read: shared memory may be reused. No release may follow.
  EPT_DEVICE static void bulk_wait_read() noexcept {
    asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
  }

  /// A barrier in shared memory that one thread arrives at, for `bulk_load`.
  EPT_DEVICE static void bulk_barrier_init(std::uint64_t* barrier) noexcept {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared(barrier)) : "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  }
  /// Starts a copy from global to shared memory, as `bulk_store` does the other way; the barrier's
  /// next phase ends when the bytes are there. One thread. What others wrote to global memory was
  /// acquired, and made readable by `acquire_bulk`.
  EPT_DEVICE static void bulk_load(std::byte* shared_to, const std::byte* from, std::uint32_t bytes,
                                   std::uint64_t* barrier) noexcept {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared(barrier)),
                 "r"(bytes)
                 : "memory");
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
            "r"(shared(shared_to)),
        "l"(global(from)), "r"(bytes), "r"(shared(barrier))
        : "memory");
  }
  /// True once the phase of that parity has ended; then all that it loaded is readable. Any thread.
  [[nodiscard]] EPT_DEVICE static bool bulk_arrived(std::uint64_t* barrier,
                                                    std::uint32_t parity) noexcept {
    std::uint32_t ended = 0;
    asm volatile(
        "{\n\t.reg .pred p;\n\t"
        "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n\t"
        "selp.u32 %0, 1, 0, p;\n\t}"
        : "=r"(ended)
        : "r"(shared(barrier)), "r"(parity)
        : "memory");
    return ended != 0;
  }

  /// Adds to a word of this rank's own workers and returns the old value; pairs with itself.
  EPT_DEVICE static std::uint64_t fetch_add(std::uint64_t* word, std::uint64_t amount) noexcept {
    std::uint64_t old = 0;
    asm volatile("atom.acq_rel.gpu.global.add.u64 %0, [%1], %2;"
                 : "=l"(old)
                 : "l"(global(word)), "l"(amount)
                 : "memory");
    return old;
  }

  /// Reads a word of this rank's own workers; pairs with `fetch_add`, `store_release` and `claim`.
  [[nodiscard]] EPT_DEVICE static std::uint64_t load_acquire(const std::uint64_t* word) noexcept {
    std::uint64_t value = 0;
    asm volatile("ld.acquire.gpu.global.u64 %0, [%1];"
                 : "=l"(value)
                 : "l"(global(word))
                 : "memory");
    return value;
  }

  /// Writes a word of this rank's own workers; pairs with `load_acquire`.
  EPT_DEVICE static void store_release(std::uint64_t* word, std::uint64_t value) noexcept {
    asm volatile("st.release.gpu.global.u64 [%0], %1;" ::"l"(global(word)), "l"(value) : "memory");
  }

  /// Reads or writes a word of this rank's own workers and orders nothing: what decides is ordered
  /// by a barrier, `depart`, or the end of a kernel.
  [[nodiscard]] EPT_DEVICE static std::uint64_t load_relaxed(const std::uint64_t* word) noexcept {
    std::uint64_t value = 0;
    asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];"
                 : "=l"(value)
                 : "l"(global(word))
                 : "memory");
    return value;
  }
  EPT_DEVICE static void store_relaxed(std::uint64_t* word, std::uint64_t value) noexcept {
    asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(global(word)), "l"(value) : "memory");
  }

  /// Adds to a word in a crew's scratch, which several of its threads add to; `crew_all` then shows
  /// the sum to all.
  EPT_DEVICE static void crew_add(std::uint32_t* word, std::uint32_t amount) noexcept {
    asm volatile("red.relaxed.cta.shared::cta.add.u32 [%0], %1;" ::"r"(shared(word)), "r"(amount)
                 : "memory");
  }

  /// Turns 0 into `value`; true for the one caller that did. Pairs with itself and `load_acquire`.
  EPT_DEVICE static bool claim(std::uint64_t* word, std::uint64_t value) noexcept {
    std::uint64_t old = 0;
    asm volatile("atom.acq_rel.gpu.global.cas.b64 %0, [%1], 0, %2;"
                 : "=l"(old)
                 : "l"(global(word)), "l"(value)
                 : "memory");
    return old == 0;
  }

  /// Turns `expected` into `value`; true if the word held `expected`. Pairs with itself.
  EPT_DEVICE static bool exchange_if(std::uint64_t* word, std::uint64_t expected,
                                     std::uint64_t value) noexcept {
    std::uint64_t old = 0;
    asm volatile("atom.acq_rel.gpu.global.cas.b64 %0, [%1], %2, %3;"
                 : "=l"(old)
                 : "l"(global(word)), "l"(expected), "l"(value)
                 : "memory");
    return old == expected;
  }

  /// Publishes an entry of two words, 16-byte aligned, with one store. The model orders the halves
  /// of a vector store no more than two stores: each word must say whether it is new. Pairs with
  /// `entry_load` of the proxy thread.
  EPT_DEVICE static void entry_store(std::uint64_t* words, std::uint64_t first,
                                     std::uint64_t second) noexcept {
    asm volatile("st.release.sys.global.v2.u64 [%0], {%1, %2};" ::"l"(global(words)), "l"(first),
                 "l"(second)
                 : "memory");
  }

  /// Two fp32 values as e4m3, round to nearest even, saturating; the first in the low byte.
  [[nodiscard]] EPT_DEVICE static std::uint16_t e4m3_pair(float first, float second) noexcept {
    std::uint16_t both = 0;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(both) : "f"(second), "f"(first));
    return both;
  }

  /// Two fp32 values as bf16, round to nearest even, NaN becomes 0x7fff; the first in the low half.
  [[nodiscard]] EPT_DEVICE static std::uint32_t bf16_pair(float first, float second) noexcept {
    std::uint32_t both = 0;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(second), "f"(first));
    return both;
  }

  /// Gives other warps of the multiprocessor the issue slots; called in every spin.
  EPT_DEVICE static void relax() noexcept { asm volatile("nanosleep.u32 20;" ::: "memory"); }

  /// Nanoseconds of the clock that all multiprocessors of the GPU share. It may advance in steps of
  /// about a microsecond: for deadlines, not for timing.
  [[nodiscard]] EPT_DEVICE static std::uint64_t timer_ns() noexcept {
    std::uint64_t now = 0;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now)::"memory");
    return now;
  }

  [[nodiscard]] EPT_DEVICE static uint4 load(const uint4* from) noexcept {
    uint4 v;
    asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(global(from))
                 : "memory");
    return v;
  }
  [[nodiscard]] EPT_DEVICE static std::uint32_t load(const std::uint32_t* from) noexcept {
    std::uint32_t v = 0;
    asm volatile("ld.global.u32 %0, [%1];" : "=r"(v) : "l"(global(from)) : "memory");
    return v;
  }
  [[nodiscard]] EPT_DEVICE static std::uint16_t load(const std::uint16_t* from) noexcept {
    std::uint16_t v = 0;
    asm volatile("ld.global.u16 %0, [%1];" : "=h"(v) : "l"(global(from)) : "memory");
    return v;
  }
  [[nodiscard]] EPT_DEVICE static std::uint8_t load(const std::uint8_t* from) noexcept {
    std::uint32_t v = 0;
    asm volatile("ld.global.u8 %0, [%1];" : "=r"(v) : "l"(global(from)) : "memory");
    return static_cast<std::uint8_t>(v);
  }

  EPT_DEVICE static void store(uint4* to, uint4 v) noexcept {
    asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(global(to)), "r"(v.x), "r"(v.y),
                 "r"(v.z), "r"(v.w)
                 : "memory");
  }
  EPT_DEVICE static void store(std::uint32_t* to, std::uint32_t v) noexcept {
    asm volatile("st.global.u32 [%0], %1;" ::"l"(global(to)), "r"(v) : "memory");
  }
  EPT_DEVICE static void store(std::uint16_t* to, std::uint16_t v) noexcept {
    asm volatile("st.global.u16 [%0], %1;" ::"l"(global(to)), "h"(v) : "memory");
  }
  EPT_DEVICE static void store(std::uint8_t* to, std::uint8_t v) noexcept {
    asm volatile("st.global.u8 [%0], %1;" ::"l"(global(to)), "r"(std::uint32_t{v}) : "memory");
  }

 private:
  [[nodiscard]] EPT_DEVICE static std::size_t global(const void* pointer) noexcept {
    return __cvta_generic_to_global(pointer);
  }
  [[nodiscard]] EPT_DEVICE static std::uint32_t shared(const void* pointer) noexcept {
    return static_cast<std::uint32_t>(__cvta_generic_to_shared(pointer));
  }
};

}  // namespace eptransport
