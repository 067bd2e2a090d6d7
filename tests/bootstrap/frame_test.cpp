// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Frames, payloads and proofs without a socket.
#include <eptransport/proxy/bootstrap/bootstrap.hpp>
#include <eptransport/proxy/bootstrap/detail/frame.hpp>
#include <eptransport/proxy/bootstrap/detail/payload.hpp>
#include <eptransport/proxy/bootstrap/detail/sha256.hpp>

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "bootstrap/rig.hpp"

namespace eptransport {
namespace {

using namespace bootstrap_detail;

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}
std::string hex(std::span<const std::byte> bytes) {
  std::string text;
  for (const std::byte b : bytes) {
    text += "0123456789abcdef"[std::to_integer<unsigned>(b) >> 4U];
    text += "0123456789abcdef"[std::to_integer<unsigned>(b) & 15U];
  }
  return text;
}

TEST(BootstrapDigest, IsThatOfThePublishedVectors) {
  // FIPS 180-4's examples, as NIST publishes them.
  EXPECT_EQ(hex(sha256().finish()),
            "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(hex(sha256().add(bytes_of("abc")).finish()),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(hex(sha256()
                    .add(bytes_of("abcdbcdecdefdefgefghfghighijhi"))
                    .add(bytes_of("jkijkljklmklmnlmnomnopnopq"))
                    .finish()),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  // RFC 4231, cases 1, 2 and 6.
  EXPECT_EQ(hex(keyed_digest(std::vector<std::byte>(20, std::byte{0x0b}), bytes_of("Hi There"))),
            "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
  EXPECT_EQ(hex(keyed_digest(bytes_of("Jefe"), bytes_of("what do ya want for nothing?"))),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  EXPECT_EQ(hex(keyed_digest(std::vector<std::byte>(131, std::byte{0xaa}),
                             bytes_of("Test Using Larger Than Block-Size Key - Hash Key First"))),
            "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
}

TEST(BootstrapDigest, AProofHoldsForItsOwnNoncesRankAndTokenOnly) {
  const nonce a{std::byte{1}};
  const nonce b{std::byte{2}};
  const proof_payload p{.rank = 3, .size = 8};
  const digest good = rank_proof("token", a, b, p);
  EXPECT_TRUE(same_digest(good, rank_proof("token", a, b, p)));
  proof_payload other = p;
  other.rank = 4;
  for (const digest& bad :
       {rank_proof("tokem", a, b, p), rank_proof("token", b, a, p), rank_proof("token", a, a, p),
        rank_proof("token", a, b, other), hub_proof("token", a, b, {})}) {
    EXPECT_FALSE(same_digest(good, bad));
  }
}

/// Several frames with payloads of many sizes, the largest allowed included.
std::vector<frame> some_frames(std::mt19937_64& draw) {
  std::vector<frame> all;
  for (const std::size_t size : {std::size_t{0}, std::size_t{1}, std::size_t{15}, std::size_t{16},
                                 std::size_t{63}, std::size_t{64}}) {
    frame f;
    f.kind = static_cast<frame_kind>(1 + draw() % last_frame_kind);
    f.call = static_cast<std::uint32_t>(draw());
    for (std::size_t i = 0; i < size; ++i) f.payload.push_back(static_cast<std::byte>(draw()));
    all.push_back(f);
  }
  return all;
}

TEST(BootstrapFrames, AStreamCutAnywhereGivesTheSameFrames) {
  const std::uint64_t seed = support::fresh_seed();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 draw(seed);
  const std::vector<frame> sent = some_frames(draw);
  std::vector<std::byte> stream;
  for (const frame& f : sent) {
    const auto bytes = encode(f.kind, f.call, f.payload);
    stream.insert(stream.end(), bytes.begin(), bytes.end());
  }
  for (std::size_t cut = 0; cut <= stream.size(); ++cut) {
    frame_parser parser;
    std::vector<frame> got;
    frame next;
    for (const auto piece : {std::span(stream).first(cut), std::span(stream).subspan(cut)}) {
      parser.push(piece);
      while (parser.next(next) == parse_state::ready) got.push_back(next);
    }
    ASSERT_EQ(got.size(), sent.size()) << cut;
    for (std::size_t i = 0; i < got.size(); ++i) {
      EXPECT_EQ(got[i].kind, sent[i].kind);
      EXPECT_EQ(got[i].call, sent[i].call);
      EXPECT_EQ(got[i].payload, sent[i].payload);
    }
    EXPECT_EQ(parser.next(next), parse_state::more);
  }
}

TEST(BootstrapFrames, WhatIsNoneIsRefusedAtItsFirstWrongByte) {
  const auto good = encode(frame_kind::beat, 0, {});
  for (std::size_t at = 0; at < 8; ++at) {
    auto bad = good;
    bad[at] ^= std::byte{0x40};
    frame_parser parser;
    frame next;
    std::size_t fed = 0;
    parse_state state = parse_state::more;
    for (; fed < bad.size() && state == parse_state::more; ++fed) {
      parser.push(std::span(bad).subspan(fed, 1));
      state = parser.next(next);
    }
    EXPECT_EQ(state, parse_state::broken) << at;
    EXPECT_EQ(fed, at < 4 ? at + 1 : good.size()) << parser.why();
    parser.push(good);
    EXPECT_EQ(parser.next(next), parse_state::broken);  // for ever
  }
}

TEST(BootstrapFrames, AStrangersPayloadIsBoundedBeforeItIsKept) {
  const auto head = encode(frame_kind::part, 1, std::vector<std::byte>(stranger_limit + 1));
  frame_parser parser;
  frame next;
  parser.push(std::span(head).first(head_bytes));
  EXPECT_EQ(parser.next(next), parse_state::broken);
  EXPECT_NE(parser.why().find("65"), std::string::npos);
  EXPECT_NE(parser.why().find("64"), std::string::npos);
  frame_parser trusting;
  trusting.allow(payload_limit);
  trusting.push(head);
  EXPECT_EQ(trusting.next(next), parse_state::ready);
}

/// `read` takes what `write` made, and nothing that is shorter or longer.
template <class Payload>
void expect_exact(const Payload& payload, std::size_t from = 0) {
  std::vector<std::byte> bytes = payload.write();
  Payload read;
  ASSERT_TRUE(read.read(bytes));
  EXPECT_EQ(read.write(), bytes);
  for (std::size_t cut = from; cut < bytes.size(); ++cut) {
    EXPECT_FALSE(read.read(std::span(bytes).first(cut))) << cut << " of " << bytes.size();
  }
  bytes.push_back(std::byte{0});
  if (from == 0) {
    EXPECT_FALSE(read.read(bytes));
  }
}

TEST(BootstrapPayloads, AreReadWholeOrNotAtAll) {
  expect_exact(hello_payload{.own = {std::byte{1}}});
  expect_exact(challenge_payload{.version = 7, .own = {std::byte{2}}});
  expect_exact(proof_payload{.version = 1, .rank = 2, .size = 3, .proof = {std::byte{4}}});
  expect_exact(welcome_payload{.beat_ns = 1, .silence_ns = 2, .proof = {std::byte{3}}});
  expect_exact(notice_payload{.code = 3, .rank = -1, .text = "why"});
  expect_exact(identity_payload{.host = "a", .identity = "", .config = "cc"});
  const std::vector<std::byte> some(5, std::byte{6});
  expect_exact(parts_payload{.first = 2, .of_rank = {some, {}, some}});
  part_payload part{.kind = call_kind::broadcast, .root = 1, .bytes = some};
  EXPECT_TRUE(part.read(part.write()));
  EXPECT_EQ(part.bytes, some);
  const std::vector<std::byte> whole = part.write();
  EXPECT_FALSE(part.read(std::span(whole).first(7)));  // what follows is opaque
  EXPECT_FALSE(part.read(payload_writer().u32(4).i32(0).take()));
  EXPECT_FALSE(part.read(part_payload{.bytes = std::vector<std::byte>(part_limit + 1)}.write()));
  // A count that the bytes cannot hold takes no memory.
  parts_payload parts;
  EXPECT_FALSE(parts.read(payload_writer().u32(0).u32(0xffff'ffff).take()));
}

TEST(BootstrapTexts, NameRanksAndDifferences) {
  EXPECT_EQ(name_ranks(std::vector<std::int32_t>{3}), "rank 3");
  EXPECT_EQ(name_ranks(std::vector<std::int32_t>{3, 7}), "ranks 3, 7");
  std::vector<std::int32_t> many(20);
  for (std::int32_t r = 0; r < 20; ++r) many[static_cast<std::size_t>(r)] = r;
  EXPECT_NE(name_ranks(many).find(", 15 and 4 more"), std::string::npos);

  const auto compared = [](std::vector<std::string> texts) { return difference("k", texts); };
  EXPECT_EQ(compared({"a", "a", "a"}), "");
  EXPECT_EQ(compared({"b", "a", "a"}), "k: rank 0 differs: rank 0 has \"b\", rank 1 has \"a\"");
  EXPECT_EQ(compared({"a", "b", "c", "a"}),
            "k: ranks 1, 2 differ: rank 1 has \"b\", rank 0 has \"a\"");
  EXPECT_EQ(compared({"a", "b"}), "k: rank 1 differs: rank 1 has \"b\", rank 0 has \"a\"");
}

}  // namespace
}  // namespace eptransport
