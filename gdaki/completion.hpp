// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief What a completion entry says, whatever its format.
#pragma once

#include <eptransport/core/config.hpp>

#include <cstdint>

namespace eptransport::gdaki {

/// Which request a completion ends.
enum class completed : std::uint8_t {
  nothing,       ///< the entry is not a completion
  request,       ///< one of the own send queue
  received,      ///< a message came in
  written_with,  ///< a peer's write with immediate came in
};

/// One decoded completion entry.
///
/// Fields that the format or the kind does not have are zero. `status` is the device's own number,
/// 0 for success; `to_string` of the format names it.
struct completion {
  completed what = completed::nothing;
  std::uint8_t status = 0;
  std::uint8_t vendor_error = 0;  ///< mlx5 errors only
  bool has_immediate = false;
  bool unsolicited = false;         ///< took no receive buffer; `index` says nothing then
  std::uint16_t index = 0;          ///< request id (EFA) or first basic block (mlx5)
  std::uint32_t qpn = 0;            ///< the own queue pair
  std::uint32_t immediate = 0;      ///< the number that the sender gave
  std::uint32_t bytes = 0;          ///< received
  std::uint32_t source_qpn = 0;     ///< EFA
  std::uint16_t source_handle = 0;  ///< EFA; 0xffff: the peer has no address handle here

  friend constexpr bool operator==(const completion&, const completion&) = default;
};

}  // namespace eptransport::gdaki
