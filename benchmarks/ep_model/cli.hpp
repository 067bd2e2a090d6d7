// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Command lines of ep_model: options that say what they expect.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace eptransport::model {

/// Exit statuses.
inline constexpr int exit_ok = 0;
inline constexpr int exit_failed = 1;   ///< it ran, and something did not hold
inline constexpr int exit_refused = 2;  ///< it could not run as asked

/// The options of one command.
class arguments {
 public:
  /// Returns what was expected, or nothing.
  using setter = std::function<std::string(const std::string&)>;

  explicit arguments(std::string usage) : usage_(std::move(usage)) {}

  /// An option with a value.
  arguments& option(const char* name, const char* value, const char* help, setter set);
  /// An option without one.
  arguments& flag(const char* name, const char* help, bool& to);
  /// Words that are no options.
  arguments& words(const char* name, std::vector<std::string>& to);

  /// Whole numbers and numbers with bounds.
  arguments& number(const char* name, const char* help, std::int64_t& to, std::int64_t least,
                    std::int64_t most);
  arguments& number(const char* name, const char* help, double& to, double least, double most);

  /// Sets what `given` says. Prints help or what is wrong.
  /// @returns -1 to go on, otherwise the status to exit with
  [[nodiscard]] int parse(const std::vector<std::string>& given) const;

  [[nodiscard]] std::string help() const;

 private:
  struct entry {
    const char* name;
    const char* value;
    const char* help;
    setter set;
  };
  std::string usage_;
  std::vector<entry> entries_;
  const char* words_name_ = nullptr;
  std::vector<std::string>* words_ = nullptr;
};

/// Whole numbers with commas between.
[[nodiscard]] arguments::setter list_of(std::vector<std::int64_t>& to, std::int64_t least,
                                        std::int64_t most);

/// Writes `content` to a file, "-" for stdout. Says on stderr why it could not.
[[nodiscard]] int write_file(const std::string& path, const std::string& content);

/// The commands; each takes what follows its name.
int seed_command(const std::vector<std::string>& given);
int plan_command(const std::vector<std::string>& given);
int sweep_command(const std::vector<std::string>& given);
int calibrate_command(const std::vector<std::string>& given);
int simulate_command(const std::vector<std::string>& given);

}  // namespace eptransport::model
