// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The proxied transport passes the conformance suite: plain and decorated wires, one and
/// two
/// comms, eager payloads off, small and large, engines on threads of their own, shared, or
/// replayed.
#include <eptransport/backends/proxied/proxied.hpp>

#include <gtest/gtest.h>

#include <string>

#include "conformance.hpp"
#include "proxied_backend.hpp"

namespace conformance {

using eptransport::memory_wire;
using eptransport::proxy_drive;
using eptransport::srd_wire;

/// Says what a backend is made of where gtest would print a number.
struct proxied_names {
  template <class B>
  static std::string GetName(int) {  // NOLINT(readability-identifier-naming): gtest's name
    return std::string(std::is_same_v<typename B::wire, srd_wire> ? "srd" : "memory") + "_k" +
           std::to_string(B::comms) + "_eager" + std::to_string(B::eager);
  }
};

template <class Wire, std::uint32_t kComms, std::uint64_t kEager>
using replayed = proxied_backend<Wire, kComms, kEager, proxy_drive::baton>;

using in_baton_mode = ::testing::Types<replayed<memory_wire, 1, 0>, replayed<memory_wire, 2, 256>,
                                       replayed<srd_wire, 1, 0>, replayed<srd_wire, 2, 0>,
                                       replayed<srd_wire, 1, 256>, replayed<srd_wire, 2, 8192>>;
using on_shared_threads =
    ::testing::Types<proxied_backend<memory_wire, 1, 256, proxy_drive::shared>,
                     proxied_backend<srd_wire, 2, 8192, proxy_drive::shared>>;
using on_own_threads = ::testing::Types<proxied_backend<memory_wire, 1, 0, proxy_drive::threads>,
                                        proxied_backend<memory_wire, 2, 8192, proxy_drive::threads>,
                                        proxied_backend<srd_wire, 2, 256, proxy_drive::threads>>;

INSTANTIATE_TYPED_TEST_SUITE_P(ProxiedBaton, Conformance, in_baton_mode, proxied_names);
INSTANTIATE_TYPED_TEST_SUITE_P(ProxiedShared, Conformance, on_shared_threads, proxied_names);
INSTANTIATE_TYPED_TEST_SUITE_P(ProxiedThreads, Conformance, on_own_threads, proxied_names);

}  // namespace conformance
