// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Faults, barriers, threads and observers of the simulated world. Included by engine.hpp.
#pragma once

#include <eptransport/backends/loopback/detail/engine.hpp>

namespace eptransport::loopback_detail {

/// Applies the fault plan to the next operation of the rank.
inline engine::verdict engine::strike(int rank, std::uint32_t channel, const put_request& request,
                                      std::uint64_t deadline_ns, lock_type& lock) {
  rank_state& own = state(rank);
  const std::uint64_t operation = own.operations++;
  const auto describe = [&](const char* what) {
    return "rank " + std::to_string(rank) + ", channel " + std::to_string(channel) + ", to rank " +
           std::to_string(request.peer) + ", " + std::to_string(request.bytes) +
           " bytes, operation " + std::to_string(operation) + ": " + what;
  };
  verdict out;
  for (loopback_fault& fault : own.faults) {
    if (operation < fault.after_ops || fault.count == 0) continue;
    switch (fault.kind) {
      case loopback_fault_kind::kill:
        fail(rank, std::make_error_code(std::errc::connection_aborted), "put",
             describe("the rank was killed"));
        wire_.abandon(rank);
        return {.status = op_status::failed};
      case loopback_fault_kind::hard_error:
        fail(rank, std::make_error_code(std::errc::io_error), "put", describe("injected error"));
        return {.status = op_status::failed};
      case loopback_fault_kind::lose:
        --fault.count;
        out.lost = true;
        break;
      case loopback_fault_kind::late:
        --fault.count;
        out.late_ns += fault.delay_ns;
        break;
      case loopback_fault_kind::refuse:
        // "Try again": completions are drained between the tries, and time goes by.
        while (fault.count != 0) {
          if (now_locked(rank) > deadline_ns) return {.status = op_status::expired};
          --fault.count;
          wire_.step();
          clock(rank).ns += refusal_ns;
          actor* me = self();
          if (me != nullptr && fault.count % 64 == 0) scheduler_.yield(*me, lock);
          if (own.failed) return {.status = op_status::failed};
        }
        break;
    }
  }
  return out;
}

/// Makes the rank's transport unusable; the first reason stays.
inline void engine::fail(int rank, std::error_code code, const char* operation,
                         std::string detail) {
  rank_state& own = state(rank);
  if (own.failed) return;
  own.why = {code, operation, std::move(detail)};
  own.failed = true;
  trace_.add(0x400000000U + static_cast<std::uint64_t>(rank));
  wire_.keep_sources(rank);
  scheduler_.rank_failed(rank);
}

inline void engine::deadlock() {
  for (int rank = 0; rank < options_.ranks; ++rank) {
    fail(rank, errc::timed_out, "wait", "deadlock: every thread waits and none has a deadline");
  }
}

inline result<void> engine::fault(int rank) {
  const lock_type lock(mutex_);
  if (!state(rank).failed) return {};
  return state(rank).why;
}

inline std::string engine::missing_at_barrier() const {
  std::string text;
  for (std::size_t rank = 0; rank < came_.size(); ++rank) {
    if (!came_[rank]) text += (text.empty() ? "" : ", ") + std::to_string(rank);
  }
  return text;
}

inline result<void> engine::barrier(int rank, std::uint64_t timeout_ns) {
  lock_type lock = begin_operation(rank);
  const rank_state& own = state(rank);
  if (own.failed) return own.why;
  const std::uint64_t start = now_locked(rank);
  const std::uint64_t deadline =
      timeout_ns > no_deadline - start ? no_deadline : start + timeout_ns;
  const std::uint64_t generation = barrier_generation_;
  at_barrier_[static_cast<std::size_t>(rank)] = true;
  came_[static_cast<std::size_t>(rank)] = true;
  if (std::find(at_barrier_.begin(), at_barrier_.end(), false) == at_barrier_.end()) {
    at_barrier_.assign(at_barrier_.size(), false);
    came_ = at_barrier_;
    ++barrier_generation_;
    if (baton()) timing_.meet();
    scheduler_.wake_barrier();
    return {};
  }
  while (generation == barrier_generation_) {
    const bool late = now_locked(rank) > deadline;
    if (late || own.failed) {
      at_barrier_[static_cast<std::size_t>(rank)] = false;
      if (own.failed) return own.why;
      return failure{errc::timed_out, "barrier",
                     "rank " + std::to_string(rank) + " waited for ranks " + missing_at_barrier()};
    }
    sleep(rank, {.why = blocked_on::barrier, .deadline_ns = deadline}, lock);
  }
  return {};
}

inline void engine::run(const std::function<void(int)>& function) {
  if (baton()) {
    const lock_type lock(mutex_);
    scheduler_.begin(options_.ranks);
  }
  std::vector<std::thread> threads;
  for (int rank = 0; rank < options_.ranks; ++rank) {
    threads.emplace_back([this, rank, &function] {
      if (baton()) enter(rank, 0);
      function(rank);
      if (baton()) leave();
    });
  }
  for (std::thread& thread : threads) thread.join();
  const lock_type lock(mutex_);
  wire_.drain();
}

inline void engine::spawn(int rank, std::uint32_t helpers) {
  const lock_type lock(mutex_);
  if (self() != nullptr) scheduler_.spawn(*scheduler_.worker(rank, 0), helpers);
}

inline void engine::enter(int rank, std::uint32_t worker) {
  lock_type lock(mutex_);
  actor* me = scheduler_.worker(rank, worker);
  if (me == nullptr) return;
  calling_thread() = {this, me};
  scheduler_.attach(*me, lock);
}

inline void engine::leave() {
  const lock_type lock(mutex_);
  actor* me = self();
  if (me == nullptr) return;
  calling_thread() = {};
  scheduler_.leave(*me);
}

inline void engine::join() {
  lock_type lock(mutex_);
  if (actor* me = self(); me != nullptr) scheduler_.join(*me, lock);
}

inline void engine::wait_word(int rank, const wait_for& what) {
  lock_type lock = begin_operation(rank);
  sleep(rank, what, lock);
}

inline void engine::advance(int rank, std::uint64_t ns) {
  const lock_type lock = begin_operation(rank);
  clock(rank).ns += static_cast<double>(ns);
}

inline double engine::modelled_ns(int rank) {
  const lock_type lock(mutex_);
  return timing_.clock(rank).ns - measured_from_ns_;
}

inline void engine::reset_statistics() {
  const lock_type lock(mutex_);
  for (auto& each : ranks_) {
    each->messages = 0;
    each->bytes = 0;
    each->inter_messages = 0;
    each->inter_bytes = 0;
  }
  timing_.meet();
  timing_.idle(timing_.clock(0).ns);
  if (inner_) inner_timing_->idle(timing_.clock(0).ns);
  measured_from_ns_ = timing_.clock(0).ns;
}

inline loopback_traffic engine::traffic(int rank) {
  const rank_state& own = state(rank);
  return {.messages = own.messages,
          .bytes = own.bytes,
          .inter_messages = own.inter_messages,
          .inter_bytes = own.inter_bytes};
}

inline std::uint64_t engine::trace_hash() {
  const lock_type lock(mutex_);
  return trace_.hash();
}

inline std::string engine::violations() {
  const lock_type lock(mutex_);
  std::string text = violations_.text();
  for (int rank = 0; rank < options_.ranks; ++rank) {
    if (!state(rank).memory.canaries_intact()) {
      text += "the guard zone of rank " + std::to_string(rank) + "'s window was overwritten\n";
    }
  }
  return text;
}

}  // namespace eptransport::loopback_detail
