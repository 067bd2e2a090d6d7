// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Emulated NICs and the wire between them: reads the queues that a device would read, moves
///        the bytes, answers in the device's own format.
///
/// Life of a request: a doorbell moves -> entries are fetched and parsed strictly -> a scheduler
/// with a seed delivers payload pieces (EFA: of any request in the reorder window, in any order;
/// mlx5: oldest first) -> after the last piece the receiver's completion or counter, later, and
/// among EFA requests in any order, the poster's.
///
/// One thread drives it, with `step` or a `runner`; posters and waiters may run at the same time.
#pragma once

#include <eptransport/core/config.hpp>
#include <eptransport/gdaki/emulator/completion_writer.hpp>
#include <eptransport/gdaki/emulator/detail/queue_pair.hpp>
#include <eptransport/gdaki/emulator/memory_map.hpp>
#include <eptransport/gdaki/emulator/setup.hpp>
#include <eptransport/gdaki/emulator/violation.hpp>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <unordered_map>
#include <vector>

namespace eptransport::gdaki::emulator {

/// What has happened so far.
struct network_counts {
  std::uint64_t fetched = 0;
  std::uint64_t executed = 0;
  std::uint64_t failed = 0;
  std::uint64_t completions = 0;
  std::uint64_t overtakes = 0;  ///< requests that ended before an older one of their queue pair
};

/// A set of emulated NICs that reach each other.
///
/// @par Threads  One at a time.
class network {
 public:
  explicit network(const schedule_options& options = {})
      : options_(options), random_(options.seed) {}

  network(const network&) = delete;
  network& operator=(const network&) = delete;

  /// @return the number of the new NIC
  std::uint32_t add_nic() {
    nics_.emplace_back();
    return static_cast<std::uint32_t>(nics_.size() - 1);
  }
  [[nodiscard]] memory_map& memory(std::uint32_t nic) { return nics_[nic].memory; }

  /// EFA: how `nic` names another one.
  void add_handle(std::uint32_t nic, std::uint16_t handle, std::uint32_t other) {
    nics_[nic].handles[handle] = other;
  }

  /// @return the number of the new completion queue
  std::uint32_t add_completion_queue(const completion_queue_setup& setup) {
    completion_queues_.emplace_back(setup);
    return static_cast<std::uint32_t>(completion_queues_.size() - 1);
  }

  void add_queue_pair(const queue_pair_setup& setup);

  /// mlx5: both ends of a connection name each other.
  void connect(std::uint32_t nic, std::uint32_t qpn, std::uint32_t remote_nic,
               std::uint32_t remote_qpn);

  void plan(const planned_fault& fault) { faults_.push_back(fault); }

  /// The NIC stops: it fetches nothing more and answers nobody.
  void kill(std::uint32_t nic) { nics_[nic].dead = true; }

  /// The NIC stops once it has fetched that many more requests.
  void plan_death(std::uint32_t nic, std::uint64_t after) {
    nics_[nic].mortal = true;
    nics_[nic].left = after;
    nics_[nic].dead = nics_[nic].dead || after == 0;
  }
  [[nodiscard]] bool dead(std::uint32_t nic) const { return nics_[nic].dead; }

  /// Performs up to `events` events. @return how many; less means that nothing is left to do
  std::uint64_t step(std::uint64_t events = ~std::uint64_t{0});

  [[nodiscard]] const std::vector<finding>& findings() const noexcept { return findings_; }
  [[nodiscard]] const network_counts& counts() const noexcept { return counts_; }
  /// Equal after equal decisions: where the generator of all of them is.
  [[nodiscard]] std::uint64_t trace() const noexcept { return random_; }

 private:
  using queue_pair = detail::queue_pair;
  using job = detail::job;

  struct nic_state {
    memory_map memory;
    std::unordered_map<std::uint16_t, std::uint32_t> handles;
    bool dead = false;
    bool mortal = false;     ///< it dies when `left` is 0
    std::uint64_t left = 0;  ///< requests that it still fetches
  };
  struct destination {
    queue_pair* pair = nullptr;
    outcome how = outcome::ok;
  };

  // fetch_impl.hpp
  void fetch(queue_pair& qp);
  void fetch_efa(queue_pair& qp);
  void fetch_mlx5(queue_pair& qp);
  [[nodiscard]] violation judge_doorbell(const queue_pair& qp, std::uint64_t value,
                                         std::uint64_t produced) const;
  bool accept(queue_pair& qp, parsed&& entry);
  void report(queue_pair& qp, violation what, std::uint32_t offset = 0);
  [[nodiscard]] parsed next_receive(const queue_pair& qp, bool& empty) const;

  // execute_impl.hpp
  bool advance(queue_pair& qp);
  bool work(queue_pair& qp, std::size_t which);
  void begin(queue_pair& qp, job& j);
  [[nodiscard]] destination find_destination(queue_pair& qp, const request& r);
  [[nodiscard]] outcome take_receive(queue_pair& target, job& j, bool& wait);
  [[nodiscard]] outcome deliver_piece(queue_pair& qp, queue_pair& target, const job& j,
                                      std::uint32_t piece);
  [[nodiscard]] outcome move_bytes(queue_pair& qp, queue_pair& target, const job& j,
                                   std::uint64_t from, std::uint64_t bytes);
  [[nodiscard]] outcome run_atomic(queue_pair& qp, queue_pair& target, const request& r);
  [[nodiscard]] std::byte* locate(std::uint32_t nic, const std::vector<local_range>& ranges,
                                  std::uint64_t offset, std::uint64_t& bytes,
                                  std::uint8_t rights) const;
  [[nodiscard]] outcome admissible(const queue_pair& qp, const queue_pair& target,
                                   const request& r) const;
  [[nodiscard]] bool registered(const queue_pair& qp, const request& r, std::uint8_t rights) const;

  // complete_impl.hpp
  void arrive(queue_pair& qp, queue_pair& target, const job& j);
  void end(queue_pair& qp, std::size_t which, outcome how);
  void notify(queue_pair& qp, std::size_t which);
  void tell(queue_pair& qp, std::uint32_t queue, const completion_facts& facts);
  [[nodiscard]] const planned_fault* planned(const queue_pair& qp, std::uint64_t number,
                                             mishap what) const;
  static void count(std::uint64_t* word) noexcept;

  [[nodiscard]] std::uint64_t random() noexcept;
  [[nodiscard]] std::uint64_t below(std::uint64_t bound) noexcept { return random() % bound; }

  schedule_options options_;
  std::uint64_t random_;
  std::vector<nic_state> nics_;
  std::deque<queue_pair> pairs_;
  std::vector<queue_pair*> senders_;  ///< those with a send queue
  std::unordered_map<std::uint64_t, queue_pair*> by_number_;
  std::vector<completion_writer> completion_queues_;
  std::vector<planned_fault> faults_;
  std::vector<finding> findings_;
  network_counts counts_{};
};

}  // namespace eptransport::gdaki::emulator

#include <eptransport/gdaki/emulator/detail/complete_impl.hpp>
#include <eptransport/gdaki/emulator/detail/execute_impl.hpp>
#include <eptransport/gdaki/emulator/detail/fetch_impl.hpp>
