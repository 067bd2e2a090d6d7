// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief How a request ended, and the number that each format has for it.
#pragma once

#include <eptransport/core/config.hpp>
#include <eptransport/gdaki/efa_cqe.hpp>
#include <eptransport/gdaki/mlx5_cqe.hpp>

#include <cstdint>

namespace eptransport::gdaki::emulator {

/// How a request ended.
enum class outcome : std::uint8_t {
  ok,
  flushed,             ///< the queue pair had failed before
  bad_handle,          ///< no such address handle
  bad_local,           ///< local key, range or right
  bad_remote,          ///< remote key, range or right
  bad_destination,     ///< no such queue pair, or another queue key
  receiver_not_ready,  ///< no receive buffer
  receive_too_short,   ///< the receive buffer is smaller than the message
  unresponsive,        ///< the peer's device is dead
};

/// The status byte of an EFA completion.
[[nodiscard]] inline std::uint8_t efa_status(outcome how) noexcept {
  const auto number = [](efa::status s) { return static_cast<std::uint8_t>(s); };
  switch (how) {
    case outcome::ok:
      return number(efa::status::ok);
    case outcome::flushed:
      return number(efa::status::flushed);
    case outcome::bad_handle:
      return number(efa::status::invalid_address_handle);
    case outcome::bad_local:
      return number(efa::status::invalid_local_key);
    case outcome::bad_remote:
      return number(efa::status::remote_bad_address);
    case outcome::bad_destination:
      return number(efa::status::bad_destination_qp);
    case outcome::receiver_not_ready:
      return number(efa::status::receiver_not_ready);
    case outcome::receive_too_short:
      return number(efa::status::remote_bad_length);
    case outcome::unresponsive:
      return number(efa::status::unresponsive_remote);
  }
  return number(efa::status::bad_status);
}

/// The syndrome of an mlx5 completion.
[[nodiscard]] inline std::uint8_t mlx5_status(outcome how) noexcept {
  const auto number = [](mlx5::status s) { return static_cast<std::uint8_t>(s); };
  switch (how) {
    case outcome::ok:
      return number(mlx5::status::ok);
    case outcome::flushed:
      return number(mlx5::status::flushed);
    case outcome::bad_handle:
      return number(mlx5::status::local_queue_operation);
    case outcome::bad_local:
      return number(mlx5::status::local_protection);
    case outcome::bad_remote:
      return number(mlx5::status::remote_access);
    case outcome::bad_destination:
      return number(mlx5::status::transport_retry_exceeded);
    case outcome::receiver_not_ready:
      return number(mlx5::status::receiver_not_ready_retry_exceeded);
    case outcome::receive_too_short:
      return number(mlx5::status::remote_invalid_request);
    case outcome::unresponsive:
      return number(mlx5::status::transport_retry_exceeded);
  }
  return number(mlx5::status::bad_response);
}

}  // namespace eptransport::gdaki::emulator
