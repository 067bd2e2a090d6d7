// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The call: a group of ranks, its lanes, and dispatch and combine on them.
///
/// 1. `group<T>::sizes(shape, ranks)` says how large a window and how many signals to open the
///    transport with; `group<T>::create(transport, shape)` is collective.
/// 2. Per MoE layer: `dispatch(lane, in, out, handle)`, the experts, `combine(lane, y,
///    out, handle)`; or their halves, with other work between `_send` and `_recv`.
/// 3. On one lane the order is dispatch_send, dispatch_recv, combine_send, combine_recv. A dispatch
///    may go without combine; a combine without dispatch costs an empty exchange. All ranks make
///    the same calls of all lanes in the same order, with any token count, 0 included.
/// 4. A fault poisons its lane: every later call returns it, peers are told, `status` says why. The
///    cure is a new group on a fresh window region.
#pragma once

#include <eptransport/core/config.hpp>
#include <eptransport/core/fault.hpp>
#include <eptransport/core/planner.hpp>
#include <eptransport/core/result.hpp>
#include <eptransport/core/transport.hpp>
#include <eptransport/kernels/call.hpp>
#include <eptransport/kernels/combine.hpp>
#include <eptransport/kernels/dispatch.hpp>
#include <eptransport/kernels/hello.hpp>
#include <eptransport/kernels/plan.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace eptransport {

/// Dispatch and combine among the ranks of a transport.
///
/// @par Order    Calls of one lane are ordered by the caller: one stream, or its own events. When
///               a kernel completes, the caller's x, y, scales and index buffers are free. In-place
///               rows and their metadata live until the next dispatch_send of the lane.
/// @par Threads  One host thread at a time per object; one thread per lane needs one group each.
/// @par Errors   Host executors: a call returns its own fault. Stream executors: a call returns
///               what is known when it is made; after synchronising, `status(lane)` has the rest.
template <Transport T>
class group {
 public:
  using executor_type = typename T::executor_type;
  using options = launch_options<typename executor_type::stream_type>;

  /// Time that a wait may take unless the caller says otherwise.
  static constexpr std::uint64_t default_timeout_ns = 10'000'000'000;

  /// Memory and signals that a group of this shape needs on each rank.
  ///
  /// @param workers  `executor.workers(0)` of the transport that will be used
  /// @param nodes    of each rank, as `transport.nodes()` says where a wire has `node_reach`;
  ///                 empty: eight ranks a node
  /// @par Errors     `invalid_argument`, `capacity` (what the wire cannot carry), `unsupported`
  [[nodiscard]] static result<group_sizes> sizes(const group_shape& shape, std::int32_t ranks,
                                                 std::uint32_t workers = 1,
                                                 std::span<const std::int32_t> nodes = {}) {
    auto plan = detail::make_plan(T::caps, shape, ranks, workers, nodes);
    if (!plan) return plan.error();
    return plan->sizes;
  }

  /// Builds the group; collective. Ranks whose shapes differ are named.
  ///
  /// @param transport   outlives the group
  /// @param timeout_ns  of this exchange, and of every later wait until `set_timeout`
  /// @par Errors        as `sizes`; `capacity` if window, signals or workspace are too small, or if
  ///                    the executor runs fewer launches at once than there are lanes (INV-9), with
  ///                    both numbers; `mismatch` naming a rank; `timed_out` naming a rank
  [[nodiscard]] static result<group> create(T& transport, const group_shape& shape,
                                            const group_memory& memory = {},
                                            std::uint64_t timeout_ns = default_timeout_ns);

  group(group&& other) noexcept { swap(other); }
  group& operator=(group&& other) noexcept {
    swap(other);
    return *this;
  }
  ~group();

  /// Sends this rank's tokens and lays out what it receives.
  [[nodiscard]] result<void> dispatch(std::int32_t lane, const dispatch_input& in,
                                      const dispatch_output& out, dispatch_handle handle,
                                      const options& how = {}) {
    return run_dispatch(lane, in, out, handle, how, call_parts::both);
  }

  /// The first half of dispatch: returns (host) or completes (stream) without waiting for peers,
  /// except that any call which raises a fault waits up to a second to tell peers who come later.
  /// Slotted: the rows are on their way. Counted: the counts are; rows move in the second half.
  [[nodiscard]] result<void> dispatch_send(std::int32_t lane, const dispatch_input& in,
                                           dispatch_handle handle, const options& how = {}) {
    return run_dispatch(lane, in, {}, handle, how, call_parts::send);
  }

  /// The second half of dispatch.
  [[nodiscard]] result<void> dispatch_recv(std::int32_t lane, const dispatch_output& out,
                                           dispatch_handle handle, const options& how = {}) {
    return run_dispatch(lane, {}, out, handle, how, call_parts::receive);
  }

  /// Returns the experts' rows to the tokens of the dispatch that filled `handle`, and sums them.
  [[nodiscard]] result<void> combine(std::int32_t lane, const combine_input& in,
                                     const combine_output& out, dispatch_handle handle,
                                     const options& how = {}) {
    return run_combine(lane, in, out, handle, how, call_parts::both);
  }

  /// The first half of combine.
  [[nodiscard]] result<void> combine_send(std::int32_t lane, const combine_input& in,
                                          dispatch_handle handle, const options& how = {}) {
    return run_combine(lane, in, {}, handle, how, call_parts::send);
  }

  /// The second half of combine.
  [[nodiscard]] result<void> combine_recv(std::int32_t lane, const combine_output& out,
                                          dispatch_handle handle, const options& how = {}) {
    return run_combine(lane, {}, out, handle, how, call_parts::receive);
  }

  /// The lane's fault as an error; success while there is none. Never blocks.
  [[nodiscard]] result<void> status(std::int32_t lane) const;

  /// The lane's fault as the kernel recorded it; `kind` none while there is none.
  [[nodiscard]] fault_record fault(std::int32_t lane) const;

  /// Counters of a lane. Synchronises.
  [[nodiscard]] result<lane_statistics> statistics(std::int32_t lane) const;

  /// Changes the time that waits of later calls may take, captured graphs included. Synchronises.
  [[nodiscard]] result<void> set_timeout(std::uint64_t timeout_ns);

  /// What this group needed.
  [[nodiscard]] const group_sizes& needs() const noexcept { return plan_.sizes; }
  /// Experts of this rank.
  [[nodiscard]] std::int32_t local_experts() const noexcept { return plan_.geo.local_experts; }
  /// What the planner chose and advises: `reasons_of(plan(), wire_cost_of(T::caps))` says why.
  [[nodiscard]] const call_plan& plan() const noexcept { return plan_.choice; }
  /// What `dispatch_mode::automatic` means in this group.
  [[nodiscard]] dispatch_mode mode() const noexcept {
    return plan_.choice.best.lands == landing::slotted ? dispatch_mode::slotted
                                                       : dispatch_mode::counted;
  }
  /// The message shape in use, and why.
  [[nodiscard]] message_shape message() const noexcept { return plan_.geo.message; }
  [[nodiscard]] const std::string& reason() const noexcept { return plan_.reason; }
  /// Where a counted dispatch of the lane leaves rank-major rows unless told otherwise.
  [[nodiscard]] std::byte* counted_rows(std::int32_t lane) const {
    return transport_->window().data() + lanes_[static_cast<std::size_t>(lane)].geo.rows;
  }
  /// The geometry that kernels use, for tools that count messages and bytes.
  [[nodiscard]] const geometry& layout() const noexcept { return plan_.geo; }

 private:
  using view_type = typename T::view_type;

  struct lane_part {
    geometry geo;
    lane_memory memory;
  };

  group() = default;
  void swap(group& other) noexcept;
  [[nodiscard]] static result<void> check_memory(const T& transport, const group_memory& memory,
                                                 const group_sizes& sizes);
  [[nodiscard]] result<void> place(const group_memory& memory, std::uint32_t workers);
  [[nodiscard]] result<void> greet(std::uint64_t timeout_ns);
  [[nodiscard]] message_header hello() const;
  [[nodiscard]] failure explain_mismatch(const fault_record& fault);
  [[nodiscard]] result<void> check_call(std::int32_t lane, dispatch_handle handle) const;
  [[nodiscard]] result<void> check_input(const dispatch_input& in) const;
  [[nodiscard]] bool fits_window(const dispatch_input& in) const;
  [[nodiscard]] result<void> check_combine(const combine_input& in) const;
  [[nodiscard]] result<void> check_output(const dispatch_output& out) const;
  [[nodiscard]] result<void> run_dispatch(std::int32_t lane, dispatch_input in,
                                          const dispatch_output& out, dispatch_handle handle,
                                          const options& how, call_parts parts);
  [[nodiscard]] result<void> run_combine(std::int32_t lane, const combine_input& in,
                                         const combine_output& out, dispatch_handle handle,
                                         const options& how, call_parts parts);
  template <class Call>
  [[nodiscard]] result<void> run(std::int32_t lane, const Call& call, const options& how,
                                 result<void> checked);

  T* transport_ = nullptr;
  detail::group_plan plan_;
  std::vector<lane_part> lanes_;
  std::byte* workspace_ = nullptr;
  bool owns_workspace_ = false;
  lane_report* reports_ = nullptr;  // [lanes], host-readable
  std::uint64_t* hello_base_ = nullptr;
  std::uint64_t region_ = 0;  // start of the group's part of the window
};

}  // namespace eptransport

#include <eptransport/kernels/detail/group_impl.hpp>
