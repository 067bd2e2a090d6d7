// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief What lies where: message headers, slots, zones of the window, signal words, handles.
///
/// Window of a group, from its offset:
///
///     hello   [R]         64 bytes from each rank, once, at construction
///     then per lane
///     landing [2][R]  zone = header (64) + max_tokens slots, or + counts; by parity of the epoch
///     rows    [C]     counted rows, in rank-major order (or wherever the call says)
///     sides   [C]     what goes with them: scales, token, choices
///     combine [K]     rows that come back, by returning rank, then slot
///     staging [2]     sources of D messages and slotted rows, by parity of the epoch
///     counted_staging sources of counted rows and sides
///     returns         sources of combine puts
///     ready   [2][R]  64 bytes from each rank: where its y lies, for pull; and their sources
///     stop    [R]     64 bytes: sources of stop messages and of the hello
///
/// A slot is | row | scales | token | k x (expert, weight) |, each part aligned to 16; a side is a
/// slot without its row. A D message is a prefix of a zone: of slots, or of counts (this rank's
/// rows for each rank, then its choices per expert). Nothing moves with the arguments of a call
/// (INV-5).
///
/// One staging suffices for counted rows and for returns: both follow an exchange, which proves
/// that the former content was read (INV-3).
#pragma once

#include <eptransport/core/config.hpp>
#include <eptransport/core/fault.hpp>
#include <eptransport/core/thread_group.hpp>
#include <eptransport/kernels/call.hpp>
#include <eptransport/kernels/relay_layout.hpp>

#include <cstddef>
#include <cstdint>

namespace eptransport {

/// First 64 bytes of every D message, and of the hello at construction.
struct message_header {
  std::uint64_t stamp = 0;   ///< `stamp_of` the sender's epoch; 0 = nothing ever landed here
  std::uint64_t config = 0;  ///< `geometry::config_of` the mode
  std::int64_t rows = 0;     ///< rows for the receiver in this dispatch
  std::int64_t more = 0;     ///< slotted: further puts of it, counted on the row signal
  fault_kind stop = fault_kind::none;  ///< not none: the sender cannot go on, and why
  std::int32_t culprit = -1;           ///< the rank that it names
  std::uint64_t limit = 0;  ///< stop: `expected` of the fault; counted: rows the sender can take
  std::uint64_t value = 0;  ///< stop: `seen`; counted, ready: an offset in the sender's window
  std::uint64_t node_rows = 0;  ///< per_node: see `relay_bases`, `announce_node`
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
  std::uint32_t received_valid = 0;                    ///< dispatch_recv has run
  combine_transfer transfer = combine_transfer::push;  ///< of the last combine_send
  dispatch_input in{};  ///< of the dispatch: its second half reads it
};
inline constexpr std::uint64_t handle_header_bytes = 192;

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
  std::uint64_t side_bytes = 0;
  std::uint64_t return_bytes = 0;   ///< of a combine row, its choice values included
  std::uint64_t return_values = 0;  ///< offset of the choice values in it; 0 = none
  std::uint64_t value_bytes = 0;    ///< of a row of y or out
  std::uint64_t hello = 0;          ///< offsets from the start of the window
  std::uint64_t landing = 0;
  std::uint64_t rows = 0;
  std::uint64_t sides = 0;
  std::uint64_t combine = 0;
  std::uint64_t staging = 0;
  std::uint64_t staging_bytes = 0;   ///< of one parity
  std::uint64_t message_stride = 0;  ///< of the staged D messages
  std::uint64_t staged_rows = 0;
  std::uint64_t staged_sides = 0;
  std::uint64_t returns = 0;
  std::uint64_t ready = 0;
  std::uint64_t stop = 0;
  std::uint64_t lane_bytes = 0;
  std::int64_t counted_tokens = 0;
  std::int64_t counted_rows = 0;         ///< rows of the lane's own counted zone
  std::int64_t rows_per_message = 0;     ///< slots that fit one put after a header
  std::int64_t counted_per_message = 0;  ///< counted rows that fit one put
  std::int64_t sides_per_message = 0;    ///< sides that fit one put
  std::int64_t returns_per_message = 0;  ///< combine rows that fit one put
  std::uint32_t hello_signal = 0;
  std::uint32_t first_signal = 0;  ///< of this lane
  std::uint32_t sources = 0;       ///< signal words per kind: R, or 1 when summed
  std::uint64_t config = 0;
  message_shape message = message_shape::per_peer;
  index_checks checks = index_checks::checked;
  quantisation quantise = quantisation::none;
  overflow_policy overflow = overflow_policy::error;
  element values = element::bf16;
  element wire = element::bf16;
  const expert_place* placement = nullptr;  ///< [experts], memory that kernels reach
  relay_layout relay{};

  /// True if `peer` is of the own node, in per_node.
  [[nodiscard]] EPT_HOST_DEVICE bool near(std::int32_t peer) const noexcept {
    return relay.table.node[peer] == relay.table.node[rank];
  }
  /// True if rows go to `peer` through pointers.
  [[nodiscard]] EPT_HOST_DEVICE bool stores(std::int32_t peer) const noexcept {
    return message == message_shape::direct || (message == message_shape::per_node && near(peer));
  }
  /// True if a relay stands between this rank and `peer`.
  [[nodiscard]] EPT_HOST_DEVICE bool relayed(std::int32_t peer) const noexcept {
    return message == message_shape::per_node && !near(peer);
  }

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
  /// Counts counted rows and sides.
  [[nodiscard]] EPT_HOST_DEVICE std::uint32_t counted_signal(std::int32_t source) const noexcept {
    return first_signal + 5 * sources + word(source);
  }
  /// Counts combine messages.
  [[nodiscard]] EPT_HOST_DEVICE std::uint32_t combine_signal(std::int32_t source) const noexcept {
    return first_signal + 4 * sources + word(source);
  }
  /// Counts messages to relays of one parity.
  [[nodiscard]] EPT_HOST_DEVICE std::uint32_t relay_signal(std::uint64_t epoch,
                                                           std::int32_t source) const noexcept {
    return first_signal + (6 + static_cast<std::uint32_t>(epoch & 1u)) * sources + word(source);
  }
  /// Counts what ranks of the node have ready for a combine: one each.
  [[nodiscard]] EPT_HOST_DEVICE std::uint32_t node_signal(std::int32_t source) const noexcept {
    return first_signal + 8 * sources + word(source);
  }
  /// Counts counted rows on their way through a relay.
  [[nodiscard]] EPT_HOST_DEVICE std::uint32_t relay_rows_signal(
      std::int32_t source) const noexcept {
    return first_signal + 9 * sources + word(source);
  }
  /// Kinds of words: 2 D, 2 slotted rows, 1 combine, 1 counted rows; with relays 2 messages to them
  /// (what exceeds one counts as slotted rows), 1 node, 1 counted rows.
  [[nodiscard]] EPT_HOST_DEVICE static std::uint32_t word_kinds(message_shape shape) noexcept {
    return shape == message_shape::per_node ? 10 : 6;
  }
  /// Signal words of one lane: of each kind one per source, or one.
  [[nodiscard]] EPT_HOST_DEVICE std::uint32_t lane_signals() const noexcept {
    return word_kinds(message) * sources;
  }
  /// Rows that a rank can receive in one call.
  [[nodiscard]] EPT_HOST_DEVICE std::int64_t most_rows() const noexcept {
    const std::int64_t slotted = max_tokens * ranks;
    return slotted > counted_rows ? slotted : counted_rows;
  }
  /// What a header of that mode carries: ranks that choose different modes find out.
  [[nodiscard]] EPT_HOST_DEVICE std::uint64_t config_of(dispatch_mode mode,
                                                        bool cached = false) const noexcept {
    const bool counted = mode == dispatch_mode::counted;
    return config + (counted ? 1 : 0) + (counted && cached ? 2 : 0);  // a cached one has no counts
  }
  /// Bytes of a counted D message.
  [[nodiscard]] EPT_HOST_DEVICE std::uint64_t counts_bytes() const noexcept {
    return sizeof(message_header) +
           static_cast<std::uint64_t>(ranks + experts) * sizeof(std::int64_t);
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
  /// Row `index` of the combine zone; offset in the window.
  [[nodiscard]] EPT_HOST_DEVICE std::uint64_t return_row(std::int64_t index) const noexcept {
    return combine + static_cast<std::uint64_t>(index) * return_bytes;
  }
  /// Source of the combine row for received row `index`; offset in the window.
  [[nodiscard]] EPT_HOST_DEVICE std::uint64_t staged_return(std::int64_t index) const noexcept {
    return returns + static_cast<std::uint64_t>(index) * return_bytes;
  }
  /// Ready message of `rank`; from R on, its sources by destination. Offset in the window.
  [[nodiscard]] EPT_HOST_DEVICE std::uint64_t ready_zone(std::int32_t index) const noexcept {
    return ready + static_cast<std::uint64_t>(index) * sizeof(message_header);
  }
  /// Source of the D message (per_row, direct: of the header alone) for `to`; offset in the window.
  [[nodiscard]] EPT_HOST_DEVICE std::uint64_t staged_message(std::uint64_t epoch,
                                                             std::int32_t to) const noexcept {
    return staging + (epoch & 1u) * staging_bytes + static_cast<std::uint64_t>(to) * message_stride;
  }
  /// per_row: source of a token's slot, one for all its destinations; offset in the window.
  [[nodiscard]] EPT_HOST_DEVICE std::uint64_t staged_token(std::uint64_t epoch,
                                                           std::int64_t token) const noexcept {
    return staging + (epoch & 1u) * staging_bytes +
           static_cast<std::uint64_t>(ranks) * message_stride +
           static_cast<std::uint64_t>(token) * slot_bytes;
  }
  /// Messages that return `count` combine rows to one rank.
  [[nodiscard]] EPT_HOST_DEVICE std::int64_t return_messages(std::int64_t count) const noexcept {
    if (message == message_shape::per_row) return count;
    if (message == message_shape::direct) return count > 0 ? 1 : 0;
    return pieces(count, returns_per_message);
  }
  /// Messages that carry `count` counted rows and their sides to one rank.
  [[nodiscard]] EPT_HOST_DEVICE std::int64_t counted_messages(std::int64_t count) const noexcept {
    if (message == message_shape::direct || message == message_shape::per_node) {
      return count > 0 ? 1 : 0;
    }
    return pieces(count, sides_per_message) +
           (message == message_shape::per_row ? count : pieces(count, counted_per_message));
  }
  /// How many parts of at most `each` make `count`.
  [[nodiscard]] EPT_HOST_DEVICE static std::int64_t pieces(std::int64_t count,
                                                           std::int64_t each) noexcept {
    return count / each + (count % each != 0 ? 1 : 0);
  }
};

/// The parts of a handle.
struct handle_parts {
  handle_header* header;
  std::int64_t* sent;         ///< [R] rows to each rank, dropped ones left out
  std::int64_t* received;     ///< [R] rows from each rank
  std::int64_t* sent_base;    ///< [R] first row of each rank's returns in the own combine zone
  std::int64_t* return_base;  ///< [R] first row of this rank's returns in each rank's combine zone
  std::int64_t* place_base;   ///< [R] counted: first of this rank's rows at each rank
  route_entry* routes;        ///< [T, k]
  place_entry* places;        ///< [received rows, k], rank-major; expert layouts only
  // per_node
  std::int64_t* node_sent;   ///< [N] rows to each other node
  std::int64_t* relay_rows;  ///< [S] rows of each relayed source
  std::int64_t* relay_base;  ///< [S] first of their returns in the source's combine zone
  route_entry* returned;     ///< [T, k] who returns a row: ranks of the node, rails of others
  route_entry* relayed;      ///< [S, T, k] a relayed row's ranks, and where they put its partial

  /// 64-bit words per rank before the routes; even, so that what follows is aligned to 16.
  static constexpr std::uint64_t arrays = 6;

  [[nodiscard]] EPT_HOST_DEVICE static handle_parts of(std::byte* memory,
                                                       const geometry& geo) noexcept {
    const std::int64_t tokens =
        geo.max_tokens > geo.counted_tokens ? geo.max_tokens : geo.counted_tokens;
    auto* words = reinterpret_cast<std::int64_t*>(memory + handle_header_bytes);
    auto* routes =
        reinterpret_cast<route_entry*>(words + arrays * static_cast<std::uint64_t>(geo.ranks));
    auto* places = reinterpret_cast<place_entry*>(routes + tokens * geo.top_k);
    auto* node_words = reinterpret_cast<std::int64_t*>(places + geo.most_rows() * geo.top_k);
    auto* returned = reinterpret_cast<route_entry*>(node_words + relay_words(geo));
    return {reinterpret_cast<handle_header*>(memory),
            words,
            words + geo.ranks,
            words + 2 * geo.ranks,
            words + 3 * geo.ranks,
            words + 4 * geo.ranks,
            routes,
            places,
            node_words,
            node_words + geo.relay.table.nodes,
            node_words + geo.relay.table.nodes + geo.relay.sources,
            returned,
            returned + tokens * geo.top_k};
  }

  /// 64-bit words before `returned`; even.
  [[nodiscard]] EPT_HOST_DEVICE static std::int64_t relay_words(const geometry& geo) noexcept {
    return (geo.relay.table.nodes + 2 * std::int64_t{geo.relay.sources} + 1) / 2 * 2;
  }
};
static_assert(sizeof(handle_header) <= handle_header_bytes && sizeof(route_entry) == 16 &&
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
  std::uint64_t handle = 0;  ///< address of the handle of the last first half
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
  std::uint64_t* counted_due = nullptr;  ///< [sources] counted signals consumed so far
  std::uint64_t* relay_due = nullptr;    ///< [2][sources] node, relayed counted rows: the same
  std::int64_t* counts = nullptr;        ///< [workers][width] scratch
  std::int64_t* starts = nullptr;        ///< [workers][width] scratch
  std::int64_t* totals = nullptr;        ///< [width] scratch
  std::int64_t width = 0;                ///< columns: R + experts, + nodes in per_node
};

}  // namespace eptransport
