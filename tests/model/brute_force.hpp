// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The plain engine: every byte's journey is an event of its own. Slow, and hard to get
/// wrong.
///
/// Each put is cut into pieces (`pieces` per location). A piece is read from its source, then it
/// lands, each at any time and in any order with everything else; the signal counts after the last
/// one. Memory has contents, so a wrong read is seen and not derived. A violating step is recorded
/// and not followed, and the search goes on, so the result is the set of all kinds that can occur
/// first.
#pragma once

#include <cstddef>
#include <map>
#include <set>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "explorer.hpp"
#include "programs.hpp"

namespace eptransport::model {

struct brute_force_result {
  std::set<violation> kinds;
  bool exhaustive = true;  ///< false: the limit was hit
  std::size_t states = 0;

  bool safe() const { return exhaustive && kinds.empty(); }
};

class brute_force {
 public:
  explicit brute_force(const program_set& examined, int pieces = 1, std::size_t limit = 3'000'000)
      : programs_(examined), pieces_(static_cast<std::size_t>(pieces)), limit_(limit) {}

  brute_force_result run() {
    lay_out();
    visit(std::string(size_, '\0'));
    while (!pending_.empty() && result_.exhaustive) {
      const std::string* at = pending_.back();
      pending_.pop_back();
      moved_ = false;
      for (int p = 0; p < programs_.processes(); ++p) step(*at, p);
      for (std::size_t i = 0; i < programs_.stores().size(); ++i) deliver(*at, i);
      if (!moved_ && !finished(*at)) result_.kinds.insert(violation::deadlock);
    }
    result_.states = seen_.size();
    return result_;
  }

 private:
  // A state is a string: a position per process, then per store its pieces and its signal, then
  // the contents of memory: 1 + the index of the store that wrote the piece, 0 at the start.
  enum piece : char { unborn, unread, carried, arrived };
  struct interval {
    int process, opened, closed, tag;
  };

  void lay_out() {
    size_ = static_cast<std::size_t>(programs_.processes());
    for (const store& one : programs_.stores()) {
      first_piece_.push_back(size_);
      size_ += one.locations.size() * pieces_;
      signalled_.push_back(size_++);
      for (const int at : one.locations) {
        writer_[{at, one.tag}] = static_cast<int>(first_piece_.size());
      }
    }
    memory_ = size_;
    size_ += static_cast<std::size_t>(programs_.locations()) * pieces_;
    intervals_.resize(static_cast<std::size_t>(programs_.locations()));
    for (const auto& [what, readers] : programs_.readers()) {
      for (const reader& one : readers) {
        intervals_[static_cast<std::size_t>(what.first)].push_back(
            {one.process, opening(one.process, what), one.close_position, what.second});
      }
    }
  }

  int opening(int process, std::pair<int, int> what) const {
    const std::vector<operation>& program = programs_.program(process);
    for (std::size_t i = 0; i < program.size(); ++i) {
      if (program[i].kind == operation_kind::open && program[i].location == what.first &&
          program[i].tag == what.second) {
        return static_cast<int>(i);
      }
    }
    return 0;
  }

  void visit(const std::string& at) {
    moved_ = true;
    if (seen_.size() >= limit_) result_.exhaustive = false;
    const auto [where, is_new] = seen_.insert(at);
    if (is_new) pending_.push_back(&*where);
  }

  void refuse(violation kind) {
    moved_ = true;
    result_.kinds.insert(kind);
  }

  static int position(const std::string& at, int process) {
    return static_cast<unsigned char>(at[static_cast<std::size_t>(process)]);
  }
  std::size_t cell(int location, std::size_t part) const {
    return memory_ + static_cast<std::size_t>(location) * pieces_ + part;
  }
  bool issued(const std::string& at, const store& one) const {
    return position(at, one.process) > one.position;
  }

  /// Whether somebody is reading another tag at that location now.
  bool watched(const std::string& at, int location, int tag) const {
    for (const interval& one : intervals_[static_cast<std::size_t>(location)]) {
      const int now = position(at, one.process);
      if (one.tag != tag && now > one.opened && now <= one.closed) return true;
    }
    return false;
  }

  void step(const std::string& at, int process) {
    const std::vector<operation>& program = programs_.program(process);
    const std::size_t now = static_cast<std::size_t>(position(at, process));
    if (now >= program.size()) return;
    const operation& op = program[now];
    if (op.kind == operation_kind::wait && count(at, op.signal) < op.at_least) return;
    if (op.kind == operation_kind::flush && !sources_read(at, process)) return;
    std::string then = at;
    then[static_cast<std::size_t>(process)] = static_cast<char>(now + 1);
    if (op.kind == operation_kind::open && !holds(at, op)) return refuse(why_wrong(at, op));
    if (op.kind == operation_kind::put) issue(then, static_cast<std::size_t>(op.store));
    if (op.kind == operation_kind::write) {
      const store& one = programs_.store_at(op.store);
      const int where = one.locations.front();
      if (watched(at, where, one.tag)) return refuse(violation::overwrite);
      for (std::size_t m = 0; m < pieces_; ++m) {
        then[cell(where, m)] = static_cast<char>(op.store + 1);
        then[first_piece_[static_cast<std::size_t>(op.store)] + m] = arrived;
      }
    }
    visit(then);
  }

  void issue(std::string& then, std::size_t index) const {
    const piece born = programs_.stores()[index].source < 0 ? carried : unread;
    for (std::size_t i = first_piece_[index]; i < signalled_[index]; ++i) then[i] = born;
  }

  int count(const std::string& at, int signal) const {
    int landed = 0;
    for (std::size_t i = 0; i < programs_.stores().size(); ++i) {
      if (programs_.stores()[i].signal == signal) landed += at[signalled_[i]];
    }
    return landed;
  }

  bool sources_read(const std::string& at, int process) const {
    for (std::size_t i = 0; i < programs_.stores().size(); ++i) {
      if (programs_.stores()[i].process != process) continue;
      for (std::size_t k = first_piece_[i]; k < signalled_[i]; ++k) {
        if (at[k] == unread) return false;
      }
    }
    return true;
  }

  bool holds(const std::string& at, const operation& op) const {
    const auto wanted = writer_.find({op.location, op.tag});
    if (wanted == writer_.end()) return false;
    for (std::size_t m = 0; m < pieces_; ++m) {
      if (static_cast<unsigned char>(at[cell(op.location, m)]) != wanted->second) return false;
    }
    return true;
  }

  /// The wanted bytes have been there and are gone, or they have not come yet.
  violation why_wrong(const std::string& at, const operation& op) const {
    const auto wanted = writer_.find({op.location, op.tag});
    if (wanted == writer_.end()) return violation::early_read;
    const std::size_t index = static_cast<std::size_t>(wanted->second - 1);
    const store& one = programs_.stores()[index];
    for (std::size_t k = 0; k < one.locations.size(); ++k) {
      if (one.locations[k] != op.location) continue;
      for (std::size_t m = 0; m < pieces_; ++m) {
        if (at[first_piece_[index] + k * pieces_ + m] != arrived) return violation::early_read;
      }
    }
    return violation::overwrite;
  }

  /// All that the network may do next with one put.
  void deliver(const std::string& at, std::size_t index) {
    const store& one = programs_.stores()[index];
    if (one.signal < 0 || !issued(at, one) || at[signalled_[index]] != 0) return;
    bool complete = true;
    for (std::size_t k = 0; k < one.locations.size() * pieces_; ++k) {
      const std::size_t which = first_piece_[index] + k;
      if (at[which] == arrived) continue;
      complete = false;
      if (at[which] == unread) {
        read_source(at, one, which, k % pieces_);
      } else {
        land(at, index, which, k);
      }
    }
    if (!complete) return;
    std::string then = at;
    then[signalled_[index]] = 1;
    visit(then);
  }

  void read_source(const std::string& at, const store& one, std::size_t which, std::size_t part) {
    const int wanted = writer_.at({one.source, one.tag});
    if (static_cast<unsigned char>(at[cell(one.source, part)]) != wanted) {
      return refuse(violation::source_reuse);
    }
    std::string then = at;
    then[which] = carried;
    visit(then);
  }

  void land(const std::string& at, std::size_t index, std::size_t which, std::size_t k) {
    const store& one = programs_.stores()[index];
    const int where = one.locations[k / pieces_];
    if (watched(at, where, one.tag)) return refuse(violation::overwrite);
    std::string then = at;
    then[which] = arrived;
    then[cell(where, k % pieces_)] = static_cast<char>(index + 1);
    visit(then);
  }

  bool finished(const std::string& at) const {
    for (int p = 0; p < programs_.processes(); ++p) {
      if (position(at, p) < static_cast<int>(programs_.program(p).size())) return false;
    }
    return true;
  }

  const program_set& programs_;
  std::size_t pieces_;
  std::size_t limit_;
  std::size_t size_ = 0;
  std::size_t memory_ = 0;
  std::vector<std::size_t> first_piece_;
  std::vector<std::size_t> signalled_;
  std::map<std::pair<int, int>, int> writer_;  // (location, tag) -> 1 + store
  std::vector<std::vector<interval>> intervals_;
  std::unordered_set<std::string> seen_;
  std::vector<const std::string*> pending_;
  bool moved_ = false;
  brute_force_result result_;
};

}  // namespace eptransport::model
