// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief How a thread that nobody wakes waits: it looks again and again.
#pragma once

#include <eptransport/core/config.hpp>
#include <eptransport/core/transport.hpp>

namespace eptransport::gdaki_detail {

/// Looks until the rank has failed, `done` is true or it is late. `done` may act, so it is not
/// asked once a failure was seen; a failure that shows in the same look wins over it.
EPT_NO_EXEC_CHECK
template <class Memory, class Failed, class Done, class Late>
EPT_HOST_DEVICE op_status look_until(const Failed& failed, const Done& done, const Late& late) {
  if (failed()) return op_status::failed;
  for (;;) {
    const bool reached = done();
    if (failed()) return op_status::failed;
    if (reached) return op_status::ok;
    if (late()) return op_status::expired;
    Memory::relax();
  }
}

}  // namespace eptransport::gdaki_detail
