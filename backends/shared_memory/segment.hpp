// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Memory that the processes of one host share, and that no file system ever shows.
///
/// A memfd: it has no name, so nothing stays behind however a process ends, and no limit of
/// /dev/shm holds for it. Others open it through /proc/PID/fd, and know by its inode that it is the
/// one that was meant. It lives until its last mapping is gone: who maps a dead process's memory
/// may go on reading and writing it. Its size is sealed, so no access to it can lie past its end.
#pragma once

#include <eptransport/core/config.hpp>
#include <eptransport/core/result.hpp>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <fcntl.h>
#include <string>
#include <sys/mman.h>
#include <sys/stat.h>
#include <system_error>
#include <unistd.h>
#include <utility>

namespace eptransport {

/// One mapping of such memory.
class shared_segment {
 public:
  /// How another process of the same user finds it.
  struct address {
    std::int64_t process = 0;
    std::int64_t descriptor = -1;
    std::uint64_t device = 0;
    std::uint64_t file = 0;
    std::uint64_t bytes = 0;
  };

  shared_segment() = default;
  /// Zeroed memory of this process. Untouched pages cost nothing.
  ///
  /// @par Errors  errno of memfd_create, ftruncate, fcntl and mmap, with the bytes
  [[nodiscard]] static result<shared_segment> make(std::uint64_t bytes) {
    shared_segment made;
    made.descriptor_ = ::memfd_create("eptransport", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (made.descriptor_ < 0) return system_failure("memfd_create", bytes);
    if (::ftruncate(made.descriptor_, static_cast<off_t>(bytes)) != 0) {
      return system_failure("ftruncate", bytes);
    }
    if (::fcntl(made.descriptor_, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
      return system_failure("fcntl", bytes);
    }
    return map(std::move(made), bytes);
  }

  /// Maps what `where` names.
  ///
  /// @par Errors  errno of open and mmap, with what both processes must have in common;
  ///              `mismatch` when what lies there is something else
  [[nodiscard]] static result<shared_segment> open(const address& where) {
    const std::string path =
        "/proc/" + std::to_string(where.process) + "/fd/" + std::to_string(where.descriptor);
    struct stat file {};  // before it is opened: opening what is not meant might do something
    if (::stat(path.c_str(), &file) != 0) return unreachable("stat", path);
    if (auto meant = expect(where, file, path); !meant) return meant.error();
    shared_segment made;
    made.descriptor_ = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
    if (made.descriptor_ < 0) return unreachable("open", path);
    // The process may have ended between, and its number be another's.
    if (::fstat(made.descriptor_, &file) != 0) return unreachable("fstat", path);
    if (auto meant = expect(where, file, path); !meant) return meant.error();
    constexpr int fixed = F_SEAL_SHRINK | F_SEAL_GROW;
    if ((::fcntl(made.descriptor_, F_GET_SEALS) & fixed) != fixed) {
      return failure{errc::mismatch, "shared_segment::open", path + " could change its size"};
    }
    auto mapped = map(std::move(made), where.bytes);
    if (mapped) mapped->close();
    return mapped;
  }

  shared_segment(shared_segment&& other) noexcept
      : descriptor_(std::exchange(other.descriptor_, -1)),
        data_(std::exchange(other.data_, nullptr)),
        bytes_(std::exchange(other.bytes_, 0)) {}
  shared_segment& operator=(shared_segment&& other) noexcept {
    std::swap(descriptor_, other.descriptor_);
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~shared_segment() {
    close();
    if (data_ != nullptr) (void)::munmap(data_, bytes_);
  }

  /// Of a segment whose descriptor is open.
  [[nodiscard]] address here() const noexcept {
    struct stat file {};
    if (::fstat(descriptor_, &file) != 0) return {};
    return {::getpid(), descriptor_, file.st_dev, file.st_ino,
            static_cast<std::uint64_t>(file.st_size)};
  }
  /// From now on nobody can open it; mappings stay.
  void close() noexcept {
    if (descriptor_ >= 0) (void)::close(std::exchange(descriptor_, -1));
  }
  [[nodiscard]] std::byte* data() const noexcept { return static_cast<std::byte*>(data_); }
  [[nodiscard]] std::uint64_t bytes() const noexcept { return bytes_; }

 private:
  [[nodiscard]] static result<void> expect(const address& where, const struct stat& file,
                                           const std::string& path) {
    const bool meant = file.st_dev == where.device && file.st_ino == where.file;
    const auto found = static_cast<std::uint64_t>(file.st_size);
    if (meant && found == where.bytes) return {};
    return failure{errc::mismatch, "shared_segment::open",
                   path + (meant ? "" : " is another file: it") + " has " + std::to_string(found) +
                       " bytes, expected " + std::to_string(where.bytes) +
                       "; the ranks of a node must share a process namespace"};
  }
  [[nodiscard]] static failure system_failure(const char* call, std::uint64_t bytes) {
    return {std::error_code(errno, std::system_category()), call,
            std::to_string(bytes) + " bytes of shared memory"};
  }
  [[nodiscard]] static failure unreachable(const char* call, const std::string& path) {
    return {std::error_code(errno, std::system_category()), call,
            path + "; the ranks of a node must share user and process namespace"};
  }
  [[nodiscard]] static result<shared_segment> map(shared_segment made, std::uint64_t bytes) {
    void* at = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, made.descriptor_, 0);
    if (at == MAP_FAILED) return system_failure("mmap", bytes);
    made.data_ = at;
    made.bytes_ = bytes;
    return result<shared_segment>(std::move(made));
  }

  int descriptor_ = -1;
  void* data_ = nullptr;
  std::uint64_t bytes_ = 0;
};

}  // namespace eptransport
