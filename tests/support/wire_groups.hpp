// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Groups over simulated wires whose kernels are compiled in runner_loopback.cpp alone.
#pragma once

#include <eptransport/backends/loopback/loopback.hpp>
#include <eptransport/backends/loopback/profiles.hpp>
#include <eptransport/kernels/kernels.hpp>

namespace eptransport {

extern template class group<loopback<profiles::nvlink>>;
extern template class group<loopback<profiles::ib_gpu>>;
extern template class group<loopback<profiles::efa_gpu>>;
extern template class group<loopback<profiles::efa_proxy>>;

}  // namespace eptransport
