// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The language of the model: straight-line programs over locations, signals and puts.
///
/// A *process* (one rank's kernel) runs a list of operations. A *location* is a piece of some
/// rank's window or staging; its content is a *tag* that names who should be found there. A
/// *signal* is a counter that grows by one when a put that names it has landed.
#pragma once

#include <cstddef>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace eptransport::model {

enum class operation_kind { put, write, wait, open, close, flush };

/// One step of a program.
struct operation {
  operation_kind kind = operation_kind::flush;
  int store = -1;     ///< put, write: index into `program_set::stores()`
  int signal = -1;    ///< wait
  int at_least = 0;   ///< wait: passes once the signal has reached this count
  int location = -1;  ///< open, close
  int tag = 0;        ///< open, close: the content that this reader expects
};

/// A put, or a local write, which is a put that needs no signal and lands at once.
struct store {
  int process = 0;
  int position = 0;            ///< index of the operation in the program of `process`
  std::vector<int> locations;  ///< written piece by piece, in any order; may be empty
  int signal = -1;             ///< -1: a local write
  int tag = 0;
  int source = -1;  ///< a location written locally by the same process; -1: a source nobody reuses
};

/// The named arguments of `program_set::put`.
struct put_arguments {
  std::vector<std::string> to;
  std::string signal;
  int tag = 0;
  std::string source = {};
};

/// A reader keeps (location, tag) intact until it has passed operation `close_position`.
struct reader {
  int process = 0;
  int close_position = std::numeric_limits<int>::max();  ///< max: it reads until the end of time
};

/// The programs of all processes and what they share. Build it operation by operation.
class program_set {
 public:
  explicit program_set(int processes) : programs_(static_cast<std::size_t>(processes)) {}

  /// Starts a one-sided copy: its bytes land at any time from now on, its signal after them.
  void put(int process, const put_arguments& arguments) {
    store made;
    for (const std::string& name : arguments.to) made.locations.push_back(location(name));
    made.signal = signal(arguments.signal);
    made.tag = arguments.tag;
    if (!arguments.to.empty() && !arguments.source.empty()) {
      made.source = location(arguments.source);
    }
    add_store(process, operation_kind::put, std::move(made));
  }

  /// Overwrites a location of the process's own memory.
  void write(int process, const std::string& name, int tag) {
    store made;
    made.locations.push_back(location(name));
    made.tag = tag;
    add_store(process, operation_kind::write, std::move(made));
  }

  /// Waits until the signal has grown by `more` beyond what earlier waits on it asked for.
  void wait(int process, const std::string& name, int more) {
    if (more == 0) return;
    operation made{operation_kind::wait};
    made.signal = signal(name);
    made.at_least = expected_[made.signal] += more;
    program_of(process).push_back(made);
  }

  void open(int process, const std::string& name, int tag) {
    add_reading(process, operation_kind::open, name, tag);
  }

  void close(int process, const std::string& name, int tag) {
    add_reading(process, operation_kind::close, name, tag);
  }

  /// Waits until the sources of all earlier puts of this process have been read.
  void flush(int process) { program_of(process).push_back({operation_kind::flush}); }

  /// Makes a mutant: exchanges an operation with the next one of the same program.
  void swap_with_next(int process, std::size_t position) {
    std::vector<operation>& program = program_of(process);
    std::swap(program[position], program[position + 1]);
    for (std::size_t i = position; i <= position + 1; ++i) {
      if (program[i].store < 0) continue;
      stores_[static_cast<std::size_t>(program[i].store)].position = static_cast<int>(i);
    }
  }

  int processes() const { return static_cast<int>(programs_.size()); }
  const std::vector<operation>& program(int process) const {
    return programs_[static_cast<std::size_t>(process)];
  }
  const std::vector<store>& stores() const { return stores_; }
  const store& store_at(int index) const { return stores_[static_cast<std::size_t>(index)]; }
  int locations() const { return static_cast<int>(location_names_.size()); }
  int signals() const { return static_cast<int>(signal_names_.size()); }
  const std::string& location_name(int index) const {
    return location_names_[static_cast<std::size_t>(index)];
  }

  /// What the model cannot represent about these programs; empty if nothing.
  ///
  /// Each (location, tag) has one store. A location is a landing place (puts only) or staging
  /// (local writes of one process only); a put's source is staging that holds the put's tag.
  std::string defect() const {
    std::set<std::pair<int, int>> seen;
    std::map<int, int> local_writer;  // -1: written by puts
    for (const store& one : stores_) {
      const int writer = one.signal < 0 ? one.process : -1;
      for (const int at : one.locations) {
        if (!seen.insert({at, one.tag}).second) return "two stores of one tag: " + named(one);
        if (local_writer.try_emplace(at, writer).first->second != writer) {
          return "a location of two kinds of writer: " + named(one);
        }
      }
    }
    for (const store& one : stores_) {
      if (one.source >= 0 && staged_tag(one) != one.tag) return "a wrong source: " + named(one);
    }
    return {};
  }

  /// The readers of each (location, tag), with the place where each stops reading.
  std::map<std::pair<int, int>, std::vector<reader>> readers() const {
    std::map<std::pair<int, int>, std::vector<reader>> found;
    for (int p = 0; p < processes(); ++p) {
      const std::vector<operation>& steps = program(p);
      for (std::size_t i = 0; i < steps.size(); ++i) {
        if (steps[i].kind != operation_kind::open) continue;
        reader made{p};
        for (std::size_t j = i + 1; j < steps.size(); ++j) {
          if (steps[j].kind != operation_kind::close || steps[j].tag != steps[i].tag ||
              steps[j].location != steps[i].location) {
            continue;
          }
          made.close_position = static_cast<int>(j);
          break;
        }
        found[{steps[i].location, steps[i].tag}].push_back(made);
      }
    }
    return found;
  }

  /// One operation in words, for traces.
  std::string describe(int process, const operation& op) const {
    std::string text = "r" + std::to_string(process) + ": ";
    switch (op.kind) {
      case operation_kind::put:
      case operation_kind::write:
        return text + named(store_at(op.store));
      case operation_kind::wait:
        return text + "wait " + signal_names_[static_cast<std::size_t>(op.signal)] +
               " >= " + std::to_string(op.at_least);
      case operation_kind::open:
        text += "open ";
        break;
      case operation_kind::close:
        text += "close ";
        break;
      case operation_kind::flush:
        return text + "flush";
    }
    return text + location_name(op.location) + " tag " + std::to_string(op.tag);
  }

  /// A store in words.
  std::string named(const store& one) const {
    std::string text = one.signal < 0 ? "write" : "put";
    for (const int at : one.locations) text += " " + location_name(at);
    text += " tag " + std::to_string(one.tag);
    if (one.source >= 0) text += " from " + location_name(one.source);
    if (one.signal < 0) return text;
    return text + " signal " + signal_names_[static_cast<std::size_t>(one.signal)];
  }

 private:
  static int index_in(std::map<std::string, int>& table, std::vector<std::string>& names,
                      const std::string& name) {
    const auto [at, inserted] = table.try_emplace(name, static_cast<int>(names.size()));
    if (inserted) names.push_back(name);
    return at->second;
  }
  int location(const std::string& name) { return index_in(location_of_, location_names_, name); }
  int signal(const std::string& name) { return index_in(signal_of_, signal_names_, name); }
  std::vector<operation>& program_of(int process) {
    return programs_[static_cast<std::size_t>(process)];
  }

  void add_store(int process, operation_kind kind, store made) {
    operation step{kind};
    step.store = static_cast<int>(stores_.size());
    made.process = process;
    made.position = static_cast<int>(program(process).size());
    stores_.push_back(std::move(made));
    program_of(process).push_back(step);
  }

  void add_reading(int process, operation_kind kind, const std::string& name, int tag) {
    operation step{kind};
    step.location = location(name);
    step.tag = tag;
    program_of(process).push_back(step);
  }

  /// The tag of the last local write to the put's source before the put; -1 if there is none.
  int staged_tag(const store& one) const {
    int tag = -1;
    for (int i = 0; i < one.position; ++i) {
      const operation& step = program(one.process)[static_cast<std::size_t>(i)];
      if (step.kind != operation_kind::write) continue;
      const store& staged = store_at(step.store);
      if (staged.locations.front() == one.source) tag = staged.tag;
    }
    return tag;
  }

  std::vector<std::vector<operation>> programs_;
  std::vector<store> stores_;
  std::map<std::string, int> location_of_;
  std::map<std::string, int> signal_of_;
  std::vector<std::string> location_names_;
  std::vector<std::string> signal_names_;
  std::map<int, int> expected_;
};

}  // namespace eptransport::model
