// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Writes completion entries as the devices do: the word that makes an entry valid last.
#pragma once

#include <eptransport/core/config.hpp>
#include <eptransport/gdaki/efa_cqe.hpp>
#include <eptransport/gdaki/emulator/setup.hpp>
#include <eptransport/gdaki/mlx5_cqe.hpp>
#include <eptransport/gdaki/segment.hpp>

#include <atomic>
#include <cstdint>

namespace eptransport::gdaki::emulator {

/// What a completion entry is to say.
struct completion_facts {
  std::uint32_t qpn = 0;
  std::uint32_t user_index = 0;  ///< mlx5
  std::uint16_t index = 0;       ///< request id or block
  std::uint8_t native = 0;       ///< operation or opcode
  std::uint8_t status = 0;
  std::uint8_t vendor_error = 0;  ///< mlx5 errors
  bool received = false;          ///< it is about a peer's request
  bool written = false;           ///< received: a write with immediate
  bool has_immediate = false;
  bool unsolicited = false;  ///< EFA
  std::uint32_t immediate = 0;
  std::uint32_t bytes = 0;
  std::uint32_t source_qpn = 0;  ///< EFA
  std::uint16_t source_handle = 0xffff;
};

/// The producer's end of a completion queue.
///
/// @par Threads  One at a time; consumers run concurrently.
class completion_writer {
 public:
  explicit completion_writer(const completion_queue_setup& setup) noexcept : setup_(setup) {}

  /// False: the consumer has not made room, nothing was written.
  [[nodiscard]] bool write(const completion_facts& facts) noexcept {
    if (setup_.format == wire::efa) {
      write_efa(facts);
    } else if (!write_mlx5(facts)) {
      return false;
    }
    ++produced_;
    return true;
  }

 private:
  [[nodiscard]] std::byte* slot() const noexcept {
    const std::uint64_t at = setup_.collapsed ? 0 : produced_ & (setup_.entries - 1);
    return setup_.ring + at * setup_.entry_bytes;
  }

  void write_efa(const completion_facts& f) noexcept {
    auto* word = reinterpret_cast<std::uint32_t*>(slot());
    const std::uint32_t phase = (produced_ & setup_.entries) == 0 ? 1 : 0;
    const std::uint32_t operation = f.received ? (f.written ? 2 : 0) : f.native;
    const std::uint32_t flags = phase | (f.received ? 2U : 1U) << 1U |
                                (f.has_immediate ? 1U << 3U : 0U) | operation << 4U |
                                (f.unsolicited ? 1U << 7U : 0U);
    word[1] = (f.qpn & 0xffffU) | (f.received ? f.bytes << 16U : 0U);
    word[2] = f.received ? f.source_handle | f.source_qpn << 16U : 0;
    word[3] = f.has_immediate ? f.immediate : 0;
    if (setup_.entry_bytes == efa::wide_completion) {
      word[4] = f.written ? f.bytes >> 16U : 0;
      for (int i = 5; i < 8; ++i) word[i] = 0;
    }
    const std::uint32_t head = f.index | std::uint32_t{f.status} << 16U | flags << 24U;
    std::atomic_ref(word[0]).store(head, std::memory_order_release);  // pairs with format::take
  }

  [[nodiscard]] bool write_mlx5(const completion_facts& f) noexcept {
    if (setup_.consumer != nullptr && !setup_.collapsed) {
      const std::uint32_t read =
          swap_bytes(std::atomic_ref(*const_cast<std::uint32_t*>(setup_.consumer))
                         .load(std::memory_order_acquire));
      if (((produced_ - read) & 0xffffffU) >= setup_.entries) return false;
    }
    std::byte* at = slot();
    auto* word = reinterpret_cast<std::uint32_t*>(at);
    word[8] = swap_bytes(f.user_index);
    word[9] = f.has_immediate ? swap_bytes(f.immediate) : 0;
    word[11] = swap_bytes(f.bytes);
    word[12] = 0;
    // A collapsed entry is overwritten while its reader looks at the syndrome.
    const std::uint32_t errors = std::uint32_t{f.vendor_error} << 16U | std::uint32_t{f.status}
                                                                            << 24U;
    std::atomic_ref(word[13]).store(f.status == 0 ? 0 : errors, std::memory_order_relaxed);
    const std::uint32_t owner = (produced_ & setup_.entries) == 0 || setup_.collapsed ? 0 : 1;
    const std::uint32_t opcode = static_cast<std::uint32_t>(mlx5_opcode(f)) << 4U | owner;
    const std::uint32_t low = swap_bytes(std::uint32_t{f.native} << 24U | (f.qpn & 0xffffffU));
    const std::uint32_t high = swap_bytes(std::uint32_t{f.index} << 16U | opcode);
    auto* tail = reinterpret_cast<std::uint64_t*>(at + mlx5::tail_offset);
    std::atomic_ref(*tail).store(std::uint64_t{high} << 32U | low,
                                 std::memory_order_release);  // pairs with format::take
    return true;
  }

  [[nodiscard]] static mlx5::cqe_opcode mlx5_opcode(const completion_facts& f) noexcept {
    if (f.status != 0) {
      return f.received ? mlx5::cqe_opcode::receive_error : mlx5::cqe_opcode::request_error;
    }
    if (!f.received) return mlx5::cqe_opcode::request;
    if (f.written) return mlx5::cqe_opcode::received_write_immediate;
    return f.has_immediate ? mlx5::cqe_opcode::received_immediate : mlx5::cqe_opcode::received;
  }

  completion_queue_setup setup_;
  std::uint64_t produced_ = 0;
};

}  // namespace eptransport::gdaki::emulator
