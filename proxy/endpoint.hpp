// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief What the engine needs of a wire: posts, a completion queue, and its limits as data.
#pragma once

#include <eptransport/core/config.hpp>
#include <eptransport/core/result.hpp>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace eptransport::proxy {

/// No completion is wanted by anybody; the engine uses it for writes that return credits.
inline constexpr std::uint32_t no_context = ~std::uint32_t{0};

/// A one-sided write into a peer's window.
struct write_post {
  std::uint32_t peer = 0;
  const std::byte* src = nullptr;  ///< in the own window; null if there are no bytes
  std::uint64_t dst_offset = 0;    ///< bytes from the start of the peer's window
  std::uint64_t bytes = 0;
  std::uint32_t immediate = 0;
  bool has_immediate = false;
  std::uint32_t context = no_context;  ///< comes back in the completion
  bool more = false;  ///< another post follows at once: the doorbell may wait for it
};

/// A message to a receive slot of a peer.
struct send_post {
  std::uint32_t peer = 0;
  const std::byte* data = nullptr;  ///< in the memory that was attached
  std::uint64_t bytes = 0;
  std::uint32_t context = no_context;
  bool more = false;
};

/// What became of a post.
enum class [[nodiscard]] post_result : std::uint8_t {
  posted,  ///< a completion will come
  again,   ///< no room now; nothing happened; poll, then try again
  failed,  ///< the endpoint is unusable; an error completion says why
};

/// What a completion is about.
enum class completion_kind : std::uint8_t {
  write,      ///< a write's source is free
  send,       ///< a message's memory is free
  immediate,  ///< a peer's write with immediate has landed, bytes first
  message,    ///< a peer's message lies in a receive slot
  error,      ///< an operation failed, or the endpoint did
};

/// One completion.
struct completion {
  completion_kind kind = completion_kind::write;
  std::uint32_t context = no_context;  ///< of the post; `message`: of the receive slot
  std::uint32_t immediate = 0;
  std::uint32_t peer = 0;   ///< `error`: the rank it concerns; no rank of the group: not known
  std::uint64_t bytes = 0;  ///< `message`
  int code = 0;             ///< `error`: the endpoint's own code, for `describe`
};

/// What an endpoint can take.
struct endpoint_limits {
  std::uint64_t max_message = 0;  ///< bytes of one write; 0 = unlimited
  std::uint64_t max_send = 0;     ///< bytes of one message; 0 = it has none
  int immediate_bits = 32;        ///< 4-byte CQ data on EFA
  std::uint32_t operations = 0;   ///< writes and sends in flight
  std::uint32_t completions = 0;  ///< entries of the completion queue; 0 = unlimited
  std::uint32_t batch = 1;        ///< posts per doorbell
  bool readable_window = true;    ///< the CPU may read and write the own window
};

/// A wire's end for one engine.
///
/// | expression            | meaning                                                           |
/// |-----------------------|-------------------------------------------------------------------|
/// | `e.limits()`          | before anything else                                              |
/// | `e.window()`          | the own window                                                    |
/// | `e.attach(memory)`    | registers the engine's buffers: once, before the first post       |
/// | `e.detach()`          | forgets slots, sends and completions: the engine's buffers may go |
/// | `e.receive(slot, n, c)` | posts a receive slot                                            |
/// | `e.write(p)`          | posts a write                                                     |
/// | `e.send(p)`           | posts a message                                                   |
/// | `e.poll(out)`         | makes progress; how many completions it wrote to `out`            |
/// | `e.describe(code)`    | words for an error's code                                         |
///
/// After `detach`, which waits for what is being written there, nothing touches the registered
/// buffers. Another engine may attach then, where the endpoint can serve a second one. It may be
/// called without `attach`.
///
/// No order is promised between any two operations, and a local completion says nothing about the
/// peer. A post with `more` may stay unsent until one without follows.
///
/// @par Threads  One at a time: the engine's.
template <class E>
concept ProxyEndpoint =
    requires(E& e, const E& ce, const write_post& write, const send_post& send, std::byte* slot,
             std::span<std::byte> memory, std::span<completion> out) {
      { ce.limits() } -> std::same_as<endpoint_limits>;
      { ce.window() } -> std::same_as<std::span<std::byte>>;
      { e.attach(memory) } -> std::same_as<result<void>>;
      { e.detach() } noexcept -> std::same_as<void>;
      { e.receive(slot, std::uint64_t{}, std::uint32_t{}) } -> std::same_as<post_result>;
      { e.write(write) } -> std::same_as<post_result>;
      { e.send(send) } -> std::same_as<post_result>;
      { e.poll(out) } -> std::same_as<std::size_t>;
      { ce.describe(int{}) } -> std::same_as<std::string>;
    };

}  // namespace eptransport::proxy
