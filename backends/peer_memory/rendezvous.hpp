// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Where the processes of one host meet: a Unix socket that passes bytes and descriptors.
///
/// Rank 0 listens at a path, the others connect; every exchange goes through rank 0. For set-up and
/// teardown; a process that has gone is seen at once, because its socket closes.
#pragma once

#include <eptransport/core/config.hpp>
#include <eptransport/core/result.hpp>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <fcntl.h>
#include <memory>
#include <poll.h>
#include <span>
#include <string>
#include <sys/socket.h>
#include <sys/un.h>
#include <system_error>
#include <thread>
#include <unistd.h>
#include <utility>
#include <vector>

namespace eptransport {

/// A file descriptor that is closed with its owner.
class owned_descriptor {
 public:
  owned_descriptor() = default;
  explicit owned_descriptor(int descriptor) noexcept : descriptor_(descriptor) {}
  owned_descriptor(owned_descriptor&& other) noexcept
      : descriptor_(std::exchange(other.descriptor_, -1)) {}
  owned_descriptor& operator=(owned_descriptor&& other) noexcept {
    std::swap(descriptor_, other.descriptor_);
    return *this;
  }
  ~owned_descriptor() {
    if (descriptor_ >= 0) (void)::close(descriptor_);
  }
  /// -1: none.
  [[nodiscard]] int get() const noexcept { return descriptor_; }

 private:
  int descriptor_ = -1;
};

/// What one rank gives in an exchange.
struct rank_offer {
  std::vector<std::byte> bytes;  ///< at most `local_rendezvous::max_bytes`
  owned_descriptor descriptor{};
};

/// The meeting of the processes of one host.
///
/// @par Threads  One at a time. All ranks make the same calls in the same order.
/// @par Errors   `timed_out` and `transport_failed` name the ranks that did not come or have gone;
///               both are final
class local_rendezvous {
 public:
  static constexpr std::size_t max_bytes = 4096;

  /// Returns once all ranks have joined.
  ///
  /// @param path  of the socket, the same on all ranks, at most 107 bytes; a file that lies there
  ///              is replaced by rank 0, which removes its own at the end
  [[nodiscard]] static result<std::unique_ptr<local_rendezvous>> join(const std::string& path,
                                                                      std::int32_t rank,
                                                                      std::int32_t ranks,
                                                                      std::uint64_t timeout_ns) {
    sockaddr_un where{};
    where.sun_family = AF_UNIX;
    if (ranks < 1 || rank < 0 || rank >= ranks || path.empty() ||
        path.size() >= sizeof where.sun_path) {
      return failure{errc::invalid_argument, "local_rendezvous::join",
                     "rank " + std::to_string(rank) + " of " + std::to_string(ranks) +
                         " at a path of " + std::to_string(path.size()) + " bytes, 1 to " +
                         std::to_string(sizeof where.sun_path - 1) + " are possible"};
    }
    std::memcpy(where.sun_path, path.data(), path.size());
    std::unique_ptr<local_rendezvous> made(new local_rendezvous(rank, ranks));
    const deadline end = made->after(timeout_ns);
    auto joined = rank == 0 ? made->listen(where, end) : made->connect(where, end);
    if (!joined) return joined.error();
    return result<std::unique_ptr<local_rendezvous>>(std::move(made));
  }

  local_rendezvous(const local_rendezvous&) = delete;
  local_rendezvous& operator=(const local_rendezvous&) = delete;
  ~local_rendezvous() {
    if (!path_.empty()) (void)::unlink(path_.c_str());
  }

  /// Every rank gets what every rank gave, its own included, in rank order. The descriptors are
  /// duplicates.
  [[nodiscard]] result<std::vector<rank_offer>> exchange(std::span<const std::byte> bytes,
                                                         int descriptor, std::uint64_t timeout_ns) {
    if (bytes.size() > max_bytes) {
      return failure{errc::invalid_argument, "local_rendezvous::exchange",
                     std::to_string(bytes.size()) + " bytes, at most " + std::to_string(max_bytes) +
                         " are possible"};
    }
    const deadline end = after(timeout_ns);
    std::vector<rank_offer> all(static_cast<std::size_t>(ranks_));
    rank_offer& own = all[static_cast<std::size_t>(rank_)];
    own.bytes.assign(bytes.begin(), bytes.end());
    if (descriptor >= 0) own.descriptor = owned_descriptor(::fcntl(descriptor, F_DUPFD_CLOEXEC, 0));
    ++round_;
    auto done = rank_ == 0 ? gather_and_hand_out(all, end) : give_and_take(all, end);
    if (!done) return done.error();
    return result<std::vector<rank_offer>>(std::move(all));
  }

  /// All ranks arrive.
  [[nodiscard]] result<void> barrier(std::uint64_t timeout_ns) {
    auto met = exchange({}, -1, timeout_ns);
    return met ? result<void>() : result<void>(met.error());
  }

 private:
  using deadline = std::chrono::steady_clock::time_point;

  /// First bytes of every message.
  struct message_head {
    std::uint64_t magic = 0x6570'7472'6d65'6574u;
    std::uint64_t round = 0;
    std::int32_t rank = 0;
    std::int32_t ranks = 0;
  };

  local_rendezvous(std::int32_t rank, std::int32_t ranks) : rank_(rank), ranks_(ranks) {}

  [[nodiscard]] static deadline after(std::uint64_t timeout_ns) {
    constexpr std::uint64_t longest = 1'000'000'000'000'000;  // 11 days: no overflow
    return std::chrono::steady_clock::now() +
           std::chrono::nanoseconds(std::min(timeout_ns, longest));
  }

  [[nodiscard]] static failure system_failure(const char* call, const std::string& detail = {}) {
    return {std::error_code(errno, std::system_category()), call, detail};
  }

  [[nodiscard]] static owned_descriptor open_socket() {
    return owned_descriptor(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  }

  [[nodiscard]] result<void> listen(const sockaddr_un& where, deadline end) {
    peers_.resize(static_cast<std::size_t>(ranks_));
    const owned_descriptor listener = open_socket();
    if (listener.get() < 0) return system_failure("socket");
    (void)::unlink(where.sun_path);
    if (::bind(listener.get(), reinterpret_cast<const sockaddr*>(&where), sizeof where) != 0) {
      return system_failure("bind", where.sun_path);
    }
    path_ = where.sun_path;
    if (::listen(listener.get(), ranks_) != 0) return system_failure("listen", where.sun_path);
    for (std::int32_t joined = 1; joined < ranks_; ++joined) {
      if (!wait(listener.get(), POLLIN, end)) return missing();
      owned_descriptor peer(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
      if (peer.get() < 0) return system_failure("accept");
      rank_offer hello;
      auto head = receive(peer.get(), hello, end, -1);
      if (!head) return head.error();
      if (head->ranks != ranks_ || head->rank < 1 || head->rank >= ranks_ ||
          peers_[static_cast<std::size_t>(head->rank)].get() >= 0) {
        return failure{errc::mismatch, "local_rendezvous::join",
                       "rank " + std::to_string(head->rank) + " of " + std::to_string(head->ranks) +
                           " came to a meeting of " + std::to_string(ranks_) + ", or came twice"};
      }
      peers_[static_cast<std::size_t>(head->rank)] = std::move(peer);
    }
    return barrier_until(end);
  }

  [[nodiscard]] result<void> connect(const sockaddr_un& where, deadline end) {
    peers_.resize(1);
    for (;;) {
      owned_descriptor hub = open_socket();
      if (hub.get() < 0) return system_failure("socket");
      if (::connect(hub.get(), reinterpret_cast<const sockaddr*>(&where), sizeof where) == 0) {
        peers_[0] = std::move(hub);
        break;
      }
      const bool early = errno == ENOENT || errno == ECONNREFUSED || errno == EAGAIN;
      if (!early) return system_failure("connect", where.sun_path);
      if (std::chrono::steady_clock::now() >= end) {
        return failure{errc::timed_out, "local_rendezvous::join",
                       std::string("rank 0 does not listen at ") + where.sun_path};
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    if (auto said = send(peers_[0].get(), rank_, {}, -1, 0); !said) return said;
    return barrier_until(end);
  }

  [[nodiscard]] result<void> barrier_until(deadline end) {
    std::vector<rank_offer> all(static_cast<std::size_t>(ranks_));
    ++round_;
    return rank_ == 0 ? gather_and_hand_out(all, end) : give_and_take(all, end);
  }

  /// Rank 0: takes one message from each, then sends every message to everybody.
  [[nodiscard]] result<void> gather_and_hand_out(std::vector<rank_offer>& all, deadline end) {
    for (std::int32_t r = 1; r < ranks_; ++r) {
      const auto index = static_cast<std::size_t>(r);
      auto head = receive(peers_[index].get(), all[index], end, r);
      if (!head) return head.error();
      if (head->round != round_) return out_of_step(r);
    }
    for (std::int32_t to = 1; to < ranks_; ++to) {
      for (std::int32_t from = 0; from < ranks_; ++from) {
        if (from == to) continue;
        const rank_offer& offer = all[static_cast<std::size_t>(from)];
        auto sent = send(peers_[static_cast<std::size_t>(to)].get(), from, offer.bytes,
                         offer.descriptor.get(), to);
        if (!sent) return sent;
      }
    }
    return {};
  }

  [[nodiscard]] result<void> give_and_take(std::vector<rank_offer>& all, deadline end) {
    const rank_offer& own = all[static_cast<std::size_t>(rank_)];
    auto sent = send(peers_[0].get(), rank_, own.bytes, own.descriptor.get(), 0);
    if (!sent) return sent;
    for (std::int32_t i = 1; i < ranks_; ++i) {
      rank_offer offer;
      auto head = receive(peers_[0].get(), offer, end, 0);
      if (!head) return head.error();
      if (head->round != round_ || head->rank < 0 || head->rank >= ranks_) return out_of_step(0);
      all[static_cast<std::size_t>(head->rank)] = std::move(offer);
    }
    return {};
  }

  [[nodiscard]] static failure out_of_step(std::int32_t peer) {
    return {errc::misuse, "local_rendezvous",
            "rank " + std::to_string(peer) + " makes another call than this rank"};
  }
  [[nodiscard]] static failure gone(std::int32_t peer) {
    return {errc::transport_failed, "local_rendezvous",
            (peer < 0 ? std::string("a rank") : "rank " + std::to_string(peer)) + " has gone"};
  }
  [[nodiscard]] failure missing() const {
    std::string ranks;
    for (std::int32_t r = 1; r < ranks_; ++r) {
      if (peers_[static_cast<std::size_t>(r)].get() < 0) ranks += " " + std::to_string(r);
    }
    return {errc::timed_out, "local_rendezvous::join", "did not come: rank" + ranks};
  }

  [[nodiscard]] static bool wait(int descriptor, short events, deadline end) {
    for (;;) {
      const auto left =
          std::chrono::ceil<std::chrono::milliseconds>(end - std::chrono::steady_clock::now());
      pollfd one{descriptor, events, 0};
      const auto ms = static_cast<int>(std::clamp<std::int64_t>(left.count(), 0, 1'000'000));
      const int ready = ::poll(&one, 1, ms);
      if (ready > 0) return true;
      if (ready < 0 && errno != EINTR) return false;
      if (ready == 0 && left.count() <= 1'000'000) return false;
    }
  }

  [[nodiscard]] result<void> send(int to, std::int32_t from, std::span<const std::byte> bytes,
                                  int descriptor, std::int32_t peer) const {
    message_head head{.round = round_, .rank = from, .ranks = ranks_};
    iovec parts[] = {{&head, sizeof head}, {const_cast<std::byte*>(bytes.data()), bytes.size()}};
    alignas(cmsghdr) std::byte control[CMSG_SPACE(sizeof(int))] = {};
    msghdr message{};
    message.msg_iov = parts;
    message.msg_iovlen = 2;
    if (descriptor >= 0) {
      message.msg_control = control;
      message.msg_controllen = sizeof control;
      cmsghdr* attached = CMSG_FIRSTHDR(&message);
      attached->cmsg_level = SOL_SOCKET;
      attached->cmsg_type = SCM_RIGHTS;
      attached->cmsg_len = CMSG_LEN(sizeof descriptor);
      std::memcpy(CMSG_DATA(attached), &descriptor, sizeof descriptor);
    }
    ssize_t sent = 0;
    do {
      sent = ::sendmsg(to, &message, MSG_NOSIGNAL);
    } while (sent < 0 && errno == EINTR);
    if (sent >= 0) return {};
    if (errno == EPIPE || errno == ECONNRESET) return gone(peer);
    return system_failure("sendmsg", "to rank " + std::to_string(peer));
  }

  /// @param peer  for errors; -1: not known yet
  [[nodiscard]] static result<message_head> receive(int from, rank_offer& offer, deadline end,
                                                    std::int32_t peer) {
    if (!wait(from, POLLIN, end)) {
      return failure{errc::timed_out, "local_rendezvous",
                     "did not come: rank " + (peer < 0 ? "of a new socket" : std::to_string(peer))};
    }
    message_head head{};
    offer.bytes.resize(max_bytes);
    iovec parts[] = {{&head, sizeof head}, {offer.bytes.data(), offer.bytes.size()}};
    alignas(cmsghdr) std::byte control[CMSG_SPACE(sizeof(int))] = {};
    msghdr message{};
    message.msg_iov = parts;
    message.msg_iovlen = 2;
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    ssize_t got = 0;
    do {
      got = ::recvmsg(from, &message, MSG_CMSG_CLOEXEC);
    } while (got < 0 && errno == EINTR);
    if (got == 0 || (got < 0 && errno == ECONNRESET)) return gone(peer);
    if (got < 0) return system_failure("recvmsg", "from rank " + std::to_string(peer));
    const cmsghdr* attached = CMSG_FIRSTHDR(&message);
    if (attached != nullptr && attached->cmsg_type == SCM_RIGHTS) {
      int descriptor = -1;
      std::memcpy(&descriptor, CMSG_DATA(attached), sizeof descriptor);
      offer.descriptor = owned_descriptor(descriptor);
    }
    const auto bytes = static_cast<std::size_t>(got);
    if (bytes < sizeof head || head.magic != message_head{}.magic) {
      return failure{errc::mismatch, "local_rendezvous", "what came is no message of a rank"};
    }
    offer.bytes.resize(bytes - sizeof head);
    return head;
  }

  std::int32_t rank_;
  std::int32_t ranks_;
  std::string path_;                     ///< rank 0: of its socket
  std::vector<owned_descriptor> peers_;  ///< rank 0: of each rank; others: [1] of rank 0
  std::uint64_t round_ = 0;
};

}  // namespace eptransport
