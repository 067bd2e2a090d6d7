// SPDX-License-Identifier: Apache-2.0
// expect-error: T::executor_type does not model Executor (core/transport.hpp)
#include <eptransport/backends/loopback/loopback.hpp>

struct executor_without_memory {
  using stream_type = int;
  using worker_type = eptransport::host_worker;
};

struct badly_executed : eptransport::loopback<eptransport::profiles::nvlink> {
  using executor_type = executor_without_memory;
};

static_assert(eptransport::check_transport<badly_executed>());
