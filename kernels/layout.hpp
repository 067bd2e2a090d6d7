// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief What lies where: message headers, slots, zones of the window, signal words, handles.
///
/// Window of a group, from its offset:
///
///     hello   [R]         64 bytes from each rank, once, at construction
///     then per lane
///     landing [2][R]      zone = header (64) + max_tokens slots; by parity of the epoch and source
///     combine [R][T]      rows that come back, by returning rank and slot
///     staging [2]         sources of dispatch puts, by parity of the epoch
///     returns [2][R][T]   sources of combine puts, by parity of the combine
///     stop    [R]         64 bytes: sources of stop messages
///
/// A slot is | row | scales | token | k x (expert, weight) |, each part aligned to 16. A D message
/// is a prefix of a zone. Nothing moves with the arguments of a call (INV-5).
#pragma once

#include <eptransport/core/config.hpp>
#include <eptransport/core/fault.hpp>
#include <eptransport/core/thread_group.hpp>
#include <eptransport/kernels/call.hpp>

#include <cstddef>
#include <cstdint>

namespace eptransport {

/// First 64 bytes of every D message, and of the hello at construction.
struct message_header {
  std::uint64_t stamp = 0;   ///< `stamp_of` the sender's epoch; 0 = nothing ever landed here
  std::uint64_t config = 0;  ///< hash of shape and mode
  std::int64_t rows = 0;     ///< rows for the receiver in this dispatch
  std::int64_t more = 0;     ///< further puts of it, counted on the row signal
  fault_kind stop = fault_kind::none;  ///< not none: the sender cannot go on, and why
  std::int32_t culprit = -1;           ///< the rank that it names
  std::uint64_t expected = 0;          ///< the fault's numbers
  std::uint64_t seen = 0;
  std::uint64_t reserved = 0;
};
static_assert(sizeof(message_header) == 64, "a header is one 64-byte line in every backend");

/// What a header of that epoch carries.
[[nodiscard]] EPT_HOST_DEVICE constexpr std::uint64_t stamp_of(std::uint64_t epoch) noexcept {
  return epoch + 1;
}

/// One choice of a token, in a slot.
struct slot_choice {
  std::int32_t expert;  ///< global index; -1 = unused
  float weight;
};
static_assert(sizeof(slot_choice) == 8);

/// Which rank owns an expert, and as which of its own.
struct expert_place {
  std::int32_t rank;
  std::int32_t local;
};

/// One destination of a token; a token's entries ascend by rank and end with rank -1.
struct route_entry {
  std::int64_t slot;  ///< of the destination's zone for this source
  std::int32_t rank;
  std::int32_t unused;
};

/// Where a received row's copy for one choice went; position -1 = not an expert of this rank.
struct place_entry {
  std::int64_t position;  ///< output row
  float weight;
  std::int32_t unused;
};

/// First bytes of a handle.
struct handle_header {
  std::uint64_t magic = 0;  ///< `handle_magic` ^ config once a dispatch has filled it
  std::int64_t tokens = 0;
  output_layout layout = output_layout::rank_major;
  std::uint32_t received_valid = 0;  ///< dispatch_recv has run
};

inline constexpr std::uint64_t handle_magic = 0x6570'7472'616e'7301u;

/// The phases of a lane (INV-4).
enum class lane_phase : std::uint64_t { idle, dispatch_sent, dispatched, combine_sent, combined };

/// Everything about sizes and places that a kernel needs; the same on all ranks but `rank`.
struct geometry {
  std::int32_t rank = 0;
  std::int32_t ranks = 0;
  std::int32_t top_k = 0;
  std::int32_t experts = 0;
  std::int32_t local_experts = 0;
  std::int64_t max_tokens = 0;
  std::int64_t hidden = 0;
  std::uint64_t row_bytes = 0;
  std::uint64_t scale_bytes = 0;
  std::uint64_t scale_offset = 0;   ///< of the scales in a slot
  std::uint64_t choice_offset = 0;  ///< of the token index in a slot; the choices follow it
  std::uint64_t slot_bytes = 0;
  std::uint64_t zone_bytes = 0;
  std::uint64_t return_bytes = 0;  ///< of a combine row
  std::uint64_t hello = 0;         ///< offsets from the start of the window
  std::uint64_t landing = 0;
  std::uint64_t combine = 0;
  std::uint64_t staging = 0;
  std::uint64_t staging_bytes = 0;  ///< of one parity
  std::uint64_t returns = 0;
  std::uint64_t stop = 0;
  std::uint64_t lane_bytes = 0;
  std::int64_t rows_per_message = 0;     ///< slots that fit one put after a header
  std::int64_t returns_per_message = 0;  ///< combine rows that fit one put
  std::uint32_t hello_signal = 0;
  std::uint32_t first_signal = 0;  ///< of this lane
  std::uint32_t sources = 0;       ///< signal words per kind: R, or 1 when summed
  std::uint64_t config = 0;
  message_shape message = message_shape::per_peer;
  index_checks checks = index_checks::checked;
  const expert_place* placement = nullptr;  ///< [experts], memory that kernels reach

  /// The word of `source` within one kind.
  [[nodiscard]] EPT_HOST_DEVICE std::uint32_t word(std::int32_t source) const noexcept {
    return sources == 1 ? 0 : static_cast<std::uint32_t>(source);
  }
  /// Counts D messages of one parity.
  [[nodiscard]] EPT_HOST_DEVICE std::uint32_t d_signal(std::uint64_t epoch,
                                                       std::int32_t source) const noexcept {
    return first_signal + static_cast<std::uint32_t>(epoch & 1u) * sources + word(source);
  }
  /// Counts slotted rows (or further messages) of one parity.
  [[nodiscard]] EPT_HOST_DEVICE std::uint32_t row_signal(std::uint64_t epoch,
                                                         std::int32_t source) const noexcept {
    return first_signal + (2 + static_cast<std::uint32_t>(epoch & 1u)) * sources + word(source);
  }
  /// Counts combine messages.
  [[nodiscard]] EPT_HOST_DEVICE std::uint32_t combine_signal(std::int32_t source) const noexcept {
    return first_signal + 4 * sources + word(source);
  }
  /// Signal words of one lane: 2 D, 2 slotted rows, 1 combine per source, and 1 for counted rows.
  [[nodiscard]] EPT_HOST_DEVICE static std::uint32_t lane_signals(std::uint32_t sources) noexcept {
    return 5 * sources + 1;
  }

  /// Zone of `source` at every receiver, for one parity; offset in the window.
  [[nodiscard]] EPT_HOST_DEVICE std::uint64_t zone(std::uint64_t epoch,
                                                   std::int32_t source) const noexcept {
    const std::uint64_t index =
        (epoch & 1u) * static_cast<std::uint64_t>(ranks) + static_cast<std::uint64_t>(source);
    return landing + index * zone_bytes;
  }
  /// A slot within a zone.
  [[nodiscard]] EPT_HOST_DEVICE std::uint64_t slot(std::int64_t index) const noexcept {
    return sizeof(message_header) + static_cast<std::uint64_t>(index) * slot_bytes;
  }
  /// A combine row that `from` returns; offset in the window.
  [[nodiscard]] EPT_HOST_DEVICE std::uint64_t return_row(std::int32_t from,
                                                         std::int64_t index) const noexcept {
    return combine + return_index(from, index) * return_bytes;
  }
  /// Source of the combine rows for `to`; offset in the window.
  [[nodiscard]] EPT_HOST_DEVICE std::uint64_t staged_return(std::uint64_t combines, std::int32_t to,
                                                            std::int64_t index) const noexcept {
    const std::uint64_t half =
        static_cast<std::uint64_t>(ranks) * static_cast<std::uint64_t>(max_tokens) * return_bytes;
    return returns + (combines & 1u) * half + return_index(to, index) * return_bytes;
  }
  /// Source of the D message (per_row, direct: of the header alone) for `to`; offset in the window.
  [[nodiscard]] EPT_HOST_DEVICE std::uint64_t staged_message(std::uint64_t epoch,
                                                             std::int32_t to) const noexcept {
    const std::uint64_t stride =
        message == message_shape::per_peer ? zone_bytes : sizeof(message_header);
    return staging + (epoch & 1u) * staging_bytes + static_cast<std::uint64_t>(to) * stride;
  }
  /// per_row: source of a token's slot, one for all its destinations; offset in the window.
  [[nodiscard]] EPT_HOST_DEVICE std::uint64_t staged_token(std::uint64_t epoch,
                                                           std::int64_t token) const noexcept {
    return staging + (epoch & 1u) * staging_bytes +
           static_cast<std::uint64_t>(ranks) * sizeof(message_header) +
           static_cast<std::uint64_t>(token) * slot_bytes;
  }
  /// Messages that return `rows` combine rows to one rank.
  [[nodiscard]] EPT_HOST_DEVICE std::int64_t return_messages(std::int64_t rows) const noexcept {
    if (message == message_shape::per_row) return rows;
    if (message == message_shape::direct) return rows > 0 ? 1 : 0;
    return rows / returns_per_message + (rows % returns_per_message != 0 ? 1 : 0);
  }

 private:
  [[nodiscard]] EPT_HOST_DEVICE std::uint64_t return_index(std::int32_t rank_index,
                                                           std::int64_t index) const noexcept {
    return static_cast<std::uint64_t>(rank_index) * static_cast<std::uint64_t>(max_tokens) +
           static_cast<std::uint64_t>(index);
  }
};

/// The parts of a handle.
struct handle_parts {
  handle_header* header;
  route_entry* routes;     ///< [max_tokens, k]
  std::int64_t* sent;      ///< [R] rows to each rank
  std::int64_t* received;  ///< [R] rows from each rank
  place_entry* places;     ///< [R * max_tokens, k], rank-major rows; expert layouts only

  [[nodiscard]] EPT_HOST_DEVICE static handle_parts of(std::byte* memory,
                                                       const geometry& geo) noexcept {
    const auto tokens = static_cast<std::uint64_t>(geo.max_tokens);
    const auto choices = static_cast<std::uint64_t>(geo.top_k);
    const auto ranks = static_cast<std::uint64_t>(geo.ranks);
    std::byte* routes = memory + 64;
    std::byte* sent = routes + tokens * choices * sizeof(route_entry);
    std::byte* received = sent + ranks * sizeof(std::int64_t);
    std::byte* places = received + ranks * sizeof(std::int64_t);
    return {reinterpret_cast<handle_header*>(memory), reinterpret_cast<route_entry*>(routes),
            reinterpret_cast<std::int64_t*>(sent), reinterpret_cast<std::int64_t*>(received),
            reinterpret_cast<place_entry*>(places)};
  }
};
static_assert(sizeof(handle_header) <= 64 && sizeof(route_entry) == 16 &&
              sizeof(place_entry) == 16);

/// The words of a lane that live in kernel memory.
struct lane_state {
  worker_words words{};
  std::uint64_t status = 0;     ///< 0, or the `fault_kind` that poisoned the lane
  std::uint64_t epoch = 0;      ///< of the next exchange
  std::uint64_t announced = 0;  ///< D messages sent: `epoch`, or one more while one is in flight
  lane_phase phase = lane_phase::idle;
  std::uint64_t combines = 0;
  std::uint64_t timeout_ns = 0;
  std::uint64_t bad_indices = 0;
  std::uint64_t stop_sent = 0;
  fault_record fault{};
};

/// The host's copy of a fault, readable while kernels run.
struct lane_report {
  std::uint64_t status = 0;  ///< written last, with release
  fault_record fault{};
};

/// The parts of a lane's workspace.
struct lane_memory {
  lane_state* state = nullptr;
  lane_report* report = nullptr;
  std::uint64_t* base = nullptr;         ///< [lane_signals] value of each word at construction
  std::uint64_t* rows_due = nullptr;     ///< [2][sources] row signals consumed so far, by parity
  std::uint64_t* returns_due = nullptr;  ///< [sources] combine signals consumed so far
  std::int64_t* counts = nullptr;        ///< [workers][width] scratch
  std::int64_t* starts = nullptr;        ///< [workers][width] scratch
  std::int64_t* totals = nullptr;        ///< [width] scratch
  std::int64_t width = 0;                ///< max(R, local experts)
};

}  // namespace eptransport
