// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The GPU-initiated transport passes the conformance suite on a GPU, over EFA and mlx5 NICs
///        that a host thread plays, or blocks of the GPU.
#include <eptransport/backends/gdaki/gdaki.cuh>

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <string>
#include <thread>
#include <type_traits>

#include "conformance/conformance.hpp"
#include "conformance/device_backend.cuh"
#include "conformance/flawed.hpp"
#include "conformance/gdaki_backend.hpp"

namespace conformance {

/// A call among the blocks of its rank: the first worker makes it.
template <class View>
struct attended_call {
  View view;
  device_call call;
  std::uint64_t* returned;  ///< pinned

  [[nodiscard]] EPT_HOST_DEVICE eptransport::worker_words* words() const { return nullptr; }
  EPT_DEVICE void operator()(const eptransport::cuda_warp& worker) const {
    if (worker.worker() != 0) return;
    const std::uint64_t out = make_device_call(view, call, worker);
    if (worker.thread() == 0) *returned = out;
  }
};

namespace {

using eptransport::efa_wire;
using eptransport::gpu_nic;
using eptransport::mlx5_wire;
using eptransport::support::must;

/// Makes a rank's calls where NICs are blocks of the grids that its executor starts.
///
/// All grids of a world follow each other on one stream, so a wait is a series of short ones: what
/// it waits for may need a grid that comes after it.
///
/// @par Threads  The rank's own.
template <class Transport>
class attended_caller {
 public:
  attended_caller(Transport& transport, cudaStream_t stream)
      : transport_(&transport), stream_(stream), plain_(0) {
    void* word = nullptr;
    must(cudaHostAlloc(&word, sizeof(std::uint64_t), cudaHostAllocMapped | cudaHostAllocPortable));
    returned_ = static_cast<std::uint64_t*>(word);
  }
  attended_caller(const attended_caller&) = delete;
  attended_caller& operator=(const attended_caller&) = delete;
  ~attended_caller() { (void)cudaFreeHost(returned_); }

  template <class View>
  std::uint64_t run(const View& view, const device_call& call) {
    using kind = device_call::kind;
    // What needs no NIC needs no grid with NICs either.
    if (call.what == kind::now || call.what == kind::read || call.what == kind::pointer) {
      return plain_.run(view, call);
    }
    if (call.what != kind::wait) return attended(view, call);
    for (device_call slice = call;;) {
      const std::uint64_t now = plain_.run(view, {.what = kind::now});
      slice.deadline_ns = std::min(call.deadline_ns, now + slice_ns);
      const std::uint64_t status = attended(view, slice);
      const bool over = slice.deadline_ns == call.deadline_ns;
      if (over || status != static_cast<std::uint64_t>(op_status::expired)) return status;
    }
  }

 private:
  static constexpr std::uint64_t slice_ns = 1'000'000;

  template <class View>
  std::uint64_t attended(const View& view, const device_call& call) {
    *returned_ = static_cast<std::uint64_t>(op_status::failed);
    const attended_call<View> work{view, call, returned_};
    const auto launched = transport_->executor().launch(work, 0, stream_);
    EXPECT_TRUE(launched.has_value()) << launched.error().message();
    must(cudaStreamSynchronize(stream_));
    return *returned_;
  }

  Transport* transport_;
  cudaStream_t stream_;
  device_caller plain_;
  std::uint64_t* returned_ = nullptr;
};

template <class Wire, gpu_nic kNic>
struct cuda_gdaki_backend : device_backend {
  using wire = Wire;
  using transport = eptransport::cuda_gdaki<Wire>;
  using caller_type =
      std::conditional_t<kNic == gpu_nic::block, attended_caller<transport>, device_caller>;
  static constexpr gpu_nic nic = kNic;
  static constexpr bool can_limit_queues = true;

  static void run(const world_request& request, const std::function<void(transport&)>& per_rank,
                  report& out) {
    eptransport::cuda_gdaki_options options;
    options.base = to_gdaki_options(request);
    options.nic = kNic;
    options.blocks = request.workers;
    options.warps = 1;
    // A rank that makes a call alone waits this long for the others; calls of several workers are
    // made by all ranks, which wait for each other.
    options.patience_ns = request.workers > 1 ? 10'000'000'000 : 100'000;
    auto world = eptransport::cuda_gdaki_world<Wire>::create(options);
    if (!world) return out.add(world.error().message());
    cudaStream_t stream = nullptr;
    must(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    (*world)->run([&](transport& t) {
      if constexpr (kNic == gpu_nic::block) {
        caller_type caller(t, stream);
        mine = &caller;
        per_rank(t);
      } else {
        caller_type caller(0);
        mine = &caller;
        per_rank(t);
      }
    });
    must(cudaStreamDestroy(stream));
    const auto findings = (*world)->findings();
    if (!findings) return out.add(findings.error().message());
    if (*findings != 0) {
      out.add(std::to_string(*findings) + " entries that the NICs did not understand");
    }
  }
  static auto host_view(transport& t) { return called_view(t.view(), *mine); }

  static inline thread_local caller_type* mine = nullptr;
};

struct nic_names {
  template <class B>
  static std::string GetName(int) {  // NOLINT(readability-identifier-naming): gtest's name
    return std::string(std::is_same_v<typename B::wire, efa_wire> ? "efa" : "mlx5") +
           (B::nic == gpu_nic::block ? "_blocks" : "_thread");
  }
};

using gpu_initiated = ::testing::Types<
    cuda_gdaki_backend<efa_wire, gpu_nic::thread>, cuda_gdaki_backend<mlx5_wire, gpu_nic::thread>,
    cuda_gdaki_backend<efa_wire, gpu_nic::block>, cuda_gdaki_backend<mlx5_wire, gpu_nic::block>>;
INSTANTIATE_TYPED_TEST_SUITE_P(CudaGdaki, Conformance, gpu_initiated, nic_names);

/// `a_failure_ends_every_wait`, whose workers are host lambdas, for calls that are kernels: one
/// kernel waits while another's put fails.
template <Backend B>
void a_failed_put_ends_every_wait(world_request request, report& out) {
  request.broken_rank = 0;
  in_world<B>(request, out, [](const probe<B>& p, auto& t) {
    if (p.rank() != 0) {
      const std::uint64_t deadline = p.view().now_ns() + 1'000'000;
      p.check(p.view().wait_signal(host_thread(), 0, p.base(0) + 1, deadline) == op_status::expired,
              "something came from a broken rank");
      p.check(t.fault().has_value(), "another rank's failure became ours");
      return;
    }
    const std::uint64_t deadline = p.view().now_ns() + 5'000'000'000;
    op_status waited = op_status::ok;
    std::thread waiter([&] {
      device_caller caller(0);
      waited = called_view(t.view(), caller).wait_signal(host_thread(), 1, p.base(1) + 1, deadline);
    });
    op_status put = p.view().signal(host_thread(), 0, 1, 0, deadline);
    if (put == op_status::ok) put = p.view().flush(host_thread(), 0, deadline);
    p.check(put == op_status::failed, "the broken put did not fail");
    waiter.join();
    p.check(waited == op_status::failed, "a kernel that waited was not told");
    p.check(p.view().wait_signal(host_thread(), 1, p.base(1) + 1, deadline) == op_status::failed,
            "a later wait did not fail");
    for (const std::uint32_t word : {eptransport::no_signal, std::uint32_t{0}}) {
      p.check(p.view().put(host_thread(), 0, {.peer = 1, .signal = word}, deadline) ==
                  op_status::failed,
              "a later put did not fail");
    }
    const auto why = t.fault();
    p.check(!why.has_value() && why.error().message().find("status 13") != std::string::npos,
            why ? "fault() says nothing" : why.error().message());
  });
}

/// The first seed with findings, which are printed if it is not the one that is expected.
template <Backend B, class Case>
void expect_first_failing_seed(std::uint64_t expected, const Case& run_case, const char* what) {
  report out;
  EXPECT_EQ(first_failing_seed<B>(run_case, out), expected) << what << ":\n" << out.text();
}

#define EPT_EXPECT_SEED(expected, function, ...)                                             \
  expect_first_failing_seed<__VA_ARGS__>(                                                    \
      expected,                                                                              \
      [](const auto& request, auto& findings) { function<__VA_ARGS__>(request, findings); }, \
      #function " over " #__VA_ARGS__)

TEST(CudaGdakiFault, AFailedPutEndsEveryWaitOfItsRank) {
  using efa = cuda_gdaki_backend<efa_wire, gpu_nic::thread>;
  using mlx5 = cuda_gdaki_backend<mlx5_wire, gpu_nic::thread>;
  EPT_EXPECT_SEED(0U, a_failed_put_ends_every_wait, efa);
  EPT_EXPECT_SEED(0U, a_failed_put_ends_every_wait, mlx5);
}

/// The negative controls: calls that run on the GPU, spoilt on their way there. Here each call is a
/// launch: a flaw that only shows if a wait is quicker than the put it waits for is the host's.
template <flaw kFlaw>
struct spoilt : cuda_gdaki_backend<efa_wire, gpu_nic::block> {
  using sound = cuda_gdaki_backend<efa_wire, gpu_nic::block>;
  using typename sound::transport;
  static constexpr std::uint64_t patience_ns = 300'000'000;

  static auto host_view(transport& t) {
    using view_type = decltype(sound::host_view(t));
    return flawed_view<view_type, kFlaw>(sound::host_view(t), &puts);
  }
  static inline thread_local std::uint64_t puts = 0;
};

TEST(CudaNegativeControl, EachFlawIsFoundByItsCase) {
  EPT_EXPECT_SEED(0U, puts_are_counted, spoilt<flaw::none>);
  EPT_EXPECT_SEED(1U, puts_are_counted, spoilt<flaw::counts_twice>);
  EPT_EXPECT_SEED(1U, puts_are_counted, spoilt<flaw::drops_when_busy>);
  EPT_EXPECT_SEED(1U, empty_messages_count, spoilt<flaw::forgets_empty_puts>);
  EPT_EXPECT_SEED(1U, waits_end_at_their_deadline, spoilt<flaw::waits_for_less>);
  EPT_EXPECT_SEED(1U, waits_end_at_their_deadline, spoilt<flaw::ignores_deadlines>);
}

}  // namespace
}  // namespace conformance
