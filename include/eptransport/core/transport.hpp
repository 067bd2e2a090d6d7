// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The contract: what a wire must offer to carry expert-parallel traffic, and no more.
///
/// It is the weakest that an unordered, multi-path network keeps. What a kernel may **not** assume:
/// any order between two puts or signals, on the same channel or not; remote atomics; a signal that
/// covers earlier puts; a fence; remote completion from `flush`. Arrival is counted, never inferred
/// from order. Stronger wires say so in `caps`, and kernels use it under `if constexpr`.
#pragma once

#include <eptransport/core/capabilities.hpp>
#include <eptransport/core/config.hpp>
#include <eptransport/core/result.hpp>
#include <eptransport/core/thread_group.hpp>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

namespace eptransport {

/// Opt-in tag. A type is a transport because it says so, never because its spelling happens to fit.
struct transport_tag {};

/// How a bounded operation ended.
enum class [[nodiscard]] op_status : std::uint8_t {
  ok,
  expired,  ///< the deadline passed; what was asked for may still happen
  failed,   ///< the transport is unusable; its host object says why in `fault()`
};

/// No signal: the put is counted nowhere.
inline constexpr std::uint32_t no_signal = ~std::uint32_t{0};

/// A deadline that never comes; for tests and tools only.
inline constexpr std::uint64_t no_deadline = ~std::uint64_t{0};

/// One one-sided copy into a peer's window.
struct put_request {
  std::int32_t peer = 0;             ///< destination rank
  std::uint64_t dst_offset = 0;      ///< bytes from the start of the peer's window
  const std::byte* src = nullptr;    ///< in the own window if `caps.needs_registered_source`
  std::uint64_t bytes = 0;           ///< at most `caps.max_message`
  std::uint32_t signal = no_signal;  ///< the peer's word that grows by 1
};

/// The device view: a value that a kernel takes by copy. `G` is any thread group.
///
/// A *signal* is an index; behind it lies a 64-bit counter owned by the receiver. It only grows, by
/// 1 per put, modulo 2^64; nobody resets it, and it need not start at 0.
///
/// | expression                        | meaning                                                |
/// |-----------------------------------|--------------------------------------------------------|
/// | `v.rank()`, `v.size()`            | this rank, and how many there are                      |
/// | `v.node(peer)`                    | the node that `peer` runs on, a small integer          |
/// | `v.channels()`                    | channels per rank, at least 1                          |
/// | `v.now_ns()`                      | the clock of deadlines; monotonic, maybe virtual       |
/// | `v.local()`                       | the start of the own window                            |
/// | `v.peer_pointer(peer, off, n)`    | address of `n` bytes of the peer's window if loads and |
/// |                                   | stores reach them, else null; never null for oneself   |
/// | `v.put(g, ch, request, deadline)` | copies, then the signal has grown by 1; waits while    |
/// |                                   | queues are full. `request.src` is busy until `flush`   |
/// | `v.signal(g, ch, peer, s, dl)`    | the same without bytes                                 |
/// | `v.read_signal(s)`                | own word `s`, acquire                                  |
/// | `v.wait_signal(g, s, n, dl)`      | until `word - n` is not negative as a signed number    |
/// | `v.flush(g, ch, dl)`              | the sources of the caller's puts may be reused         |
/// | `v.submit(g, ch)`                 | rings the doorbell of deferred puts; often a no-op     |
///
/// @par Order    `put` and `signal` release the calling group's earlier writes, and writes it saw
///               through a worker barrier. After `read_signal` returned n, the bytes of every put
///               counted in n are visible. Nothing else is ordered.
/// @par Threads  All threads of `g` call together. Any number of groups may call at once.
/// @par Errors   `expired` at the deadline, `failed` after a transport error; both are final for
///               the operation, and nothing outside the windows was touched.
template <class V, class G>
concept TransportView =
    std::is_trivially_copyable_v<V> && ThreadGroup<G> &&
    requires(const V& v, const G& g, const put_request& request, std::uint32_t channel,
             std::int32_t peer, std::uint32_t signal, std::uint64_t n) {
      { v.rank() } -> std::same_as<std::int32_t>;
      { v.size() } -> std::same_as<std::int32_t>;
      { v.node(peer) } -> std::same_as<std::int32_t>;
      { v.channels() } -> std::same_as<std::uint32_t>;
      { v.now_ns() } -> std::same_as<std::uint64_t>;
      { v.local() } -> std::same_as<std::byte*>;
      { v.peer_pointer(peer, n, n) } -> std::same_as<std::byte*>;
      { v.put(g, channel, request, n) } -> std::same_as<op_status>;
      { v.signal(g, channel, peer, signal, n) } -> std::same_as<op_status>;
      { v.read_signal(signal) } -> std::same_as<std::uint64_t>;
      { v.wait_signal(g, signal, n, n) } -> std::same_as<op_status>;
      { v.flush(g, channel, n) } -> std::same_as<op_status>;
      v.submit(g, channel);
    };

/// Where kernels run and where their memory lives: host threads, or the blocks of a GPU.
///
/// | expression                    | meaning                                                     |
/// |-------------------------------|-------------------------------------------------------------|
/// | `e.workers(max_sms)`          | workers of a launch under that limit; 0 = the default       |
/// | `e.allocate(bytes)`           | zeroed memory that kernels can use                          |
/// | `e.allocate_shared(bytes)`    | the same, and the host may read it while kernels run        |
/// | `e.release(p)`                | gives either back                                           |
/// | `e.write(dst, src, n)`        | host memory to kernel memory; done when it returns          |
/// | `e.read(dst, src, n)`         | kernel memory to host memory, after `e.synchronize()`       |
/// | `e.launch(call, sms, stream)` | runs `call(worker)` in every worker; `call.words()` are the |
/// |                               | `worker_words` of the lane                                  |
/// | `e.synchronize()`             | returns when everything launched has ended                  |
/// | `E::synchronous`              | `launch` returns after the work has ended                   |
/// | `e.concurrent()`              | launches of this rank that may wait for peers at once (its  |
/// |                               | lanes, INV-9); left out where there is no limit             |
///
/// @par Threads  One host thread at a time per object.
template <class E>
concept Executor = requires(E& e, std::byte* dst, const std::byte* src, std::uint64_t bytes) {
  typename E::stream_type;
  typename E::worker_type;
  { e.workers(std::uint32_t{}) } -> std::same_as<std::uint32_t>;
  { E::synchronous } -> std::convertible_to<bool>;
  { e.allocate(bytes) } -> std::same_as<result<std::byte*>>;
  { e.allocate_shared(bytes) } -> std::same_as<result<std::byte*>>;
  { e.release(dst) } noexcept;
  { e.write(dst, src, bytes) } -> std::same_as<result<void>>;
  { e.read(dst, src, bytes) } -> std::same_as<result<void>>;
  { e.synchronize() } -> std::same_as<result<void>>;
};

/// The host-side owner of one rank's end of a wire.
///
/// | expression              | meaning                                                         |
/// |-------------------------|-----------------------------------------------------------------|
/// | `T::caps`               | promises and charges, `static constexpr capabilities`           |
/// | `t.view()`              | the device view, a `T::view_type`                               |
/// | `t.executor()`          | a `T::executor_type&`                                           |
/// | `t.window()`            | the registered memory that peers write; zeroed when it was made |
/// | `t.signals()`           | how many signal words this rank owns                            |
/// | `t.barrier(timeout_ns)` | all ranks arrive; set-up and teardown only                      |
/// | `t.fault()`             | success, or why the transport became unusable                   |
///
/// @par Threads  One host thread at a time per object.
template <class T>
concept Transport =
    std::derived_from<typename T::transport_concept, transport_tag> &&
    std::same_as<decltype(T::caps), const capabilities> && Executor<typename T::executor_type> &&
    TransportView<typename T::view_type, typename T::executor_type::worker_type> &&
    requires(T& t, const T& ct, std::uint64_t timeout_ns) {
      { ct.view() } -> std::same_as<typename T::view_type>;
      { t.executor() } -> std::same_as<typename T::executor_type&>;
      { ct.window() } -> std::same_as<std::span<std::byte>>;
      { ct.signals() } -> std::same_as<std::uint32_t>;
      { t.barrier(timeout_ns) } -> std::same_as<result<void>>;
      { ct.fault() } -> std::same_as<result<void>>;
    };

/// Names the first missing requirement in one line; stands under each backend.
template <class T>
consteval bool check_transport() {
  static_assert(
      requires { typename T::transport_concept; },
      "eptransport: T lacks `using transport_concept = eptransport::transport_tag`");
  static_assert(
      requires { requires std::same_as<decltype(T::caps), const capabilities>; },
      "eptransport: T lacks `static constexpr eptransport::capabilities caps`");
  static_assert(
      requires { requires Executor<typename T::executor_type>; },
      "eptransport: T::executor_type does not model Executor (core/transport.hpp)");
  static_assert(
      requires {
        requires TransportView<typename T::view_type, typename T::executor_type::worker_type>;
      }, "eptransport: T::view_type does not model TransportView (core/transport.hpp)");
  static_assert(Transport<T>, "eptransport: T does not model Transport (core/transport.hpp)");
  return true;
}

}  // namespace eptransport
