// SPDX-License-Identifier: Apache-2.0
// expect-error: T::view_type does not model TransportView (core/transport.hpp)
#include <eptransport/backends/loopback/loopback.hpp>

#include <string>

struct view_with_a_string : eptransport::loopback_view<eptransport::profiles::nvlink> {
  std::string name;
};

struct named_transport : eptransport::loopback<eptransport::profiles::nvlink> {
  using view_type = view_with_a_string;
};

static_assert(eptransport::check_transport<named_transport>());
