// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The core of the library: the contract, without any backend, third-party header or CUDA.
#pragma once

#include <eptransport/core/capabilities.hpp>
#include <eptransport/core/config.hpp>
#include <eptransport/core/fault.hpp>
#include <eptransport/core/host_executor.hpp>
#include <eptransport/core/memory.hpp>
#include <eptransport/core/result.hpp>
#include <eptransport/core/thread_group.hpp>
#include <eptransport/core/transport.hpp>
