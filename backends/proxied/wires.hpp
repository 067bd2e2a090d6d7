// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief In-process wires for a proxied world, plain and decorated.
#pragma once

#include <eptransport/backends/proxied/options.hpp>
#include <eptransport/core/capabilities.hpp>
#include <eptransport/core/config.hpp>
#include <eptransport/core/wire_costs.hpp>
#include <eptransport/proxy/endpoints/memory.hpp>
#include <eptransport/proxy/endpoints/srd.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace eptransport {

/// What any proxied wire promises. The charge is that of the simulated EFA behind a proxy, so that
/// kernels choose the message shape that they would choose there.
inline constexpr capabilities proxied_caps{.peer_reach = reach::never,
                                           .put_order = ordering::none,
                                           .add = signal_add::one,
                                           .max_message = std::uint64_t{1} << 30,
                                           .needs_registered_source = true,
                                           .host_progress = true,
                                           .charge = wires::efa_proxy.charge()};

/// An endpoint whose posts can be made to fail, so that failures can be shown to end every wait.
template <proxy::ProxyEndpoint Inner>
class breakable_endpoint {
 public:
  static constexpr int broken_code = 1 << 24;

  explicit breakable_endpoint(Inner& inner) : inner_(inner) {}

  /// From now on. Before the engine's first step.
  void break_now() noexcept { broken_ = true; }

  [[nodiscard]] proxy::endpoint_limits limits() const { return inner_.limits(); }
  [[nodiscard]] std::span<std::byte> window() const { return inner_.window(); }
  [[nodiscard]] result<void> attach(std::span<std::byte> memory) { return inner_.attach(memory); }
  void detach() noexcept { inner_.detach(); }
  proxy::post_result receive(std::byte* slot, std::uint64_t bytes, std::uint32_t context) {
    return inner_.receive(slot, bytes, context);
  }
  proxy::post_result write(const proxy::write_post& post) {
    return broken_ ? fail(post.peer) : inner_.write(post);
  }
  proxy::post_result send(const proxy::send_post& post) {
    return broken_ ? fail(post.peer) : inner_.send(post);
  }
  std::size_t poll(std::span<proxy::completion> out) {
    if (!failed_) return inner_.poll(out);
    out[0] = {.kind = proxy::completion_kind::error, .peer = peer_, .code = broken_code};
    return 1;
  }
  [[nodiscard]] std::string describe(int code) const {
    return code == broken_code ? "the endpoint was told to break" : inner_.describe(code);
  }

 private:
  proxy::post_result fail(std::uint32_t peer) noexcept {
    failed_ = true;
    peer_ = peer;
    return proxy::post_result::failed;
  }

  Inner& inner_;
  bool broken_ = false;
  bool failed_ = false;
  std::uint32_t peer_ = 0;
};

/// Memory copies inside the process.
struct memory_wire {
  static constexpr const char* name = "proxy:memory";
  static constexpr capabilities caps = proxied_caps;
  using endpoint_type = breakable_endpoint<proxy::memory_endpoint>;

  memory_wire(const std::vector<std::span<std::byte>>& windows, const proxied_options& options)
      : network_(windows, options.comms, options.wire), comms_(options.comms) {
    for (std::uint32_t i = 0; i < windows.size() * comms_; ++i) {
      ends_.push_back(std::make_unique<endpoint_type>(network_.endpoint(i / comms_, i % comms_)));
    }
  }
  [[nodiscard]] endpoint_type& endpoint(std::uint32_t rank, std::uint32_t comm) {
    return *ends_[std::size_t{rank} * comms_ + comm];
  }
  /// It decides nothing and forgets nothing.
  [[nodiscard]] static std::uint64_t trace_hash() noexcept { return 0; }
  [[nodiscard]] static std::uint64_t lost() noexcept { return 0; }

 private:
  proxy::memory_network network_;
  std::uint32_t comms_;
  std::vector<std::unique_ptr<endpoint_type>> ends_;
};

/// The same behind the SRD decorator.
struct srd_wire {
  static constexpr const char* name = "proxy:srd";
  static constexpr capabilities caps = proxied_caps;
  using decorated = proxy::srd_endpoint<proxy::memory_endpoint>;
  using endpoint_type = breakable_endpoint<decorated>;

  srd_wire(const std::vector<std::span<std::byte>>& windows, const proxied_options& options)
      : network_(windows, options.comms, options.wire), comms_(options.comms) {
    proxy::srd_options srd = options.srd;
    srd.seed = options.seed;
    for (std::uint32_t i = 0; i < windows.size() * comms_; ++i) {
      const std::uint32_t rank = i / comms_;
      const std::uint32_t comm = i % comms_;
      decorated_.push_back(std::make_unique<decorated>(network_.endpoint(rank, comm), srd,
                                                       static_cast<int>(rank), comm));
      ends_.push_back(std::make_unique<endpoint_type>(*decorated_.back()));
    }
  }
  [[nodiscard]] endpoint_type& endpoint(std::uint32_t rank, std::uint32_t comm) {
    return *ends_[std::size_t{rank} * comms_ + comm];
  }
  [[nodiscard]] std::uint64_t trace_hash() const noexcept {
    std::uint64_t hash = 0;
    for (const auto& end : decorated_) hash = hash * 31 + end->trace_hash();
    return hash;
  }
  /// Arrivals that a full completion queue forgot.
  [[nodiscard]] std::uint64_t lost() const noexcept {
    std::uint64_t sum = 0;
    for (const auto& end : decorated_) sum += end->lost();
    return sum;
  }

 private:
  proxy::memory_network network_;
  std::uint32_t comms_;
  std::vector<std::unique_ptr<decorated>> decorated_;
  std::vector<std::unique_ptr<endpoint_type>> ends_;
};

}  // namespace eptransport
