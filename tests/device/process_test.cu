// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief One process per GPU: results against the oracle, refusals, and peers that are killed.
///
/// The processes are this program again, running the disabled test at the end of the file, which
/// takes its part from the environment.

#include <eptransport/proxy/bootstrap/listening_socket.hpp>
#include <eptransport/proxy/bootstrap/options.hpp>

#include <cuda_runtime.h>

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <memory>
#include <random>
#include <signal.h>
#include <spawn.h>
#include <string>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <utility>
#include <vector>

#include "bootstrap/rig.hpp"
#include "device/staged_member.cuh"
#include "support/inputs.hpp"
#include "support/routing.hpp"

namespace eptransport {
namespace {

using support::must;
using support::run_config;
using support::staged_member;

constexpr std::uint64_t second = 1'000'000'000;
constexpr std::uint64_t deadline_ns = second / 2;

/// Time that all processes of the host share.
std::int64_t now_ns() {
  return std::chrono::steady_clock::now().time_since_epoch().count();
}

/// What one process does.
struct part {
  int rank = 0;
  std::string path;  ///< of the rendezvous; notes lie beside it
  std::string kind;  ///< vmm, ipc
  std::string work;  ///< verify, dispatch, combine, leave_first
  int signals = 0;   ///< more than needed, to differ from the peer
  int port = 0;      ///< of a bootstrap that they meet by; 0: they meet at the path

  [[nodiscard]] std::string note(const char* what) const {
    return path + "." + what + std::to_string(rank);
  }
};

class child {
 public:
  explicit child(const part& p) {
    posix_spawn_file_actions_t files;
    posix_spawn_file_actions_init(&files);
    const std::string log = p.note("log");
    posix_spawn_file_actions_addopen(&files, 1, log.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    posix_spawn_file_actions_adddup2(&files, 1, 2);
    std::vector<std::string> variables{"EPT_PEER_RANK=" + std::to_string(p.rank),
                                       "EPT_PEER_PATH=" + p.path,
                                       "EPT_PEER_KIND=" + p.kind,
                                       "EPT_PEER_WORK=" + p.work,
                                       "EPT_PEER_SIGNALS=" + std::to_string(p.signals),
                                       "EPT_PEER_PORT=" + std::to_string(p.port)};
    for (char** v = environ; *v != nullptr; ++v) {
      if (std::string(*v).rfind("GTEST_", 0) != 0) variables.emplace_back(*v);
    }
    std::vector<char*> environment;
    for (std::string& v : variables) environment.push_back(v.data());
    environment.push_back(nullptr);
    std::string program = "/proc/self/exe";
    std::string filter = "--gtest_filter=PeerProcess.DISABLED_PlaysItsPart";
    std::string disabled = "--gtest_also_run_disabled_tests";
    char* arguments[] = {program.data(), filter.data(), disabled.data(), nullptr};
    const int failed =
        ::posix_spawn(&id_, program.c_str(), &files, nullptr, arguments, environment.data());
    EXPECT_EQ(failed, 0);
    posix_spawn_file_actions_destroy(&files);
  }
  child(const child&) = delete;
  child& operator=(const child&) = delete;
  ~child() {
    if (id_ <= 0) return;
    (void)::kill(id_, SIGKILL);
    (void)::waitpid(id_, nullptr, 0);
  }

  void kill() { (void)::kill(id_, SIGKILL); }

  /// The wait status; -1 if it has not ended within the limit.
  int wait(std::chrono::seconds limit) {
    const auto end = std::chrono::steady_clock::now() + limit;
    while (std::chrono::steady_clock::now() < end) {
      int status = 0;
      if (::waitpid(id_, &status, WNOHANG) == id_) {
        id_ = -1;
        return status;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    return -1;
  }

 private:
  pid_t id_ = -1;
};

std::string read_all(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

bool appears(const std::string& path, std::chrono::seconds limit) {
  const auto end = std::chrono::steady_clock::now() + limit;
  while (!std::filesystem::exists(path)) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

/// A folder of its own that goes with it.
struct scratch_folder {
  std::string path = std::filesystem::temp_directory_path() / "ept_peer_XXXXXX";
  scratch_folder() { EXPECT_NE(::mkdtemp(path.data()), nullptr); }
  ~scratch_folder() { std::filesystem::remove_all(path); }
};

constexpr std::chrono::seconds limit{60};

class PeerProcesses : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(TwoGpus, PeerProcesses, testing::Values("vmm", "ipc"),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(PeerProcesses, EagerCallsAndGraphsEqualTheOracle) {
  const scratch_folder folder;
  part p{.path = folder.path + "/s", .kind = GetParam(), .work = "verify"};
  std::vector<std::unique_ptr<child>> both;
  for (p.rank = 0; p.rank < 2; ++p.rank) both.push_back(std::make_unique<child>(p));
  for (p.rank = 0; p.rank < 2; ++p.rank) {
    EXPECT_EQ(both[static_cast<std::size_t>(p.rank)]->wait(limit), 0) << read_all(p.note("log"));
  }
}

TEST_P(PeerProcesses, AJobThatMeetsByItsBootstrapEqualsTheOracle) {
  const scratch_folder folder;
  part p{.path = folder.path + "/s", .kind = GetParam(), .work = "verify"};
  auto socket = listening_socket::open("127.0.0.1", 0);
  ASSERT_TRUE(socket) << socket.error().message();
  p.port = socket->port();
  { const listening_socket free_again = std::move(*socket); }  // rank 0 takes it
  std::vector<std::unique_ptr<child>> both;
  for (p.rank = 0; p.rank < 2; ++p.rank) both.push_back(std::make_unique<child>(p));
  for (p.rank = 0; p.rank < 2; ++p.rank) {
    EXPECT_EQ(both[static_cast<std::size_t>(p.rank)]->wait(limit), 0) << read_all(p.note("log"));
  }
}

TEST_P(PeerProcesses, AShapeThatDiffersIsNamedOnBothSides) {
  const scratch_folder folder;
  part p{.path = folder.path + "/s", .kind = GetParam(), .work = "verify"};
  std::vector<std::unique_ptr<child>> both;
  for (p.rank = 0; p.rank < 2; ++p.rank) {
    p.signals = p.rank;
    both.push_back(std::make_unique<child>(p));
  }
  for (p.rank = 0; p.rank < 2; ++p.rank) {
    EXPECT_NE(both[static_cast<std::size_t>(p.rank)]->wait(limit), 0);
    const std::string said = read_all(p.note("log"));
    EXPECT_NE(said.find("ranks disagree: rank " + std::to_string(1 - p.rank) + " has signals"),
              std::string::npos)
        << said;
  }
}

/// Kills rank 1 while both call in a loop; rank 0 must say so by the deadline and exit with 0.
void kill_one(const std::string& kind, const std::string& work) {
  const char* asked = std::getenv("EPT_PEER_TRIALS");
  const int trials = asked != nullptr ? std::atoi(asked) : 2;
  std::mt19937_64 random(7);
  double latest_ms = 0;
  for (int trial = 0; trial < trials; ++trial) {
    SCOPED_TRACE(trial);
    const scratch_folder folder;
    part p{.rank = 0, .path = folder.path + "/s", .kind = kind, .work = work};
    part q = p;
    q.rank = 1;
    child survivor(p);
    child victim(q);
    ASSERT_TRUE(appears(p.note("ready"), limit)) << read_all(p.note("log"));
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 20'000));
    const std::int64_t killed = now_ns();
    victim.kill();
    EXPECT_EQ(survivor.wait(limit), 0) << read_all(p.note("log"));
    std::ifstream note(p.note("fault"));
    std::int64_t told = 0;
    ASSERT_TRUE(note >> told) << "no fault was noted\n" << read_all(p.note("log"));
    const double ms = static_cast<double>(told - killed) / 1e6;
    EXPECT_LT(ms, static_cast<double>(deadline_ns) / 1e6 * 1.1 + 50);
    latest_ms = std::max(latest_ms, ms);
  }
  std::printf("%s, killed in %s: %d trials, told after at most %.0f ms\n", kind.c_str(),
              work.c_str(), trials, latest_ms);
}

TEST_P(PeerProcesses, ASurvivorNamesAPeerThatWasKilledInDispatch) {
  kill_one(GetParam(), "dispatch");
}
TEST_P(PeerProcesses, ASurvivorNamesAPeerThatWasKilledInCombine) {
  kill_one(GetParam(), "combine");
}

TEST_P(PeerProcesses, ARankThatLeavesFirstHarmsNobody) {
  const scratch_folder folder;
  for (const int first : {0, 1}) {
    part p{.path = folder.path + "/s" + std::to_string(first), .kind = GetParam()};
    std::vector<std::unique_ptr<child>> both;
    for (p.rank = 0; p.rank < 2; ++p.rank) {
      p.work = p.rank == first ? "leave_first" : "leave_last";
      both.push_back(std::make_unique<child>(p));
    }
    for (p.rank = 0; p.rank < 2; ++p.rank) {
      EXPECT_EQ(both[static_cast<std::size_t>(p.rank)]->wait(limit), 0) << read_all(p.note("log"));
    }
  }
}

/// The process's side.
class player {
 public:
  player() {
    const auto get = [](const char* name) {
      const char* value = std::getenv(name);
      return std::string(value != nullptr ? value : "");
    };
    part_ = {.rank = std::atoi(get("EPT_PEER_RANK").c_str()),
             .path = get("EPT_PEER_PATH"),
             .kind = get("EPT_PEER_KIND"),
             .work = get("EPT_PEER_WORK"),
             .signals = std::atoi(get("EPT_PEER_SIGNALS").c_str()),
             .port = std::atoi(get("EPT_PEER_PORT").c_str())};
    config_.ranks = 2;
    config_.layout = output_layout::expert_major;
    config_.experts = 13;
    config_.top_k = 5;
    config_.vary_tokens = part_.work == "verify";
    config_.tokens = {config_.vary_tokens ? 9 : 256};
    config_.hidden = config_.vary_tokens ? 72 : 4096;
  }

  void play() {
    const support::problem p = support::problem_of(config_);
    const group_shape shape{
        .max_tokens = p.max_tokens, .hidden = p.hidden, .top_k = p.top_k, .experts = p.experts};
    const auto sizes = group<peer_memory>::sizes(shape, 2);
    ASSERT_TRUE(sizes) << sizes.error().message();
    auto connected = connect({.window_bytes = sizes->window_bytes,
                              .signals = sizes->signals + static_cast<std::uint32_t>(part_.signals),
                              .allocation = part_.kind == "ipc" ? peer_allocation::runtime
                                                                : peer_allocation::virtual_memory});
    ASSERT_TRUE(connected) << connected.error().message();
    auto made = group<peer_memory>::create(**connected, shape);
    ASSERT_TRUE(made) << made.error().message();
    staged_member member(**connected, *made, config_, 0);
    auto routes = support::router::create(
        {.experts = config_.experts, .top_k = config_.top_k, .seed = config_.seed});
    ASSERT_TRUE(routes);
    if (part_.work == "verify") return verify(member, *routes);
    ASSERT_TRUE(made->set_timeout(deadline_ns));
    ASSERT_TRUE((*connected)->barrier(30 * second));
    member.prepare(support::draw_inputs(config_, *routes, 0, 0), 0);
    if (part_.work == "dispatch" || part_.work == "combine") {
      return call_until_fault(member, *made, **connected);
    }
    for (int i = 0; i < 20; ++i) {
      ASSERT_TRUE(member.dispatch());
      ASSERT_TRUE(member.combine());
      member.settle();
    }
    EXPECT_TRUE(made->status(0));
    // Who leaves last still has its peer's window mapped.
    if (part_.work == "leave_last") std::this_thread::sleep_for(std::chrono::milliseconds(500));
  }

 private:
  [[nodiscard]] result<std::unique_ptr<peer_memory>> connect(const peer_memory_shape& shape) const {
    if (part_.port == 0) {
      return peer_memory::connect(
          {.path = part_.path, .rank = part_.rank, .ranks = 2, .device = part_.rank}, shape);
    }
    bootstrap_options who;
    who.rank = part_.rank;
    who.size = 2;
    who.port = static_cast<std::uint16_t>(part_.port);
    who.token = part_.path;
    const auto job = support::join(who);
    if (!job) return job.error();
    return peer_memory::connect(**job, part_.rank, shape);  // which outlives the bootstrap
  }

  void verify(staged_member& member, const support::router& routes) {
    const auto both = [&]() -> result<void> {
      const auto dispatched = member.dispatch();
      return dispatched ? member.combine() : dispatched;
    };
    ASSERT_TRUE(member.capture(both));
    for (int step = 0; step < 200; ++step) {
      const auto inputs = support::draw_inputs(config_, routes, step, 0);
      member.prepare(inputs, static_cast<std::uint64_t>(step));
      if (step % 2 == 0) {
        member.replay(0);
      } else {
        ASSERT_TRUE(both());
      }
      member.fetch();
      member.settle();
      ASSERT_EQ(member.verify(inputs), "") << step;
    }
  }

  void call_until_fault(staged_member& member, group<peer_memory>& calls, peer_memory& transport) {
    ASSERT_TRUE(member.dispatch());
    for (int i = 0;; ++i) {
      const auto called = part_.work == "dispatch" ? member.dispatch() : member.combine();
      const cudaError_t ended = called ? cudaStreamSynchronize(member.stream()) : cudaSuccess;
      ASSERT_EQ(ended, cudaSuccess) << cudaGetErrorString(ended);
      const auto status = calls.status(0);
      if (!status) {
        std::ofstream(part_.note("fault")) << now_ns() << "\n" << status.error().message() << "\n";
        EXPECT_EQ(status.error().code, errc::timed_out) << status.error().message();
        EXPECT_NE(status.error().message().find("peer 1"), std::string::npos)
            << status.error().message();
        const auto alone = transport.barrier(30 * second);
        EXPECT_FALSE(alone);
        if (!alone) {
          EXPECT_EQ(alone.error().detail, "rank 1 has gone");
        }
        return;
      }
      if (i == 50) std::ofstream(part_.note("ready")) << i;
      ASSERT_LT(i, 5'000'000);
    }
  }

  part part_;
  run_config config_;
};

TEST(PeerProcess, DISABLED_PlaysItsPart) {
  player().play();
}

}  // namespace
}  // namespace eptransport
