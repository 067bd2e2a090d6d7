// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief How a rank that cannot go on stops the others, written with the steps of `lane`.
#pragma once

#include <cstddef>
#include <limits>
#include <vector>

#include "protocol.hpp"

namespace eptransport::model {

/// The moment at which a rank finds that it cannot go on.
enum class fault_moment { dispatch_recv, before_combine, after_combine };

/// One rank's fault in one epoch.
struct fault {
  int rank = 0;
  int epoch = 0;
  fault_moment moment = fault_moment::dispatch_recv;
  unsigned heard = 0;  ///< dispatch_recv: bit s says that the D message of s has been received
};

/// Epochs of dispatch (and combine) in which one rank fails and the news spreads.
///
/// A rank that fails in epoch e sends stop headers in the D zone of e+1 to the peers whose D of e
/// it has received, and ends. A peer finds the header in the place of the rank's D message, in
/// dispatch(e+1) or while it waits for the rank's rows in combine(e), and fails in turn. A rank
/// that waits for a peer that has ended, and that was not told, times out, which is a failure too;
/// its end comes at any time, since the programs contain no clock. Signals are per source: a summed
/// word does not say whose header may be read before all have come.
class faulty_run {
 public:
  /// @param only_heard  false breaks the rule: all peers are told, whatever has been received
  faulty_run(lane& on, const fault& first, bool only_heard)
      : lane_(on),
        first_(first),
        only_heard_(only_heard),
        stop_epoch_(static_cast<std::size_t>(on.ranks()), std::numeric_limits<int>::max()),
        told_(static_cast<std::size_t>(on.ranks())) {}

  /// Handle e is the one of epoch e; each dispatch has its combine, or none has.
  void run(int epochs, bool combines) {
    for (int epoch = 0; epoch < epochs; ++epoch) {
      for (int r = 0; r < lane_.ranks(); ++r) {
        if (stop_epoch(r) > epoch) lane_.dispatch_send(r, {epoch, epoch});
      }
      for (int r = 0; r < lane_.ranks(); ++r) {
        if (stop_epoch(r) > epoch) receive(r, epoch);
      }
      if (combines) combine(epoch);
    }
    for (int r = 0; r < lane_.ranks(); ++r) lane_.close_output(r);
  }

 private:
  int stop_epoch(int rank) const { return stop_epoch_[static_cast<std::size_t>(rank)]; }
  static unsigned bit(int rank) { return 1U << static_cast<unsigned>(rank); }
  bool was_told(int rank, int by) const {
    return (told_[static_cast<std::size_t>(by)] & bit(rank)) != 0;
  }
  bool fails_now(int rank, int epoch, fault_moment moment) const {
    return rank == first_.rank && epoch == first_.epoch && moment == first_.moment;
  }

  void receive(int rank, int epoch) {
    const bool fails = fails_now(rank, epoch, fault_moment::dispatch_recv);
    const int ended = first_ended(epoch);
    if (!fails && ended < 0) return lane_.dispatch_recv(rank, {epoch, epoch});
    const unsigned heard = fails ? first_.heard : bit(ended) - 1;
    unsigned alive = 0;
    for (int source = 0; source < lane_.ranks(); ++source) {
      if (source == rank || (heard & bit(source)) == 0 || stop_epoch(source) <= epoch) continue;
      lane_.await_d(rank, source, {epoch, epoch});
      alive |= bit(source);
    }
    if (!fails && stop_epoch(ended) == epoch && was_told(rank, ended)) {
      lane_.receive_stop(rank, ended, epoch);
    }
    fail(rank, epoch, alive);
  }

  /// A rank that sends a stop header or nothing in the place of its D message; -1 if there is none.
  int first_ended(int epoch) const {
    for (int r = 0; r < lane_.ranks(); ++r) {
      if (stop_epoch(r) <= epoch) return r;
    }
    return -1;
  }

  void combine(int epoch) {
    const unsigned everybody = bit(lane_.ranks()) - 1;
    unsigned returned = 0;  // ranks that have sent their rows back
    for (int r = 0; r < lane_.ranks(); ++r) {
      if (stop_epoch(r) <= epoch + 1) continue;
      if (fails_now(r, epoch, fault_moment::before_combine)) {
        fail(r, epoch, everybody);
      } else {
        lane_.combine_send(r, epoch, epoch);
        returned |= bit(r);
      }
    }
    for (int r = 0; r < lane_.ranks(); ++r) {
      if (stop_epoch(r) <= epoch + 1) continue;
      const int missing = first_missing(r, epoch, returned);
      if (missing < 0 && !fails_now(r, epoch, fault_moment::after_combine)) {
        lane_.combine_recv(r, epoch, epoch);
        continue;
      }
      if (missing >= 0 && was_told(r, missing)) lane_.receive_stop(r, missing, epoch + 1);
      fail(r, epoch, everybody);
    }
  }

  /// A peer that has rows of this rank and does not return them; -1 if there is none.
  int first_missing(int rank, int epoch, unsigned returned) const {
    for (int peer = 0; peer < lane_.ranks(); ++peer) {
      if (peer != rank && lane_.rows(epoch, rank, peer) > 0 && (returned & bit(peer)) == 0) {
        return peer;
      }
    }
    return -1;
  }

  void fail(int rank, int epoch, unsigned heard) {
    lane_.close_output(rank);
    stop_epoch_[static_cast<std::size_t>(rank)] = epoch + 1;
    for (int peer = 0; peer < lane_.ranks(); ++peer) {
      if (peer == rank || (only_heard_ && (heard & bit(peer)) == 0)) continue;
      told_[static_cast<std::size_t>(rank)] |= bit(peer);
      lane_.send_stop(rank, peer, epoch + 1);
    }
  }

  lane& lane_;
  fault first_;
  bool only_heard_;
  std::vector<int> stop_epoch_;  // the epoch whose D message is a stop header, or is missing
  std::vector<unsigned> told_;   // told_[r]: the peers that r sent a stop header to
};

}  // namespace eptransport::model
