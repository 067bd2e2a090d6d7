// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Memory that processes share: found by its address alone, gone with its last mapping, and
/// never longer than it was made.
#include <eptransport/backends/shared_memory/segment.hpp>

#include <gtest/gtest.h>

#include <cerrno>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <utility>

namespace eptransport::testing {
namespace {

std::size_t descriptors() {
  std::size_t n = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    (void)entry;
    ++n;
  }
  return n;
}

std::size_t mappings() {
  std::size_t n = 0;
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    n += line.find("memfd:eptransport") != std::string::npos ? 1 : 0;
  }
  return n;
}

TEST(SharedSegment, OutlivesTheProcessThatMadeIt) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    auto made = shared_segment::make(10'000);
    if (!made) ::_exit(1);
    made->data()[9'999] = std::byte{7};
    const shared_segment::address where = made->here();
    if (::write(ends[1], &where, sizeof where) != sizeof where) ::_exit(2);
    (void)::pause();
    ::_exit(3);
  }
  shared_segment::address where;
  ASSERT_EQ(::read(ends[0], &where, sizeof where), static_cast<ssize_t>(sizeof where));
  auto opened = shared_segment::open(where);
  (void)::kill(child, SIGKILL);
  (void)::waitpid(child, nullptr, 0);
  (void)::close(ends[0]);
  (void)::close(ends[1]);
  ASSERT_TRUE(opened) << opened.error().message();
  EXPECT_EQ(opened->bytes(), 10'000U);
  EXPECT_EQ(opened->data()[9'999], std::byte{7});
  opened->data()[0] = std::byte{9};
  const auto late = shared_segment::open(where);
  ASSERT_FALSE(late);
  EXPECT_NE(late.error().message().find("/proc/" + std::to_string(where.process)),
            std::string::npos)
      << late.error().message();
}

TEST(SharedSegment, LeavesNeitherDescriptorsNorMappingsBehind) {
  const std::size_t before = descriptors();
  for (int i = 0; i < 100; ++i) {
    auto made = shared_segment::make(1 << 20);
    ASSERT_TRUE(made);
    const auto other = shared_segment::open(made->here());
    ASSERT_TRUE(other);
    EXPECT_EQ(mappings(), 2U);
    made->data()[5] = std::byte{1};
    EXPECT_EQ(other->data()[5], std::byte{1});
    EXPECT_EQ(other->here().descriptor, -1) << "a mapping needs no descriptor";
  }
  EXPECT_EQ(descriptors(), before);
  EXPECT_EQ(mappings(), 0U);
}

TEST(SharedSegment, WhatIsNotMeantIsNotMapped) {
  const auto made = shared_segment::make(4096);
  const auto other = shared_segment::make(4096);
  ASSERT_TRUE(made && other);
  shared_segment::address where = made->here();
  where.descriptor = other->here().descriptor;  // the number was used again
  const auto wrong = shared_segment::open(where);
  ASSERT_FALSE(wrong);
  EXPECT_EQ(wrong.error().code, errc::mismatch);
  where = made->here();
  where.bytes = 8192;
  const auto longer = shared_segment::open(where);
  ASSERT_FALSE(longer);
  EXPECT_NE(longer.error().message().find("has 4096 bytes, expected 8192"), std::string::npos);
}

TEST(SharedSegment, WhatCouldShrinkIsNotMapped) {
  const int descriptor = ::memfd_create("not sealed", MFD_CLOEXEC);
  ASSERT_GE(descriptor, 0);
  ASSERT_EQ(::ftruncate(descriptor, 4096), 0);
  struct stat file {};
  ASSERT_EQ(::fstat(descriptor, &file), 0);
  const auto opened =
      shared_segment::open({::getpid(), descriptor, file.st_dev, file.st_ino, 4096});
  (void)::close(descriptor);
  ASSERT_FALSE(opened);
  EXPECT_NE(opened.error().message().find("could change its size"), std::string::npos);
}

TEST(SharedSegment, NobodyCanShortenItUnderAMapping) {
  const auto made = shared_segment::make(8192);
  ASSERT_TRUE(made);
  const auto descriptor = static_cast<int>(made->here().descriptor);
  EXPECT_EQ(::ftruncate(descriptor, 0), -1);
  EXPECT_EQ(errno, EPERM);
}

TEST(SharedSegment, WhatTheSystemCannotGiveIsRefusedWithTheBytes) {
  const auto huge = shared_segment::make(std::uint64_t{1} << 62);
  ASSERT_FALSE(huge);
  EXPECT_NE(huge.error().message().find("4611686018427387904 bytes"), std::string::npos)
      << huge.error().message();
}

}  // namespace
}  // namespace eptransport::testing
