// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief A rank's fault as an error that a person can act on.
#pragma once

#include <eptransport/backends/gdaki/detail/tables.hpp>
#include <eptransport/core/config.hpp>
#include <eptransport/core/result.hpp>
#include <eptransport/gdaki/queue_fault.hpp>

#include <cstdint>
#include <string>

namespace eptransport::gdaki_detail {

/// Which queue failed, where it leads, what the device said of it.
struct queue_report {
  std::uint32_t channel = 0;
  std::uint32_t qpn = 0;
  std::uint32_t peer = 0;  ///< of the request
  gdaki::queue_fault fault{};
};

/// "rank 2: channel 0, queue pair 18, request 5 to rank 3: completion with an error, status 13 .."
template <class Wire>
[[nodiscard]] failure queue_failure(std::int32_t rank, const queue_report& r) {
  std::string text = "rank " + std::to_string(rank) + ": channel " + std::to_string(r.channel) +
                     ", queue pair " + std::to_string(r.qpn) + ", request " +
                     std::to_string(r.fault.index) + " to rank " + std::to_string(r.peer) + ": " +
                     gdaki::to_string(r.fault.kind) + ", status " + std::to_string(r.fault.status) +
                     " (" + Wire::status_text(r.fault.status) + ")";
  return {make_error_code(errc::transport_failed), Wire::name, std::move(text)};
}

/// A request that contradicts the contract, with what would have been allowed.
template <class Wire>
[[nodiscard]] failure request_failure(const tables<Wire>& t, const rank_fault& f) {
  const put_request& r = f.request;
  const auto number = [](auto n) { return std::to_string(n); };
  return {make_error_code(errc::invalid_argument), Wire::name,
          "rank " + number(t.rank) + ": a request of " + number(r.bytes) + " bytes (at most " +
              number(Wire::caps.max_message) + ") to rank " + number(r.peer) + " of " +
              number(t.ranks) + " at " + number(r.dst_offset) + " of a window of " +
              number(t.window_bytes) + ", signal " + number(r.signal) + " of " + number(t.signals) +
              ", channel " + number(f.channel) + " of " + number(t.channels) +
              "; sources must lie in the window"};
}

}  // namespace eptransport::gdaki_detail
