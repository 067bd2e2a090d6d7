// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The command ring as a small machine, explored in every interleaving.
///
/// Each agent's stores go into a pool of its own and become visible to the others one by one, in
/// any order, but for two rules: stores to one location keep their order, and a release store comes
/// after everything its agent stored before it. So the two words of an entry may be seen apart, and
/// a word of the tail late. Loads see what is visible, or what their own agent stored. Producers
/// that share a head move it by an atomic exchange, as proxy/ring.hpp does.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <unordered_set>
#include <vector>

namespace eptransport::model {

/// The ring's rules, and each way to break one.
struct ring_rules {
  int slots = 2;
  int commands = 5;       ///< of each producer
  int producers = 1;      ///< several share a head
  int publish_every = 1;  ///< pops between publications of the tail
  bool publish_when_dry = true;
  bool parity_in_both_words = true;
  bool entry_releases = true;     ///< entries are release stores
  bool lap_in_parity = true;      ///< false: a slot is taken for new when it is not zero
  bool looks_at_tail = true;      ///< false: the producer trusts that there is room
  bool reads_before_tail = true;  ///< false: the tail is published before the payload is read
};

/// What an exploration found.
struct ring_verdict {
  std::string wrong;               ///< empty if nothing
  std::vector<std::string> trace;  ///< how it came about
  std::size_t states = 0;
};

/// Explores all interleavings of one ring.
class ring_explorer {
 public:
  explicit ring_explorer(const ring_rules& rules) : rules_(rules) {}

  ring_verdict run() {
    add(start(), -1, "start");
    for (std::size_t at = 0; at < nodes_.size() && verdict_.wrong.empty(); ++at) expand(at);
    verdict_.states = nodes_.size();
    return verdict_;
  }

 private:
  static constexpr int max_slots = 4;
  static constexpr int max_producers = 2;
  static constexpr int consumer = max_producers;
  // Locations: two words and a payload for each slot, then the tail.
  static constexpr int tail_at = 3 * max_slots;
  static constexpr int locations = tail_at + 1;

  struct store {
    std::uint8_t at = 0;
    std::uint8_t value = 0;
    bool release = false;
    bool operator==(const store&) const = default;
  };
  struct producer_state {
    std::uint8_t step = 0;  ///< 0 look, 1 payload, 2 first word, 3 second word
    std::uint8_t position = 0;
    std::uint8_t made = 0;
  };
  struct state {
    std::array<std::uint8_t, locations> memory{};
    std::array<std::vector<store>, max_producers + 1> pool;
    std::array<producer_state, max_producers> producers;
    std::uint8_t head = 0;
    std::uint8_t step = 0;  ///< of the consumer: 0 look, 1 payload, 2 pop
    std::uint8_t position = 0;
    std::uint8_t published = 0;
    std::uint8_t value = 0;  ///< the command that the consumer holds
    std::array<std::uint8_t, max_producers> next{};
  };
  struct node {
    state at;
    int parent;
    std::string by;
  };

  static int word_at(int slot, int half) { return 3 * slot + half; }
  static int payload_at(int slot) { return 3 * slot + 2; }

  /// A word: its command's number and the parity of its lap in the top bit, if it carries one.
  [[nodiscard]] std::uint8_t word(int position, int half, int number) const {
    const bool has = half == 1 || rules_.parity_in_both_words;
    const int parity = (position / rules_.slots + 1) & 1;
    return static_cast<std::uint8_t>(number | (has && rules_.lap_in_parity ? parity << 7 : 0));
  }
  [[nodiscard]] bool is_new(int position, int half, std::uint8_t seen) const {
    if (!rules_.lap_in_parity) return seen != 0;
    if (half == 0 && !rules_.parity_in_both_words) return true;
    return (seen >> 7) == ((position / rules_.slots + 1) & 1);
  }

  [[nodiscard]] state start() const { return {}; }

  /// What `agent` loads: its own latest store, or what is visible.
  static std::uint8_t load(const state& s, int agent, int at) {
    const auto& own = s.pool[static_cast<std::size_t>(agent)];
    for (auto it = own.rbegin(); it != own.rend(); ++it) {
      if (it->at == at) return it->value;
    }
    return s.memory[static_cast<std::size_t>(at)];
  }
  static void put(state& s, int agent, int at, int value, bool release) {
    s.pool[static_cast<std::size_t>(agent)].push_back(
        {static_cast<std::uint8_t>(at), static_cast<std::uint8_t>(value), release});
  }

  void add(state s, int parent, const std::string& by) {
    std::string key(reinterpret_cast<const char*>(s.memory.data()), s.memory.size());
    const auto note = [&key](int value) { key += static_cast<char>(value); };
    for (const auto& pool : s.pool) {
      note(static_cast<int>(pool.size()));
      for (const store& one : pool) {
        note(one.at);
        note(one.value);
      }
    }
    for (const producer_state& p : s.producers) {
      note(p.step);
      note(p.position);
      note(p.made);
    }
    for (const int value :
         {s.head, s.step, s.position, s.published, s.value, s.next[0], s.next[1]}) {
      note(value);
    }
    if (!seen_.insert(key).second) return;
    nodes_.push_back({std::move(s), parent, by});
  }

  void fail(std::size_t at, const std::string& why) {
    verdict_.wrong = why;
    for (int i = static_cast<int>(at); i >= 0; i = nodes_[static_cast<std::size_t>(i)].parent) {
      verdict_.trace.insert(verdict_.trace.begin(), nodes_[static_cast<std::size_t>(i)].by);
    }
  }

  void expand(std::size_t at) {
    const std::size_t before = nodes_.size();
    bool moved = false;
    for (int agent = 0; agent <= consumer; ++agent) moved = deliver(at, agent) || moved;
    for (int p = 0; p < rules_.producers; ++p) moved = produce(at, p) || moved;
    moved = consume(at) || moved;
    if (!verdict_.wrong.empty() || moved || nodes_.size() != before) return;
    int consumed = 0;
    for (const std::uint8_t n : nodes_[at].at.next) consumed += n;
    if (consumed != rules_.commands * rules_.producers) {
      fail(at, "nothing can move, and " + std::to_string(consumed) + " commands were taken");
    }
  }

  /// One store becomes visible.
  bool deliver(std::size_t at, int agent) {
    const auto pool = nodes_[at].at.pool[static_cast<std::size_t>(agent)];
    bool any = false;
    for (std::size_t i = 0; i < pool.size(); ++i) {
      if (pool[i].release && i != 0) continue;
      const bool behind = std::any_of(pool.begin(), pool.begin() + static_cast<std::ptrdiff_t>(i),
                                      [&](const store& one) { return one.at == pool[i].at; });
      if (behind) continue;
      state s = nodes_[at].at;
      auto& own = s.pool[static_cast<std::size_t>(agent)];
      s.memory[pool[i].at] = pool[i].value;
      own.erase(own.begin() + static_cast<std::ptrdiff_t>(i));
      add(std::move(s), static_cast<int>(at),
          "visible: agent " + std::to_string(agent) + " location " + std::to_string(pool[i].at) +
              " = " + std::to_string(pool[i].value));
      any = true;
    }
    return any;
  }

  bool produce(std::size_t at, int who) {
    state s = nodes_[at].at;
    producer_state& p = s.producers[static_cast<std::size_t>(who)];
    if (p.made == rules_.commands) return false;
    const int slot = p.position % rules_.slots;
    // Numbers from 1: with several producers, the low bit names the producer.
    const int number = rules_.producers == 1 ? p.made + 1 : (p.made + 1) * 2 + who;
    switch (p.step) {
      case 0: {
        const int tail = load(s, who, tail_at);
        if (rules_.looks_at_tail && s.head - tail >= rules_.slots) return false;
        // Between the look and the exchange the head may move; the exchange fails then, and the
        // look is repeated: the same as looking and exchanging at once.
        p.position = s.head++;
        p.step = rules_.producers == 1 ? 1 : 2;
        break;
      }
      case 1:
        put(s, who, payload_at(slot), number, false);
        p.step = 2;
        break;
      case 2:
        put(s, who, word_at(slot, 0), word(p.position, 0, number), rules_.entry_releases);
        p.step = 3;
        break;
      default:
        put(s, who, word_at(slot, 1), word(p.position, 1, number), rules_.entry_releases);
        p.step = 0;
        ++p.made;
        break;
    }
    add(std::move(s), static_cast<int>(at),
        "producer " + std::to_string(who) + " command " + std::to_string(number) + " step " +
            std::to_string(nodes_[at].at.producers[static_cast<std::size_t>(who)].step));
    return true;
  }

  void publish(state& s) const {
    if (s.published == s.position) return;
    s.published = s.position;
    put(s, consumer, tail_at, s.position, true);
  }

  bool consume(std::size_t at) {
    state s = nodes_[at].at;
    const int slot = s.position % rules_.slots;
    std::string by;
    switch (s.step) {
      case 0: {
        const std::uint8_t first = load(s, consumer, word_at(slot, 0));
        const std::uint8_t second = load(s, consumer, word_at(slot, 1));
        if (!is_new(s.position, 0, first) || !is_new(s.position, 1, second)) {
          if (!rules_.publish_when_dry || s.published == s.position) return false;
          publish(s);
          by = "consumer: dry, publishes the tail";
          break;
        }
        if ((first & 0x7f) != (second & 0x7f)) {
          fail(at, "the words of position " + std::to_string(s.position) +
                       " are of two commands: " + std::to_string(first & 0x7f) + " and " +
                       std::to_string(second & 0x7f));
          return false;
        }
        s.value = first & 0x7f;
        if (!in_order(s)) {
          fail(at, "command " + std::to_string(s.value) + " was lost, repeated or out of order");
          return false;
        }
        if (!rules_.reads_before_tail) put(s, consumer, tail_at, s.position + 1, true);
        s.step = rules_.producers == 1 ? 1 : 2;
        by = "consumer takes command " + std::to_string(s.value);
        break;
      }
      case 1:
        if (load(s, consumer, payload_at(slot)) != s.value) {
          fail(at, "the payload of command " + std::to_string(s.value) + " is that of " +
                       std::to_string(load(s, consumer, payload_at(slot))));
          return false;
        }
        s.step = 2;
        by = "consumer reads the payload";
        break;
      default:
        ++s.position;
        if (s.position - s.published >= rules_.publish_every) publish(s);
        s.step = 0;
        by = "consumer pops";
        break;
    }
    add(std::move(s), static_cast<int>(at), by);
    return true;
  }

  /// Counts the command; false if it is not its producer's next.
  [[nodiscard]] bool in_order(state& s) const {
    const int who = rules_.producers == 1 ? 0 : s.value & 1;
    const int index = rules_.producers == 1 ? s.value - 1 : s.value / 2 - 1;
    return s.next[static_cast<std::size_t>(who)]++ == index;
  }

  ring_rules rules_;
  ring_verdict verdict_;
  std::vector<node> nodes_;
  std::unordered_set<std::string> seen_;
};

}  // namespace eptransport::model
