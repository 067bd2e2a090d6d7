// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The provider that tests over "tcp" use: another one where EPT_TEST_PROVIDER names it.
#pragma once

#include <cstdlib>
#include <string>

namespace eptransport::support {

/// `name`, or EPT_TEST_PROVIDER in place of "tcp": `make test-rdma` runs them over verbs so.
[[nodiscard]] inline std::string provider_under_test(const std::string& name) {
  const char* other = std::getenv("EPT_TEST_PROVIDER");
  return name == "tcp" && other != nullptr ? other : name;
}

}  // namespace eptransport::support
