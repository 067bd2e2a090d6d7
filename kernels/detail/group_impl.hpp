// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Bodies of `group`; included by kernels/group.hpp.
#pragma once

#include <eptransport/kernels/group.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>

namespace eptransport {

template <Transport T>
void group<T>::swap(group& other) noexcept {
  std::swap(transport_, other.transport_);
  std::swap(plan_, other.plan_);
  std::swap(lanes_, other.lanes_);
  std::swap(workspace_, other.workspace_);
  std::swap(owns_workspace_, other.owns_workspace_);
  std::swap(reports_, other.reports_);
  std::swap(hello_base_, other.hello_base_);
  std::swap(region_, other.region_);
}

template <Transport T>
group<T>::~group() {
  if (transport_ == nullptr) return;
  (void)transport_->executor().synchronize();
  if (reports_ != nullptr) {
    transport_->executor().release(reinterpret_cast<std::byte*>(reports_));
  }
  if (owns_workspace_ && workspace_ != nullptr) transport_->executor().release(workspace_);
}

template <Transport T>
result<void> group<T>::check_memory(const T& transport, const group_memory& memory,
                                    const group_sizes& sizes) {
  const auto too_small = [](const char* what, std::uint64_t need, std::uint64_t have) {
    return failure{errc::capacity, "group::create",
                   std::string(what) + ": " + std::to_string(need) + " needed, " +
                       std::to_string(have) + " there"};
  };
  if (memory.window_offset % 128 != 0) {
    return failure{errc::invalid_argument, "group::create",
                   "group_memory::window_offset must be a multiple of 128, got " +
                       std::to_string(memory.window_offset)};
  }
  const std::uint64_t window = transport.window().size();
  const std::uint64_t room = window > memory.window_offset ? window - memory.window_offset : 0;
  if (room < sizes.window_bytes) return too_small("window bytes", sizes.window_bytes, room);
  const std::uint32_t words = transport.signals();
  const std::uint32_t left = words > memory.first_signal ? words - memory.first_signal : 0;
  if (left < sizes.signals) return too_small("signal words", sizes.signals, left);
  if (memory.workspace == nullptr) return {};
  if (memory.workspace_bytes < sizes.workspace_bytes) {
    return too_small("workspace bytes", sizes.workspace_bytes, memory.workspace_bytes);
  }
  return {};
}

template <Transport T>
result<group<T>> group<T>::create(T& transport, const group_shape& shape,
                                  const group_memory& memory, std::uint64_t timeout_ns) {
  const view_type view = transport.view();
  const std::uint32_t workers = transport.executor().workers(0);
  std::span<const std::int32_t> nodes;
  if constexpr (requires { transport.nodes(); }) nodes = transport.nodes();
  auto plan = detail::make_plan(T::caps, shape, view.size(), workers, nodes);
  if (!plan) return plan.error();
  if (auto checked = check_memory(transport, memory, plan->sizes); !checked) {
    return checked.error();
  }
  if constexpr (requires { transport.executor().concurrent(); }) {
    const std::uint32_t concurrent = transport.executor().concurrent();
    if (static_cast<std::uint32_t>(shape.lanes) > concurrent) {
      return failure{errc::capacity, "group::create",
                     std::to_string(shape.lanes) + " lanes, but the executor keeps room for " +
                         std::to_string(concurrent) +
                         " concurrent launches; raise `concurrent` where the transport is made"};
    }
  }
  group made;
  made.transport_ = &transport;
  made.plan_ = std::move(*plan);
  geometry& geo = made.plan_.geo;
  geo.rank = view.rank();
  geo.local_experts = made.plan_.local_experts[static_cast<std::size_t>(geo.rank)];
  made.lanes_.resize(static_cast<std::size_t>(shape.lanes));
  if (auto placed = made.place(memory, workers); !placed) return placed.error();
  if (auto set = made.set_timeout(timeout_ns); !set) return set.error();
  if (auto greeted = made.greet(timeout_ns); !greeted) return greeted.error();
  return result<group>(std::move(made));
}

template <Transport T>
result<void> group<T>::place(const group_memory& memory, std::uint32_t workers) {
  executor_type& executor = transport_->executor();
  geometry& geo = plan_.geo;
  workspace_ = memory.workspace;
  if (workspace_ == nullptr) {
    auto allocated = executor.allocate(plan_.sizes.workspace_bytes);
    if (!allocated) return allocated.error();
    workspace_ = *allocated;
    owns_workspace_ = true;
  }
  auto shared = executor.allocate_shared(lanes_.size() * sizeof(lane_report) + 8);
  if (!shared) return shared.error();
  reports_ = reinterpret_cast<lane_report*>(*shared);
  hello_base_ = reinterpret_cast<std::uint64_t*>(reports_ + lanes_.size());
  const auto written =
      executor.write(workspace_, reinterpret_cast<const std::byte*>(plan_.placement.data()),
                     plan_.placement.size() * sizeof(expert_place));
  if (!written) return written.error();
  geo.placement = reinterpret_cast<const expert_place*>(workspace_);
  node_table nodes = geo.relay.table;  // the host's, which `layout()` keeps
  if (geo.message == message_shape::per_node) {
    const std::vector<std::int32_t>& words = plan_.nodes.words();
    std::byte* table = workspace_ + detail::placement_bytes(plan_);
    const auto copied = executor.write(table, reinterpret_cast<const std::byte*>(words.data()),
                                       words.size() * sizeof(std::int32_t));
    if (!copied) return copied.error();
    nodes = plan_.nodes.at(reinterpret_cast<const std::int32_t*>(table));
  }
  region_ = memory.window_offset;
  geo.hello += memory.window_offset;
  geo.hello_signal = memory.first_signal;
  const detail::lane_workspace parts = detail::lane_workspace_of(geo, plan_.width, workers);
  for (std::size_t i = 0; i < lanes_.size(); ++i) {
    lane_part& lane = lanes_[i];
    const std::uint64_t shift = memory.window_offset + i * geo.lane_bytes;
    lane.geo = geo;
    lane.geo.relay.table = nodes;
    for (std::uint64_t* offset :
         {&lane.geo.landing, &lane.geo.rows, &lane.geo.sides, &lane.geo.combine, &lane.geo.staging,
          &lane.geo.staged_rows, &lane.geo.staged_sides, &lane.geo.returns, &lane.geo.ready,
          &lane.geo.stop, &lane.geo.relay.zones, &lane.geo.relay.staging, &lane.geo.relay.rows,
          &lane.geo.relay.staged_rows, &lane.geo.relay.returns}) {
      *offset += shift;
    }
    lane.geo.first_signal =
        memory.first_signal + 1 + static_cast<std::uint32_t>(i) * geo.lane_signals();
    std::byte* start = workspace_ + detail::table_bytes(plan_) + i * parts.bytes;
    lane.memory = {.state = reinterpret_cast<lane_state*>(start),
                   .report = reports_ + i,
                   .base = reinterpret_cast<std::uint64_t*>(start + parts.base),
                   .rows_due = reinterpret_cast<std::uint64_t*>(start + parts.rows_due),
                   .returns_due = reinterpret_cast<std::uint64_t*>(start + parts.returns_due),
                   .counted_due = reinterpret_cast<std::uint64_t*>(start + parts.counted_due),
                   .relay_due = reinterpret_cast<std::uint64_t*>(start + parts.relay_due),
                   .counts = reinterpret_cast<std::int64_t*>(start + parts.counts),
                   .starts = reinterpret_cast<std::int64_t*>(start + parts.starts),
                   .totals = reinterpret_cast<std::int64_t*>(start + parts.totals),
                   .width = plan_.width};
    const lane_state fresh{};
    const lane_report clean{};
    if (auto w = executor.write(start, reinterpret_cast<const std::byte*>(&fresh), sizeof fresh);
        !w) {
      return w.error();
    }
    *lane.memory.report = clean;
  }
  return {};
}

template <Transport T>
message_header group<T>::hello() const {
  const geometry& geo = plan_.geo;
  return {.stamp = 1,
          .config = geo.config,
          .rows = geo.max_tokens,
          .more = geo.hidden,
          .culprit = geo.top_k,
          .limit = geo.row_bytes,
          .value = geo.scale_bytes,
          .node_rows = static_cast<std::uint64_t>(geo.experts)};
}

template <Transport T>
failure group<T>::explain_mismatch(const fault_record& fault) {
  message_header theirs;
  const message_header ours = hello();
  const std::uint64_t offset =
      plan_.geo.hello + static_cast<std::uint64_t>(fault.peer) * sizeof(message_header);
  failure why = to_failure(fault, "group::create");
  if (!transport_->executor().read(reinterpret_cast<std::byte*>(&theirs),
                                   transport_->view().local() + offset, sizeof theirs)) {
    return why;
  }
  why.detail = "rank " + std::to_string(fault.peer) + " was built with another shape";
  const auto differ = [&why](const char* what, auto mine, auto other) {
    if (mine == other) return;
    why.detail += std::string(", ") + what + " " + std::to_string(other) + " (here " +
                  std::to_string(mine) + ")";
  };
  differ("max_tokens", ours.rows, theirs.rows);
  differ("hidden", ours.more, theirs.more);
  differ("top_k", ours.culprit, theirs.culprit);
  differ("row_bytes", ours.limit, theirs.limit);
  differ("scale_bytes", ours.value, theirs.value);
  differ("experts", ours.node_rows, theirs.node_rows);
  why.detail += "; give every rank the same group_shape";
  return why;
}

template <Transport T>
result<void> group<T>::greet(std::uint64_t timeout_ns) {
  executor_type& executor = transport_->executor();
  const view_type view = transport_->view();
  for (std::size_t i = 0; i < lanes_.size(); ++i) {
    const baseline_call<view_type> call{view, lanes_[i].geo, lanes_[i].memory,
                                        i == 0 ? hello_base_ : nullptr};
    if (auto launched = executor.launch(call, 0, {}); !launched) return launched.error();
  }
  if (auto done = executor.synchronize(); !done) return done.error();
  if (auto met = transport_->barrier(timeout_ns); !met) return met.error();
  const hello_call<view_type> call{view, lanes_[0].geo, lanes_[0].memory, hello_base_, hello()};
  if (auto launched = executor.launch(call, 0, {}); !launched) return launched.error();
  if (auto done = executor.synchronize(); !done) return done.error();
  const fault_record found = fault(0);
  if (found.kind == fault_kind::mismatch) return explain_mismatch(found);
  if (found.kind != fault_kind::none) return to_failure(found, "group::create");
  return {};
}

template <Transport T>
fault_record group<T>::fault(std::int32_t lane) const {
  const lane_report& report = reports_[lane];
  // Pairs with the release in detail::raise().
  if (host_memory::signal_acquire(&report.status) == 0) return {};
  return report.fault;
}

template <Transport T>
result<void> group<T>::status(std::int32_t lane) const {
  const fault_record found = fault(lane);
  if (found.kind == fault_kind::none) return {};
  failure why = to_failure(found, "lane");
  // A kernel sees that the wire failed; the transport knows why, and who died.
  if (const result<void> wire = transport_->fault(); !wire) {
    why.detail += "; " + wire.error().message();
  }
  return why;
}

template <Transport T>
result<lane_statistics> group<T>::statistics(std::int32_t lane) const {
  lane_state state;
  executor_type& executor = transport_->executor();
  if (auto done = executor.synchronize(); !done) return done.error();
  const auto* from =
      reinterpret_cast<const std::byte*>(lanes_[static_cast<std::size_t>(lane)].memory.state);
  if (auto r = executor.read(reinterpret_cast<std::byte*>(&state), from, sizeof state); !r) {
    return r.error();
  }
  return lane_statistics{state.epoch, state.combines, state.bad_indices};
}

template <Transport T>
result<void> group<T>::set_timeout(std::uint64_t timeout_ns) {
  executor_type& executor = transport_->executor();
  if (auto done = executor.synchronize(); !done) return done.error();
  for (lane_part& lane : lanes_) {
    auto* to = reinterpret_cast<std::byte*>(&lane.memory.state->timeout_ns);
    if (auto w = executor.write(to, reinterpret_cast<const std::byte*>(&timeout_ns), 8); !w) {
      return w.error();
    }
  }
  return {};
}

template <Transport T>
result<void> group<T>::check_call(std::int32_t lane, dispatch_handle handle) const {
  const auto bad = [](std::string detail) {
    return failure{errc::invalid_argument, "group", std::move(detail)};
  };
  if (lane < 0 || static_cast<std::size_t>(lane) >= lanes_.size()) {
    return bad("lane " + std::to_string(lane) + " of " + std::to_string(lanes_.size()));
  }
  if (handle.memory == nullptr || reinterpret_cast<std::uintptr_t>(handle.memory) % 16 != 0) {
    return bad("dispatch_handle::memory must be aligned to 16 and not null");
  }
  if (handle.bytes < plan_.sizes.handle_bytes) {
    return bad("dispatch_handle has " + std::to_string(handle.bytes) + " bytes, " +
               std::to_string(plan_.sizes.handle_bytes) + " needed");
  }
  return {};
}

template <Transport T>
bool group<T>::fits_window(const dispatch_input& in) const {
  const auto rows =
      static_cast<std::uint64_t>(in.landing_rows != 0 ? in.landing_rows : plan_.geo.counted_rows);
  const std::uint64_t bytes = rows * plan_.geo.row_bytes;
  const std::uint64_t window = transport_->window().size();
  const bool outside =
      in.landing >= region_ + plan_.sizes.window_bytes || in.landing + bytes <= region_;
  return in.landing % 16 == 0 && in.landing <= window && bytes <= window - in.landing && outside;
}

template <Transport T>
result<void> group<T>::check_combine(const combine_input& in) const {
  if (in.transfer == combine_transfer::push) return {};
  if (T::caps.peer_reach != reach::always) {
    return failure{errc::unsupported, "combine",
                   "combine_transfer::pull needs a wire whose reach is always"};
  }
  if (in.choice_value != nullptr) {
    return failure{errc::unsupported, "combine", "combine_transfer::pull returns no choice values"};
  }
  if (in.y == nullptr) return {};  // the kernel knows whether there is anything to offer
  const std::span<std::byte> window = transport_->window();
  const auto* y = static_cast<const std::byte*>(in.y);
  if (y < window.data() || y >= window.data() + window.size()) {
    return failure{errc::invalid_argument, "combine",
                   "combine_transfer::pull needs y in the window"};
  }
  return {};
}

template <Transport T>
result<void> group<T>::check_input(const dispatch_input& in) const {
  const auto bad = [](const char* detail, errc code = errc::invalid_argument) {
    return failure{code, "dispatch", detail};
  };
  const geometry& geo = plan_.geo;
  const bool counted = in.mode == dispatch_mode::counted;
  const std::int64_t most = counted ? geo.counted_tokens : geo.max_tokens;
  if (most == 0) {
    return bad(counted ? "group_shape::counted_tokens is 0: this group makes no counted calls"
                       : "group_shape::max_tokens is 0: this group makes no slotted calls");
  }
  if (in.landing_rows < 0 || in.landing_rows > geo.counted_rows) {
    return failure{errc::invalid_argument, "dispatch",
                   "landing_rows " + std::to_string(in.landing_rows) +
                       ", group_shape::counted_rows is " + std::to_string(geo.counted_rows)};
  }
  if (in.landing != 0 && !fits_window(in)) {
    return bad(
        "landing must be a multiple of 16, outside the group's region, with its rows inside "
        "the window");
  }
  // What the host does not know, the kernel checks.
  const bool some = in.device_tokens == nullptr && !in.cached && in.tokens > 0;
  if (some && in.x == nullptr) return bad("x is null but there are tokens");
  if (some && in.topk_index == nullptr) return bad("topk_index is null but there are tokens");
  if (some && geo.scale_bytes != 0 && in.scales == nullptr && geo.quantise == quantisation::none) {
    return bad("scales is null but group_shape::row has scale_bytes");
  }
  if (in.device_tokens == nullptr && !in.cached && (in.tokens < 0 || in.tokens > most)) {
    return failure{errc::capacity, "dispatch",
                   std::to_string(in.tokens) + " tokens, group_shape::" +
                       (counted ? "counted_tokens" : "max_tokens") + " is " + std::to_string(most)};
  }
  return {};
}

template <Transport T>
result<void> group<T>::check_output(const dispatch_output& out) const {
  const auto bad = [](const char* detail) {
    return failure{errc::invalid_argument, "dispatch", detail};
  };
  if (out.capacity < 0) return bad("dispatch_output::capacity is negative");
  if (out.alignment < 1) return bad("dispatch_output::alignment must be at least 1");
  if (out.scale_stride < 0 || (out.scale_stride > 0 && plan_.geo.scale_bytes % 4 != 0)) {
    return bad("dispatch_output::scale_stride needs scales in 32-bit units");
  }
  if (out.layout == output_layout::in_place) return {};
  const bool may_stay = out.layout == output_layout::rank_major && plan_.geo.counted_tokens != 0;
  if (out.rows == nullptr && !may_stay) return bad("dispatch_output::rows is null");
  if (plan_.geo.scale_bytes != 0 && out.scales == nullptr) {
    return bad("dispatch_output::scales is null but group_shape::row has scale_bytes");
  }
  return {};
}

template <Transport T>
template <class Call>
result<void> group<T>::run(std::int32_t lane, const Call& call, const options& how,
                           result<void> checked) {
  // A poisoned lane only repeats its fault; the kernel would return at once as well.
  if (auto before = status(lane); !before) return before;
  auto launched = transport_->executor().launch(call, how.max_sms, how.stream);
  if (!checked) return checked;
  if (!launched) return launched;
  return executor_type::synchronous ? status(lane) : result<void>{};
}

template <Transport T>
result<void> group<T>::run_dispatch(std::int32_t lane, dispatch_input in,
                                    const dispatch_output& out, dispatch_handle handle,
                                    const options& how, call_parts parts) {
  if (in.mode == dispatch_mode::automatic) in.mode = mode();
  if (lane < 0 || static_cast<std::size_t>(lane) >= lanes_.size()) return check_call(lane, handle);
  const auto check = [&]() -> result<void> {
    if (auto call = check_call(lane, handle); !call) return call;
    if (auto input = check_input(in); detail::has(parts, call_parts::send) && !input) return input;
    return detail::has(parts, call_parts::receive) ? check_output(out) : result<void>{};
  };
  result<void> checked = check();
  const lane_part& on = lanes_[static_cast<std::size_t>(lane)];
  const bool too_many = !checked && checked.error().code == errc::capacity;
  const dispatch_call<view_type> call{
      .view = transport_->view(),
      .geo = on.geo,
      .lane = on.memory,
      .handle = handle.memory,
      .in = in,
      .out = out,
      .parts = parts,
      // The kernel finds too many tokens itself and tells the peers.
      .refused = !checked && !too_many};
  return run(lane, call, how, std::move(checked));
}

template <Transport T>
result<void> group<T>::run_combine(std::int32_t lane, const combine_input& in,
                                   const combine_output& out, dispatch_handle handle,
                                   const options& how, call_parts parts) {
  if (lane < 0 || static_cast<std::size_t>(lane) >= lanes_.size()) return check_call(lane, handle);
  const lane_part& on = lanes_[static_cast<std::size_t>(lane)];
  const auto check = [&]() -> result<void> {
    if (auto call = check_call(lane, handle); !call) return call;
    return detail::has(parts, call_parts::send) ? check_combine(in) : result<void>{};
  };
  result<void> checked = check();
  const combine_call<view_type> call{.view = transport_->view(),
                                     .geo = on.geo,
                                     .lane = on.memory,
                                     .handle = handle.memory,
                                     .in = in,
                                     .out = out,
                                     .parts = parts,
                                     .refused = !checked};
  return run(lane, call, how, std::move(checked));
}

}  // namespace eptransport
