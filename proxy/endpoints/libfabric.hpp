// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The libfabric wire: one rank's endpoints over tcp, shm, verbs or EFA, libfabric 1.17 on.
///
/// Nothing is assumed of a provider that it did not say: addressing, keys, local registration, the
/// sizes of queues and of messages are read back from fi_getinfo. Immediates carry the arrivals,
/// for counters are missing or wrong in half of the providers. Providers that move data only inside
/// `poll` of the target are served by the engine, which polls when idle too.
///
/// Set-up of a rank: `open`, engines over `endpoint(k)`, exchange of `address()`, `connect`, a
/// barrier; only then the first post. Whatever ends a rank must run the destructor: shm leaves 13
/// MiB of /dev/shm behind per endpoint that nobody closed.
#pragma once

#include <eptransport/core/config.hpp>
#include <eptransport/core/result.hpp>
#include <eptransport/proxy/endpoint.hpp>
#include <eptransport/proxy/endpoints/detail/fabric_objects.hpp>
#include <eptransport/proxy/endpoints/detail/fabric_provider.hpp>

#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_rma.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace eptransport::proxy {

namespace detail {

/// A provider's domain, with the window registered in it unless registrations belong to endpoints.
struct fabric_domain {
  fi_info* info = nullptr;  ///< of the chosen provider's list
  fabric_owner<fid_fabric> fabric;
  fabric_owner<fid_domain> domain;
  fabric_owner<fid_mr> window;
  bool strict = false;
  std::uint64_t next_key = 1;

  [[nodiscard]] bool mode(std::uint64_t bit) const noexcept {
    return (static_cast<std::uint64_t>(info->domain_attr->mr_mode) & bit) != 0;
  }
};

}  // namespace detail

/// One comm's end. Made by `fabric_ports`.
///
/// @par Threads  One at a time; endpoints of a shared domain at the same time, each with its own.
class libfabric_endpoint {
 public:
  libfabric_endpoint(const libfabric_endpoint&) = delete;
  libfabric_endpoint& operator=(const libfabric_endpoint&) = delete;
  ~libfabric_endpoint() { close(); }

  [[nodiscard]] endpoint_limits limits() const noexcept { return limits_; }
  [[nodiscard]] std::span<std::byte> window() const noexcept { return window_; }
  /// Once in its life: `detach` closes it, which alone makes sure that nothing is written any more.
  ///
  /// @par Errors  `misuse` the second time; libfabric's own where memory cannot be registered
  [[nodiscard]] result<void> attach(std::span<std::byte> memory);
  void detach() noexcept;
  post_result receive(std::byte* slot, std::uint64_t bytes, std::uint32_t context);
  post_result write(const write_post& post);
  post_result send(const send_post& post);
  std::size_t poll(std::span<completion> out);
  [[nodiscard]] std::string describe(int code) const;

  /// For comparisons with the bare library.
  struct native_handles {
    fid_ep* endpoint = nullptr;
    fid_cq* queue = nullptr;
    void* descriptor = nullptr;  ///< of the window
  };
  [[nodiscard]] native_handles native() const noexcept {
    return {endpoint_.get(), queue_.get(), window_descriptor_};
  }
  /// Where a peer's window is, as fi_write wants it.
  struct remote_window {
    fi_addr_t address = FI_ADDR_UNSPEC;
    std::uint64_t base = 0;  ///< 0 where the provider counts from the start of a registration
    std::uint64_t key = 0;
  };
  [[nodiscard]] const remote_window& remote(std::uint32_t peer) const { return peers_[peer]; }

 private:
  friend class fabric_ports;

  static constexpr int unregistered_source = 1 << 20;  ///< own codes lie above libfabric's
  static constexpr int told_to_refuse = unregistered_source + 1;
  static constexpr int receive_failed = 1 << 21;  ///< together with libfabric's
  static constexpr std::uint32_t unknown_peer = ~std::uint32_t{0};

  /// What an operation's context points to; libfabric uses the first part while it is in flight.
  struct operation {
    fi_context2 libfabric{};
    std::uint32_t context = no_context;
    std::uint32_t peer = unknown_peer;
    completion_kind kind = completion_kind::write;
  };

  libfabric_endpoint(std::shared_ptr<detail::fabric_domain> domain, const fabric_options& options,
                     std::span<std::byte> window)
      : domain_(std::move(domain)), refuse_posts_(options.refuse_posts), window_(window) {}

  result<void> open(const fabric_options& options);
  [[nodiscard]] bool over_rxm() const noexcept {
    return std::string_view(domain_->info->fabric_attr->prov_name).ends_with(";ofi_rxm");
  }
  void settle() noexcept;
  void close() noexcept;
  result<void> set_limits(const fabric_options& options);
  result<std::vector<std::byte>> name() const;
  result<void> insert(std::span<const std::byte> address, std::uint64_t base, std::uint64_t key);
  [[nodiscard]] bool registered(const std::byte* data, std::uint64_t bytes) const noexcept;
  [[nodiscard]] operation* take(completion_kind kind, std::uint32_t context, std::uint32_t peer);
  post_result posted(long returned, operation* op);
  post_result fail(std::uint32_t peer, int code) noexcept;
  completion translate(const fi_cq_data_entry& entry);
  completion read_error();
  completion finish(operation* op);

  std::shared_ptr<detail::fabric_domain> domain_;
  bool refuse_posts_;
  std::span<std::byte> window_;
  std::span<std::byte> memory_{};  ///< the engine's buffers
  endpoint_limits limits_{};
  std::vector<operation> operations_;
  std::vector<operation*> free_;
  std::vector<std::unique_ptr<operation>> receives_;
  std::vector<remote_window> peers_;
  bool attached_ = false;
  completion failed_{};  ///< the next that `poll` returns, if its kind is `error`
  std::string provider_says_;

  // Destroyed from the last to the first: the endpoint before what it is bound to.
  detail::fabric_owner<fid_cq> queue_;
  detail::fabric_owner<fid_av> vector_;
  detail::fabric_owner<fid_mr> own_window_;  ///< where registrations belong to endpoints
  detail::fabric_owner<fid_mr> buffers_;
  detail::fabric_owner<fid_ep> endpoint_;
  std::uint64_t window_key_ = 0;
  std::uint64_t window_base_ = 0;
  void* window_descriptor_ = nullptr;
  void* buffers_descriptor_ = nullptr;
};

/// All endpoints of one rank: comm k talks to comm k of every other rank.
///
/// @par Threads  One at a time.
class fabric_ports {
 public:
  using options = fabric_options;
  using endpoint_type = libfabric_endpoint;

  /// @param window  outlives the ports; at least one byte
  /// @par Errors    `unsupported` with what fi_getinfo offers; libfabric's own, with the call
  [[nodiscard]] static result<std::unique_ptr<fabric_ports>> open(const fabric_options& options,
                                                                  std::span<std::byte> window,
                                                                  std::uint32_t comms);

  [[nodiscard]] libfabric_endpoint& endpoint(std::uint32_t comm) { return *endpoints_[comm]; }
  /// As it was chosen: "tcp", "efa-direct".
  [[nodiscard]] const std::string& provider() const noexcept { return provider_.name; }
  /// What `connect` of every rank needs of this one; no secret but the keys of the window.
  [[nodiscard]] result<std::vector<std::byte>> address() const;
  /// @param all   one `address()` per rank, in rank order
  /// @par Errors  `mismatch`, naming the rank whose provider or number of comms differs
  [[nodiscard]] result<void> connect(std::span<const std::vector<std::byte>> all);
  /// A rank of this host is dead: removes what its endpoints left in /dev/shm, if it was shm.
  void bury(std::uint32_t rank) const noexcept;
  /// Closing may end in a crash while something is on its way to this rank. To close a connection,
  /// ofi_rxm handles the completions of all: over tcp a write that had half arrived is one of them,
  /// without a context, which libfabric 1.17 looks into.
  [[nodiscard]] bool closes_only_at_rest() const noexcept;
  /// Nothing may be written to the window any more. For endpoints that stay open and that nobody
  /// uses again.
  void withdraw() noexcept;

 private:
  fabric_ports() = default;

  detail::chosen_provider provider_;  ///< first made, last freed: domains point into its list
  std::vector<std::unique_ptr<libfabric_endpoint>> endpoints_;
  std::vector<std::vector<std::string>> shm_names_;  ///< [rank], of its files; none on other wires
};

static_assert(ProxyEndpoint<libfabric_endpoint>);

}  // namespace eptransport::proxy

#include <eptransport/proxy/endpoints/detail/fabric_endpoint_impl.hpp>
