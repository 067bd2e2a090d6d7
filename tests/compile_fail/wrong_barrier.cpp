// SPDX-License-Identifier: Apache-2.0
// expect-error: T does not model Transport (core/transport.hpp)
#include <eptransport/backends/loopback/loopback.hpp>

struct silent_barrier : eptransport::loopback<eptransport::profiles::nvlink> {
  void barrier(std::uint64_t) {}
};

static_assert(eptransport::check_transport<silent_barrier>());
