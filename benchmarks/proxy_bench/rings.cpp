// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Rings without a wire: a CPU producer, one consumer that decodes, against Boost.Lockfree.
#include <eptransport/core/memory.hpp>
#include <eptransport/proxy/command.hpp>
#include <eptransport/proxy/driver.hpp>
#include <eptransport/proxy/ring.hpp>

#include <boost/lockfree/spsc_queue.hpp>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <thread>
#include <vector>

#include "proxy_bench/measure.hpp"

namespace eptransport::bench {
namespace {

using proxy::command;
using proxy::command_codec;
using proxy::command_words;

constexpr std::uint64_t slots = 2048;

command_codec codec() {
  return *command_codec::create({64, 512, std::uint64_t{1} << 30, 1 << 20});
}

command numbered(std::uint64_t i) {
  return {.src_offset = (i & 0xffff) * 64,
          .dst_offset = (i & 0xfff) * 64,
          .bytes = 64,
          .peer = static_cast<std::uint32_t>(i & 63),
          .signal = static_cast<std::uint32_t>(i & 511)};
}

/// Keeps the decoded fields alive.
struct checksum {
  std::uint64_t sum = 0;
  void add(const command& c) { sum += c.src_offset ^ c.dst_offset ^ c.bytes ^ c.peer ^ c.signal; }
};

[[nodiscard]] std::uint64_t expected_sum(std::uint64_t n) {
  checksum all;
  for (std::uint64_t i = 0; i < n; ++i) all.add(numbered(i));
  return all.sum;
}

void judge(const char* name, std::uint64_t got, std::uint64_t expected) {
  if (got != expected)
    std::printf("%s: WRONG, the commands were not those that were pushed\n", name);
}

/// Both threads meet here, so that a pass times no thread's start.
void meet(std::atomic<int>& arrived) {
  arrived.fetch_add(1);
  while (arrived.load() < 2) proxy::pause_cpu();
}

double ring_pass(std::uint64_t n, std::uint64_t expected) {
  const owned_ring ring(slots);
  const command_codec c = codec();
  std::atomic<int> arrived = 0;
  std::thread producer_thread([&] {
    proxy::ring_producer<host_memory> producer(ring.view());
    meet(arrived);
    for (std::uint64_t i = 0; i < n; ++i) {
      const command_words words = c.encode(numbered(i));
      while (!producer.push(words)) proxy::pause_cpu();
    }
  });
  proxy::ring_consumer consumer(ring.view());
  checksum all;
  command_words words;
  meet(arrived);
  const double start = seconds();
  for (std::uint64_t i = 0; i < n;) {
    if (!consumer.peek(words)) {
      consumer.publish_tail();
      proxy::pause_cpu();
      continue;
    }
    all.add(c.decode(words));
    consumer.pop();
    ++i;
  }
  const double time = seconds() - start;
  consumer.publish_tail();
  producer_thread.join();
  judge("ring", all.sum, expected);
  return static_cast<double>(n) / time;
}

/// The same, with the queue of Boost, one element at a time.
double boost_pass(std::uint64_t n, std::uint64_t expected) {
  using queue = boost::lockfree::spsc_queue<command_words, boost::lockfree::capacity<slots>>;
  const auto q = std::make_unique<queue>();
  const command_codec c = codec();
  std::atomic<int> arrived = 0;
  std::thread producer_thread([&] {
    meet(arrived);
    for (std::uint64_t i = 0; i < n; ++i) {
      const command_words words = c.encode(numbered(i));
      while (!q->push(words)) proxy::pause_cpu();
    }
  });
  checksum all;
  command_words words;
  meet(arrived);
  const double start = seconds();
  for (std::uint64_t i = 0; i < n;) {
    if (!q->pop(words)) {
      proxy::pause_cpu();
      continue;
    }
    all.add(c.decode(words));
    ++i;
  }
  const double time = seconds() - start;
  producer_thread.join();
  judge("boost", all.sum, expected);
  return static_cast<double>(n) / time;
}

/// One thread fills all rings, then empties them in turns: what a command costs the consumer, with
/// no second core in the measurement.
double busy_rings_pass(std::uint64_t n, std::size_t rings) {
  std::vector<std::unique_ptr<owned_ring>> memory;
  std::vector<proxy::ring_producer<host_memory>> producers;
  std::vector<proxy::ring_consumer> consumers;
  for (std::size_t i = 0; i < rings; ++i) {
    memory.push_back(std::make_unique<owned_ring>(slots));
    producers.emplace_back(memory.back()->view());
    consumers.emplace_back(memory.back()->view());
  }
  const command_codec c = codec();
  checksum all;
  command_words words;
  double time = 0;
  std::uint64_t done = 0;
  while (done < n) {
    for (auto& producer : producers) {
      for (std::uint64_t i = 0; i < slots; ++i) {
        if (!producer.push(c.encode(numbered(i)))) std::printf("busy rings: WRONG, full\n");
      }
    }
    const double start = seconds();
    for (std::uint64_t left = rings * slots; left != 0;) {
      for (auto& consumer : consumers) {
        for (int burst = 0; burst < 8 && consumer.peek(words); ++burst, --left) {
          all.add(c.decode(words));
          consumer.pop();
        }
      }
    }
    time += seconds() - start;
    for (auto& consumer : consumers) consumer.publish_tail();
    done += rings * slots;
  }
  judge("busy rings", all.sum, expected_sum(slots) * (done / slots));
  return static_cast<double>(done) / time;
}

void show(const char* name, const rate& r) {
  std::printf("%-58s %8.1f  %8.1f\n", name, r.median / 1e6, r.best / 1e6);
}

}  // namespace

void bench_rings(const bench_options& options) {
  std::printf("%-58s %8s  %8s\n", "rings and decode, millions of commands per second", "median",
              "best");
  const std::uint64_t expected = expected_sum(options.commands);
  const rate ring = measure(options.passes, [&] { return ring_pass(options.commands, expected); });
  const rate boost =
      measure(options.passes, [&] { return boost_pass(options.commands, expected); });
  show("one ring, CPU producer, one consumer thread", ring);
  show("boost::lockfree::spsc_queue push and pop, the same", boost);
  std::printf("%-58s %8.2f  %8.2f\n", "  ratio", ring.median / boost.median,
              ring.best / boost.best);
  for (const std::size_t rings :
       {std::size_t{1}, std::size_t{8}, std::size_t{32}, std::size_t{128}}) {
    char name[64];
    std::snprintf(name, sizeof name, "%zu busy rings, 8 a turn, consumer alone", rings);
    show(name, measure(options.passes, [&] { return busy_rings_pass(options.commands, rings); }));
  }
}

/// What a look at rings with nothing in them costs.
void bench_idle(const bench_options& options) {
  std::printf("\n%-58s %8s\n", "a sweep of empty rings", "ns");
  for (const std::size_t rings : {std::size_t{8}, std::size_t{32}, std::size_t{128}}) {
    std::vector<std::unique_ptr<owned_ring>> memory;
    std::vector<proxy::ring_consumer> consumers;
    for (std::size_t i = 0; i < rings; ++i) {
      memory.push_back(std::make_unique<owned_ring>(slots));
      consumers.emplace_back(memory.back()->view());
    }
    const std::uint64_t sweeps = options.commands / 10 / rings;
    command_words words;
    std::uint64_t found = 0;
    const double start = seconds();
    for (std::uint64_t i = 0; i < sweeps; ++i) {
      for (const auto& consumer : consumers) found += consumer.peek(words) ? 1 : 0;
    }
    const double time = seconds() - start;
    if (found != 0) std::printf("empty rings: WRONG, something was found\n");
    std::printf("%4zu rings %55.1f\n", rings, time / static_cast<double>(sweeps) * 1e9);
  }
}

}  // namespace eptransport::bench
