// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Rank 0's end: lets ranks in, collects what they give, watches them, tells all.
///
/// A connection is a *stranger* until it has proved that it knows the token: it may send two frames
/// of fixed size within `silence_ns`, gets a random number back, and touches nothing else. Once all
/// ranks are here, nobody else is listened to.
#pragma once

#include <eptransport/core/config.hpp>
#include <eptransport/core/result.hpp>
#include <eptransport/proxy/bootstrap/bootstrap.hpp>
#include <eptransport/proxy/bootstrap/detail/board.hpp>
#include <eptransport/proxy/bootstrap/detail/link.hpp>
#include <eptransport/proxy/bootstrap/detail/node.hpp>
#include <eptransport/proxy/bootstrap/detail/payload.hpp>
#include <eptransport/proxy/bootstrap/listening_socket.hpp>

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <span>
#include <string>
#include <sys/socket.h>
#include <utility>
#include <vector>

namespace eptransport::bootstrap_detail {

class hub final : public node {
 public:
  /// @param listener  none where there is one rank only
  hub(asio::io_context& context, board& to, const bootstrap_options& options,
      listening_socket listener)
      : node(context, to, options),
        acceptor_(context),
        members_(static_cast<std::size_t>(options.size)) {
    members_[0].is = presence::here;
    if (listener.get() < 0) return;
    sockaddr_storage own{};
    socklen_t length = sizeof own;
    (void)::getsockname(listener.get(), reinterpret_cast<sockaddr*>(&own), &length);
    acceptor_.assign(own.ss_family == AF_INET6 ? tcp::v6() : tcp::v4(), listener.get());
    (void)listener.release();  // only now: all before may throw
    acceptor_.non_blocking(true);
  }

  void start() override {
    if (acceptor_.is_open()) accept();
    if (options_.size > 1) start_beating();
  }
  void contribute(std::uint32_t call, part_payload part) override {
    take_part(0, call, std::move(part));
  }
  void expire(std::uint32_t call) override { expire_for(0, call); }
  void abort(const std::string& why) override { fail(errc::peer_stopped, 0, why); }
  void leave() override {
    stop_beating();
    boost_error ignored;
    acceptor_.close(ignored);
    for (stranger& s : strangers_) s.to->cut();
    strangers_.clear();
    for (member& m : members_) {
      if (!m.to || m.is != presence::here) continue;
      m.to->send(make_frame(frame_kind::bye));
      m.to->finish();
    }
  }

 private:
  enum class presence { absent, here, left, dead };
  struct member {
    presence is = presence::absent;
    bool gave = false;  ///< its part of the call in progress
    std::shared_ptr<link> to{};
  };
  struct stranger {
    std::shared_ptr<link> to;
    clock::time_point since = clock::now();
    nonce own = draw_nonce();
    nonce theirs{};
    bool challenged = false;
    bool refused = false;
  };
  using stranger_place = std::list<stranger>::iterator;

  // Strangers.

  void accept() {
    acceptor_.async_accept([this](boost_error error, tcp_socket socket) {
      if (!acceptor_.is_open()) return;
      deaf_ = bool(error);  // no descriptor is free, for example: the next tick listens again
      if (error) return;
      meet(std::move(socket));
      accept();
    });
  }

  void meet(tcp_socket socket) {
    const std::size_t most = members_.size() + 64;
    if (strangers_.size() >= most) drop(strangers_.begin());  // the oldest; a rank will try again
    const auto at = strangers_.insert(strangers_.end(),
                                      stranger{.to = std::make_shared<link>(std::move(socket))});
    at->to->start([this, at](frame& f) { on_stranger(at, f); },
                  [this, at](const std::string&) {
                    if (!at->challenged) ++turned_away_;
                    strangers_.erase(at);
                  });
  }
  void drop(stranger_place at) {
    if (!at->refused) ++turned_away_;
    at->to->cut();
    strangers_.erase(at);
  }
  void refuse(stranger_place at, errc code, const std::string& text) {
    at->refused = true;
    send(*at->to, frame_kind::refuse, {static_cast<std::uint32_t>(code), -1, text});
    at->to->finish();  // and the next ticks cut it if it stays
  }

  void on_stranger(stranger_place at, frame& f) {
    if (!at->challenged) {
      hello_payload hello;
      if (f.kind != frame_kind::hello || !hello.read(f.payload)) return drop(at);
      at->challenged = true;
      at->theirs = hello.own;
      at->to->send(make_frame(frame_kind::challenge, 0, challenge_payload{.own = at->own}.write()));
      return;
    }
    proof_payload proof;
    if (f.kind != frame_kind::proof || !proof.read(f.payload)) return drop(at);
    if (!same_digest(proof.proof, rank_proof(options_.token, at->theirs, at->own, proof))) {
      ++wrong_token_;
      last_wrong_ = at->to->name();
      return refuse(at, errc::mismatch, "its token is not that of rank 0");
    }
    admit(at, proof);
  }

  void admit(stranger_place at, const proof_payload& p) {
    const std::string who = "rank " + std::to_string(p.rank) + " (" + at->to->name() + ")";
    std::string wrong;
    if (p.version != protocol_version) {
      wrong = who + " speaks version " + std::to_string(p.version) +
              " of the bootstrap, rank 0 version " + std::to_string(protocol_version) +
              "; build all ranks from one version";
    } else if (p.size != options_.size || p.rank < 1 || p.rank >= options_.size) {
      wrong = who + " was told that there are " + std::to_string(p.size) +
              " ranks, rank 0 that there are " + std::to_string(options_.size);
    } else if (members_[static_cast<std::size_t>(p.rank)].is != presence::absent) {
      wrong = "two processes call themselves rank " + std::to_string(p.rank) + ", one of them at " +
              at->to->name();
    }
    if (!wrong.empty()) {
      refuse(at, errc::mismatch, wrong);
      return fail(errc::mismatch, p.rank, wrong);
    }
    if (ended_) return refuse(at, ended_code_, ended_text_);
    member& m = members_[static_cast<std::size_t>(p.rank)];
    m.is = presence::here;
    m.to = at->to;
    welcome_payload welcome{.beat_ns = options_.beat_ns, .silence_ns = options_.silence_ns};
    welcome.proof = hub_proof(options_.token, at->theirs, at->own, welcome);
    strangers_.erase(at);
    m.to->trust();
    m.to->send(make_frame(frame_kind::welcome, 0, welcome.write()));
    const std::int32_t rank = p.rank;
    m.to->handle([this, rank](frame& f) { on_member(rank, f); },
                 [this, rank](const std::string& why) { bury(rank, why); });
  }

  // Members.

  void on_member(std::int32_t rank, frame& f) {
    switch (f.kind) {
      case frame_kind::beat:
        return;
      case frame_kind::part: {
        part_payload part;
        if (!part.read(f.payload)) break;
        return take_part(rank, f.call, std::move(part));
      }
      case frame_kind::expired:
        return expire_for(rank, f.call);
      case frame_kind::abort: {
        notice_payload notice;
        if (!notice.read(f.payload)) break;
        return fail(errc::peer_stopped, rank, notice.text);
      }
      case frame_kind::lost: {
        notice_payload notice;
        if (!notice.read(f.payload)) break;
        members_[static_cast<std::size_t>(rank)].is = presence::left;
        members_[static_cast<std::size_t>(rank)].to->finish();
        return end(errc::transport_failed,
                   "rank " + std::to_string(rank) + " gave this rank up: " + notice.text);
      }
      case frame_kind::bye:
        return see_off(rank);
      default:
        break;
    }
    bury(rank, "it sent a frame that makes no sense here");
  }

  /// A rank has left in order.
  void see_off(std::int32_t rank) {
    member& m = members_[static_cast<std::size_t>(rank)];
    m.is = presence::left;
    m.to->finish();
    const std::string text = "rank " + std::to_string(rank) + " has left, no call can complete";
    tell(frame_kind::left, {static_cast<std::uint32_t>(errc::transport_failed), rank, text});
    board_.end_calls({errc::transport_failed, "bootstrap", text});
    if (!joined_) {
      fail(errc::transport_failed, rank,
           "rank " + std::to_string(rank) + " left while " + missing());
    }
  }

  /// A rank is dead.
  void bury(std::int32_t rank, const std::string& why) {
    member& m = members_[static_cast<std::size_t>(rank)];
    m.is = presence::dead;
    board_.lose(rank);
    const std::string text = "rank " + std::to_string(rank) + " is lost: " + why;
    const notice_payload notice{static_cast<std::uint32_t>(errc::transport_failed), rank, text};
    send(*m.to, frame_kind::lost, notice);  // in case it only slept
    m.to->finish();
    tell(frame_kind::lost, notice);
    end(errc::transport_failed, text);
  }

  void tell(frame_kind kind, const notice_payload& notice) {
    const shared_bytes bytes = make_frame(kind, 0, notice.write());
    for (member& m : members_) {
      if (m.to && m.is == presence::here) m.to->send(bytes);
    }
  }
  /// Ends all calls of all ranks.
  void fail(errc code, std::int32_t rank, const std::string& why) {
    if (ended_) return;
    std::string text = why;
    if (code == errc::peer_stopped) text = "rank " + std::to_string(rank) + " has aborted: " + why;
    tell(frame_kind::fail, {static_cast<std::uint32_t>(code), rank, text});
    end(code, text);
  }
  void end(errc code, const std::string& text) {
    board_.fail({code, "bootstrap", text});
    if (std::exchange(ended_, true)) return;
    ended_code_ = code;
    ended_text_ = text;
  }

  // Calls.

  void take_part(std::int32_t rank, std::uint32_t call, part_payload part) {
    if (ended_) return;
    member& m = members_[static_cast<std::size_t>(rank)];
    const std::string who = "rank " + std::to_string(rank);
    if (call != call_ || m.gave) {
      return fail(
          errc::misuse, rank,
          who + " makes call " + std::to_string(call) + ", due is call " + std::to_string(call_));
    }
    if (given_ == 0) {
      kind_ = part.kind;
      root_ = part.root;
      opener_ = rank;
      parts_.assign(members_.size(), {});
    } else if (part.kind != kind_ || part.root != root_) {
      const auto named = [](call_kind kind, std::int32_t root) {
        return std::string(to_string(kind)) +
               (kind == call_kind::broadcast ? " from rank " + std::to_string(root) : "");
      };
      return fail(errc::misuse, rank,
                  who + " calls " + named(part.kind, part.root) + ", rank " +
                      std::to_string(opener_) + " calls " + named(kind_, root_) +
                      ", both as call " + std::to_string(call_));
    }
    parts_[static_cast<std::size_t>(rank)] = std::move(part.bytes);
    m.gave = true;
    if (++given_ == members_.size()) complete();
  }

  void complete() {
    for (const shared_bytes& bytes : pack()) {
      for (member& m : members_) {
        if (m.to && m.is == presence::here) m.to->send(bytes);
      }
    }
    for (member& m : members_) m.gave = false;
    given_ = 0;
    if (!std::exchange(joined_, true)) close_doors();
    board_.deliver(call_++, std::exchange(parts_, {}));
  }
  /// The parts of all ranks in as few frames as the limit allows.
  [[nodiscard]] std::vector<shared_bytes> pack() const {
    std::vector<shared_bytes> frames;
    parts_payload packed;
    std::size_t bytes = 8;
    const auto close = [&] {
      frames.push_back(make_frame(frame_kind::parts, call_, packed.write()));
      packed.first += static_cast<std::uint32_t>(packed.of_rank.size());
      packed.of_rank.clear();
      bytes = 8;
    };
    for (const auto& part : parts_) {
      if (bytes + 4 + part.size() > payload_limit) close();
      packed.of_rank.push_back(part);
      bytes += 4 + part.size();
    }
    close();
    return frames;
  }
  void close_doors() {
    boost_error ignored;
    acceptor_.close(ignored);
    for (stranger& s : strangers_) s.to->cut();
    strangers_.clear();
  }

  void expire_for(std::int32_t rank, std::uint32_t call) {
    if (call != call_) return;
    fail(errc::timed_out, rank,
         missing() + " when the deadline of rank " + std::to_string(rank) + " ended");
  }
  /// Who keeps the call waiting.
  [[nodiscard]] std::string missing() const {
    std::vector<std::int32_t> absent;
    std::vector<std::int32_t> late;
    for (std::size_t r = 0; r < members_.size(); ++r) {
      const member& m = members_[r];
      if (m.is == presence::absent) absent.push_back(static_cast<std::int32_t>(r));
      if (m.is != presence::absent && !m.gave) late.push_back(static_cast<std::int32_t>(r));
    }
    std::string text;
    const auto have = [](const std::vector<std::int32_t>& ranks) {
      return name_ranks(ranks) + (ranks.size() == 1 ? " has" : " have");
    };
    if (!absent.empty()) text = have(absent) + " not arrived at " + where();
    if (!late.empty() && (joined_ || absent.empty())) {
      text += have(late) + " not come to call " + std::to_string(call_) +
              (given_ > 0 ? std::string(" (") + to_string(kind_) + ")" : "");
    }
    if (wrong_token_ > 0) {
      text += "; connections with another token: " + std::to_string(wrong_token_) +
              ", the last from " + last_wrong_;
    }
    if (turned_away_ > 0) text += "; strangers turned away: " + std::to_string(turned_away_);
    return text;
  }

  void tick(clock::time_point now) override {
    for (auto at = strangers_.begin(); at != strangers_.end();) {
      const auto here = at++;
      if (now - here->since > silence()) drop(here);
    }
    const shared_bytes alive = make_frame(frame_kind::beat);
    for (std::size_t r = 1; r < members_.size(); ++r) {
      member& m = members_[r];
      if (m.is != presence::here) continue;
      if (const std::string quiet = silent(*m.to, now); !quiet.empty()) {
        bury(static_cast<std::int32_t>(r), quiet);
      } else {
        m.to->send(alive);
      }
    }
    if (std::exchange(deaf_, false) && acceptor_.is_open()) accept();
  }
  void forgive() override {
    for (member& m : members_) {
      if (m.to) m.to->grant_time();
    }
  }

  tcp_acceptor acceptor_;
  std::list<stranger> strangers_;
  std::vector<member> members_;  ///< [size]; 0 is this rank
  bool joined_ = false;          ///< all ranks have come
  bool ended_ = false;           ///< no call can complete any more
  errc ended_code_ = errc::transport_failed;
  std::string ended_text_;
  bool deaf_ = false;
  std::uint64_t turned_away_ = 0;
  std::uint64_t wrong_token_ = 0;
  std::string last_wrong_;

  std::uint32_t call_ = 1;  ///< in progress, or due
  call_kind kind_ = call_kind::join;
  std::int32_t root_ = -1;
  std::int32_t opener_ = 0;
  std::size_t given_ = 0;
  std::vector<std::vector<std::byte>> parts_;
};

}  // namespace eptransport::bootstrap_detail
