// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Straight-line kernels, one per step of a put, for instructions.sh to count. Each loads
///        its operands, does the step, and ends.
#include <eptransport/gdaki/device_groups.cuh>
#include <eptransport/gdaki/send_queue.hpp>

#include <cstddef>
#include <cstdint>

namespace eptransport::gdaki {

/// Operands of one put, with the queue.
struct put_operands {
  send_queue_attributes attributes;
  efa::address to;
  remote_range remote;
  local_range local;
  std::uint64_t index;
};

/// Loads what a put needs and stores it somewhere: subtracted from the others.
extern "C" EPT_KERNEL void count_baseline(const put_operands* from, segment* out) {
  const put_operands o = *from;
  out[0] = {{low_word(o.remote.address), high_word(o.remote.address), o.remote.key, o.local.key}};
  out[1] = {{low_word(o.local.address), high_word(o.local.address), o.local.bytes, o.to.qkey}};
  out[2] = {{low_word(o.index), high_word(o.index), std::uint32_t{o.to.handle}, o.to.qpn}};
}

namespace {

template <class Format, class Put>
EPT_DEVICE void build_and_store(const put_operands& o, Put put) {
  const typename Format::entry e = put(Format::place(o.attributes, o.index, true));
  auto* to = reinterpret_cast<segment*>(o.attributes.ring) +
             (o.index & (o.attributes.slots - 1)) * Format::entry::segments;
  constexpr std::uint32_t used = Format::ordered ? 3 : Format::entry::segments;
  for (std::uint32_t s = 0; s < used; ++s) {
    queue_memory<device_memory>::store(to + s, e.part[s]);
  }
}

}  // namespace

extern "C" EPT_KERNEL void count_efa_write(const put_operands* from) {
  const put_operands o = *from;
  build_and_store<efa_format<>>(
      o, [&](efa::place at) { return efa::write(at, o.to, o.remote, o.local); });
}
extern "C" EPT_KERNEL void count_mlx5_write(const put_operands* from) {
  const put_operands o = *from;
  build_and_store<mlx5_format>(o,
                               [&](mlx5::place at) { return mlx5::write(at, o.remote, o.local); });
}
extern "C" EPT_KERNEL void count_efa_doorbell(const put_operands* from) {
  const put_operands o = *from;
  efa_format<>::ring<device_memory>(o.attributes, o.index);
}
extern "C" EPT_KERNEL void count_mlx5_doorbell(const put_operands* from) {
  const put_operands o = *from;
  mlx5_format::ring<device_memory>(o.attributes, o.index);
}

}  // namespace eptransport::gdaki
