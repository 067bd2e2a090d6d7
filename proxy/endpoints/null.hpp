// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief An endpoint without a wire: what the engine costs by itself.
#pragma once

#include <eptransport/core/config.hpp>
#include <eptransport/core/result.hpp>
#include <eptransport/proxy/endpoint.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace eptransport::proxy {

/// Occupies the calling CPU, as a post to a real NIC would.
inline void occupy_cpu(std::uint64_t ns) noexcept {
  if (ns == 0) return;
  const auto until = std::chrono::steady_clock::now() + std::chrono::nanoseconds(ns);
  while (std::chrono::steady_clock::now() < until) {
  }
}

/// Of a null endpoint.
struct null_options {
  std::span<std::byte> window{};
  std::uint32_t operations = 1024;
  std::uint32_t batch = 16;
  std::uint64_t post_ns = 0;  ///< CPU time of each post
  /// Bits of an immediate that name the sender (`immediate_codec::rank_bits`).
  std::uint32_t rank_bits = 0;
};

/// Moves no bytes. Each write completes at the next poll, and its immediate comes back as if its
/// peer had sent the same: signals are counted and credits return.
class null_endpoint {
 public:
  explicit null_endpoint(const null_options& options)
      : options_(options), queue_(2 * std::size_t{options.operations}) {}

  [[nodiscard]] endpoint_limits limits() const noexcept {
    return {.operations = options_.operations, .batch = options_.batch};
  }
  [[nodiscard]] std::span<std::byte> window() const noexcept { return options_.window; }
  [[nodiscard]] result<void> attach(std::span<std::byte>) { return {}; }
  void detach() noexcept { count_ = 0; }
  post_result receive(std::byte*, std::uint64_t, std::uint32_t) noexcept {
    return post_result::failed;
  }
  post_result send(const send_post&) noexcept { return post_result::failed; }

  post_result write(const write_post& post) noexcept {
    if (count_ + 2 > queue_.size()) return post_result::again;
    occupy_cpu(options_.post_ns);
    add({.kind = completion_kind::write, .context = post.context});
    if (post.has_immediate) {
      const std::uint32_t sender = (std::uint32_t{1} << options_.rank_bits) - 1;
      add({.kind = completion_kind::immediate,
           .immediate = (post.immediate & ~sender) | post.peer});
    }
    return post_result::posted;
  }

  std::size_t poll(std::span<completion> out) noexcept {
    std::size_t n = 0;
    for (; n < out.size() && count_ != 0; ++n, --count_) {
      out[n] = queue_[first_];
      if (++first_ == queue_.size()) first_ = 0;
    }
    return n;
  }

  [[nodiscard]] std::string describe(int code) const { return "code " + std::to_string(code); }

 private:
  void add(const completion& c) noexcept {
    std::size_t at = first_ + count_++;
    if (at >= queue_.size()) at -= queue_.size();
    queue_[at] = c;
  }

  null_options options_;
  std::vector<completion> queue_;
  std::size_t first_ = 0;
  std::size_t count_ = 0;
};

static_assert(ProxyEndpoint<null_endpoint>);

}  // namespace eptransport::proxy
