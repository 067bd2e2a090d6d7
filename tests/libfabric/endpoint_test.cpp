// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief The libfabric endpoint in one process: what every provider must carry, what the strict
/// mode refuses, what is said when there is no such provider, and that nothing stays behind.
#include <eptransport/proxy/endpoints/libfabric.hpp>

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <unistd.h>
#include <vector>

#include "proxy/rig.hpp"
#include "support/provider_under_test.hpp"
#include "support/random.hpp"

namespace eptransport::proxy {
namespace {

/// A provider, with or without the strict mode.
struct wire {
  const char* provider;
  bool strict;
};

std::string name_of(const wire& w) {
  return std::string(w.provider) + (w.strict ? "_strict" : "");
}

/// Files that shm endpoints of this process left in /dev/shm.
std::size_t shm_files() {
  std::size_t n = 0;
  const std::string own = std::to_string(::getpid());
  for (const auto& file : std::filesystem::directory_iterator("/dev/shm")) {
    if (file.path().filename().string().starts_with(own)) ++n;
  }
  return n;
}

/// Ranks whose ports are polled by one thread.
class ports_of_ranks {
 public:
  ports_of_ranks(const wire& w, std::vector<std::span<std::byte>> windows, std::uint32_t comms) {
    std::vector<std::vector<std::byte>> addresses;
    for (const auto window : windows) {
      auto opened = fabric_ports::open(
          {.provider = support::provider_under_test(w.provider), .strict = w.strict}, window,
          comms);
      if (!opened) {
        ADD_FAILURE() << opened.error().message();
        return;
      }
      all.push_back(std::move(*opened));
      const auto address = all.back()->address();
      if (address) addresses.push_back(*address);
    }
    for (auto& one : all) {
      const auto connected = one->connect(addresses);
      EXPECT_TRUE(connected) << connected.error().message();
    }
  }
  std::vector<std::unique_ptr<fabric_ports>> all;
};

class LibfabricEndpoint : public ::testing::TestWithParam<wire> {};
/// For what the strict mode does not change.
class LibfabricWire : public ::testing::TestWithParam<const char*> {};

/// Posts until it is taken; the others make progress meanwhile.
template <class Post>
void insist(const Post& post, const std::function<void()>& progress) {
  for (int i = 0; i < 2'000'000; ++i) {
    const post_result r = post();
    ASSERT_NE(r, post_result::failed);
    if (r == post_result::posted) return;
    progress();
  }
  FAIL() << "a post was refused for ever";
}

TEST_P(LibfabricEndpoint, CarriesWritesMessagesAndImmediates) {
  constexpr std::uint32_t ranks = 3;
  constexpr std::uint32_t comms = 2;
  constexpr std::uint64_t window = 1 << 16;
  constexpr std::uint32_t puts = 60;
  std::vector<std::vector<std::byte>> memory(ranks, std::vector<std::byte>(window));
  std::vector<std::vector<std::byte>> buffers(ranks * comms, std::vector<std::byte>(64 * 512));
  const ports_of_ranks ports(GetParam(), {memory[0], memory[1], memory[2]}, comms);
  ASSERT_EQ(ports.all.size(), ranks);
  const auto end = [&](std::uint32_t r, std::uint32_t k) -> libfabric_endpoint& {
    return ports.all[r]->endpoint(k);
  };
  for (std::uint32_t r = 0; r < ranks; ++r) {
    for (std::uint32_t k = 0; k < comms; ++k) {
      std::vector<std::byte>& own = buffers[r * comms + k];
      ASSERT_TRUE(end(r, k).attach(own));
      for (std::uint32_t slot = 0; slot < 32; ++slot) {
        ASSERT_EQ(end(r, k).receive(own.data() + (32 + slot) * 512, 512, slot),
                  post_result::posted);
      }
    }
  }
  std::map<std::uint32_t, int> immediates;
  std::map<std::uint32_t, int> written;
  int messages = 0;
  int sent = 0;
  int plain = 0;
  std::vector<completion> out(16);
  const auto progress = [&] {
    for (std::uint32_t r = 0; r < ranks; ++r) {
      for (std::uint32_t k = 0; k < comms; ++k) {
        const std::size_t n = end(r, k).poll(out);
        for (std::size_t i = 0; i < n; ++i) {
          const completion& c = out[i];
          ASSERT_NE(c.kind, completion_kind::error) << end(r, k).describe(c.code);
          if (c.kind == completion_kind::immediate) {
            // The bytes come first. The immediate says where and how many.
            const std::uint32_t id = c.immediate >> 16;
            const std::uint32_t bytes = c.immediate & 0xffff;
            for (std::uint32_t b = 0; b < bytes; ++b) {
              ASSERT_EQ(memory[r][id * 128 + b], static_cast<std::byte>(id * 7 + b + 1));
            }
            ++immediates[id];
          } else if (c.kind == completion_kind::message) {
            const std::byte* at = buffers[r * comms + k].data() + (32 + c.context) * 512;
            ASSERT_EQ(c.bytes, 300U + static_cast<std::uint64_t>(at[0]));
            ASSERT_EQ(at[c.bytes - 1], at[0]);
            ++messages;
          } else if (c.kind == completion_kind::send) {
            ++sent;
          } else if (c.context == 0xffff) {
            ++plain;
          } else {
            ++written[c.context];
          }
        }
      }
    }
  };
  support::random_bits random{7, 1, 1};
  for (std::uint32_t id = 0; id < puts; ++id) {
    const std::uint32_t from = id % ranks;
    const std::uint32_t to = (from + 1 + id % 2) % ranks;
    const auto bytes = id % 5 == 0 ? 0U : static_cast<std::uint32_t>(random.below(128));
    std::byte* src = memory[from].data() + 32768 + id * 128;
    for (std::uint32_t b = 0; b < bytes; ++b) src[b] = static_cast<std::byte>(id * 7 + b + 1);
    insist(
        [&] {
          return end(from, id % comms)
              .write({.peer = to,
                      .src = bytes == 0 ? nullptr : src,
                      .dst_offset = bytes == 0 ? window + 5 : id * 128,
                      .bytes = bytes,
                      .immediate = id << 16 | bytes,
                      .has_immediate = true,
                      .context = id,
                      .more = id % 4 == 1});
        },
        progress);
  }
  for (std::uint32_t i = 0; i < 24; ++i) {
    const std::uint32_t from = i % ranks;
    const std::uint32_t k = i % comms;
    std::byte* data = buffers[from * comms + k].data() + i % 32 * 512;
    const std::uint64_t bytes = 300 + i;
    std::fill_n(data, bytes, static_cast<std::byte>(i));
    insist(
        [&] {
          return end(from, k).send(
              {.peer = (from + 1) % ranks, .data = data, .bytes = bytes, .context = i});
        },
        progress);
  }
  // Without an immediate nobody at the target is told.
  std::fill_n(memory[0].data() + 60000, 100, std::byte{0x5a});
  insist(
      [&] {
        return end(0, 0).write({.peer = 1,
                                .src = memory[0].data() + 60000,
                                .dst_offset = 61000,
                                .bytes = 100,
                                .context = 0xffff});
      },
      progress);
  for (int i = 0; i < 2'000'000; ++i) {
    progress();
    if (HasFatalFailure()) return;
    if (immediates.size() == puts && written.size() == puts && messages == 24 && sent == 24 &&
        plain == 1 && memory[1][61099] == std::byte{0x5a}) {
      break;
    }
  }
  EXPECT_EQ(immediates.size(), puts);
  EXPECT_EQ(written.size(), puts);
  for (const auto& [id, n] : immediates) EXPECT_EQ(n, 1) << "immediate " << id;
  for (const auto& [id, n] : written) EXPECT_EQ(n, 1) << "completion " << id;
  EXPECT_EQ(messages, 24);
  EXPECT_EQ(sent, 24);
  EXPECT_EQ(plain, 1);
  EXPECT_EQ(memory[1][61099], std::byte{0x5a});
  for (const auto& one : ports.all) {
    for (std::uint32_t k = 0; k < comms; ++k) one->endpoint(k).detach();
  }
}

/// Random puts of all sizes among three engines: bytes and counts as asked, nothing beside them.
void run_engines(const wire& w, std::uint64_t eager, std::uint32_t writes_per_peer) {
  constexpr std::uint32_t ranks = 3;
  testing::rig_options options{.ranks = ranks, .signals = 4, .window_bytes = 1 << 18, .rings = 2};
  options.engine.eager = eager;
  options.engine.writes_per_peer = writes_per_peer;
  testing::rig<libfabric_endpoint> rig(options);
  const ports_of_ranks ports(w, rig.windows(), 1);
  ASSERT_EQ(ports.all.size(), ranks);
  const testing::rig<libfabric_endpoint>::engine_end last{rig};
  ASSERT_EQ(
      rig.build([&](std::uint32_t r) -> libfabric_endpoint& { return ports.all[r]->endpoint(0); }),
      "");
  support::random_bits random{11, eager, writes_per_peer};
  std::vector<std::vector<std::byte>> expected(ranks, std::vector<std::byte>(1 << 17));
  std::vector<std::uint64_t> counts(ranks * 4);
  std::vector<std::uint64_t> next(ranks);
  for (std::uint32_t r = 0; r < ranks; ++r) {
    for (std::byte& b : std::span(rig.rank(r).window).subspan(1 << 17)) {
      b = static_cast<std::byte>(random.below(256));
    }
  }
  for (int i = 0; i < 400; ++i) {
    const auto from = static_cast<std::uint32_t>(random.below(ranks));
    const auto to = static_cast<std::uint32_t>(random.below(ranks));
    const std::uint64_t bytes = random.below(10) == 0 ? random.below(9000) : random.below(300);
    const auto signal = static_cast<std::uint32_t>(random.below(4));
    if (next[to] + bytes > expected[to].size()) continue;
    const std::uint64_t at = next[to];
    next[to] += bytes;
    const std::uint64_t src = (1 << 17) + random.below((1 << 17) - 9000);
    for (std::uint64_t b = 0; b < bytes; ++b) {
      expected[to][at + b] = rig.rank(from).window[src + b];
    }
    ++counts[to * 4 + signal];
    rig.push_or_step(from, {src, at, bytes, to, signal}, static_cast<std::uint32_t>(i) % 2);
  }
  const auto arrived = [&] {
    for (std::uint32_t r = 0; r < ranks; ++r) {
      for (std::uint32_t s = 0; s < 4; ++s) {
        if (rig.word(r, s) != counts[r * 4 + s]) return false;
      }
      if (!rig.complete(r, 0) || !rig.complete(r, 1)) return false;
    }
    return true;
  };
  EXPECT_TRUE(rig.until(arrived, 3'000'000));
  for (std::uint32_t r = 0; r < ranks; ++r) {
    EXPECT_EQ(rig.why(r), "");
    EXPECT_TRUE(std::equal(expected[r].begin(), expected[r].end(), rig.rank(r).window.begin()))
        << "rank " << r;
  }
}

TEST_P(LibfabricEndpoint, ServesEngines) {
  for (const std::uint64_t eager : {0UL, 256UL, 4096UL}) {
    SCOPED_TRACE("eager " + std::to_string(eager));
    run_engines(GetParam(), eager, 0);
  }
  run_engines(GetParam(), 256, 4);
}

TEST_P(LibfabricWire, SaysWhichPeerWasRefused) {
  std::vector<std::byte> a(4096);
  std::vector<std::byte> b(4096);
  const ports_of_ranks ports({GetParam(), false}, {a, b}, 1);
  ASSERT_EQ(ports.all.size(), 2U);
  auto refusing = fabric_ports::open(
      {.provider = support::provider_under_test(GetParam()), .refuse_posts = true}, a, 1);
  ASSERT_TRUE(refusing) << refusing.error().message();
  libfabric_endpoint& end = (*refusing)->endpoint(0);
  EXPECT_EQ(end.write({.peer = 1, .has_immediate = true, .context = 3}), post_result::failed);
  std::vector<completion> out(4);
  ASSERT_EQ(end.poll(out), 1U);
  EXPECT_EQ(out[0].kind, completion_kind::error);
  EXPECT_EQ(out[0].peer, 1U);
  EXPECT_EQ(end.describe(out[0].code), "the endpoint was told to refuse posts");
}

TEST_P(LibfabricWire, LeavesNothingBehind) {
  const std::size_t before = shm_files();
  for (int i = 0; i < 3; ++i) {
    std::vector<std::byte> a(4096);
    const ports_of_ranks ports({GetParam(), false}, {a}, 2);
    // The second comm's domain does not exist: what was opened for the first is closed.
    const auto half =
        fabric_ports::open({.provider = GetParam(), .domains = {"", "no-such-domain"}}, a, 2);
    ASSERT_FALSE(half);
  }
  EXPECT_EQ(shm_files(), before);
}

INSTANTIATE_TEST_SUITE_P(Wires, LibfabricEndpoint,
                         ::testing::Values(wire{"tcp", false}, wire{"shm", false},
                                           wire{"tcp", true}, wire{"shm", true}),
                         [](const auto& each) { return name_of(each.param); });

INSTANTIATE_TEST_SUITE_P(Over, LibfabricWire, ::testing::Values("tcp", "shm"),
                         [](const auto& each) { return std::string(each.param); });

TEST(LibfabricStrict, RefusesWhatTheNarrowestWireRefuses) {
  std::vector<std::byte> a(4096);
  std::vector<std::byte> b(4096);
  std::vector<std::byte> elsewhere(64);
  const ports_of_ranks strict({"tcp", true}, {a, b}, 1);
  const ports_of_ranks plain({"tcp", false}, {a, b}, 1);
  ASSERT_EQ(strict.all.size(), 2U);
  ASSERT_EQ(plain.all.size(), 2U);
  libfabric_endpoint& end = strict.all[0]->endpoint(0);
  EXPECT_EQ(end.limits().max_send, 8192U);
  EXPECT_EQ(end.limits().immediate_bits, 32);
  EXPECT_GT(plain.all[0]->endpoint(0).limits().max_send, 8192U);
  // Keys are drawn, not counted.
  EXPECT_NE(end.remote(1).key, strict.all[1]->endpoint(0).remote(0).key);
  EXPECT_GT(end.remote(1).key | end.remote(0).key, 1U << 20);
  EXPECT_EQ(end.write({.peer = 1, .src = elsewhere.data(), .bytes = 64, .has_immediate = true}),
            post_result::failed);
  std::vector<completion> out(1);
  ASSERT_EQ(end.poll(out), 1U);
  EXPECT_EQ(end.describe(out[0].code), "the source lies in no registered memory");
}

TEST(LibfabricProvider, MissingOneIsNamedWithWhatThereIs) {
  std::vector<std::byte> a(4096);
  const auto opened = fabric_ports::open({.provider = "no-such-wire"}, a, 1);
  ASSERT_FALSE(opened);
  EXPECT_EQ(opened.error().code, errc::unsupported);
  EXPECT_NE(opened.error().message().find("'no-such-wire'"), std::string::npos);
  EXPECT_NE(opened.error().message().find("tcp"), std::string::npos) << opened.error().message();
  const auto domain = fabric_ports::open({.provider = "tcp", .domains = {"no-such-nic"}}, a, 1);
  ASSERT_FALSE(domain);
  EXPECT_NE(domain.error().message().find("no domain 'no-such-nic'"), std::string::npos);
  EXPECT_NE(domain.error().message().find("lo"), std::string::npos) << domain.error().message();
}

TEST(LibfabricProvider, EnvironmentNamesItAndNothingElseIsTaken) {
  std::vector<std::byte> a(4096);
  ASSERT_EQ(::setenv("EPT_PROVIDER", "shm", 1), 0);
  const auto shm = fabric_ports::open({}, a, 1);
  ASSERT_TRUE(shm) << shm.error().message();
  EXPECT_EQ((*shm)->provider(), "shm");
  const auto tcp = fabric_ports::open({.provider = "tcp"}, a, 1);
  ASSERT_TRUE(tcp);
  EXPECT_EQ((*tcp)->provider(), "tcp");
  ASSERT_EQ(::setenv("EPT_PROVIDER", "no-such-wire", 1), 0);
  EXPECT_FALSE(fabric_ports::open({}, a, 1));
  ASSERT_EQ(::unsetenv("EPT_PROVIDER"), 0);
  const auto best = fabric_ports::open({}, a, 1);
  ASSERT_TRUE(best) << best.error().message();
  EXPECT_NE((*best)->provider(), "shm") << "reaches one host only";
}

/// A list of offers as fi_getinfo makes it, of verbs devices that are not here.
class verbs_offers {
 public:
  struct device {
    const char* domain;
    const char* vendor;
    fi_link_state link;
  };
  explicit verbs_offers(const std::vector<device>& devices) : nics_(devices.size()) {
    fi_info* next = nullptr;
    for (std::size_t i = devices.size(); i-- > 0;) {
      fi_info* const info = fi_allocinfo();
      info->fabric_attr->prov_name = ::strdup("verbs;ofi_rxm");
      info->domain_attr->name = ::strdup(devices[i].domain);
      nics_[i].device.vendor_id = const_cast<char*>(devices[i].vendor);
      nics_[i].link.state = devices[i].link;
      nics_[i].nic.device_attr = &nics_[i].device;
      nics_[i].nic.link_attr = &nics_[i].link;
      info->nic = &nics_[i].nic;
      info->next = next;
      next = info;
    }
    chosen.name = "verbs;ofi_rxm";
    chosen.offers.reset(next);
  }
  ~verbs_offers() {  // the devices are ours
    for (fi_info* i = chosen.offers.get(); i != nullptr; i = i->next) i->nic = nullptr;
  }
  verbs_offers(const verbs_offers&) = delete;
  verbs_offers& operator=(const verbs_offers&) = delete;

  /// The domain that a rank gets which named none, and whether it would be taken unasked.
  [[nodiscard]] std::string first(bool& unasked) const {
    const auto info = detail::offer_for(chosen, {}, 0);
    if (!info) return info.error().message();
    unasked = detail::is_good_default(**info);
    return (*info)->domain_attr->name;
  }
  detail::chosen_provider chosen;

 private:
  struct nic_parts {
    fid_nic nic{};
    fi_device_attr device{};
    fi_link_attr link{};
  };
  std::vector<nic_parts> nics_;
};

TEST(LibfabricProvider, OnlyRealVerbsDevicesWithALinkAreTakenUnasked) {
  bool unasked = false;
  const verbs_offers host({{"rxe_old", "0x0000", FI_LINK_UP},
                           {"rxe0", "0xffffff", FI_LINK_UP},
                           {"siw0", "0x626d74", FI_LINK_UP},
                           {"mlx5_0", "0x02c9", FI_LINK_DOWN},
                           {"mlx5_1", "0x02c9", FI_LINK_UP}});
  EXPECT_EQ(host.first(unasked), "mlx5_1");
  EXPECT_TRUE(unasked);
  // Whoever names the provider gets what there is.
  const verbs_offers imitation({{"rxe0", "0xffffff", FI_LINK_UP}});
  EXPECT_EQ(imitation.first(unasked), "rxe0");
  EXPECT_FALSE(unasked);
  const verbs_offers down({{"mlx5_0", "0x02c9", FI_LINK_DOWN}});
  EXPECT_EQ(down.first(unasked), "mlx5_0");
  EXPECT_FALSE(unasked);
  const verbs_offers silent({{"unknown", nullptr, FI_LINK_UP}});
  EXPECT_EQ(silent.first(unasked), "unknown");
  EXPECT_FALSE(unasked);
}

TEST(LibfabricPorts, RanksThatDifferAreNamed) {
  std::vector<std::byte> a(4096);
  const auto tcp = fabric_ports::open({.provider = "tcp"}, a, 1);
  const auto shm = fabric_ports::open({.provider = "shm"}, a, 1);
  ASSERT_TRUE(tcp && shm);
  const auto mine = (*tcp)->address();
  const auto theirs = (*shm)->address();
  ASSERT_TRUE(mine && theirs);
  const auto mixed = (*tcp)->connect(std::vector{*mine, *theirs});
  ASSERT_FALSE(mixed);
  EXPECT_EQ(mixed.error().code, errc::mismatch);
  EXPECT_NE(mixed.error().message().find("rank 1 has provider 'shm'"), std::string::npos);
  std::vector<std::byte> cut = *mine;
  cut.resize(cut.size() - 3);
  const auto short_one = (*tcp)->connect(std::vector{*mine, cut});
  ASSERT_FALSE(short_one);
  EXPECT_NE(short_one.error().message().find("cut short"), std::string::npos);
}

TEST(LibfabricPorts, ASecondEngineIsRefused) {
  std::vector<std::byte> a(4096);
  const auto tcp = fabric_ports::open({.provider = "tcp"}, a, 1);
  ASSERT_TRUE(tcp);
  ASSERT_TRUE((*tcp)->endpoint(0).attach({}));
  (*tcp)->endpoint(0).detach();
  const auto second = (*tcp)->endpoint(0).attach({});
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().code, errc::misuse);
  EXPECT_FALSE(fabric_ports::open({.provider = "tcp"}, {}, 1));
}

}  // namespace
}  // namespace eptransport::proxy
