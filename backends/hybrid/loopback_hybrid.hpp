// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Two simulated wires in one world: `Inner` inside each node, `Outer` between nodes.
#pragma once

#include <eptransport/backends/hybrid/hybrid.hpp>
// check: includes a simulated pair is made of both
#include <eptransport/backends/loopback/loopback.hpp>
#include <eptransport/core/config.hpp>
#include <eptransport/core/result.hpp>
#include <eptransport/core/transport.hpp>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace eptransport {

/// All ranks of one simulated machine with two wires. `loopback_options` mean what they mean there:
/// one schedule, one clock per rank, one window per rank; each wire has its own words, issuers and
/// links. `charge` replaces what `Outer` charges. Faults strike the operations of both wires.
///
/// @tparam Wire  `loopback`, or what is built like it
/// @par Threads  As `loopback_world`.
template <class Inner, class Outer, template <class> class Wire = loopback>
class hybrid_world {
 public:
  using inner_wire = Wire<Inner>;
  using outer_wire = Wire<Outer>;
  using transport = hybrid<inner_wire, outer_wire>;

  /// @par Errors  As `loopback_world::create`
  [[nodiscard]] static result<std::unique_ptr<hybrid_world>> create(
      const loopback_options& options) {
    for (const capabilities* caps : {&Inner::caps, &Outer::caps}) {
      const result<void> checked = loopback_detail::check(options, *caps);
      if (!checked) return checked.error();
    }
    std::vector<int> nodes = options.nodes;
    for (int rank = 0; nodes.size() < static_cast<std::size_t>(options.ranks); ++rank) {
      nodes.push_back(rank / Outer::ranks_per_node);
    }
    auto map = node_map::from_numbers(nodes);
    if (!map) return map.error();
    std::unique_ptr<hybrid_world> world(new hybrid_world(options, *map));
    if (!world->engine_.valid()) {
      return failure{errc::out_of_memory, "hybrid_world::create",
                     std::to_string(options.ranks) + " windows of " +
                         std::to_string(options.window_bytes) + " bytes"};
    }
    for (std::size_t rank = 0; rank < world->inner_.size(); ++rank) {
      auto made = transport::create(*world->inner_[rank], *world->outer_[rank], *map);
      if (!made) return made.error();
      world->ranks_.push_back(std::move(*made));
    }
    return result<std::unique_ptr<hybrid_world>>(std::move(world));
  }

  [[nodiscard]] transport& rank(int index) { return *ranks_[static_cast<std::size_t>(index)]; }

  /// The members below are those of `loopback_world`.
  void run(const std::function<void(transport&)>& function) {
    engine_.run([&](int index) { function(rank(index)); });
  }
  void advance(int rank, std::uint64_t ns) { engine_.advance(rank, ns); }
  [[nodiscard]] std::uint64_t messages(int rank) { return engine_.traffic(rank).messages; }
  [[nodiscard]] std::uint64_t bytes(int rank) { return engine_.traffic(rank).bytes; }
  [[nodiscard]] loopback_traffic traffic(int rank) { return engine_.traffic(rank); }
  [[nodiscard]] double modelled_ns(int rank) { return engine_.modelled_ns(rank); }
  void reset_statistics() { engine_.reset_statistics(); }
  [[nodiscard]] std::uint64_t trace_hash() { return engine_.trace_hash(); }
  [[nodiscard]] std::string violations() { return engine_.violations(); }

 private:
  hybrid_world(const loopback_options& options, const node_map& map)
      : engine_(Outer::caps, options, map.node(), &Inner::caps) {
    for (int index = 0; index < options.ranks; ++index) {
      inner_.push_back(std::make_unique<inner_wire>(engine_, index, true));
      outer_.push_back(std::make_unique<outer_wire>(engine_, index, false));
    }
  }

  loopback_detail::engine engine_;
  std::vector<std::unique_ptr<inner_wire>> inner_;
  std::vector<std::unique_ptr<outer_wire>> outer_;
  std::vector<std::unique_ptr<transport>> ranks_;
};

static_assert(check_transport<hybrid<loopback<profiles::nvlink>, loopback<profiles::efa_proxy>>>());

}  // namespace eptransport
