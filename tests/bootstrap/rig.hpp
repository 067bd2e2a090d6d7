// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Ranks as threads or processes, a fresh rendezvous, and raw sockets for those that attack.
///
/// No Asio here: only rig.cpp pays for it.
#pragma once

#include <eptransport/core/result.hpp>
#include <eptransport/proxy/bootstrap/bootstrap.hpp>
#include <eptransport/proxy/bootstrap/detail/payload.hpp>
#include <eptransport/proxy/bootstrap/options.hpp>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <sys/types.h>
#include <vector>

namespace eptransport::support {

inline constexpr std::uint64_t ms = 1'000'000;
inline constexpr std::uint64_t patience = 60'000 * ms;  ///< of tests that expect no time-out
inline constexpr const char* token = "a token of these tests";

using joined = result<std::unique_ptr<bootstrap>>;
/// tcp_bootstrap::join.
[[nodiscard]] joined join(const bootstrap_options& options);

/// A rendezvous that listens already, at a port of its own.
class meeting {
 public:
  explicit meeting(std::int32_t size);
  ~meeting();
  meeting(const meeting&) = delete;
  meeting& operator=(const meeting&) = delete;

  /// What rank `rank` joins with. Rank 0 takes the socket: once.
  [[nodiscard]] bootstrap_options options(std::int32_t rank);
  [[nodiscard]] std::uint16_t port() const noexcept { return port_; }
  /// In a process that is not rank 0's.
  void close();

  bootstrap_options common;  ///< what all ranks begin with

 private:
  int listener_;
  std::uint16_t port_;
};

/// One thread per rank.
void run_ranks(std::int32_t ranks, const std::function<void(std::int32_t)>& function);

/// Descriptors and threads of this process.
[[nodiscard]] std::size_t count_descriptors();
[[nodiscard]] std::size_t count_threads();
/// Its resident memory.
[[nodiscard]] std::size_t resident_bytes();
/// The numbers that a test draws; its seed goes to the failure messages.
[[nodiscard]] std::uint64_t fresh_seed();

/// A forked process: runs a function and sends back its text.
class child {
 public:
  explicit child(const std::function<std::string()>& function);
  ~child();
  child(child&& other) noexcept;
  child& operator=(child&&) = delete;

  [[nodiscard]] pid_t pid() const noexcept { return pid_; }
  /// What the function returned, or how the process ended: "signal 9", "too late".
  [[nodiscard]] std::string wait();

 private:
  pid_t pid_ = -1;
  int from_ = -1;
};

/// A number that forked processes share.
class shared_count {
 public:
  shared_count();
  ~shared_count();
  shared_count(const shared_count&) = delete;
  shared_count& operator=(const shared_count&) = delete;

  void add() noexcept;
  /// False: it is not there in time.
  [[nodiscard]] bool reaches(int count) const;

 private:
  int* count_;
};

/// Who connects without being a rank.
class raw_client {
 public:
  explicit raw_client(std::uint16_t port);
  ~raw_client();
  raw_client(raw_client&& other) noexcept;
  raw_client& operator=(raw_client&&) = delete;

  /// False: the other end has closed.
  bool send(std::span<const std::byte> bytes) const;
  /// The next frame, or nullopt at the end of the stream or after `timeout_ns`.
  [[nodiscard]] std::optional<bootstrap_detail::frame> receive(std::uint64_t timeout_ns);
  /// All that comes until the other end closes; nullopt: it has not within `timeout_ns`.
  [[nodiscard]] std::optional<std::vector<std::byte>> drain(std::uint64_t timeout_ns) const;

  /// Hello, challenge, proof. The proof's frame; `version` and `token` as given.
  [[nodiscard]] std::vector<std::byte> prove(
      std::int32_t rank, std::int32_t size, const std::string& with_token,
      std::uint32_t version = bootstrap_detail::protocol_version);

 private:
  int socket_;
  bootstrap_detail::frame_parser parser_{bootstrap_detail::payload_limit};
};

}  // namespace eptransport::support
