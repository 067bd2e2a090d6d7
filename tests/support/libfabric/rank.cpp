// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief A rank over libfabric: the transport, the run, and its outcome on the way to others.
#include "support/libfabric/rank.hpp"

#include <eptransport/backends/libfabric/libfabric.hpp>
#include <eptransport/kernels/kernels.hpp>

#include <chrono>
#include <cstring>
#include <type_traits>
#include <utility>

#include "support/rank_run.hpp"
#include "support/runner_impl.hpp"
#include "support/runner_wires.hpp"

namespace eptransport::support {
namespace {

/// What `host_rig` asks of a world, of the one rank that is here.
struct lone_rank {
  libfabric& own;
  std::uint32_t comms;

  template <class Value>
  [[nodiscard]] std::uint64_t sum(const Value& value) const {
    std::uint64_t total = 0;
    for (std::uint32_t k = 0; k < comms; ++k) total += value(own.statistics(k));
    return total;
  }
  [[nodiscard]] std::uint64_t commands() const {
    return sum([](const proxy::engine_statistics& s) { return s.commands.get() - s.local.get(); });
  }
  [[nodiscard]] std::uint64_t messages(int) const {
    return sum([](const proxy::engine_statistics& s) {
      return s.writes.get() + s.messages.get() + s.credit_writes.get();
    });
  }
  [[nodiscard]] std::uint64_t bytes(int) const {
    return sum([](const proxy::engine_statistics& s) { return s.bytes.get(); });
  }
  void advance(int, std::uint64_t) const {}
};

struct libfabric_setting {
  using transport = libfabric;
  using world = lone_rank;
  static constexpr bool counts = false;  // several puts may share a message
};

[[nodiscard]] proxied_options options_of(const run_config& config, std::uint64_t window_bytes,
                                         std::uint32_t signals) {
  proxied_options o;
  o.window_bytes = window_bytes;
  o.signals = signals;
  o.channels = std::max(config.channels, config.proxy.comms);
  o.comms = config.proxy.comms;
  o.nodes = config.nodes;
  o.workers = config.workers;
  o.counter_start = config.counter_start;
  o.ring_slots = config.proxy.ring_slots;
  o.engine = config.proxy.engine;
  o.drive = config.proxy.drive == proxy_drive::shared ? proxy_drive::shared : proxy_drive::threads;
  o.driver_threads = config.proxy.driver_threads;
  o.driver.idle = proxy::polite;
  o.driver.stall_ns = config.proxy.stall_ns;
  return o;
}

void run_over(libfabric& own, const run_config& config, const router& routes, rank_outcome& out) {
  lone_rank world{own, config.proxy.comms};
  host_rig<libfabric_setting> rig(config, world, own);
  rank_run<host_rig<libfabric_setting>>(config, routes, rig, out.report, out.verdict)();
  own.quiet();
  if (const result<void> fault = own.fault(); !fault) out.fault = fault.error().message();
  out.intact = own.intact();
  out.commands = world.commands();
  out.messages = world.messages(0);
  out.slot_bytes = own.engine_options().slot_bytes;
  out.statistics = own.statistics(0).json();
  out.affinity = own.affinity().front();
  out.provider = own.ports().provider();
  out.node = own.view().node(own.view().rank());
}

/// Visits all that travels, in order. `A` writes or reads.
template <class A, class Outcome>
void visit(A& a, Outcome& o) {
  a(o.error);
  a(o.report.iterations);
  a(o.report.overflowed);
  a(o.report.fault);
  a(o.report.error);
  a(o.report.failed_call);
  a(o.report.dispatch);
  a(o.report.combine);
  a(o.verdict.iteration);
  a(o.verdict.call);
  a(o.verdict.difference);
  a(o.verdict.dispatch_ns);
  a(o.verdict.combine_ns);
  a(o.verdict.dispatch_copy_ns);
  a(o.verdict.combine_copy_ns);
  a(o.verdict.dispatch_payload);
  a(o.verdict.combine_payload);
  a(o.verdict.message);
  a(o.verdict.reason);
  a(o.fault);
  a(o.intact);
  a(o.commands);
  a(o.messages);
  a(o.slot_bytes);
  a(o.statistics);
  a(o.affinity);
  a(o.provider);
  a(o.wall_ns);
  a(o.node);
}

struct packer {
  proxy::detail::blob_writer blob{};
  void operator()(const std::string& text) { blob.text(text); }
  void operator()(const std::vector<double>& all) { blob.bytes(std::as_bytes(std::span(all))); }
  template <class T>
    requires std::is_trivially_copyable_v<T>
  void operator()(const T& value) {
    blob.bytes(std::as_bytes(std::span(&value, 1)));
  }
};

struct unpacker {
  proxy::detail::blob_reader blob;
  bool whole = true;
  void operator()(std::string& text) { text = blob.text(); }
  void operator()(std::vector<double>& all) {
    const auto from = blob.bytes();
    all.resize(from.size() / sizeof(double));
    if (!all.empty()) std::memcpy(all.data(), from.data(), all.size() * sizeof(double));
  }
  template <class T>
    requires std::is_trivially_copyable_v<T>
  void operator()(T& value) {
    const auto from = blob.bytes();
    whole = whole && from.size() == sizeof value;
    if (whole) std::memcpy(static_cast<void*>(&value), from.data(), sizeof value);
  }
};

}  // namespace

rank_outcome run_rank(const run_config& config, bootstrap& meeting,
                      const proxy::fabric_options& fabric) {
  rank_outcome out;
  const auto start = std::chrono::steady_clock::now();
  const auto refuse = [&](const std::string& why) {
    out.error = why;
    meeting.abort(why);
    return out;
  };
  if (const std::string wrong = wrong_with(config); !wrong.empty()) return refuse(wrong);
  const auto routes = routes_of(config);
  if (!routes) return refuse(routes.error().message());
  const problem p = problem_of(config);
  const auto sizes = group<libfabric>::sizes(shape_of(config, p), config.ranks, config.workers);
  if (!sizes) return refuse(sizes.error().message());
  auto made = libfabric::create(
      meeting,
      options_of(config, window_bytes_of(config, *sizes), config.first_signal + sizes->signals),
      fabric);
  if (!made) {
    out.error = made.error().message();
    return out;
  }
  run_over(**made, config, *routes, out);
  const std::chrono::duration<double, std::nano> wall = std::chrono::steady_clock::now() - start;
  out.wall_ns = wall.count();
  return out;
}

std::string packed(const rank_outcome& outcome) {
  packer to;
  visit(to, outcome);
  const std::vector<std::byte> blob = std::move(to.blob).take();
  return {reinterpret_cast<const char*>(blob.data()), blob.size()};
}

rank_outcome unpacked(std::span<const std::byte> bytes) {
  rank_outcome out;
  unpacker from{proxy::detail::blob_reader(bytes)};
  visit(from, out);
  if (from.whole && from.blob.valid()) return out;
  rank_outcome none;
  none.error = "no outcome came of it: the process ended early";
  return none;
}

run_result joined(const run_config& config, std::vector<rank_outcome> outcomes) {
  run_result out;
  std::vector<rank_verdict> verdicts;
  for (std::size_t rank = 0; rank < outcomes.size(); ++rank) {
    rank_outcome& o = outcomes[rank];
    const std::string who = "rank " + std::to_string(rank);
    if (!o.error.empty() && out.error.empty()) {
      out.error = who + ": " + o.error;
      out.code = make_error_code(errc::invalid_argument);
    }
    if (!o.intact) out.violations += who + ": the window's guard zone is damaged\n";
    if (!o.fault.empty()) out.violations += who + ": " + o.fault + "\n";
    out.commands += o.commands;
    out.proxy_messages += o.messages;
    out.nodes.push_back(o.node);
    out.wall_ns = std::max(out.wall_ns, o.wall_ns);
    out.ranks.push_back(std::move(o.report));
    verdicts.push_back(std::move(o.verdict));
  }
  const rank_outcome& first = outcomes.front();
  out.slot_bytes = first.slot_bytes;
  out.charge = config.charge.value_or(libfabric::caps.charge);
  out.proxy_threads.push_back("rank 0, comm 0, provider " + first.provider + ": " +
                              first.statistics);
  out.proxy_threads.push_back("its first proxy thread may run on CPUs " + first.affinity);
  sum_up(config, verdicts, true, out);
  return out;
}

}  // namespace eptransport::support
