// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief A put whose rank fails in the look that finds room posts nothing and holds up nobody.
#include <eptransport/backends/gdaki/detail/look.hpp>
#include <eptransport/backends/gdaki/gdaki.hpp>
#include <eptransport/core/host_executor.hpp>

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

namespace eptransport {
namespace {

using gdaki::queue_memory;

constexpr std::uint64_t second_ns = 1'000'000'000;

std::uint64_t now() {
  return queue_memory<host_memory>::now_ns();
}

/// Between what a look does and its search for a failure, something else happens.
struct interrupted_waiter {
  using memory = host_memory;
  [[maybe_unused]] static constexpr std::uint32_t serve_every = 1;  // of waits, which none makes

  const std::function<void()>* between;

  [[nodiscard]] static std::uint64_t now_ns() { return now(); }
  template <class Failed, class Done>
  op_status wait(const Failed& failed, const Done& done, std::uint64_t deadline_ns) const {
    const auto interrupted = [&] {
      const bool reached = done();
      (*between)();
      return reached;
    };
    return gdaki_detail::look_until<host_memory>(failed, interrupted,
                                                 [&] { return now() > deadline_ns; });
  }
  static void note(std::uint64_t) {}
};

template <class Wire>
class GdakiReservation : public testing::Test {
 protected:
  using view_type = gdaki_view<Wire, interrupted_waiter>;
  using world_type = gdaki_world<Wire>;

  void SetUp() override {
    auto made = world_type::create({.ranks = 2, .window_bytes = 4096, .signals = 4});
    ASSERT_TRUE(made) << made.error().message();
    world_ = std::move(*made);
  }
  /// The queue from rank 0 to rank 1.
  [[nodiscard]] const auto& queue() { return world_->tables_of(0).queues[Wire::queue_of(1)].queue; }
  /// A request that no wire can carry out fails its rank.
  void break_rank() {
    const auto view = world_->rank(0).view();
    EXPECT_EQ(view.put(host_thread(), 0, {.peer = 1, .dst_offset = 5000, .bytes = 1}, 0),
              op_status::failed);
  }
  [[nodiscard]] op_status put(const std::function<void()>& between) {
    const view_type view(world_->tables_of(0), {&between});
    return view.put(host_thread(), 0, {.peer = 1, .signal = 2}, now() + 5 * second_ns);
  }

  std::unique_ptr<world_type> world_;
};

using both_wires = testing::Types<efa_wire, mlx5_wire>;
TYPED_TEST_SUITE(GdakiReservation, both_wires);

TYPED_TEST(GdakiReservation, TheNextInTheQueueIsToldAtOnce) {
  std::uint64_t next = 0;
  const std::function<void()> overtaken = [&] {
    ASSERT_EQ(this->queue().template try_reserve<host_thread>(1, next), op_status::ok);
    this->break_rank();
  };
  EXPECT_EQ(this->put(overtaken), op_status::failed);
  const std::uint64_t deadline = now() + 2 * second_ns;
  EXPECT_EQ(this->queue().publish(host_thread(), next, 1, deadline), op_status::failed);
  EXPECT_LT(now(), deadline) << "it waited for a turn that cannot come";
  EXPECT_EQ(this->world_->rank(1).view().read_signal(2), 0U);
  const auto why = this->world_->rank(0).fault();
  ASSERT_FALSE(why);
  EXPECT_NE(why.error().message().find("at 5000 of a window of 4096"), std::string::npos)
      << why.error().message();
}

TYPED_TEST(GdakiReservation, AfterAFailureNothingIsReserved) {
  this->break_rank();
  const std::uint64_t before = this->queue().posted(host_thread());
  EXPECT_EQ(this->put([] {}), op_status::failed);
  EXPECT_EQ(this->queue().posted(host_thread()), before);
}

TYPED_TEST(GdakiReservation, WithoutAFailureItIsPosted) {
  EXPECT_EQ(this->put([] {}), op_status::ok);
  this->world_->rank(0).view().submit(host_thread(), 0);
  EXPECT_EQ(this->world_->rank(1).view().wait_signal(host_thread(), 2, 1, now() + 5 * second_ns),
            op_status::ok);
}

}  // namespace
}  // namespace eptransport
