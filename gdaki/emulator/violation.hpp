// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The rules of the queue formats that the emulator enforces, one name each.
#pragma once

#include <eptransport/core/config.hpp>

#include <cstdint>

namespace eptransport::gdaki::emulator {

/// What is wrong with an entry or a doorbell. A real device would do something undefined.
enum class violation : std::uint8_t {
  none,
  truncated,              ///< fewer bytes than the entry needs
  unknown_operation,      ///< operation or opcode
  operation_modifier,     ///< mlx5: opmod is not 0
  stale_phase,            ///< EFA: the phase is that of the lap before
  reserved_bits,          ///< bits or bytes that must be zero
  no_descriptor_mark,     ///< EFA: ctrl1 bit 7
  not_first,              ///< EFA: ctrl2 bit 2
  not_last,               ///< EFA: ctrl2 bit 3
  not_signalled,          ///< EFA: ctrl2 bit 4
  range_count,            ///< number of local ranges, or `ds`, does not fit the operation
  inline_not_allowed,     ///< EFA: RDMA with inline data in a narrow entry, or an inline read
  inline_too_long,        ///< more inline bytes than the entry holds or `ds` covers
  length_mismatch,        ///< EFA: remote and local length differ; mlx5: an atomic not of 8 bytes
  key_bits,               ///< EFA: an lkey of more than 24 bits
  immediate_not_allowed,  ///< EFA: a read with an immediate
  wrong_index,            ///< mlx5: the control segment names another block
  wrong_queue,            ///< mlx5: the control segment or the doorbell names another queue pair
  flag_bits,              ///< mlx5: fence or completion mode that does not exist
  signature_present,      ///< mlx5: signatures are off, the byte must be 0
  mixed_segments,         ///< mlx5: inline and data segments in one entry
  empty_range,            ///< mlx5: a byte count of 0 means 2 GiB
  misaligned_atomic,      ///< mlx5: remote address not a multiple of 8
  batch_too_large,        ///< EFA: a doorbell covers more than max_batch entries
  queue_overrun,          ///< more entries outstanding than the ring has slots
  record_behind,          ///< mlx5: the doorbell came before its record was written
  doorbell_index,      ///< mlx5: the register names neither the record's index nor the last entry
  receive_entry,       ///< a receive entry that is not one
  completion_overrun,  ///< mlx5: the completion queue is full of entries not yet consumed
};

/// The name of a rule, for messages.
[[nodiscard]] inline const char* to_string(violation what) noexcept {
  switch (what) {
    case violation::none:
      return "none";
    case violation::truncated:
      return "truncated";
    case violation::unknown_operation:
      return "unknown operation";
    case violation::operation_modifier:
      return "operation modifier";
    case violation::stale_phase:
      return "stale phase";
    case violation::reserved_bits:
      return "reserved bits";
    case violation::no_descriptor_mark:
      return "no descriptor mark";
    case violation::not_first:
      return "not first";
    case violation::not_last:
      return "not last";
    case violation::not_signalled:
      return "not signalled";
    case violation::range_count:
      return "range count";
    case violation::inline_not_allowed:
      return "inline not allowed";
    case violation::inline_too_long:
      return "inline too long";
    case violation::length_mismatch:
      return "length mismatch";
    case violation::key_bits:
      return "key bits";
    case violation::immediate_not_allowed:
      return "immediate not allowed";
    case violation::wrong_index:
      return "wrong index";
    case violation::wrong_queue:
      return "wrong queue";
    case violation::flag_bits:
      return "flag bits";
    case violation::signature_present:
      return "signature present";
    case violation::mixed_segments:
      return "mixed segments";
    case violation::empty_range:
      return "empty range";
    case violation::misaligned_atomic:
      return "misaligned atomic";
    case violation::batch_too_large:
      return "batch too large";
    case violation::queue_overrun:
      return "queue overrun";
    case violation::record_behind:
      return "record behind";
    case violation::doorbell_index:
      return "doorbell index";
    case violation::receive_entry:
      return "receive entry";
    case violation::completion_overrun:
      return "completion overrun";
  }
  return "unknown";
}

/// One violation, as the emulator met it. The queue pair stops at it.
struct finding {
  violation what = violation::none;
  std::uint32_t nic = 0;
  std::uint32_t qpn = 0;
  std::uint64_t index = 0;   ///< slots fetched before it
  std::uint32_t offset = 0;  ///< byte of the entry
};

}  // namespace eptransport::gdaki::emulator
