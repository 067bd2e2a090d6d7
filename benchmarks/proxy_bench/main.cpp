// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief ep_proxy_bench: what the proxy's rings and engine cost on this machine, without a wire.
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <new>
#include <string>

#include "proxy_bench/measure.hpp"

namespace {

// Relaxed: a count, read by one thread when the others are quiet.
std::atomic<std::uint64_t> allocated = 0;

void* counted_new(std::size_t bytes, std::size_t alignment) noexcept {
  allocated.fetch_add(1, std::memory_order_relaxed);
  const std::size_t whole = (bytes + alignment - 1) / alignment * alignment;
  return std::aligned_alloc(alignment, whole == 0 ? alignment : whole);
}

void* thrown_new(std::size_t bytes, std::size_t alignment) {
  void* memory = counted_new(bytes, alignment);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

}  // namespace

void* operator new(std::size_t bytes) {
  return thrown_new(bytes, __STDCPP_DEFAULT_NEW_ALIGNMENT__);
}
void* operator new(std::size_t bytes, std::align_val_t alignment) {
  return thrown_new(bytes, static_cast<std::size_t>(alignment));
}
void* operator new(std::size_t bytes, std::align_val_t alignment, const std::nothrow_t&) noexcept {
  return counted_new(bytes, static_cast<std::size_t>(alignment));
}
void operator delete(void* memory) noexcept {
  std::free(memory);
}
void operator delete(void* memory, std::size_t) noexcept {
  std::free(memory);
}
void operator delete(void* memory, std::align_val_t) noexcept {
  std::free(memory);
}
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept {
  std::free(memory);
}

namespace eptransport::bench {

std::uint64_t allocations() noexcept {
  return allocated.load(std::memory_order_relaxed);
}

namespace {

int run(int count, char** arguments) {
  bench_options options;
  std::string what = "all";
  for (int i = 1; i < count; ++i) {
    const std::string name = arguments[i];
    const char* value = i + 1 < count ? arguments[i + 1] : nullptr;
    if (name == "--commands" && value != nullptr) {
      options.commands = std::strtoull(value, nullptr, 10);
      ++i;
    } else if (name == "--passes" && value != nullptr) {
      options.passes = std::atoi(value);
      ++i;
    } else if (name == "rings" || name == "engine" || name == "scaling" || name == "idle") {
      what = name;
    } else {
      const bool asked = name == "--help";
      std::fprintf(asked ? stdout : stderr,
                   "usage: ep_proxy_bench [rings|engine|scaling|idle] [--commands N] "
                   "[--passes N]\n");
      return asked ? 0 : 2;
    }
  }
  if (options.commands < 1000 || options.passes < 1) {
    std::fprintf(stderr, "ep_proxy_bench: expected at least 1000 commands and 1 pass\n");
    return 2;
  }
  if (what == "all" || what == "rings") bench_rings(options);
  if (what == "all" || what == "idle") bench_idle(options);
  if (what == "all" || what == "engine") bench_engine(options);
  if (what == "all" || what == "scaling") bench_scaling(options);
  return 0;
}

}  // namespace
}  // namespace eptransport::bench

int main(int count, char** arguments) {
  return eptransport::bench::run(count, arguments);
}
