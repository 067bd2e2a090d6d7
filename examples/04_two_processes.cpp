// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Two processes, one put, over a network: the bootstrap and the libfabric transport.
//
// You learn
//   how processes meet, what a transport needs of the meeting, and that what a rank then does is
//   what it does on any wire.
//
// You need
//   libfabric 1.17 or later (libfabric-dev) and Boost.Asio. TCP will do; EPT_PROVIDER names others.
//
// Run
//   g++ -std=c++20 -I include examples/04_two_processes.cpp -o two_processes -lfabric -pthread
//   ./two_processes
//   or once per host, with torchrun's variables: RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT
//
// You see
//   rank 1 received over ...: hello from rank 0
#include <eptransport/backends/libfabric/libfabric.hpp>
#include <eptransport/proxy/bootstrap/launch.hpp>
#include <eptransport/proxy/bootstrap/tcp_bootstrap.hpp>

#include <cstdio>
#include <cstring>
#include <sys/wait.h>
#include <unistd.h>

namespace ept = eptransport;

namespace {

int complain(const ept::failure& why) {
  std::fprintf(stderr, "%s\n", why.message().c_str());
  return 1;
}

/// What each process does.
int run(const ept::bootstrap_options& who) {
  // Everybody meets: rank 0 listens, the others come. It stays, to tell who has died.
  const auto meeting = ept::tcp_bootstrap::join(who);
  if (!meeting) return complain(meeting.error());
  // Collective: a window, an endpoint, a thread that drives it.
  const auto rank = ept::libfabric::create(**meeting, {.window_bytes = 4096, .signals = 1});
  if (!rank) return complain(rank.error());

  const auto view = (*rank)->view();
  constexpr ept::host_thread group;
  const auto deadline = view.now_ns() + 10'000'000'000;
  if (view.rank() == 0) {
    std::strcpy(reinterpret_cast<char*>(view.local()), "hello from rank 0");
    const ept::put_request hello{
        .peer = 1, .dst_offset = 512, .src = view.local(), .bytes = 18, .signal = 0};
    if (view.put(group, 0, hello, deadline) != ept::op_status::ok) {
      return complain((*rank)->fault().error());
    }
  } else if (view.wait_signal(group, 0, 1, deadline) == ept::op_status::ok) {
    std::printf("rank 1 received over %s: %s\n", (*rank)->ports().provider().c_str(),
                reinterpret_cast<char*>(view.local() + 512));
    std::fflush(stdout);
  }
  return 0;  // the transport's end waits for all ranks, so that what is on its way arrives
}

}  // namespace

int main() {
  if (const auto launched = ept::rank_launch::from_environment()) return run(launched->options());

  // No launcher: two processes of this host, and a socket that the first of them listens at.
  auto listener = ept::listening_socket::open("127.0.0.1", 0);
  if (!listener) return complain(listener.error());
  ept::bootstrap_options who{.size = 2, .port = listener->port(), .token = "example"};
  const pid_t child = ::fork();
  if (child == 0) {
    who.rank = 1;
    return run(who);
  }
  who.listener = listener->release();
  const int own = run(who);
  int status = 0;
  (void)::waitpid(child, &status, 0);
  return own != 0 || status != 0 ? 1 : 0;
}
