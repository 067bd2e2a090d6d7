// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Two ranks, one put, one wait.
//
// You learn
//   how a rank writes into a peer's memory, and how the peer knows that the bytes are there.
//
// You need
//   a C++20 compiler. No GPU, no network: the wire is the simulator.
//
// Run
//   g++ -std=c++20 -I include examples/01_first_put.cpp -o first_put -pthread && ./first_put
//
// You see
//   rank 1 received: hello from rank 0
//   modelled on efa-proxy: 25.2 us
#include <eptransport/backends/loopback/loopback.hpp>

#include <cstdio>
#include <cstring>

namespace ept = eptransport;
using wire = ept::profiles::efa_proxy;  // one CPU proxy per rank, EFA behind it, no order

int main() {
  auto world = ept::loopback_world<wire>::create({.ranks = 2, .window_bytes = 4096, .signals = 1});
  if (!world) return std::puts(world.error().message().c_str()), 1;

  (*world)->run([](ept::loopback<wire>& rank) {
    const auto view = rank.view();     // what a kernel would be given, by value
    constexpr ept::host_thread group;  // on the GPU this would be a warp or a block
    const auto deadline = view.now_ns() + 1'000'000'000;

    // [readme]
    if (view.rank() == 0) {
      std::strcpy(reinterpret_cast<char*>(view.local()), "hello from rank 0");
      const ept::put_request hello{
          .peer = 1, .dst_offset = 512, .src = view.local(), .bytes = 18, .signal = 0};
      if (view.put(group, 0, hello, deadline) != ept::op_status::ok) std::puts("put failed");
    } else if (view.wait_signal(group, 0, 1, deadline) == ept::op_status::ok) {
      std::printf("rank 1 received: %s\n", reinterpret_cast<char*>(view.local() + 512));
    }
    // [/readme]
  });
  std::printf("modelled on %s: %.1f us\n", wire::name, (*world)->modelled_ns(1) / 1000);
}
