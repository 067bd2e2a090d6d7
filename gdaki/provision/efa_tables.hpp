// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The parts of libfabric's and rdma-core's EFA interfaces that Debian's headers lack, as
///        plain data, so that one build works with every version that is found at run time.
///
/// Libraries append members and functions. A mirror that a library fills has room behind what is
/// known; a table is read only as far as the library's version says that it reaches.
///
/// @par Source  rdma/fi_ext_efa.h of libfabric 2.3 to 2.6, fi_efa(7); efadv_query_qp_wqs(3),
///              efadv_query_cq(3) of rdma-core 59 and newer
#pragma once

#include <eptransport/core/config.hpp>

#include <cstddef>
#include <cstdint>

// libfabric's and rdma-core's own types, which stay opaque here.
struct fid_ep;
struct fid_cq;
struct fid_mr;
struct fid_domain;
struct fid_cntr;
struct fi_cq_attr;
struct fi_cntr_attr;
struct ibv_qp;
struct ibv_cq;

namespace eptransport::gdaki::provision {

/// `fi_efa_wq_attr`.
struct efa_queue_info {
  std::uint8_t* buffer = nullptr;
  std::uint32_t entry_size = 0;
  std::uint32_t num_entries = 0;
  std::uint32_t* doorbell = nullptr;
  std::uint32_t max_batch = 0;
  std::uint16_t caps = 0;  ///< newer than 2.6.0
  std::uint8_t later[62] = {};
};
static_assert(offsetof(efa_queue_info, max_batch) == 24);

/// `fi_efa_cq_attr`.
struct efa_completion_info {
  std::uint8_t* buffer = nullptr;
  std::uint32_t entry_size = 0;
  std::uint32_t num_entries = 0;
  std::uint8_t later[64] = {};
};

/// `fi_efa_cq_init_attr`: a completion queue in memory that was exported as a DMA-BUF.
struct efa_completion_memory {
  std::uint64_t flags = 0;
  struct {
    std::uint8_t* buffer = nullptr;
    std::uint64_t length = 0;
    std::uint64_t offset = 0;
    std::uint32_t fd = 0;
  } dmabuf;

  static constexpr std::uint64_t in_dmabuf = 1;
};

/// `fi_efa_memory_location`: a word that the device writes.
struct efa_word_location {
  std::uint8_t* pointer = nullptr;
  struct {
    std::uint64_t offset = 0;
    std::int32_t fd = -1;
    std::uint32_t reserved = 0;
  } dmabuf;
  std::uint8_t type = 0;
  std::uint8_t reserved[7] = {};

  static constexpr std::uint8_t by_address = 0;
  static constexpr std::uint8_t by_dmabuf = 1;
};
static_assert(sizeof(efa_word_location) == 32);

/// `fi_efa_comp_cntr_init_attr`.
struct efa_counter_init {
  std::uint64_t comp_mask = 0;
  std::uint32_t flags = 0;
  std::uint32_t reserved = 0;
  efa_word_location successes;
  efa_word_location failures;

  static constexpr std::uint32_t successes_elsewhere = 1;
  static constexpr std::uint32_t failures_elsewhere = 2;
};
static_assert(sizeof(efa_counter_init) == 80);

/// `fi_efa_ops_gda`, got from `fi_open_ops(domain, "efa gda ops")` of the efa-direct fabric.
struct efa_gda_table {
  int (*query_addr)(fid_ep*, std::uint64_t address, std::uint16_t* handle, std::uint16_t* qpn,
                    std::uint32_t* qkey);
  int (*query_qp_wqs)(fid_ep*, efa_queue_info* send, efa_queue_info* receive);
  int (*query_cq)(fid_cq*, efa_completion_info*);
  int (*cq_open_ext)(fid_domain*, fi_cq_attr*, efa_completion_memory*, fid_cq**, void* context);
  std::uint64_t (*get_mr_lkey)(fid_mr*);
  int (*cntr_open_ext)(fid_domain*, fi_cntr_attr*, fid_cntr**, void* context,
                       efa_counter_init*);  ///< from 2.6 on

  static constexpr const char* name = "efa gda ops";
  static constexpr std::uint32_t since = 2U << 16U | 3U;  ///< as fi_version() counts
  static constexpr std::uint32_t counters_since = 2U << 16U | 6U;
};

/// `efadv_wq_attr`; the caller says how much of it there is.
struct efadv_queue_info {
  std::uint64_t comp_mask = 0;
  std::uint8_t* buffer = nullptr;
  std::uint32_t entry_size = 0;
  std::uint32_t num_entries = 0;
  std::uint32_t* doorbell = nullptr;
  std::uint32_t max_batch = 0;
  std::uint8_t reserved[4] = {};
};
static_assert(sizeof(efadv_queue_info) == 40);

/// `efadv_cq_attr` as rdma-core 59 has it; likewise.
struct efadv_completion_info {
  std::uint64_t comp_mask = 0;
  std::uint8_t* buffer = nullptr;
  std::uint32_t entry_size = 0;
  std::uint32_t num_entries = 0;
};

using efadv_query_queues = int(ibv_qp*, efadv_queue_info* send, efadv_queue_info* receive,
                               std::uint32_t bytes);
using efadv_query_completions = int(ibv_cq*, efadv_completion_info*, std::uint32_t bytes);

}  // namespace eptransport::gdaki::provision
