// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief How an mlx5 device is opened and a connection made.
#pragma once

#include <eptransport/gdaki/provision/mlx5.hpp>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <unistd.h>
#include <utility>

namespace eptransport::gdaki::provision {

namespace detail {

/// Whether the kernel has a module, built in or loaded.
[[nodiscard]] inline bool has_module(const std::string& name) {
  return access(("/sys/module/" + name).c_str(), F_OK) == 0;
}

/// The chosen device of the list, or null; `names` gets all that there are.
[[nodiscard]] inline ibv_device* choose(const device_list& all, const std::string& name,
                                        std::string& names) {
  for (int i = 0; i < all.count(); ++i) {
    const std::string one = ibv_get_device_name(all.at(i));
    names += (names.empty() ? "" : ", ") + one;
    if (name.empty() ? mlx5dv_is_supported(all.at(i)) : name == one) return all.at(i);
  }
  return nullptr;
}

}  // namespace detail

inline result<mlx5_device> mlx5_device::open(const mlx5_wish& wish) {
  const detail::device_list all;
  if (all.count() == 0) {
    const char* module = detail::has_module("ib_uverbs") ? "mlx5_ib" : "ib_uverbs";
    return missing(need::kernel_module, "ibv_get_device_list",
                   std::string("no RDMA device is known to the kernel; load ") + module +
                       " (modprobe), and in a container pass /dev/infiniband");
  }
  std::string names;
  ibv_device* chosen = detail::choose(all, wish.device, names);
  if (chosen == nullptr) {
    return missing(need::device, "ibv_get_device_list",
                   (wish.device.empty() ? "no mlx5 device" : "no device " + wish.device) +
                       "; there are " + names);
  }
  if (!mlx5dv_is_supported(chosen)) {
    return missing(need::device_property, "mlx5dv_is_supported",
                   wish.device + " is no mlx5 device, or libmlx5 is not installed");
  }
  mlx5_device made;
  made.wish_ = wish;
  made.context_.reset(ibv_open_device(chosen));
  if (made.context_ == nullptr) {
    return system_failure(errno, "ibv_open_device", ibv_get_device_name(chosen));
  }
  if (auto looked = made.look(); !looked) return looked.error();
  made.domain_.reset(ibv_alloc_pd(made.context_.get()));
  if (made.domain_ == nullptr) return system_failure(errno, "ibv_alloc_pd", wish.device);
  return result<mlx5_device>(std::move(made));
}

/// Limits, atomics, the port.
inline result<void> mlx5_device::look() {
  if (const int code = ibv_query_device(context_.get(), &limits_); code != 0) {
    return system_failure(code, "ibv_query_device", wish_.device);
  }
  if (limits_.atomic_cap == IBV_ATOMIC_NONE) {
    return missing(need::device_property, "ibv_query_device",
                   wish_.device + " has no atomics; signals need a 64-bit fetch-and-add");
  }
  if (const int code = ibv_query_port(context_.get(), wish_.port, &port_); code != 0) {
    return system_failure(code, "ibv_query_port", "port " + std::to_string(wish_.port));
  }
  if (port_.state != IBV_PORT_ACTIVE) {
    return missing(need::device_property, "ibv_query_port",
                   "port " + std::to_string(wish_.port) + " is " + ibv_port_state_str(port_.state) +
                       ", not active; check link and subnet");
  }
  return {};
}

inline result<mlx5_memory> mlx5_device::register_memory(void* first, std::uint64_t bytes,
                                                        memory_place where) const {
  ibv_mr* made = ibv_reg_mr(domain_.get(), first, bytes, rights);
  if (made != nullptr) return mlx5_memory(made);
  const int code = errno;
  const std::string what = std::to_string(bytes) + " bytes";
  if (where == memory_place::gpu && !detail::has_module("nvidia_peermem")) {
    return missing(need::kernel_module, "ibv_reg_mr",
                   what + " of GPU memory; load nvidia_peermem (modprobe), or use register_dmabuf");
  }
  if (code == ENOMEM) {
    return missing(need::driver_setting, "ibv_reg_mr",
                   what + "; the locked-memory limit (ulimit -l) may be too low");
  }
  return system_failure(code, "ibv_reg_mr", what);
}

inline result<mlx5_memory> mlx5_device::register_dmabuf(int fd, std::uint64_t offset,
                                                        std::uint64_t bytes,
                                                        std::uint64_t address) const {
  ibv_mr* made = ibv_reg_dmabuf_mr(domain_.get(), offset, bytes, address, fd, rights);
  if (made != nullptr) return mlx5_memory(made);
  const int code = errno;
  if (code == EOPNOTSUPP) {
    return missing(need::kernel_module, "ibv_reg_dmabuf_mr",
                   "the kernel's mlx5_ib takes no DMA-BUF; Linux 5.12 or newer is needed");
  }
  return system_failure(code, "ibv_reg_dmabuf_mr", std::to_string(bytes) + " bytes");
}

inline result<mlx5_queue_pair> mlx5_queue_pair::create(const mlx5_device& device,
                                                       std::uint32_t slots) {
  const auto limit = static_cast<std::uint32_t>(device.limits().max_qp_wr);
  const auto too_many = [](std::uint32_t asked, std::uint32_t most) {
    return missing(need::device_property, "ibv_create_qp",
                   std::to_string(asked) + " slots of a send queue, at most " +
                       std::to_string(most) + " and a power of two");
  };
  if (slots == 0 || (slots & (slots - 1)) != 0 || slots > limit) return too_many(slots, limit);
  mlx5_queue_pair made;
  if (auto built = made.build(device, slots, slots); !built) return built.error();
  // The provider gives a ring more basic blocks than requests: completions must hold one of each.
  const std::uint32_t blocks = made.queue_.sq.wqe_cnt;
  if (made.completion_queue_.cqe_cnt < blocks) {
    if (auto built = made.build(device, slots, blocks); !built) return built.error();
  }
  if (made.completion_queue_.cqe_cnt < made.queue_.sq.wqe_cnt) {
    return too_many(made.queue_.sq.wqe_cnt, made.completion_queue_.cqe_cnt);
  }
  if (made.queue_.sq.stride != mlx5::block_bytes || made.queue_.sq.wqe_cnt > 32768) {
    return too_many(made.queue_.sq.wqe_cnt, 32768);
  }
  if (made.completion_queue_.cqe_size != mlx5::completion_bytes) {
    return missing(need::device_property, "mlx5dv_init_obj",
                   "completions of " + std::to_string(made.completion_queue_.cqe_size) +
                       " bytes; unset MLX5_CQE_SIZE");
  }
  made.port_ = device.wish().port;
  made.gid_index_ = device.wish().gid_index;
  made.global_ = device.port().link_layer == IBV_LINK_LAYER_ETHERNET;
  made.mtu_ = device.port().active_mtu;
  made.address_.qpn = made.pair_->qp_num;
  made.address_.lid = device.port().lid;
  ibv_gid gid{};
  if (made.global_) {
    if (ibv_query_gid(device.context(), made.port_, made.gid_index_, &gid) != 0) {
      return missing(
          need::device_property, "ibv_query_gid",
          "port " + std::to_string(made.port_) + " has no GID " + std::to_string(made.gid_index_));
    }
    std::memcpy(made.address_.gid.data(), gid.raw, sizeof(gid.raw));
  }
  return result<mlx5_queue_pair>(std::move(made));
}

/// Both queues, and what libmlx5 says of them.
inline result<void> mlx5_queue_pair::build(const mlx5_device& device, std::uint32_t requests,
                                           std::uint32_t completions) {
  pair_.reset();
  // One entry fewer: the provider rounds up to a power of two above what was asked for.
  const int entries = completions > 1 ? static_cast<int>(completions) - 1 : 1;
  completions_.reset(ibv_create_cq(device.context(), entries, nullptr, nullptr, 0));
  if (completions_ == nullptr) {
    return system_failure(errno, "ibv_create_cq", std::to_string(completions) + " entries");
  }
  ibv_qp_init_attr ask{};
  ask.send_cq = ask.recv_cq = completions_.get();
  ask.cap = {requests, 1, 1, 1, 0};
  ask.qp_type = IBV_QPT_RC;
  pair_.reset(ibv_create_qp(device.domain(), &ask));
  if (pair_ == nullptr) {
    return system_failure(errno, "ibv_create_qp", std::to_string(requests) + " requests");
  }
  mlx5dv_obj objects{};
  objects.qp = {pair_.get(), &queue_};
  objects.cq = {completions_.get(), &completion_queue_};
  const int code = mlx5dv_init_obj(&objects, MLX5DV_OBJ_QP | MLX5DV_OBJ_CQ);
  return code == 0 ? result<void>() : system_failure(code, "mlx5dv_init_obj", "");
}

inline result<void> mlx5_queue_pair::move_to(ibv_qp_attr& change, int mask, const char* state) {
  const int code = ibv_modify_qp(pair_.get(), &change, mask | IBV_QP_STATE);
  if (code == 0) return {};
  return system_failure(code, "ibv_modify_qp",
                        "queue pair " + std::to_string(pair_->qp_num) + " to " + state);
}

inline result<void> mlx5_queue_pair::connect(const mlx5_address& to) {
  ibv_qp_attr change{};
  change.qp_state = IBV_QPS_INIT;
  change.port_num = port_;
  change.qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC;
  constexpr int init = IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
  if (auto moved = move_to(change, init, "INIT"); !moved) return moved;

  change = {};
  change.qp_state = IBV_QPS_RTR;
  change.path_mtu = mtu_;
  change.dest_qp_num = to.qpn;
  change.rq_psn = to.first_packet;
  change.max_dest_rd_atomic = 16;
  change.min_rnr_timer = 12;
  change.ah_attr.dlid = to.lid;
  change.ah_attr.port_num = port_;
  if (global_) {
    change.ah_attr.is_global = 1;
    change.ah_attr.grh.sgid_index = gid_index_;
    change.ah_attr.grh.hop_limit = 64;
    std::memcpy(change.ah_attr.grh.dgid.raw, to.gid.data(), to.gid.size());
  }
  constexpr int receive = IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                          IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
  if (auto moved = move_to(change, receive, "RTR"); !moved) return moved;

  change = {};
  change.qp_state = IBV_QPS_RTS;
  change.sq_psn = address_.first_packet;
  change.max_rd_atomic = 16;
  change.timeout = 14;  // 67 ms, seven times: a dead peer is an error within half a second
  change.retry_cnt = 7;
  change.rnr_retry = 7;
  constexpr int send = IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
                       IBV_QP_RNR_RETRY;
  return move_to(change, send, "RTS");
}

inline send_queue_attributes mlx5_queue_pair::attributes() const noexcept {
  send_queue_attributes a;
  a.ring = static_cast<std::byte*>(queue_.sq.buf);
  a.slots = queue_.sq.wqe_cnt;
  a.qpn = pair_->qp_num;
  a.home = ring_home::host;
  a.record = reinterpret_cast<std::uint32_t*>(queue_.dbrec) + MLX5_SND_DBR;
  a.doorbell = queue_.bf.reg;
  return a;
}

inline completion_ring mlx5_queue_pair::completions() const noexcept {
  return {static_cast<std::byte*>(completion_queue_.buf), completion_queue_.cqe_cnt,
          completion_queue_.cqe_size, reinterpret_cast<std::uint32_t*>(completion_queue_.dbrec)};
}

}  // namespace eptransport::gdaki::provision
