// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Pairs of simulated wires as backends of the conformance suite: two ranks a node.
#pragma once

#include <eptransport/backends/hybrid/loopback_hybrid.hpp>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "harness.hpp"
#include "loopback_backend.hpp"

namespace conformance {

/// A wire of which a hybrid knows no more than the contract: it cannot wait for two words at once.
template <class Profile>
class plain_wire {
 public:
  using loopback = eptransport::loopback<Profile>;

  class view_type {
   public:
    explicit view_type(const eptransport::loopback_view<Profile>& view) : view_(view) {}
    [[nodiscard]] std::int32_t rank() const { return view_.rank(); }
    [[nodiscard]] std::int32_t size() const { return view_.size(); }
    [[nodiscard]] std::int32_t node(std::int32_t peer) const { return view_.node(peer); }
    [[nodiscard]] std::uint32_t channels() const { return view_.channels(); }
    [[nodiscard]] std::uint64_t now_ns() const { return view_.now_ns(); }
    [[nodiscard]] std::byte* local() const { return view_.local(); }
    [[nodiscard]] std::byte* peer_pointer(std::int32_t peer, std::uint64_t offset,
                                          std::uint64_t bytes) const {
      return view_.peer_pointer(peer, offset, bytes);
    }
    template <eptransport::ThreadGroup G>
    op_status put(const G& g, std::uint32_t channel, const eptransport::put_request& request,
                  std::uint64_t deadline_ns) const {
      return view_.put(g, channel, request, deadline_ns);
    }
    template <eptransport::ThreadGroup G>
    op_status signal(const G& g, std::uint32_t channel, std::int32_t peer, std::uint32_t signal,
                     std::uint64_t deadline_ns) const {
      return view_.signal(g, channel, peer, signal, deadline_ns);
    }
    [[nodiscard]] std::uint64_t read_signal(std::uint32_t signal) const {
      return view_.read_signal(signal);
    }
    template <eptransport::ThreadGroup G>
    op_status wait_signal(const G& g, std::uint32_t signal, std::uint64_t at_least,
                          std::uint64_t deadline_ns) const {
      return view_.wait_signal(g, signal, at_least, deadline_ns);
    }
    template <eptransport::ThreadGroup G>
    op_status flush(const G& g, std::uint32_t channel, std::uint64_t deadline_ns) const {
      return view_.flush(g, channel, deadline_ns);
    }
    template <eptransport::ThreadGroup G>
    void submit(const G& g, std::uint32_t channel) const {
      view_.submit(g, channel);
    }

   private:
    eptransport::loopback_view<Profile> view_;
  };

  using transport_concept = eptransport::transport_tag;
  using executor_type = typename loopback::executor_type;
  static constexpr eptransport::capabilities caps = Profile::caps;

  plain_wire(eptransport::loopback_detail::engine& world, int rank, bool inner)
      : wire_(world, rank, inner) {}
  [[nodiscard]] view_type view() const { return view_type(wire_.view()); }
  [[nodiscard]] executor_type& executor() { return wire_.executor(); }
  [[nodiscard]] std::span<std::byte> window() const { return wire_.window(); }
  [[nodiscard]] std::uint32_t signals() const { return wire_.signals(); }
  [[nodiscard]] eptransport::result<void> barrier(std::uint64_t timeout_ns) {
    return wire_.barrier(timeout_ns);
  }
  [[nodiscard]] eptransport::result<void> fault() const { return wire_.fault(); }

 private:
  loopback wire_;
};

/// nvlink inside the nodes, `Outer` between them, both as `Wire`.
template <class Outer, template <class> class Wire = eptransport::loopback>
struct hybrid_free {
  using world = eptransport::hybrid_world<eptransport::profiles::nvlink, Outer, Wire>;
  using transport = typename world::transport;
  static constexpr const char* name = "free";
  static constexpr std::uint64_t seeds = 24;
  static constexpr std::uint64_t patience_ns = 60'000'000'000;
  static constexpr bool one_process = true;
  static constexpr bool can_start_counters = true;
  static constexpr bool can_limit_queues = true;
  static constexpr bool can_break = true;

  static outcome run_world(eptransport::loopback_options options,
                           const std::function<void(transport&)>& per_rank, report& out) {
    for (int rank = 0; rank < options.ranks; ++rank) options.nodes.push_back(rank / 2);
    auto made = world::create(options);
    if (!made) {
      out.add(made.error().message());
      return {};
    }
    (*made)->run(per_rank);
    if (const std::string text = (*made)->violations(); !text.empty()) out.add(text);
    outcome end{(*made)->trace_hash(), 0};
    for (int rank = 0; rank < options.ranks; ++rank) end.modelled_ns += (*made)->modelled_ns(rank);
    return end;
  }

  static void run(const world_request& request, const std::function<void(transport&)>& per_rank,
                  report& out) {
    eptransport::loopback_options options = to_options(request);
    options.mode = eptransport::run_mode::free;
    if (request.seed % 2 == 1) options.order = eptransport::delivery::shuffled;
    options.max_delay_ns = request.seed % 3 * 10000;
    run_world(options, per_rank, out);
  }
};

/// The same, one thread at a time and replayed.
template <class Outer>
struct hybrid_baton : hybrid_free<Outer> {
  using typename hybrid_free<Outer>::transport;
  static constexpr const char* name = Outer::name;
  static constexpr std::uint64_t seeds = baton_seeds;
  static constexpr std::uint64_t patience_ns = 1'000'000'000;

  static void run(const world_request& request, const std::function<void(transport&)>& per_rank,
                  report& out) {
    eptransport::loopback_options options = to_options(request);
    options.order = eptransport::delivery::shuffled;
    options.max_delay_ns = request.seed % 2 * 5000;
    const outcome first = hybrid_free<Outer>::run_world(options, per_rank, out);
    const outcome again = hybrid_free<Outer>::run_world(options, per_rank, out);
    if (first.hash != again.hash) out.add("the same seed made other decisions");
    if (first.modelled_ns < again.modelled_ns || first.modelled_ns > again.modelled_ns) {
      out.add("the same seed took another modelled time");
    }
  }
};

}  // namespace conformance
