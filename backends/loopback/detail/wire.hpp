// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Messages in flight, and the random order in which they land.
///
/// A message is a list of pieces of bytes and one signal. A *step* lands one thing: a random piece
/// of a random message, or, once its pieces have landed, its signal. Where the profile keeps order
/// per channel, signals of one (source, channel, peer) land in issue order, bytes still do not. The
/// source is read when a piece lands, as late as the contract allows.
#pragma once

#include <eptransport/backends/loopback/detail/random.hpp>
#include <eptransport/core/config.hpp>
#include <eptransport/core/transport.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace eptransport::loopback_detail {

struct piece {
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
};

struct message {
  int source = 0;
  std::uint32_t channel = 0;
  put_request request;
  bool ordered = false;          ///< its wire keeps the order per channel
  std::uint64_t serial = 0;      ///< issue order in the world
  double arrival_ns = 0;         ///< modelled
  std::uint64_t held_until = 0;  ///< lands no earlier than this time; 0 = at any moment
  std::size_t index = 0;         ///< its place among those that can land
  std::vector<piece> pieces;     ///< still to land
  std::vector<std::byte> copy;   ///< of the source, once the caller may reuse it

  [[nodiscard]] const std::byte* bytes() const noexcept {
    return copy.empty() ? request.src : copy.data();
  }
};

/// Cuts `bytes` into at most `max_chunks` pieces at random places.
[[nodiscard]] inline std::vector<piece> tear(std::uint64_t bytes, std::uint32_t max_chunks,
                                             dice& random) {
  std::vector<std::uint64_t> cuts{0};
  if (bytes == 0) return {};
  const std::uint64_t count = random.below(max_chunks);
  for (std::uint64_t i = 0; i < count; ++i) cuts.push_back(random.below(bytes));
  cuts.push_back(bytes);
  std::sort(cuts.begin(), cuts.end());
  std::vector<piece> pieces;
  for (std::size_t i = 1; i < cuts.size(); ++i) {
    if (cuts[i] != cuts[i - 1]) pieces.push_back({cuts[i - 1], cuts[i] - cuts[i - 1]});
  }
  return pieces;
}

/// Where landed things go. Called under the engine's lock.
class landing_ground {
 public:
  virtual void land_piece(const message& m, piece p) = 0;
  virtual void land_signal(const message& m) = 0;  ///< the message has left the wire

 protected:
  ~landing_ground() = default;
};

/// What the wire must know of a world.
struct wire_shape {
  int ranks = 0;
  std::uint32_t channels = 1;
  bool in_order = false;
};

/// The messages in flight.
///
/// @par Threads  Every function is called under the engine's lock.
class wire {
 public:
  using message_pointer = std::unique_ptr<message>;

  wire(landing_ground& ground, dice& random, trace& decisions, const wire_shape& shape)
      : ground_(ground), random_(random), trace_(decisions), shape_(shape) {
    const auto ranks = static_cast<std::size_t>(shape.ranks);
    in_flight_.resize(ranks * shape.channels);
    if (shape.in_order) flows_.resize(ranks * shape.channels * ranks);
  }

  void send(message_pointer m) {
    ++in_flight_[queue_of(*m)];
    if (in_order(*m)) {
      auto& flow = flows_[flow_of(*m)];
      // What an ordered wire holds up, it holds up with all that follows.
      if (!flow.empty()) m->held_until = std::max(m->held_until, flow.back()->held_until);
      flow.push_back(m.get());
    }
    if (m->held_until != 0) {
      held_.push_back(std::move(m));
    } else {
      take_off(std::move(m));
    }
  }

  /// Lands one random thing.
  /// @returns false if nothing is in flight
  bool step() {
    if (flying_.empty()) return false;
    message* m = flying_[random_.below(flying_.size())].get();
    if (m->pieces.empty() && in_order(*m)) m = flows_[flow_of(*m)].front();
    trace_.add((std::uint64_t{2} << 40U) + m->serial * 64 + m->pieces.size());
    if (m->pieces.empty()) {
      ground_.land_signal(*remove(m->index));
    } else {
      land(*m, random_.below(m->pieces.size()));
    }
    return true;
  }

  [[nodiscard]] std::uint64_t next_held_ns() const noexcept {
    std::uint64_t next = no_deadline;
    for (const auto& m : held_) next = std::min(next, m->held_until);
    return next;
  }

  /// Messages held until `upto` or less can land from now on.
  void release_held(std::uint64_t upto) {
    std::vector<message_pointer> still_held;
    for (auto& m : held_) {
      if (m->held_until > upto) {
        still_held.push_back(std::move(m));
      } else {
        m->held_until = 0;
        take_off(std::move(m));
      }
    }
    held_ = std::move(still_held);
  }

  /// Lands everything, held or not.
  void drain() {
    release_held(no_deadline);
    while (step()) {
    }
  }

  /// From now on the sources of this channel's messages are not read any more: each is copied, or
  /// its bytes land.
  void flush(int source, std::uint32_t channel) {
    for_each([&](message& m) {
      if (m.source == source && m.channel == channel) give_back_source(m, random_.chance(8));
    });
  }

  /// The rank will not flush any more: the sources of its messages are copied.
  void keep_sources(int source) {
    for_each([&](message& m) {
      if (m.source == source) give_back_source(m, true);
    });
  }

  /// The rank is gone: what it had in flight may or may not land.
  void abandon(int source) {
    if (shape_.in_order) return;  // what is lost here would have to take its successors along
    for (std::size_t at = 0; at < flying_.size();) {
      if (flying_[at]->source == source && random_.chance(8)) {
        remove(at);
      } else {
        ++at;
      }
    }
  }

  [[nodiscard]] std::uint64_t in_flight(int source, std::uint32_t channel) const noexcept {
    return in_flight_[static_cast<std::size_t>(source) * shape_.channels + channel];
  }

 private:
  [[nodiscard]] bool in_order(const message& m) const noexcept {
    return shape_.in_order && m.ordered;
  }
  [[nodiscard]] std::size_t queue_of(const message& m) const noexcept {
    return static_cast<std::size_t>(m.source) * shape_.channels + m.channel;
  }

  [[nodiscard]] std::size_t flow_of(const message& m) const noexcept {
    return queue_of(m) * static_cast<std::size_t>(shape_.ranks) +
           static_cast<std::size_t>(m.request.peer);
  }

  template <class Function>
  void for_each(const Function& function) {
    for (auto& m : flying_) function(*m);
    for (auto& m : held_) function(*m);
  }

  void take_off(message_pointer m) {
    m->index = flying_.size();
    flying_.push_back(std::move(m));
  }

  message_pointer remove(std::size_t at) {
    message_pointer m = std::move(flying_[at]);
    flying_[at] = std::move(flying_.back());
    flying_.pop_back();
    if (at < flying_.size()) flying_[at]->index = at;
    --in_flight_[queue_of(*m)];
    if (in_order(*m)) std::erase(flows_[flow_of(*m)], m.get());
    return m;
  }

  void land(message& m, std::size_t index) {
    ground_.land_piece(m, m.pieces[index]);
    m.pieces[index] = m.pieces.back();
    m.pieces.pop_back();
  }

  void give_back_source(message& m, bool copy) {
    if (m.pieces.empty() || !m.copy.empty()) return;
    if (copy) {
      m.copy.assign(m.request.src, m.request.src + m.request.bytes);
    } else {
      while (!m.pieces.empty()) land(m, m.pieces.size() - 1);
    }
  }

  landing_ground& ground_;
  dice& random_;
  trace& trace_;
  wire_shape shape_;
  std::vector<message_pointer> flying_;
  std::vector<message_pointer> held_;
  std::vector<std::uint64_t> in_flight_;      ///< [rank][channel]
  std::vector<std::vector<message*>> flows_;  ///< [rank][channel][peer], in issue order
};

}  // namespace eptransport::loopback_detail
