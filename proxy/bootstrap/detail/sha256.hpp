// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief SHA-256 and its keyed form, with which two ends prove that they know the job's token.
///
/// For a few hundred bytes per connection: clarity before speed.
/// @par Source  FIPS 180-4, RFC 2104
#pragma once

#include <eptransport/core/config.hpp>

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>

namespace eptransport::bootstrap_detail {

using digest = std::array<std::byte, 32>;

/// Hashes what is added, in pieces of any size.
class sha256 {
 public:
  sha256& add(std::span<const std::byte> bytes) noexcept {
    for (const std::byte b : bytes) {
      block_[length_++ % block_.size()] = b;
      if (length_ % block_.size() == 0) mix();
    }
    return *this;
  }

  /// The hash of all that was added. Nothing may be added afterwards.
  [[nodiscard]] digest finish() noexcept {
    const std::uint64_t bits = length_ * 8;
    constexpr std::byte one{0x80};
    add({&one, 1});
    while (length_ % block_.size() != block_.size() - 8) {
      constexpr std::byte zero{0};
      add({&zero, 1});
    }
    std::array<std::byte, 8> tail;
    for (std::size_t i = 0; i < 8; ++i) tail[i] = static_cast<std::byte>(bits >> (56 - 8 * i));
    add(tail);
    digest out;
    for (std::size_t i = 0; i < out.size(); ++i) {
      out[i] = static_cast<std::byte>(state_[i / 4] >> (24 - 8 * (i % 4)));
    }
    return out;
  }

 private:
  void mix() noexcept {
    std::array<std::uint32_t, 64> w;
    for (std::size_t i = 0; i < 16; ++i) {
      w[i] = 0;
      for (std::size_t j = 0; j < 4; ++j) {
        w[i] = w[i] << 8U | std::to_integer<std::uint32_t>(block_[4 * i + j]);
      }
    }
    for (std::size_t i = 16; i < 64; ++i) {
      const std::uint32_t a = w[i - 15];
      const std::uint32_t b = w[i - 2];
      w[i] = w[i - 16] + (std::rotr(a, 7) ^ std::rotr(a, 18) ^ a >> 3U) + w[i - 7] +
             (std::rotr(b, 17) ^ std::rotr(b, 19) ^ b >> 10U);
    }
    std::array<std::uint32_t, 8> s = state_;
    for (std::size_t i = 0; i < 64; ++i) {
      const std::uint32_t e = s[4];
      const std::uint32_t a = s[0];
      const std::uint32_t first = s[7] + (std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25)) +
                                  ((e & s[5]) ^ (~e & s[6])) + constants[i] + w[i];
      const std::uint32_t second = (std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22)) +
                                   ((a & s[1]) ^ (a & s[2]) ^ (s[1] & s[2]));
      s = {first + second, s[0], s[1], s[2], s[3] + first, s[4], s[5], s[6]};
    }
    for (std::size_t i = 0; i < 8; ++i) state_[i] += s[i];
  }

  static constexpr std::array<std::uint32_t, 64> constants = {
      0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4,
      0xab1c5ed5, 0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe,
      0x9bdc06a7, 0xc19bf174, 0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f,
      0x4a7484aa, 0x5cb0a9dc, 0x76f988da, 0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7,
      0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967, 0x27b70a85, 0x2e1b2138, 0x4d2c6dfc,
      0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85, 0xa2bfe8a1, 0xa81a664b,
      0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070, 0x19a4c116,
      0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
      0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7,
      0xc67178f2};

  std::array<std::uint32_t, 8> state_ = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                         0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::array<std::byte, 64> block_{};
  std::uint64_t length_ = 0;
};

/// HMAC-SHA256 of a message under a key of any length.
[[nodiscard]] inline digest keyed_digest(std::span<const std::byte> key,
                                         std::span<const std::byte> message) noexcept {
  std::array<std::byte, 64> padded{};
  if (key.size() > padded.size()) {
    const digest shorter = sha256().add(key).finish();
    for (std::size_t i = 0; i < shorter.size(); ++i) padded[i] = shorter[i];
  } else {
    for (std::size_t i = 0; i < key.size(); ++i) padded[i] = key[i];
  }
  const auto masked = [&](unsigned char mask) {
    std::array<std::byte, 64> out;
    for (std::size_t i = 0; i < out.size(); ++i) out[i] = padded[i] ^ std::byte{mask};
    return out;
  };
  const digest inner = sha256().add(masked(0x36)).add(message).finish();
  return sha256().add(masked(0x5c)).add(inner).finish();
}

/// Compares in a time that does not depend on where two digests differ.
[[nodiscard]] inline bool same_digest(const digest& a, const digest& b) noexcept {
  std::byte differs{0};
  for (std::size_t i = 0; i < a.size(); ++i) differs |= a[i] ^ b[i];
  return differs == std::byte{0};
}

}  // namespace eptransport::bootstrap_detail
