// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Where the processes of each host of a job meet: a path that nobody else can reach.
#pragma once

#include <eptransport/core/config.hpp>
#include <eptransport/core/result.hpp>
#include <eptransport/proxy/bootstrap/bootstrap.hpp>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <string>
#include <system_error>
#include <unistd.h>
#include <utility>

namespace eptransport {

/// A path for `local_rendezvous`, in a folder that only this user may enter, and this rank among
/// those of its host. The folder goes with the place of the host's first rank: connections that
/// were made stay.
class meeting_place {
 public:
  /// Agrees; collective over all ranks of the job.
  ///
  /// @par Errors  those of `bootstrap::all_gather`; errno of mkdtemp, below TMPDIR or /tmp;
  ///              `transport_failed` naming the host's first rank where that could not make it
  [[nodiscard]] static result<meeting_place> agree(bootstrap& job, std::uint64_t timeout_ns) {
    meeting_place made;
    const auto& places = job.places();
    const rank_place& own = places[static_cast<std::size_t>(job.rank())];
    std::size_t first = 0;
    for (std::size_t r = places.size(); r-- > 0;) {
      if (places[r].node != own.node) continue;
      ++made.ranks_;
      first = r;
    }
    made.rank_ = own.on_node;
    int error = 0;
    if (made.rank_ == 0 && !made.make_folder()) error = errno;
    const std::string& folder = made.folder_;
    const auto all =
        job.all_gather(std::as_bytes(std::span(folder.data(), folder.size())), timeout_ns);
    if (error != 0) return failure{std::error_code(error, std::system_category()), "mkdtemp"};
    if (!all) return all.error();
    const auto& bytes = (*all)[first];
    if (bytes.empty()) {
      return failure{errc::transport_failed, "meeting_place::agree",
                     "rank " + std::to_string(first) + " could make no folder to meet in"};
    }
    made.path_.assign(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    made.path_ += "/socket";
    return result<meeting_place>(std::move(made));
  }

  meeting_place(meeting_place&& other) noexcept
      : path_(std::move(other.path_)),
        folder_(std::exchange(other.folder_, {})),
        rank_(other.rank_),
        ranks_(other.ranks_) {}
  meeting_place& operator=(meeting_place&&) = delete;
  ~meeting_place() {
    if (folder_.empty()) return;
    (void)::unlink(path_.c_str());
    (void)::rmdir(folder_.c_str());
  }

  [[nodiscard]] const std::string& path() const noexcept { return path_; }
  [[nodiscard]] std::int32_t rank() const noexcept { return rank_; }
  [[nodiscard]] std::int32_t ranks() const noexcept { return ranks_; }

 private:
  meeting_place() = default;

  [[nodiscard]] bool make_folder() {
    const char* below = std::getenv("TMPDIR");
    std::string name = std::string(below != nullptr && *below != '\0' ? below : "/tmp");
    name += "/eptransport-XXXXXX";
    if (::mkdtemp(name.data()) == nullptr) return false;
    folder_ = std::move(name);
    return true;
  }

  std::string path_;
  std::string folder_;  ///< the host's first rank: its own; others: empty
  std::int32_t rank_ = 0;
  std::int32_t ranks_ = 0;
};

}  // namespace eptransport
