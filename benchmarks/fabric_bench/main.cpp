// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief ep_fabric_bench: the engine against bare libfabric, in the same run.
///
/// Two processes of one host, K endpoints and K threads each. Rank 0 writes N times B bytes with
/// immediate through every endpoint, rank 1 counts the immediates: first with fi_writedata and
/// fi_cq_read in a loop, at most 256 writes in flight, then with engines that take commands from
/// rings. Time runs from a barrier until rank 1 has seen all. Passes alternate.
#include <eptransport/core/memory.hpp>
#include <eptransport/proxy/bootstrap/tcp_bootstrap.hpp>
#include <eptransport/proxy/command.hpp>
#include <eptransport/proxy/driver.hpp>
#include <eptransport/proxy/endpoints/libfabric.hpp>
#include <eptransport/proxy/engine.hpp>
#include <eptransport/proxy/fault_cell.hpp>
#include <eptransport/proxy/ring.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "proxy_bench/measure.hpp"
#include "support/processes.hpp"

namespace eptransport::bench {
namespace {

using proxy::fabric_ports;
using engine = proxy::engine<proxy::libfabric_endpoint>;

constexpr std::uint64_t timeout_ns = 60'000'000'000;
constexpr std::uint64_t bare_window = 256;  ///< writes in flight
constexpr std::uint64_t window_bytes = 1 << 20;

struct asked {
  std::string provider = "tcp";
  proxy::domain_sharing sharing = proxy::domain_sharing::automatic;
  std::vector<std::uint32_t> comms{1, 2, 4, 8};
  std::uint64_t bytes = 64;
  double seconds = 0.5;  ///< that a pass is meant to take
  int passes = 5;
};

void must(const result<void>& done) {
  if (done) return;
  std::fprintf(stderr, "ep_fabric_bench: %s\n", done.error().message().c_str());
  std::_Exit(2);
}
template <class T>
T must(result<T> made) {
  if (made) return std::move(*made);
  std::fprintf(stderr, "ep_fabric_bench: %s\n", made.error().message().c_str());
  std::_Exit(2);
}

/// One rank's end of everything.
class end {
 public:
  end(bootstrap& meeting, const asked& what, std::uint32_t comms)
      : meeting_(meeting), what_(what), comms_(comms), window_(window_bytes) {
    bare_ = open();
    driven_ = open();
    const auto codec = must(proxy::command_codec::create({2, 1, window_bytes, 0}));
    for (std::uint32_t k = 0; k < comms; ++k) {
      rings_.push_back(std::make_unique<owned_ring>(1024));
      producers_.emplace_back(rings_.back()->view());
    }
    words_.resize(comms);
    for (std::uint32_t k = 0; k < comms; ++k) {
      engines_.push_back(must(engine::create(driven_->endpoint(k), codec,
                                             {static_cast<std::uint32_t>(meeting.rank()), 2, 1, 0},
                                             {}, {{rings_[k]->view()}, 0, &words_[k], &fault_})));
    }
    codec_ = codec;
    connect(*bare_);
    connect(*driven_);
    must(meeting_.barrier(timeout_ns));
  }

  /// @returns seconds, on rank 1
  double bare(std::uint64_t n) {
    std::atomic<std::uint32_t> finished = 0;
    std::atomic<bool> stop = false;
    std::vector<std::thread> threads;
    must(meeting_.barrier(timeout_ns));
    const double start = seconds();
    for (std::uint32_t k = 0; k < comms_; ++k) {
      threads.emplace_back([&, k] {
        if (meeting_.rank() == 0) {
          write_bare(k, n);
        } else {
          read_bare(k, n);
        }
        finished.fetch_add(1);
        // Its last bytes may still need its progress.
        fi_cq_data_entry entry;
        while (!stop.load(std::memory_order_relaxed)) {
          (void)fi_cq_read(bare_->endpoint(k).native().queue, &entry, 1);
          std::this_thread::yield();
        }
      });
    }
    while (finished.load() != comms_) std::this_thread::sleep_for(std::chrono::microseconds(20));
    const double took = seconds() - start;
    must(meeting_.barrier(timeout_ns));
    stop.store(true, std::memory_order_relaxed);
    for (std::thread& t : threads) t.join();
    return took;
  }

  /// The same through engines.
  double driven(std::uint64_t n) {
    std::vector<std::unique_ptr<proxy::driver>> drivers;
    const std::uint64_t before = counted();
    must(meeting_.barrier(timeout_ns));
    const double start = seconds();
    for (auto& e : engines_) {
      drivers.push_back(std::make_unique<proxy::driver>(
          std::vector<proxy::driven>{proxy::drive(*e)}, proxy::driver_options{}));
    }
    if (meeting_.rank() == 0) {
      push(n);
    } else {
      while (counted() - before != n * comms_) pause();
    }
    const double took = seconds() - start;
    must(meeting_.barrier(timeout_ns));
    return took;
  }

  /// What rank 1 measured, on both ranks.
  double agree(double value) {
    std::vector<std::byte> mine(sizeof value);
    std::memcpy(mine.data(), &value, sizeof value);
    const auto given = must(meeting_.broadcast(1, mine, timeout_ns));
    std::memcpy(&value, given.data(), sizeof value);
    return value;
  }
  [[nodiscard]] std::string statistics() const { return engines_.front()->statistics().json(); }

 private:
  std::unique_ptr<fabric_ports> open() {
    return must(fabric_ports::open({.provider = what_.provider, .sharing = what_.sharing}, window_,
                                   comms_));
  }
  void connect(fabric_ports& ports) {
    const auto own = must(ports.address());
    must(ports.connect(must(meeting_.all_gather(own, timeout_ns))));
  }
  void pause() {
    if (fault_.failed()) must(fault_.why());
    std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
  [[nodiscard]] std::uint64_t counted() const {
    std::uint64_t sum = 0;
    for (const std::uint64_t& word : words_) sum += host_memory::signal_acquire(&word);
    return sum;
  }

  void write_bare(std::uint32_t k, std::uint64_t n) {
    const auto native = bare_->endpoint(k).native();
    const auto& to = bare_->endpoint(k).remote(1);
    // Both providers complete in order, so a slot is free when its turn comes again.
    std::vector<fi_context2> contexts(bare_window);
    std::vector<fi_cq_data_entry> entries(64);
    std::uint64_t posted = 0;
    for (std::uint64_t done = 0; done < n;) {
      while (posted < n && posted - done < bare_window) {
        const std::uint64_t at = (posted & 1023) * what_.bytes;
        if (fi_writedata(native.endpoint, window_.data() + at, what_.bytes, native.descriptor, 1,
                         to.address, to.base + at, to.key, &contexts[posted % bare_window]) != 0) {
          break;
        }
        ++posted;
      }
      const ssize_t got = fi_cq_read(native.queue, entries.data(), entries.size());
      if (got > 0) done += static_cast<std::uint64_t>(got);
      if (got < 0 && got != -FI_EAGAIN) must(failure{errc::transport_failed, "fi_cq_read", ""});
    }
  }
  void read_bare(std::uint32_t k, std::uint64_t n) {
    fid_cq* const queue = bare_->endpoint(k).native().queue;
    std::vector<fi_cq_data_entry> entries(64);
    for (std::uint64_t seen = 0; seen < n;) {
      const ssize_t got = fi_cq_read(queue, entries.data(), entries.size());
      for (ssize_t i = 0; i < got; ++i) {
        if ((entries[static_cast<std::size_t>(i)].flags & FI_REMOTE_WRITE) != 0) ++seen;
      }
      if (got < 0 && got != -FI_EAGAIN) must(failure{errc::transport_failed, "fi_cq_read", ""});
    }
  }

  /// One thread keeps all rings full.
  void push(std::uint64_t n) {
    std::vector<std::uint64_t> pushed(comms_);
    for (std::uint64_t all = 0; all < n * comms_;) {
      const std::uint64_t before = all;
      for (std::uint32_t k = 0; k < comms_; ++k) {
        for (int i = 0; i < 256 && pushed[k] < n; ++i) {
          const std::uint64_t at = (pushed[k] & 1023) * what_.bytes;
          if (!producers_[k].push(codec_.encode({at, at, what_.bytes, 1, 0, 1}))) break;
          ++pushed[k];
          ++all;
        }
      }
      if (all != before) continue;
      // Full rings last for a millisecond. A GPU that produced would take no processor either.
      if (fault_.failed()) must(fault_.why());
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
  }

  bootstrap& meeting_;
  const asked& what_;
  std::uint32_t comms_;
  std::vector<std::byte> window_;
  std::unique_ptr<fabric_ports> bare_;
  std::unique_ptr<fabric_ports> driven_;
  proxy::command_codec codec_;
  std::vector<std::unique_ptr<owned_ring>> rings_;
  std::vector<proxy::ring_producer<host_memory>> producers_;
  std::vector<std::uint64_t> words_;
  proxy::fault_cell fault_;
  std::vector<std::unique_ptr<engine>> engines_;
};

[[nodiscard]] double middle(std::vector<double> all) {
  std::sort(all.begin(), all.end());
  return all[all.size() / 2];
}

/// Both ways with K comms; rank 0 says the line of the table.
std::string compare(const bootstrap_options& who, const asked& what, std::uint32_t comms) {
  const auto meeting = must(tcp_bootstrap::join(who));
  end mine(*meeting, what, comms);
  std::uint64_t n = 4000;
  const double trial = mine.agree(mine.bare(n));  // connects, and says how many a pass takes
  (void)mine.driven(n);
  n = static_cast<std::uint64_t>(std::max(1000.0, static_cast<double>(n) * what.seconds / trial));
  std::vector<double> bare;
  std::vector<double> driven;
  for (int pass = 0; pass < what.passes; ++pass) {
    const double total = static_cast<double>(n * comms);
    bare.push_back(total / mine.agree(mine.bare(n)));
    driven.push_back(total / mine.agree(mine.driven(n)));
  }
  if (who.rank != 0) return {};
  char line[256];
  std::snprintf(line, sizeof line, "%-12s %2u  %9.3f %9.3f  %9.3f %9.3f  %6.2f\n",
                what.provider.c_str(), comms, middle(bare) / 1e6,
                *std::max_element(bare.begin(), bare.end()) / 1e6, middle(driven) / 1e6,
                *std::max_element(driven.begin(), driven.end()) / 1e6,
                middle(driven) / middle(bare));
  return line;
}

bool parse(int count, char** arguments, asked& to) {
  for (int i = 1; i < count; ++i) {
    const std::string name = arguments[i];
    if (i + 1 == count) return false;
    const std::string value = arguments[++i];
    if (name == "--provider") {
      to.provider = value;
    } else if (name == "--sharing" && (value == "own" || value == "shared")) {
      to.sharing = value == "own" ? proxy::domain_sharing::own : proxy::domain_sharing::shared;
    } else if (name == "--comms") {
      to.comms = {static_cast<std::uint32_t>(std::strtoul(value.c_str(), nullptr, 10))};
    } else if (name == "--bytes") {
      to.bytes = std::strtoull(value.c_str(), nullptr, 10);
    } else if (name == "--seconds") {
      to.seconds = std::strtod(value.c_str(), nullptr);
    } else if (name == "--passes") {
      to.passes = static_cast<int>(std::strtol(value.c_str(), nullptr, 10));
    } else {
      return false;
    }
  }
  return to.comms[0] > 0 && to.bytes > 0 && to.bytes <= 1024 && to.passes > 0 && to.seconds > 0;
}

int run(int count, char** arguments) {
  asked what;
  if (!parse(count, arguments, what)) {
    std::fprintf(stderr,
                 "usage: ep_fabric_bench [--provider NAME] [--sharing own|shared] [--comms K] "
                 "[--bytes 1..1024] [--seconds S] [--passes N]\n");
    return 2;
  }
  std::printf("%llu-byte writes with immediate, millions per second, %u processors\n",
              static_cast<unsigned long long>(what.bytes), std::thread::hardware_concurrency());
  std::printf("%-12s %2s  %9s %9s  %9s %9s  %6s\n", "provider", "K", "bare", "best", "engine",
              "best", "ratio");
  for (const std::uint32_t comms : what.comms) {
    auto started = must(support::rank_processes::start(
        2, [&](const bootstrap_options& who) { return compare(who, what, comms); }));
    for (const auto& how : started.wait(std::chrono::minutes(5))) {
      if (!how.clean()) return 2;
      std::fputs(how.said.c_str(), stdout);
      std::fflush(stdout);
    }
  }
  return 0;
}

}  // namespace
}  // namespace eptransport::bench

int main(int count, char** arguments) {
  return eptransport::bench::run(count, arguments);
}
