// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief A stand-in for the kernel's uverbs devices, so that real EFA and mlx5 provider libraries
///        run in this process without hardware.
///
/// How it works: a temporary sysfs tree (SYSFS_PATH) lists one EFA and one mlx5 device.
/// The executable exports its own `open`, `stat`, `fstat`, `ioctl`, `write`, `mmap` and `close`,
/// so that the providers' calls come here. `ioctl` says ENOTTY; libibverbs then uses the older
/// `write` commands (rdma/ib_user_verbs.h, efa-abi.h, mlx5-abi.h), which are answered. Rings and
/// doorbells are ordinary memory, and this file tells the test where.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace eptransport::fake_uverbs {

/// An EFA queue pair: what a device would read and write.
struct efa_queue_pair {
  std::uint32_t qpn = 0;
  std::uint32_t send_bytes = 0;  ///< of the ring
  std::uint32_t receive_bytes = 0;
  std::uint64_t send_key = 0, send_doorbell_key = 0, receive_key = 0, receive_doorbell_key = 0;

  [[nodiscard]] std::byte* send_ring() const;
  [[nodiscard]] std::uint32_t* send_doorbell() const;
  [[nodiscard]] std::byte* receive_ring() const;
  [[nodiscard]] std::uint32_t* receive_doorbell() const;
};

/// An EFA completion queue.
struct efa_completion_queue {
  std::uint32_t entries = 0;
  std::uint32_t entry_bytes = 0;
  std::uint64_t key = 0;

  [[nodiscard]] std::byte* ring() const;
};

/// An mlx5 queue pair; mlx5dv_init_obj tells the rest.
struct mlx5_queue_pair {
  std::uint32_t qpn = 0;
  std::uint32_t user_index = 0;
};

/// A registration.
struct registration {
  std::uint64_t address = 0;
  std::uint64_t bytes = 0;
  std::uint32_t key = 0;     ///< lkey and rkey
  std::uint32_t access = 0;  ///< IBV_ACCESS_*
};

/// A change of a queue pair's state.
struct modification {
  std::uint32_t mask = 0;   ///< IBV_QP_*
  std::uint32_t state = 0;  ///< IBV_QPS_*
  std::uint32_t access = 0;
  std::uint32_t destination = 0;
  std::uint32_t send_packet = 0, receive_packet = 0;
};

/// What has been created, in order of creation.
struct tables {
  std::vector<efa_queue_pair> efa_queue_pairs;
  std::vector<efa_completion_queue> efa_completion_queues;
  std::vector<mlx5_queue_pair> mlx5_queue_pairs;
  std::vector<registration> registrations;
  std::vector<modification> modifications;
  std::vector<std::uint8_t> handles;  ///< last byte of the GID of address handle 0x80 + i
};

/// Handle numbers start here.
inline constexpr std::uint16_t first_handle = 0x80;
/// Entries that an EFA doorbell may cover.
inline constexpr std::uint16_t max_batch = 16;

/// The tables of this process.
[[nodiscard]] tables& created();

/// Builds the sysfs tree and points SYSFS_PATH at it; once per process.
void plug_in();

/// Internal: answers one `write` to a device. @return what `write` returns
long answer(bool efa, const std::byte* command, std::size_t bytes);
/// Internal: remembers where a key was mapped.
void mapped(std::uint64_t key, std::byte* where);

}  // namespace eptransport::fake_uverbs
