// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief What the bootstrap's frames carry, and the proofs by which two ends know each other.
///
/// Each type: `write` makes the payload, `read` takes it apart and says false to whatever `write`
/// cannot have made.
#pragma once

#include <eptransport/core/config.hpp>
#include <eptransport/proxy/bootstrap/detail/frame.hpp>
#include <eptransport/proxy/bootstrap/detail/sha256.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace eptransport::bootstrap_detail {

/// Of all that follows the handshake.
inline constexpr std::uint32_t protocol_version = 1;

using nonce = std::array<std::byte, 16>;

/// hello.
struct hello_payload {
  nonce own{};

  [[nodiscard]] std::vector<std::byte> write() const { return payload_writer().raw(own).take(); }
  [[nodiscard]] bool read(std::span<const std::byte> bytes) {
    payload_reader from(bytes);
    own = from.fixed<16>();
    return from.whole();
  }
};

/// challenge.
struct challenge_payload {
  std::uint32_t version = protocol_version;
  nonce own{};

  [[nodiscard]] std::vector<std::byte> write() const {
    return payload_writer().u32(version).raw(own).take();
  }
  [[nodiscard]] bool read(std::span<const std::byte> bytes) {
    payload_reader from(bytes);
    version = from.u32();
    own = from.fixed<16>();
    return from.whole();
  }
};

/// proof.
struct proof_payload {
  std::uint32_t version = protocol_version;
  std::int32_t rank = 0;
  std::int32_t size = 0;
  digest proof{};

  [[nodiscard]] std::vector<std::byte> write() const {
    return payload_writer().u32(version).i32(rank).i32(size).raw(proof).take();
  }
  [[nodiscard]] bool read(std::span<const std::byte> bytes) {
    payload_reader from(bytes);
    version = from.u32();
    rank = from.i32();
    size = from.i32();
    proof = from.fixed<32>();
    return from.whole();
  }
};

/// welcome.
struct welcome_payload {
  std::uint64_t beat_ns = 0;
  std::uint64_t silence_ns = 0;
  digest proof{};

  [[nodiscard]] std::vector<std::byte> write() const {
    return payload_writer().u64(beat_ns).u64(silence_ns).raw(proof).take();
  }
  [[nodiscard]] bool read(std::span<const std::byte> bytes) {
    payload_reader from(bytes);
    beat_ns = from.u64();
    silence_ns = from.u64();
    proof = from.fixed<32>();
    return from.whole();
  }
};

/// Proves to the hub that a rank knows the token; bound to this connection by both nonces.
[[nodiscard]] inline digest rank_proof(std::string_view token, const nonce& of_rank,
                                       const nonce& of_hub, const proof_payload& p) {
  return keyed_digest(std::as_bytes(std::span(token.data(), token.size())),
                      payload_writer()
                          .text("eptransport bootstrap, a rank")
                          .raw(of_rank)
                          .raw(of_hub)
                          .u32(p.version)
                          .i32(p.rank)
                          .i32(p.size)
                          .take());
}

/// Proves to a rank that it has found its hub.
[[nodiscard]] inline digest hub_proof(std::string_view token, const nonce& of_rank,
                                      const nonce& of_hub, const welcome_payload& w) {
  return keyed_digest(std::as_bytes(std::span(token.data(), token.size())),
                      payload_writer()
                          .text("eptransport bootstrap, the hub")
                          .raw(of_rank)
                          .raw(of_hub)
                          .u64(w.beat_ns)
                          .u64(w.silence_ns)
                          .take());
}

/// refuse, lost, left, fail: what happened to whom.
struct notice_payload {
  std::uint32_t code = 0;  ///< an errc
  std::int32_t rank = -1;  ///< -1: of no one rank
  std::string text{};      ///< cut at `text_limit`

  [[nodiscard]] std::vector<std::byte> write() const {
    return payload_writer()
        .u32(code)
        .i32(rank)
        .text(std::string_view(text).substr(0, text_limit))
        .take();
  }
  [[nodiscard]] bool read(std::span<const std::byte> bytes) {
    payload_reader from(bytes);
    code = from.u32();
    rank = from.i32();
    text = from.text();
    return from.whole() && text.size() <= text_limit;
  }
};

/// Which collective call a rank makes.
enum class call_kind : std::uint32_t { join, all_gather, barrier, broadcast };
[[nodiscard]] inline const char* to_string(call_kind kind) noexcept {
  switch (kind) {
    case call_kind::join:
      return "join";
    case call_kind::all_gather:
      return "all_gather";
    case call_kind::barrier:
      return "barrier";
    case call_kind::broadcast:
      return "broadcast";
  }
  return "no call";
}

/// part.
struct part_payload {
  call_kind kind = call_kind::join;
  std::int32_t root = -1;  ///< of a broadcast
  std::vector<std::byte> bytes{};

  [[nodiscard]] std::vector<std::byte> write() const {
    return payload_writer().u32(static_cast<std::uint32_t>(kind)).i32(root).raw(bytes).take();
  }
  [[nodiscard]] bool read(std::span<const std::byte> from_bytes) {
    payload_reader from(from_bytes);
    const std::uint32_t number = from.u32();
    kind = static_cast<call_kind>(number);
    root = from.i32();
    const auto rest = from.rest();
    bytes.assign(rest.begin(), rest.end());
    return from.whole() && number <= static_cast<std::uint32_t>(call_kind::broadcast) &&
           bytes.size() <= part_limit;
  }
};

/// parts: of ranks `first`, `first` + 1, ...
struct parts_payload {
  std::uint32_t first = 0;
  std::vector<std::vector<std::byte>> of_rank{};

  [[nodiscard]] std::vector<std::byte> write() const {
    payload_writer to;
    to.u32(first).u32(static_cast<std::uint32_t>(of_rank.size()));
    for (const auto& bytes : of_rank) to.u32(static_cast<std::uint32_t>(bytes.size())).raw(bytes);
    return to.take();
  }
  [[nodiscard]] bool read(std::span<const std::byte> bytes) {
    payload_reader from(bytes);
    first = from.u32();
    const std::uint32_t count = from.u32();
    of_rank.clear();
    if (count > bytes.size() / 4) return false;  // before memory is taken for them
    for (std::uint32_t i = 0; i < count; ++i) {
      const auto part = from.raw(from.u32());
      of_rank.emplace_back(part.begin(), part.end());
    }
    return from.whole();
  }
};

/// What every rank tells of itself in the join call.
struct identity_payload {
  std::string host{};
  std::string identity{};
  std::string config{};

  [[nodiscard]] std::vector<std::byte> write() const {
    return payload_writer().text(host).text(identity).text(config).take();
  }
  [[nodiscard]] bool read(std::span<const std::byte> bytes) {
    payload_reader from(bytes);
    host = from.text();
    identity = from.text();
    config = from.text();
    return from.whole();
  }
};

}  // namespace eptransport::bootstrap_detail
