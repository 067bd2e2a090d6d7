// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The kernels of the tests' wire with tight limits, compiled once for all of them.
#include "fixture.hpp"

template class eptransport::group<eptransport::loopback<eptransport::testing::tight_wire>>;
