// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief An efa-direct domain with its GDA operations, by a libfabric that is found at run time.
///
/// Builds with the headers of libfabric 1.17 (Debian 12) and newer; links nothing.
#pragma once

#include <eptransport/core/config.hpp>
#include <eptransport/core/result.hpp>
#include <eptransport/gdaki/provision/efa.hpp>
#include <eptransport/gdaki/provision/library.hpp>
#include <eptransport/gdaki/provision/need.hpp>

#include <rdma/fabric.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <unistd.h>
#include <utility>

namespace eptransport::gdaki::provision {

/// What efa-direct needs of libfabric; tests put their own functions here.
struct libfabric_calls {
  std::uint32_t (*version)() = nullptr;
  int (*getinfo)(std::uint32_t, const char*, const char*, std::uint64_t, const fi_info*,
                 fi_info**) = nullptr;
  void (*freeinfo)(fi_info*) = nullptr;
  fi_info* (*dupinfo)(const fi_info*) = nullptr;
  int (*fabric)(fi_fabric_attr*, fid_fabric**, void*) = nullptr;
};

/// The library and its calls.
class libfabric {
 public:
  /// @par Errors  `need::library`; `need::library_version` where a call is missing
  [[nodiscard]] static result<libfabric> open(const std::string& name = "libfabric.so.1") {
    auto opened = library::open(name, "libfabric 2.3 or newer (the EFA installer has it)");
    if (!opened) return opened.error();
    libfabric_calls calls;
    calls.version = opened->find<std::uint32_t()>("fi_version");
    calls.getinfo = opened->find<int(std::uint32_t, const char*, const char*, std::uint64_t,
                                     const fi_info*, fi_info**)>("fi_getinfo");
    calls.freeinfo = opened->find<void(fi_info*)>("fi_freeinfo");
    calls.dupinfo = opened->find<fi_info*(const fi_info*)>("fi_dupinfo");
    calls.fabric = opened->find<int(fi_fabric_attr*, fid_fabric**, void*)>("fi_fabric");
    if (calls.version == nullptr || calls.getinfo == nullptr || calls.freeinfo == nullptr ||
        calls.dupinfo == nullptr || calls.fabric == nullptr) {
      return missing(need::library_version, "dlsym", name + " lacks calls of libfabric 1.0");
    }
    return libfabric(std::move(*opened), calls);
  }

  [[nodiscard]] const libfabric_calls& calls() const noexcept { return calls_; }

 private:
  libfabric(library&& from, const libfabric_calls& calls)
      : library_(std::move(from)), calls_(calls) {}

  library library_;
  libfabric_calls calls_;
};

/// Fabric, domain and GDA operations of one device. Endpoints are made with the usual calls.
///
/// @par Threads  One at a time.
class efa_direct_domain {
 public:
  /// @param calls   outlive the domain
  /// @param device  e.g. "rdmap16s27-rdm"; empty: the first
  /// @par Errors    `need::library_version`; `need::kernel_module` (efa); `need::device`;
  ///                `need::device_property` (no GDA operations); errno
  [[nodiscard]] static result<efa_direct_domain> open(const libfabric_calls& calls,
                                                      const std::string& device = {});

  [[nodiscard]] const efa_gda& gda() const noexcept { return *gda_; }
  [[nodiscard]] fid_domain* domain() const noexcept { return domain_.get(); }
  /// For `fi_endpoint`.
  [[nodiscard]] fi_info* info() const noexcept { return info_.get(); }

 private:
  struct close {
    template <class Object>
    void operator()(Object* object) const noexcept {
      (void)fi_close(&object->fid);
    }
  };
  using info_pointer = std::unique_ptr<fi_info, void (*)(fi_info*)>;

  explicit efa_direct_domain(info_pointer info) : info_(std::move(info)) {}

  [[nodiscard]] static result<info_pointer> find(const libfabric_calls& calls,
                                                 const std::string& device);

  info_pointer info_;
  std::unique_ptr<fid_fabric, close> fabric_;
  std::unique_ptr<fid_domain, close> domain_;
  std::optional<efa_gda> gda_;
};

inline result<efa_direct_domain::info_pointer> efa_direct_domain::find(const libfabric_calls& calls,
                                                                       const std::string& device) {
  const info_pointer hints(calls.dupinfo(nullptr), calls.freeinfo);
  if (hints == nullptr) return system_failure(ENOMEM, "fi_allocinfo", "");
  std::string fabric = "efa-direct";
  std::string provider = "efa";
  hints->fabric_attr->name = fabric.data();
  hints->fabric_attr->prov_name = provider.data();
  hints->ep_attr->type = FI_EP_RDM;
  hints->caps = FI_MSG | FI_RMA;
  hints->mode = FI_CONTEXT | FI_CONTEXT2;
  hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
  std::string name = device;
  if (!device.empty()) hints->domain_attr->name = name.data();
  fi_info* found = nullptr;
  const int code = calls.getinfo(calls.version(), nullptr, nullptr, 0, hints.get(), &found);
  hints->fabric_attr->name = hints->fabric_attr->prov_name = hints->domain_attr->name = nullptr;
  if (code == 0) return info_pointer(found, calls.freeinfo);
  if (code != -FI_ENODATA) return system_failure(-code, "fi_getinfo", "");
  if (access("/sys/module/efa", F_OK) != 0) {
    return missing(need::kernel_module, "fi_getinfo",
                   "the kernel module efa is not loaded; modprobe efa, on an instance with EFA");
  }
  return missing(need::device, "fi_getinfo",
                 (device.empty() ? std::string("no device") : "no device " + device) +
                     " offers efa-direct with RDMA write; fi_info -p efa lists what there is");
}

inline result<efa_direct_domain> efa_direct_domain::open(const libfabric_calls& calls,
                                                         const std::string& device) {
  const std::uint32_t version = calls.version();
  if (version < efa_gda_table::since) return efa_gda::of(nullptr, version).error();
  auto found = find(calls, device);
  if (!found) return found.error();
  efa_direct_domain made(std::move(*found));
  fid_fabric* fabric = nullptr;
  int code = calls.fabric(made.info_->fabric_attr, &fabric, nullptr);
  if (code != 0) return system_failure(-code, "fi_fabric", "");
  made.fabric_.reset(fabric);
  fid_domain* domain = nullptr;
  code = fi_domain(fabric, made.info_.get(), &domain, nullptr);
  if (code != 0) return system_failure(-code, "fi_domain", "");
  made.domain_.reset(domain);
  void* table = nullptr;
  code = fi_open_ops(&domain->fid, efa_gda_table::name, 0, &table, nullptr);
  if (code != 0) {
    return missing(need::device_property, "fi_open_ops",
                   std::string("the domain has no \"") + efa_gda_table::name +
                       "\": the device or its driver does not let a GPU post");
  }
  auto gda = efa_gda::of(static_cast<const efa_gda_table*>(table), version);
  if (!gda) return gda.error();
  made.gda_ = *gda;
  return result<efa_direct_domain>(std::move(made));
}

}  // namespace eptransport::gdaki::provision
