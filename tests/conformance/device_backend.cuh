// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief GPU transports as backends of the conformance suite: every call is a kernel of one warp.
#pragma once

#include <eptransport/core/config.hpp>
#include <eptransport/core/cuda_worker.cuh>
#include <eptransport/core/host_executor.hpp>
#include <eptransport/core/transport.hpp>

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "cuda/device_buffer.cuh"
#include "harness.hpp"

namespace conformance {

/// One call of a device view, and what it returned.
struct device_call {
  enum class kind : std::uint32_t { now, pointer, put, signal, read, wait, flush, submit };
  kind what;
  std::uint32_t channel = 0;
  eptransport::put_request request{};
  std::uint64_t at_least = 0;
  std::uint64_t deadline_ns = 0;
};

/// What the call returns, as a number: the status, or the value of `now`, `pointer` and `read`.
template <class View>
[[nodiscard]] EPT_DEVICE std::uint64_t make_device_call(const View& view, const device_call& call,
                                                        const eptransport::cuda_warp& warp) {
  const auto status = [&](op_status s) { return static_cast<std::uint64_t>(s); };
  switch (call.what) {
    case device_call::kind::now:
      return view.now_ns();
    case device_call::kind::pointer:
      return reinterpret_cast<std::uintptr_t>(
          view.peer_pointer(call.request.peer, call.request.dst_offset, call.request.bytes));
    case device_call::kind::put:
      return status(view.put(warp, call.channel, call.request, call.deadline_ns));
    case device_call::kind::signal:
      return status(view.signal(warp, call.channel, call.request.peer, call.request.signal,
                                call.deadline_ns));
    case device_call::kind::read:
      return view.read_signal(call.request.signal);
    case device_call::kind::wait:
      return status(view.wait_signal(warp, call.request.signal, call.at_least, call.deadline_ns));
    case device_call::kind::flush:
      return status(view.flush(warp, call.channel, call.deadline_ns));
    case device_call::kind::submit:
      view.submit(warp, call.channel);
      return 0;
  }
  return 0;
}

/// @param returned  pinned
template <class View>
EPT_KERNEL void run_device_call(View view, device_call call, std::uint64_t* returned) {
  const std::uint64_t out = make_device_call(view, call, eptransport::cuda_warp(0, 1, nullptr));
  if (threadIdx.x == 0) *returned = out;
}

/// A rank's stream and the word its calls return in.
///
/// @par Threads  One host thread at a time, on the rank's device.
class device_caller {
 public:
  explicit device_caller(int device) : device_(device) {
    eptransport::support::must(cudaSetDevice(device));
    eptransport::support::must(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    void* word = nullptr;
    eptransport::support::must(
        cudaHostAlloc(&word, sizeof(std::uint64_t), cudaHostAllocMapped | cudaHostAllocPortable));
    returned_ = static_cast<std::uint64_t*>(word);
  }
  device_caller(const device_caller&) = delete;
  device_caller& operator=(const device_caller&) = delete;
  ~device_caller() {
    (void)cudaStreamDestroy(stream_);
    (void)cudaFreeHost(returned_);
  }

  template <class View>
  std::uint64_t run(const View& view, const device_call& call) {
    eptransport::support::must(cudaSetDevice(device_));
    *returned_ = ~std::uint64_t{0};
    run_device_call<View><<<1, eptransport::cuda_warp::size, 0, stream_>>>(view, call, returned_);
    eptransport::support::must(cudaGetLastError());
    eptransport::support::must(cudaStreamSynchronize(stream_));
    return *returned_;
  }

 private:
  int device_;
  cudaStream_t stream_ = nullptr;
  std::uint64_t* returned_ = nullptr;
};

/// Models `TransportView` for host threads: each call runs on the GPU, and returns when it has.
///
/// @tparam Caller  `run(view, call)` makes it
template <class View, class Caller = device_caller>
class called_view {
 public:
  called_view(const View& view, Caller& caller) : view_(view), caller_(&caller) {}

  [[nodiscard]] std::int32_t rank() const { return view_.rank(); }
  [[nodiscard]] std::int32_t size() const { return view_.size(); }
  [[nodiscard]] std::int32_t node(std::int32_t peer) const { return view_.node(peer); }
  [[nodiscard]] std::uint32_t channels() const { return view_.channels(); }
  [[nodiscard]] std::byte* local() const { return view_.local(); }
  [[nodiscard]] std::byte* peer_pointer(std::int32_t peer, std::uint64_t offset,
                                        std::uint64_t bytes) const {
    return reinterpret_cast<std::byte*>(
        run({.what = device_call::kind::pointer,
             .request = {.peer = peer, .dst_offset = offset, .bytes = bytes}}));
  }
  [[nodiscard]] std::uint64_t now_ns() const { return run({.what = device_call::kind::now}); }
  [[nodiscard]] std::uint64_t read_signal(std::uint32_t signal) const {
    return run({.what = device_call::kind::read, .request = {.signal = signal}});
  }

  template <class Group>
  op_status put(const Group&, std::uint32_t channel, const eptransport::put_request& request,
                std::uint64_t deadline_ns) const {
    return status({.what = device_call::kind::put,
                   .channel = channel,
                   .request = request,
                   .deadline_ns = deadline_ns});
  }
  template <class Group>
  op_status signal(const Group&, std::uint32_t channel, std::int32_t peer, std::uint32_t signal,
                   std::uint64_t deadline_ns) const {
    return status({.what = device_call::kind::signal,
                   .channel = channel,
                   .request = {.peer = peer, .signal = signal},
                   .deadline_ns = deadline_ns});
  }
  template <class Group>
  op_status wait_signal(const Group&, std::uint32_t signal, std::uint64_t at_least,
                        std::uint64_t deadline_ns) const {
    return status({.what = device_call::kind::wait,
                   .request = {.signal = signal},
                   .at_least = at_least,
                   .deadline_ns = deadline_ns});
  }
  template <class Group>
  op_status flush(const Group&, std::uint32_t channel, std::uint64_t deadline_ns) const {
    return status(
        {.what = device_call::kind::flush, .channel = channel, .deadline_ns = deadline_ns});
  }
  template <class Group>
  void submit(const Group&, std::uint32_t channel) const {
    (void)run({.what = device_call::kind::submit, .channel = channel});
  }

 private:
  [[nodiscard]] std::uint64_t run(const device_call& call) const {
    return caller_->run(view_, call);
  }
  [[nodiscard]] op_status status(const device_call& call) const {
    return static_cast<op_status>(run(call));
  }

  View view_;
  Caller* caller_;
};

/// What all GPU backends have in common. Each case runs with few seeds: the wires deliver at once.
struct device_backend {
  static constexpr std::uint64_t seeds = 3;
  static constexpr std::uint64_t patience_ns = 20'000'000'000;
  static constexpr bool one_process = true;
  static constexpr bool can_start_counters = true;
  static constexpr bool can_limit_queues = false;
  static constexpr bool can_break = false;
};

}  // namespace conformance
