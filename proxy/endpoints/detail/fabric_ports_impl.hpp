// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief One rank's endpoints: domains, addresses, connection. Included by libfabric.hpp.
#pragma once

#include <eptransport/proxy/endpoints/libfabric.hpp>

#include <string_view>
#include <sys/mman.h>

namespace eptransport::proxy {

namespace detail {

[[nodiscard]] inline result<std::shared_ptr<fabric_domain>> open_domain(
    fi_info* info, bool strict, std::span<std::byte> window) {
  auto made = std::make_shared<fabric_domain>();
  made->info = info;
  made->strict = strict;
  fid_fabric* fabric = nullptr;
  int failed = fi_fabric(info->fabric_attr, &fabric, nullptr);
  if (failed != 0) return fabric_failure(failed, "fi_fabric", info->fabric_attr->prov_name);
  made->fabric.reset(fabric);
  fid_domain* domain = nullptr;
  failed = fi_domain(fabric, info, &domain, nullptr);
  if (failed != 0) return fabric_failure(failed, "fi_domain", info->domain_attr->name);
  made->domain.reset(domain);
  if (!made->mode(FI_MR_ENDPOINT)) {
    auto registered = register_memory(*made, nullptr, window, window_access);
    if (!registered) return registered.error();
    made->window = std::move(*registered);
  }
  return made;
}

/// The name of an shm endpoint's file: its address is a text that ends with it.
[[nodiscard]] inline std::string shm_file(std::span<const std::byte> address) {
  constexpr std::string_view scheme = "fi_shm://";
  const std::string_view text(reinterpret_cast<const char*>(address.data()), address.size());
  if (!text.starts_with(scheme)) return {};
  const std::string_view rest = text.substr(scheme.size());
  return "/" + std::string(rest.substr(0, rest.find('\0')));
}

}  // namespace detail

inline result<std::unique_ptr<fabric_ports>> fabric_ports::open(const fabric_options& options,
                                                                std::span<std::byte> window,
                                                                std::uint32_t comms) {
  if (window.empty() || comms == 0 || options.completions == 0) {
    return failure{errc::invalid_argument, "fabric_ports::open",
                   "a window of " + std::to_string(window.size()) + " bytes, " +
                       std::to_string(comms) + " comms, " + std::to_string(options.completions) +
                       " completions; each must be at least 1"};
  }
  auto provider = detail::choose_provider(options);
  if (!provider) return provider.error();
  std::unique_ptr<fabric_ports> made(new fabric_ports);
  made->provider_ = std::move(*provider);
  std::vector<std::shared_ptr<detail::fabric_domain>> shared;
  for (std::uint32_t comm = 0; comm < comms; ++comm) {
    const result<fi_info*> info = detail::offer_for(made->provider_, options, comm);
    if (!info) return info.error();
    std::shared_ptr<detail::fabric_domain> domain;
    for (const auto& known : shared) {
      if (known->info == *info) domain = known;
    }
    if (domain == nullptr) {
      auto opened = detail::open_domain(*info, options.strict, window);
      if (!opened) return opened.error();
      domain = std::move(*opened);
      if (made->provider_.shared_domain) shared.push_back(domain);
    }
    std::unique_ptr<libfabric_endpoint> end(
        new libfabric_endpoint(std::move(domain), options, window));
    if (result<void> opened = end->open(options); !opened) return opened.error();
    made->endpoints_.push_back(std::move(end));
  }
  return result<std::unique_ptr<fabric_ports>>(std::move(made));
}

inline result<std::vector<std::byte>> fabric_ports::address() const {
  detail::blob_writer blob;
  blob.text(provider_.name);
  blob.number(endpoints_.size());
  for (const auto& end : endpoints_) {
    auto name = end->name();
    if (!name) return name.error();
    blob.bytes(*name);
    blob.number(end->window_base_);
    blob.number(end->window_key_);
  }
  return std::move(blob).take();
}

inline void fabric_ports::bury(std::uint32_t rank) const noexcept {
  if (rank >= shm_names_.size()) return;
  for (const std::string& name : shm_names_[rank]) (void)::shm_unlink(name.c_str());
}

inline bool fabric_ports::closes_only_at_rest() const noexcept {
  return std::ranges::any_of(endpoints_, [](const auto& end) { return end->over_rxm(); });
}

inline void fabric_ports::withdraw() noexcept {
  for (const auto& end : endpoints_) {
    end->own_window_.reset();
    end->domain_->window.reset();
  }
}

inline result<void> fabric_ports::connect(std::span<const std::vector<std::byte>> all) {
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    detail::blob_reader blob(all[rank]);
    const std::string provider = blob.text();
    const std::uint64_t comms = blob.number();
    if (!blob.valid() || provider != provider_.name || comms != endpoints_.size()) {
      return failure{errc::mismatch, "fabric_ports::connect",
                     "rank " + std::to_string(rank) + " has provider '" + provider + "' and " +
                         std::to_string(comms) + " comms, this rank has '" + provider_.name +
                         "' and " + std::to_string(endpoints_.size())};
    }
    std::vector<std::string>& files = shm_names_.emplace_back();
    for (const auto& end : endpoints_) {
      const std::span<const std::byte> name = blob.bytes();
      if (std::string file = detail::shm_file(name); !file.empty()) files.push_back(file);
      const std::uint64_t base = blob.number();
      const std::uint64_t key = blob.number();
      if (!blob.valid()) {
        return failure{errc::mismatch, "fabric_ports::connect",
                       "the address of rank " + std::to_string(rank) + " is cut short"};
      }
      if (result<void> inserted = end->insert(name, base, key); !inserted) return inserted;
    }
  }
  return {};
}

}  // namespace eptransport::proxy
