// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Connections that are no ranks: the rendezvous goes on as if they were not there.
#include <eptransport/proxy/bootstrap/bootstrap.hpp>
#include <eptransport/proxy/bootstrap/detail/frame.hpp>
#include <eptransport/proxy/bootstrap/detail/payload.hpp>

#include <gtest/gtest.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "bootstrap/rig.hpp"

namespace eptransport {
namespace {

using namespace bootstrap_detail;
using support::joined;
using support::meeting;
using support::ms;
using support::patience;
using support::raw_client;

/// Ranks 0 and 1 of three wait; whatever comes then, rank 2 completes them.
class Strangers : public testing::Test {
 protected:
  Strangers() : at_(3) {
    for (std::int32_t rank = 0; rank < 2; ++rank) {
      waiting_.emplace_back([this, rank, options = at_.options(rank)] { meet(rank, options); });
    }
  }
  ~Strangers() override { complete(); }
  /// Rank 2 comes; all exchange and leave. Once.
  void complete() {
    if (std::exchange(completed_, true)) return;
    meet(2, at_.options(2));
    for (std::thread& rank : waiting_) rank.join();
  }
  void meet(std::int32_t rank, const bootstrap_options& options) {
    const joined self = support::join(options);
    ASSERT_TRUE(self) << "rank " << rank << ": " << self.error().message();
    const auto all = (*self)->all_gather(std::as_bytes(std::span(&rank, 1)), patience);
    ASSERT_TRUE(all) << all.error().message();
    EXPECT_EQ(all->size(), 3U);
    EXPECT_TRUE((*self)->barrier(patience));
    EXPECT_TRUE((*self)->healthy());
  }
  [[nodiscard]] raw_client connect() const { return raw_client(at_.port()); }

  meeting at_;
  std::vector<std::thread> waiting_;
  bool completed_ = false;
};

TEST_F(Strangers, RandomBytesGetNothingBack) {
  const std::uint64_t seed = support::fresh_seed();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 draw(seed);
  for (int i = 0; i < 100; ++i) {
    std::vector<std::byte> bytes(1 + draw() % 3000);
    for (std::byte& b : bytes) b = static_cast<std::byte>(draw());
    if (i % 3 == 0) {  // as far as the head, and then nonsense
      const auto head = encode(static_cast<frame_kind>(draw()), 0, {});
      bytes.insert(bytes.begin(), head.begin(), head.end());
    }
    const raw_client client = connect();
    client.send(bytes);
    const auto answer = client.drain(patience);
    ASSERT_TRUE(answer);  // closed
    EXPECT_TRUE(answer->empty());
  }
}

TEST_F(Strangers, AHandshakeCutAtAnyByteDisturbsNobody) {
  const auto hello = encode(frame_kind::hello, 0, hello_payload{}.write());
  for (std::size_t cut = 0; cut < hello.size(); ++cut) {
    connect().send(std::span(hello).first(cut));
  }
  const std::size_t proof_bytes = encode(frame_kind::proof, 0, proof_payload{}.write()).size();
  for (std::size_t cut = 0; cut < proof_bytes; ++cut) {
    raw_client client = connect();
    const auto proof = client.prove(2, 3, support::token);
    ASSERT_EQ(proof.size(), proof_bytes);
    client.send(std::span(proof).first(cut));
  }
}

TEST_F(Strangers, WrongProofsGetARefusalAndNoMore) {
  for (int i = 0; i < 40; ++i) {
    raw_client client = connect();
    auto proof = client.prove(2, 3, i % 2 == 0 ? "guess " + std::to_string(i) : support::token);
    ASSERT_FALSE(proof.empty());
    if (i % 2 == 1) proof[head_bytes + static_cast<std::size_t>(i)] ^= std::byte{1};
    client.send(proof);
    const auto answer = client.receive(patience);
    ASSERT_TRUE(answer);
    notice_payload notice;
    EXPECT_EQ(answer->kind, frame_kind::refuse);
    EXPECT_TRUE(notice.read(answer->payload));
    EXPECT_FALSE(client.receive(patience));  // the end
  }
}

TEST_F(Strangers, AProofOfAnotherConnectionIsWorthless) {
  raw_client first = connect();
  const auto proof = first.prove(2, 3, support::token);  // good, and never sent there
  raw_client second = connect();
  (void)second.prove(2, 3, support::token);
  second.send(proof);
  const auto answer = second.receive(patience);
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->kind, frame_kind::refuse);
}

TEST_F(Strangers, APortScannerAndCrowdsThatStayDisturbNobody) {
  for (int i = 0; i < 300; ++i) (void)connect();
  const auto hello = encode(frame_kind::hello, 0, hello_payload{}.write());
  std::vector<raw_client> crowd;
  for (std::size_t i = 0; i < 150; ++i) {  // more than are kept
    crowd.push_back(connect());
    crowd.back().send(std::span(hello).first(i % hello.size()));
  }
  complete();                                                            // while they are here
  for (const raw_client& one : crowd) EXPECT_TRUE(one.drain(patience));  // all were closed
}

/// Of a rendezvous of two where rank 1 is a raw client that knows the token: what rank 0 then says.
failure with_rogue(const std::function<void(raw_client&)>& rogue) {
  meeting at(2);
  failure said;
  std::thread rank([&, options = at.options(0)] {
    const joined self = support::join(options);
    ASSERT_FALSE(self);
    said = self.error();
  });
  {
    raw_client client(at.port());
    rogue(client);
  }
  rank.join();
  return said;
}

TEST(BootstrapRogues, AnotherVersionIsNamedToAllAndToItself) {
  std::string told;
  const failure said = with_rogue([&](raw_client& client) {
    client.send(client.prove(1, 2, support::token, protocol_version + 1));
    notice_payload notice;
    const auto answer = client.receive(patience);
    if (answer && notice.read(answer->payload)) told = notice.text;
  });
  EXPECT_NE(told.find("speaks version 2 of the bootstrap, rank 0 version 1"), std::string::npos)
      << told;
  EXPECT_EQ(said.code, errc::mismatch) << said.message();
  EXPECT_EQ(said.detail, told);
}

/// A rank that knows the token and then sends these bytes is lost, and named.
void expect_lost(const std::vector<std::byte>& bytes, const char* trace) {
  SCOPED_TRACE(trace);
  const failure said = with_rogue([&](raw_client& client) {
    client.send(client.prove(1, 2, support::token));
    const auto welcome = client.receive(patience);
    ASSERT_TRUE(welcome);
    EXPECT_EQ(welcome->kind, frame_kind::welcome);
    client.send(bytes);
  });
  EXPECT_EQ(said.code, errc::transport_failed) << said.message();
  EXPECT_NE(said.detail.find("rank 1 is lost: "), std::string::npos) << said.message();
}

TEST(BootstrapRogues, ATruncatedFrameOfARankIsALostRank) {
  const auto part = encode(frame_kind::part, 1, part_payload{}.write());
  for (std::size_t cut = 0; cut < part.size(); ++cut) {
    expect_lost({part.begin(), part.begin() + static_cast<std::ptrdiff_t>(cut)}, "cut");
  }
}

TEST(BootstrapRogues, NonsenseOfARankIsALostRank) {
  expect_lost(encode(frame_kind::welcome, 0, {}), "a frame of the hub");
  expect_lost(encode(frame_kind::part, 1, std::vector<std::byte>(3)), "a short part");
  expect_lost(encode(frame_kind::abort, 1, std::vector<std::byte>(9)), "a short notice");
  std::vector<std::byte> large = encode(frame_kind::part, 1, {});
  large[11] = std::byte{0x7f};  // 2 GiB are announced
  expect_lost(large, "a large part");
  const std::uint64_t seed = support::fresh_seed();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 draw(seed);
  for (int i = 0; i < 10; ++i) {
    std::vector<std::byte> bytes(1 + draw() % 500);
    for (std::byte& b : bytes) b = static_cast<std::byte>(draw());
    expect_lost(bytes, "random bytes");
  }
}

TEST(BootstrapRogues, WhoSpeaksTooSlowlyIsCutOff) {
  meeting at(2);
  at.common.beat_ns = 50 * ms;
  at.common.silence_ns = 400 * ms;
  std::thread rank([&, options = at.options(0)] {
    const joined self = support::join(options);
    ASSERT_TRUE(self) << self.error().message();
    EXPECT_TRUE((*self)->barrier(patience));
  });
  const auto hello = encode(frame_kind::hello, 0, hello_payload{}.write());
  const raw_client slow(at.port());
  const raw_client silent(at.port());
  const auto start = std::chrono::steady_clock::now();
  for (std::size_t i = 0; i < hello.size() - 1; ++i) {
    if (!slow.send(std::span(hello).subspan(i, 1))) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
  }
  EXPECT_TRUE(slow.drain(patience));
  EXPECT_TRUE(silent.drain(patience));
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(5));
  const joined self = support::join(at.options(1));
  ASSERT_TRUE(self) << self.error().message();
  EXPECT_TRUE((*self)->barrier(patience));
  rank.join();
}

}  // namespace
}  // namespace eptransport
