// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief One TCP connection that carries frames both ways, on the bootstrap's own thread.
#pragma once

#include <eptransport/core/config.hpp>
#include <eptransport/proxy/bootstrap/detail/board.hpp>
#include <eptransport/proxy/bootstrap/detail/frame.hpp>

#if !__has_include(<boost/asio/io_context.hpp>)
#error "A bootstrap over TCP needs Boost.Asio, 1.74 or later, headers only (Debian: libboost-dev)."
#endif
#include <boost/asio/basic_socket_acceptor.hpp>
#include <boost/asio/basic_stream_socket.hpp>
#include <boost/asio/basic_waitable_timer.hpp>
#include <boost/asio/buffer.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/write.hpp>

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace eptransport::bootstrap_detail {

namespace asio = boost::asio;
using asio::ip::tcp;
// Of the one executor there is: half the compile time of the type-erased defaults.
using executor = asio::io_context::executor_type;
using tcp_socket = asio::basic_stream_socket<tcp, executor>;
using tcp_acceptor = asio::basic_socket_acceptor<tcp, executor>;
using timer = asio::basic_waitable_timer<std::chrono::steady_clock,
                                         asio::wait_traits<std::chrono::steady_clock>, executor>;
using boost_error = boost::system::error_code;
using shared_bytes = std::shared_ptr<const std::vector<std::byte>>;

[[nodiscard]] inline shared_bytes make_frame(frame_kind kind, std::uint32_t call = 0,
                                             std::span<const std::byte> payload = {}) {
  return std::make_shared<const std::vector<std::byte>>(encode(kind, call, payload));
}

/// Calls `on_frame` for each frame, and `on_end` once, when the other end or a malformed frame has
/// ended the connection; neither after `cut`.
class link : public std::enable_shared_from_this<link> {
 public:
  using frame_handler = std::function<void(frame&)>;
  using end_handler = std::function<void(const std::string& why)>;

  explicit link(tcp_socket socket) : socket_(std::move(socket)) {
    boost_error ignored;
    socket_.set_option(tcp::no_delay(true), ignored);
    const tcp::endpoint other = socket_.remote_endpoint(ignored);
    name_ = other.address().to_string() + ":" + std::to_string(other.port());
  }

  void start(frame_handler on_frame, end_handler on_end) {
    handle(std::move(on_frame), std::move(on_end));
    read();
  }
  /// From now on, others handle what comes.
  void handle(frame_handler on_frame, end_handler on_end) {
    on_frame_ = std::move(on_frame);
    on_end_ = std::move(on_end);
  }
  /// The other end has proved itself.
  void trust() noexcept { parser_.allow(payload_limit); }

  void send(shared_bytes bytes) {
    if (!open_ || finishing_) return;
    last_sent_ = clock::now();
    queue_.push_back(std::move(bytes));
    if (queue_.size() == 1) write();
  }
  /// Ends the connection once all has been sent; the other end's frames are read and dropped, so
  /// that it can read what was sent. `on_end` is not called.
  void finish() {
    finishing_ = true;
    on_frame_ = nullptr;
    on_end_ = nullptr;
    if (queue_.empty()) shut_down();
  }
  /// Ends it now.
  void cut() {
    open_ = false;
    on_frame_ = nullptr;
    on_end_ = nullptr;
    boost_error ignored;
    socket_.close(ignored);
  }

  [[nodiscard]] bool is_open() const noexcept { return open_; }
  [[nodiscard]] const std::string& name() const noexcept { return name_; }
  [[nodiscard]] clock::time_point last_heard() const noexcept { return last_heard_; }
  [[nodiscard]] clock::time_point last_sent() const noexcept { return last_sent_; }
  /// What was heard before now says nothing about silence.
  void grant_time() noexcept { last_heard_ = clock::now(); }

 private:
  void shut_down() {
    boost_error ignored;
    socket_.shutdown(tcp_socket::shutdown_send, ignored);
  }

  void read() {
    socket_.async_read_some(
        asio::buffer(chunk_), [self = shared_from_this()](boost_error error, std::size_t bytes) {
          if (!self->open_) return;
          if (error) {
            self->end(error == asio::error::eof ? "its connection closed"
                                                : "its connection broke: " + error.message());
            return;
          }
          self->last_heard_ = clock::now();
          if (!self->finishing_) self->take(std::span(self->chunk_).first(bytes));
          if (self->open_) self->read();
        });
  }

  void take(std::span<const std::byte> bytes) {
    parser_.push(bytes);
    while (open_ && on_frame_) {
      const parse_state state = parser_.next(frame_);
      if (state == parse_state::more) return;
      if (state == parse_state::broken) {
        end(parser_.why());
        return;
      }
      const frame_handler handler = on_frame_;  // a handler may cut the link
      handler(frame_);
    }
  }

  void write() {
    asio::async_write(
        socket_, asio::buffer(queue_.front()->data(), queue_.front()->size()),
        [self = shared_from_this(), held = queue_.front()](boost_error error, std::size_t) {
          if (error || !self->open_) return;  // the reader will see the end
          self->queue_.pop_front();
          if (!self->queue_.empty()) {
            self->write();
          } else if (self->finishing_) {
            self->shut_down();
          }
        });
  }

  void end(const std::string& why) {
    const end_handler handler = std::exchange(on_end_, nullptr);
    cut();
    if (handler) handler(why);
  }

  tcp_socket socket_;
  std::string name_;
  frame_handler on_frame_;
  end_handler on_end_;
  frame_parser parser_;
  frame frame_;
  std::array<std::byte, 4096> chunk_{};
  std::deque<shared_bytes> queue_;
  clock::time_point last_heard_ = clock::now();
  clock::time_point last_sent_ = clock::now();
  bool open_ = true;
  bool finishing_ = false;
};

}  // namespace eptransport::bootstrap_detail
