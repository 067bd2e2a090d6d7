// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief A pair of wires passes the conformance suite as one transport, replayed and in real
/// threads, and where neither wire can wait for the sum of two words.
#include <gtest/gtest.h>

#include <string>

#include "conformance.hpp"
#include "hybrid_backend.hpp"

namespace conformance {

struct hybrid_names {
  template <class B>
  static std::string GetName(int index) {  // NOLINT(readability-identifier-naming): gtest's name
    return std::string(B::name) + std::to_string(index);
  }
};

using efa_proxy = eptransport::profiles::efa_proxy;
using pairs = ::testing::Types<hybrid_baton<efa_proxy>, hybrid_baton<narrow>,
                               hybrid_free<efa_proxy>, hybrid_free<efa_proxy, plain_wire>>;

INSTANTIATE_TYPED_TEST_SUITE_P(Hybrid, Conformance, pairs, hybrid_names);

}  // namespace conformance
