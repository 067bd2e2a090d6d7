// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The one file of these tests that includes Asio.
#include "bootstrap/rig.hpp"

#include <eptransport/proxy/bootstrap/tcp_bootstrap.hpp>

#include <arpa/inet.h>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <netinet/in.h>
#include <poll.h>
#include <random>
#include <string>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <utility>

namespace eptransport::support {

using namespace bootstrap_detail;

joined join(const bootstrap_options& options) {
  return tcp_bootstrap::join(options);
}

meeting::meeting(std::int32_t size) : listener_(-1), port_(0) {
  auto opened = listening_socket::open("127.0.0.1", 0);
  if (!opened) std::abort();
  port_ = opened->port();
  listener_ = opened->release();
  common.size = size;
  common.port = port_;
  common.token = token;
  common.timeout_ns = patience;
}
meeting::~meeting() {
  close();
}
void meeting::close() {
  if (listener_ >= 0) (void)::close(std::exchange(listener_, -1));
}
bootstrap_options meeting::options(std::int32_t rank) {
  bootstrap_options made = common;
  made.rank = rank;
  if (rank == 0) made.listener = std::exchange(listener_, -1);
  return made;
}

void run_ranks(std::int32_t ranks, const std::function<void(std::int32_t)>& function) {
  std::vector<std::thread> threads;
  for (std::int32_t r = 0; r < ranks; ++r) threads.emplace_back([&function, r] { function(r); });
  for (std::thread& thread : threads) thread.join();
}

namespace {
std::size_t entries(const char* folder) {
  const std::filesystem::directory_iterator all(folder);
  return static_cast<std::size_t>(std::distance(begin(all), end(all)));
}
}  // namespace
std::size_t count_descriptors() {
  return entries("/proc/self/fd");
}
std::size_t count_threads() {
  return entries("/proc/self/task");
}
std::size_t resident_bytes() {
  std::size_t total = 0;
  std::size_t resident = 0;
  std::ifstream("/proc/self/statm") >> total >> resident;
  return resident * static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
}
std::uint64_t fresh_seed() {
  return std::random_device()();
}

child::child(const std::function<std::string()>& function) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) std::abort();
  pid_ = ::fork();
  if (pid_ < 0) std::abort();
  if (pid_ == 0) {
    const std::string said = function();
    const bool written = ::write(ends[1], said.data(), said.size()) == std::ssize(said);
    ::_exit(written ? 0 : 1);
  }
  (void)::close(ends[1]);
  from_ = ends[0];
}
child::child(child&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)), from_(std::exchange(other.from_, -1)) {}
child::~child() {
  if (pid_ > 0) {
    (void)::kill(pid_, SIGKILL);
    (void)::waitpid(pid_, nullptr, 0);
  }
  if (from_ >= 0) (void)::close(from_);
}
std::string child::wait() {
  const auto end = after(patience);
  int status = 0;
  while (::waitpid(pid_, &status, WNOHANG) == 0) {
    if (clock::now() > end) return "too late";
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  pid_ = -1;
  if (WIFSIGNALED(status)) return "signal " + std::to_string(WTERMSIG(status));
  if (WEXITSTATUS(status) != 0) return "status " + std::to_string(WEXITSTATUS(status));
  std::string said(65536, '\0');
  const ssize_t bytes = ::read(from_, said.data(), said.size());
  said.resize(bytes > 0 ? static_cast<std::size_t>(bytes) : 0);
  return said;
}

shared_count::shared_count()
    : count_(static_cast<int*>(::mmap(nullptr, sizeof(int), PROT_READ | PROT_WRITE,
                                      MAP_SHARED | MAP_ANONYMOUS, -1, 0))) {
  if (count_ == MAP_FAILED) std::abort();
}
shared_count::~shared_count() {
  (void)::munmap(count_, sizeof(int));
}
void shared_count::add() noexcept {
  std::atomic_ref(*count_).fetch_add(1);
}
bool shared_count::reaches(int count) const {
  const auto end = after(patience);
  while (std::atomic_ref(*count_).load() < count && clock::now() < end) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return std::atomic_ref(*count_).load() >= count;
}

raw_client::raw_client(std::uint16_t port)
    : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(port);
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (::connect(socket_, reinterpret_cast<const sockaddr*>(&to), sizeof to) != 0) {
    (void)::close(std::exchange(socket_, -1));
  }
}
raw_client::raw_client(raw_client&& other) noexcept
    : socket_(std::exchange(other.socket_, -1)), parser_(std::move(other.parser_)) {}
raw_client::~raw_client() {
  if (socket_ >= 0) (void)::close(socket_);
}
bool raw_client::send(std::span<const std::byte> bytes) const {
  return ::send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL) == std::ssize(bytes);
}
std::optional<frame> raw_client::receive(std::uint64_t timeout_ns) {
  const auto end = after(timeout_ns);
  for (;;) {
    frame next;
    const parse_state state = parser_.next(next);
    if (state == parse_state::ready) return next;
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(end - clock::now()).count();
    pollfd one{socket_, POLLIN, 0};
    if (state == parse_state::broken || left <= 0 || ::poll(&one, 1, static_cast<int>(left)) != 1) {
      return std::nullopt;
    }
    std::byte bytes[4096];
    const ssize_t got = ::recv(socket_, bytes, sizeof bytes, 0);
    if (got <= 0) return std::nullopt;
    parser_.push(std::span(bytes).first(static_cast<std::size_t>(got)));
  }
}
std::optional<std::vector<std::byte>> raw_client::drain(std::uint64_t timeout_ns) const {
  const auto end = after(timeout_ns);
  std::vector<std::byte> all;
  for (;;) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(end - clock::now()).count();
    pollfd one{socket_, POLLIN, 0};
    if (left <= 0 || ::poll(&one, 1, static_cast<int>(left)) != 1) return std::nullopt;
    std::byte bytes[4096];
    const ssize_t got = ::recv(socket_, bytes, sizeof bytes, 0);
    if (got <= 0) return all;
    all.insert(all.end(), bytes, bytes + got);
  }
}
std::vector<std::byte> raw_client::prove(std::int32_t rank, std::int32_t size,
                                         const std::string& with_token, std::uint32_t version) {
  const hello_payload hello{.own = {std::byte{7}, std::byte{9}}};
  (void)send(encode(frame_kind::hello, 0, hello.write()));
  challenge_payload challenge;
  const auto answer = receive(patience);
  if (!answer || answer->kind != frame_kind::challenge || !challenge.read(answer->payload))
    return {};
  proof_payload proof{.version = version, .rank = rank, .size = size};
  proof.proof = rank_proof(with_token, hello.own, challenge.own, proof);
  return encode(frame_kind::proof, 0, proof.write());
}

}  // namespace eptransport::support
