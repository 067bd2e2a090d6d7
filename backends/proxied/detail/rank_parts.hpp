// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief What every proxied rank is made of, in a world of one process or on its own.
#pragma once

#include <eptransport/backends/proxied/detail/rank_state.hpp>
#include <eptransport/backends/proxied/options.hpp>
#include <eptransport/core/config.hpp>
#include <eptransport/core/result.hpp>
#include <eptransport/proxy/driver.hpp>
#include <eptransport/proxy/engine.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace eptransport::proxied_detail {

/// Window, words and rings of one rank.
[[nodiscard]] inline result<std::unique_ptr<rank_state>> make_state(std::int32_t rank,
                                                                    const proxied_options& o,
                                                                    std::uint64_t max_message) {
  const result<proxy::ring_layout> layout = proxy::ring_layout::of(o.ring_slots);
  if (!layout) return layout.error();
  const result<proxy::command_codec> codec = proxy::command_codec::create(
      {static_cast<std::uint32_t>(o.ranks), o.signals, o.window_bytes, max_message});
  if (!codec) return codec.error();
  auto s = o.window.empty() ? std::make_unique<rank_state>(rank, o.window_bytes)
                            : std::make_unique<rank_state>(rank, o.window);
  if (!s->memory.valid()) {
    return failure{errc::out_of_memory, "proxied::create",
                   "a window of " + std::to_string(o.window_bytes) + " bytes for each of " +
                       std::to_string(o.ranks) + " ranks"};
  }
  s->ranks = o.ranks;
  s->signals = o.signals;
  s->comms = o.comms;
  s->max_message = max_message;
  s->codec = *codec;
  s->nodes = &o.nodes;
  for (std::uint32_t c = 0; c < o.channels; ++c) {
    s->channels.push_back(std::make_unique<channel_state>(*layout, o.first_position));
  }
  s->words = proxied_detail::page_memory(std::uint64_t{o.comms} * o.signals * 8 + 8);
  std::fill_n(s->counters(0), o.signals, o.counter_start);
  return result<std::unique_ptr<rank_state>>(std::move(s));
}

/// The engine of comm `comm`, with the rings of its channels.
///
/// @param fault  where it says why it stopped: the rank's own, unless somebody looks at it first
template <class Endpoint>
[[nodiscard]] result<std::unique_ptr<proxy::engine<Endpoint>>> make_engine(
    rank_state& s, const proxied_options& o, std::uint32_t comm, Endpoint& endpoint,
    proxy::fault_cell& fault) {
  std::vector<proxy::ring_view> rings;
  for (std::uint32_t c = comm; c < o.channels; c += o.comms) rings.push_back(s.channels[c]->ring);
  auto made = proxy::engine<Endpoint>::create(
      endpoint, s.codec,
      {static_cast<std::uint32_t>(s.rank), static_cast<std::uint32_t>(o.ranks), o.signals,
       s.max_message},
      o.engine, {std::move(rings), o.first_position, s.counters(comm), &fault});
  if (made) s.max_count = (*made)->max_count();
  return made;
}

/// The threads that drive them: one each, or `driver_threads` for all.
[[nodiscard]] inline std::vector<std::unique_ptr<proxy::driver>> start_drivers(
    const std::vector<proxy::driven>& all, const proxied_options& o) {
  const std::size_t threads = o.drive == proxy_drive::threads
                                  ? all.size()
                                  : std::min<std::size_t>(o.driver_threads, all.size());
  std::vector<std::unique_ptr<proxy::driver>> drivers;
  for (std::size_t t = 0; t < threads; ++t) {
    std::vector<proxy::driven> mine;
    for (std::size_t i = t; i < all.size(); i += threads) mine.push_back(all[i]);
    proxy::driver_options how = o.driver;
    how.cpus.clear();
    if (t < o.driver.cpus.size()) how.cpus = {o.driver.cpus[t]};
    drivers.push_back(std::make_unique<proxy::driver>(std::move(mine), how));
  }
  return drivers;
}

}  // namespace eptransport::proxied_detail
