// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Groups over peer memory, whose kernels are compiled in peer_run.cu alone.
#pragma once

#include <eptransport/backends/peer_memory/peer_memory.cuh>
#include <eptransport/kernels/kernels.hpp>

namespace eptransport {

extern template class group<peer_memory>;

}  // namespace eptransport
