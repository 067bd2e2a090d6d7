// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The libc calls that reach the stand-in devices; all others go on to the kernel.
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "gdaki/providers/fake_uverbs.hpp"

namespace {

constexpr unsigned first_minor = 192;

/// Descriptors of the devices: 1 + minor, 0 = none. Plain storage: calls arrive before constructors
/// have run.
std::array<std::atomic<unsigned char>, 1024> devices;

/// 0 for efa, 1 for mlx5, -1 for any other path.
int device_of(const char* path) {
  constexpr char prefix[] = "/dev/infiniband/uverbs";
  constexpr std::size_t length = sizeof(prefix) - 1;
  if (path == nullptr || std::strncmp(path, prefix, length) != 0) return -1;
  return path[length] == '0' ? 0 : path[length] == '1' ? 1 : -1;
}
int device_of(int fd) {
  if (fd < 0 || static_cast<std::size_t>(fd) >= devices.size()) return -1;
  return devices[static_cast<std::size_t>(fd)].load(std::memory_order_relaxed) - 1;
}

int describe(int device, struct stat* status) {
  std::memset(status, 0, sizeof(*status));
  status->st_mode = S_IFCHR | 0666;
  status->st_rdev = makedev(231, first_minor + static_cast<unsigned>(device));
  return 0;
}

}  // namespace

extern "C" {

int open(const char* path, int flags, ...) {
  mode_t mode = 0;
  if ((flags & (O_CREAT | O_TMPFILE)) != 0) {
    va_list more;
    va_start(more, flags);
    mode = va_arg(more, mode_t);
    va_end(more);
  }
  const int device = device_of(path);
  if (device < 0) return static_cast<int>(syscall(SYS_openat, AT_FDCWD, path, flags, mode));
  const int fd = static_cast<int>(syscall(SYS_memfd_create, "uverbs", 0));
  if (fd < 0 || static_cast<std::size_t>(fd) >= devices.size()) {
    errno = EMFILE;
    return -1;
  }
  devices[static_cast<std::size_t>(fd)] = static_cast<unsigned char>(device + 1);
  return fd;
}

int close(int fd) {
  if (device_of(fd) >= 0) devices[static_cast<std::size_t>(fd)] = 0;
  return static_cast<int>(syscall(SYS_close, fd));
}

int stat(const char* path, struct stat* status) {
  const int device = device_of(path);
  if (device >= 0) return describe(device, status);
  return static_cast<int>(syscall(SYS_newfstatat, AT_FDCWD, path, status, 0));
}

int fstat(int fd, struct stat* status) {
  const int device = device_of(fd);
  if (device >= 0) return describe(device, status);
  return static_cast<int>(syscall(SYS_newfstatat, fd, "", status, AT_EMPTY_PATH));
}

int ioctl(int fd, unsigned long request, ...) {
  va_list more;
  va_start(more, request);
  void* argument = va_arg(more, void*);
  va_end(more);
  if (device_of(fd) < 0) return static_cast<int>(syscall(SYS_ioctl, fd, request, argument));
  errno = ENOTTY;  // libibverbs falls back to write()
  return -1;
}

ssize_t write(int fd, const void* bytes, std::size_t count) {
  const int device = device_of(fd);
  if (device < 0) return syscall(SYS_write, fd, bytes, count);
  return eptransport::fake_uverbs::answer(device == 0, static_cast<const std::byte*>(bytes), count);
}

void* mmap(void* where, std::size_t bytes, int protection, int flags, int fd, off_t offset) {
  if (device_of(fd) < 0) {
    return reinterpret_cast<void*>(syscall(SYS_mmap, where, bytes, protection, flags, fd, offset));
  }
  void* memory = reinterpret_cast<void*>(syscall(SYS_mmap, nullptr, bytes, PROT_READ | PROT_WRITE,
                                                 MAP_PRIVATE | MAP_ANONYMOUS, -1, off_t{0}));
  eptransport::fake_uverbs::mapped(static_cast<std::uint64_t>(offset),
                                   static_cast<std::byte*>(memory));
  return memory;
}

}  // extern "C"
