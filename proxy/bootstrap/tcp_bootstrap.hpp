// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief A bootstrap over TCP: rank 0 listens, the others come, all know each other.
///
/// Includes Asio: only the file that joins needs this header, all others `bootstrap.hpp`. Frames,
/// states, timing and what the token protects from: docs/bootstrap.md.
#pragma once

#include <eptransport/core/config.hpp>
#include <eptransport/core/result.hpp>
#include <eptransport/proxy/bootstrap/bootstrap.hpp>
#include <eptransport/proxy/bootstrap/detail/board.hpp>
#include <eptransport/proxy/bootstrap/detail/hub.hpp>
#include <eptransport/proxy/bootstrap/detail/member.hpp>
#include <eptransport/proxy/bootstrap/detail/node.hpp>
#include <eptransport/proxy/bootstrap/detail/payload.hpp>
#include <eptransport/proxy/bootstrap/detail/system.hpp>
#include <eptransport/proxy/bootstrap/listening_socket.hpp>
#include <eptransport/proxy/bootstrap/options.hpp>

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <map>
#include <memory>
#include <optional>
#include <pthread.h>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <unistd.h>
#include <utility>
#include <vector>

namespace eptransport {

/// One rank's end. A background thread answers and watches the others; it takes no signal.
class tcp_bootstrap final : public bootstrap {
 public:
  static constexpr std::size_t config_limit = 1024;
  /// How long the destructor waits for others to hear the goodbye.
  static constexpr std::uint64_t closing_ns = 500'000'000;

  /// Returns once all ranks have joined.
  ///
  /// @par Errors  `invalid_argument`; `timed_out` with the ranks that have not arrived, or with
  ///              what keeps this rank from rank 0; `mismatch` with the rank whose token, version,
  ///              size, number or config differs; errno where rank 0 cannot listen;
  ///              `transport_failed` where the system gives no descriptor, thread or host identity
  [[nodiscard]] static result<std::unique_ptr<bootstrap>> join(const bootstrap_options& options) {
    listening_socket listener(options.listener);
    const auto end = bootstrap_detail::after(options.timeout_ns);
    if (auto good = check(options); !good) return good.error();
    std::vector<bootstrap_detail::tcp::endpoint> hubs;
    if (options.rank == 0 && options.size > 1 && listener.get() < 0) {
      auto opened = listening_socket::open(options.host, options.port);
      if (!opened) return opened.error();
      listener = std::move(*opened);
    } else if (options.rank != 0) {
      auto found = bootstrap_detail::resolve(options.host, options.port, end);
      if (!found) return found.error();
      hubs = std::move(*found);
    }
    auto made = make(options, std::move(listener), std::move(hubs));
    if (!made) return made.error();
    if (auto met = (*made)->meet(options, end); !met) return met.error();
    return result<std::unique_ptr<bootstrap>>(std::move(*made));
  }

  ~tcp_bootstrap() override {
    boost::asio::post(context_, [this] {
      node_->leave();
      context_.stop();  // the thread goes on for `closing_ns` at most
    });
    thread_.join();
  }

  [[nodiscard]] std::int32_t rank() const noexcept override { return rank_; }
  [[nodiscard]] std::int32_t size() const noexcept override { return size_; }
  [[nodiscard]] const std::vector<rank_place>& places() const noexcept override { return places_; }
  [[nodiscard]] std::size_t max_bytes() const noexcept override {
    return bootstrap_detail::part_limit;
  }

  [[nodiscard]] result<std::vector<std::vector<std::byte>>> all_gather(
      std::span<const std::byte> bytes, std::uint64_t timeout_ns) override {
    return call({bootstrap_detail::call_kind::all_gather, -1, {bytes.begin(), bytes.end()}},
                bootstrap_detail::after(timeout_ns));
  }
  [[nodiscard]] result<void> barrier(std::uint64_t timeout_ns) override {
    const auto met =
        call({bootstrap_detail::call_kind::barrier, -1, {}}, bootstrap_detail::after(timeout_ns));
    return met ? result<void>() : result<void>(met.error());
  }
  [[nodiscard]] result<std::vector<std::byte>> broadcast(std::int32_t root,
                                                         std::span<const std::byte> bytes,
                                                         std::uint64_t timeout_ns) override {
    if (root < 0 || root >= size_) {
      return failure{errc::invalid_argument, "bootstrap::broadcast",
                     "from rank " + std::to_string(root) + " of " + std::to_string(size_)};
    }
    std::vector<std::byte> given;
    if (root == rank_) given.assign(bytes.begin(), bytes.end());
    auto all = call({bootstrap_detail::call_kind::broadcast, root, std::move(given)},
                    bootstrap_detail::after(timeout_ns));
    if (!all) return all.error();
    return std::move((*all)[static_cast<std::size_t>(root)]);
  }

  void abort(std::string_view why) override {
    std::string text(why.substr(0, bootstrap_detail::text_limit / 2));
    board_.fail({errc::peer_stopped, "bootstrap",
                 "rank " + std::to_string(rank_) + " (this rank) has aborted: " + text});
    boost::asio::post(context_, [this, text = std::move(text)] { node_->abort(text); });
  }
  [[nodiscard]] bool healthy() const noexcept override { return board_.healthy(); }
  [[nodiscard]] result<void> status() const override { return board_.status(); }
  [[nodiscard]] std::vector<std::int32_t> lost() const override { return board_.lost(); }

 private:
  using parts = bootstrap_detail::board::parts;
  using time_point = bootstrap_detail::clock::time_point;

  tcp_bootstrap(bootstrap_options options, listening_socket listener,
                std::vector<bootstrap_detail::tcp::endpoint> hubs)
      : rank_(options.rank), size_(options.size) {
    if (rank_ == 0) {
      if (listener.get() >= 0) options.port = listener.port();
      node_ =
          std::make_unique<bootstrap_detail::hub>(context_, board_, options, std::move(listener));
    } else {
      node_ =
          std::make_unique<bootstrap_detail::member>(context_, board_, options, std::move(hubs));
    }
    const no_signals here;  // the thread inherits it
    thread_ = std::thread([this] { run(); });
  }

  /// Asio and threads throw where the system gives no descriptor or thread.
  [[nodiscard]] static result<std::unique_ptr<tcp_bootstrap>> make(
      const bootstrap_options& options, listening_socket listener,
      std::vector<bootstrap_detail::tcp::endpoint> hubs) {
#if defined(__cpp_exceptions)
    try {
#endif
      return result<std::unique_ptr<tcp_bootstrap>>(std::unique_ptr<tcp_bootstrap>(
          new tcp_bootstrap(options, std::move(listener), std::move(hubs))));
#if defined(__cpp_exceptions)
    } catch (const std::exception& thrown) {
      return failure{errc::transport_failed, "bootstrap::join", thrown.what()};
    }
#endif
  }

  /// Blocks all signals in this thread.
  class no_signals {
   public:
    no_signals() {
      sigset_t all;
      (void)sigfillset(&all);
      (void)pthread_sigmask(SIG_SETMASK, &all, &before_);
    }
    no_signals(const no_signals&) = delete;
    no_signals& operator=(const no_signals&) = delete;
    ~no_signals() { (void)pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

   private:
    sigset_t before_{};
  };

  void run() {
    (void)pthread_setname_np(pthread_self(), "ept-bootstrap");
    {
      const auto stay = boost::asio::make_work_guard(context_);
      node_->start();
      context_.run();
    }
    context_.restart();
    context_.run_for(std::chrono::nanoseconds(closing_ns));  // less, once all connections ended
  }

  [[nodiscard]] static result<void> check(const bootstrap_options& o) {
    const auto refuse = [](const std::string& why) {
      return failure{errc::invalid_argument, "bootstrap::join", why};
    };
    const auto number = [](auto value) { return std::to_string(value); };
    if (o.size < 1 || o.rank < 0 || o.rank >= o.size) {
      return refuse("rank " + number(o.rank) + " of " + number(o.size));
    }
    if (o.token.empty()) return refuse("no token; every rank needs the same, long and random");
    if (o.config.size() > config_limit) {
      return refuse("a config of " + number(o.config.size()) + " bytes, at most " +
                    number(config_limit) + " are possible; give a hash of it");
    }
    if (o.size > 1 && o.port == 0 && o.listener < 0) {
      return refuse("port 0; all ranks need the port of rank 0");
    }
    constexpr std::uint64_t longest = 1'000'000'000'000'000;  // 11 days
    if (o.beat_ns == 0 || o.silence_ns / 2 < o.beat_ns || o.silence_ns > longest) {
      return refuse("silence_ns " + number(o.silence_ns) + " with beat_ns " + number(o.beat_ns) +
                    "; it must be twice as long at least, and at most " + number(longest));
    }
    bootstrap_detail::nonce unused;
    if (::getentropy(unused.data(), unused.size()) != 0) {
      return failure{std::error_code(errno, std::system_category()), "getentropy"};
    }
    return {};
  }

  /// The first call: all ranks are here, and tell who they are.
  [[nodiscard]] result<void> meet(const bootstrap_options& options, time_point end) {
    bootstrap_detail::identity_payload own{bootstrap_detail::host_name(), options.host_identity,
                                           options.config};
    if (own.identity.empty()) {
      auto of_this_host = bootstrap_detail::host_identity();
      if (!of_this_host) return of_this_host.error();
      own.identity = std::move(*of_this_host);
    }
    const auto all = call({bootstrap_detail::call_kind::join, -1, own.write()}, end);
    if (!all) return all.error();
    std::vector<std::string> configs;
    std::map<std::string, std::pair<std::int32_t, std::int32_t>> nodes;  // index, ranks so far
    for (const std::vector<std::byte>& bytes : *all) {
      bootstrap_detail::identity_payload its;
      if (!its.read(bytes)) {
        return failure{errc::mismatch, "bootstrap::join",
                       "rank " + std::to_string(configs.size()) + " does not say who it is"};
      }
      configs.push_back(std::move(its.config));
      const auto count = static_cast<std::int32_t>(nodes.size());
      const auto at = nodes.try_emplace(its.identity, count, 0).first;
      places_.push_back(
          {std::move(its.host), std::move(its.identity), at->second.first, at->second.second++});
    }
    if (std::string differs = difference("config", configs); !differs.empty()) {
      return failure{errc::mismatch, "bootstrap::join", std::move(differs)};
    }
    return {};
  }

  [[nodiscard]] result<parts> call(bootstrap_detail::part_payload part, time_point end) {
    if (part.bytes.size() > bootstrap_detail::part_limit) {
      return failure{errc::invalid_argument, "bootstrap",
                     std::to_string(part.bytes.size()) + " bytes for one call, at most " +
                         std::to_string(bootstrap_detail::part_limit) + " are possible"};
    }
    if (calling_.exchange(true)) {
      return failure{errc::misuse, "bootstrap", "another thread is in a collective call"};
    }
    auto got = exchange(std::move(part), end);
    calling_.store(false);
    return got;
  }

  [[nodiscard]] result<parts> exchange(bootstrap_detail::part_payload part, time_point end) {
    const std::uint32_t number = ++calls_;
    boost::asio::post(context_, [this, number, part = std::move(part)]() mutable {
      node_->contribute(number, std::move(part));
    });
    auto got = board_.await(number, end);
    if (got) return std::move(*got);
    boost::asio::post(context_, [this, number] { node_->expire(number); });
    got = board_.await(number, bootstrap_detail::after(answer_ns));
    if (got) return std::move(*got);
    failure silent{
        errc::timed_out, "bootstrap",
        "rank 0 did not answer when the deadline of rank " + std::to_string(rank_) + " ended"};
    board_.fail(silent);
    return silent;
  }

  /// After a deadline, how long rank 0 has to say who is missing.
  static constexpr std::uint64_t answer_ns = 1'000'000'000;

  std::int32_t rank_;
  std::int32_t size_;
  std::vector<rank_place> places_;
  std::atomic<bool> calling_{false};
  std::uint32_t calls_ = 0;
  bootstrap_detail::board board_;
  boost::asio::io_context context_{1};
  std::unique_ptr<bootstrap_detail::node> node_;
  std::thread thread_;
};

}  // namespace eptransport
