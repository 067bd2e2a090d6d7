// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Transports that are wrong in one way each: the negative controls of the suite.
#pragma once

#include <eptransport/backends/loopback/loopback.hpp>
#include <eptransport/core/transport.hpp>

#include <cstdint>
#include <functional>
#include <span>

#include "harness.hpp"
#include "loopback_backend.hpp"

namespace conformance {

enum class flaw {
  none,
  signals_before_bytes,  ///< the count says that the bytes are there, and they are not
  flush_returns_early,   ///< sources are still read after flush
  counts_twice,          ///< a put adds 2
  forgets_empty_puts,    ///< a put without bytes is not counted
  drops_when_busy,       ///< every seventh put of a rank vanishes
  waits_for_less,        ///< a wait ends one count early
  waits_as_unsigned,     ///< a wait compares without regard to the wrap
  ignores_deadlines,     ///< a wait that expires says ok
};

/// A view for host threads, spoilt.
template <class View, flaw kFlaw>
class flawed_view {
 public:
  flawed_view(const View& inner, std::uint64_t* puts) : inner_(inner), puts_(puts) {}

  [[nodiscard]] std::int32_t rank() const { return inner_.rank(); }
  [[nodiscard]] std::int32_t size() const { return inner_.size(); }
  [[nodiscard]] std::int32_t node(std::int32_t peer) const { return inner_.node(peer); }
  [[nodiscard]] std::uint32_t channels() const { return inner_.channels(); }
  [[nodiscard]] std::uint64_t now_ns() const { return inner_.now_ns(); }
  [[nodiscard]] std::byte* local() const { return inner_.local(); }
  [[nodiscard]] std::byte* peer_pointer(std::int32_t peer, std::uint64_t offset,
                                        std::uint64_t bytes) const {
    return inner_.peer_pointer(peer, offset, bytes);
  }
  [[nodiscard]] std::uint64_t read_signal(std::uint32_t signal) const {
    return inner_.read_signal(signal);
  }

  template <class G>
  op_status put(const G& group, std::uint32_t channel, eptransport::put_request request,
                std::uint64_t deadline_ns) const {
    if constexpr (kFlaw == flaw::signals_before_bytes) {
      (void)inner_.signal(group, channel, request.peer, request.signal, deadline_ns);
      request.signal = eptransport::no_signal;
    }
    if constexpr (kFlaw == flaw::counts_twice) {
      (void)inner_.signal(group, channel, request.peer, request.signal, deadline_ns);
    }
    if constexpr (kFlaw == flaw::forgets_empty_puts) {
      if (request.bytes == 0) return op_status::ok;
    }
    if constexpr (kFlaw == flaw::drops_when_busy) {
      if (++*puts_ % 7 == 0) return op_status::ok;
    }
    return inner_.put(group, channel, request, deadline_ns);
  }

  template <class G>
  op_status signal(const G& group, std::uint32_t channel, std::int32_t peer, std::uint32_t signal,
                   std::uint64_t deadline_ns) const {
    return inner_.signal(group, channel, peer, signal, deadline_ns);
  }

  template <class G>
  op_status wait_signal(const G& group, std::uint32_t signal, std::uint64_t at_least,
                        std::uint64_t deadline_ns) const {
    if constexpr (kFlaw == flaw::waits_for_less) --at_least;
    if constexpr (kFlaw == flaw::waits_as_unsigned) {
      if (inner_.read_signal(signal) >= at_least) return op_status::ok;
    }
    const op_status status = inner_.wait_signal(group, signal, at_least, deadline_ns);
    const bool hide = kFlaw == flaw::ignores_deadlines && status == op_status::expired;
    return hide ? op_status::ok : status;
  }

  template <class G>
  op_status flush(const G& group, std::uint32_t channel, std::uint64_t deadline_ns) const {
    if constexpr (kFlaw == flaw::flush_returns_early) return op_status::ok;
    return inner_.flush(group, channel, deadline_ns);
  }

  template <class G>
  void submit(const G& group, std::uint32_t channel) const {
    inner_.submit(group, channel);
  }

 private:
  View inner_;
  std::uint64_t* puts_;
};

template <class Profile, flaw kFlaw>
class flawed {
 public:
  using transport_concept = eptransport::transport_tag;
  using view_type = flawed_view<eptransport::loopback_view<Profile>, kFlaw>;
  using executor_type = eptransport::host_executor;
  static constexpr eptransport::capabilities caps = Profile::caps;

  explicit flawed(eptransport::loopback<Profile>& inner) : inner_(inner) {}

  [[nodiscard]] view_type view() const { return {inner_.view(), &puts_}; }
  [[nodiscard]] executor_type& executor() { return inner_.executor(); }
  [[nodiscard]] std::span<std::byte> window() const { return inner_.window(); }
  [[nodiscard]] std::uint32_t signals() const { return inner_.signals(); }
  [[nodiscard]] eptransport::result<void> barrier(std::uint64_t timeout_ns) {
    return inner_.barrier(timeout_ns);
  }
  [[nodiscard]] eptransport::result<void> fault() const { return inner_.fault(); }

 private:
  eptransport::loopback<Profile>& inner_;
  mutable std::uint64_t puts_ = 0;
};

/// The backend of the controls: shuffled delivery, one run a seed.
template <class Profile, flaw kFlaw>
struct flawed_backend {
  using transport = flawed<Profile, kFlaw>;
  static constexpr std::uint64_t seeds = baton_seeds;
  static constexpr std::uint64_t patience_ns = 1'000'000'000;
  static constexpr bool one_process = true;
  static constexpr bool can_start_counters = true;
  static constexpr bool can_limit_queues = true;
  static constexpr bool can_break = true;

  static void run(const world_request& request, const std::function<void(transport&)>& per_rank,
                  report& out) {
    eptransport::loopback_options options = to_options(request);
    options.order = eptransport::delivery::shuffled;
    options.check_double_writes = false;  // the case itself must notice
    run_world<Profile, transport>(options, per_rank, out);
  }
};

}  // namespace conformance
