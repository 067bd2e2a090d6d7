// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief `ep_model calibrate`.
#include "ep_model/calibration.hpp"

#include <boost/property_tree/json_parser.hpp>
#include <boost/property_tree/ptree.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <map>
#include <sstream>
#include <tuple>

#include "ep_model/cli.hpp"
#include "ep_model/text.hpp"

namespace eptransport::model {
namespace {

using boost::property_tree::ptree;

constexpr std::size_t parameters = 3;  // logarithms of fixed ns, issue ns, ns per byte
using point = std::array<double, parameters>;

double predict(const point& at, bool copies, const measured_call& c) {
  wire_cost wire;
  wire.latency_ns.value = std::exp(at[0]);
  wire.issue_ns.value = std::exp(at[1]);
  wire.channel_bytes_per_s.value = 1e9 / std::exp(at[2]);
  wire.issuer_copies = copies;
  return budget_of({.messages = c.messages, .bytes = c.bytes}, wire, {.inner = false}, 1).total();
}

/// Mean of the squared logarithm of predicted / measured over the points of the fit.
double misfit(const point& at, bool copies, const std::vector<measured_call>& calls) {
  double sum = 0;
  double count = 0;
  for (const measured_call& c : calls) {
    if (c.held_out) continue;
    const double error = std::log(predict(at, copies, c) / c.ns);
    sum += error * error;
    count += 1;
  }
  // A weak pull towards the middle decides what the points leave open.
  double pull = 0;
  for (const double x : at) pull += 1e-7 * x * x;
  return sum / std::max(count, 1.0) + pull;
}

/// Nelder and Mead's simplex; deterministic.
template <class F>
point minimise(point start, const F& f) {
  std::array<std::pair<double, point>, parameters + 1> corners;
  for (std::size_t i = 0; i <= parameters; ++i) {
    point p = start;
    if (i > 0) p[i - 1] += 1.5;
    corners[i] = {f(p), p};
  }
  const auto along = [&](double factor) {
    point p{};
    for (std::size_t d = 0; d < parameters; ++d) {
      double centre = 0;
      for (std::size_t i = 0; i < parameters; ++i) centre += corners[i].second[d] / parameters;
      p[d] = centre + factor * (corners[parameters].second[d] - centre);
    }
    return std::pair{f(p), p};
  };
  for (int step = 0; step < 2000; ++step) {
    std::sort(corners.begin(), corners.end());
    if (corners[parameters].first - corners[0].first < 1e-14) break;
    auto trial = along(-1);
    if (trial.first < corners[0].first) {
      const auto further = along(-2);
      if (further.first < trial.first) trial = further;
    } else if (trial.first >= corners[parameters - 1].first) {
      trial = along(trial.first < corners[parameters].first ? -0.5 : 0.5);
    }
    if (trial.first < corners[parameters].first) {
      corners[parameters] = trial;
      continue;
    }
    for (std::size_t i = 1; i <= parameters; ++i) {
      for (std::size_t d = 0; d < parameters; ++d) {
        corners[i].second[d] = (corners[i].second[d] + corners[0].second[d]) / 2;
      }
      corners[i].first = f(corners[i].second);
    }
  }
  std::sort(corners.begin(), corners.end());
  return corners[0].second;
}

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const std::size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

calibration fit(std::vector<measured_call> calls) {
  std::sort(calls.begin(), calls.end(), [](const measured_call& a, const measured_call& b) {
    return std::tie(a.bytes, a.messages, a.ns) < std::tie(b.bytes, b.messages, b.ns);
  });
  // Every second size between the smallest and the largest; repeats of a size go with it.
  std::map<double, std::size_t> nth;
  for (const measured_call& c : calls) nth.emplace(c.bytes, 0);
  std::size_t number = 0;
  for (auto& [bytes, place] : nth) place = number++;
  for (measured_call& c : calls) {
    const std::size_t place = nth[c.bytes];
    c.held_out = place % 2 == 1 && place + 1 < nth.size();
  }
  const measured_call& small = calls.front();
  const measured_call& large = calls.back();
  calibration out{.wire = small.wire,
                  .shape = small.shape,
                  .mode = small.mode,
                  .call = small.call,
                  .clock = small.clock};
  double best = 0;
  point found{};
  for (const bool copies : {false, true}) {
    for (const double issue_share : {0.01, 0.3, 0.9}) {
      const point start{std::log(small.ns * (1 - issue_share)),
                        std::log(small.ns * issue_share / std::max(small.messages, 1.0)),
                        std::log(std::max(large.ns / std::max(large.bytes, 1.0), 1e-6))};
      const auto f = [&](const point& p) { return misfit(p, copies, calls); };
      const point p = minimise(minimise(start, f), f);
      const double left = f(p);
      if (best == 0 || left < best) {
        best = left;
        found = p;
        out.issuer_copies = copies;
      }
    }
  }
  out.fixed_ns = std::exp(found[0]);
  out.issue_ns = std::exp(found[1]);
  out.bytes_per_s = 1e9 / std::exp(found[2]);
  std::vector<double> fitted;
  std::vector<double> held;
  for (measured_call& c : calls) {
    c.predicted_ns = predict(found, out.issuer_copies, c);
    (c.held_out ? held : fitted).push_back(std::abs(c.predicted_ns / c.ns - 1));
  }
  out.held_out = static_cast<std::int64_t>(held.size());
  if (!held.empty()) out.held_out_worst = *std::max_element(held.begin(), held.end());
  out.fitted_median = median(std::move(fitted));
  out.held_out_median = median(std::move(held));
  out.points = std::move(calls);
  return out;
}

}  // namespace

result<std::vector<measured_call>> read_calls(const std::string& path) {
  const auto bad = [&path](int line, const std::string& why) {
    return failure{errc::invalid_argument, "calibrate",
                   path + (line > 0 ? ":" + std::to_string(line) : "") + ": " + why};
  };
  std::ifstream file(path);
  if (!file) return bad(0, "cannot be read");
  std::vector<measured_call> out;
  std::string text_line;
  for (int line = 1; std::getline(file, text_line); ++line) {
    if (text_line.empty()) continue;
    ptree tree;
    try {
      std::istringstream stream(text_line);
      boost::property_tree::read_json(stream, tree);
    } catch (const boost::property_tree::json_parser_error& e) {
      return bad(line, "is no JSON object: " + e.message());
    }
    if (!tree.get("verified", false)) return bad(line, "is not verified: " + tree.get("why", ""));
    for (const char* call : {"dispatch", "combine"}) {
      const auto found = tree.get_child_optional(call);
      const auto tokens = tree.get_child_optional("config.tokens");
      if (!found || !tokens || tokens->empty()) {
        return bad(line, std::string("has no '") + call +
                             "' or no config.tokens; expected a line of "
                             "ep_bench --json");
      }
      measured_call c{.wire = tree.get("wire", ""),
                      .shape = tree.get("shape", ""),
                      .mode = tree.get("config.mode", ""),
                      .call = call,
                      .clock = tree.get("clock", ""),
                      .ranks = tree.get("config.ranks", std::int64_t{0}),
                      .tokens = tokens->front().second.get_value(std::int64_t{0})};
      c.messages = found->get("messages_per_rank", 0.0);
      c.bytes = found->get("bytes_per_rank", 0.0);
      c.ns = found->get("mean_ns", 0.0);
      if (c.messages <= 0 || c.ns <= 0) continue;  // one rank, or nothing sent
      out.push_back(c);
    }
  }
  if (out.empty()) return bad(0, "has no call with messages");
  return out;
}

std::vector<calibration> calibrate(std::vector<measured_call> calls) {
  std::map<std::tuple<std::string, std::string, std::string, std::string, std::string>,
           std::vector<measured_call>>
      groups;
  for (measured_call& c : calls) {
    groups[{c.wire, c.shape, c.mode, c.call, c.clock}].push_back(std::move(c));
  }
  std::vector<calibration> out;
  for (auto& [key, group] : groups) {
    std::map<double, int> sizes;
    for (const measured_call& c : group) ++sizes[c.bytes];
    if (sizes.size() >= 4) out.push_back(fit(std::move(group)));
  }
  return out;
}

std::string calibration_text(const std::vector<calibration>& all) {
  std::string out;
  std::vector<double> held;
  for (const calibration& c : all) {
    out += text("%s, %s, %s, %s (%s): fixed %.0f ns, %.1f ns per message, %.3g GB/s, %s\n",
                c.wire.c_str(), c.shape.c_str(), c.mode.c_str(), c.call.c_str(), c.clock.c_str(),
                c.fixed_ns, c.issue_ns, c.bytes_per_s / 1e9,
                c.issuer_copies ? "issue and bytes add up" : "issue and bytes overlap");
    out += text("  %8s %10s %12s %12s %12s %8s\n", "tokens", "messages", "bytes", "measured us",
                "predicted", "error");
    for (const measured_call& p : c.points) {
      const double error = p.predicted_ns / p.ns - 1;
      if (p.held_out) held.push_back(std::abs(error));
      out += text("  %8lld %10.1f %12.0f %12.2f %12.2f %+7.1f%%%s\n",
                  static_cast<long long>(p.tokens), p.messages, p.bytes, p.ns / 1e3,
                  p.predicted_ns / 1e3, error * 100, p.held_out ? "  held out" : "");
    }
    out += text("  median error: %.1f %% of the fit, %.1f %% held out (worst %.1f %%)\n",
                c.fitted_median * 100, c.held_out_median * 100, c.held_out_worst * 100);
  }
  out += text("all held out: %zu points, median error %.1f %%\n", held.size(), median(held) * 100);
  return out;
}

std::string calibration_csv(const std::vector<calibration>& all) {
  std::string out =
      "wire,shape,mode,call,clock,ranks,tokens,messages,bytes,measured_ns,predicted_ns,held_out\n";
  for (const calibration& c : all) {
    for (const measured_call& p : c.points) {
      out += text("%s,%s,%s,%s,%s,%lld,%lld,%.10g,%.10g,%.10g,%.10g,%d\n", c.wire.c_str(),
                  c.shape.c_str(), c.mode.c_str(), c.call.c_str(), c.clock.c_str(),
                  static_cast<long long>(p.ranks), static_cast<long long>(p.tokens), p.messages,
                  p.bytes, p.ns, p.predicted_ns, p.held_out ? 1 : 0);
    }
  }
  return out;
}

void keep_fastest(std::vector<measured_call>& calls) {
  const auto key = [](const measured_call& c) {
    return std::tie(c.wire, c.shape, c.mode, c.call, c.clock, c.ranks, c.tokens, c.bytes);
  };
  std::sort(calls.begin(), calls.end(), [&](const measured_call& a, const measured_call& b) {
    return key(a) < key(b) || (key(a) == key(b) && a.ns < b.ns);
  });
  calls.erase(
      std::unique(calls.begin(), calls.end(),
                  [&](const measured_call& a, const measured_call& b) { return key(a) == key(b); }),
      calls.end());
}

int calibrate_command(const std::vector<std::string>& given) {
  std::vector<std::string> files;
  std::string csv;
  double limit = 15;
  bool fastest = false;
  arguments options(
      "usage: ep_model calibrate [OPTION...] FILE...\n\nFits constants to the JSON "
      "lines of ep_bench --json. Exit status 1: the median error of the sizes\nthat "
      "were held out is above the limit.");
  options
      .words(
          "FILE...                            JSON lines; different sizes of one wire, shape "
          "and mode",
          files)
      .option("--csv", "FILE|-", "one row per point, for the plots",
              [&csv](const std::string& t) {
                csv = t;
                return std::string();
              })
      .flag("--fastest", "of repeated sizes only the fastest counts: on a busy machine noise adds",
            fastest)
      .number("--limit", "median error in per cent", limit, 0, 1e6);
  if (const int status = options.parse(given); status >= 0) return status;
  const auto refuse = [](const std::string& why) {
    std::fprintf(stderr, "ep_model: %s\n", why.c_str());
    return exit_refused;
  };
  if (files.empty()) return refuse("calibrate needs a FILE: what ep_bench --json wrote");
  std::vector<measured_call> calls;
  for (const std::string& file : files) {
    auto read = read_calls(file);
    if (!read) return refuse(read.error().detail);
    calls.insert(calls.end(), read->begin(), read->end());
  }
  if (fastest) keep_fastest(calls);
  const std::vector<calibration> all = calibrate(std::move(calls));
  if (all.empty()) {
    return refuse(
        "no wire, shape and mode has four sizes or more: run ep_bench with more --tokens");
  }
  if (csv != "-") (void)write_file("-", calibration_text(all));
  if (!csv.empty()) {
    if (const int written = write_file(csv, calibration_csv(all)); written != exit_ok)
      return written;
  }
  std::vector<double> held;
  for (const calibration& c : all) {
    for (const measured_call& p : c.points) {
      if (p.held_out) held.push_back(std::abs(p.predicted_ns / p.ns - 1));
    }
  }
  return median(std::move(held)) * 100 <= limit ? exit_ok : exit_failed;
}

}  // namespace eptransport::model
