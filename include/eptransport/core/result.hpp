// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief How the host side reports failure: `result<T>` with a typed, readable `failure`.
#pragma once

#include <eptransport/core/config.hpp>

#include <string>
#include <system_error>
#include <utility>
#include <variant>

namespace eptransport {

/// What went wrong, in the library's own category. Native codes (libfabric, verbs, CUDA, errno)
/// travel in a `failure` with their own category.
enum class errc {
  invalid_argument = 1,  ///< the caller's values contradict the contract; the message says how
  capacity,              ///< more was asked for than was agreed; both numbers are in the message
  unsupported,           ///< a combination that this build or this wire does not offer
  out_of_memory,         ///< an allocation failed; the message has the size
  timed_out,             ///< a bounded wait ended at its deadline
  peer_stopped,          ///< another rank could not go on and said so
  mismatch,              ///< ranks disagree on a shape, a mode or an epoch
  misuse,                ///< calls out of order, or two operations in flight on one lane
  bad_index,             ///< an expert index outside [-1, experts)
  transport_failed,      ///< the wire reported an error
};

/// Category of `errc`.
inline const std::error_category& error_category() noexcept {
  class category final : public std::error_category {
   public:
    [[nodiscard]] const char* name() const noexcept override { return "eptransport"; }
    [[nodiscard]] std::string message(int value) const override {
      switch (static_cast<errc>(value)) {
        case errc::invalid_argument:
          return "invalid argument";
        case errc::capacity:
          return "capacity exceeded";
        case errc::unsupported:
          return "unsupported";
        case errc::out_of_memory:
          return "out of memory";
        case errc::timed_out:
          return "timed out";
        case errc::peer_stopped:
          return "a peer stopped";
        case errc::mismatch:
          return "ranks disagree";
        case errc::misuse:
          return "calls out of order";
        case errc::bad_index:
          return "expert index out of range";
        case errc::transport_failed:
          return "the transport failed";
      }
      return "unknown error";
    }
  };
  static const category instance;
  return instance;
}

/// Found by `std::error_code`'s converting constructor.
inline std::error_code make_error_code(errc value) noexcept {
  return {static_cast<int>(value), error_category()};
}

}  // namespace eptransport

template <>
struct std::is_error_code_enum<eptransport::errc> : std::true_type {};

namespace eptransport {

/// Why an operation failed.
struct failure {
  std::error_code code{};      ///< native code in its own category, or `errc`
  const char* operation = "";  ///< string literal: the call that failed, e.g. "fi_mr_regattr"
  std::string detail{};        ///< what was expected, what came, what to do

  /// "operation: code message: detail", for people.
  [[nodiscard]] std::string message() const {
    std::string text = std::string(operation) + ": " + code.message();
    if (!detail.empty()) text += ": " + detail;
    return text;
  }
};

/// A value or a failure: the part of C++23 `std::expected` that the library needs.
template <class T>
class [[nodiscard]] result {
 public:
  // NOLINTNEXTLINE(google-explicit-constructor): `return value;` must work, as in std::expected
  result(T value) : state_(std::in_place_index<0>, std::move(value)) {}
  // NOLINTNEXTLINE(google-explicit-constructor): `return failure{...};` must work
  result(failure why) : state_(std::in_place_index<1>, std::move(why)) {}

  [[nodiscard]] bool has_value() const noexcept { return state_.index() == 0; }
  [[nodiscard]] explicit operator bool() const noexcept { return has_value(); }

  /// @pre `has_value()`
  [[nodiscard]] T& operator*() & noexcept { return *std::get_if<0>(&state_); }
  /// @pre `has_value()`
  [[nodiscard]] const T& operator*() const& noexcept { return *std::get_if<0>(&state_); }
  /// @pre `has_value()`
  [[nodiscard]] T&& operator*() && noexcept { return std::move(*std::get_if<0>(&state_)); }
  /// @pre `has_value()`
  [[nodiscard]] T* operator->() noexcept { return std::get_if<0>(&state_); }
  /// @pre `has_value()`
  [[nodiscard]] const T* operator->() const noexcept { return std::get_if<0>(&state_); }
  /// @pre `!has_value()`
  [[nodiscard]] const failure& error() const noexcept { return *std::get_if<1>(&state_); }

 private:
  std::variant<T, failure> state_;
};

/// Success without a value, or a failure.
template <>
class [[nodiscard]] result<void> {
 public:
  result() = default;
  // NOLINTNEXTLINE(google-explicit-constructor): `return failure{...};` must work
  result(failure why) : failed_(true), why_(std::move(why)) {}

  [[nodiscard]] bool has_value() const noexcept { return !failed_; }
  [[nodiscard]] explicit operator bool() const noexcept { return has_value(); }
  /// @pre `!has_value()`
  [[nodiscard]] const failure& error() const noexcept { return why_; }

 private:
  bool failed_ = false;
  failure why_;
};

}  // namespace eptransport
