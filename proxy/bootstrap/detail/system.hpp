// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief What the bootstrap asks of the system: names to addresses in bounded time, this host.
#pragma once

#include <eptransport/core/config.hpp>
#include <eptransport/core/result.hpp>
#include <eptransport/proxy/bootstrap/detail/board.hpp>
#include <eptransport/proxy/bootstrap/detail/link.hpp>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <memory>
#include <mutex>
#include <netdb.h>
#include <string>
#include <sys/socket.h>
#include <system_error>
#include <thread>
#include <unistd.h>
#include <utility>
#include <vector>

namespace eptransport::bootstrap_detail {

/// Runs a function on a thread that nobody waits for.
template <class Function>
[[nodiscard]] result<void> detach(Function function) {
#if defined(__cpp_exceptions)
  try {
#endif
    std::thread(std::move(function)).detach();
    return {};
#if defined(__cpp_exceptions)
  } catch (const std::system_error& none) {
    return failure{errc::transport_failed, "bootstrap::join", none.what()};
  }
#endif
}

/// The addresses of a name, looked up until there is one or the deadline ends. A look-up that hangs
/// is left behind on a thread of its own, since none can be cancelled.
[[nodiscard]] inline result<std::vector<tcp::endpoint>> resolve(const std::string& host,
                                                                std::uint16_t port,
                                                                clock::time_point end) {
  boost_error not_a_number;
  const auto number = asio::ip::make_address(host, not_a_number);
  if (!not_a_number) return std::vector<tcp::endpoint>{tcp::endpoint(number, port)};
  struct look_up {
    std::mutex mutex;
    std::condition_variable changed;
    bool over = false;
    int error = 0;
    std::vector<tcp::endpoint> found;
  };
  std::string trouble = "no answer";
  do {
    const auto shared = std::make_shared<look_up>();
    const auto started = detach([shared, host, port] {
      addrinfo hints{};
      hints.ai_socktype = SOCK_STREAM;
      addrinfo* list = nullptr;
      const int error = ::getaddrinfo(host.c_str(), nullptr, &hints, &list);
      const std::lock_guard lock(shared->mutex);
      shared->error = error;
      for (const addrinfo* a = error == 0 ? list : nullptr; a != nullptr; a = a->ai_next) {
        tcp::endpoint to;
        if (a->ai_addrlen > to.capacity()) continue;
        std::memcpy(to.data(), a->ai_addr, a->ai_addrlen);
        to.port(port);
        shared->found.push_back(to);
      }
      if (error == 0) ::freeaddrinfo(list);
      shared->over = true;
      shared->changed.notify_all();
    });
    if (!started) return started.error();
    std::unique_lock lock(shared->mutex);
    if (!shared->changed.wait_until(lock, end, [&] { return shared->over; })) break;
    if (!shared->found.empty()) return shared->found;
    trouble = ::gai_strerror(shared->error);
    lock.unlock();
    std::this_thread::sleep_until(std::min(end, clock::now() + std::chrono::milliseconds(200)));
  } while (clock::now() < end);
  return failure{errc::timed_out, "bootstrap::join",
                 "the name of rank 0's host, \"" + host + "\", was not found: " + trouble};
}

[[nodiscard]] inline std::string host_name() {
  char name[256] = {};
  (void)::gethostname(name, sizeof name - 1);
  return name;
}

/// Equal on processes of one host under one host name: containers of one machine differ, since they
/// share neither files nor /dev/shm.
[[nodiscard]] inline result<std::string> host_identity() {
  const char* const path = "/proc/sys/kernel/random/boot_id";
  std::string boot;
  if (std::ifstream(path) >> boot) return boot + "/" + host_name();
  return failure{
      errc::transport_failed, "bootstrap::join",
      std::string(path) + " cannot be read; set host_identity to what tells hosts apart"};
}

}  // namespace eptransport::bootstrap_detail
