// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Explores every delivery order of a system and returns the first violation with a trace.
///
/// Why few states are enough. The bytes of a put may land at any moment between its issue and its
/// signal, so two facts decide every violation of memory:
///   * a store is wrong if, when it is issued, an earlier one to the same location still has a
///     reader that has not closed (opened or not: the bytes may come before it), or has not landed
///     while the new one has a reader; a local write is wrong if a put that reads from that
///     location may not have read it yet;
///   * an open is wrong unless the store that it expects has landed, signal included.
/// Bytes therefore need no events of their own. Of the remaining events, put, write, open, flush
/// and a satisfied wait can only add danger: they disable nothing, and taken earlier they meet
/// at least as many unlanded puts and unclosed readers. They are taken at once. Close and
/// the landing of a signal can only remove danger, so later is worse: a signal lands when a process
/// is blocked on that counter, and then each of the puts in flight on it is tried; closes are
/// tried in all orders, a run of closes as one step. A delay is always allowed, hence each
/// violation found is real; and every run can be reordered into one explored here, hence none is
/// missed. `brute_force.hpp` has no such argument in it and checks this one on small systems.
#pragma once

#include <algorithm>
#include <array>
#include <bitset>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <ostream>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "programs.hpp"

namespace eptransport::model {

enum class violation { none, overwrite, early_read, source_reuse, deadlock, malformed, limit };

/// The violation's name in capitals, as traces print it.
inline const char* name_of(violation kind) {
  switch (kind) {
    case violation::none:
      return "SAFE";
    case violation::overwrite:
      return "OVERWRITE";
    case violation::early_read:
      return "EARLY READ";
    case violation::source_reuse:
      return "SOURCE REUSE";
    case violation::deadlock:
      return "DEADLOCK";
    case violation::malformed:
      return "MALFORMED";
    case violation::limit:
      return "LIMIT";
  }
  return "?";
}

inline std::ostream& operator<<(std::ostream& out, violation kind) {
  return out << name_of(kind);
}

/// What an exploration found. `none` means that every reachable state was visited.
struct verdict {
  violation kind = violation::none;
  std::string what;                ///< the violation in one line
  std::vector<std::string> trace;  ///< the steps that lead to it; the last line is `what`
  std::size_t states = 0;

  bool safe() const { return kind == violation::none; }
  std::string text() const {
    std::string all;
    for (const std::string& line : trace) all += "  " + line + "\n";
    return all;
  }
};

/// Searches breadth first, so that a trace has as few deliveries and closes as possible.
class explorer {
 public:
  static constexpr int kMaxProcesses = 8;
  static constexpr int kMaxStores = 256;

  explicit explorer(const program_set& examined, std::size_t limit = 2'000'000)
      : programs_(examined), limit_(limit), seen_(16, hash{this}, equal{this}) {}

  verdict run() {
    verdict result = explore();
    result.states = nodes_.size();
    return result;
  }

 private:
  struct state {
    std::array<std::uint16_t, kMaxProcesses> position{};
    std::bitset<kMaxStores> landed;  // puts only
    bool operator==(const state&) const = default;
  };
  /// An event of the second kind: `closes` by process `index`, or put `index` lands.
  struct event {
    bool closes = false;
    int index = -1;
  };
  struct node {
    state at;
    int parent = -1;
    event by;
  };
  struct finding {
    violation kind = violation::none;
    std::string what = {};
    explicit operator bool() const { return kind != violation::none; }
  };
  // The set of visited states holds indices into nodes_, so that each state is stored once.
  struct hash {
    const explorer* self;
    std::size_t operator()(int index) const {
      const state& at = self->nodes_[static_cast<std::size_t>(index)].at;
      std::size_t value = std::hash<std::bitset<kMaxStores>>()(at.landed);
      for (const std::uint16_t p : at.position) value = value * 1'000'003U ^ p;
      return value;
    }
  };
  struct equal {
    const explorer* self;
    bool operator()(int a, int b) const {
      return self->nodes_[static_cast<std::size_t>(a)].at ==
             self->nodes_[static_cast<std::size_t>(b)].at;
    }
  };

  verdict explore() {
    if (verdict bad = prepare(); !bad.safe()) return bad;
    if (finding bad = add(-1, {})) return report(bad, static_cast<int>(nodes_.size()) - 1);
    for (std::size_t next = 0; next < nodes_.size(); ++next) {
      if (nodes_.size() > limit_) return {violation::limit, "too many states", {}};
      const std::vector<event> possible = events(nodes_[next].at);
      for (const event& one : possible) {
        if (finding bad = add(static_cast<int>(next), one)) {
          return report(bad, static_cast<int>(nodes_.size()) - 1);
        }
      }
      if (possible.empty() && !finished(nodes_[next].at)) {
        return report({violation::deadlock, stuck(nodes_[next].at)}, static_cast<int>(next));
      }
    }
    return {};
  }

  verdict prepare() {
    std::string defect = programs_.defect();
    if (programs_.processes() > kMaxProcesses || programs_.stores().size() > kMaxStores) {
      defect = "too many processes or stores";
    }
    if (!defect.empty()) return {violation::malformed, defect, {defect}};
    writers_.resize(static_cast<std::size_t>(programs_.locations()));
    takers_.resize(static_cast<std::size_t>(programs_.locations()));
    puts_on_.resize(static_cast<std::size_t>(programs_.signals()));
    for (int i = 0; i < static_cast<int>(programs_.stores().size()); ++i) {
      const store& one = programs_.store_at(i);
      for (const int at : one.locations) writers_[static_cast<std::size_t>(at)].push_back(i);
      if (one.source >= 0) takers_[static_cast<std::size_t>(one.source)].push_back(i);
      if (one.signal >= 0) puts_on_[static_cast<std::size_t>(one.signal)].push_back(i);
    }
    readers_ = programs_.readers();
    return {};
  }

  /// Appends the state after `by`; keeps it only if it is new, or if it is a violation.
  finding add(int parent, const event& by) {
    state at = parent < 0 ? state{} : nodes_[static_cast<std::size_t>(parent)].at;
    take(at, by, nullptr);
    finding bad = rush(at, nullptr);
    nodes_.push_back({at, parent, by});
    const int index = static_cast<int>(nodes_.size()) - 1;
    if (!bad && !seen_.insert(index).second) nodes_.pop_back();
    return bad;
  }

  std::vector<event> events(const state& at) const {
    std::vector<event> found;
    for (int p = 0; p < programs_.processes(); ++p) {
      const operation* step = next_step(at, p);
      if (step == nullptr) continue;
      if (step->kind == operation_kind::close) found.push_back({true, p});
      if (step->kind != operation_kind::wait) continue;
      for (const int put : puts_on_[static_cast<std::size_t>(step->signal)]) {
        if (issued(at, put) && !landed(at, put)) found.push_back({false, put});
      }
    }
    return found;
  }

  void take(state& at, const event& by, std::vector<std::string>* log) const {
    if (by.index < 0) return;
    if (!by.closes) {
      at.landed.set(static_cast<std::size_t>(by.index));
      if (log == nullptr) return;
      const store& put = programs_.store_at(by.index);
      log->push_back("    landed: {" + programs_.named(put) + "} of r" +
                     std::to_string(put.process));
      return;
    }
    const operation* step = next_step(at, by.index);
    while (step != nullptr && step->kind == operation_kind::close) {
      if (log != nullptr) log->push_back(programs_.describe(by.index, *step));
      ++at.position[static_cast<std::size_t>(by.index)];
      step = next_step(at, by.index);
    }
  }

  /// Takes all steps that can only add danger and returns the first violation among them.
  finding rush(state& at, std::vector<std::string>* log) const {
    for (bool moved = true; moved;) {
      moved = false;
      for (int p = 0; p < programs_.processes(); ++p) {
        const operation* step = next_step(at, p);
        while (step != nullptr && step->kind != operation_kind::close && passes(at, *step)) {
          ++at.position[static_cast<std::size_t>(p)];
          moved = true;
          if (log != nullptr) log->push_back(programs_.describe(p, *step));
          if (finding bad = hazard(at, p, *step)) return bad;
          step = next_step(at, p);
        }
      }
    }
    return {};
  }

  bool passes(const state& at, const operation& step) const {
    if (step.kind != operation_kind::wait) return true;
    int count = 0;
    for (const int put : puts_on_[static_cast<std::size_t>(step.signal)]) {
      count += landed(at, put) ? 1 : 0;
    }
    return count >= step.at_least;
  }

  finding hazard(const state& at, int process, const operation& step) const {
    if (step.store >= 0) return hazard_of_store(at, step);
    if (step.kind == operation_kind::open) return hazard_of_open(at, process, step);
    return {};
  }

  finding hazard_of_store(const state& at, const operation& step) const {
    const store& made = programs_.store_at(step.store);
    const std::string who = programs_.describe(made.process, step);
    for (const int where : made.locations) {
      for (const int other : writers_[static_cast<std::size_t>(where)]) {
        if (other == step.store || !issued(at, other)) continue;
        const store& old = programs_.store_at(other);
        const std::string whose =
            "{" + programs_.named(old) + "} of r" + std::to_string(old.process);
        if (!landed(at, other) && !readers_of(where, made.tag).empty()) {
          return {violation::overwrite, who + ", but " + whose + " is still in flight"};
        }
        for (const reader& one : readers_of(where, old.tag)) {
          if (at.position[static_cast<std::size_t>(one.process)] > one.close_position) continue;
          return {violation::overwrite, who + ", but r" + std::to_string(one.process) +
                                            " may still read what " + whose + " brought"};
        }
      }
      for (const int taker : takers_[static_cast<std::size_t>(where)]) {
        if (!issued(at, taker) || landed(at, taker) || flushed(at, taker)) continue;
        return {
            violation::source_reuse,
            who + ", but {" + programs_.named(programs_.store_at(taker)) + "} may still read it"};
      }
    }
    return {};
  }

  finding hazard_of_open(const state& at, int process, const operation& step) const {
    const std::string who = programs_.describe(process, step);
    for (const int writer : writers_[static_cast<std::size_t>(step.location)]) {
      if (programs_.store_at(writer).tag != step.tag) continue;
      if (landed(at, writer)) return {};
      return {violation::early_read, who + ", but its bytes may not have landed" +
                                         (issued(at, writer) ? "" : " (they were not even sent)")};
    }
    return {violation::early_read, who + ", but nobody sends that"};
  }

  /// Replays the path to `last`, so that the trace shows the rushed steps too.
  verdict report(const finding& bad, int last) const {
    std::vector<int> path;
    for (int i = last; i >= 0; i = nodes_[static_cast<std::size_t>(i)].parent) path.push_back(i);
    std::reverse(path.begin(), path.end());
    verdict made{bad.kind, std::string(name_of(bad.kind)) + ": " + bad.what, {}};
    state at;
    for (const int i : path) {
      take(at, nodes_[static_cast<std::size_t>(i)].by, &made.trace);
      rush(at, &made.trace);
    }
    made.trace.push_back(made.what);
    return made;
  }

  std::string stuck(const state& at) const {
    std::string text;
    for (int p = 0; p < programs_.processes(); ++p) {
      const operation* step = next_step(at, p);
      if (step != nullptr) text += "{" + programs_.describe(p, *step) + "} ";
    }
    return text + "never passes";
  }

  bool finished(const state& at) const {
    for (int p = 0; p < programs_.processes(); ++p) {
      if (next_step(at, p) != nullptr) return false;
    }
    return true;
  }

  const operation* next_step(const state& at, int process) const {
    const std::vector<operation>& program = programs_.program(process);
    const std::size_t position = at.position[static_cast<std::size_t>(process)];
    return position < program.size() ? &program[position] : nullptr;
  }

  bool issued(const state& at, int index) const {
    const store& one = programs_.store_at(index);
    return at.position[static_cast<std::size_t>(one.process)] > one.position;
  }

  bool landed(const state& at, int index) const {
    if (programs_.store_at(index).signal < 0) return issued(at, index);
    return at.landed.test(static_cast<std::size_t>(index));
  }

  bool flushed(const state& at, int index) const {
    const store& one = programs_.store_at(index);
    const std::vector<operation>& program = programs_.program(one.process);
    for (int i = one.position; i < at.position[static_cast<std::size_t>(one.process)]; ++i) {
      if (program[static_cast<std::size_t>(i)].kind == operation_kind::flush) return true;
    }
    return false;
  }

  const std::vector<reader>& readers_of(int location, int tag) const {
    static const std::vector<reader> kNobody;
    const auto at = readers_.find({location, tag});
    return at == readers_.end() ? kNobody : at->second;
  }

  const program_set& programs_;
  std::size_t limit_;
  std::vector<node> nodes_;
  std::unordered_set<int, hash, equal> seen_;
  std::vector<std::vector<int>> writers_;  // stores to each location
  std::vector<std::vector<int>> takers_;   // puts whose source is that location
  std::vector<std::vector<int>> puts_on_;  // puts that grow each signal
  std::map<std::pair<int, int>, std::vector<reader>> readers_;
};

/// Explores `examined` with the reduction.
inline verdict explore(const program_set& examined) {
  return explorer(examined).run();
}

}  // namespace eptransport::model
