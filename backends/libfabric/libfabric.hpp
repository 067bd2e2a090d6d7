// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The libfabric transport: one rank per process over tcp, shm, verbs or EFA, by proxies.
///
/// Windows lie in host memory; GPU windows would need FI_HMEM. Groups run on host threads; kernels
/// of a GPU put and wait through backends/proxied/cuda_proxied.cuh.
#pragma once

#include <eptransport/backends/proxied/rank.hpp>
#include <eptransport/backends/proxied/wires.hpp>
#include <eptransport/core/capabilities.hpp>
#include <eptransport/core/config.hpp>
#include <eptransport/core/transport.hpp>
#include <eptransport/proxy/endpoints/libfabric.hpp>

namespace eptransport {

/// Any provider that `proxy::fabric_options` can name.
struct libfabric_wire {
  static constexpr const char* name = "libfabric";
  static constexpr capabilities caps = proxied_caps;
  using ports_type = proxy::fabric_ports;
};

/// One rank. `libfabric::create(bootstrap, options, fabric_options)`.
using libfabric = proxied_rank<libfabric_wire>;

static_assert(check_transport<libfabric>());

}  // namespace eptransport
