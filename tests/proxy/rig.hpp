// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Engines of several ranks in one thread, driven by hand: windows, rings, words, faults.
#pragma once

#include <eptransport/core/memory.hpp>
#include <eptransport/proxy/command.hpp>
#include <eptransport/proxy/engine.hpp>
#include <eptransport/proxy/fault_cell.hpp>
#include <eptransport/proxy/ring.hpp>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace eptransport::proxy::testing {

/// What a rig is made of.
struct rig_options {
  std::uint32_t ranks = 2;
  std::uint32_t signals = 8;
  std::uint64_t window_bytes = 4096;
  std::uint32_t rings = 1;  ///< of each engine
  std::uint64_t ring_slots = 64;
  std::uint64_t first_position = 0;
  engine_options engine{};
};

/// Memory of one rank.
struct rig_rank {
  std::vector<std::byte> window;
  std::vector<std::uint64_t> words;
  fault_cell fault;
  std::vector<std::vector<std::byte>> ring_memory;
  std::vector<ring_view> rings;
  std::vector<ring_producer<host_memory>> producers;
};

/// R ranks with one engine each, over endpoints that `make_endpoint(rank)` names.
template <class Endpoint>
class rig {
 public:
  using endpoint_source = std::function<Endpoint&(std::uint32_t)>;

  /// Ends the engines: declared behind the endpoints, which outlive them.
  struct engine_end {
    rig& of;
    ~engine_end() { of.engines_.clear(); }
  };

  explicit rig(const rig_options& options) : options_(options) {
    const auto layout = ring_layout::of(options.ring_slots);
    for (std::uint32_t r = 0; r < options.ranks; ++r) {
      rig_rank& rank = *ranks_.emplace_back(std::make_unique<rig_rank>());
      rank.window.resize(options.window_bytes);
      rank.words.resize(options.signals);
      for (std::uint32_t i = 0; i < options.rings; ++i) {
        rank.ring_memory.emplace_back(layout->bytes() + 128);
        const auto at = reinterpret_cast<std::uintptr_t>(rank.ring_memory.back().data());
        std::byte* start = rank.ring_memory.back().data() + (128 - at % 128) % 128;
        rank.rings.push_back(layout->make(start, options.first_position));
        rank.producers.emplace_back(rank.rings.back(), options.first_position);
      }
    }
  }

  /// Builds the engines; an error's text, or nothing.
  std::string build(const endpoint_source& endpoint_of) {
    const auto codec =
        command_codec::create({options_.ranks, options_.signals, options_.window_bytes, 0});
    if (!codec) return codec.error().message();
    codec_ = *codec;
    for (std::uint32_t r = 0; r < options_.ranks; ++r) {
      rig_rank& rank = *ranks_[r];
      auto made = engine<Endpoint>::create(
          endpoint_of(r), codec_, {r, options_.ranks, options_.signals}, options_.engine,
          {rank.rings, options_.first_position, rank.words.data(), &rank.fault});
      if (!made) return made.error().message();
      engines_.push_back(std::move(*made));
    }
    return {};
  }

  [[nodiscard]] std::vector<std::span<std::byte>> windows() {
    std::vector<std::span<std::byte>> all;
    for (auto& rank : ranks_) all.emplace_back(rank->window);
    return all;
  }
  [[nodiscard]] rig_rank& rank(std::uint32_t r) { return *ranks_[r]; }
  [[nodiscard]] engine<Endpoint>& at(std::uint32_t r) { return *engines_[r]; }
  [[nodiscard]] const command_codec& codec() const { return codec_; }

  [[nodiscard]] bool push(std::uint32_t r, const command& c, std::uint32_t ring = 0) {
    return ranks_[r]->producers[ring].push(codec_.encode(c));
  }
  /// Pushes; steps all engines while the ring is full.
  void push_or_step(std::uint32_t r, const command& c, std::uint32_t ring = 0) {
    while (!push(r, c, ring) && !ranks_[r]->fault.failed()) step_all();
  }
  void step_all() {
    for (auto& e : engines_) (void)e->step();
  }
  /// Steps until `done()`, at most `limit` rounds; whether it came to be.
  template <class Condition>
  bool until(const Condition& done, std::uint64_t limit = 1'000'000) {
    for (std::uint64_t i = 0; i < limit; ++i) {
      if (done()) return true;
      step_all();
    }
    return done();
  }
  [[nodiscard]] std::uint64_t word(std::uint32_t r, std::uint32_t signal) const {
    return host_memory::signal_acquire(&ranks_[r]->words[signal]);
  }
  /// All commands of the ring are complete: their sources are free.
  [[nodiscard]] bool complete(std::uint32_t r, std::uint32_t ring = 0) const {
    return host_memory::signal_acquire(ranks_[r]->rings[ring].complete) ==
           ranks_[r]->producers[ring].head();
  }
  [[nodiscard]] std::string why(std::uint32_t r) const {
    const auto why = ranks_[r]->fault.why();
    return why ? std::string() : why.error().message();
  }

 private:
  rig_options options_;
  std::vector<std::unique_ptr<rig_rank>> ranks_;
  command_codec codec_;
  std::vector<std::unique_ptr<engine<Endpoint>>> engines_;
};

}  // namespace eptransport::proxy::testing
