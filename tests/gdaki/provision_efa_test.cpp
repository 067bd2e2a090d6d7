// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief EFA provisioning over stand-in operation tables, and what it says of the libraries that
///        are really installed. No device is needed, and none has been seen.
#include <eptransport/gdaki/provision/efa.hpp>
#include <eptransport/gdaki/provision/efa_libfabric.hpp>
#include <eptransport/gdaki/provision/efa_tables.hpp>
#include <eptransport/gdaki/provision/library.hpp>

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>

#if __has_include(<rdma/fi_ext_efa.h>)
#include <rdma/fi_ext_efa.h>
static_assert(sizeof(fi_efa_cq_init_attr) ==
              sizeof(eptransport::gdaki::provision::efa_completion_memory));
static_assert(offsetof(fi_efa_ops_gda, get_mr_lkey) ==
              offsetof(eptransport::gdaki::provision::efa_gda_table, get_mr_lkey));
static_assert(offsetof(fi_efa_wq_attr, max_batch) ==
              offsetof(eptransport::gdaki::provision::efa_queue_info, max_batch));
#endif

namespace eptransport::gdaki::provision {
namespace {

constexpr std::uint32_t v(std::uint32_t major, std::uint32_t minor) {
  return major << 16U | minor;
}

/// What the stand-in device answers.
struct stand_in {
  std::uint8_t ring[64 * 32] = {};
  std::uint32_t doorbell = 0;
  std::uint32_t entry_size = 64, entries = 32, completion_size = 32, completions = 64;
  std::uint64_t lkey = 0x1103;
  int code = 0;
  efa_counter_init counter{};
  efa_completion_memory memory{};
};
stand_in& device() {
  static stand_in it;
  return it;
}
stand_in& fresh_device() {
  return device() = stand_in();
}

int query_addr(fid_ep*, std::uint64_t address, std::uint16_t* handle, std::uint16_t* qpn,
               std::uint32_t* qkey) {
  *handle = static_cast<std::uint16_t>(0xa0 + address);
  *qpn = 0x4321;
  *qkey = 0x99aabbcc;
  return address < 5 ? 0 : -EINVAL;
}
int query_queues(fid_ep*, efa_queue_info* send, efa_queue_info*) {
  send->buffer = device().ring;
  send->entry_size = device().entry_size;
  send->num_entries = device().entries;
  send->doorbell = &device().doorbell;
  send->max_batch = 16;
  // A later libfabric fills members that this build does not know.
  std::memset(send->later, 0xee, sizeof(send->later));
  return device().code;
}
int query_completions(fid_cq*, efa_completion_info* info) {
  info->buffer = device().ring;
  info->entry_size = device().completion_size;
  info->num_entries = device().completions;
  return device().code;
}
int open_completions(fid_domain*, fi_cq_attr*, efa_completion_memory* where, fid_cq** made, void*) {
  device().memory = *where;
  *made = reinterpret_cast<fid_cq*>(device().ring);
  return device().code;
}
std::uint64_t get_lkey(fid_mr*) {
  return device().lkey;
}
int open_counter(fid_domain*, fi_cntr_attr*, fid_cntr** made, void*, efa_counter_init* how) {
  device().counter = *how;
  *made = reinterpret_cast<fid_cntr*>(device().ring);
  return device().code;
}
constexpr efa_gda_table table{query_addr,       query_queues, query_completions,
                              open_completions, get_lkey,     open_counter};

efa_gda gda(std::uint32_t version = v(2, 6)) {
  auto made = efa_gda::of(&table, version);
  EXPECT_TRUE(made) << made.error().message();
  return *made;
}

template <class T>
void expect_need(const result<T>& got, need what, const std::string& text) {
  ASSERT_FALSE(got) << "expected: " << text;
  EXPECT_EQ(got.error().code, what) << got.error().message();
  EXPECT_NE(got.error().message().find(text), std::string::npos) << got.error().message();
}

TEST(EfaProvision, QueuesCompletionsPeersAndKeysComeBackAsTheBuildersTakeThem) {
  stand_in& d = fresh_device();
  const auto queue = gda().send_queue(nullptr);
  ASSERT_TRUE(queue) << queue.error().message();
  EXPECT_EQ(queue->entry_bytes, 64U);
  EXPECT_EQ(queue->attributes.slots, 32U);
  EXPECT_EQ(queue->attributes.max_batch, 16U);
  EXPECT_EQ(queue->attributes.doorbell, &d.doorbell);
  EXPECT_EQ(queue->attributes.ring, reinterpret_cast<std::byte*>(d.ring));
  const auto completions = gda().completions(nullptr);
  ASSERT_TRUE(completions);
  EXPECT_EQ(completions->entries, 64U);
  EXPECT_EQ(completions->entry_bytes, 32U);
  const auto peer = gda().peer(nullptr, 3);
  ASSERT_TRUE(peer);
  EXPECT_EQ(peer->handle, 0xa3);
  EXPECT_EQ(peer->qpn, 0x4321);
  EXPECT_EQ(peer->qkey, 0x99aabbccU);
  EXPECT_EQ(*gda().lkey(nullptr), 0x1103U);
  EXPECT_FALSE(gda().peer(nullptr, 9));
}

TEST(EfaProvision, WhatTheBuildersCannotDoIsADevicePropertyWithTheNumber) {
  fresh_device().entry_size = 96;
  expect_need(gda().send_queue(nullptr), need::device_property, "entries of 96 bytes");
  fresh_device().entries = 48;
  expect_need(gda().send_queue(nullptr), need::device_property, "a ring of 48 entries");
  fresh_device().entries = 65536;
  expect_need(gda().send_queue(nullptr), need::device_property, "a ring of 65536 entries");
  fresh_device().completion_size = 64;
  expect_need(gda().completions(nullptr), need::device_property, "64 completions of 64 bytes");
  fresh_device().lkey = 0x1000000;
  expect_need(gda().lkey(nullptr), need::device_property, "at most 16777215");
  fresh_device().code = -EIO;
  EXPECT_EQ(gda().send_queue(nullptr).error().code, std::errc::io_error);
}

TEST(EfaProvision, ATableIsReadNoFurtherThanItsVersionReaches) {
  expect_need(efa_gda::of(&table, v(1, 17)), need::library_version,
              "libfabric 1.17 has no GDA operations, 2.3 or newer is needed");
  fresh_device();
  // Up to 2.5 the table ends before its last entry: what lies there is not a function.
  expect_need(gda(v(2, 5)).open_counter(nullptr, nullptr, {}), need::library_version,
              "libfabric 2.5 has no counters that the device writes, 2.6 or newer");
  std::uint64_t word = 0;
  efa_word_location where;
  where.pointer = reinterpret_cast<std::uint8_t*>(&word);
  ASSERT_TRUE(gda().open_counter(nullptr, nullptr, where));
  EXPECT_EQ(device().counter.flags, efa_counter_init::successes_elsewhere);
  EXPECT_EQ(device().counter.successes.pointer, where.pointer);
  fresh_device().code = -ENOSYS;
  expect_need(gda().open_counter(nullptr, nullptr, where), need::library_version,
              "rdma-core without completion counters");
  fresh_device().code = -EOPNOTSUPP;
  expect_need(gda().open_counter(nullptr, nullptr, where), need::device_property,
              "efa 3.3 or newer is needed");
}

TEST(EfaProvision, CompletionsInGpuMemoryAreAskedForByDmabuf) {
  fresh_device();
  efa_completion_memory where;
  where.dmabuf.fd = 17;
  where.dmabuf.length = 4096;
  ASSERT_TRUE(gda().open_completions(nullptr, nullptr, where));
  EXPECT_EQ(device().memory.flags, efa_completion_memory::in_dmabuf);
  EXPECT_EQ(device().memory.dmabuf.fd, 17U);
  fresh_device().code = -EOPNOTSUPP;
  expect_need(gda().open_completions(nullptr, nullptr, where), need::device_property,
              "completion queues in external memory; efa 2.17");
}

TEST(EfaProvision, LibrariesThatAreMissingOrOldAreNamed) {
  expect_need(library::open("libnobody.so.7", "nobody-dev"), need::library, "install nobody-dev");
  expect_need(libfabric::open("libnobody.so.7"), need::library, "libnobody.so.7");
  expect_need(efa_direct_verbs::open("libc.so.6"), need::library_version,
              "libc.so.6 has no efadv_query_qp_wqs; rdma-core 59");
  // What is really installed: either it is new enough, or the error says what is needed.
  const auto verbs = efa_direct_verbs::open();
  if (!verbs) {
    EXPECT_TRUE(verbs.error().code == need::library_version || verbs.error().code == need::library)
        << verbs.error().message();
    EXPECT_NE(verbs.error().detail.find("rdma-core 59"), std::string::npos);
  }
  const auto fabric = libfabric::open();
  if (!fabric) return expect_need(fabric, need::library, "libfabric 2.3 or newer");
  const auto domain = efa_direct_domain::open(fabric->calls());
  if (domain) return;  // an instance with EFA
  if (fabric->calls().version() < efa_gda_table::since) {
    expect_need(domain, need::library_version, "2.3 or newer is needed");
  } else {
    EXPECT_TRUE(domain.error().code == need::kernel_module || domain.error().code == need::device)
        << domain.error().message();
  }
}

/// A libfabric that is new enough; `found` says whether it lists a device, `offers` whether the
/// domain has GDA operations.
struct stand_in_fabric {
  bool found = true;
  bool offers = true;
  int closed = 0;
  std::string asked_fabric, asked_device;
};
stand_in_fabric& fabric_state() {
  static stand_in_fabric it;
  return it;
}
fi_info* new_info(const fi_info*) {
  auto* info = new fi_info{};
  info->fabric_attr = new fi_fabric_attr{};
  info->domain_attr = new fi_domain_attr{};
  info->ep_attr = new fi_ep_attr{};
  return info;
}
void free_info(fi_info* info) {
  delete info->fabric_attr;
  delete info->domain_attr;
  delete info->ep_attr;
  delete info;
}
int get_info(std::uint32_t, const char*, const char*, std::uint64_t, const fi_info* hints,
             fi_info** out) {
  fabric_state().asked_fabric = hints->fabric_attr->name;
  if (hints->domain_attr->name != nullptr) fabric_state().asked_device = hints->domain_attr->name;
  if (!fabric_state().found) return -FI_ENODATA;
  *out = new_info(nullptr);
  return 0;
}
int close_one(fid*) {
  ++fabric_state().closed;
  return 0;
}
int open_table(fid*, const char* name, std::uint64_t, void** out, void*) {
  if (!fabric_state().offers || std::string(name) != "efa gda ops") return -FI_ENOSYS;
  *out = const_cast<efa_gda_table*>(&table);
  return 0;
}
fi_ops object_calls{sizeof(fi_ops), close_one, nullptr, nullptr, open_table, nullptr, nullptr};
fid_domain the_domain{};
int open_domain(fid_fabric*, fi_info*, fid_domain** out, void*) {
  the_domain.fid.ops = &object_calls;
  *out = &the_domain;
  return 0;
}
fi_ops_fabric fabric_calls{
    sizeof(fi_ops_fabric), open_domain, nullptr, nullptr, nullptr, nullptr, nullptr};
fid_fabric the_fabric{};
int open_fabric(fi_fabric_attr*, fid_fabric** out, void*) {
  the_fabric.fid.ops = &object_calls;
  the_fabric.ops = &fabric_calls;
  *out = &the_fabric;
  return 0;
}
std::uint32_t new_version() {
  return v(2, 6);
}
constexpr libfabric_calls stand_in_calls{new_version, get_info, free_info, new_info, open_fabric};

TEST(EfaProvision, ADomainIsOpenedOnEfaDirectAndClosedAgain) {
  fabric_state() = {};
  fresh_device();
  {
    const auto domain = efa_direct_domain::open(stand_in_calls, "rdmap0");
    ASSERT_TRUE(domain) << domain.error().message();
    EXPECT_EQ(fabric_state().asked_fabric, "efa-direct");
    EXPECT_EQ(fabric_state().asked_device, "rdmap0");
    EXPECT_TRUE(domain->gda().send_queue(nullptr));
    EXPECT_EQ(domain->domain(), &the_domain);
  }
  EXPECT_EQ(fabric_state().closed, 2);

  fabric_state() = {};
  fabric_state().offers = false;
  expect_need(efa_direct_domain::open(stand_in_calls), need::device_property,
              "does not let a GPU post");
  EXPECT_EQ(fabric_state().closed, 2);

  fabric_state() = {};
  fabric_state().found = false;
  const auto none = efa_direct_domain::open(stand_in_calls);
  ASSERT_FALSE(none);
  const bool loaded = access("/sys/module/efa", F_OK) == 0;
  EXPECT_EQ(none.error().code, loaded ? need::device : need::kernel_module);
  EXPECT_NE(none.error().detail.find(loaded ? "efa-direct" : "kernel module efa"),
            std::string::npos);
}

}  // namespace
}  // namespace eptransport::gdaki::provision
