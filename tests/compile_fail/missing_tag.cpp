// SPDX-License-Identifier: Apache-2.0
// expect-error: T lacks `using transport_concept = eptransport::transport_tag`
#include <eptransport/backends/loopback/loopback.hpp>

struct untagged {
  using view_type = eptransport::loopback_view<eptransport::profiles::nvlink>;
  using executor_type = eptransport::host_executor;
  static constexpr eptransport::capabilities caps{};
};

static_assert(eptransport::check_transport<untagged>());
