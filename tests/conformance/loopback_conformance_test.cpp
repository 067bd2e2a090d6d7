// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The simulator passes the conformance suite, as every profile, replayably and under load.
#include <eptransport/backends/loopback/loopback.hpp>

#include <gtest/gtest.h>

#include <string>

#include "conformance.hpp"
#include "loopback_backend.hpp"

namespace conformance {

namespace p = eptransport::profiles;

/// Puts the profile's name where gtest would print a number.
struct profile_names {
  template <class B>
  static std::string GetName(int) {  // NOLINT(readability-identifier-naming): gtest's name
    return B::profile::name;
  }
};

using in_baton_mode = ::testing::Types<loopback_baton<p::nvlink>, loopback_baton<p::ib_gpu>,
                                       loopback_baton<p::efa_gpu>, loopback_baton<p::efa_proxy>,
                                       loopback_baton<narrow>>;
using in_free_mode =
    ::testing::Types<loopback_free<p::nvlink>, loopback_free<p::ib_gpu>, loopback_free<p::efa_gpu>,
                     loopback_free<p::efa_proxy>, loopback_free<narrow>>;

INSTANTIATE_TYPED_TEST_SUITE_P(LoopbackBaton, Conformance, in_baton_mode, profile_names);
INSTANTIATE_TYPED_TEST_SUITE_P(LoopbackFree, Conformance, in_free_mode, profile_names);

}  // namespace conformance
