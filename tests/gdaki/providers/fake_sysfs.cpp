// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The sysfs tree by which libibverbs finds the stand-in devices.
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "gdaki/providers/fake_uverbs.hpp"

namespace eptransport::fake_uverbs {
namespace {

/// Removes the tree when the process ends.
struct folder {
  std::filesystem::path path;

  folder() {
    std::string name = (std::filesystem::temp_directory_path() / "ept-uverbs-XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) std::abort();
    path = name;
  }
  ~folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path, ignored);
  }
  folder(const folder&) = delete;
  folder& operator=(const folder&) = delete;

  void file(const std::string& name, const std::string& content) const {
    std::filesystem::create_directories((path / name).parent_path());
    std::ofstream(path / name) << content << '\n';
  }
};

struct identity {
  const char* uverbs;
  const char* device;
  const char* numbers;
  const char* modalias;
};

void add(const folder& root, const identity& id) {
  const std::string uverbs = std::string("class/infiniband_verbs/") + id.uverbs;
  const std::string device = std::string("class/infiniband/") + id.device;
  root.file(uverbs + "/ibdev", id.device);
  root.file(uverbs + "/dev", id.numbers);
  root.file(uverbs + "/abi_version", "1");
  root.file(uverbs + "/device/modalias", id.modalias);
  root.file(device + "/node_type", "1: CA");
  root.file(device + "/node_guid", "0000:0000:0000:0001");
  root.file(device + "/device/modalias", id.modalias);
}

}  // namespace

void plug_in() {
  static const folder root;
  static const bool once = [] {
    root.file("class/infiniband_verbs/abi_version", "6");
    add(root,
        {"uverbs0", "efa_0", "231:192", "pci:v00001D0Fd0000EFA2sv00000000sd00000000bc02sc00i00"});
    add(root,
        {"uverbs1", "mlx5_0", "231:193", "pci:v000015B3d00001021sv00000000sd00000000bc02sc07i00"});
    return setenv("SYSFS_PATH", root.path.c_str(), 1) == 0;
  }();
  if (!once) std::abort();
}

}  // namespace eptransport::fake_uverbs
