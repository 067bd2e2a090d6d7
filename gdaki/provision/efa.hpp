// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief EFA queues as their owners describe them: libfabric's GDA operations, or rdma-core's
///        direct verbs. What comes back is checked against what the entry builders can do.
///
/// Making the endpoint, its completion queue and registrations stays with libfabric
/// (efa_libfabric.hpp) or verbs; this asks them where ring, doorbell, counters and keys are.
#pragma once

#include <eptransport/core/config.hpp>
#include <eptransport/core/result.hpp>
#include <eptransport/gdaki/format.hpp>
#include <eptransport/gdaki/provision/efa_tables.hpp>
#include <eptransport/gdaki/provision/library.hpp>
#include <eptransport/gdaki/provision/need.hpp>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

namespace eptransport::gdaki::provision {

/// A send queue, and which of the two entry sizes it has.
struct efa_send_queue {
  send_queue_attributes attributes{};  ///< `qpn` and `id` are yours
  std::uint32_t entry_bytes = 0;       ///< `efa::narrow` or `efa::wide`
};

namespace detail {

/// A ring that `send_queue` can post to.
[[nodiscard]] inline result<efa_send_queue> accept_queue(const efa_queue_info& info,
                                                         const char* operation) {
  const auto refuse = [&](const std::string& why) {
    return missing(need::device_property, operation, why);
  };
  if (info.buffer == nullptr || info.doorbell == nullptr) {
    return refuse("the device maps no send ring or doorbell");
  }
  if (info.entry_size != efa::narrow && info.entry_size != efa::wide) {
    return refuse("entries of " + std::to_string(info.entry_size) + " bytes, 64 or 128 are known");
  }
  const std::uint32_t n = info.num_entries;
  if (n == 0 || (n & (n - 1)) != 0 || n > 32768) {
    return refuse("a ring of " + std::to_string(n) +
                  " entries, a power of two up to 32768 is needed");
  }
  efa_send_queue queue;
  queue.entry_bytes = info.entry_size;
  queue.attributes.ring = reinterpret_cast<std::byte*>(info.buffer);
  queue.attributes.slots = n;
  queue.attributes.max_batch = info.max_batch;
  queue.attributes.home = ring_home::host;
  queue.attributes.doorbell = info.doorbell;
  return queue;
}

/// A completion ring that `polled_completion` can read.
[[nodiscard]] inline result<completion_ring> accept_completions(std::uint8_t* buffer,
                                                                std::uint32_t entries,
                                                                std::uint32_t bytes,
                                                                const char* operation) {
  if (buffer == nullptr || entries == 0 || (entries & (entries - 1)) != 0 ||
      (bytes != 16 && bytes != efa::wide_completion)) {
    return missing(need::device_property, operation,
                   std::to_string(entries) + " completions of " + std::to_string(bytes) +
                       " bytes, a power of two of 16 or 32 bytes is needed");
  }
  return completion_ring{reinterpret_cast<std::byte*>(buffer), entries, bytes, nullptr};
}

}  // namespace detail

/// The GDA operations of an efa-direct domain.
///
/// @par Threads  Any; libfabric's own rules for the objects apply.
class efa_gda {
 public:
  /// @param table    what `fi_open_ops` gave
  /// @param version  what `fi_version()` says
  /// @par Errors     `need::library_version` with both versions
  [[nodiscard]] static result<efa_gda> of(const efa_gda_table* table, std::uint32_t version) {
    if (version >= efa_gda_table::since && table != nullptr) return efa_gda(*table, version);
    return missing(need::library_version, "fi_open_ops",
                   "libfabric " + text(version) + " has no GDA operations, " +
                       text(efa_gda_table::since) + " or newer is needed");
  }

  /// The send queue of an enabled endpoint.
  [[nodiscard]] result<efa_send_queue> send_queue(fid_ep* endpoint) const {
    efa_queue_info send, receive;
    const int code = table_->query_qp_wqs(endpoint, &send, &receive);
    if (code != 0) return system_failure(-code, "query_qp_wqs", "");
    return detail::accept_queue(send, "query_qp_wqs");
  }
  [[nodiscard]] result<completion_ring> completions(fid_cq* queue) const {
    efa_completion_info info;
    const int code = table_->query_cq(queue, &info);
    if (code != 0) return system_failure(-code, "query_cq", "");
    return detail::accept_completions(info.buffer, info.num_entries, info.entry_size, "query_cq");
  }
  /// A completion queue whose ring lies in memory that was exported as a DMA-BUF: the GPU's.
  [[nodiscard]] result<fid_cq*> open_completions(fid_domain* domain, fi_cq_attr* attributes,
                                                 efa_completion_memory where) const {
    where.flags |= efa_completion_memory::in_dmabuf;
    fid_cq* made = nullptr;
    const int code = table_->cq_open_ext(domain, attributes, &where, &made, nullptr);
    if (code == 0) return made;
    return device_failure(-code, "cq_open_ext", "completion queues in external memory", "2.17");
  }
  /// A completion counter that the device writes to `word` for the posting or waiting threads.
  [[nodiscard]] result<fid_cntr*> open_counter(fid_domain* domain, fi_cntr_attr* attributes,
                                               const efa_word_location& word) const {
    if (version_ < efa_gda_table::counters_since || table_->cntr_open_ext == nullptr) {
      return missing(need::library_version, "cntr_open_ext",
                     "libfabric " + text(version_) + " has no counters that the device writes, " +
                         text(efa_gda_table::counters_since) + " or newer is needed");
    }
    efa_counter_init how;
    how.flags = efa_counter_init::successes_elsewhere;
    how.successes = word;
    fid_cntr* made = nullptr;
    const int code = table_->cntr_open_ext(domain, attributes, &made, nullptr, &how);
    if (code == 0) return made;
    if (-code == ENOSYS) {
      return missing(need::library_version, "cntr_open_ext",
                     "this libfabric was built against an rdma-core without completion counters");
    }
    return device_failure(-code, "cntr_open_ext", "completion counters", "3.3");
  }
  /// How entries of `endpoint` address a peer: handle numbers are the endpoint's own.
  [[nodiscard]] result<efa::address> peer(fid_ep* endpoint, std::uint64_t address) const {
    efa::address to;
    const int code = table_->query_addr(endpoint, address, &to.handle, &to.qpn, &to.qkey);
    if (code == 0) return to;
    return system_failure(-code, "query_addr", "address " + std::to_string(address));
  }
  /// The local key of a registration; an entry has room for 24 bits.
  [[nodiscard]] result<std::uint32_t> lkey(fid_mr* memory) const {
    const std::uint64_t key = table_->get_mr_lkey(memory);
    if (key <= efa::key_mask) return static_cast<std::uint32_t>(key);
    return missing(need::device_property, "get_mr_lkey",
                   "a local key of " + std::to_string(key) + ", entries hold at most " +
                       std::to_string(efa::key_mask));
  }

 private:
  efa_gda(const efa_gda_table& table, std::uint32_t version) : table_(&table), version_(version) {}

  [[nodiscard]] static std::string text(std::uint32_t version) {
    return std::to_string(version >> 16U) + "." + std::to_string(version & 0xffffU);
  }
  /// An error of the device or its driver.
  [[nodiscard]] static failure device_failure(int code, const char* operation, const char* what,
                                              const char* driver) {
    if (code == EOPNOTSUPP || code == ENOSYS) {
      return missing(need::device_property, operation,
                     std::string("the device or its driver offers no ") + what + "; efa " + driver +
                         " or newer is needed (modinfo efa), and a device of the third generation");
    }
    return system_failure(code, operation, what);
  }

  const efa_gda_table* table_;
  std::uint32_t version_;
};

/// The same questions to rdma-core, for queue pairs made by verbs.
class efa_direct_verbs {
 public:
  /// Looks for libefa when the program runs.
  /// @par Errors  `need::library`; `need::library_version`
  [[nodiscard]] static result<efa_direct_verbs> open(const std::string& name = "libefa.so.1") {
    auto opened = library::open(name, "ibverbs-providers (rdma-core 59 or newer)");
    if (!opened) return opened.error();
    auto* queues = opened->find<efadv_query_queues>("efadv_query_qp_wqs", "EFA_1.4");
    auto* completions = opened->find<efadv_query_completions>("efadv_query_cq", "EFA_1.4");
    if (completions == nullptr) {
      completions = opened->find<efadv_query_completions>("efadv_query_cq");
    }
    if (queues == nullptr || completions == nullptr) {
      return missing(need::library_version, "dlvsym",
                     name + " has no " +
                         (queues == nullptr ? "efadv_query_qp_wqs" : "efadv_query_cq") +
                         "; rdma-core 59 or newer is needed");
    }
    return efa_direct_verbs(std::move(*opened), queues, completions);
  }

  [[nodiscard]] result<efa_send_queue> send_queue(ibv_qp* pair) const {
    efadv_queue_info send, receive;
    const int code = queues_(pair, &send, &receive, sizeof(send));
    if (code != 0) return system_failure(code, "efadv_query_qp_wqs", "");
    efa_queue_info info;
    info.buffer = send.buffer;
    info.entry_size = send.entry_size;
    info.num_entries = send.num_entries;
    info.doorbell = send.doorbell;
    info.max_batch = send.max_batch;
    return detail::accept_queue(info, "efadv_query_qp_wqs");
  }
  [[nodiscard]] result<completion_ring> completions(ibv_cq* queue) const {
    efadv_completion_info info;
    const int code = completions_(queue, &info, sizeof(info));
    if (code != 0) return system_failure(code, "efadv_query_cq", "");
    return detail::accept_completions(info.buffer, info.num_entries, info.entry_size,
                                      "efadv_query_cq");
  }

 private:
  efa_direct_verbs(library&& from, efadv_query_queues* of_pair, efadv_query_completions* of_queue)
      : library_(std::move(from)), queues_(of_pair), completions_(of_queue) {}

  library library_;
  efadv_query_queues* queues_;
  efadv_query_completions* completions_;
};

}  // namespace eptransport::gdaki::provision
