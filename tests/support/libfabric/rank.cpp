// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief A rank over libfabric: the transport, the run, and its outcome on the way to others.
#include "support/libfabric/rank.hpp"

#include <eptransport/backends/libfabric/libfabric.hpp>

#include <chrono>
#include <cstring>
#include <type_traits>
#include <utility>

#include "support/libfabric/rank_impl.hpp"

namespace eptransport::support {
namespace {

struct libfabric_setting {
  using transport = libfabric;
  using world = lone_rank;
  static constexpr bool counts = false;  // several puts may share a message
};

[[nodiscard]] rank_outcome run_alone(const run_config& config, bootstrap& meeting,
                                     const proxy::fabric_options& fabric) {
  rank_outcome out;
  const auto needs = needs_of<libfabric>(config);
  if (!needs) {
    out.error = needs.error().message();
    meeting.abort(out.error);
    return out;
  }
  auto made = libfabric::create(meeting, options_of(config, *needs), fabric);
  if (!made) {
    out.error = made.error().message();
    return out;
  }
  lone_rank world{**made, config.proxy.comms};
  run_over<libfabric_setting>(**made, world, config, needs->routes, out);
  return out;
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
  const auto start = std::chrono::steady_clock::now();
  rank_outcome out = config.wire.starts_with("hybrid:") ? run_pair(config, meeting, fabric)
                                                        : run_alone(config, meeting, fabric);
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
