// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief How the ranks of a job find each other, agree, and learn who has died: the interface.
///
/// The control plane: called to build and to tear down, asked about liveness, never on a data path.
/// `tcp_bootstrap` makes one from a rendezvous over TCP; whoever has ranks that can already talk
/// may put another behind the same calls.
#pragma once

#include <eptransport/core/config.hpp>
#include <eptransport/core/result.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace eptransport {

/// Where a rank runs.
struct rank_place {
  std::string host;          ///< its host's name, for people
  std::string identity;      ///< equal on ranks of one host (and container), different elsewhere
  std::int32_t node = 0;     ///< index of the identity, in order of its first rank
  std::int32_t on_node = 0;  ///< how many ranks of the same node have a lower number
};

/// One rank's connection with all the others.
///
/// @par Threads  Collective calls: one thread at a time, all ranks make the same ones in the same
///               order. Everything else: any thread, at any time, also during a collective call
/// @par Errors   A collective call that fails, fails on all ranks, and is final: so does every
///               later one. `timed_out` names the ranks that did not come; `transport_failed` the
///               rank that died, `peer_stopped` the one that aborted, with its reason;
///               `misuse` the rank that makes another call. Not final: `invalid_argument`, for
///               arguments of this rank, and the `mismatch` of `agree`
class bootstrap {
 public:
  bootstrap() = default;
  bootstrap(const bootstrap&) = delete;
  bootstrap& operator=(const bootstrap&) = delete;
  /// Leaves: the others hear that this rank has gone in order, which is no fault. Returns in
  /// bounded time whatever state the others are in.
  virtual ~bootstrap() = default;

  [[nodiscard]] virtual std::int32_t rank() const noexcept = 0;
  [[nodiscard]] virtual std::int32_t size() const noexcept = 0;
  /// One entry per rank.
  [[nodiscard]] virtual const std::vector<rank_place>& places() const noexcept = 0;
  /// Most bytes that a rank can give to one call.
  [[nodiscard]] virtual std::size_t max_bytes() const noexcept = 0;

  /// Every rank gets what every rank gave, its own included, in rank order. Sizes may differ.
  [[nodiscard]] virtual result<std::vector<std::vector<std::byte>>> all_gather(
      std::span<const std::byte> bytes, std::uint64_t timeout_ns) = 0;
  /// All ranks arrive.
  [[nodiscard]] virtual result<void> barrier(std::uint64_t timeout_ns) = 0;
  /// Every rank gets what `root` gave; the bytes of the others are not looked at.
  [[nodiscard]] virtual result<std::vector<std::byte>> broadcast(std::int32_t root,
                                                                 std::span<const std::byte> bytes,
                                                                 std::uint64_t timeout_ns) = 0;

  /// Tells every rank that this one cannot go on, and why. Their calls, pending and later ones, and
  /// `status` fail with the reason and this rank's number. Does not block; only the first counts.
  virtual void abort(std::string_view why) = 0;

  /// False once a rank has died, has aborted or a call has failed. One atomic load: cheap enough
  /// for a loop that waits.
  [[nodiscard]] virtual bool healthy() const noexcept = 0;
  /// Why it is not healthy: what happened first.
  [[nodiscard]] virtual result<void> status() const = 0;
  /// The ranks known dead (their connection broke, or they fell silent), ascending; without those
  /// that left in order.
  [[nodiscard]] virtual std::vector<std::int32_t> lost() const = 0;

  /// The node of every rank, as the transports take it.
  [[nodiscard]] std::vector<int> nodes() const {
    std::vector<int> all;
    for (const rank_place& place : places()) all.push_back(place.node);
    return all;
  }

  /// All ranks compare a text, such as the settings that must be alike; collective.
  ///
  /// @param what  the text's name in the error, e.g. "group shape"
  /// @par Errors  `mismatch` naming the ranks that differ from the most common text, and both texts
  [[nodiscard]] result<void> agree(std::string_view what, std::string_view text,
                                   std::uint64_t timeout_ns);
};

/// "rank 3", "ranks 3, 7", "ranks 0, 1, .. and 120 more": at most sixteen by number.
[[nodiscard]] inline std::string name_ranks(std::span<const std::int32_t> ranks) {
  constexpr std::size_t most = 16;
  std::string text = ranks.size() == 1 ? "rank" : "ranks";
  for (std::size_t i = 0; i < ranks.size() && i < most; ++i) {
    text += (i == 0 ? " " : ", ") + std::to_string(ranks[i]);
  }
  if (ranks.size() > most) text += " and " + std::to_string(ranks.size() - most) + " more";
  return text;
}

/// Compares what the ranks say of one thing. The most common text is the standard; of equally
/// common ones, that of the lowest rank.
///
/// @return an empty string when all are alike, else who differs and how
[[nodiscard]] inline std::string difference(std::string_view what,
                                            std::span<const std::string> texts) {
  std::size_t standard = 0;
  std::ptrdiff_t best = 0;
  for (std::size_t r = 0; r < texts.size(); ++r) {
    const std::ptrdiff_t alike = std::count(texts.begin(), texts.end(), texts[r]);
    if (alike > best) {
      best = alike;
      standard = r;
    }
    if (best * 2 > std::ssize(texts)) break;
  }
  std::vector<std::int32_t> others;
  for (std::size_t r = 0; r < texts.size(); ++r) {
    if (texts[r] != texts[standard]) others.push_back(static_cast<std::int32_t>(r));
  }
  if (others.empty()) return {};
  const auto says = [&](std::size_t r) {
    constexpr std::size_t most = 300;
    return "rank " + std::to_string(r) + " has \"" + texts[r].substr(0, most) +
           (texts[r].size() > most ? "...\"" : "\"");
  };
  return std::string(what) + ": " + name_ranks(others) +
         (others.size() == 1 ? " differs" : " differ") + ": " +
         says(static_cast<std::size_t>(others[0])) + ", " + says(standard);
}

inline result<void> bootstrap::agree(std::string_view what, std::string_view text,
                                     std::uint64_t timeout_ns) {
  const auto all = all_gather(std::as_bytes(std::span(text.data(), text.size())), timeout_ns);
  if (!all) return all.error();
  std::vector<std::string> texts;
  for (const std::vector<std::byte>& bytes : *all) {
    texts.emplace_back(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }
  std::string differs = difference(what, texts);
  if (differs.empty()) return {};
  return failure{errc::mismatch, "bootstrap::agree", std::move(differs)};
}

}  // namespace eptransport
