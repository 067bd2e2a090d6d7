// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The least that models each concept of the core.
///
/// An algorithm that compiles with an archetype uses no more than its concept promises.
#pragma once

#include <eptransport/core/capabilities.hpp>
#include <eptransport/core/memory.hpp>
#include <eptransport/core/result.hpp>
#include <eptransport/core/transport.hpp>

#include <cstddef>
#include <cstdint>
#include <span>

namespace archetypes {

using eptransport::arrival;
using eptransport::fan;
using eptransport::op_status;
using eptransport::put_request;

/// Models `ThreadGroup`.
struct group {
  using memory = eptransport::host_memory;
  [[nodiscard]] std::uint32_t thread() const { return 0; }
  [[nodiscard]] std::uint32_t threads() const { return 1; }
  void sync() const {}
  [[nodiscard]] bool any(bool b) const { return b; }
  [[nodiscard]] std::int64_t sum(std::int64_t v) const { return v; }
  [[nodiscard]] std::int64_t prefix(std::int64_t) const { return 0; }
  [[nodiscard]] std::int64_t first(std::int64_t v) const { return v; }
  [[nodiscard]] float maximum(float v) const { return v; }
  [[nodiscard]] float multiply_add(float a, float w, float v) const { return a + w * v; }
  void copy(std::byte*, const std::byte*, std::uint64_t) const {}
  void fan_out(const fan&, std::uint64_t, const std::byte*, std::uint64_t) const {}
  [[nodiscard]] std::int64_t pick(std::int64_t value, std::uint32_t) const { return value; }
  [[nodiscard]] std::int64_t count(bool value) const { return value ? 1 : 0; }
  [[nodiscard]] std::uint64_t unite(std::uint64_t value) const { return value; }
  template <int kThreads>
  [[nodiscard]] float maximum_of(float value) const {
    return value;
  }
};

/// Models `Worker` for any view.
struct worker_group : group {
  [[nodiscard]] std::uint32_t worker() const { return 0; }
  [[nodiscard]] std::uint32_t workers() const { return 1; }
  template <class View>
  [[nodiscard]] bool barrier(const View&, std::uint64_t) const {
    return true;
  }
  [[nodiscard]] bool last_to_leave() const { return true; }
  [[nodiscard]] std::uint32_t member() const { return 0; }
  [[nodiscard]] std::uint32_t members() const { return 1; }
  [[nodiscard]] bool crew_all(bool value) const { return value; }
  [[nodiscard]] std::byte* scratch() const { return nullptr; }
  [[nodiscard]] arrival arrive() const { return {}; }
  template <class View>
  [[nodiscard]] bool complete(const arrival&, const View&, std::uint64_t) const {
    return true;
  }
};

/// Models `TransportView` for `group`.
struct view {
  [[nodiscard]] std::int32_t rank() const { return 0; }
  [[nodiscard]] std::int32_t size() const { return 1; }
  [[nodiscard]] std::int32_t node(std::int32_t) const { return 0; }
  [[nodiscard]] std::uint32_t channels() const { return 1; }
  [[nodiscard]] std::uint64_t now_ns() const { return 0; }
  [[nodiscard]] std::byte* local() const { return nullptr; }
  [[nodiscard]] std::byte* peer_pointer(std::int32_t, std::uint64_t, std::uint64_t) const {
    return nullptr;
  }
  op_status put(const group&, std::uint32_t, const put_request&, std::uint64_t) const {
    return op_status::ok;
  }
  op_status signal(const group&, std::uint32_t, std::int32_t, std::uint32_t, std::uint64_t) const {
    return op_status::ok;
  }
  [[nodiscard]] std::uint64_t read_signal(std::uint32_t) const { return 0; }
  op_status wait_signal(const group&, std::uint32_t, std::uint64_t, std::uint64_t) const {
    return op_status::ok;
  }
  op_status flush(const group&, std::uint32_t, std::uint64_t) const { return op_status::ok; }
  void submit(const group&, std::uint32_t) const {}
};

/// Models `Executor`.
struct executor {
  using stream_type = int;
  using worker_type = worker_group;
  static constexpr bool synchronous = true;
  std::uint32_t workers(std::uint32_t) { return 1; }
  eptransport::result<std::byte*> allocate(std::uint64_t) { return nullptr; }
  eptransport::result<std::byte*> allocate_shared(std::uint64_t) { return nullptr; }
  void release(std::byte*) noexcept {}
  eptransport::result<void> write(std::byte*, const std::byte*, std::uint64_t) { return {}; }
  eptransport::result<void> read(std::byte*, const std::byte*, std::uint64_t) { return {}; }
  eptransport::result<void> synchronize() { return {}; }
};

/// Models `Transport`.
struct transport {
  using transport_concept = eptransport::transport_tag;
  using view_type = archetypes::view;
  using executor_type = archetypes::executor;
  static constexpr eptransport::capabilities caps{};

  [[nodiscard]] view_type view() const { return {}; }
  executor_type& executor() { return executor_; }
  [[nodiscard]] std::span<std::byte> window() const { return {}; }
  [[nodiscard]] std::uint32_t signals() const { return 0; }
  eptransport::result<void> barrier(std::uint64_t) { return {}; }
  [[nodiscard]] eptransport::result<void> fault() const { return {}; }

  executor_type executor_;
};

}  // namespace archetypes
