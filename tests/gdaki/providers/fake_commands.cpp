// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Answers to the uverbs write commands that the providers send.
#include <rdma/efa-abi.h>
#include <rdma/ib_user_verbs.h>
#include <rdma/mlx5-abi.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <sys/eventfd.h>

#include "gdaki/providers/fake_uverbs.hpp"

namespace eptransport::fake_uverbs {
namespace {

constexpr std::uint32_t page = 4096;
constexpr std::uint32_t send_doorbell_offset = 0x80;
constexpr std::uint32_t receive_doorbell_offset = 0x40;
constexpr std::uint32_t send_ring_offset = 0x100;
constexpr std::uint32_t all_registers = 16;
constexpr std::uint32_t first_register = 4;  // mlx5: lower ones are shared or slow

struct hidden_state {
  tables created;
  std::map<std::uint64_t, std::byte*> mappings;
  std::uint64_t next_key = 0x100000;
  std::uint32_t next_handle = 1;
};

hidden_state& state() {
  static hidden_state the_state;
  return the_state;
}

std::uint64_t new_key() {
  return state().next_key += 0x1000000;
}
std::uint32_t new_handle() {
  return state().next_handle++;
}

/// One command: the core part and the provider's part of request and response.
class exchange {
 public:
  exchange(const std::byte* command, std::size_t bytes) : bytes_(bytes) {
    const auto* head = reinterpret_cast<const ib_uverbs_cmd_hdr*>(command);
    number = head->command & 0xffU;
    extended = (head->command & IB_USER_VERBS_CMD_FLAG_EXTENDED) != 0;
    core_ = command + sizeof(ib_uverbs_cmd_hdr);
    if (extended) {
      const auto* more = reinterpret_cast<const ib_uverbs_ex_cmd_hdr*>(core_);
      core_ += sizeof(ib_uverbs_ex_cmd_hdr);
      driver_ = core_ + std::size_t{head->in_words} * 8;
      response_ = reinterpret_cast<std::byte*>(more->response);
      core_response_bytes_ = std::size_t{head->out_words} * 8;
      response_bytes_ = core_response_bytes_ + std::size_t{more->provider_out_words} * 8;
    } else {
      std::uint64_t address = 0;
      std::memcpy(&address, core_, sizeof(address));
      response_ = reinterpret_cast<std::byte*>(address);
      response_bytes_ = std::size_t{head->out_words} * 4;
    }
  }

  unsigned number = 0;
  bool extended = false;

  template <class T>
  [[nodiscard]] const T& request() const {
    return *reinterpret_cast<const T*>(core_);
  }
  /// The provider's part of the request, behind a core part of type `Core`.
  template <class Core, class T>
  [[nodiscard]] const T& driver_request() const {
    return *reinterpret_cast<const T*>(extended ? driver_ : core_ + sizeof(Core));
  }
  template <class T>
  [[nodiscard]] T& response() const {
    return *reinterpret_cast<T*>(response_);
  }
  /// Writes the provider's part, behind a core part of type `Core`; older providers take less.
  template <class Core, class T>
  void driver_response(const T& value) const {
    const std::size_t at = extended ? core_response_bytes_ : sizeof(Core);
    if (at >= response_bytes_) return;
    std::memset(response_ + at, 0, response_bytes_ - at);
    std::memcpy(response_ + at, &value, std::min(sizeof(T), response_bytes_ - at));
  }
  void clear_response() const { std::memset(response_, 0, response_bytes_); }
  [[nodiscard]] std::uint32_t core_response_bytes() const {
    return static_cast<std::uint32_t>(core_response_bytes_);
  }
  [[nodiscard]] long done() const { return static_cast<long>(bytes_); }

 private:
  std::size_t bytes_;
  const std::byte* core_ = nullptr;
  const std::byte* driver_ = nullptr;
  std::byte* response_ = nullptr;
  std::size_t response_bytes_ = 0;
  std::size_t core_response_bytes_ = 0;
};

void get_context(bool efa, const exchange& x) {
  auto& core = x.response<ib_uverbs_get_context_resp>();
  core.async_fd = static_cast<__u32>(eventfd(0, EFD_CLOEXEC));
  core.num_comp_vectors = 1;
  if (efa) {
    efa_ibv_alloc_ucontext_resp own{};
    own.cmds_supp_udata_mask =
        EFA_USER_CMDS_SUPP_UDATA_QUERY_DEVICE | EFA_USER_CMDS_SUPP_UDATA_CREATE_AH;
    own.sub_cqs_per_cq = 1;
    own.inline_buf_size = 32;
    own.max_llq_size = 64 * 4096;
    own.max_tx_batch = max_batch;
    x.driver_response<ib_uverbs_get_context_resp>(own);
    return;
  }
  mlx5_ib_alloc_ucontext_resp own{};
  own.qp_tab_size = 1U << 18;
  own.bf_reg_size = 512;
  own.tot_bfregs = all_registers;
  own.cache_line_size = 64;
  own.max_sq_desc_sz = 1024;
  own.max_rq_desc_sz = 512;
  own.max_send_wqebb = 32768;
  own.max_recv_wr = 32768;
  own.max_srq_recv_wr = 32768;
  own.num_ports = 1;
  own.response_length = sizeof(own);
  own.cqe_version = 1;
  own.cmds_supp_uhw = MLX5_USER_CMDS_SUPP_UHW_QUERY_DEVICE | MLX5_USER_CMDS_SUPP_UHW_CREATE_AH;
  own.log_uar_size = 12;
  own.num_uars_per_page = 1;
  x.driver_response<ib_uverbs_get_context_resp>(own);
}

void query_device(bool efa, const exchange& x) {
  auto& core = x.extended ? x.response<ib_uverbs_ex_query_device_resp>().base
                          : x.response<ib_uverbs_query_device_resp>();
  core.max_mr_size = ~std::uint64_t{0};
  core.page_size_cap = 0xfffff000;
  core.max_qp = core.max_cq = core.max_pd = core.max_ah = 256;
  core.max_qp_wr = 32768;
  core.max_sge = efa ? 2 : 30;
  core.max_sge_rd = efa ? 1 : 30;
  core.max_cqe = 1 << 20;
  core.max_mr = 1 << 20;
  core.atomic_cap = efa ? 0 : 1;
  core.phys_port_cnt = 1;
  if (!x.extended) return;
  x.response<ib_uverbs_ex_query_device_resp>().response_length = x.core_response_bytes();
  if (!efa) return;
  constexpr std::uint32_t rdma_write = 1U << 5U;  // newer than the packaged header
  efa_ibv_ex_query_device_resp own{};
  own.max_sq_wr = own.max_rq_wr = 4096;
  own.max_sq_sge = 2;
  own.max_rq_sge = 1;
  own.max_rdma_size = 1U << 30;
  own.device_caps = EFA_QUERY_DEVICE_CAPS_RDMA_READ | EFA_QUERY_DEVICE_CAPS_RNR_RETRY | rdma_write;
  x.driver_response<ib_uverbs_ex_query_device_resp>(own);
}

void query_port(const exchange& x) {
  x.clear_response();
  auto& port = x.response<ib_uverbs_query_port_resp>();
  port.state = 4;  // active
  port.max_mtu = port.active_mtu = 5;
  port.gid_tbl_len = 1;
  port.link_layer = 1;
}

void alloc_pd(bool efa, const exchange& x) {
  x.response<ib_uverbs_alloc_pd_resp>().pd_handle = new_handle();
  if (efa) {
    x.driver_response<ib_uverbs_alloc_pd_resp>(efa_ibv_alloc_pd_resp{});
  } else {
    x.driver_response<ib_uverbs_alloc_pd_resp>(mlx5_ib_alloc_pd_resp{7});
  }
}

void register_memory(const exchange& x) {
  const auto& ask = x.request<ib_uverbs_reg_mr>();
  auto& core = x.response<ib_uverbs_reg_mr_resp>();
  core.mr_handle = new_handle();
  core.lkey = core.rkey = 0x1100 + core.mr_handle;
  state().created.registrations.push_back({ask.start, ask.length, core.lkey, ask.access_flags});
}

void create_handle(bool efa, const exchange& x) {
  x.response<ib_uverbs_create_ah_resp>().ah_handle = new_handle();
  if (!efa) return;
  std::vector<std::uint8_t>& handles = state().created.handles;
  efa_ibv_create_ah_resp own{};
  own.efa_address_handle = static_cast<__u16>(first_handle + handles.size());
  handles.push_back(x.request<ib_uverbs_create_ah>().attr.grh.dgid[15]);
  x.driver_response<ib_uverbs_create_ah_resp>(own);
}

void create_completion_queue(bool efa, const exchange& x) {
  const std::uint32_t entries =
      x.extended ? x.request<ib_uverbs_ex_create_cq>().cqe : x.request<ib_uverbs_create_cq>().cqe;
  auto& core = x.extended ? x.response<ib_uverbs_ex_create_cq_resp>().base
                          : x.response<ib_uverbs_create_cq_resp>();
  core.cq_handle = new_handle();
  core.cqe = entries;
  if (x.extended) {
    x.response<ib_uverbs_ex_create_cq_resp>().response_length = x.core_response_bytes();
  }
  if (!efa) {
    x.driver_response<ib_uverbs_create_cq_resp>(mlx5_ib_create_cq_resp{0x40 + core.cq_handle, 0});
    return;
  }
  const auto& ask = x.driver_request<ib_uverbs_create_cq, efa_ibv_create_cq>();
  std::vector<efa_completion_queue>& queues = state().created.efa_completion_queues;
  queues.push_back({entries, ask.cq_entry_size, new_key()});
  efa_ibv_create_cq_resp own{};
  own.q_mmap_key = queues.back().key;
  own.q_mmap_size = (std::uint64_t{entries} * ask.cq_entry_size + page - 1) / page * page;
  own.cq_idx = static_cast<__u16>(queues.size() - 1);
  x.driver_response<ib_uverbs_create_cq_resp>(own);
}

void create_efa_queue_pair(const exchange& x, ib_uverbs_create_qp_resp& core) {
  const auto& ask = x.driver_request<ib_uverbs_create_qp, efa_ibv_create_qp>();
  std::vector<efa_queue_pair>& pairs = state().created.efa_queue_pairs;
  efa_queue_pair& qp = pairs.emplace_back();
  qp.qpn = core.qpn = static_cast<__u32>(2 + pairs.size());
  qp.send_bytes = ask.sq_ring_size;
  qp.receive_bytes = ask.rq_ring_size;
  qp.send_key = new_key();
  qp.send_doorbell_key = new_key();
  qp.receive_key = new_key();
  qp.receive_doorbell_key = new_key();
  efa_ibv_create_qp_resp own{};
  own.sq_db_mmap_key = qp.send_doorbell_key;
  own.sq_db_offset = send_doorbell_offset;
  own.rq_db_mmap_key = qp.receive_doorbell_key;
  own.rq_db_offset = receive_doorbell_offset;
  own.llq_desc_mmap_key = qp.send_key;
  own.llq_desc_offset = send_ring_offset;
  own.rq_mmap_key = qp.receive_key;
  own.rq_mmap_size = (ask.rq_ring_size + page - 1) / page * page;
  x.driver_response<ib_uverbs_create_qp_resp>(own);
}

void create_mlx5_queue_pair(const exchange& x, ib_uverbs_create_qp_resp& core) {
  const auto& ask = x.driver_request<ib_uverbs_create_qp, mlx5_ib_create_qp>();
  std::vector<mlx5_queue_pair>& pairs = state().created.mlx5_queue_pairs;
  core.qpn = static_cast<__u32>(0x1a2b3 + pairs.size());
  pairs.push_back({core.qpn, ask.uidx});
  mlx5_ib_create_qp_resp own{};
  // Queue pairs that live at the same time have registers of their own.
  own.bfreg_index =
      static_cast<__u32>(first_register + (pairs.size() - 1) % (all_registers - first_register));
  x.driver_response<ib_uverbs_create_qp_resp>(own);
}

template <class Request>
void grant(const Request& ask, ib_uverbs_create_qp_resp& core) {
  core.qp_handle = new_handle();
  core.max_send_wr = ask.max_send_wr;
  core.max_recv_wr = ask.max_recv_wr;
  core.max_send_sge = ask.max_send_sge;
  core.max_recv_sge = ask.max_recv_sge;
  core.max_inline_data = ask.max_inline_data;
}

void create_queue_pair(bool efa, const exchange& x) {
  auto& core = x.extended ? x.response<ib_uverbs_ex_create_qp_resp>().base
                          : x.response<ib_uverbs_create_qp_resp>();
  if (x.extended) {
    x.response<ib_uverbs_ex_create_qp_resp>().response_length = x.core_response_bytes();
    grant(x.request<ib_uverbs_ex_create_qp>(), core);
  } else {
    grant(x.request<ib_uverbs_create_qp>(), core);
  }
  if (efa) {
    create_efa_queue_pair(x, core);
  } else {
    create_mlx5_queue_pair(x, core);
  }
}

void modify_queue_pair(const exchange& x) {
  const auto& ask = x.request<ib_uverbs_modify_qp>();
  state().created.modifications.push_back(
      {ask.attr_mask, ask.qp_state, ask.qp_access_flags, ask.dest_qp_num, ask.sq_psn, ask.rq_psn});
}

[[nodiscard]] std::byte* mapping(std::uint64_t key) {
  return state().mappings.at(key);
}

}  // namespace

tables& created() {
  return state().created;
}

void mapped(std::uint64_t key, std::byte* where) {
  state().mappings[key] = where;
}

std::byte* efa_queue_pair::send_ring() const {
  return mapping(send_key) + send_ring_offset;
}
std::uint32_t* efa_queue_pair::send_doorbell() const {
  return reinterpret_cast<std::uint32_t*>(mapping(send_doorbell_key) + send_doorbell_offset);
}
std::byte* efa_queue_pair::receive_ring() const {
  return mapping(receive_key);
}
std::uint32_t* efa_queue_pair::receive_doorbell() const {
  return reinterpret_cast<std::uint32_t*>(mapping(receive_doorbell_key) + receive_doorbell_offset);
}
std::byte* efa_completion_queue::ring() const {
  return mapping(key);
}

long answer(bool efa, const std::byte* command, std::size_t bytes) {
  const exchange x(command, bytes);
  switch (x.number) {
    case IB_USER_VERBS_CMD_GET_CONTEXT:
      get_context(efa, x);
      break;
    case IB_USER_VERBS_CMD_QUERY_DEVICE:
      query_device(efa, x);
      break;
    case IB_USER_VERBS_CMD_QUERY_PORT:
      query_port(x);
      break;
    case IB_USER_VERBS_CMD_ALLOC_PD:
      alloc_pd(efa, x);
      break;
    case IB_USER_VERBS_CMD_REG_MR:
      register_memory(x);
      break;
    case IB_USER_VERBS_CMD_CREATE_AH:
      create_handle(efa, x);
      break;
    case IB_USER_VERBS_CMD_CREATE_CQ:
      create_completion_queue(efa, x);
      break;
    case IB_USER_VERBS_CMD_CREATE_QP:
      create_queue_pair(efa, x);
      break;
    case IB_USER_VERBS_CMD_MODIFY_QP:
      modify_queue_pair(x);
      break;
    case IB_USER_VERBS_CMD_DEALLOC_PD:
    case IB_USER_VERBS_CMD_DEREG_MR:
    case IB_USER_VERBS_CMD_DESTROY_AH:
      break;
    case IB_USER_VERBS_CMD_DESTROY_CQ:
    case IB_USER_VERBS_CMD_DESTROY_QP:
      x.clear_response();
      break;
    default:
      errno = EOPNOTSUPP;
      return -1;
  }
  return x.done();
}

}  // namespace eptransport::fake_uverbs
