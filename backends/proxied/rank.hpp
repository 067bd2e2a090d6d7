// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief One proxied rank that stands alone: its peers are other processes, or other threads.
///
/// Ranks meet through a bootstrap, then talk through the ports of a wire. Building is collective:
/// window and engines first, then the comparison of settings, the exchange of addresses, and a
/// barrier, after which every rank takes what the others post. Teardown begins with a barrier,
/// behind which nobody begins a post. Every rank then says how much it has posted to whom, and goes
/// on polling, because data may move only while their target polls, until all have what was posted
/// to them. Then threads and endpoints go.
///
/// A wire may keep a proxy thread for ever: shm takes locks in memory that a peer shares, and one
/// that stopped or died with such a lock in its hand gives it back to nobody. That thread is left
/// behind when the rank closes, with all that it may still touch. And a wire may not bear that an
/// endpoint is closed while something is on its way to it: where the ranks could not agree that
/// nothing is, the endpoints of such a wire stay open, without a thread and without the window.
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
#include <cstring>
#include <deque>
#include <memory>
#include <mutex>
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
///   `bury(rank)`, `closes_only_at_rest()`, `withdraw()`, as `proxy::fabric_ports` has them, and
///   the types `options` and `endpoint_type`
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
  /// How long a proxy thread may take to come back from the wire when the rank closes.
  static constexpr std::uint64_t stopping_ns = 2'000'000'000;

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
  ~proxied_rank() { (void)close(); }

  /// What the destructor does, for those who want to know. Collective; nothing but the destructor
  /// may be called after it.
  ///
  /// @param patience_ns  for what is posted to be complete, again for it to arrive, and again for
  ///                     the proxy threads to come back from the wire; above `closing_ns` it counts
  ///                     as that, since the other ranks wait no longer
  /// @par Errors  `transport_failed` where a thread did not, or where the ranks did not come to
  ///              rest together on a wire that closes only then: what is left behind, the window,
  ///              the rings and the endpoints of this rank stay until the process ends
  result<void> close(std::uint64_t patience_ns = stopping_ns) {
    if (std::exchange(closed_, true)) return {};
    // In one order with `attentive::look`: no thread begins to look any more.
    parts_->closing.store(true);
    const std::chrono::nanoseconds patience(std::min(patience_ns, closing_ns));
    const bool at_rest = parts_->drivers.empty() || come_to_rest(patience);
    for (const auto& d : parts_->drivers) d->request_stop();
    const auto end = std::chrono::steady_clock::now() + patience;
    std::size_t stuck = 0;
    for (const auto& d : parts_->drivers) stuck += d->stop_until(end) ? 0 : 1;
    // A thread that is left behind may be here instead of in the wire, for `hearsay_ns` at most.
    for (const attentive& a : parts_->watched) {
      while (a.looks.load()) std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
    bury_the_dead();
    const bool stays = !at_rest && parts_->ports->closes_only_at_rest();
    if (stuck == 0 && !stays) return {};
    keep_for_ever(parts_);
    if (stuck == 0) parts_->ports->withdraw();
    parts_->ports->bury(static_cast<std::uint32_t>(meeting_.rank()));
    return left_behind(stuck);
  }

  [[nodiscard]] view_type view() const noexcept { return view_type(*parts_->state); }
  [[nodiscard]] executor_type& executor() noexcept { return executor_; }
  [[nodiscard]] std::span<std::byte> window() const noexcept {
    return {parts_->state->memory.data(), parts_->state->memory.bytes()};
  }
  [[nodiscard]] std::uint32_t signals() const noexcept { return parts_->state->signals; }
  [[nodiscard]] result<void> barrier(std::uint64_t timeout_ns) {
    if (state().fault.failed()) return fault();
    result<void> met = meeting_.barrier(timeout_ns);
    return !met && state().fault.failed() ? fault() : met;
  }
  [[nodiscard]] result<void> fault() const { return parts_->state->fault.why(); }

  /// For views of other devices.
  [[nodiscard]] proxied_detail::rank_state& state() noexcept { return *parts_->state; }
  [[nodiscard]] const ports_type& ports() const noexcept { return *parts_->ports; }
  [[nodiscard]] const proxy::engine_statistics& statistics(std::uint32_t comm) const {
    return parts_->engines[comm]->statistics();
  }
  /// What the engines made of what was 0 in the options.
  [[nodiscard]] const proxy::engine_options& engine_options() const {
    return parts_->engines.front()->options();
  }
  /// Where each proxy thread may run, as the system says.
  [[nodiscard]] std::vector<std::string> affinity() const {
    std::vector<std::string> all;
    for (const auto& d : parts_->drivers) all.push_back(d->affinity());
    return all;
  }
  /// Waits until all that was pushed is posted and complete, at most a second.
  void quiet() { (void)state().quiet(); }
  /// Nobody wrote beside the window.
  [[nodiscard]] bool intact() const noexcept { return parts_->state->memory.intact(); }

 private:
  struct machinery;

  /// An engine that also looks at the bootstrap.
  struct attentive {
    attentive(machinery* its, engine_type* one) : all(its), engine(one) {}

    machinery* all;
    engine_type* engine;
    std::atomic<bool> looks = false;  ///< the bootstrap is in use

    void look() {
      // In one order with `close`: this sees that the rank closes, or `close` sees that this looks.
      looks.store(true);
      if (!all->closing.load()) all->look();
      looks.store(false);
    }
  };

  /// All that proxy threads touch.
  struct machinery {
    explicit machinery(bootstrap& its) : meeting(its) {}

    bootstrap& meeting;  ///< may be gone once the rank has closed
    std::shared_ptr<const void> window_owner;
    std::unique_ptr<proxied_detail::rank_state> state;  ///< its fault is what waiters see
    proxy::fault_cell noticed;                          ///< by the engines
    std::unique_ptr<ports_type> ports;
    std::vector<std::unique_ptr<engine_type>> engines;
    std::deque<attentive> watched;
    std::atomic<bool> closing = false;
    std::atomic<bool> looking = false;
    std::vector<std::unique_ptr<proxy::driver>> drivers;  ///< last made, first stopped

    void look();
    [[nodiscard]] failure explained() const;
  };

  proxied_rank(bootstrap& meeting, const proxied_options& options)
      : meeting_(meeting),
        options_(options),
        parts_(std::make_shared<machinery>(meeting)),
        executor_(options.workers) {
    parts_->window_owner = options.window_owner;
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
    parts_->state = std::move(*state);
    auto ports = ports_type::open(wire, window(), options_.comms);
    if (!ports) return ports.error();
    parts_->ports = std::move(*ports);
    for (std::uint32_t k = 0; k < options_.comms; ++k) {
      auto made = proxied_detail::make_engine(*parts_->state, options_, k,
                                              parts_->ports->endpoint(k), parts_->noticed);
      if (!made) return made.error();
      parts_->engines.push_back(std::move(*made));
    }
    if (auto agreed = meeting_.agree(Wire::name, settings(), timeout_ns); !agreed) return agreed;
    const auto own = parts_->ports->address();
    if (!own) return own.error();
    const auto all = meeting_.all_gather(*own, timeout_ns);
    if (!all) return all.error();
    for (const std::vector<std::byte>& address : *all) {
      for (const std::byte b : address) {
        name_ = (name_ ^ static_cast<std::uint64_t>(b)) * 0x100'0000'01b3u;  // FNV-1a
      }
    }
    if (auto connected = parts_->ports->connect(*all); !connected) return connected;
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

  void start() {
    for (const auto& e : parts_->engines) parts_->watched.emplace_back(parts_.get(), e.get());
    std::vector<proxy::driven> all;
    for (attentive& a : parts_->watched) {
      all.push_back(
          {&a,
           [](void* p) {
             auto* const both = static_cast<attentive*>(p);
             const bool moved = both->engine->step();
             both->look();
             return moved;
           },
           [](void* p) { static_cast<attentive*>(p)->engine->watch(); },
           [](void* p) { static_cast<attentive*>(p)->engine->statistics().naps.add(1); }});
    }
    parts_->drivers = proxied_detail::start_drivers(all, options_);
  }

  /// What was posted has arrived at every rank, and all of them know it. Nobody posts any more, but
  /// each goes on polling: the others may need that to end their posts.
  [[nodiscard]] bool come_to_rest(std::chrono::nanoseconds patience) {
    if (failed() || !meeting_.barrier(closing_ns)) return false;
    for (const auto& e : parts_->engines) e->wind_down();
    const bool ended = wait_for(patience, [this] {
      return std::ranges::all_of(parts_->engines, [](const auto& e) { return e->wound_down(); });
    });
    std::uint64_t expected = 0;
    if (!posted_to_this_rank(ended, expected)) return false;  // as on every rank
    return everywhere(wait_for(patience, [&] {
      std::uint64_t n = 0;
      for (const auto& e : parts_->engines) n += e->arrived();
      return n >= expected;
    }));
  }

  /// The sum over all ranks; false if one of them has not ended its posts, or closes another
  /// transport. Collective.
  [[nodiscard]] bool posted_to_this_rank(bool known, std::uint64_t& sum) {
    const auto ranks = static_cast<std::size_t>(meeting_.size());
    std::vector<std::uint64_t> words(1 + (known ? ranks : 0), 0);  // name, posts to each rank
    words[0] = name_;
    for (std::uint32_t rank = 0; rank + 1 < words.size(); ++rank) {
      for (const auto& e : parts_->engines) words[1 + rank] += e->posted(rank);
    }
    const auto all = meeting_.all_gather(std::as_bytes(std::span(words)), closing_ns);
    if (!all) return false;
    const auto word = [](const std::vector<std::byte>& its, std::size_t index) {
      std::uint64_t n = 0;
      std::memcpy(&n, its.data() + index * sizeof n, sizeof n);
      return n;
    };
    for (const std::vector<std::byte>& its : *all) {
      if (its.size() != (1 + ranks) * sizeof sum || word(its, 0) != name_) return false;
      sum += word(its, 1 + static_cast<std::size_t>(meeting_.rank()));
    }
    return true;
  }

  /// All ranks say so. Collective.
  [[nodiscard]] bool everywhere(bool here) {
    const std::byte own{here};
    const auto all = meeting_.all_gather(std::span(&own, 1), closing_ns);
    return all && std::ranges::all_of(*all, [](const auto& rank) {
             return rank.size() == 1 && rank[0] == std::byte{1};
           });
  }

  [[nodiscard]] bool failed() const {
    return parts_->noticed.failed() || parts_->state->fault.failed();
  }

  template <class Condition>
  [[nodiscard]] bool wait_for(std::chrono::nanoseconds patience, const Condition& done) const {
    using clock = std::chrono::steady_clock;
    const auto end = clock::now() + patience;
    while (!done()) {
      if (failed() || clock::now() > end) return false;
      std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
    return true;
  }

  [[nodiscard]] failure left_behind(std::size_t stuck) const {
    std::string why = "rank " + std::to_string(meeting_.rank()) + ": ";
    if (stuck != 0) {
      why += std::to_string(stuck) + " of " + std::to_string(parts_->drivers.size()) +
             " proxy threads did not come back from the wire and are left behind, with the " +
             "rank's window; a peer may have stopped or died inside a shared lock";
    } else {
      why += "the ranks did not come to rest together (one failed, or closed another transport " +
             std::string("first), and this wire's endpoints cannot be closed ") +
             std::string("while something is on its way to them: they are left behind");
    }
    return {errc::transport_failed, "proxied_rank::close", why};
  }

  /// What a process leaves on its host when it is killed, nobody else removes.
  void bury_the_dead() {
    const std::vector<rank_place>& places = meeting_.places();
    for (const std::int32_t rank : meeting_.lost()) {
      const rank_place& its = places[static_cast<std::size_t>(rank)];
      const rank_place& own = places[static_cast<std::size_t>(meeting_.rank())];
      if (parts_->ports != nullptr && its.node == own.node) {
        parts_->ports->bury(static_cast<std::uint32_t>(rank));
      }
    }
  }

  /// Holds what threads that were left behind may touch.
  static void keep_for_ever(std::shared_ptr<machinery> parts) {
    static std::mutex mutex;
    static auto* const left_behind = new std::vector<std::shared_ptr<machinery>>;
    const std::lock_guard lock(mutex);
    left_behind->push_back(std::move(parts));
  }

  bootstrap& meeting_;
  std::uint64_t name_ = 0xcbf2'9ce4'8422'2325u;  // of the transport: its ranks' addresses, hashed
  proxied_options options_;
  std::shared_ptr<machinery> parts_;  ///< with a second owner if threads are left behind
  executor_type executor_;
  bool closed_ = false;
};

/// Brings together what the engines and the bootstrap noticed, and tells the other ranks.
template <class Wire>
void proxied_rank<Wire>::machinery::look() {
  if (meeting.healthy() && !noticed.failed() && !state->fault.failed()) return;
  if (looking.exchange(true)) return;
  if (!state->fault.failed()) state->fault.report(explained());
  meeting.abort(state->fault.why().error().message());
}

/// The rank that died, as the bootstrap heard it, in front of what was noticed here: an engine may
/// have noticed only that some other rank gave up because of it.
template <class Wire>
failure proxied_rank<Wire>::machinery::explained() const {
  using clock = std::chrono::steady_clock;
  const auto end = clock::now() + std::chrono::nanoseconds(hearsay_ns);
  while (meeting.healthy() && clock::now() < end) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  const result<void> seen = noticed.why();
  const result<void> heard = meeting.status();
  if (heard) return seen.error();
  failure both = heard.error();
  if (!seen) both.detail += "; here: " + seen.error().message();
  return both;
}

}  // namespace eptransport
