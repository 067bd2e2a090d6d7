// SPDX-License-Identifier: Apache-2.0
// expect-error: T::view_type does not model TransportView (core/transport.hpp)
#include <eptransport/backends/loopback/loopback.hpp>

struct view_without_deadline : eptransport::loopback_view<eptransport::profiles::nvlink> {
  eptransport::op_status put(const eptransport::host_worker&, std::uint32_t,
                             const eptransport::put_request&) const {
    return eptransport::op_status::ok;
  }
};

struct puts_without_deadline : eptransport::loopback<eptransport::profiles::nvlink> {
  using view_type = view_without_deadline;
};

static_assert(eptransport::check_transport<puts_without_deadline>());
