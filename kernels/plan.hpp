// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief From a shape and a wire's capabilities to sizes, offsets and a message shape.
#pragma once

#include <eptransport/core/capabilities.hpp>
#include <eptransport/core/config.hpp>
#include <eptransport/core/cost_model.hpp>
#include <eptransport/core/planner.hpp>
#include <eptransport/core/result.hpp>
#include <eptransport/core/routing_spread.hpp>
#include <eptransport/core/wire_costs.hpp>
#include <eptransport/kernels/call.hpp>
#include <eptransport/kernels/checked_size.hpp>
#include <eptransport/kernels/layout.hpp>
#include <eptransport/kernels/relay_plan.hpp>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace eptransport::detail {

/// What a group is built from: the geometry of lane 0 at window offset 0 and signal 0, and sizes.
struct group_plan {
  geometry geo;
  group_sizes sizes;
  std::int64_t width = 0;  ///< of the count matrices
  std::vector<expert_place> placement;
  node_words nodes;
  std::vector<std::int32_t> local_experts;  ///< per rank
  call_plan choice;                         ///< of the planner, within what the shape fixes
  std::string reason;                       ///< why this message shape, one line
};

/// Checks what does not depend on the wire.
[[nodiscard]] inline result<void> check_shape(const group_shape& shape, std::int32_t ranks) {
  const auto need = [](const char* what, std::int64_t got) {
    return refuse_shape(errc::invalid_argument,
                        std::string(what) + " must be at least 1, got " + std::to_string(got));
  };
  if (ranks < 1) return need("ranks", ranks);
  if (shape.max_tokens < 1 && shape.counted_tokens < 1) {
    return need("group_shape::max_tokens or counted_tokens", shape.max_tokens);
  }
  for (const std::int64_t count : {shape.max_tokens, shape.counted_tokens, shape.counted_rows}) {
    if (count < 0) return need("group_shape's token and row counts, where not 0,", count);
  }
  if (shape.hidden < 1) return need("group_shape::hidden", shape.hidden);
  if (shape.top_k < 1) return need("group_shape::top_k", shape.top_k);
  if (shape.experts < 1) return need("group_shape::experts", shape.experts);
  if (shape.lanes < 1) return need("group_shape::lanes", shape.lanes);
  if (shape.returns != shape.values && shape.returns != element::fp32) {
    return refuse_shape(errc::invalid_argument,
                        "group_shape::returns must be the type of values, or fp32");
  }
  const row_format made = quantised_rows(shape.hidden, shape.quantise);
  if (shape.quantise != quantisation::none && shape.row.row_bytes != 0 &&
      (shape.row.row_bytes != made.row_bytes || shape.row.scale_bytes != made.scale_bytes)) {
    return refuse_shape(errc::invalid_argument,
                        "group_shape::row is what quantise makes: leave it empty");
  }
  const auto experts = static_cast<std::size_t>(shape.experts);
  if (!shape.placement.empty() && shape.placement.size() != experts) {
    return refuse_shape(errc::invalid_argument,
                        "group_shape::placement has " + std::to_string(shape.placement.size()) +
                            " entries for " + std::to_string(experts) + " experts");
  }
  for (std::size_t e = 0; e < shape.placement.size(); ++e) {
    if (shape.placement[e] >= 0 && shape.placement[e] < ranks) continue;
    return refuse_shape(errc::invalid_argument,
                        "expert " + std::to_string(e) + " is placed on rank " +
                            std::to_string(shape.placement[e]) + ", ranks are 0 to " +
                            std::to_string(ranks - 1));
  }
  return {};
}

/// Fills the placement table.
inline void place_experts(const group_shape& shape, std::int32_t ranks, group_plan& plan) {
  plan.local_experts.assign(static_cast<std::size_t>(ranks), 0);
  const std::int32_t each = shape.experts / ranks;
  const std::int32_t fuller = shape.experts % ranks;  // ranks that own one more
  for (std::int32_t e = 0; e < shape.experts; ++e) {
    std::int32_t rank = 0;
    if (!shape.placement.empty()) {
      rank = shape.placement[static_cast<std::size_t>(e)];
    } else if (e < fuller * (each + 1)) {
      rank = e / (each + 1);
    } else {
      rank = fuller + (e - fuller * (each + 1)) / each;
    }
    std::int32_t& count = plan.local_experts[static_cast<std::size_t>(rank)];
    plan.placement.push_back({.rank = rank, .local = count++});
  }
}

/// What the group is asked to do, as the cost model sees it: uniform routing.
[[nodiscard]] inline moe_work work_of(const geometry& geo, std::int32_t nodes) {
  const std::int64_t tokens = geo.max_tokens > 0 ? geo.max_tokens : geo.counted_tokens;
  return {.routed = {.tokens = tokens,
                     .top_k = geo.top_k < geo.experts ? geo.top_k : geo.experts,
                     .ranks = geo.ranks,
                     .nodes = nodes,
                     .experts = geo.experts},
          .row_bytes = static_cast<std::int64_t>(geo.row_bytes),
          .scale_bytes = static_cast<std::int64_t>(geo.scale_bytes),
          .return_bytes = static_cast<std::int64_t>(geo.return_bytes)};
}

/// Leaves what the caller did not fix to the planner: message shape and mode. What it advises
/// beyond that (comms, lanes, SMs) is in the plan.
[[nodiscard]] inline result<void> choose_message(const capabilities& caps, message_shape wanted,
                                                 group_plan& plan) {
  geometry& geo = plan.geo;
  const bool stores = caps.peer_reach == reach::always;
  if (wanted == message_shape::direct && !stores) {
    return refuse_shape(errc::unsupported,
                        "message_shape::direct needs a wire whose reach is always");
  }
  if (wanted == message_shape::per_node && !caps.node_reach) {
    return refuse_shape(errc::unsupported,
                        "message_shape::per_node needs a wire inside the node (backends/hybrid)");
  }
  const bool any = wanted == message_shape::automatic;
  // What a slotted call would deliver, an automatic one must: no smaller limits, no drops.
  const bool slotted = geo.max_tokens > 0;
  const bool roomy = geo.counted_tokens >= geo.max_tokens && geo.max_tokens > 0 &&
                     geo.counted_rows / geo.max_tokens >= geo.ranks;
  const plan_limits limits{.direct = any ? stores : wanted == message_shape::direct,
                           .per_row = any ? !stores : wanted == message_shape::per_row,
                           .per_peer = any ? !stores : wanted == message_shape::per_peer,
                           .per_node = any ? caps.node_reach : wanted == message_shape::per_node,
                           .slotted = slotted,
                           .counted = geo.counted_tokens > 0 && (!slotted || roomy)};
  const moe_work work = work_of(geo, plan.nodes.nodes());
  const wire_cost wire = wire_cost_of(caps);
  plan.choice = plan_call(work, uniform_spread(work.routed), wire, limits);
  switch (plan.choice.best.shape) {
    case traffic_shape::direct:
      geo.message = message_shape::direct;
      break;
    case traffic_shape::per_row:
      geo.message = message_shape::per_row;
      break;
    case traffic_shape::per_node:
      geo.message = message_shape::per_node;
      break;
    default:
      geo.message = message_shape::per_peer;
      break;
  }
  const std::string reasons = reasons_of(plan.choice, wire);
  plan.reason = any ? reasons.substr(0, reasons.find('\n')) : "asked for";
  return {};
}

/// Signal words: per source if the budget allows and nobody asked otherwise.
[[nodiscard]] inline result<void> plan_signals(const capabilities& caps, const group_shape& shape,
                                               group_plan& plan) {
  const auto ranks = static_cast<std::uint64_t>(plan.geo.ranks);
  const auto lanes = static_cast<std::uint64_t>(shape.lanes);
  const std::uint64_t budget =
      caps.max_signals != 0 ? caps.max_signals : std::numeric_limits<std::uint32_t>::max();
  const std::uint64_t kinds = geometry::word_kinds(plan.geo.message);
  const std::uint64_t each = 1 + lanes * kinds * ranks;
  const std::uint64_t summed = 1 + lanes * kinds;
  const bool fits = each <= budget;
  const bool sum =
      shape.signals == signal_words::summed || (shape.signals == signal_words::automatic && !fits);
  const std::uint64_t need = sum ? summed : each;
  if (need > budget) {
    return refuse_shape(errc::capacity, std::to_string(lanes) + " lanes of " +
                                            std::to_string(ranks) + " ranks need " +
                                            std::to_string(need) + " signal words, the wire has " +
                                            std::to_string(budget));
  }
  plan.geo.sources = sum ? 1 : static_cast<std::uint32_t>(ranks);
  plan.sizes.signals = static_cast<std::uint32_t>(need);
  return {};
}

/// FNV-1a over everything that the ranks must agree on.
[[nodiscard]] inline std::uint64_t hash_config(const group_plan& plan, std::int32_t lanes) {
  const geometry& geo = plan.geo;
  std::uint64_t hash = 0xcbf2'9ce4'8422'2325u;
  const auto mix = [&hash](std::uint64_t value) {
    for (int i = 0; i < 8; ++i, value >>= 8) hash = (hash ^ (value & 0xffu)) * 0x100'0000'01b3u;
  };
  mix(static_cast<std::uint64_t>(geo.max_tokens));
  mix(static_cast<std::uint64_t>(geo.counted_tokens));
  mix(static_cast<std::uint64_t>(geo.counted_rows));
  mix(static_cast<std::uint64_t>(geo.overflow));
  mix(static_cast<std::uint64_t>(geo.quantise));
  mix(static_cast<std::uint64_t>(geo.values) * 4 + static_cast<std::uint64_t>(geo.wire));
  mix(geo.return_values);
  mix(static_cast<std::uint64_t>(geo.hidden));
  mix(static_cast<std::uint64_t>(geo.top_k));
  mix(geo.row_bytes);
  mix(geo.scale_bytes);
  mix(static_cast<std::uint64_t>(geo.message));
  mix(geo.sources);
  mix(static_cast<std::uint64_t>(lanes));
  for (const expert_place& place : plan.placement) mix(static_cast<std::uint64_t>(place.rank));
  const bool relays = geo.message == message_shape::per_node;
  for (const std::int32_t node : relays ? plan.nodes.of_ranks() : std::span<const std::int32_t>{}) {
    mix(static_cast<std::uint64_t>(node));
  }
  return hash;
}

/// Rows that the combine zone has: the slotted [R][max_tokens], or all that a counted call sends.
[[nodiscard]] inline checked_size combine_rows(const geometry& geo) {
  const auto slotted = checked_size(static_cast<std::uint64_t>(geo.max_tokens)) *
                       static_cast<std::uint64_t>(geo.ranks);
  const auto fan_out = static_cast<std::uint64_t>(geo.top_k < geo.ranks ? geo.top_k : geo.ranks);
  const auto counted = checked_size(static_cast<std::uint64_t>(geo.counted_tokens)) * fan_out;
  return larger(slotted, counted);
}

/// Rows that a rank can receive in one call.
[[nodiscard]] inline checked_size receivable_rows(const geometry& geo) {
  return larger(checked_size(static_cast<std::uint64_t>(geo.max_tokens)) *
                    static_cast<std::uint64_t>(geo.ranks),
                static_cast<std::uint64_t>(geo.counted_rows));
}

/// Bytes of the counts in a counted D message, 0 if none are sent.
[[nodiscard]] inline checked_size counts_body(const geometry& geo) {
  return geo.counted_tokens == 0 ? 0 : geo.counts_bytes() - sizeof(message_header);
}

/// What a relay's messages and zones are made of, and whether the wire carries it.
[[nodiscard]] inline result<void> plan_relays(const capabilities& caps, group_plan& plan) {
  geometry& geo = plan.geo;
  relay_layout& relay = geo.relay;
  relay.table = plan.nodes.at(plan.nodes.words().data());
  const relay_extent most = extent_of(relay.table, geo.ranks);
  const auto positions = static_cast<std::uint64_t>(geo.top_k) * sizeof(std::int64_t);
  relay.sources = most.sources;
  relay.tokens = geo.max_tokens > geo.counted_tokens ? geo.max_tokens : geo.counted_tokens;
  relay.head_bytes =
      sizeof(message_header) +
      (static_cast<std::uint64_t>(most.node_size) * sizeof(std::int64_t) + 15) / 16 * 16;
  relay.slot_bytes = (geo.slot_bytes + positions + 15) / 16 * 16;
  for (const auto& [count, header, bytes] :
       {std::tuple{&relay.rows_per_message, relay.head_bytes, relay.slot_bytes},
        std::tuple{&relay.counted_per_message, std::uint64_t{0}, relay.slot_bytes}}) {
    auto fit = units_per_message(caps, header, bytes);
    if (!fit) return fit.error();
    *count = *fit;
  }
  if (geo.counted_tokens == 0) return {};
  auto fit = units_per_message(caps, relay.head_bytes, counts_body(geo).value());
  if (!fit) return fit.error();
  return {};
}

/// Slot, zone and window offsets.
[[nodiscard]] inline result<void> plan_window(const group_shape& shape, group_plan& plan) {
  geometry& geo = plan.geo;
  const auto ranks = static_cast<std::uint64_t>(geo.ranks);
  const checked_size tokens(static_cast<std::uint64_t>(geo.max_tokens));
  const checked_size counted(static_cast<std::uint64_t>(geo.counted_tokens));
  const checked_size landing(static_cast<std::uint64_t>(geo.counted_rows));
  const checked_size slotted_zone = checked_size(sizeof(message_header)) + tokens * geo.slot_bytes;
  const checked_size zone =
      (geo.counted_tokens == 0 ? slotted_zone
                               : larger(slotted_zone, checked_size(geo.counts_bytes())))
          .up(64);
  const bool relays = geo.message == message_shape::per_node;
  const bool direct = geo.message == message_shape::direct || relays;
  const bool rows = geo.message == message_shape::per_row;
  const checked_size messages = geo.message == message_shape::per_peer ? zone * ranks
                                : geo.counted_tokens == 0
                                    ? checked_size(sizeof(message_header)) * ranks
                                    : checked_size(geo.counts_bytes()).up(64) * ranks;
  const checked_size staging = messages + (rows ? tokens * geo.slot_bytes : checked_size(0));
  const checked_size sent =
      counted * static_cast<std::uint64_t>(geo.top_k < geo.ranks ? geo.top_k : geo.ranks);
  const checked_size none(0);
  checked_size at(0);
  const auto take = [&at](checked_size bytes) {
    const std::uint64_t offset = at.value();
    at = (at + bytes).up(128);
    return offset;
  };
  geo.zone_bytes = zone.value();
  geo.message_stride = checked_size(messages.value() / ranks).value();
  geo.hello = take(checked_size(sizeof(message_header)) * ranks);
  const std::uint64_t lane_start = at.value();
  geo.landing = take(zone * ranks * 2);
  geo.rows = take(landing * geo.row_bytes);
  geo.sides = take(landing * geo.side_bytes);
  geo.combine = take(combine_rows(geo) * geo.return_bytes);
  geo.staging_bytes = staging.up(128).value();
  geo.staging = take(staging.up(128) * 2);
  geo.staged_rows = take(direct ? none : (rows ? counted : sent) * geo.row_bytes);
  geo.staged_sides = take(direct ? none : sent * geo.side_bytes);
  geo.returns = take(direct && !relays ? none : receivable_rows(geo) * geo.return_bytes);
  geo.ready = take(checked_size(sizeof(message_header)) * ranks * 2);
  geo.stop = take(checked_size(sizeof(message_header)) * ranks);
  if (relays) {
    relay_layout& relay = geo.relay;
    const checked_size sources(static_cast<std::uint64_t>(relay.sources));
    const checked_size each = sources * static_cast<std::uint64_t>(relay.tokens);
    const auto nodes = static_cast<std::uint64_t>(relay.table.nodes);
    const auto choices = static_cast<std::uint64_t>(geo.top_k);
    const std::uint64_t away = choices < nodes ? choices : nodes - 1;
    const checked_size body = larger(tokens * relay.slot_bytes, counts_body(geo));
    const checked_size message = (checked_size(relay.head_bytes) + body).up(64);
    relay.zone_bytes = message.value();
    relay.zones = take(message * sources * 2);
    relay.staging = take(message * nodes * 2);
    relay.rows = take(geo.counted_tokens == 0 ? none : each * relay.slot_bytes);
    relay.staged_rows = take(counted * away * relay.slot_bytes);
    relay.returns = take(each * geo.return_bytes);
  }
  geo.lane_bytes = at.value() - lane_start;
  const checked_size all = checked_size(lane_start) +
                           checked_size(geo.lane_bytes) * static_cast<std::uint64_t>(shape.lanes);
  if (!at.fits() || !all.fits()) {
    return refuse_shape(errc::invalid_argument, "this shape needs more than 2^64 bytes");
  }
  plan.sizes.window_bytes = all.value();
  return {};
}

/// Workspace of one lane, in order: state, bases and dues, count matrices.
struct lane_workspace {
  std::uint64_t base, rows_due, returns_due, counted_due, relay_due, counts, starts, totals, bytes;
};

[[nodiscard]] inline lane_workspace lane_workspace_of(const geometry& geo, std::int64_t width,
                                                      std::uint32_t workers) {
  std::uint64_t at = 0;
  const auto take = [&at](std::uint64_t bytes) {
    const std::uint64_t offset = at;
    at = (at + bytes + 127) / 128 * 128;
    return offset;
  };
  const std::uint64_t matrix = static_cast<std::uint64_t>(workers) *
                               static_cast<std::uint64_t>(width) * sizeof(std::int64_t);
  (void)take(sizeof(lane_state));
  lane_workspace w{};
  w.base = take(geo.lane_signals() * sizeof(std::uint64_t));
  w.rows_due = take(2 * geo.sources * sizeof(std::uint64_t));
  w.returns_due = take(geo.sources * sizeof(std::uint64_t));
  w.counted_due = take(geo.sources * sizeof(std::uint64_t));
  w.relay_due = take(2 * geo.sources * sizeof(std::uint64_t));
  w.counts = take(matrix);
  w.starts = take(matrix);
  w.totals = take(static_cast<std::uint64_t>(width) * sizeof(std::int64_t));
  w.bytes = at;
  return w;
}

/// Bytes of the placement table, which begins the workspace.
[[nodiscard]] inline std::uint64_t placement_bytes(const group_plan& plan) {
  return (plan.placement.size() * sizeof(expert_place) + 127) / 128 * 128;
}

/// Bytes of the tables that stand before the lanes: placement, and nodes where there are relays.
[[nodiscard]] inline std::uint64_t table_bytes(const group_plan& plan) {
  if (plan.geo.message != message_shape::per_node) return placement_bytes(plan);
  return placement_bytes(plan) +
         (plan.nodes.words().size() * sizeof(std::int32_t) + 127) / 128 * 128;
}

/// Bytes of a handle that relays add.
[[nodiscard]] inline checked_size relay_handle_bytes(const geometry& geo, checked_size tokens) {
  if (geo.message != message_shape::per_node) return 0;
  const auto sources = static_cast<std::uint64_t>(geo.relay.sources);
  return static_cast<std::uint64_t>(handle_parts::relay_words(geo)) * 8 +
         tokens * (sources + 1) * static_cast<std::uint64_t>(geo.top_k) * sizeof(route_entry);
}

/// Everything about a group but its rank, its memory and its first signal.
///
/// @param nodes  of each rank; empty: eight ranks a node
[[nodiscard]] inline result<group_plan> make_plan(const capabilities& caps,
                                                  const group_shape& shape, std::int32_t ranks,
                                                  std::uint32_t workers,
                                                  std::span<const std::int32_t> nodes = {}) {
  if (auto checked = check_shape(shape, ranks); !checked) return checked.error();
  if (!nodes.empty() && nodes.size() != static_cast<std::size_t>(ranks)) {
    return refuse_shape(errc::invalid_argument, "nodes of " + std::to_string(nodes.size()) +
                                                    " ranks, there are " + std::to_string(ranks));
  }
  group_plan plan;
  plan.nodes = node_words(nodes, ranks);
  geometry& geo = plan.geo;
  const row_format row =
      shape.row.row_bytes != 0 ? shape.row : quantised_rows(shape.hidden, shape.quantise);
  geo.ranks = ranks;
  geo.top_k = shape.top_k;
  geo.experts = shape.experts;
  geo.max_tokens = shape.max_tokens;
  geo.counted_tokens = shape.counted_tokens;
  geo.hidden = shape.hidden;
  geo.quantise = shape.quantise;
  geo.overflow = shape.overflow;
  geo.values = shape.values;
  geo.wire = shape.returns;
  const checked_size worst = checked_size(static_cast<std::uint64_t>(shape.counted_tokens)) *
                             static_cast<std::uint64_t>(ranks);
  geo.counted_rows = shape.counted_tokens == 0 ? 0
                     : shape.counted_rows != 0 ? shape.counted_rows
                                               : static_cast<std::int64_t>(worst.value());
  geo.row_bytes = row.row_bytes;
  geo.scale_bytes = row.scale_bytes;
  const checked_size scale_offset = checked_size(row.row_bytes).up(16);
  const checked_size choice_offset = (scale_offset + row.scale_bytes).up(16);
  const checked_size slot =
      (choice_offset + sizeof(std::int64_t) +
       checked_size(static_cast<std::uint64_t>(shape.top_k)) * sizeof(slot_choice))
          .up(16);
  const checked_size values =
      checked_size(static_cast<std::uint64_t>(shape.hidden)) * bytes_of(shape.returns);
  const checked_size returned =
      values.up(16) + (shape.return_weights
                           ? checked_size(static_cast<std::uint64_t>(shape.top_k)) * 4
                           : checked_size(0))
                          .up(16);
  if (!slot.fits() || !returned.fits() || !worst.fits() ||
      geo.counted_rows > std::numeric_limits<std::int64_t>::max() / 2) {
    return refuse_shape(errc::invalid_argument, "a row of this format needs more than 2^64 bytes");
  }
  geo.scale_offset = scale_offset.value();
  geo.choice_offset = choice_offset.value();
  geo.slot_bytes = slot.value();
  geo.side_bytes = slot.value() - scale_offset.value();
  geo.return_bytes = returned.value();
  geo.return_values = shape.return_weights ? values.up(16).value() : 0;
  geo.value_bytes = static_cast<std::uint64_t>(shape.hidden) * bytes_of(shape.values);
  geo.checks = shape.checks;
  if (auto chosen = choose_message(caps, shape.message, plan); !chosen) return chosen.error();
  if (geo.message == message_shape::per_node) {
    if (auto planned = plan_relays(caps, plan); !planned) return planned.error();
  }
  const bool packed = geo.message == message_shape::per_peer;
  for (const auto& [count, header, bytes] :
       {std::tuple{&geo.rows_per_message, packed ? sizeof(message_header) : 0, geo.slot_bytes},
        std::tuple{&geo.counted_per_message, std::size_t{0}, geo.row_bytes},
        std::tuple{&geo.sides_per_message, std::size_t{0}, geo.side_bytes},
        std::tuple{&geo.returns_per_message, std::size_t{0}, geo.return_bytes}}) {
    auto fit = units_per_message(caps, header, bytes);
    if (!fit) return fit.error();
    *count = *fit;
  }
  if (geo.counted_tokens != 0) {
    auto fit = units_per_message(caps, geo.counts_bytes() - 1, 1);
    if (!fit) return fit.error();
  }
  place_experts(shape, ranks, plan);
  if (auto planned = plan_signals(caps, shape, plan); !planned) return planned.error();
  if (auto planned = plan_window(shape, plan); !planned) return planned.error();
  geo.config = hash_config(plan, shape.lanes);
  plan.width = ranks + shape.experts + geo.relay.table.nodes;
  plan.sizes.workspace_bytes =
      table_bytes(plan) +
      lane_workspace_of(geo, plan.width, workers).bytes * static_cast<std::uint64_t>(shape.lanes);
  const auto choices = static_cast<std::uint64_t>(shape.top_k);
  const checked_size tokens = larger(static_cast<std::uint64_t>(shape.max_tokens),
                                     static_cast<std::uint64_t>(shape.counted_tokens));
  const checked_size handle =
      checked_size(handle_header_bytes) +
      checked_size(static_cast<std::uint64_t>(ranks)) * (handle_parts::arrays * 8) +
      tokens * choices * sizeof(route_entry) +
      receivable_rows(geo) * choices * sizeof(place_entry) + relay_handle_bytes(geo, tokens);
  if (!handle.fits()) {
    return refuse_shape(errc::invalid_argument,
                        "a handle of this shape needs more than 2^64 bytes");
  }
  plan.sizes.handle_bytes = handle.value();
  return plan;
}

}  // namespace eptransport::detail
