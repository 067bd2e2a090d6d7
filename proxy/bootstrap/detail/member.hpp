// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The end of every other rank: finds rank 0, proves itself, gives, takes, watches rank 0.
///
///     connect -> hello -> challenge -> proof -> welcome -> live
///        ^---------------- any failure before welcome, until the deadline of join
#pragma once

#include <eptransport/core/config.hpp>
#include <eptransport/core/result.hpp>
#include <eptransport/proxy/bootstrap/detail/board.hpp>
#include <eptransport/proxy/bootstrap/detail/link.hpp>
#include <eptransport/proxy/bootstrap/detail/node.hpp>
#include <eptransport/proxy/bootstrap/detail/payload.hpp>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace eptransport::bootstrap_detail {

class member final : public node {
 public:
  /// @param hubs  addresses of rank 0, tried in turn; not empty
  member(asio::io_context& context, board& to, const bootstrap_options& options,
         std::vector<tcp::endpoint> hubs)
      : node(context, to, options), hubs_(std::move(hubs)), socket_(context), pause_(context) {}

  void start() override { connect(); }
  void contribute(std::uint32_t call, part_payload part) override {
    call_ = call;
    collected_.clear();
    if (stage_ == stage::live) {
      link_->send(make_frame(frame_kind::part, call, part.write()));
    } else {
      waiting_ = std::move(part);
    }
  }
  void expire(std::uint32_t call) override {
    if (stage_ == stage::live) return link_->send(make_frame(frame_kind::expired, call));
    board_.fail({errc::timed_out, "bootstrap::join",
                 "rank " + std::to_string(options_.rank) + " did not reach rank 0 at " + where() +
                     " in " + std::to_string(attempts_) + " attempts; the last one: " + trouble_});
  }
  void abort(const std::string& why) override {
    if (stage_ == stage::live) send(*link_, frame_kind::abort, {0, options_.rank, why});
  }
  void leave() override {
    stop_beating();
    pause_.cancel();
    boost_error ignored;
    socket_.close(ignored);
    if (stage_ == stage::live) {
      link_->send(make_frame(frame_kind::bye));
      link_->finish();
    } else if (link_) {
      link_->cut();
    }
    stage_ = stage::over;
  }

 private:
  enum class stage { connecting, greeted, proved, live, over };

  // Before the welcome.

  void connect() {
    ++attempts_;
    own_ = draw_nonce();  // an answer to an earlier attempt is none to this one
    stage_ = stage::connecting;
    boost_error ignored;
    socket_.close(ignored);
    const tcp::endpoint to = hubs_[next_hub_++ % hubs_.size()];
    // An address that swallows packets must not keep the next one from its turn.
    pause_.expires_after(std::chrono::seconds(3));
    pause_.async_wait([this](boost_error error) {
      if (!error) socket_.close(error);
    });
    socket_.async_connect(to, [this](boost_error error) {
      if (left_) return;
      pause_.cancel();
      if (error) {
        return try_again(error == asio::error::operation_aborted ? "no answer" : error.message());
      }
      link_ = std::make_shared<link>(std::move(socket_));
      link_->start([this](frame& f) { on_frame(f); },
                   [this](const std::string& why) { on_end(why); });
      link_->send(make_frame(frame_kind::hello, 0, hello_payload{own_}.write()));
      stage_ = stage::greeted;
      limit_silence();
    });
  }
  /// What listens there may be no rank 0. Once it has answered it is one, and takes its time.
  void limit_silence() {
    pause_.expires_after(std::chrono::nanoseconds(options_.silence_ns));
    pause_.async_wait([this](boost_error error) {
      if (!error && !left_ && stage_ == stage::greeted) on_end("it does not answer");
    });
  }
  void try_again(const std::string& why) {
    trouble_ = why;
    const bool round_over = next_hub_ % hubs_.size() == 0;
    pause_.expires_after(round_over ? wait_ : std::chrono::milliseconds(0));
    if (round_over) wait_ = std::min(wait_ * 2, std::chrono::milliseconds(250));
    pause_.async_wait([this](boost_error error) {
      if (!error && !left_) connect();
    });
  }
  void refused(errc code, const std::string& why) {
    link_->cut();
    stage_ = stage::over;
    board_.fail({code, "bootstrap::join",
                 "rank " + std::to_string(options_.rank) + " at rank 0's " + where() + ": " + why});
  }

  void on_handshake(frame& f) {
    if (f.kind == frame_kind::refuse) {
      notice_payload notice;
      if (!notice.read(f.payload)) return on_end("it sent a malformed notice");
      return refused(code_of(notice), notice.text);
    }
    if (stage_ == stage::greeted) {
      challenge_payload challenge;
      if (f.kind != frame_kind::challenge || !challenge.read(f.payload)) {
        return on_end("it answers with another frame than expected");
      }
      pause_.cancel();
      theirs_ = challenge.own;
      proof_payload proof{.rank = options_.rank, .size = options_.size};
      proof.proof = rank_proof(options_.token, own_, theirs_, proof);
      link_->trust();  // what comes next may be a notice; the welcome must prove itself below
      link_->send(make_frame(frame_kind::proof, 0, proof.write()));
      stage_ = stage::proved;
      return;
    }
    welcome_payload welcome;
    if (f.kind != frame_kind::welcome || !welcome.read(f.payload)) {
      return on_end("it answers with another frame than expected");
    }
    if (!same_digest(welcome.proof, hub_proof(options_.token, own_, theirs_, welcome))) {
      return refused(errc::mismatch, "what listens there does not know this job's token");
    }
    options_.beat_ns = std::max<std::uint64_t>(welcome.beat_ns, 1'000'000);
    options_.silence_ns = std::max(welcome.silence_ns, 2 * options_.beat_ns);
    stage_ = stage::live;
    start_beating();
    if (waiting_) contribute(call_, *std::exchange(waiting_, std::nullopt));
  }

  // Live.

  void on_frame(frame& f) {
    if (stage_ != stage::live) return on_handshake(f);
    switch (f.kind) {
      case frame_kind::beat:
        return;
      case frame_kind::parts: {
        parts_payload parts;
        if (!parts.read(f.payload)) break;
        return collect(f.call, parts);
      }
      case frame_kind::lost:
      case frame_kind::left:
      case frame_kind::fail: {
        notice_payload notice;
        if (!notice.read(f.payload)) break;
        return heed(f.kind, notice);
      }
      case frame_kind::bye:
        stage_ = stage::over;
        stop_beating();
        link_->cut();
        return board_.end_calls(
            {errc::transport_failed, "bootstrap", "rank 0 has left, no call can complete"});
      default:
        break;
    }
    lose_hub("it sent a frame that makes no sense here");
  }

  void collect(std::uint32_t call, parts_payload& parts) {
    const auto size = static_cast<std::size_t>(options_.size);
    if (call != call_ || parts.first != collected_.size() ||
        parts.of_rank.size() > size - collected_.size()) {
      return lose_hub("it sent parts of another call");
    }
    for (auto& bytes : parts.of_rank) collected_.push_back(std::move(bytes));
    if (collected_.size() == size) board_.deliver(call, std::exchange(collected_, {}));
  }

  void heed(frame_kind kind, const notice_payload& notice) {
    std::string text = notice.text;
    if (kind == frame_kind::left) {
      return board_.end_calls({code_of(notice), "bootstrap", std::move(text)});
    }
    if (kind == frame_kind::lost) {
      board_.lose(notice.rank);
      if (notice.rank == options_.rank) {  // and the hub no longer listens
        text = "the others gave this rank up: " + text;
        stage_ = stage::over;
        stop_beating();
        link_->cut();
      }
    }
    board_.fail({code_of(notice), "bootstrap", std::move(text)});
  }

  void on_end(const std::string& why) {
    if (stage_ == stage::live) return lose_hub(why);
    if (link_) link_->cut();
    if (stage_ != stage::over) try_again(why);
  }
  void lose_hub(const std::string& why) {
    const std::string text = "rank 0 is lost: " + why;
    send(*link_, frame_kind::lost,
         {static_cast<std::uint32_t>(errc::transport_failed), 0, text});  // in case it only slept
    link_->finish();
    stage_ = stage::over;
    stop_beating();
    board_.lose(0);
    board_.fail({errc::transport_failed, "bootstrap", text});
  }

  void tick(clock::time_point now) override {
    if (const std::string quiet = silent(*link_, now); !quiet.empty()) return lose_hub(quiet);
    link_->send(make_frame(frame_kind::beat));
  }
  void forgive() override { link_->grant_time(); }

  [[nodiscard]] static errc code_of(const notice_payload& notice) {
    const bool known = notice.code >= static_cast<std::uint32_t>(errc::invalid_argument) &&
                       notice.code <= static_cast<std::uint32_t>(errc::transport_failed);
    return known ? static_cast<errc>(notice.code) : errc::transport_failed;
  }

  std::vector<tcp::endpoint> hubs_;
  std::size_t next_hub_ = 0;
  tcp_socket socket_;  ///< while it connects
  timer pause_;        ///< between attempts, and the limit of one until rank 0 answers
  std::chrono::milliseconds wait_{10};
  std::uint64_t attempts_ = 0;
  std::string trouble_ = "no answer";

  stage stage_ = stage::connecting;
  std::shared_ptr<link> link_;
  nonce own_ = draw_nonce();
  nonce theirs_{};
  std::uint32_t call_ = 0;
  std::optional<part_payload> waiting_;  ///< given before the welcome
  std::vector<std::vector<std::byte>> collected_;
};

}  // namespace eptransport::bootstrap_detail
