// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Finds the provider: by option, by environment, or the best there is; never another one.
#pragma once

#include <eptransport/core/config.hpp>
#include <eptransport/core/result.hpp>
#include <eptransport/proxy/endpoints/detail/fabric_objects.hpp>

#include <rdma/fabric.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

namespace eptransport::proxy {

/// Whether comms share a libfabric domain, and with it the registration of the window.
enum class domain_sharing : std::uint8_t {
  automatic,  ///< own ones where software moves the data, under a lock per domain; else shared
  own,
  shared,
};

/// Which provider, and how it is used. All ranks give the same, `domains` apart.
struct fabric_options {
  /// As fi_getinfo names it: "tcp", "shm", "verbs;ofi_rxm", "efa", "efa-direct". Empty: what the
  /// environment says in EPT_PROVIDER; if it says nothing, the first of `best_providers` there is.
  std::string provider{};
  /// Comm k uses the domain of entry k modulo their number, such as "eth0" or "rdmap0s6"; empty:
  /// the first that is hardware with its link up, else the first that the provider offers.
  std::vector<std::string> domains{};
  domain_sharing sharing = domain_sharing::automatic;
  /// Imitates the narrowest wire over any provider: messages of at most 8 KiB, 32 bits of
  /// immediate, keys that nobody can guess, and sources refused that lie in no registered memory.
  bool strict = false;
  std::uint32_t completions = 8192;  ///< entries of each completion queue
  std::uint32_t operations = 0;      ///< in flight per comm; 0: as many as the provider takes
  bool refuse_posts = false;         ///< every post fails: shows what a broken device would do
};

/// In this order, where nothing is asked for. shm is none of them: it reaches one host only. Of
/// verbs devices only hardware with its link up counts; an imitation has to be asked for.
inline constexpr const char* best_providers[] = {"efa-direct", "efa", "verbs;ofi_rxm", "tcp"};

/// Longest message of the strict mode: that of EFA's lowest fabric.
inline constexpr std::uint64_t strict_max_send = 8192;

namespace detail {

/// What the endpoint can work with; what comes back is obeyed.
[[nodiscard]] inline info_owner fabric_hints(bool shared_domain) {
  info_owner hints(fi_allocinfo());
  if (hints == nullptr) return hints;
  hints->caps = FI_MSG | FI_RMA;
  hints->mode = FI_CONTEXT | FI_CONTEXT2;
  hints->ep_attr->type = FI_EP_RDM;
  hints->domain_attr->mr_mode = static_cast<int>(FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED |
                                                 FI_MR_PROV_KEY | FI_MR_ENDPOINT);
  // One thread uses an endpoint, its queue and its address vector; a shared domain is touched by
  // several.
  hints->domain_attr->threading = shared_domain ? FI_THREAD_COMPLETION : FI_THREAD_DOMAIN;
  hints->domain_attr->cq_data_size = 4;
  return hints;
}

/// "tcp" finds tcp;ofi_rxm up to 1.17 and the native tcp from 1.18 on; efa has two fabrics of one
/// provider.
[[nodiscard]] inline bool matches(const fi_info& info, const std::string& wanted) {
  const std::string provider = info.fabric_attr->prov_name;
  if (wanted == "efa-direct" || wanted == "efa") {
    const char* const fabric = info.fabric_attr->name;
    return provider == "efa" && fabric != nullptr && wanted == fabric;
  }
  return provider == wanted || provider == wanted + ";ofi_rxm";
}

/// The name that fi_getinfo takes.
[[nodiscard]] inline std::string provider_of(const std::string& wanted) {
  return wanted == "efa-direct" ? "efa" : wanted;
}

/// All that fi_getinfo offers for one provider, or for none in particular.
[[nodiscard]] inline info_owner offered(const std::string& provider, bool shared_domain) {
  info_owner hints = fabric_hints(shared_domain);
  if (hints == nullptr) return hints;
  if (!provider.empty()) {
    hints->fabric_attr->prov_name = ::strdup(provider_of(provider).c_str());
  }
  fi_info* found = nullptr;
  // The version that was compiled against, whatever newer one is loaded.
  const std::uint32_t version = FI_VERSION(FI_MAJOR_VERSION, FI_MINOR_VERSION);
  if (fi_getinfo(version, nullptr, nullptr, 0, hints.get(), &found) != 0) found = nullptr;
  return info_owner(found);
}

[[nodiscard]] inline std::string names_of(const fi_info* list, bool domains) {
  std::vector<std::string> names;
  for (; list != nullptr; list = list->next) {
    std::string name = list->fabric_attr->prov_name;
    if (domains) name = list->domain_attr->name;
    if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
  }
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text.empty() ? "nothing" : text;
}

/// The provider that was chosen, and what it said of itself.
struct chosen_provider {
  std::string name;
  bool shared_domain = false;
  info_owner offers;  ///< all of that provider
};

[[nodiscard]] inline bool is_software(const std::string& name) {
  return name == "shm" || name == "tcp" || name == "net" || name == "sockets" ||
         name == "udp;ofi_rxd" || name == "tcp;ofi_rxm" || name == "net;ofi_rxm";
}

/// Whether an RDMA device is hardware whose link is up, as far as the provider says.
///
/// @par Source  vendor numbers: Linux, drivers/infiniband/sw: rxe has 0xffffff (0 before 5.11), siw
///              0x626d74; fi_nic(3)
[[nodiscard]] inline bool is_live_hardware(const fi_info& info) {
  if (info.nic == nullptr || info.nic->device_attr == nullptr || info.nic->link_attr == nullptr) {
    return false;
  }
  const char* const vendor = info.nic->device_attr->vendor_id;
  const unsigned long number = vendor == nullptr ? 0 : std::strtoul(vendor, nullptr, 0);
  const bool imitation = number == 0 || number == 0xffffff || number == 0x626d74;
  return !imitation && info.nic->link_attr->state == FI_LINK_UP;
}

/// Whether the offer may be taken by a rank that did not ask for its provider.
[[nodiscard]] inline bool is_good_default(const fi_info& info) {
  return std::string(info.fabric_attr->prov_name) != "verbs;ofi_rxm" || is_live_hardware(info);
}

/// @par Errors  `unsupported`, with what was asked for and what fi_getinfo offers
[[nodiscard]] inline result<chosen_provider> choose_provider(const fabric_options& options) {
  std::vector<std::string> wanted{options.provider};
  const char* const environment = std::getenv("EPT_PROVIDER");
  if (wanted[0].empty() && environment != nullptr) wanted[0] = environment;
  const bool asked_for = !wanted[0].empty();
  if (!asked_for) wanted.assign(std::begin(best_providers), std::end(best_providers));
  for (const std::string& name : wanted) {
    const bool shared = options.sharing == domain_sharing::automatic
                            ? !is_software(name)
                            : options.sharing == domain_sharing::shared;
    info_owner offers = offered(name, shared);
    for (const fi_info* info = offers.get(); info != nullptr; info = info->next) {
      if (!matches(*info, name) || (!asked_for && !is_good_default(*info))) continue;
      return result<chosen_provider>({name, shared, std::move(offers)});
    }
  }
  std::string asked;
  for (const std::string& name : wanted) asked += (asked.empty() ? "'" : "', '") + name;
  return failure{errc::unsupported, "fi_getinfo",
                 "no provider " + asked + "' with messages, one-sided writes and reliable " +
                     "datagrams; there is " + names_of(offered({}, false).get(), false) +
                     ". Set the provider option or EPT_PROVIDER, or install it"};
}

/// The offer of comm `comm`: a domain that was named, or the first that is a good default, or the
/// first.
[[nodiscard]] inline result<fi_info*> offer_for(const chosen_provider& provider,
                                                const fabric_options& options, std::uint32_t comm) {
  const bool any = options.domains.empty();
  const std::string wanted = any ? "" : options.domains[comm % options.domains.size()];
  fi_info* first = nullptr;
  for (fi_info* info = provider.offers.get(); info != nullptr; info = info->next) {
    if (!matches(*info, provider.name)) continue;
    if (any ? is_good_default(*info) : wanted == info->domain_attr->name) return info;
    if (first == nullptr) first = info;
  }
  if (any && first != nullptr) return first;
  return failure{errc::unsupported, "fi_getinfo",
                 "provider " + provider.name + " has no domain '" + wanted + "', there is " +
                     names_of(provider.offers.get(), true)};
}

}  // namespace detail
}  // namespace eptransport::proxy
