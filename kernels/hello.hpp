// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The exchange at construction: every rank tells every other what shape it was built with.
#pragma once

#include <eptransport/core/config.hpp>
#include <eptransport/core/transport.hpp>
#include <eptransport/kernels/lane.hpp>
#include <eptransport/kernels/layout.hpp>

#include <cstddef>
#include <cstdint>

namespace eptransport {

/// Reads where this rank's counters stand before any peer can have counted. One worker.
template <class View>
struct baseline_call {
  View view;
  geometry geo;
  lane_memory lane;
  std::uint64_t* hello_base;  ///< [1], null except for lane 0

  [[nodiscard]] EPT_HOST_DEVICE worker_words* words() const noexcept { return &lane.state->words; }

  EPT_NO_EXEC_CHECK
  template <class W>
  EPT_HOST_DEVICE void operator()(const W& worker) const {
    if (worker.worker() == 0 && worker.thread() == 0) {
      for (std::uint32_t s = 0; s < geo.lane_signals(); ++s) {
        lane.base[s] = view.read_signal(geo.first_signal + s);
      }
      if (hello_base != nullptr) *hello_base = view.read_signal(geo.hello_signal);
    }
    worker.sync();
    (void)worker.last_to_leave();
  }
};

/// Sends the hellos, waits for all, compares. A difference is a fault of lane 0 naming the rank.
template <class View>
struct hello_call {
  View view;
  geometry geo;
  lane_memory lane;
  const std::uint64_t* hello_base;
  message_header hello;

  [[nodiscard]] EPT_HOST_DEVICE worker_words* words() const noexcept { return &lane.state->words; }

  EPT_NO_EXEC_CHECK
  template <class W>
  EPT_HOST_DEVICE void operator()(const W& worker) const {
    const auto ctx = detail::enter(view, worker, geo, lane);
    if (worker.worker() == 0) exchange(ctx);
    worker.sync();
    (void)worker.last_to_leave();
  }

 private:
  EPT_NO_EXEC_CHECK
  template <class Context>
  EPT_HOST_DEVICE void exchange(const Context& ctx) const {
    auto* sources = reinterpret_cast<message_header*>(view.local() + geo.stop);
    auto* zone = reinterpret_cast<message_header*>(view.local() + geo.hello);
    for (std::int32_t peer = 0; peer < geo.ranks && ctx.ok(); ++peer) {
      if (peer == geo.rank) continue;
      if (ctx.worker.thread() == 0) sources[peer] = hello;
      ctx.worker.sync();
      const put_request request{
          .peer = peer,
          .dst_offset = geo.hello + static_cast<std::uint64_t>(geo.rank) * sizeof(message_header),
          .src = reinterpret_cast<const std::byte*>(sources + peer),
          .bytes = sizeof(message_header),
          .signal = geo.hello_signal};
      (void)detail::sent(ctx, view.put(ctx.worker, ctx.channel, request, ctx.deadline),
                         stage::create, peer);
      view.submit(ctx.worker, ctx.channel);
    }
    if (!ctx.ok()) return;
    const std::uint64_t target = *hello_base + static_cast<std::uint64_t>(geo.ranks - 1);
    const op_status status = view.wait_signal(ctx.worker, geo.hello_signal, target, ctx.deadline);
    if (ctx.worker.thread() != 0) return;
    if (status != op_status::ok) {
      std::int32_t late = -1;
      for (std::int32_t peer = geo.ranks - 1; peer >= 0; --peer) {
        if (peer != geo.rank && zone[peer].stamp == 0) late = peer;
      }
      detail::raise(ctx, {.kind = status == op_status::failed ? fault_kind::transport_failed
                                                              : fault_kind::expired,
                          .where = stage::create,
                          .peer = late,
                          .signal = static_cast<std::int32_t>(geo.hello_signal),
                          .expected = target,
                          .seen = view.read_signal(geo.hello_signal)});
      return;
    }
    for (std::int32_t peer = 0; peer < geo.ranks; ++peer) {
      if (peer == geo.rank || zone[peer].config == hello.config) continue;
      detail::raise(ctx, {.kind = fault_kind::mismatch,
                          .where = stage::create,
                          .peer = peer,
                          .expected = hello.config,
                          .seen = zone[peer].config});
      return;
    }
  }
};

}  // namespace eptransport
