// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief A real provider's queue pair over the stand-in devices, with what a device sees of it.
#pragma once

#include <gtest/gtest.h>
#include <infiniband/efadv.h>
#include <infiniband/mlx5dv.h>
#include <infiniband/verbs.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "gdaki/providers/fake_uverbs.hpp"

namespace eptransport::gdaki::testing {

/// A device of a provider, open for the life of the process.
struct open_device {
  ibv_context* context = nullptr;
  ibv_pd* domain = nullptr;

  /// @param name  "efa_0" or "mlx5_0"
  static open_device& named(const std::string& name) {
    static open_device efa = open("efa_0");
    static open_device mlx5 = open("mlx5_0");
    return name == "efa_0" ? efa : mlx5;
  }

 private:
  static open_device open(const std::string& name) {
    fake_uverbs::plug_in();
    open_device device;
    int count = 0;
    ibv_device** list = ibv_get_device_list(&count);
    for (int i = 0; i < count; ++i) {
      if (name == ibv_get_device_name(list[i])) device.context = ibv_open_device(list[i]);
    }
    ibv_free_device_list(list);
    if (device.context != nullptr) device.domain = ibv_alloc_pd(device.context);
    EXPECT_NE(device.domain, nullptr) << name << " did not open: is its provider installed?";
    return device;
  }
};

struct destroy_handle {
  void operator()(ibv_ah* handle) const { ibv_destroy_ah(handle); }
};
using owned_handle = std::unique_ptr<ibv_ah, destroy_handle>;

/// An EFA address handle for emulated NIC `nic`.
inline owned_handle make_handle(std::uint8_t nic) {
  ibv_ah_attr attributes{};
  attributes.is_global = 1;
  attributes.port_num = 1;
  attributes.grh.dgid.raw[15] = nic;
  owned_handle handle(ibv_create_ah(open_device::named("efa_0").domain, &attributes));
  EXPECT_NE(handle, nullptr);
  return handle;
}

/// The number by which the device knows a handle.
inline std::uint16_t number_of(const owned_handle& handle) {
  efadv_ah_attr own{};
  EXPECT_EQ(efadv_query_ah(handle.get(), &own, sizeof(own)), 0);
  return own.ahn;
}

/// Sizes of a provider's queues.
struct provider_sizes {
  std::uint32_t send = 64;
  std::uint32_t receive = 16;
  std::uint32_t completions = 63;
  std::uint32_t inline_bytes = 0;
  std::uint32_t send_ranges = 1;
};

inline void to_ready(ibv_qp* qp) {
  for (const ibv_qp_state to : {IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS}) {
    ibv_qp_attr change{};
    change.qp_state = to;
    change.port_num = 1;
    change.qkey = 0x11;
    ASSERT_EQ(ibv_modify_qp(qp, &change, IBV_QP_STATE), 0);
  }
}

/// An EFA queue pair with one completion queue.
struct efa_provider {
  ibv_cq* cq = nullptr;
  ibv_qp* qp = nullptr;
  ibv_qp_ex* ex = nullptr;
  fake_uverbs::efa_queue_pair seen{};
  fake_uverbs::efa_completion_queue seen_cq{};

  /// `qp` is null if the provider does not know an operation in `operations`.
  explicit efa_provider(const provider_sizes& sizes, std::uint64_t operations) {
    open_device& device = open_device::named("efa_0");
    cq = ibv_create_cq(device.context, static_cast<int>(sizes.completions), nullptr, nullptr, 0);
    EXPECT_NE(cq, nullptr);
    seen_cq = fake_uverbs::created().efa_completion_queues.back();
    ibv_qp_init_attr_ex ask{};
    ask.send_cq = ask.recv_cq = cq;
    ask.cap = {sizes.send, sizes.receive, sizes.send_ranges, 1, sizes.inline_bytes};
    ask.qp_type = IBV_QPT_DRIVER;
    ask.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
    ask.pd = device.domain;
    ask.send_ops_flags = operations;
    ask.sq_sig_all = 1;
    efadv_qp_init_attr own{};
    own.driver_qp_type = EFADV_QP_DRIVER_TYPE_SRD;
    qp = efadv_create_qp_ex(device.context, &ask, &own, sizeof(own));
    if (qp == nullptr) return;
    ex = ibv_qp_to_qp_ex(qp);
    seen = fake_uverbs::created().efa_queue_pairs.back();
    to_ready(qp);
  }
  ~efa_provider() {
    if (qp != nullptr) ibv_destroy_qp(qp);
    if (cq != nullptr) ibv_destroy_cq(cq);
  }
  efa_provider(const efa_provider&) = delete;
  efa_provider& operator=(const efa_provider&) = delete;

  [[nodiscard]] std::uint32_t slots() const { return seen.send_bytes / 64; }
};

/// An mlx5 RC queue pair with one completion queue.
struct mlx5_provider {
  ibv_cq* cq = nullptr;
  ibv_qp* qp = nullptr;
  mlx5dv_qp dv{};
  mlx5dv_cq dv_cq{};
  fake_uverbs::mlx5_queue_pair seen{};

  explicit mlx5_provider(const provider_sizes& sizes) {
    open_device& device = open_device::named("mlx5_0");
    cq = ibv_create_cq(device.context, static_cast<int>(sizes.completions), nullptr, nullptr, 0);
    ibv_qp_init_attr ask{};
    ask.send_cq = ask.recv_cq = cq;
    ask.cap = {sizes.send, sizes.receive, sizes.send_ranges, 1, sizes.inline_bytes};
    ask.qp_type = IBV_QPT_RC;
    qp = ibv_create_qp(device.domain, &ask);
    EXPECT_NE(qp, nullptr);
    seen = fake_uverbs::created().mlx5_queue_pairs.back();
    to_ready(qp);
    mlx5dv_obj objects{};
    objects.qp = {qp, &dv};
    objects.cq = {cq, &dv_cq};
    EXPECT_EQ(mlx5dv_init_obj(&objects, MLX5DV_OBJ_QP | MLX5DV_OBJ_CQ), 0);
  }
  ~mlx5_provider() {
    if (qp != nullptr) ibv_destroy_qp(qp);
    if (cq != nullptr) ibv_destroy_cq(cq);
  }
  mlx5_provider(const mlx5_provider&) = delete;
  mlx5_provider& operator=(const mlx5_provider&) = delete;

  [[nodiscard]] const std::byte* ring() const { return static_cast<const std::byte*>(dv.sq.buf); }
  /// The two halves of the doorbell register, which libmlx5 uses in turn.
  [[nodiscard]] const void* half(int which) const {
    return static_cast<const std::byte*>(dv.bf.reg) + std::size_t(which) * dv.bf.size;
  }
};

}  // namespace eptransport::gdaki::testing
