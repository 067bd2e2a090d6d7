// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Random requests as a function of their number, on hosts and GPUs alike.
#pragma once

#include <eptransport/core/config.hpp>
#include <eptransport/gdaki/efa_cqe.hpp>
#include <eptransport/gdaki/efa_wqe.hpp>
#include <eptransport/gdaki/mlx5_cqe.hpp>
#include <eptransport/gdaki/mlx5_wqe.hpp>

#include <cstddef>
#include <cstdint>

namespace eptransport::gdaki::testing {

/// splitmix64, usable in device code.
class entry_random {
 public:
  EPT_HOST_DEVICE explicit entry_random(std::uint64_t seed) noexcept : state_(seed) {}
  EPT_HOST_DEVICE std::uint64_t operator()() noexcept {
    state_ += 0x9e3779b97f4a7c15U;
    std::uint64_t z = state_;
    z = (z ^ (z >> 30U)) * 0xbf58476d1ce4e5b9U;
    z = (z ^ (z >> 27U)) * 0x94d049bb133111ebU;
    return z ^ (z >> 31U);
  }
  EPT_HOST_DEVICE std::uint32_t word() noexcept { return static_cast<std::uint32_t>((*this)()); }

 private:
  std::uint64_t state_;
};

/// The random operands of one request.
struct entry_inputs {
  EPT_HOST_DEVICE explicit entry_inputs(std::uint64_t number) noexcept {
    entry_random random(number * 0x2545f4914f6cdd1dU + 1);
    remote = {random(), random.word()};
    local = {random(), random.word(), random.word() & 0x7fffffffU};
    other = {random(), random.word(), random.word() & 0xffffU};
    for (std::uint32_t i = 0; i < sizeof(data); ++i)
      data[i] = static_cast<std::byte>(random.word());
    immediate = random.word();
    operand = random();
    compare = random();
    pick = random.word();
    size = random.word();
  }

  remote_range remote{};
  local_range local{};
  local_range other{};
  std::byte data[80]{};
  std::uint32_t immediate = 0;
  std::uint64_t operand = 0;
  std::uint64_t compare = 0;
  std::uint32_t pick = 0;
  std::uint32_t size = 0;
};

/// The number-th random EFA entry.
template <std::uint32_t kBytes>
[[nodiscard]] EPT_HOST_DEVICE inline efa::entry<kBytes> random_efa(std::uint64_t number,
                                                                   std::uint32_t slots) noexcept {
  const entry_inputs in(number);
  const efa::place at = efa::place_of(number, slots);
  const efa::address to{static_cast<std::uint16_t>(in.pick >> 16U),
                        static_cast<std::uint16_t>(in.immediate), low_word(in.operand)};
  const efa::options with{(in.pick & 8U) != 0, in.immediate,
                          static_cast<std::uint8_t>(in.pick >> 4U & 3U)};
  switch (in.pick & 7U) {
    case 0:
      return efa::read<kBytes>(at, to, in.remote, in.local, with.hints);
    case 1:
      return efa::send<kBytes>(at, to, in.local, in.other, with);
    case 2:
      return efa::send<kBytes>(at, to, in.local, {}, with);
    case 3:
      return efa::send_inline<kBytes>(
          at, to, in.data, static_cast<std::uint16_t>(in.size % (efa::max_inline_send(kBytes) + 1)),
          with);
    case 4:
      if constexpr (kBytes == efa::wide) {
        const auto bytes = static_cast<std::uint16_t>(in.size % (efa::max_inline_write + 1));
        return efa::write_inline(at, to, in.remote, {in.data, bytes}, with);
      }
      break;
    default:
      break;
  }
  return efa::write<kBytes>(at, to, in.remote, in.local, with);
}

/// The number-th random mlx5 entry of one block.
[[nodiscard]] EPT_HOST_DEVICE inline mlx5::entry random_mlx5(std::uint64_t number,
                                                             std::uint32_t qpn) noexcept {
  const entry_inputs in(number);
  const std::uint32_t flags = (in.pick & 16U) != 0 ? mlx5::notify : mlx5::quiet;
  const mlx5::place at = mlx5::place_of(number, qpn, static_cast<std::uint8_t>(flags));
  switch (in.pick & 15U) {
    case 0:
      return mlx5::read(at, in.remote, in.local);
    case 1:
      return mlx5::send(at, in.local);
    case 2:
      return mlx5::send_immediate(at, in.local, in.immediate);
    case 3:
      return mlx5::send_inline(at, in.data, in.size % (mlx5::max_inline_send + 1));
    case 4:
    case 5:
      return mlx5::write_inline(at, in.remote, in.data, in.size % (mlx5::max_inline_write + 1));
    case 6:
    case 7:
      return mlx5::fetch_add(at, in.remote, in.operand, in.local);
    case 8:
    case 9:
      return mlx5::compare_swap(at, in.remote, {in.compare, in.operand}, in.local);
    case 10:
    case 11:
      return mlx5::write_immediate(at, in.remote, in.local, in.immediate);
    default:
      return mlx5::write(at, in.remote, in.local);
  }
}

/// What both sides must agree on besides entries: doorbells and decoded completions.
struct small_words {
  std::uint32_t efa_doorbell;
  std::uint32_t record;
  std::uint64_t doorbell;
  completion efa_narrow;
  completion efa_wide;
  completion mlx5;
};

/// The number-th set of them.
[[nodiscard]] EPT_HOST_DEVICE inline small_words random_words(std::uint64_t number) noexcept {
  entry_random random(number + 77);
  std::uint32_t word[16];
  for (std::uint32_t& w : word) w = random.word();
  return {efa::doorbell(number),
          mlx5::record(number),
          mlx5::doorbell(number, word[0] & 0xffffffU),
          efa::parse_completion(word, efa::narrow_completion),
          efa::parse_completion(word, efa::wide_completion),
          mlx5::parse_completion(word)};
}

}  // namespace eptransport::gdaki::testing
