// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief What a run needs that does not depend on the wire's type.
#include "support/runner.hpp"

#include <eptransport/core/wire_costs.hpp>

#include <algorithm>
#include <cstdlib>
#include <span>
#include <utility>

#include "support/inputs.hpp"
#include "support/runner_wires.hpp"

namespace eptransport::support {
namespace {

struct wire_entry {
  const char* name;
  run_result (*run)(const run_config&, const router&);
};

constexpr wire_entry table[] = {
    {"nvlink", run_nvlink},
    {"ib-gpu", run_ib_gpu},
    {"efa-gpu", run_efa_gpu},
    {"efa-proxy", run_efa_proxy},
};
constexpr wire_entry proxied[] = {
    {"proxy:memory", run_proxy_memory},
    {"proxy:srd", run_proxy_srd},
};
constexpr wire_entry gpu_initiated[] = {
    {"gdaki:efa", run_gdaki_efa},
    {"gdaki:mlx5", run_gdaki_mlx5},
};
constexpr wire_entry for_tests_only[] = {{"tight", run_tight}, {"hybrid:tight", run_hybrid_tight}};

/// Pairs of wires run one instance of the kernels: what the outer wire charges is a number.
struct hybrid_entry {
  const char* name;
  wire_charge outer;
};
constexpr hybrid_entry hybrids[] = {
    {"hybrid:nvlink+nvlink", wires::nvlink.charge()},
    {"hybrid:nvlink+ib-gpu", wires::ib_gpu.charge()},
    {"hybrid:nvlink+efa-gpu", wires::efa_gpu.charge()},
    {"hybrid:nvlink+efa-proxy", wires::efa_proxy.charge()},
};

std::vector<std::string> names_of(std::span<const wire_entry> entries) {
  std::vector<std::string> all;
  for (const wire_entry& wire : entries) all.emplace_back(wire.name);
  return all;
}

run_result refuse(const std::string& why) {
  run_result out;
  out.code = make_error_code(errc::invalid_argument);
  out.error = why;
  return out;
}

/// A positive whole number that fills `text`, or 0.
std::uint64_t parse_count(const std::string& text) {
  char* end = nullptr;
  const unsigned long long value = std::strtoull(text.c_str(), &end, 10);
  return text.empty() || *end != '\0' || text[0] == '-' ? 0 : value;
}

}  // namespace

std::string wrong_with(const run_config& config) {
  const std::size_t counts = config.tokens.size();
  if (counts != 1 && counts != static_cast<std::size_t>(config.ranks)) {
    return "token counts for " + std::to_string(counts) + " ranks, there are " +
           std::to_string(config.ranks);
  }
  for (const std::int64_t tokens : config.tokens) {
    if (tokens < 0) return "a rank with " + std::to_string(tokens) + " tokens";
  }
  if (config.skew % bytes_of(config.values) != 0)
    return "skew must be a multiple of a value's size";
  const std::size_t rooms = config.landing_rows.size();
  if (rooms != 0 && rooms != static_cast<std::size_t>(config.ranks)) {
    return "landing_rows for " + std::to_string(rooms) + " ranks, there are " +
           std::to_string(config.ranks);
  }
  const bool per_expert =
      config.layout == output_layout::expert_major || config.layout == output_layout::padded;
  const bool pointers = config.wire == "nvlink" || config.wire == "peer-memory";
  if (config.transfer == combine_transfer::pull && (per_expert || !pointers)) {
    return "pull needs nvlink or peer-memory, and one row per token: rank_major or in_place";
  }
  if (config.ranks < 1 || config.experts < 1 || config.top_k < 1 || config.hidden < 1) {
    return "ranks, experts, top_k and hidden must be at least 1";
  }
  return {};
}

result<router> routes_of(const run_config& config) {
  return router::create({.kind = config.routing,
                         .experts = config.experts,
                         .top_k = config.top_k,
                         .seed = config.seed,
                         .unused = config.unused,
                         .out_of_range = config.out_of_range,
                         .duplicates = config.duplicates});
}

const std::vector<std::string>& wires() {
  static const std::vector<std::string> names = names_of(table);
  return names;
}

const std::vector<std::string>& hybrid_wires() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> all;
    for (const hybrid_entry& wire : hybrids) all.emplace_back(wire.name);
    return all;
  }();
  return names;
}

const std::vector<std::string>& proxied_wires() {
  static const std::vector<std::string> names = names_of(proxied);
  return names;
}

const std::vector<std::string>& gdaki_wires() {
  static const std::vector<std::string> names = names_of(gpu_initiated);
  return names;
}

result<dispatch_format> parse_format(const std::string& text, std::int64_t hidden) {
  if (text == "bf16") return dispatch_format{bf16_rows(hidden)};
  for (const auto& [name, how] : {std::pair{"fp8", quantisation::fp8_fp32},
                                  std::pair{"fp8-ue8m0", quantisation::fp8_ue8m0}}) {
    if (text == name) return dispatch_format{quantised_rows(hidden, how), how};
  }
  if (text.starts_with("opaque:")) {
    const std::string rest = text.substr(7);
    const std::size_t colon = rest.find(':');
    const std::uint64_t row = parse_count(rest.substr(0, colon));
    const std::string scale = colon == std::string::npos ? "0" : rest.substr(colon + 1);
    if (row > 0 && (scale == "0" || parse_count(scale) > 0)) {
      return dispatch_format{row_format{row, parse_count(scale)}};
    }
  }
  return failure{errc::invalid_argument, "format",
                 "'" + text + "' is not bf16, fp8, fp8-ue8m0 or opaque:ROW[:SCALE] in bytes"};
}

run_result run(const run_config& config) {
  if (const std::string wrong = wrong_with(config); !wrong.empty()) return refuse(wrong);
  const auto routes = routes_of(config);
  if (!routes) return refuse(routes.error().message());
  for (const wire_entry& wire : table) {
    if (config.wire == wire.name) return wire.run(config, *routes);
  }
  for (const wire_entry& wire : proxied) {
    if (config.wire == wire.name) return wire.run(config, *routes);
  }
  for (const wire_entry& wire : gpu_initiated) {
    if (config.wire == wire.name) return wire.run(config, *routes);
  }
  for (const wire_entry& wire : for_tests_only) {
    if (config.wire == wire.name) return wire.run(config, *routes);
  }
  for (const hybrid_entry& wire : hybrids) {
    if (config.wire != wire.name) continue;
    run_config charged = config;
    if (!charged.charge) charged.charge = wire.outer;
    return run_hybrid(charged, *routes);
  }
  std::string known;
  for (const std::string& name : wires()) known += (known.empty() ? "" : ", ") + name;
  for (const std::string& name : proxied_wires()) known += ", " + name;
  for (const std::string& name : hybrid_wires()) known += ", " + name;
  for (const std::string& name : gdaki_wires()) known += ", " + name;
  return refuse("no wire '" + config.wire + "', there are " + known);
}

std::string run_result::why() const {
  std::string text;
  const auto say = [&text](const std::string& line) {
    if (!line.empty()) text += line + "\n";
  };
  say(error);
  say(difference);
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    const rank_report& report = ranks[rank];
    if (report.error.empty()) continue;
    say("rank " + std::to_string(rank) + ", " + report.failed_call + ": " + report.error);
  }
  say(violations);
  return text;
}

}  // namespace eptransport::support
