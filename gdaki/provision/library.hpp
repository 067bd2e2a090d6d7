// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Libraries that are looked for when the program runs, so that it builds and starts without
///        them.
#pragma once

#include <eptransport/core/config.hpp>
#include <eptransport/core/result.hpp>
#include <eptransport/gdaki/provision/need.hpp>

#include <dlfcn.h>
#include <memory>
#include <string>

namespace eptransport::gdaki::provision {

/// A shared library. Once open it stays in the process: fabric libraries have threads and exit
/// handlers that outlive a user.
class library {
 public:
  /// @param name  e.g. "libefa.so.1"
  /// @param package  what to install, for the error
  /// @par Errors  `need::library`
  [[nodiscard]] static result<library> open(const std::string& name, const std::string& package) {
    void* handle = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (handle == nullptr) {
      const char* why = dlerror();
      return missing(need::library, "dlopen",
                     name + " cannot be opened (" + (why != nullptr ? why : "no reason given") +
                         "); install " + package);
    }
    return library(handle, name);
  }

  /// A function of the library, in the version that introduced it, or null.
  /// @tparam Function  its type
  template <class Function>
  [[nodiscard]] Function* find(const char* symbol, const char* version) const noexcept {
    void* found = dlvsym(handle_.get(), symbol, version);
    return reinterpret_cast<Function*>(found);
  }
  /// The default version of a function, or null.
  template <class Function>
  [[nodiscard]] Function* find(const char* symbol) const noexcept {
    return reinterpret_cast<Function*>(dlsym(handle_.get(), symbol));
  }
  [[nodiscard]] const std::string& name() const noexcept { return name_; }

 private:
  struct close {
    void operator()(void* handle) const noexcept { dlclose(handle); }
  };

  library(void* handle, std::string name) : handle_(handle), name_(std::move(name)) {}

  std::unique_ptr<void, close> handle_;
  std::string name_;
};

}  // namespace eptransport::gdaki::provision
