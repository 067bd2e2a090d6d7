// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Where tokens go: routing drawn from a distribution, or read from a trace of a real gate.
#pragma once

#include <eptransport/core/result.hpp>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace eptransport::support {

/// How routing is made.
struct routing_options {
  /// `uniform`, `zipf:S`, `one` or `trace:PREFIX[:LAYER]`; see `router::help`.
  std::string kind = "uniform";
  int experts = 1;
  int top_k = 1;
  std::uint64_t seed = 1;
  double unused = 0;        ///< probability that a choice becomes -1
  double out_of_range = 0;  ///< probability that a choice names no expert
  bool duplicates = false;  ///< choices of one token may name the same expert
};

/// One slice of tokens: which rank's, in which iteration, and where it starts among all tokens of
/// the iteration.
struct token_slice {
  std::uint64_t iteration = 0;
  int rank = 0;
  std::int64_t first = 0;   ///< tokens of lower ranks in this iteration
  std::int64_t all = 0;     ///< tokens of all ranks in this iteration
  std::int64_t tokens = 0;  ///< of this rank
};

/// Draws the choices of tokens. The same options and slice give the same choices.
///
/// @par Threads  Any number may draw at once.
class router {
 public:
  /// What the kinds are, one line each.
  static const char* help() noexcept;

  /// @par Errors  `invalid_argument`: unknown kind, unreadable trace, or a trace that needs more
  ///              experts or offers fewer choices; says which
  [[nodiscard]] static result<router> create(const routing_options& options);

  /// Fills index and weight [tokens, top_k].
  void draw(const token_slice& slice, std::span<std::int64_t> index, std::span<float> weight) const;

 private:
  enum class kind : std::uint8_t { uniform, zipf, one, trace };
  struct trace_data {
    std::int64_t tokens = 0;
    std::vector<std::int64_t> index;  ///< [tokens, top_k]
    std::vector<float> weight;
  };

  [[nodiscard]] static result<std::shared_ptr<const trace_data>> load(
      const std::string& prefix, std::int64_t layer, const routing_options& options);

  routing_options options_;
  kind kind_ = kind::uniform;
  std::vector<double> share_;  ///< zipf: [experts]
  std::shared_ptr<const trace_data> trace_;
};

}  // namespace eptransport::support
