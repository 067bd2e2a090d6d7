// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The lane protocol through relays, written as programs for the explorer.
///
/// Besides what protocol.hpp names, with q the rail of s in another node and p the parity:
///
///     relay<p>.s>q      what s sent for q's node           RD<p>.s>q    its signal
///     partials.d        what d keeps for relays of its node; written locally, read by them
///     node.d>q          d is ready for combine; what d stored for q's own rows comes with it
///     returns.q, combine.q>s   the sum of a node's partials, returned to s
///
/// A relay stores rows and header itself, so that what it reads is read when it sends: its zone is
/// open while it does. D messages of other nodes are counted by relays, the own zone's included.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "programs.hpp"
#include "protocol.hpp"

namespace eptransport::model {

/// The rules that a test may break; the defaults are the protocol.
struct relay_rules {
  bool relay_zones_by_parity = true;
  bool relay_signals_by_parity = true;
  bool forwards_before_own = true;  ///< dispatch: relay first, then wait for one's own rows
  bool returns_before_own = true;   ///< combine: reduce and return, then wait for one's own
  bool gates_on_all = true;  ///< D D D: on all D messages, not only on those that it passes on
  bool exchange_before_lone_combine = true;
};

/// Appends the steps of each call to the programs of a `program_set`, one process per rank.
class relay_lane {
 public:
  /// @param nodes  node of each rank
  relay_lane(std::vector<int> nodes, const relay_rules& rules, row_counts rows)
      : nodes_(std::move(nodes)),
        rules_(rules),
        rows_(std::move(rows)),
        programs_(ranks()),
        open_(nodes_.size()) {}

  int ranks() const { return static_cast<int>(nodes_.size()); }
  const program_set& programs() const { return programs_; }

  /// D = dispatch, C = combine with the last handle; the same on all ranks.
  void run(std::string_view script) {
    for (int rank = 0; rank < ranks(); ++rank) {
      int epoch = 0;
      int handle = -1;
      int combines = 0;
      bool opened = false;
      if (!rules_.gates_on_all) {
        run_ahead(rank, static_cast<int>(script.size()));
        continue;
      }
      for (const char letter : script) {
        if (letter == 'D') dispatch(rank, epoch++, ++handle);
        if (letter == 'C') {
          if (!opened && rules_.exchange_before_lone_combine) dispatch(rank, epoch++, -1);
          combine(rank, handle, combines++);
        }
        opened = letter != 'C';
      }
      close_output(rank);
    }
  }

 private:
  void dispatch(int rank, int epoch, int handle) {
    send(rank, epoch, handle);
    if (rules_.forwards_before_own) forward(rank, epoch, handle);
    receive(rank, epoch, handle);
    if (!rules_.forwards_before_own) forward(rank, epoch, handle);
  }

  /// Dispatches only; the next one is sent when what is to be passed on has been.
  void run_ahead(int rank, int calls) {
    send(rank, 0, 0);
    for (int epoch = 0; epoch < calls; ++epoch) {
      forward(rank, epoch, epoch);
      if (epoch + 1 < calls) send(rank, epoch + 1, epoch + 1);
      receive(rank, epoch, epoch);
    }
    close_output(rank);
  }

  void send(int rank, int epoch, int handle) {
    close_output(rank);
    std::string source;  // left out where it would be what breaks first
    if (rules_.gates_on_all) {
      source = "x_staging" + std::to_string(epoch % 2) + "." + name(rank);
      programs_.write(rank, source, epoch);
    }
    for (int peer = 0; peer < ranks(); ++peer) {
      if (relays_for(peer, rank)) {
        programs_.put(
            rank,
            {{relay_zone(epoch, rank, peer)}, relay_signal(epoch, rank, peer), epoch, source});
      }
    }
    for (int peer = 0; peer < ranks(); ++peer) {
      if (peer != rank && near(rank, peer)) put_d(rank, epoch, handle, rank, peer);
    }
  }

  void receive(int rank, int epoch, int handle) {
    for (int peer = 0; peer < ranks(); ++peer) {
      if (peer == rank) continue;
      programs_.wait(rank, d_signal(epoch, peer, rank), 1);
      read(rank, epoch, handle, peer);
    }
  }

  /// Stores a D message of `source`, and its row if there is one.
  void put_d(int rank, int epoch, int handle, int source, int to) {
    std::vector<std::string> places{zone(epoch, source, to)};
    if (rows(handle, source, to) > 0) places.push_back(zone(epoch, source, to) + "[0]");
    programs_.put(rank, {places, d_signal(epoch, source, to), epoch});
  }

  void forward(int rank, int epoch, int handle) {
    for (int source = 0; source < ranks(); ++source) {
      if (!relays_for(rank, source)) continue;
      programs_.wait(rank, relay_signal(epoch, source, rank), 1);
      programs_.open(rank, relay_zone(epoch, source, rank), epoch);
    }
    for (int source = 0; source < ranks(); ++source) {
      if (!relays_for(rank, source)) continue;
      for (int to = 0; to < ranks(); ++to) {
        if (near(rank, to)) put_d(rank, epoch, handle, source, to);
      }
    }
    for (int source = 0; source < ranks(); ++source) {
      if (relays_for(rank, source)) {
        programs_.close(rank, relay_zone(epoch, source, rank), epoch);
      }
    }
  }

  void read(int rank, int epoch, int handle, int source) {
    std::vector<std::string> places{zone(epoch, source, rank)};
    if (rows(handle, source, rank) > 0) places.push_back(zone(epoch, source, rank) + "[0]");
    for (const std::string& place : places) {
      programs_.open(rank, place, epoch);
      open_[static_cast<std::size_t>(rank)].emplace_back(place, epoch);
    }
  }

  void combine(int rank, int handle, int number) {
    programs_.write(rank, "partials." + name(rank), number);
    for (int peer = 0; peer < ranks(); ++peer) {
      if (peer == rank || !near(rank, peer)) continue;
      std::vector<std::string> places;
      if (rows(handle, peer, rank) > 0) places.push_back(combine_row(rank, peer));
      programs_.put(rank, {places, node_signal(rank, peer), number});
    }
    if (rules_.returns_before_own) give_back(rank, handle, number);
    std::vector<std::string> opened;
    for (int peer = 0; peer < ranks(); ++peer) {
      const bool returns = relays_for(peer, rank) && rows_to_node(handle, rank, peer) > 0;
      if (returns) {
        programs_.wait(rank, "combine" + pair(peer, rank), 1);
        opened.push_back(combine_row(peer, rank));
      }
    }
    if (!rules_.returns_before_own) give_back(rank, handle, number);
    for (int peer = 0; peer < ranks(); ++peer) {
      if (peer != rank && near(rank, peer) && rows(handle, rank, peer) > 0) {
        opened.push_back(combine_row(peer, rank));
      }
    }
    for (const std::string& place : opened) programs_.open(rank, place, number);
    for (const std::string& place : opened) programs_.close(rank, place, number);
  }

  /// The relay's part of a combine.
  void give_back(int rank, int handle, int number) {
    for (int peer = 0; peer < ranks(); ++peer) {
      if (peer != rank && near(rank, peer)) programs_.wait(rank, node_signal(peer, rank), 1);
    }
    std::vector<int> sources;
    for (int source = 0; source < ranks(); ++source) {
      if (relays_for(rank, source) && rows_to_node(handle, source, rank) > 0) {
        sources.push_back(source);
      }
    }
    std::vector<std::string> opened;
    for (int peer = 0; peer < ranks(); ++peer) {
      bool needed = false;
      for (const int source : sources) needed = needed || rows(handle, source, peer) > 0;
      if (peer != rank && near(rank, peer) && needed) opened.push_back("partials." + name(peer));
    }
    for (const std::string& place : opened) programs_.open(rank, place, number);
    if (!sources.empty()) programs_.write(rank, "returns." + name(rank), number);
    for (const int source : sources) {
      programs_.put(rank, {{combine_row(rank, source)},
                           "combine" + pair(rank, source),
                           number,
                           "returns." + name(rank)});
    }
    for (const std::string& place : opened) programs_.close(rank, place, number);
  }

  void close_output(int rank) {
    auto& mine = open_[static_cast<std::size_t>(rank)];
    for (const auto& [place, tag] : mine) programs_.close(rank, place, tag);
    mine.clear();
  }

  int rows(int handle, int source, int to) const {
    if (handle < 0 || source == to) return 0;
    return rows_[static_cast<std::size_t>(handle)][static_cast<std::size_t>(source)]
                [static_cast<std::size_t>(to)];
  }
  int rows_to_node(int handle, int source, int member) const {
    int sum = 0;
    for (int to = 0; to < ranks(); ++to) sum += near(to, member) ? rows(handle, source, to) : 0;
    return sum;
  }
  bool near(int a, int b) const {
    return nodes_[static_cast<std::size_t>(a)] == nodes_[static_cast<std::size_t>(b)];
  }
  int local(int rank) const {
    int index = 0;
    for (int below = 0; below < rank; ++below) index += near(below, rank) ? 1 : 0;
    return index;
  }
  int size(int rank) const {
    int count = 0;
    for (int other = 0; other < ranks(); ++other) count += near(other, rank) ? 1 : 0;
    return count;
  }
  /// True if `relay` passes on what `source`, of another node, sends.
  bool relays_for(int relay, int source) const {
    return !near(relay, source) && local(source) % size(relay) == local(relay);
  }

  static std::string name(int rank) { return std::to_string(rank); }
  static std::string pair(int a, int b) { return "." + name(a) + ">" + name(b); }
  static std::string parity(int epoch, bool doubled) { return doubled ? name(epoch % 2) : ""; }
  static std::string zone(int epoch, int s, int d) {
    return "zone" + parity(epoch, true) + pair(s, d);
  }
  static std::string d_signal(int epoch, int s, int d) {
    return "D" + parity(epoch, true) + pair(s, d);
  }
  std::string relay_zone(int epoch, int s, int q) const {
    return "relay" + parity(epoch, rules_.relay_zones_by_parity) + pair(s, q);
  }
  std::string relay_signal(int epoch, int s, int q) const {
    return "RD" + parity(epoch, rules_.relay_signals_by_parity) + pair(s, q);
  }
  static std::string node_signal(int d, int q) { return "node" + pair(d, q); }
  static std::string combine_row(int from, int to) { return "combine_row" + pair(from, to); }

  std::vector<int> nodes_;
  relay_rules rules_;
  row_counts rows_;
  program_set programs_;
  std::vector<std::vector<std::pair<std::string, int>>> open_;  // (location, tag) being read
};

}  // namespace eptransport::model
