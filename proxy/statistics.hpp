// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief What an engine did, readable while it runs.
#pragma once

#include <eptransport/core/config.hpp>

#include <atomic>
#include <cstdint>
#include <string>

namespace eptransport::proxy {

/// A number that one thread adds to and any thread reads.
class counter {
 public:
  counter() = default;
  counter(const counter&) = delete;
  counter& operator=(const counter&) = delete;

  /// The writer's only. Relaxed: a statistic orders nothing.
  void add(std::uint64_t n) noexcept {
    value_.store(value_.load(std::memory_order_relaxed) + n, std::memory_order_relaxed);
  }
  /// The writer's only.
  void raise_to(std::uint64_t n) noexcept {
    if (n > value_.load(std::memory_order_relaxed)) value_.store(n, std::memory_order_relaxed);
  }
  /// Any thread's.
  [[nodiscard]] std::uint64_t get() const noexcept {
    return value_.load(std::memory_order_relaxed);
  }

 private:
  std::atomic<std::uint64_t> value_ = 0;
};

/// Of one engine. Everything counts from its construction.
///
/// @par Threads  Any may read; the numbers of one reading need not fit each other exactly.
struct engine_statistics {
  counter commands;          ///< taken from rings
  counter local;             ///< of them, to the own rank
  counter writes;            ///< posted for commands
  counter messages;          ///< posted, grouped
  counter grouped;           ///< commands that travelled inside messages
  counter credit_writes;     ///< posted to return credits
  counter bytes;             ///< posted: payloads of writes, whole messages
  counter batches;           ///< doorbells: posts without `more`
  counter again;             ///< posts that the endpoint did not take at once
  counter credit_stalls;     ///< visits that left a peer's commands waiting for credits
  counter full_stalls;       ///< visits that left commands in a ring, no room further on
  counter polls;             ///< of the completion queue that found something
  counter completions;       ///< reaped
  counter immediates;        ///< arrived
  counter arrived_messages;  ///< arrived
  counter signals;           ///< signal words published
  counter max_in_flight;     ///< most operations at once
  counter steps;             ///< that moved something
  counter idle;              ///< steps that found nothing to do
  counter naps;              ///< taken by the thread while there was nothing to do

  /// One JSON object without line breaks.
  [[nodiscard]] std::string json() const {
    std::string text = "{";
    const auto put = [&text](const char* name, const counter& value) {
      text += (text.size() > 1 ? ", \"" : "\"") + std::string(name) +
              "\": " + std::to_string(value.get());
    };
    put("commands", commands);
    put("local", local);
    put("writes", writes);
    put("messages", messages);
    put("grouped", grouped);
    put("credit_writes", credit_writes);
    put("bytes", bytes);
    put("batches", batches);
    put("again", again);
    put("credit_stalls", credit_stalls);
    put("full_stalls", full_stalls);
    put("polls", polls);
    put("completions", completions);
    put("immediates", immediates);
    put("arrived_messages", arrived_messages);
    put("signals", signals);
    put("max_in_flight", max_in_flight);
    put("steps", steps);
    put("idle", idle);
    put("naps", naps);
    return text + "}";
  }
};

}  // namespace eptransport::proxy
