// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief libFuzzer target: every parser, and the emulator's execution of whatever parses.
///
/// Beyond not crashing: an accepted entry, built again from what was understood, has the
/// same bytes wherever a device looks; a completion written from what was read reads the same.
#include <eptransport/gdaki/efa_cqe.hpp>
#include <eptransport/gdaki/emulator/completion_writer.hpp>
#include <eptransport/gdaki/emulator/efa_parser.hpp>
#include <eptransport/gdaki/emulator/mlx5_parser.hpp>
#include <eptransport/gdaki/emulator/network.hpp>
#include <eptransport/gdaki/mlx5_cqe.hpp>
#include <eptransport/gdaki/queue_fault.hpp>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <span>

namespace {

using namespace eptransport::gdaki;

void require(bool condition) {
  if (!condition) std::abort();
}

/// Entry bytes with those that the device ignores made zero.
template <std::uint32_t kSegments>
queue_entry<kSegments> entry_of(std::span<const std::byte> bytes) {
  queue_entry<kSegments> e;
  for (std::uint32_t i = 0; i < kSegments * 4; ++i) {
    std::memcpy(&e.part[i / 4].word[i % 4], bytes.data() + std::size_t{i} * 4, 4);
  }
  return e;
}

template <std::uint32_t kBytes>
void check_efa(std::span<const std::byte> bytes, bool phase) {
  const emulator::parsed got = emulator::parse_efa_send(bytes, phase);
  if (!got.ok()) return;
  const emulator::request& r = got.value;
  efa::entry<kBytes> theirs = entry_of<kBytes / 16>(bytes);
  const efa::place at{r.id, phase};
  const efa::address to{r.handle, r.target_qpn, r.qkey};
  const efa::options with{r.has_immediate, r.immediate,
                          static_cast<std::uint8_t>(std::to_integer<int>(bytes[14]))};
  if (!r.has_immediate) theirs.part[0].word[2] = 0;
  efa::entry<kBytes> ours;
  std::uint32_t used = 64;
  if (r.what == emulator::action::send && r.is_inline) {
    ours = efa::send_inline<kBytes>(at, to, r.data.data(),
                                    static_cast<std::uint16_t>(r.data.size()), with);
    used = 32 + static_cast<std::uint32_t>(r.data.size());
  } else if (r.what == emulator::action::send) {
    const bool two = r.local.size() == 2;
    if (two && r.local[1].bytes == 0) return;  // a second range of no bytes is not ours to build
    ours = efa::send<kBytes>(at, to, r.local[0], two ? r.local[1] : local_range{}, with);
    used = two ? 64 : 48;
  } else if (r.is_inline) {
    if constexpr (kBytes == efa::wide) {
      ours = efa::write_inline(at, to, r.remote,
                               {r.data.data(), static_cast<std::uint16_t>(r.data.size())}, with);
    }
    used = 48 + static_cast<std::uint32_t>(r.data.size());
  } else if (r.what == emulator::action::read) {
    ours = efa::read<kBytes>(at, to, r.remote, r.local[0], with.hints);
  } else {
    ours = efa::write<kBytes>(at, to, r.remote, r.local[0], with);
  }
  require(std::memcmp(&ours, &theirs, used) == 0);
}

void check_mlx5(std::span<const std::byte> bytes, mlx5::place at) {
  const emulator::parsed got = emulator::parse_mlx5_send(bytes, at);
  if (!got.ok()) return;
  const emulator::request& r = got.value;
  require(r.slots * std::size_t{mlx5::block_bytes} <= bytes.size() + 63);
  at.flags = static_cast<std::uint8_t>(std::to_integer<int>(bytes[11]));
  if (r.is_inline || r.local.size() != 1) return;
  mlx5::entry theirs = entry_of<4>(bytes);
  if (!r.has_immediate) theirs.part[0].word[3] = 0;
  mlx5::entry ours;
  std::uint32_t used = 48;
  switch (r.what) {
    case emulator::action::nothing:
      return;
    case emulator::action::send:
      ours = r.has_immediate ? mlx5::send_immediate(at, r.local[0], r.immediate)
                             : mlx5::send(at, r.local[0]);
      used = 32;
      break;
    case emulator::action::write:
      ours = r.has_immediate ? mlx5::write_immediate(at, r.remote, r.local[0], r.immediate)
                             : mlx5::write(at, r.remote, r.local[0]);
      break;
    case emulator::action::read:
      ours = mlx5::read(at, r.remote, r.local[0]);
      break;
    case emulator::action::fetch_add:
      theirs.part[2].word[2] = theirs.part[2].word[3] = 0;  // the compare operand is ignored
      ours = mlx5::fetch_add(at, r.remote, r.operand, r.local[0]);
      used = 64;
      break;
    case emulator::action::compare_swap:
      ours = mlx5::compare_swap(at, r.remote, {r.compare, r.operand}, r.local[0]);
      used = 64;
      break;
  }
  require(std::memcmp(&ours, &theirs, used) == 0);
}

void check_completions(std::span<const std::byte> bytes) {
  alignas(8) std::uint32_t word[16] = {};
  std::memcpy(word, bytes.data(), bytes.size() < 64 ? bytes.size() : 64);
  const completion wide = efa::parse_completion(word, efa::wide_completion);
  const completion narrow = efa::parse_completion(word, efa::narrow_completion);
  require(wide.what == narrow.what && wide.index == narrow.index);
  const completion m = mlx5::parse_completion(word);
  if (m.what == completed::request) {
    require(m.status == 0 ||
            mlx5::opcode_of(std::uint64_t{word[15]} << 32U) == mlx5::cqe_opcode::request_error);
  }
  (void)to_string(static_cast<efa::status>(wide.status));
  (void)to_string(static_cast<mlx5::status>(m.status));
  std::uint64_t number = 0;
  std::memcpy(&number, word, 8);
  require(pack(unpack(number, 0)) == number);
  (void)to_string(unpack(number, 0).kind);
  (void)mlx5::is_new(number, number >> 8U, 64);
  require(mlx5::extend(number, static_cast<std::uint16_t>(word[3]), 32768) - number <= 32768);

  alignas(8) std::byte ring[64] = {};
  emulator::completion_writer writer({emulator::wire::efa, ring, 2, 32, false, nullptr});
  emulator::completion_facts facts;
  facts.qpn = wide.qpn;
  facts.index = wide.index;
  facts.status = wide.status;
  facts.received = wide.what != completed::request;
  facts.written = wide.what == completed::written_with;
  facts.has_immediate = wide.has_immediate;
  facts.unsolicited = wide.unsolicited;
  facts.immediate = wide.immediate;
  facts.bytes = wide.bytes;
  facts.source_qpn = wide.source_qpn;
  facts.source_handle = wide.source_handle;
  if (wide.what == completed::nothing) return;
  require(writer.write(facts));
  std::memcpy(word, ring, 32);
  require(efa::parse_completion(word, efa::wide_completion) == wide);
}

/// Lets the emulator fetch and execute entries whose control fields were made acceptable.
void run_emulator(emulator::wire format, std::span<const std::byte> input) {
  constexpr std::uint32_t slots = 16;
  constexpr std::uint32_t qpn = 5;
  alignas(64) std::byte ring[slots * 64] = {};
  alignas(64) std::byte completions[slots * 64] = {};
  alignas(64) std::byte windows[2][4096] = {};
  alignas(8) std::uint32_t words[4] = {};
  const bool efa_wire = format == emulator::wire::efa;
  const auto entries = static_cast<std::uint32_t>(input.size() / 64 < slots ? input.size() / 64
                                                                            : std::size_t{slots});
  std::memcpy(ring, input.data(), std::size_t{entries} * 64);
  for (std::uint32_t i = 0; i < entries; ++i) {
    std::byte* e = ring + std::size_t{i} * 64;
    if (efa_wire) {
      e[2] = (e[2] & std::byte{0x33}) | std::byte{0x80};
      e[3] = std::byte{0x1c};
      std::memset(e + 14, 0, 2);
      std::memset(e + 20, 0, 12);
      std::memset(e + 12, 0, 2);
    } else {
      e[0] = e[8] = e[9] = e[10] = std::byte{0};
      e[1] = std::byte{0};
      e[2] = static_cast<std::byte>(i);
      e[4] = e[5] = std::byte{0};
      e[6] = std::byte{qpn};
    }
  }
  emulator::network net;
  for (std::uint32_t n = 0; n < 2; ++n) {
    net.add_nic();
    net.add_handle(n, 0, 1 - n);
    // Small addresses and keys, which inputs name easily.
    net.memory(n).add({windows[n], sizeof(windows[n]), 0, 1, 1, 15});
    emulator::queue_pair_setup setup;
    setup.format = format;
    setup.nic = n;
    setup.qpn = qpn;
    setup.unsolicited_writes = true;
    setup.send_queue = net.add_completion_queue(
        {format, completions, slots, efa_wire ? 32U : 64U, false, nullptr});
    if (n == 0) setup.send = {ring, slots, 64, 0, 0, words + 2, {words}};
    net.add_queue_pair(setup);
  }
  net.connect(0, qpn, 1, qpn);
  if (efa_wire) {
    words[0] = entries;
  } else {
    words[2] = mlx5::record(entries);
    const std::uint64_t value = mlx5::doorbell(entries, qpn);
    std::memcpy(words, &value, 8);
  }
  require(net.step(100'000) < 100'000);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 4) return 0;
  const std::span<const std::byte> bytes(reinterpret_cast<const std::byte*>(data + 3), size - 3);
  const bool phase = (data[1] & 1U) != 0;
  switch (data[0] % 8) {
    case 0:
      if (bytes.size() >= 64) check_efa<efa::narrow>(bytes.first(64), phase);
      break;
    case 1:
      if (bytes.size() >= 128) check_efa<efa::wide>(bytes.first(128), phase);
      break;
    case 2:
      (void)emulator::parse_efa_send(bytes, phase);
      break;
    case 3:
      (void)emulator::parse_efa_receive(bytes);
      (void)emulator::parse_mlx5_receive(bytes);
      break;
    case 4:
      check_mlx5(bytes, {static_cast<std::uint16_t>(data[1]), data[2], 0});
      break;
    case 5:
      check_completions(bytes);
      break;
    case 6:
      run_emulator(emulator::wire::efa, bytes);
      break;
    default:
      run_emulator(emulator::wire::mlx5, bytes);
      break;
  }
  return 0;
}
