// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The record that a kernel leaves when it cannot go on, and its translation for people.
#pragma once

#include <eptransport/core/config.hpp>
#include <eptransport/core/result.hpp>

#include <cstdint>
#include <string>

namespace eptransport {

/// Which part of a call the fault was found in.
enum class stage : std::uint32_t {
  none,
  create,         ///< the exchange at group construction
  dispatch_send,  ///< routing and sending rows
  dispatch_recv,  ///< waiting for D messages
  rows,           ///< waiting for rows that were announced
  combine_send,
  combine_recv,
};

/// What kind of fault it is.
enum class fault_kind : std::uint32_t {
  none,
  expired,           ///< a wait ended at its deadline: `expected`, `seen` are signal values
  transport_failed,  ///< the wire reported an error
  peer_stopped,      ///< `peer` told us that it cannot go on; `cause`, `culprit` are its words
  mismatch,          ///< `peer`'s header disagrees: `expected` ours, `seen` theirs
  too_many_tokens,   ///< `expected` = the maximum, `seen` = the tokens of this call
  capacity,          ///< an output is too small: `expected` = its rows, `seen` = rows needed
  bad_index,         ///< `seen` = the index, `expected` = experts, `channel` unused
  misuse,            ///< calls out of order; `expected`, `seen` are lane phases
  refused,           ///< the host refused this rank's arguments before the launch
};

/// One fault, as the kernel wrote it. Trivially copyable; lives in device memory.
struct fault_record {
  fault_kind kind = fault_kind::none;
  stage where = stage::none;
  std::int32_t rank = -1;     ///< the rank that found it
  std::int32_t peer = -1;     ///< the rank it concerns, -1 if none or not known
  std::int32_t channel = -1;  ///< -1 if none
  std::int32_t signal = -1;   ///< index of the signal word, -1 if none
  std::int32_t expert = -1;   ///< `capacity`: local expert that is full, -1 = all rows of a rank
  std::uint64_t expected = 0;
  std::uint64_t seen = 0;
  std::uint64_t epoch = 0;              ///< of the lane
  fault_kind cause = fault_kind::none;  ///< `peer_stopped`: why the peer stopped
  std::int32_t culprit = -1;  ///< `peer_stopped`: the rank it names; `expired`: the relay between
};

/// The name of a stage, for messages.
[[nodiscard]] inline const char* to_string(stage where) noexcept {
  switch (where) {
    case stage::none:
      return "none";
    case stage::create:
      return "create";
    case stage::dispatch_send:
      return "dispatch_send";
    case stage::dispatch_recv:
      return "dispatch_recv";
    case stage::rows:
      return "rows";
    case stage::combine_send:
      return "combine_send";
    case stage::combine_recv:
      return "combine_recv";
  }
  return "unknown";
}

/// The name of a fault kind, for messages.
[[nodiscard]] inline const char* to_string(fault_kind kind) noexcept {
  switch (kind) {
    case fault_kind::none:
      return "none";
    case fault_kind::expired:
      return "deadline passed";
    case fault_kind::transport_failed:
      return "the transport failed";
    case fault_kind::peer_stopped:
      return "a peer stopped";
    case fault_kind::mismatch:
      return "headers disagree";
    case fault_kind::too_many_tokens:
      return "too many tokens";
    case fault_kind::capacity:
      return "output too small";
    case fault_kind::bad_index:
      return "expert index out of range";
    case fault_kind::misuse:
      return "calls out of order";
    case fault_kind::refused:
      return "arguments refused";
  }
  return "unknown";
}

/// The error code that a fault becomes on the host.
[[nodiscard]] inline errc to_errc(fault_kind kind) noexcept {
  switch (kind) {
    case fault_kind::expired:
      return errc::timed_out;
    case fault_kind::peer_stopped:
      return errc::peer_stopped;
    case fault_kind::mismatch:
      return errc::mismatch;
    case fault_kind::too_many_tokens:
    case fault_kind::capacity:
      return errc::capacity;
    case fault_kind::bad_index:
      return errc::bad_index;
    case fault_kind::misuse:
      return errc::misuse;
    case fault_kind::refused:
      return errc::invalid_argument;
    case fault_kind::none:
    case fault_kind::transport_failed:
      break;
  }
  return errc::transport_failed;
}

/// One line that a person can act on.
[[nodiscard]] inline std::string describe(const fault_record& f) {
  const auto number = [](auto value) { return std::to_string(value); };
  std::string text = "rank " + number(f.rank) + ", " + to_string(f.where) + ", epoch " +
                     number(f.epoch) + ": " + to_string(f.kind);
  if (f.peer >= 0) text += ", peer " + number(f.peer);
  switch (f.kind) {
    case fault_kind::expired:
      text += ", signal " + number(f.signal) + " expected " + number(f.expected) + " seen " +
              number(f.seen);
      if (f.culprit >= 0) text += ", through relay rank " + number(f.culprit);
      break;
    case fault_kind::peer_stopped:
      text += std::string(" because of: ") + to_string(f.cause) + " (" + number(f.seen) +
              " against " + number(f.expected) + ")";
      if (f.culprit >= 0 && f.culprit != f.peer) text += ", it names rank " + number(f.culprit);
      break;
    case fault_kind::too_many_tokens:
      text += ", " + number(f.seen) + " tokens, at most " + number(f.expected) +
              " were agreed (raise group_shape::max_tokens on every rank)";
      break;
    case fault_kind::capacity:
      if (f.expert >= 0) text += ", local expert " + number(f.expert);
      text += ", " + number(f.seen) + " rows needed, room for " + number(f.expected);
      break;
    case fault_kind::mismatch:
      if (f.where == stage::combine_recv) {
        text += ": of the two ranks one combines by push and one by pull; choose alike";
        break;
      }
      [[fallthrough]];
    default:
      text += ", expected " + number(f.expected) + " seen " + number(f.seen);
      break;
  }
  return text;
}

/// A fault as a `failure`.
[[nodiscard]] inline failure to_failure(const fault_record& f, const char* operation) {
  return {to_errc(f.kind), operation, describe(f)};
}

}  // namespace eptransport
