// SPDX-License-Identifier: Apache-2.0
// expect-error: T lacks `static constexpr eptransport::capabilities caps`
#include <eptransport/backends/loopback/loopback.hpp>

struct without_caps {
  using transport_concept = eptransport::transport_tag;
  using view_type = eptransport::loopback_view<eptransport::profiles::nvlink>;
  using executor_type = eptransport::host_executor;
};

static_assert(eptransport::check_transport<without_caps>());
