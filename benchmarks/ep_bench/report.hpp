// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief How results are written: a table for people, JSON lines for programs.
#pragma once

#include <string>
#include <vector>

#include "ep_bench/options.hpp"

namespace eptransport::bench {

/// The configuration in one line, a header line, and one line per wire.
[[nodiscard]] std::string table_of(const options& asked, const std::vector<measurement>& rows);

/// One JSON object without line breaks.
[[nodiscard]] std::string json_of(const options& asked, const measurement& row);

}  // namespace eptransport::bench
