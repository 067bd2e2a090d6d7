// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The lane protocol, written as programs for the explorer.
///
/// One lane, per rank and in this order: dispatch_send, dispatch_recv, combine_send, combine_recv.
/// Names of locations and signals, with s the source, d the destination and p the epoch's parity:
///
///     zone<p>.s>d        the header of s in d's landing zone     D<p>.s>d       its signal
///     zone<p>.s>d[i]     row i of s in d's landing zone          rows<p>.s>d    per-row signal
///     combine.s>d[i]     what s returns for d's row i            combine.>d     cumulative, summed
///     x_staging<p>.s, y_staging<p>.s                             the sources of s's puts
///
/// Tags are the epoch (dispatch) or the number of the combine. A new shape adds an enumerator and
/// its send and receive functions; the rules, the scripts and the patterns stay as they are.
#pragma once

#include <cstddef>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "programs.hpp"

namespace eptransport::model {

/// rows[h][s][d]: how many rows rank s sends to rank d with handle h.
using row_counts = std::vector<std::vector<std::vector<int>>>;

/// Row counts with a name for messages.
struct row_pattern {
  std::string name;
  row_counts rows;
};

/// How the rows of a dispatch travel: inside the D message, or as one put each.
enum class message_shape { per_peer, per_row };

/// Where the sources of puts lie. `unlimited`: never reused, so it cannot go wrong.
enum class source_staging { unlimited, single, by_parity };

/// The rules that a test may break; the defaults are the protocol.
struct lane_rules {
  message_shape shape = message_shape::per_peer;
  bool summed_signals = false;  ///< one word per lane and kind instead of one per source
  bool output_in_place = true;  ///< landing zones are read until the lane's next dispatch_send
  source_staging staging = source_staging::by_parity;
  bool flush_after_send = false;             ///< staging by parity needs none (INV-8)
  bool zones_by_parity = true;               ///< INV-3
  bool d_signals_by_parity = true;           ///< INV-3
  bool row_signals_by_parity = true;         ///< INV-3
  bool d_message_to_every_peer = true;       ///< INV-3: an empty one too
  bool receive_before_next_send = true;      ///< nothing of dispatch(e+1) before all of dispatch(e)
  bool cached_dispatch_exchanges = true;     ///< a cached handle skips the header, never the D
  bool exchange_before_lone_combine = true;  ///< a combine without its own dispatch is opened so
  int rank_of_other_shape = -1;              ///< a rank that chose its shape by itself
};

/// What a dispatch is told; `handle` -1: an empty exchange.
struct dispatch_call {
  int epoch = 0;
  int handle = -1;
  bool cached = false;
};

/// Appends the steps of each call to the programs of a `program_set`, one process per rank.
class lane {
 public:
  lane(int ranks, const lane_rules& rules, row_counts rows)
      : ranks_(ranks),
        rules_(rules),
        rows_(std::move(rows)),
        programs_(ranks),
        open_(static_cast<std::size_t>(ranks)) {}

  int ranks() const { return ranks_; }
  const program_set& programs() const { return programs_; }

  int rows(int handle, int source, int destination) const {
    if (handle < 0) return 0;
    return rows_[static_cast<std::size_t>(handle)][static_cast<std::size_t>(source)]
                [static_cast<std::size_t>(destination)];
  }

  void dispatch_send(int rank, const dispatch_call& call) {
    close_output(rank);
    const std::string source = stage(rank, "x_staging", call.epoch);
    for (int peer = 0; peer < ranks_; ++peer) {
      if (peer == rank) continue;
      if (shape_of(rank) == message_shape::per_peer) {
        send_per_peer(rank, peer, call, source);
      } else {
        send_per_row(rank, peer, call, source);
      }
    }
    if (rules_.flush_after_send) programs_.flush(rank);
  }

  void dispatch_recv(int rank, const dispatch_call& call) {
    for (int source = 0; source < ranks_; ++source) {
      await(rank, source, call);
      if (!rules_.summed_signals) read(rank, source, call);
    }
    for (int source = 0; rules_.summed_signals && source < ranks_; ++source) {
      read(rank, source, call);  // the last wait has covered all sources
    }
    if (!rules_.output_in_place) close_output(rank);
  }

  /// The part of dispatch_recv that ends with the arrival of one source's D message.
  void await_d(int rank, int source, const dispatch_call& call) {
    if (sends_d(source, rank, call)) programs_.wait(rank, d_signal(call.epoch, source, rank), 1);
  }

  void combine_send(int rank, int handle, int number) {
    const std::string source = stage(rank, "y_staging", number);
    for (int peer = 0; peer < ranks_; ++peer) {
      if (peer == rank) continue;
      for (int i = 0; i < rows(handle, peer, rank); ++i) {
        programs_.put(rank, {{combine_row(rank, peer, i)}, combine_signal(peer), number, source});
      }
    }
    if (rules_.flush_after_send) programs_.flush(rank);
  }

  void combine_recv(int rank, int handle, int number) {
    int total = 0;
    for (int peer = 0; peer < ranks_; ++peer) total += peer == rank ? 0 : rows(handle, rank, peer);
    programs_.wait(rank, combine_signal(rank), total);
    std::vector<std::string> opened;
    for (int peer = 0; peer < ranks_; ++peer) {
      for (int i = 0; peer != rank && i < rows(handle, rank, peer); ++i) {
        opened.push_back(combine_row(peer, rank, i));
        programs_.open(rank, opened.back(), number);
      }
    }
    for (const std::string& name : opened) programs_.close(rank, name, number);
  }

  /// Sends a stop header in the place of the D message of `epoch`.
  void send_stop(int rank, int peer, int epoch) {
    programs_.put(rank, {{zone(epoch, rank, peer)}, d_signal(epoch, rank, peer), stop_tag(epoch)});
  }

  void receive_stop(int rank, int source, int epoch) {
    programs_.wait(rank, d_signal(epoch, source, rank), 1);
    programs_.open(rank, zone(epoch, source, rank), stop_tag(epoch));
    programs_.close(rank, zone(epoch, source, rank), stop_tag(epoch));
  }

  /// Ends all reading of dispatch outputs by this rank.
  void close_output(int rank) {
    std::vector<std::pair<std::string, int>>& mine = open_[static_cast<std::size_t>(rank)];
    for (const auto& [name, tag] : mine) programs_.close(rank, name, tag);
    mine.clear();
  }

  /// Runs the same calls on all ranks: D = dispatch, d = dispatch with the last handle (cached),
  /// C = combine with the last handle.
  void run(std::string_view script) {
    for (int rank = 0; rank < ranks_; ++rank) {
      run_on(rank, calls_of(script));
      close_output(rank);
    }
  }

 private:
  struct step {
    bool combines = false;
    dispatch_call call;  // a combine uses its handle only
    int number = 0;      // combines: how many came before
  };

  /// The script with the exchanges that the rules insert.
  std::vector<step> calls_of(std::string_view script) const {
    std::vector<step> steps;
    int epoch = 0;
    int handle = -1;
    int combines = 0;
    bool opened = false;
    for (const char letter : script) {
      if (letter == 'D') ++handle;
      if (letter != 'C') {
        steps.push_back({false, {epoch++, handle, letter == 'd'}});
      } else {
        if (!opened && rules_.exchange_before_lone_combine) {
          steps.push_back({false, {epoch++}});
        }
        steps.push_back({true, {0, handle}, combines++});
      }
      opened = letter != 'C';
    }
    return steps;
  }

  void run_on(int rank, const std::vector<step>& steps) {
    std::size_t sent = 0;  // steps before this index have been sent
    for (std::size_t i = 0; i < steps.size(); ++i) {
      if (steps[i].combines) {
        combine_send(rank, steps[i].call.handle, steps[i].number);
        combine_recv(rank, steps[i].call.handle, steps[i].number);
        continue;
      }
      if (sent <= i) dispatch_send(rank, steps[i].call);
      sent = i + 1;
      if (!rules_.receive_before_next_send && sent < steps.size() && !steps[sent].combines) {
        dispatch_send(rank, steps[sent++].call);
      }
      dispatch_recv(rank, steps[i].call);
    }
  }

  void send_per_peer(int rank, int peer, const dispatch_call& call, const std::string& source) {
    if (!sends_d(rank, peer, call)) return;
    std::vector<std::string> to = header(rank, peer, call);
    for (int i = 0; i < rows(call.handle, rank, peer); ++i) {
      to.push_back(row(call.epoch, rank, peer, i));
    }
    programs_.put(rank, {to, d_signal(call.epoch, rank, peer), call.epoch, source});
  }

  void send_per_row(int rank, int peer, const dispatch_call& call, const std::string& source) {
    if (sends_d(rank, peer, call)) {
      programs_.put(
          rank, {header(rank, peer, call), d_signal(call.epoch, rank, peer), call.epoch, source});
    }
    for (int i = 0; i < rows(call.handle, rank, peer); ++i) {
      programs_.put(rank, {{row(call.epoch, rank, peer, i)},
                           row_signal(call.epoch, rank, peer),
                           call.epoch,
                           source});
    }
  }

  /// Waits for all that `source` sends.
  void await(int rank, int source, const dispatch_call& call) {
    if (source == rank) return;
    await_d(rank, source, call);
    if (shape_of(rank) != message_shape::per_row) return;
    programs_.wait(rank, row_signal(call.epoch, source, rank), rows(call.handle, source, rank));
  }

  void read(int rank, int source, const dispatch_call& call) {
    if (source == rank) return;
    std::vector<std::string> names;
    if (sends_d(source, rank, call)) names = header(source, rank, call);
    for (int i = 0; i < rows(call.handle, source, rank); ++i) {
      names.push_back(row(call.epoch, source, rank, i));
    }
    for (const std::string& name : names) {
      programs_.open(rank, name, call.epoch);
      open_[static_cast<std::size_t>(rank)].emplace_back(name, call.epoch);
    }
  }

  /// Sender and receiver agree on this, as if by an oracle where the rule is broken.
  bool sends_d(int source, int destination, const dispatch_call& call) const {
    if (call.cached && !rules_.cached_dispatch_exchanges) return false;
    return rules_.d_message_to_every_peer || rows(call.handle, source, destination) > 0;
  }

  message_shape shape_of(int rank) const {
    if (rank != rules_.rank_of_other_shape) return rules_.shape;
    return rules_.shape == message_shape::per_peer ? message_shape::per_row
                                                   : message_shape::per_peer;
  }

  /// Writes the rank's staging and returns its name, empty where sources are unlimited.
  std::string stage(int rank, const std::string& what, int number) {
    if (rules_.staging == source_staging::unlimited) return {};
    const bool doubled = rules_.staging == source_staging::by_parity;
    std::string name = what + parity(number, doubled) + "." + std::to_string(rank);
    programs_.write(rank, name, number);
    return name;
  }

  static int stop_tag(int epoch) { return 1000 + epoch; }
  static std::string parity(int number, bool doubled) {
    return doubled ? std::to_string(number % 2) : std::string();
  }
  static std::string pair(int source, int destination) {
    return "." + std::to_string(source) + ">" + std::to_string(destination);
  }
  std::string from_to(int source, int destination) const {
    return rules_.summed_signals ? ".>" + std::to_string(destination) : pair(source, destination);
  }
  std::string zone(int epoch, int source, int destination) const {
    return "zone" + parity(epoch, rules_.zones_by_parity) + pair(source, destination);
  }
  /// A cached dispatch has its metadata in the handle: its D message carries no header.
  std::vector<std::string> header(int source, int destination, const dispatch_call& call) const {
    if (call.cached) return {};
    return {zone(call.epoch, source, destination)};
  }
  std::string row(int epoch, int source, int destination, int index) const {
    return zone(epoch, source, destination) + "[" + std::to_string(index) + "]";
  }
  std::string d_signal(int epoch, int source, int destination) const {
    return "D" + parity(epoch, rules_.d_signals_by_parity) + from_to(source, destination);
  }
  std::string row_signal(int epoch, int source, int destination) const {
    return "rows" + parity(epoch, rules_.row_signals_by_parity) + from_to(source, destination);
  }
  static std::string combine_row(int source, int destination, int index) {
    return "combine" + pair(source, destination) + "[" + std::to_string(index) + "]";
  }
  static std::string combine_signal(int destination) {
    return "combine.>" + std::to_string(destination);
  }

  int ranks_;
  lane_rules rules_;
  row_counts rows_;
  program_set programs_;
  std::vector<std::vector<std::pair<std::string, int>>> open_;  // (location, tag) being read
};

/// All ones, all zeros, one-hot in several ways, and `random` seeded patterns of up to `most` rows.
inline std::vector<row_pattern> row_patterns(int ranks, int handles, int random, int most = 1) {
  std::vector<row_pattern> made;
  const auto add = [&](const std::string& name, auto count) {
    const std::size_t n = static_cast<std::size_t>(ranks);
    row_counts rows(static_cast<std::size_t>(handles),
                    std::vector<std::vector<int>>(n, std::vector<int>(n)));
    for (int h = 0; h < handles; ++h) {
      for (int s = 0; s < ranks; ++s) {
        for (int d = 0; d < ranks; ++d) {
          rows[static_cast<std::size_t>(h)][static_cast<std::size_t>(s)]
              [static_cast<std::size_t>(d)] = s == d ? 0 : count(h, s, d);
        }
      }
    }
    made.push_back({name, std::move(rows)});
  };
  add("all ones", [](int, int, int) { return 1; });
  add("all zeros", [](int, int, int) { return 0; });
  for (int q = 0; q < ranks; ++q) {
    const std::string hot = std::to_string(q);
    add("only " + hot + " sends", [q](int, int s, int) { return s == q ? 1 : 0; });
    add("only to " + hot, [q](int, int, int d) { return d == q ? 1 : 0; });
    add("to " + hot + " and from it in turn",
        [q](int h, int s, int d) { return (h % 2 == 0 ? d : s) == q ? 1 : 0; });
  }
  for (int i = 0; i < random; ++i) {
    const unsigned seed = 1000U * static_cast<unsigned>(ranks) + static_cast<unsigned>(i);
    std::mt19937 generator(seed);
    add("random, seed " + std::to_string(seed), [&](int, int, int) {
      return static_cast<int>(generator() % static_cast<unsigned>(most + 1));
    });
  }
  return made;
}

}  // namespace eptransport::model
