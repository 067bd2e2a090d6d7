// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Everything a host program needs to dispatch and combine over a transport.
#pragma once

#include <eptransport/eptransport.hpp>
#include <eptransport/kernels/call.hpp>
#include <eptransport/kernels/group.hpp>
