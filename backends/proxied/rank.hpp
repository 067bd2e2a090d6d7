// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief One proxied rank that stands alone: its peers are other processes, or other threads.
///
/// Ranks meet through a bootstrap, then talk through the ports of a wire. Building is collective:
/// window and engines first, then the comparison of settings, the exchange of addresses, and a
/// barrier, after which every rank takes what the others post. Teardown ends with a barrier too,
/// because a peer's data may move only while its target polls.
#pragma once

#include <eptransport/backends/proxied/detail/rank_parts.hpp>
#include <eptransport/backends/proxied/detail/rank_state.hpp>
#include <eptransport/backends/proxied/options.hpp>
#include <eptransport/backends/proxied/view.hpp>
#include <eptransport/core/config.hpp>
#include <eptransport/core/host_executor.hpp>
#include <eptransport/core/result.hpp>
#include <eptransport/core/transport.hpp>
#include <eptransport/proxy/bootstrap/bootstrap.hpp>
#include <eptransport/proxy/driver.hpp>
#include <eptransport/proxy/engine.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace eptransport {

/// One rank over the wire `Wire`, which names
///
/// - `caps`, and `name` for messages
/// - `ports_type`: `open(options, window, comms)`, `endpoint(comm)`, `address()`, `connect(all)`,
///   `bury(rank)`, as `proxy::fabric_ports` has them, and the types `options` and `endpoint_type`
///
/// @par Errors   A peer that dies fails every wait of this rank; `fault()` then names the rank that
///               died, as the bootstrap heard it, in front of what was noticed here.
/// @par Threads  One host thread at a time.
template <class Wire>
class proxied_rank {
 public:
  using transport_concept = transport_tag;
  using view_type = proxied_view;
  using executor_type = host_executor;
  using ports_type = typename Wire::ports_type;
  using engine_type = proxy::engine<typename ports_type::endpoint_type>;
  static constexpr capabilities caps = Wire::caps;

  /// How long a rank whose wire failed waits to hear who died, before its waiters are told.
  static constexpr std::uint64_t hearsay_ns = 200'000'000;
  /// How long the destructor waits for the other ranks. It is a collective call: a rank whose peers
  /// do not close within that time ends the job's bootstrap for all, which they see as a fault.
  static constexpr std::uint64_t closing_ns = 5'000'000'000;

  /// Collective. A rank that cannot go on aborts the bootstrap, so that the others end at once.
  ///
  /// @param meeting  outlives the rank
  /// @param options  `ranks`, `wire`, `srd`, `seed` and `broken_rank` are not looked at; `nodes`
  ///                 empty: as the bootstrap tells hosts apart
  /// @par Errors     `invalid_argument`; `unsupported` with both numbers; `mismatch` naming a rank;
  ///                 those of the wire and of the bootstrap
  [[nodiscard]] static result<std::unique_ptr<proxied_rank>> create(
      bootstrap& meeting, const proxied_options& options,
      const typename ports_type::options& wire = {}, std::uint64_t timeout_ns = 60'000'000'000) {
    std::unique_ptr<proxied_rank> made(new proxied_rank(meeting, options));
    result<void> built = made->build(wire, timeout_ns);
    if (!built) {
      meeting.abort(built.error().message());
      return built.error();
    }
    return result<std::unique_ptr<proxied_rank>>(std::move(made));
  }

  proxied_rank(const proxied_rank&) = delete;
  proxied_rank& operator=(const proxied_rank&) = delete;
  ~proxied_rank() {
    // Release, pairs with the acquire in `look`.
    closing_.store(true, std::memory_order_release);
    const bool works = !drivers_.empty() && !noticed_.failed() && !state_->fault.failed();
    const bool met = works && meeting_.barrier(closing_ns).has_value();
    drivers_.clear();
    // Nobody posts any more: what still arrives can be taken before an endpoint goes.
    if (met) (void)meeting_.barrier(closing_ns);
    bury_the_dead();
  }

  [[nodiscard]] view_type view() const noexcept { return view_type(*state_); }
  [[nodiscard]] executor_type& executor() noexcept { return executor_; }
  [[nodiscard]] std::span<std::byte> window() const noexcept {
    return {state_->memory.data(), state_->memory.bytes()};
  }
  [[nodiscard]] std::uint32_t signals() const noexcept { return state_->signals; }
  [[nodiscard]] result<void> barrier(std::uint64_t timeout_ns) {
    if (state_->fault.failed()) return fault();
    result<void> met = meeting_.barrier(timeout_ns);
    return !met && state_->fault.failed() ? fault() : met;
  }
  [[nodiscard]] result<void> fault() const { return state_->fault.why(); }

  /// For views of other devices.
  [[nodiscard]] proxied_detail::rank_state& state() noexcept { return *state_; }
  [[nodiscard]] const ports_type& ports() const noexcept { return *ports_; }
  [[nodiscard]] const proxy::engine_statistics& statistics(std::uint32_t comm) const {
    return engines_[comm]->statistics();
  }
  /// What the engines made of what was 0 in the options.
  [[nodiscard]] const proxy::engine_options& engine_options() const {
    return engines_.front()->options();
  }
  /// Where each proxy thread may run, as the system says.
  [[nodiscard]] std::vector<std::string> affinity() const {
    std::vector<std::string> all;
    for (const auto& d : drivers_) all.push_back(d->affinity());
    return all;
  }
  /// Waits until all that was pushed is posted and complete, at most a second.
  void quiet() { (void)state_->quiet(); }
  /// Nobody wrote beside the window.
  [[nodiscard]] bool intact() const noexcept { return state_->memory.intact(); }

 private:
  proxied_rank(bootstrap& meeting, const proxied_options& options)
      : meeting_(meeting), options_(options), executor_(options.workers) {
    options_.ranks = meeting.size();
    if (options_.nodes.empty()) options_.nodes = meeting.nodes();
    if (!options_.window.empty()) options_.window_bytes = options_.window.size();
  }

  result<void> build(const typename ports_type::options& wire, std::uint64_t timeout_ns) {
    if (const result<void> checked = proxied_detail::check(options_); !checked) return checked;
    if (options_.drive == proxy_drive::baton) {
      return failure{errc::unsupported, "proxied_rank::create",
                     "proxy_drive::baton needs all ranks in one proxied_world; use threads"};
    }
    // No message is longer than the window, whatever the kind of wire could carry.
    const std::uint64_t longest = std::min(caps.max_message, options_.window_bytes);
    auto state = proxied_detail::make_state(meeting_.rank(), options_, longest);
    if (!state) return state.error();
    state_ = std::move(*state);
    auto ports = ports_type::open(wire, window(), options_.comms);
    if (!ports) return ports.error();
    ports_ = std::move(*ports);
    for (std::uint32_t k = 0; k < options_.comms; ++k) {
      auto made = proxied_detail::make_engine(*state_, options_, k, ports_->endpoint(k), noticed_);
      if (!made) return made.error();
      engines_.push_back(std::move(*made));
    }
    if (auto agreed = meeting_.agree(Wire::name, settings(), timeout_ns); !agreed) return agreed;
    const auto own = ports_->address();
    if (!own) return own.error();
    const auto all = meeting_.all_gather(*own, timeout_ns);
    if (!all) return all.error();
    if (auto connected = ports_->connect(*all); !connected) return connected;
    // Providers that refuse strangers need every rank to know this one before it writes.
    if (auto met = meeting_.barrier(timeout_ns); !met) return met;
    start();
    return {};
  }

  /// What must be alike on all ranks.
  [[nodiscard]] std::string settings() const {
    const proxy::engine_options& e = engine_options();
    std::string text;
    const auto say = [&text](const char* name, std::uint64_t value) {
      text += (text.empty() ? "" : ", ") + std::string(name) + " " + std::to_string(value);
    };
    say("window", options_.window_bytes);
    say("signals", options_.signals);
    say("comms", options_.comms);
    say("eager", e.eager);
    say("slot_bytes", e.slot_bytes);
    say("slots_per_peer", e.slots_per_peer);
    say("writes_per_peer", e.writes_per_peer);
    return text;
  }

  /// An engine that also looks at the bootstrap.
  struct attentive {
    proxied_rank* self;
    engine_type* engine;
  };

  void start() {
    for (const auto& e : engines_) attentive_.push_back({this, e.get()});
    std::vector<proxy::driven> all;
    for (attentive& a : attentive_) {
      all.push_back(
          {&a,
           [](void* p) {
             const auto* both = static_cast<attentive*>(p);
             const bool moved = both->engine->step();
             both->self->look();
             return moved;
           },
           [](void* p) { static_cast<attentive*>(p)->engine->watch(); },
           [](void* p) { static_cast<attentive*>(p)->engine->statistics().naps.add(1); }});
    }
    drivers_ = proxied_detail::start_drivers(all, options_);
  }

  /// What a process leaves on its host when it is killed, nobody else removes.
  void bury_the_dead() {
    const std::vector<rank_place>& places = meeting_.places();
    for (const std::int32_t rank : meeting_.lost()) {
      const rank_place& its = places[static_cast<std::size_t>(rank)];
      const rank_place& own = places[static_cast<std::size_t>(meeting_.rank())];
      if (ports_ != nullptr && its.node == own.node) ports_->bury(static_cast<std::uint32_t>(rank));
    }
  }

  /// Brings together what the engines and the bootstrap noticed, and tells the other ranks.
  void look() {
    if (meeting_.healthy() && !noticed_.failed() && !state_->fault.failed()) return;
    // Acquire, pairs with the destructor's store: then a peer may have closed before this rank.
    if (closing_.load(std::memory_order_acquire)) return;
    if (looking_.exchange(true)) return;
    if (!state_->fault.failed()) state_->fault.report(explained());
    meeting_.abort(state_->fault.why().error().message());
  }

  /// The rank that died, as the bootstrap heard it, in front of what was noticed here: an engine
  /// may have noticed only that some other rank gave up because of it.
  [[nodiscard]] failure explained() const {
    using clock = std::chrono::steady_clock;
    const auto end = clock::now() + std::chrono::nanoseconds(hearsay_ns);
    while (meeting_.healthy() && clock::now() < end) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    const result<void> seen = noticed_.why();
    const result<void> heard = meeting_.status();
    if (heard) return seen.error();
    failure both = heard.error();
    if (!seen) both.detail += "; here: " + seen.error().message();
    return both;
  }

  bootstrap& meeting_;
  proxied_options options_;
  std::unique_ptr<proxied_detail::rank_state> state_;  ///< its fault is what waiters see
  proxy::fault_cell noticed_;                          ///< by the engines
  std::unique_ptr<ports_type> ports_;
  std::vector<std::unique_ptr<engine_type>> engines_;
  std::vector<attentive> attentive_;
  executor_type executor_;
  std::atomic<bool> closing_ = false;
  std::atomic<bool> looking_ = false;
  std::vector<std::unique_ptr<proxy::driver>> drivers_;  ///< last made, first stopped
};

}  // namespace eptransport
