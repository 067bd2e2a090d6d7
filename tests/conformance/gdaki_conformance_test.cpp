// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The GPU-initiated transport passes the conformance suite over emulated EFA (out of order)
///        and mlx5 NICs, replayed and on real threads.
#include <eptransport/backends/gdaki/gdaki.hpp>

#include <gtest/gtest.h>

#include <string>
#include <type_traits>

#include "conformance.hpp"
#include "gdaki_backend.hpp"

namespace conformance {

using eptransport::efa_wire;
using eptransport::mlx5_wire;
using eptransport::nic_drive;

struct gdaki_names {
  template <class B>
  static std::string GetName(int) {  // NOLINT(readability-identifier-naming): gtest's name
    return std::string(std::is_same_v<typename B::wire, efa_wire> ? "efa" : "mlx5") +
           (B::baton ? "_baton" : "_threads");
  }
};

using gdaki_backends = ::testing::Types<
    gdaki_backend<efa_wire, nic_drive::baton>, gdaki_backend<mlx5_wire, nic_drive::baton>,
    gdaki_backend<efa_wire, nic_drive::thread>, gdaki_backend<mlx5_wire, nic_drive::thread>>;

INSTANTIATE_TYPED_TEST_SUITE_P(Gdaki, Conformance, gdaki_backends, gdaki_names);

// The emulated wires keep their promises and no more.
TEST(GdakiOrder, AFlagDoesNotCoverEarlierPutsOnEfaAndDoesOnMlx5) {
  report efa;
  EXPECT_NE((first_failing_seed<gdaki_backend<efa_wire, nic_drive::baton>>(
                [](const auto& request, auto& out) {
                  a_flag_covers_earlier_puts<gdaki_backend<efa_wire, nic_drive::baton>>(request,
                                                                                        out);
                },
                efa)),
            0U);
  report mlx5;
  EXPECT_EQ((first_failing_seed<gdaki_backend<mlx5_wire, nic_drive::baton>>(
                [](const auto& request, auto& out) {
                  a_flag_covers_earlier_puts<gdaki_backend<mlx5_wire, nic_drive::baton>>(request,
                                                                                         out);
                },
                mlx5)),
            0U)
      << mlx5.text();
}

}  // namespace conformance
