// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The device half of queue_memory.hpp, one PTX instruction an operation.
///
/// Words of a queue's own state are accessed at the scope of who shares the queue. Entries are weak
/// 16-byte stores. Doorbells are `st.mmio`, which is neither split, merged nor repeated (PTX ISA,
/// "st"). Whether stores to a NIC's memory and its doorbell keep their order over PCIe behind
/// `fence.acq_rel.sys` can be shown only with the NIC.
#pragma once

#include <eptransport/core/memory.cuh>
#include <eptransport/gdaki/queue_memory.hpp>

#include <cstddef>
#include <cstdint>

namespace eptransport::gdaki {

/// Threads of a GPU.
template <>
struct queue_memory<device_memory> {
  [[nodiscard]] EPT_DEVICE static std::uint64_t load(one_owner, const std::uint64_t* w) noexcept {
    std::uint64_t v = 0;
    asm volatile("ld.global.u64 %0, [%1];" : "=l"(v) : "l"(global(w)) : "memory");
    return v;
  }
  [[nodiscard]] EPT_DEVICE static std::uint64_t load(one_block, const std::uint64_t* w) noexcept {
    std::uint64_t v = 0;
    asm volatile("ld.acquire.cta.global.u64 %0, [%1];" : "=l"(v) : "l"(global(w)) : "memory");
    return v;
  }
  [[nodiscard]] EPT_DEVICE static std::uint64_t load(one_device, const std::uint64_t* w) noexcept {
    return device_memory::load_acquire(w);
  }

  EPT_DEVICE static void store(one_owner, std::uint64_t* w, std::uint64_t v) noexcept {
    asm volatile("st.global.u64 [%0], %1;" ::"l"(global(w)), "l"(v) : "memory");
  }
  EPT_DEVICE static void store(one_block, std::uint64_t* w, std::uint64_t v) noexcept {
    asm volatile("st.release.cta.global.u64 [%0], %1;" ::"l"(global(w)), "l"(v) : "memory");
  }
  EPT_DEVICE static void store(one_device, std::uint64_t* w, std::uint64_t v) noexcept {
    device_memory::store_release(w, v);
  }

  [[nodiscard]] EPT_DEVICE static bool compare_exchange(one_owner scope, std::uint64_t* w,
                                                        std::uint64_t expected,
                                                        std::uint64_t desired) noexcept {
    const bool equal = load(scope, w) == expected;
    if (equal) store(scope, w, desired);
    return equal;
  }
  [[nodiscard]] EPT_DEVICE static bool compare_exchange(one_block, std::uint64_t* w,
                                                        std::uint64_t expected,
                                                        std::uint64_t desired) noexcept {
    std::uint64_t old = 0;
    asm volatile("atom.acq_rel.cta.global.cas.b64 %0, [%1], %2, %3;"
                 : "=l"(old)
                 : "l"(global(w)), "l"(expected), "l"(desired)
                 : "memory");
    return old == expected;
  }
  [[nodiscard]] EPT_DEVICE static bool compare_exchange(one_device, std::uint64_t* w,
                                                        std::uint64_t expected,
                                                        std::uint64_t desired) noexcept {
    std::uint64_t old = 0;
    asm volatile("atom.acq_rel.gpu.global.cas.b64 %0, [%1], %2, %3;"
                 : "=l"(old)
                 : "l"(global(w)), "l"(expected), "l"(desired)
                 : "memory");
    return old == expected;
  }

  EPT_DEVICE static std::uint64_t add(one_owner scope, std::uint64_t* w, std::uint64_t n) noexcept {
    const std::uint64_t old = load(scope, w);
    store(scope, w, old + n);
    return old;
  }
  EPT_DEVICE static std::uint64_t add(one_block, std::uint64_t* w, std::uint64_t n) noexcept {
    std::uint64_t old = 0;
    asm volatile("atom.acq_rel.cta.global.add.u64 %0, [%1], %2;"
                 : "=l"(old)
                 : "l"(global(w)), "l"(n)
                 : "memory");
    return old;
  }
  EPT_DEVICE static std::uint64_t add(one_device, std::uint64_t* w, std::uint64_t n) noexcept {
    return device_memory::fetch_add(w, n);
  }

  EPT_DEVICE static void store(segment* to, const segment& s) noexcept {
    asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(global(to)), "r"(s.word[0]),
                 "r"(s.word[1]), "r"(s.word[2]), "r"(s.word[3])
                 : "memory");
  }

  /// Entries, or the doorbell record, before what tells the device about them.
  EPT_DEVICE static void order(ring_home home) noexcept {
    if (home == ring_home::device) {
      asm volatile("fence.acq_rel.gpu;" ::: "memory");
    } else {
      device_memory::publish();
    }
  }
  EPT_DEVICE static void write_record(std::uint32_t* word, std::uint32_t value) noexcept {
    asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(global(word)), "r"(value) : "memory");
  }
  EPT_DEVICE static void ring(std::uint32_t* word, std::uint32_t value) noexcept {
    asm volatile("st.mmio.relaxed.sys.global.u32 [%0], %1;" ::"l"(global(word)), "r"(value)
                 : "memory");
  }
  EPT_DEVICE static void ring(std::uint64_t* word, std::uint64_t value) noexcept {
    asm volatile("st.mmio.relaxed.sys.global.u64 [%0], %1;" ::"l"(global(word)), "l"(value)
                 : "memory");
  }

  [[nodiscard]] EPT_DEVICE static std::uint32_t acquire(const std::uint32_t* word) noexcept {
    std::uint32_t v = 0;
    asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(v) : "l"(global(word)) : "memory");
    return v;
  }
  [[nodiscard]] EPT_DEVICE static std::uint64_t acquire(const std::uint64_t* word) noexcept {
    return device_memory::signal_acquire(word);
  }
  [[nodiscard]] EPT_DEVICE static std::uint32_t load(const std::uint32_t* word) noexcept {
    return device_memory::load(word);
  }
  EPT_DEVICE static void relax() noexcept { device_memory::relax(); }
  [[nodiscard]] EPT_DEVICE static std::uint64_t now_ns() noexcept {
    return device_memory::timer_ns();
  }

 private:
  [[nodiscard]] EPT_DEVICE static std::size_t global(const void* pointer) noexcept {
    return __cvta_generic_to_global(pointer);
  }
};

}  // namespace eptransport::gdaki
