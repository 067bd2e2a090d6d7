// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Ranks of a job as child processes of this one: started, signalled, and heard to the end.
#pragma once

#include <eptransport/core/result.hpp>
#include <eptransport/proxy/bootstrap/listening_socket.hpp>
#include <eptransport/proxy/bootstrap/options.hpp>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <functional>
#include <poll.h>
#include <random>
#include <string>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
#include <utility>
#include <vector>

namespace eptransport::support {

/// The processes. Whoever starts them has no other thread and has not used the wire yet: a child
/// inherits a copy of all that, and half of it would not work.
///
/// @par Threads  One at a time.
class rank_processes {
 public:
  /// What a child does; what it returns is what it `said`. It leaves without static destructors.
  using body = std::function<std::string(const bootstrap_options&)>;

  /// How a child ended.
  struct ending {
    std::string said;
    int status = 0;     ///< as waitpid has it
    bool hung = false;  ///< it had not ended at the deadline, and was killed
    [[nodiscard]] bool clean() const noexcept {
      return !hung && WIFEXITED(status) && WEXITSTATUS(status) == 0;
    }
    [[nodiscard]] bool killed_by(int signal) const noexcept {
      return !hung && WIFSIGNALED(status) && WTERMSIG(status) == signal;
    }
  };

  [[nodiscard]] static result<rank_processes> start(std::int32_t ranks, const body& work) {
    auto listener = listening_socket::open("127.0.0.1", 0);
    if (!listener) return listener.error();
    std::random_device random;
    bootstrap_options options;
    options.size = ranks;
    options.port = listener->port();
    options.token = std::to_string(random()) + std::to_string(random());
    rank_processes made;
    for (std::int32_t rank = 0; rank < ranks; ++rank) {
      int ends[2];
      if (::pipe(ends) != 0) return system_failure("pipe");
      const pid_t parent = ::getpid();
      const pid_t child = ::fork();
      if (child < 0) return system_failure("fork");
      if (child == 0) {
        (void)::prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (::getppid() != parent) ::_exit(1);
        (void)::close(ends[0]);
        for (const one& other : made.children_) (void)::close(other.pipe);
        made.children_.clear();
        options.rank = rank;
        options.listener = rank == 0 ? listener->release() : -1;
        if (rank != 0) *listener = listening_socket(-1);
        say(ends[1], work(options));
        ::_exit(0);
      }
      (void)::close(ends[1]);
      made.children_.push_back({child, ends[0], {}, false});
    }
    return result<rank_processes>(std::move(made));
  }

  rank_processes(rank_processes&& other) noexcept : children_(std::exchange(other.children_, {})) {}
  rank_processes& operator=(rank_processes&&) = delete;
  ~rank_processes() { (void)wait(std::chrono::seconds(0)); }

  [[nodiscard]] pid_t process(std::int32_t rank) const {
    return children_[static_cast<std::size_t>(rank)].process;
  }
  void signal(std::int32_t rank, int number) const {
    (void)::kill(children_[static_cast<std::size_t>(rank)].process, number);
  }
  /// Until the child has stopped itself; false at the deadline.
  [[nodiscard]] bool stopped(std::int32_t rank, std::chrono::milliseconds patience) const {
    const auto end = std::chrono::steady_clock::now() + patience;
    while (std::chrono::steady_clock::now() < end) {
      int status = 0;
      const pid_t child = children_[static_cast<std::size_t>(rank)].process;
      if (::waitpid(child, &status, WUNTRACED | WNOHANG) == child && WIFSTOPPED(status)) {
        return true;
      }
      (void)::usleep(1000);
    }
    return false;
  }

  /// For `wait`: once a child has failed, how long the others have to end too.
  static constexpr std::chrono::milliseconds together{15'000};

  /// Hears all of them to the end; whoever is not done by then is killed.
  ///
  /// @param after_failure  from when a child has ended without having said anything; 0: as long as
  ///                       without that
  std::vector<ending> wait(std::chrono::milliseconds patience,
                           std::chrono::milliseconds after_failure = {}) {
    auto end = std::chrono::steady_clock::now() + patience;
    const auto left = [&end] {
      return std::max<std::int64_t>(0, std::chrono::duration_cast<std::chrono::milliseconds>(
                                           end - std::chrono::steady_clock::now())
                                           .count());
    };
    for (std::vector<pollfd> open = open_pipes(); !open.empty(); open = open_pipes()) {
      if (::poll(open.data(), open.size(), static_cast<int>(left())) == 0) break;
      for (const pollfd& p : open) {
        if (p.revents == 0 || !hear(p.fd) || after_failure.count() == 0) continue;
        end = std::min(end, std::chrono::steady_clock::now() + after_failure);
      }
    }
    std::vector<ending> all;
    for (one& child : children_) {
      ending how{std::move(child.said), 0, false};
      while (::waitpid(child.process, &how.status, WNOHANG) == 0) {
        if (left() == 0) {
          how.hung = true;
          (void)::kill(child.process, SIGKILL);
          (void)::waitpid(child.process, &how.status, 0);
          break;
        }
        (void)::usleep(500);
      }
      (void)::close(child.pipe);
      all.push_back(std::move(how));
    }
    children_.clear();
    return all;
  }

 private:
  struct one {
    pid_t process;
    int pipe;
    std::string said;
    bool silent;  ///< its end is closed
  };

  rank_processes() = default;

  [[nodiscard]] static failure system_failure(const char* call) {
    return {std::error_code(errno, std::system_category()), call, {}};
  }
  static void say(int to, const std::string& text) {
    for (std::size_t at = 0; at < text.size();) {
      const ssize_t n = ::write(to, text.data() + at, text.size() - at);
      if (n <= 0) return;
      at += static_cast<std::size_t>(n);
    }
  }
  [[nodiscard]] std::vector<pollfd> open_pipes() const {
    std::vector<pollfd> open;
    for (const one& child : children_) {
      if (!child.silent) open.push_back({child.pipe, POLLIN, 0});
    }
    return open;
  }
  /// True when the child has ended and said nothing.
  bool hear(int pipe) {
    for (one& child : children_) {
      if (child.pipe != pipe) continue;
      char part[4096];
      const ssize_t n = ::read(pipe, part, sizeof part);
      if (n > 0) {
        child.said.append(part, static_cast<std::size_t>(n));
      } else {
        child.silent = true;
      }
      return child.silent && child.said.empty();
    }
    return false;
  }

  std::vector<one> children_;
};

}  // namespace eptransport::support
