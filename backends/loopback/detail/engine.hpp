// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The simulated world without its profile's type: windows, wire, clocks, actors, faults.
///
/// One lock covers everything. Under `run_mode::baton` it is never contended, because only the
/// thread with the baton runs. Free threads with immediate delivery and no faults bypass it: a put
/// is a copy and a release addition.
#pragma once

#include <eptransport/backends/loopback/detail/random.hpp>
#include <eptransport/backends/loopback/detail/scheduler.hpp>
#include <eptransport/backends/loopback/detail/timing.hpp>
#include <eptransport/backends/loopback/detail/window.hpp>
#include <eptransport/backends/loopback/detail/wire.hpp>
#include <eptransport/backends/loopback/options.hpp>
#include <eptransport/core/capabilities.hpp>
#include <eptransport/core/config.hpp>
#include <eptransport/core/memory.hpp>
#include <eptransport/core/result.hpp>
#include <eptransport/core/transport.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace eptransport::loopback_detail {

/// All that belongs to one rank.
struct rank_state {
  rank_state(const loopback_options& options, std::uint32_t all_words)
      : memory(options.window_bytes),
        words(first_values(options, all_words)),
        last_read(words),
        arrived(all_words),
        looked(all_words) {}

  /// The words of the wire inside the node lie behind the others. Both halves of a pair are soon to
  /// wrap where the sum is; together they begin where it was asked for.
  static std::vector<std::uint64_t> first_values(const loopback_options& options,
                                                 std::uint32_t all_words) {
    std::vector<std::uint64_t> first(all_words, options.counter_start);
    if (all_words == options.signals) return first;
    for (std::uint32_t s = 0; s < options.signals; ++s) {
      first[s] = ~std::uint64_t{0};
      first[options.signals + s] = options.counter_start + 1;
    }
    return first;
  }

  window memory;
  std::vector<std::uint64_t> words;      ///< signals; touched through host_memory only
  std::vector<std::uint64_t> last_read;  ///< value of each word when `read_signal` looked last
  std::vector<arrivals> arrived;         ///< modelled arrivals per word
  unread_bytes unread;
  std::vector<loopback_fault> faults;  ///< `count` falls as they strike
  std::uint64_t operations = 0;        ///< puts and signals issued
  std::uint64_t streak = 1;            ///< a run of `read_signal` calls and nothing else
  std::vector<std::uint64_t> looked;   ///< streak in which each word was last read in vain
  double idle_step_ns = 0;             ///< how far the next fruitless poll moves the clock
  std::atomic<bool> failed = false;    ///< `why` is final once it is true
  failure why;
  std::atomic<std::uint64_t> messages = 0;
  std::atomic<std::uint64_t> bytes = 0;
  std::atomic<std::uint64_t> inter_messages = 0;
  std::atomic<std::uint64_t> inter_bytes = 0;
};

/// What a blocked operation waits for; the fields mean what they mean in `actor`.
struct wait_for {
  blocked_on why = blocked_on::nothing;
  std::uint64_t deadline_ns = no_deadline;
  const std::uint64_t* word = nullptr;
  std::uint64_t at_least = 0;
  std::uint32_t channel = 0;
  const std::uint64_t* also = nullptr;  ///< `signal`: the sum of two words counts
};

class engine final : private world_of_actors, private landing_ground {
 public:
  using lock_type = scheduler::lock_type;

  /// @param inner  of a second wire that joins the ranks of a node; null: there is none
  /// @pre `check(options, caps)` passed and `nodes` has an entry per rank
  engine(const capabilities& caps, const loopback_options& options, std::vector<int> nodes,
         const capabilities* inner = nullptr);

  /// False if there was not enough memory for the windows.
  [[nodiscard]] bool valid() const noexcept;

  [[nodiscard]] const loopback_options& options() const noexcept { return options_; }
  [[nodiscard]] int node(int rank) const noexcept { return nodes_[static_cast<std::size_t>(rank)]; }
  [[nodiscard]] rank_state& state(int rank) noexcept {
    return *ranks_[static_cast<std::size_t>(rank)];
  }
  [[nodiscard]] bool valid_rank(int rank) const noexcept {
    return rank >= 0 && rank < options_.ranks;
  }
  [[nodiscard]] bool baton() const noexcept { return options_.mode == run_mode::baton; }

  // What a view does; `TransportView` in core/transport.hpp says what each means.
  [[nodiscard]] std::uint64_t now_ns(int rank);
  [[nodiscard]] std::byte* peer_pointer(int rank, int peer, std::uint64_t offset,
                                        std::uint64_t bytes, bool inner = false);
  [[nodiscard]] op_status put(int rank, std::uint32_t channel, const put_request& request,
                              std::uint64_t deadline_ns, bool inner = false);
  [[nodiscard]] std::uint64_t read_signal(int rank, std::uint32_t signal, bool inner = false);
  [[nodiscard]] op_status wait_signal(int rank, std::uint32_t signal, std::uint64_t at_least,
                                      std::uint64_t deadline_ns, bool inner = false);
  /// Waits for the sum of the signal's two words, of which each wire writes one.
  [[nodiscard]] op_status wait_sum(int rank, std::uint32_t signal, std::uint64_t at_least,
                                   std::uint64_t deadline_ns);
  [[nodiscard]] op_status flush(int rank, std::uint32_t channel);

  // What a rank's owner does.
  [[nodiscard]] result<void> barrier(int rank, std::uint64_t timeout_ns);
  [[nodiscard]] result<void> fault(int rank);

  // What the world does.
  void run(const std::function<void(int)>& function);
  void advance(int rank, std::uint64_t ns);
  [[nodiscard]] double modelled_ns(int rank);
  void reset_statistics();
  [[nodiscard]] loopback_traffic traffic(int rank);
  [[nodiscard]] std::uint64_t trace_hash();
  [[nodiscard]] std::string violations();

  // What the threads of a launch do; see `host_thread_hooks`.
  void spawn(int rank, std::uint32_t helpers);
  void enter(int rank, std::uint32_t worker);
  void leave();
  void join();
  void wait_word(int rank, const wait_for& what);

 private:
  /// Assumed: one refused post and the completion poll that follows it.
  static constexpr double refusal_ns = 100;
  /// How far one fruitless poll moves the clock at most.
  static constexpr double longest_poll_ns = 10e6;

  /// Which actor the calling thread is, if it is one.
  struct identity {
    const engine* world = nullptr;
    actor* self = nullptr;
  };
  static identity& calling_thread() {
    thread_local identity who;
    return who;
  }
  [[nodiscard]] actor* self() const {
    const identity& who = calling_thread();
    return who.world == this ? who.self : nullptr;
  }

  /// The clock of the calling worker, or of the rank if the caller is another thread.
  [[nodiscard]] virtual_clock& clock(int rank) {
    const actor* me = self();
    return me != nullptr && me->rank == rank ? *me->clock : timing_.clock(rank);
  }

  /// Takes the lock for a look of the calling thread at its rank.
  [[nodiscard]] lock_type begin_look() {
    lock_type lock(mutex_);
    if (actor* me = self(); me != nullptr) scheduler_.meet_siblings(*me);
    return lock;
  }

  /// The same for an operation, which ends a streak of polls.
  [[nodiscard]] lock_type begin_operation(int rank) {
    lock_type lock = begin_look();
    ++state(rank).streak;
    state(rank).idle_step_ns = 0;
    return lock;
  }

  /// What the fault plan says about one operation.
  struct verdict {
    op_status status = op_status::ok;
    bool lost = false;
    std::uint64_t late_ns = 0;
  };

  // world_of_actors
  bool deliver_something() override { return wire_.step(); }
  std::uint64_t next_held_ns() const override { return wire_.next_held_ns(); }
  void release_held(std::uint64_t upto) override { wire_.release_held(upto); }
  virtual_clock& rank_clock(int rank) override { return timing_.clock(rank); }
  void deadlock() override;

  // landing_ground
  void land_piece(const message& m, piece p) override;
  void land_signal(const message& m) override;

  /// Words of the inner wire lie behind those of the other one.
  [[nodiscard]] std::uint32_t word_of(std::uint32_t signal, bool inner) const {
    return signal != no_signal && inner ? options_.signals + signal : signal;
  }
  [[nodiscard]] const capabilities& caps_of(bool inner) const { return inner ? *inner_ : caps_; }
  std::string wrong_with(int rank, std::uint32_t channel, const put_request& request, bool inner);
  bool admit(int rank, std::uint32_t channel, const put_request& request, bool inner);
  op_status put_directly(int rank, std::uint32_t channel, const put_request& request, bool inner);
  verdict strike(int rank, std::uint32_t channel, const put_request& request,
                 std::uint64_t deadline_ns, lock_type& lock);
  op_status wait_for_room(int rank, std::uint32_t channel, std::uint64_t deadline_ns,
                          lock_type& lock);
  void send(int rank, std::uint32_t channel, const put_request& request, const verdict& what,
            bool inner);
  double charge(int rank, const parcel& p, bool inner);
  void count(int rank, int peer, std::uint64_t messages, std::uint64_t bytes);
  void claim(const message& m);
  void fail(int rank, std::error_code code, const char* operation, std::string detail);
  void scheduling_point(lock_type& lock);
  void sleep(int rank, const wait_for& what, lock_type& lock);
  void poll_in_vain(int rank, std::uint32_t signal, lock_type& lock);
  void acquired(int rank, std::uint32_t signal, std::uint64_t value);
  [[nodiscard]] std::uint64_t now_locked(int rank);
  [[nodiscard]] std::string missing_at_barrier() const;

  capabilities caps_;
  std::optional<capabilities> inner_;  ///< of the wire inside the nodes
  loopback_options options_;
  std::vector<int> nodes_;
  bool direct_;  ///< puts bypass the lock
  std::mutex mutex_;
  dice random_;
  trace trace_;
  std::uint32_t eagerness_;   ///< sixteenths: how often a scheduling point lands something
  std::uint32_t preemption_;  ///< sixteenths: how often it passes the baton
  scheduler scheduler_;
  wire wire_;
  timing timing_;
  std::unique_ptr<timing> inner_timing_;  ///< its resources; the clocks are those of `timing_`
  std::vector<std::unique_ptr<rank_state>> ranks_;
  violation_list violations_;
  std::uint64_t serial_ = 0;
  double measured_from_ns_ = 0;
  std::uint64_t barrier_generation_ = 0;
  std::vector<bool> at_barrier_;  ///< who waits in it now
  std::vector<bool> came_;        ///< who has entered it, and may have given up since
  std::chrono::steady_clock::time_point born_ = std::chrono::steady_clock::now();
};

}  // namespace eptransport::loopback_detail

#include <eptransport/backends/loopback/detail/engine_impl.hpp>
