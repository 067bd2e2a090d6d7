// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Two wires as one transport: one inside each node, one between nodes.
///
/// Both serve one window: a put lands in the same bytes whichever wire carries it. What the pair
/// promises is the weaker of the two promises, and `node_reach`, which lets kernels send the rows
/// for a node once, to a relay that fans them out.
#pragma once

#include <eptransport/backends/hybrid/node_map.hpp>
#include <eptransport/backends/hybrid/view.hpp>
#include <eptransport/core/capabilities.hpp>
#include <eptransport/core/config.hpp>
#include <eptransport/core/result.hpp>
#include <eptransport/core/transport.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace eptransport {

namespace detail {

/// The smaller of two limits, of which 0 is none.
[[nodiscard]] constexpr std::uint64_t tighter(std::uint64_t a, std::uint64_t b) noexcept {
  return a == 0 ? b : b == 0 ? a : std::min(a, b);
}

/// What two wires promise together. A put may take either.
[[nodiscard]] constexpr capabilities both(const capabilities& intra,
                                          const capabilities& inter) noexcept {
  const bool adds = intra.add == signal_add::any && inter.add == signal_add::any;
  return {.peer_reach = reach::maybe,
          .put_order = ordering::none,
          .add = adds ? signal_add::any : signal_add::one,
          .max_signals = tighter(intra.max_signals, inter.max_signals),
          .max_message = tighter(intra.max_message, inter.max_message),
          .inline_bytes = std::min(intra.needs_registered_source ? intra.inline_bytes : ~0ull,
                                   inter.needs_registered_source ? inter.inline_bytes : ~0ull),
          .needs_registered_source = intra.needs_registered_source || inter.needs_registered_source,
          .host_progress = intra.host_progress || inter.host_progress,
          .charge = inter.charge,
          .node_reach = true,
          .inner = intra.charge};
}

}  // namespace detail

/// One rank's end of two wires.
///
/// `Intra` reaches every rank of its node by load and store. It joins all ranks, or those of one
/// node alone, numbered by their order there. `Inter` joins all ranks.
///
/// @par Threads  One host thread at a time per object.
template <class Intra, class Inter>
class hybrid {
 public:
  static_assert(std::is_same_v<typename Intra::executor_type, typename Inter::executor_type>,
                "eptransport: both wires of a hybrid must run their kernels in the same place");
  static_assert(Intra::caps.peer_reach == reach::always,
                "eptransport: the wire inside a node must reach its ranks by load and store");

  using transport_concept = transport_tag;
  using view_type = hybrid_view<typename Intra::view_type, typename Inter::view_type>;
  using executor_type = typename Intra::executor_type;
  static constexpr capabilities caps = detail::both(Intra::caps, Inter::caps);

  /// @param intra, inter  outlive the hybrid; their windows are the same memory
  /// @param map           of all ranks; alike on all of them
  /// @par Errors  `invalid_argument`, with both numbers
  [[nodiscard]] static result<std::unique_ptr<hybrid>> create(Intra& intra, Inter& inter,
                                                              node_map map) {
    if (auto checked = check(intra, inter, map); !checked) return checked.error();
    std::unique_ptr<hybrid> made(new hybrid(intra, inter, std::move(map)));
    const auto ranks = static_cast<std::size_t>(made->map_.ranks());
    std::vector<std::int32_t> table = made->map_.node();
    const bool whole = intra.view().size() == made->map_.ranks();
    for (std::int32_t rank = 0; rank < made->map_.ranks(); ++rank) {
      table.push_back(whole ? rank : made->map_.local(rank));
    }
    const std::uint64_t bytes = 2 * ranks * sizeof(std::int32_t);
    auto memory = intra.executor().allocate(bytes);
    if (!memory) return memory.error();
    made->table_ = *memory;
    auto written = intra.executor().write(made->table_,
                                          reinterpret_cast<const std::byte*>(table.data()), bytes);
    if (!written) return written.error();
    return result<std::unique_ptr<hybrid>>(std::move(made));
  }

  hybrid(const hybrid&) = delete;
  hybrid& operator=(const hybrid&) = delete;
  ~hybrid() {
    if (table_ != nullptr) intra_.executor().release(table_);
  }

  [[nodiscard]] view_type view() const noexcept {
    return {intra_.view(), inter_.view(), reinterpret_cast<const std::int32_t*>(table_)};
  }
  [[nodiscard]] executor_type& executor() noexcept { return intra_.executor(); }
  [[nodiscard]] std::span<std::byte> window() const noexcept { return inter_.window(); }
  [[nodiscard]] std::uint32_t signals() const noexcept {
    return std::min(intra_.signals(), inter_.signals());
  }
  /// Node of each rank, 0 and up. [R]
  [[nodiscard]] std::span<const std::int32_t> nodes() const noexcept { return map_.node(); }
  [[nodiscard]] const node_map& map() const noexcept { return map_; }

  [[nodiscard]] result<void> barrier(std::uint64_t timeout_ns) {
    return inter_.barrier(timeout_ns);
  }
  [[nodiscard]] result<void> fault() const {
    if (auto inside = intra_.fault(); !inside) return inside;
    return inter_.fault();
  }

 private:
  hybrid(Intra& intra, Inter& inter, node_map map)
      : intra_(intra), inter_(inter), map_(std::move(map)) {}

  static result<void> check(const Intra& intra, const Inter& inter, const node_map& map) {
    const auto refuse = [](const std::string& why) {
      return failure{errc::invalid_argument, "hybrid::create", why};
    };
    const auto number = [](auto value) { return std::to_string(value); };
    const auto outer = inter.view();
    const auto inner = intra.view();
    if (map.ranks() != outer.size()) {
      return refuse("the node map has " + number(map.ranks()) + " ranks, the wire between nodes " +
                    number(outer.size()));
    }
    const std::int32_t own = map.size(map.node(outer.rank()));
    if (inner.size() != map.ranks() && inner.size() != own) {
      return refuse("the wire inside the node joins " + number(inner.size()) + " ranks, expected " +
                    number(own) + " (this node) or " + number(map.ranks()) + " (all)");
    }
    const std::int32_t here = inner.size() == map.ranks() ? outer.rank() : map.local(outer.rank());
    if (inner.rank() != here) {
      return refuse("this rank is " + number(inner.rank()) +
                    " on the wire inside the node, expected " + number(here));
    }
    if (intra.window().data() != inter.window().data() ||
        intra.window().size() != inter.window().size()) {
      return refuse("the wires have two windows (" + number(intra.window().size()) + " and " +
                    number(inter.window().size()) +
                    " bytes): register one wire's window with the other");
    }
    return {};
  }

  Intra& intra_;
  Inter& inter_;
  node_map map_;
  std::byte* table_ = nullptr;
};

}  // namespace eptransport
