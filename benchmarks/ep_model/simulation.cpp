// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The event simulation.
#include "ep_model/simulation.hpp"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "ep_model/event_queue.hpp"
#include "support/random.hpp"

namespace eptransport::model {
namespace {

/// Who sends how many rows to whom.
class routes {
 public:
  routes(const routed_work& w, const std::vector<std::int64_t>& index)
      : ranks_(static_cast<std::size_t>(w.ranks)), nodes_(static_cast<std::size_t>(w.nodes)) {
    node_of_.resize(ranks_);
    first_.resize(nodes_ + 1);
    for (std::size_t n = 0; n <= nodes_; ++n) {
      first_[n] = static_cast<std::size_t>(
          detail::part_begin(w.ranks, w.nodes, static_cast<std::int64_t>(n)));
    }
    for (std::size_t n = 0; n < nodes_; ++n) {
      for (std::size_t r = first_[n]; r < first_[n + 1]; ++r) node_of_[r] = n;
    }
    rows_.assign(ranks_ * ranks_, 0);
    node_rows_.assign(ranks_ * nodes_, 0);
    std::vector<std::int64_t> rank_seen(ranks_, -1);
    std::vector<std::int64_t> node_seen(nodes_, -1);
    for (std::int64_t token = 0; token < w.ranks * w.tokens; ++token) {
      const auto own = static_cast<std::size_t>(token / w.tokens);
      for (std::int64_t j = 0; j < w.top_k; ++j) {
        const std::int64_t expert = index[static_cast<std::size_t>(token * w.top_k + j)];
        if (expert < 0 || expert >= w.experts) continue;
        const auto to = static_cast<std::size_t>(detail::part_of(w.experts, w.ranks, expert));
        if (rank_seen[to] != token) ++rows_[own * ranks_ + to];
        rank_seen[to] = token;
        const std::size_t node = node_of_[to];
        if (node_seen[node] != token) ++node_rows_[own * nodes_ + node];
        node_seen[node] = token;
      }
    }
  }

  [[nodiscard]] double rows(std::size_t from, std::size_t to) const {
    return rows_[from * ranks_ + to];
  }
  [[nodiscard]] double node_rows(std::size_t from, std::size_t node) const {
    return node_rows_[from * nodes_ + node];
  }
  [[nodiscard]] std::size_t node_of(std::size_t rank) const { return node_of_[rank]; }
  [[nodiscard]] std::size_t first(std::size_t node) const { return first_[node]; }
  [[nodiscard]] std::size_t size(std::size_t node) const { return first_[node + 1] - first_[node]; }
  /// The rank on `node` that relays for `rank`.
  [[nodiscard]] std::size_t rail(std::size_t rank, std::size_t node) const {
    const std::size_t local = rank - first_[node_of_[rank]];
    return first_[node] + local % size(node);
  }

 private:
  std::size_t ranks_;
  std::size_t nodes_;
  std::vector<std::size_t> node_of_;
  std::vector<std::size_t> first_;
  std::vector<std::uint32_t> rows_;       // [from][to]
  std::vector<std::uint32_t> node_rows_;  // [from][node]
};

enum kind : std::uint8_t {
  start,    // a rank begins a call
  issue,    // an issuer takes its next message
  arrive,   // a message's first byte is at the peer's NIC
  landed,   // it is in
  partial,  // what a local rank stored for a relay is there
  counted,  // something that a rank waits for is there
};

struct message {
  std::uint32_t peer = 0;
  float bytes = 0;
  std::uint16_t phase = 0;
};

/// The commands of one issuer, in order.
struct ring {
  std::vector<message> commands;
  std::size_t next = 0;
  double free = 0;  // when the issuer is

  [[nodiscard]] bool empty() const { return next == commands.size(); }
};

/// A rank's current call.
struct rank_state {
  double began = 0;
  std::uint16_t phase = 0;
  bool under_way = false;
};

class simulation {
 public:
  explicit simulation(const sim_setting& s)
      : s_(s),
        w_(s.work.routed),
        ranks_(static_cast<std::size_t>(w_.ranks)),
        nodes_(static_cast<std::size_t>(w_.nodes)),
        routes_(w_, s.index),
        comms_(static_cast<std::size_t>(
            std::clamp(s.comms, 1.0, std::max(1.0, s.wire.max_issuers.value)))),
        issue_ns_(issue_ns_of(s.wire, static_cast<double>(comms_))),
        queue_(std::max(50.0, s.wire.latency_ns.value / 64)) {
    find_nics();
    per_pair_ = s_.work.lands == landing::counted && s_.shape != traffic_shape::all_gather ? 3 : 2;
    state_.resize(ranks_);
    rings_.resize(ranks_ * comms_);
    out_free_.assign(ranks_ * nics_, 0);
    in_free_.assign(ranks_ * nics_, 0);
    agent_free_.assign(ranks_, 0);
    store_free_.assign(ranks_, 0);
    received_.assign(ranks_, 0);
    const std::size_t phases = static_cast<std::size_t>(s_.pairs) * per_pair_;
    due_.assign(ranks_ * window, 0);
    relay_due_.assign(ranks_ * window, 0);
    times_.assign(phases, std::vector<double>(ranks_, 0));
  }

  sim_result run() {
    for (std::size_t r = 0; r < ranks_; ++r) {
      const bool late = r < static_cast<std::size_t>(s_.stragglers);
      push(late ? s_.straggler_ns : 0, kind::start, r, 0, 0, 0, 0);
    }
    while (!queue_.empty()) {
      const event e = queue_.pop();
      ++events_;
      switch (e.kind) {
        case kind::start:
          begin(e);
          break;
        case kind::issue:
          issue_next(e);
          break;
        case kind::arrive:
          take_in(e);
          break;
        case kind::landed:
          land(e);
          break;
        case kind::partial:
          relay_ready(e);
          break;
        default:
          count(e, e.ns);
          break;
      }
    }
    return sum_up();
  }

 private:
  static constexpr std::size_t window = 4;  // calls that can be under way at one rank

  void find_nics() {
    const rank_links links = links_of(s_.wire, static_cast<double>(comms_),
                                      static_cast<double>(ranks_) / static_cast<double>(nodes_));
    nics_ = static_cast<std::size_t>(links.count);
    bytes_per_s_ = links.bytes_per_s;
  }

  [[nodiscard]] direction way(std::uint16_t phase) const {
    return phase % per_pair_ == per_pair_ - 1 ? direction::combine : direction::dispatch;
  }
  [[nodiscard]] bool counts_only(std::uint16_t phase) const {
    return per_pair_ == 3 && phase % per_pair_ == 0;
  }
  [[nodiscard]] bool relays() const {
    return s_.shape == traffic_shape::per_node || s_.shape == traffic_shape::all_gather;
  }

  void push(double ns, kind what, std::size_t rank, std::size_t peer, double bytes,
            std::size_t lane, std::uint16_t phase) {
    queue_.push({.ns = ns,
                 .rank = static_cast<std::uint32_t>(rank),
                 .peer = static_cast<std::uint32_t>(peer),
                 .bytes = static_cast<float>(bytes),
                 .kind = what,
                 .lane = static_cast<std::uint8_t>(lane),
                 .phase = phase});
  }

  [[nodiscard]] std::int64_t& due(std::size_t rank, std::uint16_t phase) {
    return due_[rank * window + phase % window];
  }
  [[nodiscard]] std::int64_t& relay_due(std::size_t rank, std::uint16_t phase) {
    return relay_due_[rank * window + phase % window];
  }

  // Both are counted down by arrivals, which may come before the rank begins its call.

  void begin(const event& e) {
    const std::size_t r = e.rank;
    rank_state& own = state_[r];
    own.began = e.ns;
    own.phase = e.phase;
    own.under_way = true;
    double ready = e.ns;
    const double copy = s_.machine.copy_bytes_per_s.value;
    if (copy > 0) ready += packed_bytes(r, e.phase) * 1e9 / copy;
    due(r, e.phase) += expected(r, e.phase);
    if (relays()) {
      begin_relayed(r, e.phase, ready);
    } else {
      issue_all(r, list_messages(r, e.phase), ready);
    }
    check_done(r, e.phase, e.ns);
  }

  [[nodiscard]] double packed_bytes(std::size_t r, std::uint16_t phase) const {
    const bool out = way(phase) == direction::dispatch;
    if (counts_only(phase)) return 0;
    const double row = row_bytes(phase);
    double rows = 0;
    switch (s_.shape) {
      case traffic_shape::direct:
      case traffic_shape::all_gather:
        return 0;
      case traffic_shape::per_row:
        return row;
      case traffic_shape::per_node:
        if (!out) return 0;
        for (std::size_t n = 0; n < nodes_; ++n) {
          if (n != routes_.node_of(r)) rows += routes_.node_rows(r, n);
        }
        return rows * row;
      default:
        for (std::size_t p = 0; p < ranks_; ++p) {
          if (p != r) rows += out ? routes_.rows(r, p) : routes_.rows(p, r);
        }
        return rows * row;
    }
  }

  [[nodiscard]] double row_bytes(std::uint16_t phase) const {
    return way(phase) == direction::dispatch ? s_.work.slot_bytes()
                                             : static_cast<double>(s_.work.return_bytes);
  }

  /// A header with rows, or with the counts of all ranks and experts.
  [[nodiscard]] double head_and(double rows, std::uint16_t phase) const {
    return header_bytes + (counts_only(phase) ? 8 * static_cast<double>(w_.ranks + w_.experts)
                                              : rows * row_bytes(phase));
  }

  /// Messages that `from` sends `to` in a call that is not relayed.
  template <class Emit>
  void between(std::size_t from, std::size_t to, std::uint16_t phase, const Emit& emit) const {
    const bool out = way(phase) == direction::dispatch;
    const double rows = out ? routes_.rows(from, to) : routes_.rows(to, from);
    const double row = row_bytes(phase);
    if (counts_only(phase)) {
      return emit(head_and(0, phase));
    }
    const bool slotted = out && per_pair_ == 2;
    const double header = slotted ? header_bytes : 0;
    if (rows == 0 && !(slotted && s_.work.everyone)) return;
    // What precedes or follows the rows: the header, or the sides of counted rows.
    const double side = static_cast<double>(s_.work.scale_bytes + 8 + 8 * w_.top_k);
    const bool sides = out && !slotted;
    const auto rows_alone = [&] {
      if (out) emit(slotted ? header : rows * side);
      for (double i = 0; i < rows; ++i) emit(row - (sides ? side : 0));
    };
    switch (s_.shape) {
      case traffic_shape::per_row:
        return rows_alone();
      case traffic_shape::grouped: {
        const double room = rows_per_eager(s_.wire, row);
        if (room <= 0) return rows_alone();
        double left = rows;
        for (; left > room; left -= room) emit(room * row);
        return emit(header + left * row);
      }
      case traffic_shape::per_peer:
        if (sides) {
          emit(rows * (row - side));
          return emit(rows * side);
        }
        return emit(header + rows * row);
      default:
        return emit(header + rows * row);
    }
  }

  [[nodiscard]] std::vector<message> list_messages(std::size_t r, std::uint16_t phase) const {
    std::vector<message> list;
    for (std::size_t i = 1; i < ranks_; ++i) {
      const std::size_t peer = (r + i) % ranks_;
      between(r, peer, phase, [&](double bytes) { list.push_back(to(peer, bytes, phase)); });
    }
    // Rows travel token by token, so that peers alternate.
    if (s_.shape == traffic_shape::per_row && !counts_only(phase)) interleave(list);
    return list;
  }

  static message to(std::size_t peer, double bytes, std::uint16_t phase) {
    return {static_cast<std::uint32_t>(peer), static_cast<float>(bytes), phase};
  }

  /// Deals the messages out: the first of each peer, then the second of each, and so on.
  static void interleave(std::vector<message>& list) {
    std::vector<std::pair<std::uint32_t, std::size_t>> order;
    std::uint32_t nth = 0;
    for (std::size_t i = 0; i < list.size(); ++i) {
      nth = i > 0 && list[i].peer == list[i - 1].peer ? nth + 1 : 0;
      order.emplace_back(nth, i);
    }
    std::sort(order.begin(), order.end());
    std::vector<message> dealt;
    for (const auto& [turn, i] : order) dealt.push_back(list[i]);
    list.swap(dealt);
  }

  /// Deals messages out over the rank's rings; an idle issuer sees them after a poll. Rows go
  /// round, whole peers stay on one ring.
  void issue_all(std::size_t r, const std::vector<message>& list, double ready) {
    const double seen = ready + s_.wire.command_ns.value + s_.wire.poll_ns.value;
    const bool rows = s_.shape == traffic_shape::per_row;
    std::size_t turn = 0;
    for (std::size_t i = 0; i < list.size(); ++i) {
      if (i > 0 && (rows || list[i].peer != list[i - 1].peer)) turn = (turn + 1) % comms_;
      ring& own = rings_[r * comms_ + turn];
      if (own.empty()) {
        own = {.commands = {}, .next = 0, .free = own.free};
        push(std::max(seen, own.free), kind::issue, r, 0, 0, turn, 0);
      }
      own.commands.push_back(list[i]);
    }
  }

  void issue_next(const event& e) {
    const std::size_t r = e.rank;
    ring& own = rings_[r * comms_ + e.lane];
    const message m = own.commands[own.next++];
    const bool slow = r < static_cast<std::size_t>(s_.stragglers);
    const double spent = issue_ns_ * (slow ? s_.straggler_factor : 1);
    const double moving = moving_ns(m.bytes);
    const std::size_t nic = e.lane % nics_;
    double& out = out_free_[r * nics_ + nic];
    own.free = e.ns + spent + (s_.wire.issuer_copies ? moving : 0);
    const double began = s_.wire.issuer_copies ? own.free : std::max(out, own.free);
    out = began + moving;
    issuing_ += spent;
    sending_ += moving;
    messages_ += 1;
    bytes_ += m.bytes;
    received_[m.peer] += m.bytes;
    push(began + path_ns(), kind::arrive, m.peer, r, m.bytes, nic, m.phase);
    if (!own.empty()) push(own.free, kind::issue, r, 0, 0, e.lane, 0);
  }

  [[nodiscard]] double moving_ns(double bytes) const {
    return std::max(s_.nic_message_ns, bytes_per_s_ > 0 ? bytes * 1e9 / bytes_per_s_ : 0);
  }

  [[nodiscard]] double path_ns() {
    if (s_.spray_ns <= 0) return s_.wire.latency_ns.value;
    return s_.wire.latency_ns.value + s_.spray_ns * spray_.unit();
  }

  void take_in(const event& e) {
    if (s_.wire.issuer_copies) return land_at(e, e.ns);
    double& in = in_free_[e.rank * nics_ + e.lane];
    in = std::max(in, e.ns) + moving_ns(e.bytes);
    land_at(e, in);
  }

  void land_at(const event& e, double ns) {
    if (s_.wire.arrive_ns.value <= 0 && !relays()) return count(e, ns);
    push(ns, kind::landed, e.rank, e.peer, e.bytes, e.lane, e.phase);
  }

  void land(const event& e) {
    double done = e.ns;
    if (s_.wire.arrive_ns.value > 0) {
      double& agent = agent_free_[e.rank];
      agent = std::max(agent, e.ns) + s_.wire.arrive_ns.value;
      done = agent;
    }
    if (relays() && way(e.phase) == direction::dispatch) forward(e, done);
    count(e, done);
  }

  // --- Inside the node -----------------------------------------------------------------------

  [[nodiscard]] double store(std::size_t r, double bytes, double ready) {
    double& free = store_free_[r];
    const double rate = s_.inner.channel_bytes_per_s.value;
    free = std::max(free, ready) + s_.inner.issue_ns.value + (rate > 0 ? bytes * 1e9 / rate : 0);
    return free + s_.inner.latency_ns.value;
  }

  /// What a dispatch's relay stores for the other ranks of its node.
  void forward(const event& e, double ready) {
    const std::size_t r = e.rank;
    const std::size_t node = routes_.node_of(r);
    const bool all = s_.shape == traffic_shape::all_gather;
    for (std::size_t i = 1; i < routes_.size(node); ++i) {
      const std::size_t local = local_at(r, i);
      const double rows = all ? static_cast<double>(w_.tokens) : routes_.rows(e.peer, local);
      const double there = store(r, head_and(rows, e.phase), ready);
      push(there, kind::counted, local, e.peer, 0, 0, e.phase);
    }
  }

  [[nodiscard]] std::size_t local_at(std::size_t r, std::size_t i) const {
    const std::size_t node = routes_.node_of(r);
    const std::size_t first = routes_.first(node);
    return first + (r - first + i) % routes_.size(node);
  }

  void begin_relayed(std::size_t r, std::uint16_t phase, double ready) {
    const bool out = way(phase) == direction::dispatch;
    const bool all = s_.shape == traffic_shape::all_gather;
    const std::size_t node = routes_.node_of(r);
    const auto tokens = static_cast<double>(w_.tokens);
    const double row = row_bytes(phase);
    if (out) {
      std::vector<message> list;
      for (std::size_t i = 1; i < nodes_; ++i) {
        const std::size_t other = (node + i) % nodes_;
        const double rows = all ? tokens : routes_.node_rows(r, other);
        list.push_back(to(routes_.rail(r, other), head_and(rows, phase), phase));
      }
      issue_all(r, list, ready);
      for (std::size_t i = 1; i < routes_.size(node); ++i) {
        const std::size_t local = local_at(r, i);
        const double rows = all ? tokens : routes_.rows(r, local);
        push(store(r, head_and(rows, phase), ready), kind::counted, local, r, 0, 0, phase);
      }
      return;
    }
    // Partial sums go to the relay of their source first; its own rows a local rank gets with them.
    for (std::size_t i = 1; i < routes_.size(node); ++i) {
      const std::size_t local = local_at(r, i);
      double rows = all ? tokens * static_cast<double>(nodes_) : routes_.rows(local, r);
      for (std::size_t n = 0; n < nodes_ && !all; ++n) {
        if (n != node) rows += routes_.rows(routes_.rail(local, n), r);
      }
      const double there = store(r, rows * row, ready);
      push(there, kind::partial, local, r, 0, 0, phase);
      if (all || routes_.rows(local, r) > 0) {
        push(there, kind::counted, local, r, 0, 0, phase);
      }
    }
    push(ready, kind::partial, r, r, 0, 0, phase);
    relay_due(r, phase) += static_cast<std::int64_t>(routes_.size(node));
  }

  /// One more of a relay's node has stored; with all of them, and its own, it returns the sums.
  void relay_ready(const event& e) {
    const std::size_t r = e.rank;
    if (--relay_due(r, e.phase) != 0) return;
    const std::size_t node = routes_.node_of(r);
    const bool all = s_.shape == traffic_shape::all_gather;
    std::vector<message> list;
    for (std::size_t i = 1; i < nodes_; ++i) {
      const std::size_t source = routes_.rail(r, (node + i) % nodes_);
      const double rows = all ? static_cast<double>(w_.tokens) : routes_.node_rows(source, node);
      if (rows > 0) list.push_back(to(source, rows * row_bytes(e.phase), e.phase));
    }
    issue_all(r, list, e.ns);
    check_done(r, e.phase, e.ns);
  }

  // --- Ends ----------------------------------------------------------------------------------

  /// What rank r waits for in a call.
  [[nodiscard]] std::int64_t expected(std::size_t r, std::uint16_t phase) const {
    std::int64_t all = 0;
    const std::size_t node = routes_.node_of(r);
    const bool out = way(phase) == direction::dispatch;
    if (relays()) {
      if (out) return static_cast<std::int64_t>(ranks_) - 1;
      const bool gather = s_.shape == traffic_shape::all_gather;
      for (std::size_t i = 1; i < routes_.size(node); ++i) {
        if (gather || routes_.rows(r, local_at(r, i)) > 0) ++all;
      }
      for (std::size_t n = 0; n < nodes_; ++n) {
        if (n != node && (gather || routes_.node_rows(r, n) > 0)) ++all;
      }
      return all;
    }
    for (std::size_t p = 0; p < ranks_; ++p) {
      if (p != r) between(p, r, phase, [&all](double) { ++all; });
    }
    return all;
  }

  void count(const event& e, double ns) {
    --due(e.rank, e.phase);
    latest(e.rank, e.phase, ns);
    check_done(e.rank, e.phase, ns);
  }

  void latest(std::size_t r, std::uint16_t phase, double ns) {
    double& end = times_[phase][r];
    end = std::max(end, ns);
  }

  void check_done(std::size_t r, std::uint16_t phase, double ns) {
    rank_state& own = state_[r];
    if (!own.under_way || own.phase != phase || due(r, phase) != 0) return;
    // A relay that still waits for its node has not done its part of the call.
    if (relays() && way(phase) == direction::combine && relay_due(r, phase) > 0) return;
    own.under_way = false;
    double end = std::max({ns, times_[phase][r], own.began});
    const bool on_the_wire = !relays() || nodes_ > 1;
    if (ranks_ > 1 && on_the_wire) end += s_.wire.wake_ns.value;
    const double copy = s_.machine.copy_bytes_per_s.value;
    if (copy > 0) end += unpacked_bytes(r, phase) * 1e9 / copy;
    times_[phase][r] = end - own.began;
    end_ = std::max(end_, end);
    digest(end);
    const std::size_t next = phase + std::size_t{1};
    if (next >= times_.size()) return;
    const bool experts = way(static_cast<std::uint16_t>(next)) == direction::combine;
    const bool rest = next % per_pair_ == 0;
    push(end + (experts ? s_.expert_ns
                : rest  ? s_.rest_ns
                        : 0),
         kind::start, r, 0, 0, 0, static_cast<std::uint16_t>(next));
  }

  [[nodiscard]] double unpacked_bytes(std::size_t r, std::uint16_t phase) const {
    if (way(phase) != direction::dispatch || per_pair_ == 3) return 0;
    if (s_.shape == traffic_shape::all_gather) return 0;
    double rows = 0;
    for (std::size_t p = 0; p < ranks_; ++p) {
      if (p != r) rows += routes_.rows(p, r);
    }
    return rows * row_bytes(phase);
  }

  void digest(double ns) {
    std::uint64_t bits = 0;
    std::memcpy(&bits, &ns, sizeof bits);
    digest_ = (digest_ ^ bits) * 0x100'0000'01b3u;
  }

  [[nodiscard]] sim_result sum_up() {
    sim_result out;
    out.total_ns = end_;
    out.messages = messages_;
    out.bytes = bytes_;
    out.events = events_;
    out.digest = digest_;
    const auto ranks = static_cast<double>(ranks_);
    if (bytes_ > 0) {
      out.busiest_in = *std::max_element(received_.begin(), received_.end()) * ranks / bytes_;
    }
    if (end_ > 0) {
      out.issuers_busy = issuing_ / (end_ * ranks * static_cast<double>(comms_));
      out.nics_busy = sending_ / (end_ * ranks * static_cast<double>(nics_));
    }
    std::vector<double> dispatch;
    std::vector<double> combine;
    for (std::size_t phase = 0; phase < times_.size(); phase += per_pair_) {
      for (std::size_t r = 0; r < ranks_; ++r) {
        const double counts = per_pair_ == 3 ? times_[phase][r] : 0;
        dispatch.push_back(counts + times_[phase + per_pair_ - 2][r]);
        combine.push_back(times_[phase + per_pair_ - 1][r]);
      }
    }
    out.dispatch = call_of(std::move(dispatch));
    out.combine = call_of(std::move(combine));
    return out;
  }

  static sim_call call_of(std::vector<double> ns) {
    if (ns.empty()) return {};
    std::sort(ns.begin(), ns.end());
    const auto at = [&ns](double share) {
      return ns[static_cast<std::size_t>(share * static_cast<double>(ns.size() - 1))];
    };
    const double sum = std::accumulate(ns.begin(), ns.end(), 0.0);
    return {sum / static_cast<double>(ns.size()), at(0.5), at(0.99), ns.back()};
  }

  const sim_setting& s_;
  const routed_work& w_;
  std::size_t ranks_;
  std::size_t nodes_;
  routes routes_;
  std::size_t comms_;
  double issue_ns_;
  std::size_t nics_ = 1;
  double bytes_per_s_ = 0;
  std::size_t per_pair_ = 2;  // calls: [counts,] dispatch, combine
  event_queue queue_;
  support::random_bits spray_{s_.seed, 0x7370726179};
  std::vector<rank_state> state_;
  std::vector<ring> rings_;                 // [rank][comm]
  std::vector<double> out_free_;            // [rank][nic]
  std::vector<double> in_free_;             // [rank][nic]
  std::vector<double> agent_free_;          // [rank]
  std::vector<double> store_free_;          // [rank]
  std::vector<double> received_;            // [rank]
  std::vector<std::int64_t> due_;           // [rank][window]
  std::vector<std::int64_t> relay_due_;     // [rank][window]
  std::vector<std::vector<double>> times_;  // [call][rank] end, then duration
  double issuing_ = 0;
  double sending_ = 0;
  double messages_ = 0;
  double bytes_ = 0;
  double end_ = 0;
  std::uint64_t events_ = 0;
  std::uint64_t digest_ = 0xcbf2'9ce4'8422'2325u;
};

}  // namespace

sim_result simulate(const sim_setting& s) {
  const routed_work& w = s.work.routed;
  const auto refuse = [](std::string why) {
    sim_result out;
    out.error = std::move(why);
    return out;
  };
  if (w.ranks < 1 || w.nodes < 1 || w.nodes > w.ranks || w.experts < 1) {
    return refuse("there must be at least one rank on each node, and one expert");
  }
  if (s.index.size() != static_cast<std::size_t>(w.ranks * w.tokens * w.top_k)) {
    return refuse("the routing has " + std::to_string(s.index.size()) +
                  " choices, ranks x tokens x k is " +
                  std::to_string(w.ranks * w.tokens * w.top_k));
  }
  const bool relays = s.shape == traffic_shape::per_node || s.shape == traffic_shape::all_gather;
  if (relays && w.ranks % w.nodes != 0) {
    return refuse("relays need as many ranks on every node");
  }
  if (!s.work.everyone) {
    return refuse("without a message from every rank a fast one could run ahead without bound");
  }
  if (s.stragglers < 0 || s.stragglers > w.ranks) return refuse("more stragglers than ranks");
  if (s.pairs < 1 || s.pairs > 20'000) return refuse("1 to 20000 pairs can be simulated");
  return simulation(s).run();
}

std::vector<std::int64_t> uniform_index(const routed_work& w, std::uint64_t seed) {
  support::random_bits random{seed, 0x696e646578};
  std::vector<std::int64_t> index;
  index.reserve(static_cast<std::size_t>(w.ranks * w.tokens * w.top_k));
  for (std::int64_t token = 0; token < w.ranks * w.tokens; ++token) {
    const std::size_t begin = index.size();
    for (std::int64_t j = 0; j < w.top_k; ++j) {
      const auto own = [&] { return index.begin() + static_cast<std::ptrdiff_t>(begin); };
      std::int64_t expert = -1;
      if (j < w.experts) {
        do {
          expert = static_cast<std::int64_t>(random.below(static_cast<std::uint64_t>(w.experts)));
        } while (std::find(own(), index.end(), expert) != index.end());
      }
      index.push_back(expert);
    }
  }
  return index;
}

}  // namespace eptransport::model
