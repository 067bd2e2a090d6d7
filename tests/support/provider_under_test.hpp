// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief What the environment makes of the tests over libfabric: another provider, other comms.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <string>

namespace eptransport::support {

/// `name`, or EPT_TEST_PROVIDER in place of "tcp": `make test-rdma` runs them over verbs so.
[[nodiscard]] inline std::string provider_under_test(const std::string& name) {
  const char* other = std::getenv("EPT_TEST_PROVIDER");
  return name == "tcp" && other != nullptr ? other : name;
}

/// `comms`, or what EPT_COMMS says: more of them than two cores can drive.
[[nodiscard]] inline std::uint32_t comms_under_test(std::uint32_t comms) {
  const char* other = std::getenv("EPT_COMMS");
  const unsigned long asked = other == nullptr ? 0 : std::strtoul(other, nullptr, 10);
  return asked == 0 ? comms : static_cast<std::uint32_t>(asked);
}

}  // namespace eptransport::support
