// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The socket at which rank 0 waits. Made before the other ranks start, its port is known.
#pragma once

#include <eptransport/core/config.hpp>
#include <eptransport/core/result.hpp>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <netdb.h>
#include <netinet/in.h>
#include <string>
#include <sys/socket.h>
#include <system_error>
#include <unistd.h>
#include <utility>

namespace eptransport {

/// Owns a TCP socket that listens.
class listening_socket {
 public:
  /// @param host  an address in numbers, or "localhost": listens there alone, or everywhere when it
  ///              is of no interface here; any other name: listens everywhere, because a host's own
  ///              name often means an address that others cannot reach
  /// @param port  0: any free one, see `port`
  /// @par Errors  errno of socket, bind or listen, with the address
  [[nodiscard]] static result<listening_socket> open(const std::string& host, std::uint16_t port) {
    addrinfo hints{};
    hints.ai_flags = AI_NUMERICHOST | AI_PASSIVE;
    hints.ai_socktype = SOCK_STREAM;
    addrinfo* list = nullptr;
    const std::string number = host == "localhost" ? "127.0.0.1" : host;
    sockaddr_storage at{};
    socklen_t length = 0;
    if (::getaddrinfo(number.c_str(), nullptr, &hints, &list) == 0) {
      length = list->ai_addrlen;
      std::memcpy(&at, list->ai_addr, length);
      ::freeaddrinfo(list);
    }
    listening_socket made;
    if (length != 0) {
      set_port(at, port);
      if (made.bind_to(at, length)) return finish(std::move(made), host, port);
      if (errno != EADDRNOTAVAIL) return refused("bind", host, port);
    }
    if (at.ss_family != AF_INET) {  // everywhere: both families where there are two
      at = {};
      at.ss_family = AF_INET6;
      set_port(at, port);
      if (made.bind_to(at, sizeof(sockaddr_in6))) return finish(std::move(made), host, port);
    }
    at = {};
    at.ss_family = AF_INET;
    set_port(at, port);
    if (made.bind_to(at, sizeof(sockaddr_in))) return finish(std::move(made), host, port);
    return refused("bind", host, port);
  }

  /// Takes a socket that listens; -1: none.
  explicit listening_socket(int descriptor) noexcept : descriptor_(descriptor) {}
  listening_socket(listening_socket&& other) noexcept
      : descriptor_(std::exchange(other.descriptor_, -1)) {}
  listening_socket& operator=(listening_socket&& other) noexcept {
    std::swap(descriptor_, other.descriptor_);
    return *this;
  }
  ~listening_socket() {
    if (descriptor_ >= 0) (void)::close(descriptor_);
  }

  /// Where it listens.
  [[nodiscard]] std::uint16_t port() const noexcept {
    sockaddr_storage own{};
    socklen_t length = sizeof own;
    (void)::getsockname(descriptor_, reinterpret_cast<sockaddr*>(&own), &length);
    return own.ss_family == AF_INET6 ? ntohs(reinterpret_cast<const sockaddr_in6*>(&own)->sin6_port)
                                     : ntohs(reinterpret_cast<const sockaddr_in*>(&own)->sin_port);
  }
  [[nodiscard]] int get() const noexcept { return descriptor_; }
  /// Gives the descriptor away, as `bootstrap_options::listener` wants it.
  [[nodiscard]] int release() noexcept { return std::exchange(descriptor_, -1); }

 private:
  listening_socket() = default;

  static void set_port(sockaddr_storage& at, std::uint16_t port) noexcept {
    if (at.ss_family == AF_INET6) {
      reinterpret_cast<sockaddr_in6*>(&at)->sin6_port = htons(port);
    } else {
      reinterpret_cast<sockaddr_in*>(&at)->sin_port = htons(port);
    }
  }
  /// False: see errno.
  [[nodiscard]] bool bind_to(const sockaddr_storage& at, socklen_t length) noexcept {
    listening_socket fresh;
    fresh.descriptor_ = ::socket(at.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fresh.descriptor_ < 0) return false;
    const int yes = 1;
    const int no = 0;
    (void)::setsockopt(fresh.descriptor_, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    if (at.ss_family == AF_INET6) {
      (void)::setsockopt(fresh.descriptor_, IPPROTO_IPV6, IPV6_V6ONLY, &no, sizeof no);
    }
    const auto* address = reinterpret_cast<const sockaddr*>(&at);
    if (::bind(fresh.descriptor_, address, length) != 0) return false;
    std::swap(descriptor_, fresh.descriptor_);
    return true;
  }
  [[nodiscard]] static result<listening_socket> finish(listening_socket made,
                                                       const std::string& host,
                                                       std::uint16_t port) {
    if (::listen(made.descriptor_, SOMAXCONN) != 0) return refused("listen", host, port);
    return result<listening_socket>(std::move(made));
  }
  [[nodiscard]] static failure refused(const char* call, const std::string& host,
                                       std::uint16_t port) {
    const bool taken = errno == EADDRINUSE;
    return {std::error_code(errno, std::system_category()), call,
            host + ":" + std::to_string(port) + (taken ? "; choose another port" : "")};
  }

  int descriptor_ = -1;
};

}  // namespace eptransport
