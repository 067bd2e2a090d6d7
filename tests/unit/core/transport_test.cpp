// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Each concept of the contract accepts its archetype and refuses one type per requirement.
#include <eptransport/core/capabilities.hpp>
#include <eptransport/core/config.hpp>
#include <eptransport/core/thread_group.hpp>
#include <eptransport/core/transport.hpp>
#include <eptransport/eptransport.hpp>

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <span>

#include "archetypes.hpp"

namespace {

using archetypes::executor;
using archetypes::group;
using archetypes::transport;
using archetypes::view;
using archetypes::worker_group;
using eptransport::Executor;
using eptransport::put_request;
using eptransport::ThreadGroup;
using eptransport::Transport;
using eptransport::TransportView;
using eptransport::Worker;

// Each type below spoils one requirement: a member of the same name hides the right one.
// NOLINTBEGIN(readability-identifier-naming)

static_assert(ThreadGroup<group>);
struct group_memory : group {
 private:
  using memory = int;
};
struct group_thread : group {
  void thread() const {}
};
struct group_threads : group {
  void threads() const {}
};
struct group_sync : group {
  void sync(int) const {}
};
struct group_any : group {
  void any(bool) const {}
};
struct group_sum : group {
  void sum(std::int64_t) const {}
};
struct group_prefix : group {
  void prefix(std::int64_t) const {}
};
struct group_first : group {
  void first(std::int64_t) const {}
};
struct group_maximum : group {
  void maximum(float) const {}
};
struct group_multiply_add : group {
  void multiply_add(float, float, float) const {}
};
struct group_copy : group {
  void copy(std::byte*) const {}
};
struct group_fan_out : group {
  void fan_out() const {}
};
struct group_count : group {
  void count(bool) const {}
};
struct group_unite : group {
  void unite(std::uint64_t) const {}
};
struct group_maximum_of : group {
  void maximum_of(float) const {}
};
struct group_pick : group {
  void pick(std::int64_t) const {}
};
static_assert(!ThreadGroup<group_pick>);
static_assert(!ThreadGroup<group_fan_out> && !ThreadGroup<group_count>);
static_assert(!ThreadGroup<group_unite> && !ThreadGroup<group_maximum_of>);
static_assert(!ThreadGroup<int> && !ThreadGroup<group_memory>);
static_assert(!ThreadGroup<group_thread> && !ThreadGroup<group_threads>);
static_assert(!ThreadGroup<group_sync> && !ThreadGroup<group_any> && !ThreadGroup<group_sum>);
static_assert(!ThreadGroup<group_prefix> && !ThreadGroup<group_first>);
static_assert(!ThreadGroup<group_maximum>);
static_assert(!ThreadGroup<group_multiply_add> && !ThreadGroup<group_copy>);

static_assert(Worker<worker_group, view> && !Worker<group, view>);
struct worker_index : worker_group {
  void worker() const {}
};
struct worker_count : worker_group {
  void workers() const {}
};
struct worker_barrier : worker_group {
  bool barrier(const view&) const { return true; }
};
struct worker_last : worker_group {
  void last_to_leave() const {}
};
static_assert(!Worker<worker_index, view> && !Worker<worker_count, view>);
static_assert(!Worker<worker_barrier, view> && !Worker<worker_last, view>);
struct worker_member : worker_group {
  void member() const {}
};
struct worker_members : worker_group {
  void members() const {}
};
struct worker_crew_all : worker_group {
  void crew_all(bool) const {}
};
struct worker_scratch : worker_group {
  void scratch() const {}
};
struct worker_arrive : worker_group {
  void arrive() const {}
};
struct worker_complete : worker_group {
  void complete() const {}
};
static_assert(!Worker<worker_member, view> && !Worker<worker_members, view>);
static_assert(!Worker<worker_crew_all, view> && !Worker<worker_arrive, view>);
static_assert(!Worker<worker_complete, view> && !Worker<worker_scratch, view>);

static_assert(TransportView<view, group> && !TransportView<view, int>);
struct view_copy : view {
  view_copy(const view_copy&) {}
};
struct view_rank : view {
  [[nodiscard]] std::uint64_t rank() const { return 0; }
};
struct view_size : view {
  [[nodiscard]] std::uint64_t size() const { return 0; }
};
struct view_node : view {
  void node(std::int32_t) const {}
};
struct view_channels : view {
  [[nodiscard]] int channels() const { return 1; }
};
struct view_now : view {
  [[nodiscard]] double now_ns() const { return 0; }
};
struct view_local : view {
  [[nodiscard]] void* local() const { return nullptr; }
};
struct view_pointer : view {
  [[nodiscard]] std::byte* peer_pointer(int) const { return nullptr; }
};
struct view_put : view {
  void put(const group&, std::uint32_t, const put_request&) const {}
};
struct view_signal : view {
  void signal(const group&, std::uint32_t) const {}
};
struct view_read : view {
  [[nodiscard]] std::uint32_t read_signal(std::uint32_t) const { return 0; }
};
struct view_wait : view {
  void wait_signal(const group&, std::uint32_t) const {}
};
struct view_flush : view {
  bool flush(const group&, std::uint32_t, std::uint64_t) const { return true; }
};
struct view_submit : view {
  void submit(const group&) const {}
};
struct view_const : view {
  std::int32_t rank() { return 0; }
};
static_assert(!TransportView<view_copy, group> && !TransportView<view_rank, group>);
static_assert(!TransportView<view_size, group> && !TransportView<view_node, group>);
static_assert(!TransportView<view_channels, group> && !TransportView<view_now, group>);
static_assert(!TransportView<view_local, group> && !TransportView<view_pointer, group>);
static_assert(!TransportView<view_put, group> && !TransportView<view_signal, group>);
static_assert(!TransportView<view_read, group> && !TransportView<view_wait, group>);
static_assert(!TransportView<view_flush, group> && !TransportView<view_submit, group>);
static_assert(!TransportView<view_const, group>);

static_assert(Executor<executor>);
struct executor_workers : executor {
  int workers() { return 1; }
};
struct executor_allocate : executor {
  std::byte* allocate(std::uint64_t) { return nullptr; }
};
struct executor_shared : executor {
  std::byte* allocate_shared(std::uint64_t) { return nullptr; }
};
struct executor_release : executor {
  void release(std::byte*) {}
};
struct executor_write : executor {
  void write(std::byte*, const std::byte*, std::uint64_t) {}
};
struct executor_read : executor {
  void read(std::byte*, const std::byte*, std::uint64_t) {}
};
struct executor_synchronize : executor {
  void synchronize() {}
};
struct executor_synchronous : executor {
  struct synchronous;
};
struct executor_stream : executor {
 private:
  using stream_type = int;
};
struct executor_worker : executor {
 private:
  using worker_type = int;
};
static_assert(!Executor<executor_workers> && !Executor<executor_allocate>);
static_assert(!Executor<executor_shared> && !Executor<executor_release>);
static_assert(!Executor<executor_write> && !Executor<executor_read>);
static_assert(!Executor<executor_synchronize> && !Executor<executor_synchronous>);
static_assert(!Executor<executor_stream> && !Executor<executor_worker>);

static_assert(Transport<transport> && eptransport::check_transport<transport>());
struct other_tag {};
struct transport_untagged : transport {
  using transport_concept = other_tag;
};
struct transport_caps : transport {
  static constexpr int caps = 0;
};
struct transport_view : transport {
  using view_type = view_put;
};
struct transport_executor : transport {
  using executor_type = executor_release;
};
struct transport_get_view : transport {
  void view() const {}
};
struct transport_get_executor : transport {
  archetypes::executor executor() { return {}; }
};
struct transport_window : transport {
  [[nodiscard]] std::byte* window() const { return nullptr; }
};
struct transport_signals : transport {
  [[nodiscard]] int signals() const { return 0; }
};
struct transport_barrier : transport {
  void barrier(std::uint64_t) {}
};
struct transport_fault : transport {
  [[nodiscard]] bool fault() const { return false; }
};
static_assert(!Transport<transport_untagged> && !Transport<transport_caps>);
static_assert(!Transport<transport_view> && !Transport<transport_executor>);
static_assert(!Transport<transport_get_view> && !Transport<transport_get_executor>);
static_assert(!Transport<transport_window> && !Transport<transport_signals>);
static_assert(!Transport<transport_barrier> && !Transport<transport_fault>);

// NOLINTEND(readability-identifier-naming)

TEST(Contract, AWireThatSaysNothingPromisesNothing) {
  constexpr eptransport::capabilities caps;
  EXPECT_EQ(caps.peer_reach, eptransport::reach::never);
  EXPECT_EQ(caps.put_order, eptransport::ordering::none);
  EXPECT_EQ(caps.add, eptransport::signal_add::one);
  EXPECT_EQ(caps.inline_bytes, 0U);
}

TEST(Contract, ARequestWithoutASignalCountsNowhere) {
  EXPECT_EQ(put_request{}.signal, eptransport::no_signal);
  EXPECT_GT(eptransport::version, 0);
}

}  // namespace
