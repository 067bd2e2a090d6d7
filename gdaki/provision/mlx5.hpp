// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Real mlx5 queues by verbs: a reliable connection whose rings and registers a kernel may
///        use, from an open device to ready-to-send.
///
/// Rings, doorbell records and completions are libmlx5's own host memory; `gpu.cuh` maps them and
/// the register into a GPU. Link with `ibverbs` and `mlx5` (rdma-core 44 or newer).
///
/// @par Source  ibv_create_qp(3), ibv_modify_qp(3), mlx5dv_init_obj(3)
#pragma once

#include <eptransport/core/config.hpp>
#include <eptransport/core/result.hpp>
#include <eptransport/gdaki/format.hpp>
#include <eptransport/gdaki/provision/need.hpp>

#include <infiniband/mlx5dv.h>
#include <infiniband/verbs.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

namespace eptransport::gdaki::provision {

/// Which device and port.
struct mlx5_wish {
  std::string device;  ///< e.g. "mlx5_0"; empty: the first mlx5 device
  std::uint8_t port = 1;
  std::uint8_t gid_index = 0;  ///< RoCE: that of the address to use
};

/// What the other end must know of a queue pair; exchanged out of band.
struct mlx5_address {
  std::uint32_t qpn = 0;
  std::uint32_t first_packet = 0;
  std::uint16_t lid = 0;  ///< 0 on RoCE
  std::array<std::uint8_t, 16> gid{};
};

namespace detail {

struct free_context {
  void operator()(ibv_context* c) const noexcept { ibv_close_device(c); }
};
struct free_domain {
  void operator()(ibv_pd* d) const noexcept { ibv_dealloc_pd(d); }
};
struct free_completions {
  void operator()(ibv_cq* q) const noexcept { ibv_destroy_cq(q); }
};
struct free_pair {
  void operator()(ibv_qp* q) const noexcept { ibv_destroy_qp(q); }
};
struct free_memory {
  void operator()(ibv_mr* m) const noexcept { ibv_dereg_mr(m); }
};

/// The device list, freed with the object.
class device_list {
 public:
  device_list() : devices_(ibv_get_device_list(&count_)) {}
  ~device_list() {
    if (devices_ != nullptr) ibv_free_device_list(devices_);
  }
  device_list(const device_list&) = delete;
  device_list& operator=(const device_list&) = delete;

  [[nodiscard]] int count() const noexcept { return devices_ == nullptr ? 0 : count_; }
  [[nodiscard]] ibv_device* at(int i) const noexcept { return devices_[i]; }

 private:
  int count_ = 0;
  ibv_device** devices_;
};

}  // namespace detail

/// Where memory lies, for errors that say what is missing.
enum class memory_place {
  host,
  gpu,  ///< a CUDA address; needs the nvidia_peermem module
};

/// Registered memory.
class mlx5_memory {
 public:
  explicit mlx5_memory(ibv_mr* made) noexcept : region_(made) {}
  [[nodiscard]] std::uint32_t lkey() const noexcept { return region_->lkey; }
  [[nodiscard]] std::uint32_t rkey() const noexcept { return region_->rkey; }

 private:
  std::unique_ptr<ibv_mr, detail::free_memory> region_;
};

/// An open mlx5 device with a protection domain.
///
/// @par Threads  One at a time.
class mlx5_device {
 public:
  /// @par Errors  `need::kernel_module` (no RDMA device at all), `need::device` (with the names
  ///              that there are), `need::device_property` (not mlx5, no atomics, port down); errno
  [[nodiscard]] static result<mlx5_device> open(const mlx5_wish& wish);

  /// Memory that peers may write and add to.
  /// @par Errors  `need::kernel_module` where GPU memory cannot be pinned; errno
  [[nodiscard]] result<mlx5_memory> register_memory(void* first, std::uint64_t bytes,
                                                    memory_place where) const;
  /// The same for GPU memory that was exported as a DMA-BUF.
  /// @param address  by which requests name the first byte
  [[nodiscard]] result<mlx5_memory> register_dmabuf(int fd, std::uint64_t offset,
                                                    std::uint64_t bytes,
                                                    std::uint64_t address) const;

  [[nodiscard]] ibv_context* context() const noexcept { return context_.get(); }
  [[nodiscard]] ibv_pd* domain() const noexcept { return domain_.get(); }
  [[nodiscard]] const ibv_device_attr& limits() const noexcept { return limits_; }
  [[nodiscard]] const ibv_port_attr& port() const noexcept { return port_; }
  [[nodiscard]] const mlx5_wish& wish() const noexcept { return wish_; }

 private:
  mlx5_device() = default;
  result<void> look();

  static constexpr int rights =
      IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC;

  mlx5_wish wish_;
  std::unique_ptr<ibv_context, detail::free_context> context_;
  std::unique_ptr<ibv_pd, detail::free_domain> domain_;
  ibv_device_attr limits_{};
  ibv_port_attr port_{};
};

/// One reliable connection.
///
/// @par Threads  One at a time.
class mlx5_queue_pair {
 public:
  /// @param slots  requests in flight, a power of two; the ring may get more basic blocks
  /// @par Errors   `need::device_property` with both numbers; errno
  [[nodiscard]] static result<mlx5_queue_pair> create(const mlx5_device& device,
                                                      std::uint32_t slots);

  /// What the other end needs for its `connect`.
  [[nodiscard]] const mlx5_address& address() const noexcept { return address_; }
  /// Through INIT and RTR to RTS.
  /// @par Errors  errno, with the state that was not reached
  [[nodiscard]] result<void> connect(const mlx5_address& to);

  /// For `send_queue` and `polled_completion`, as host addresses. `ring_every` and `id` are yours.
  [[nodiscard]] send_queue_attributes attributes() const noexcept;
  [[nodiscard]] completion_ring completions() const noexcept;
  [[nodiscard]] ibv_qp* verbs() const noexcept { return pair_.get(); }

 private:
  mlx5_queue_pair() = default;
  result<void> build(const mlx5_device& device, std::uint32_t requests, std::uint32_t completions);
  result<void> move_to(ibv_qp_attr& change, int mask, const char* state);

  std::unique_ptr<ibv_cq, detail::free_completions> completions_;
  std::unique_ptr<ibv_qp, detail::free_pair> pair_;  ///< after its completion queue, freed before
  mlx5dv_qp queue_{};
  mlx5dv_cq completion_queue_{};
  mlx5_address address_{};
  std::uint8_t port_ = 1;
  std::uint8_t gid_index_ = 0;
  bool global_ = false;
  ibv_mtu mtu_ = IBV_MTU_1024;
};

}  // namespace eptransport::gdaki::provision

#include <eptransport/gdaki/provision/detail/mlx5_impl.hpp>
