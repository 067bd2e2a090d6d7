// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief `ep_model sweep`: every combination of lists, one row each.
#include <cstdio>
#include <iterator>

#include "ep_model/text.hpp"
#include "ep_model/work.hpp"

namespace eptransport::model {
namespace {

constexpr const char* text_columns[] = {"wire", "shape", "mode", "call"};
constexpr const char* number_columns[] = {
    "comms",      "ranks",    "nodes",     "tokens",        "topk",          "hidden",
    "experts",    "messages", "bytes",     "issue_roof_ns", "bytes_roof_ns", "pack_ns",
    "command_ns", "poll_ns",  "issue_ns",  "transfer_ns",   "wire_ns",       "arrive_ns",
    "relay_ns",   "wake_ns",  "unpack_ns", "total_ns",      "tokens_per_s",  "kept"};

struct sweep_row {
  const char* texts[std::size(text_columns)];
  double numbers[std::size(number_columns)];
};

struct sweep_options {
  work_options work;
  std::vector<std::int64_t> tokens{1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096};
  std::vector<std::int64_t> ranks;
  std::vector<std::int64_t> comms{1};
  std::vector<traffic_shape> shapes;
  std::int64_t per_node = 8;
  bool counted = false;
};

/// The two rows of one candidate.
void add_rows(const work_options& o, const model_case& c, const wire_cost& wire,
              const priced_call& p, std::vector<sweep_row>& rows) {
  const double compute = o.compute_ms * 1e6;
  const step_cost step{.compute_ns = compute,
                       .tax_ns = exposed_tax_ns(p.dispatch.total(), p.combine.total(), o.layers,
                                                compute, o.overlap)};
  moe_work w = c.work;
  w.lands = p.lands;
  const routed_work& r = w.routed;
  const double on_node = static_cast<double>(r.ranks) / static_cast<double>(r.nodes);
  const double rate = links_of(wire, p.comms, on_node).all();
  for (const direction way : {direction::dispatch, direction::combine}) {
    const call_traffic t = traffic_of(w, c.spread, p.shape, way, wire, !o.no_inner);
    const stage_budget& b = way == direction::dispatch ? p.dispatch : p.combine;
    rows.push_back(
        {{wire.name, name_of(p.shape), p.lands == landing::slotted ? "slotted" : "counted",
          way == direction::dispatch ? "dispatch" : "combine"},
         {p.comms,
          static_cast<double>(r.ranks),
          static_cast<double>(r.nodes),
          static_cast<double>(r.tokens),
          static_cast<double>(r.top_k),
          static_cast<double>(o.hidden),
          static_cast<double>(r.experts),
          t.messages,
          t.bytes,
          t.messages * issue_ns_of(wire, p.comms) / p.comms,
          rate > 0 ? t.bytes * 1e9 / rate : 0,
          b.pack,
          b.command,
          b.poll,
          b.issue,
          b.transfer,
          b.wire,
          b.arrive,
          b.relay,
          b.wake,
          b.unpack,
          b.total(),
          step.tokens_per_s(),
          step.kept()}});
  }
}

/// Every candidate of one work.
void add_case(const sweep_options& s, const work_options& point, const model_case& c,
              std::vector<sweep_row>& rows) {
  const machine_cost machine = point.free_copies ? machine_cost{} : h200;
  for (const wire_cost* wire : point.wires) {
    const auto shapes = s.shapes.empty() ? shapes_on(*wire, !point.no_inner) : s.shapes;
    for (const traffic_shape shape : shapes) {
      for (const std::int64_t k : s.comms) {
        for (const landing lands : {landing::slotted, landing::counted}) {
          const bool counted = lands == landing::counted;
          if (counted && (!s.counted || shape == traffic_shape::all_gather)) continue;
          add_rows(point, c, *wire,
                   detail::price(c.work, c.spread, *wire, shape, lands, static_cast<double>(k),
                                 machine, !point.no_inner),
                   rows);
        }
      }
    }
  }
}

std::string csv_of(const std::vector<sweep_row>& rows) {
  std::string out;
  for (const char* name : text_columns) out += (out.empty() ? "" : ",") + std::string(name);
  for (const char* name : number_columns) out += "," + std::string(name);
  out += "\n";
  for (const sweep_row& row : rows) {
    std::string line;
    for (const char* t : row.texts) line += (line.empty() ? "" : ",") + std::string(t);
    for (const double v : row.numbers) line += text(",%.10g", v);
    out += line + "\n";
  }
  return out;
}

std::string json_of(const std::vector<sweep_row>& rows) {
  std::string out = "[";
  for (const sweep_row& row : rows) {
    std::string body;
    for (std::size_t i = 0; i < std::size(text_columns); ++i) {
      body += text("%s\"%s\": \"%s\"", i == 0 ? "" : ", ", text_columns[i], row.texts[i]);
    }
    for (std::size_t i = 0; i < std::size(number_columns); ++i) {
      body += text(", \"%s\": %.10g", number_columns[i], row.numbers[i]);
    }
    out += (out.size() > 1 ? ",\n {" : "\n {") + body + "}";
  }
  return out + "\n]\n";
}

}  // namespace

int sweep_command(const std::vector<std::string>& given) {
  sweep_options s;
  std::string format = "csv";
  std::string to = "-";
  arguments options(
      "usage: ep_model sweep [OPTION...]\n\nA row per wire, shape, mode, comms, ranks, "
      "tokens and call.");
  s.work.add_to(options);
  options.option("--token-list", "T,T,..", "instead of --tokens", list_of(s.tokens, 0, 1 << 20))
      .option("--rank-list", "R,R,..", "instead of --ranks and --nodes", list_of(s.ranks, 1, 65536))
      .number("--ranks-per-node", "with --rank-list", s.per_node, 1, 1024)
      .option("--comms-list", "K,K,..", "instead of --comms", list_of(s.comms, 1, 256))
      .option("--shape", "NAME|all", "shapes", shapes_from(s.shapes))
      .flag("--counted", "counted calls as well", s.counted)
      .option("--output", "csv|json", "format",
              [&format](const std::string& t) {
                format = t;
                return t == "csv" || t == "json" ? std::string() : "expected csv or json";
              })
      .option("--to", "FILE|-", "where to write", [&to](const std::string& t) {
        to = t;
        return std::string();
      });
  if (const int status = options.parse(given); status >= 0) return status;
  std::vector<sweep_row> rows;
  const bool listed = !s.ranks.empty();
  if (!listed) s.ranks = {s.work.ranks};
  for (const std::int64_t ranks : s.ranks) {
    for (const std::int64_t tokens : s.tokens) {
      work_options point = s.work;
      point.tokens = tokens;
      point.ranks = ranks;
      if (listed) point.nodes = std::max<std::int64_t>(1, ranks / s.per_node);
      const auto c = case_of(point, false);
      if (!c) {
        std::fprintf(stderr, "ep_model: %s\n", c.error().detail.c_str());
        return exit_refused;
      }
      add_case(s, point, *c, rows);
    }
  }
  return write_file(to, format == "json" ? json_of(rows) : csv_of(rows));
}

}  // namespace eptransport::model
