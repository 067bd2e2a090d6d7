// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief What the hub and the other ranks have in common: calls from outside, the beat.
#pragma once

#include <eptransport/core/config.hpp>
#include <eptransport/core/result.hpp>
#include <eptransport/proxy/bootstrap/detail/board.hpp>
#include <eptransport/proxy/bootstrap/detail/link.hpp>
#include <eptransport/proxy/bootstrap/detail/payload.hpp>
#include <eptransport/proxy/bootstrap/options.hpp>

#include <boost/asio/io_context.hpp>

#include <chrono>
#include <cstdint>
#include <string>
#include <unistd.h>
#include <utility>

namespace eptransport::bootstrap_detail {

/// One rank's end of the protocol. All of it runs on the thread that runs the context.
class node {
 public:
  node(asio::io_context& context, board& to, const bootstrap_options& options)
      : context_(context), board_(to), options_(options), next_beat_(context) {}
  node(const node&) = delete;
  node& operator=(const node&) = delete;
  virtual ~node() = default;

  virtual void start() = 0;
  virtual void contribute(std::uint32_t call, part_payload part) = 0;
  /// The call has met this rank's deadline; `board` fails with who is missing.
  virtual void expire(std::uint32_t call) = 0;
  virtual void abort(const std::string& why) = 0;
  /// Says goodbye. Afterwards the context runs dry as the other ends close.
  virtual void leave() = 0;

 protected:
  /// Once a beat.
  virtual void tick(clock::time_point now) = 0;
  /// This process stood still: what others did not say meanwhile proves nothing.
  virtual void forgive() = 0;

  void start_beating() {
    next_tick_ = clock::now() + beat();
    next_beat_.expires_at(next_tick_);
    next_beat_.async_wait([this](boost_error error) {
      if (error) return;
      const auto now = clock::now();
      if (now - next_tick_ > silence() / 2) forgive();
      tick(now);
      if (!left_) start_beating();
    });
  }
  void stop_beating() {
    left_ = true;
    next_beat_.cancel();
  }
  [[nodiscard]] std::chrono::nanoseconds beat() const {
    return std::chrono::nanoseconds(options_.beat_ns);
  }
  [[nodiscard]] std::chrono::nanoseconds silence() const {
    return std::chrono::nanoseconds(options_.silence_ns);
  }
  /// "has been silent for 5.0 s", or an empty string.
  [[nodiscard]] std::string silent(const link& other, clock::time_point now) const {
    const auto quiet = now - other.last_heard();
    if (quiet <= silence()) return {};
    const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(quiet).count();
    return "it has been silent for " + std::to_string(ms) + " ms";
  }
  [[nodiscard]] std::string where() const {
    return options_.host + ":" + std::to_string(options_.port);
  }
  [[nodiscard]] static nonce draw_nonce() {
    nonce drawn{};
    if (::getentropy(drawn.data(), drawn.size()) != 0) drawn = {};  // join has tried it before
    return drawn;
  }
  static void send(link& to, frame_kind kind, const notice_payload& notice) {
    to.send(make_frame(kind, 0, notice.write()));
  }

  asio::io_context& context_;
  board& board_;
  bootstrap_options options_;
  bool left_ = false;

 private:
  timer next_beat_;
  clock::time_point next_tick_{};
};

}  // namespace eptransport::bootstrap_detail
