// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Says on stderr how far a long run is.
#pragma once

#include <chrono>
#include <cstdio>
#include <string>
#include <unistd.h>

namespace eptransport::bench {

/// Silent for the first second. Then a line per wire; a percentage where stderr is a terminal.
class progress {
 public:
  progress(std::string wire, int iterations, bool quiet)
      : wire_(std::move(wire)), iterations_(iterations), quiet_(quiet) {}

  /// After iteration `i`.
  void done(int i) {
    using namespace std::chrono_literals;
    if (quiet_ || std::chrono::steady_clock::now() - start_ < 1s) return;
    if (terminal_) {
      std::fprintf(stderr, "\r%s %3d %%", wire_.c_str(), (i + 1) * 100 / iterations_);
    } else if (!said_) {
      std::fprintf(stderr, "%s: %d iterations\n", wire_.c_str(), iterations_);
    }
    said_ = true;
  }

  /// After the wire.
  void finish() const {
    if (said_ && terminal_) std::fprintf(stderr, "\n");
  }

 private:
  std::string wire_;
  int iterations_;
  bool quiet_;
  bool terminal_ = isatty(STDERR_FILENO) == 1;
  bool said_ = false;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

}  // namespace eptransport::bench
