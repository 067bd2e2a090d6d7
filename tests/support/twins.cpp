// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Chunks of buffers, and their copies.
#include "support/twins.hpp"

#include <algorithm>

namespace eptransport::support {

memory_twins::twin memory_twins::take(std::uint64_t bytes, twin_use use) {
  constexpr std::uint64_t smallest = 1 << 20;
  const std::uint64_t whole = (bytes + 255) / 256 * 256;
  std::vector<chunk>& all = of(use);
  auto room = std::find_if(all.begin(), all.end(),
                           [&](const chunk& one) { return one.size - one.used >= whole; });
  if (room == all.end()) {
    const std::uint64_t size = std::max(whole, smallest);
    all.push_back({allocate(size, use == twin_use::shared), size, 0});
    room = all.end() - 1;
  }
  const twin taken{room->memory.host + room->used, room->memory.kernel + room->used};
  room->used += whole;
  return taken;
}

void memory_twins::recycle() {
  for (const twin_use use : {twin_use::call, twin_use::shared}) {
    for (chunk& one : of(use)) one.used = 0;
  }
}

void memory_twins::push() {
  for (const twin_use use : {twin_use::call, twin_use::run}) {
    for (const chunk& one : of(use)) copy(one.memory.kernel, one.memory.host, one.used);
  }
  wait();
}

void memory_twins::pull() {
  for (const twin_use use : {twin_use::call, twin_use::run}) {
    for (const chunk& one : of(use)) copy(one.memory.host, one.memory.kernel, one.used);
  }
  wait();
}

void memory_twins::push(std::span<const std::byte> part) {
  if (part.empty()) return;
  copy(window_ + (part.data() - image_), part.data(), part.size());
  wait();
}

void memory_twins::pull(std::span<std::byte> part) {
  if (part.empty()) return;
  copy(part.data(), window_ + (part.data() - image_), part.size());
  wait();
}

void memory_twins::release_all() {
  for (std::vector<chunk>& all : chunks_) {
    for (const chunk& one : all) release(one.memory);
    all.clear();
  }
}

}  // namespace eptransport::support
