// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Parsing: every refused value is answered with what was expected.
#include "ep_bench/cli.hpp"

#include <algorithm>
#include <charconv>
#include <functional>
#include <limits>
#include <utility>

#include "ep_bench/libfabric.hpp"
#include "ep_bench/nodes.hpp"
#include "support/routing.hpp"

namespace eptransport::bench {
namespace {

template <class T>
struct named {
  const char* name;
  T value;
};

constexpr named<output_layout> layouts[] = {{"rank_major", output_layout::rank_major},
                                            {"expert_major", output_layout::expert_major},
                                            {"padded", output_layout::padded},
                                            {"in_place", output_layout::in_place}};
constexpr named<message_shape> shapes[] = {{"auto", message_shape::automatic},
                                           {"per_row", message_shape::per_row},
                                           {"per_peer", message_shape::per_peer},
                                           {"direct", message_shape::direct},
                                           {"per_node", message_shape::per_node}};
constexpr named<dispatch_mode> modes[] = {{"slotted", dispatch_mode::slotted},
                                          {"counted", dispatch_mode::counted}};
constexpr named<nic_place> nics[] = {{"thread", nic_place::thread}, {"block", nic_place::block}};
constexpr named<execution> executions[] = {{"cpu", execution::cpu}, {"cuda", execution::cuda}};
constexpr named<element> elements[] = {
    {"bf16", element::bf16}, {"fp16", element::fp16}, {"fp32", element::fp32}};
constexpr named<combine_transfer> transfers[] = {{"push", combine_transfer::push},
                                                 {"pull", combine_transfer::pull}};
constexpr named<bool> landings[] = {{"own", false}, {"caller", true}};
constexpr named<run_mode> schedules[] = {{"baton", run_mode::baton}, {"free", run_mode::free}};
constexpr named<delivery> deliveries[] = {{"immediate", delivery::immediate},
                                          {"shuffled", delivery::shuffled}};

template <class T, std::size_t kCount>
const char* find_name(const named<T> (&table)[kCount], T value) {
  for (const named<T>& entry : table) {
    if (entry.value == value) return entry.name;
  }
  return "unknown";
}

std::string with_commas(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

/// Sets `to` from a table; otherwise says what was expected.
template <class T, std::size_t kCount>
std::string choose(const named<T> (&table)[kCount], const std::string& text, T& to) {
  std::vector<std::string> names;
  for (const named<T>& entry : table) {
    names.emplace_back(entry.name);
    if (text != entry.name) continue;
    to = entry.value;
    return {};
  }
  return "expected one of " + with_commas(names);
}

template <class T>
std::string number(const std::string& text, T least, T most, T& to) {
  T value{};
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (code == std::errc() && end == text.data() + text.size() && value >= least && value <= most) {
    to = value;
    return {};
  }
  return "expected a whole number from " + std::to_string(least) + " to " + std::to_string(most);
}

std::string numbers(const std::string& text, std::vector<std::int64_t>& to) {
  to.clear();
  for (std::size_t at = 0; at <= text.size();) {
    const std::size_t comma = std::min(text.find(',', at), text.size());
    std::int64_t value = 0;
    if (!number<std::int64_t>(text.substr(at, comma - at), 0, 1 << 24, value).empty()) {
      return "expected token counts from 0 to 16777216, one, or one per rank with commas between";
    }
    to.push_back(value);
    at = comma + 1;
  }
  return {};
}

/// The wire that is none of the simulator's: GPUs of this machine.
constexpr const char* real_wire = "peer-memory";

std::string choose_wires(const std::string& text, std::vector<std::string>& to) {
  const std::vector<std::string>& known = support::wires();
  if (text == "all") {
    to = known;
    return {};
  }
  const std::vector<std::string>& proxied = support::proxied_wires();
#if defined(EPT_BENCH_LIBFABRIC)
  if (has_processes(text)) {
    to = {text};
    return {};
  }
#endif
  const std::vector<std::string>& gdaki = support::gdaki_wires();
  const std::vector<std::string>& hybrids = support::hybrid_wires();
  if (std::find(known.begin(), known.end(), text) == known.end() &&
      std::find(proxied.begin(), proxied.end(), text) == proxied.end() &&
      std::find(gdaki.begin(), gdaki.end(), text) == gdaki.end() &&
      std::find(hybrids.begin(), hybrids.end(), text) == hybrids.end() && text != real_wire) {
    return "expected all (simulated ones) or one of " + with_commas(known) + ", " +
           with_commas(proxied) + ", " + with_commas(gdaki) + ", " + with_commas(hybrids) + ", " +
           real_wire +
           ", or libfabric:PROVIDER or hybrid:shm+libfabric:PROVIDER where libfabric was found";
  }
  to = {text};
  return {};
}

/// An option that takes a value; the function returns what was expected, or nothing.
struct option {
  const char* name;
  const char* value;
  const char* help;
  std::function<std::string(options&, const std::string&)> set;
  bool proxied = false;  ///< means nothing on other wires
  bool gdaki = false;    ///< likewise
};

option gdaki_option(const char* name, const char* value, const char* help,
                    std::function<std::string(options&, const std::string&)> set) {
  return {name, value, help, std::move(set), false, true};
}

/// Decode, for which slotted calls are made. The same on all wires, so that they can be compared:
/// what a group's planner would take differs from wire to wire.
constexpr std::int64_t most_decode_tokens = 512;

constexpr std::int32_t many = std::numeric_limits<std::int32_t>::max();

const std::vector<option>& table() {
  using text = const std::string&;
  static const std::vector<option> all = {
      {"--wire", "NAME|all",
       "a simulated wire, one behind proxy engines, hybrid:INSIDE+BETWEEN nodes, one that kernels "
       "post to themselves over emulated NICs (gdaki:..), peer-memory: rank r on GPU r, "
       "libfabric:PROVIDER, or hybrid:shm+libfabric:PROVIDER: a process per rank",
       [](options& o, text t) { return choose_wires(t, o.wires); }},
      {"--ranks", "R", "ranks",
       [](options& o, text t) {
         o.ranks_given = true;
         return number<int>(t, 1, 4096, o.config.ranks);
       }},
      {"--nodes", "N|S0,S1,..",
       "how many nodes, or the ranks of each; else 8 each, and with --spawn one for all",
       [](options& o, text t) { return parse_nodes(t, o.node_sizes); }},
      {"--gpus", "G", "peer-memory: the same as --ranks",
       [](options& o, text t) { return number<int>(t, 1, 4096, o.config.ranks); }},
      {"--sms", "S", "cuda: multiprocessors of each rank's kernels; 0: the default",
       [](options& o, text t) { return number<std::uint32_t>(t, 0, 1024, o.config.max_sms); }},
      {"--tokens", "T|T0,T1,..", "tokens of each rank",
       [](options& o, text t) { return numbers(t, o.config.tokens); }},
      {"--hidden", "H", "values of a row",
       [](options& o, text t) { return number<std::int64_t>(t, 1, many, o.config.hidden); }},
      {"--topk", "K", "choices per token",
       [](options& o, text t) { return number<int>(t, 1, 1 << 16, o.config.top_k); }},
      {"--experts", "E", "experts of all ranks",
       [](options& o, text t) { return number<int>(t, 1, 1 << 24, o.config.experts); }},
      {"--format", "bf16|fp8|fp8-ue8m0|opaque:ROW[:SCALE]",
       "dispatch rows; fp8: bf16 rows that the kernel quantises",
       [](options& o, text t) {
         o.format = t;
         return std::string();
       }},
      {"--layout", "rank_major|expert_major|padded|in_place", "how received rows lie",
       [](options& o, text t) { return choose(layouts, t, o.config.layout); }},
      {"--shape", "auto|per_row|per_peer|direct|per_node",
       "how rows travel; per_node: hybrid wires",
       [](options& o, text t) { return choose(shapes, t, o.config.message); }},
      {"--mode", "slotted|counted",
       "how a row finds its place; left out: slotted up to 512 tokens, counted beyond",
       [](options& o, text t) {
         o.mode_given = true;
         return choose(modes, t, o.config.mode);
       }},
      {"--values", "bf16|fp16|fp32", "of what experts return and combine adds up",
       [](options& o, text t) { return choose(elements, t, o.config.values); }},
      {"--returns", "bf16|fp16|fp32", "combine rows on the wire: as --values, or fp32",
       [](options& o, text t) {
         o.returns_given = true;
         return choose(elements, t, o.config.returns);
       }},
      {"--transfer", "push|pull",
       "how combine moves rows; pull: counted, nvlink or peer-memory, a row per token",
       [](options& o, text t) { return choose(transfers, t, o.config.transfer); }},
      {"--landing", "own|caller", "counted rows: the lane's own zone, or elsewhere in the window",
       [](options& o, text t) { return choose(landings, t, o.config.landing); }},
      {"--routing", "KIND", "uniform, zipf:S, one, or trace:PREFIX[:LAYER]",
       [](options& o, text t) {
         o.config.routing = t;
         return std::string();
       }},
      {"--iterations", "N", "dispatch and combine pairs",
       [](options& o, text t) { return number<int>(t, 1, many, o.config.iterations); }},
      {"--seed", "S", "of inputs, schedule and delivery",
       [](options& o, text t) {
         return number<std::uint64_t>(t, 0, std::numeric_limits<std::uint64_t>::max(),
                                      o.config.seed);
       }},
      {"--exec", "cpu|cuda", "where the kernels run",
       [](options& o, text t) { return choose(executions, t, o.exec); }},
      {"--workers", "W", "host threads of each rank",
       [](options& o, text t) { return number<std::uint32_t>(t, 1, 256, o.config.workers); }},
      {"--delivery", "immediate|shuffled", "when puts land in the simulator",
       [](options& o, text t) { return choose(deliveries, t, o.config.order); }},
      {"--schedule", "baton|free",
       "baton: one thread at a time, modelled times; free: all at once, measured",
       [](options& o, text t) {
         o.schedule_given = true;
         return choose(schedules, t, o.config.schedule);
       }},
      {"--comms", "K", "proxied wires: engines per rank, each with a thread and an endpoint",
       [](options& o, text t) { return number<std::uint32_t>(t, 1, 64, o.config.proxy.comms); },
       true},
      {"--eager", "BYTES", "proxied wires: payloads up to that travel in grouped messages; 0: none",
       [](options& o, text t) {
         return number<std::uint64_t>(t, 0, 1 << 20, o.config.proxy.engine.eager);
       },
       true},
      {"--slot-bytes", "BYTES", "proxied wires: of a grouped message; 0: 8 payloads, at least 8192",
       [](options& o, text t) {
         return number<std::uint64_t>(t, 0, 1 << 20, o.config.proxy.engine.slot_bytes);
       },
       true},
      {"--post-ns", "NS", "proxied wires: CPU time that each post is made to take",
       [](options& o, text t) {
         return number<std::uint64_t>(t, 0, 1'000'000, o.config.proxy.post_ns);
       },
       true},
      {"--proxy-threads", "N", "proxied wires: threads for all engines; 0: one each",
       [](options& o, text t) {
         const std::string wrong = number<std::uint32_t>(t, 0, 1024, o.config.proxy.driver_threads);
         o.config.proxy.drive =
             o.config.proxy.driver_threads == 0 ? proxy_drive::threads : proxy_drive::shared;
         return wrong;
       },
       true},
      {"--spawn", "R",
       "libfabric: starts R ranks; left out: RANK, WORLD_SIZE, .. say which this is",
       [](options& o, text t) { return number<int>(t, 1, 256, o.spawn); }},
      gdaki_option("--nic", "thread|block",
                   "gdaki wires: what plays the NICs, a host thread or a block of the GPU",
                   [](options& o, text t) { return choose(nics, t, o.nic); }),
      gdaki_option("--queue-slots", "N", "gdaki wires: entries of a send queue, a power of two",
                   [](options& o, text t) {
                     return number<std::uint32_t>(t, 1, 32768, o.config.gdaki.queue_slots);
                   }),
      gdaki_option("--ring-every", "N", "gdaki wires: entries per doorbell, a power of two",
                   [](options& o, text t) {
                     return number<std::uint32_t>(t, 1, 16, o.config.gdaki.ring_every);
                   }),
      gdaki_option("--chunk", "BYTES", "gdaki wires: pieces in which the NICs deliver payload",
                   [](options& o, text t) {
                     return number<std::uint32_t>(t, 1, 1U << 30, o.config.gdaki.chunk_bytes);
                   }),
      {"--json", "FILE|-", "one JSON object per wire; - is stdout, without the table",
       [](options& o, text t) {
         o.json = t;
         return t.empty() ? std::string("expected a file name or -") : std::string();
       }},
  };
  return all;
}

std::string help() {
  std::string text =
      "ep_bench: dispatch and combine on simulated and proxied wires, every result compared "
      "with a reference\n\n"
      "usage: ep_bench [option value]...\n\n";
  for (const option& o : table()) {
    std::string left = std::string("  ") + o.name + " " + o.value;
    left.resize(std::max<std::size_t>(left.size() + 2, 34), ' ');
    text += left + o.help + "\n";
  }
  text +=
      "  --memcpy-baseline               free, with memcpy of as many bytes by the same threads\n"
      "  --tamper                        damages one combined value before it is checked: status "
      "1\n"
      "  --strict                        libfabric: the limits of EFA's lowest fabric, over any\n"
      "  --quiet                         no progress and no table\n"
      "  --help                          this text\n\n"
      "routing\n";
  text += support::router::help();
  text += "\nexit status: 0 all verified, 1 a result was wrong, 2 it could not run as asked\n";
  return text;
}

const std::string process_wires = "libfabric:PROVIDER or hybrid:shm+libfabric:PROVIDER";

parsed refuse(const std::string& why) {
  return {.asked = {}, .status = exit_refused, .message = "ep_bench: " + why};
}

/// What can only be checked when all options are known.
parsed complete(options asked) {
  support::run_config& config = asked.config;
#if !defined(EPT_BENCH_CUDA)
  if (asked.exec == execution::cuda) {
    return refuse("--exec cuda needs a build with CUDA (EPTRANSPORT_CUDA=ON); use cpu");
  }
#endif
  const bool fabric = has_processes(asked.wires[0]);
  if (const int all = fabric ? processes_of(asked) : 0; all > 0) {
    if (asked.ranks_given && config.ranks != all) {
      return refuse("--ranks " + std::to_string(config.ranks) + " of " + std::to_string(all) +
                    " processes; leave it out");
    }
    config.ranks = all;
    asked.ranks_given = true;
  }
  if (const std::string wrong = place_on_nodes(asked); !wrong.empty()) return refuse(wrong);
  const auto format = support::parse_format(asked.format, config.hidden);
  if (!format) return refuse("--format " + format.error().detail);
  config.row = format->row;
  config.quantise = format->quantise;
  if (!asked.returns_given) config.returns = config.values;
  if (config.returns != config.values && config.returns != element::fp32) {
    return refuse("--returns must be fp32 or what --values is");
  }
  if (config.copy_baseline) config.schedule = run_mode::free;
  const bool proxied = fabric || (asked.wires.size() == 1 && asked.wires[0].starts_with("proxy:"));
  if (!proxied && !asked.proxied_option.empty()) {
    return refuse(asked.proxied_option + " is for --wire " + with_commas(support::proxied_wires()) +
                  " or " + process_wires);
  }
  if (!fabric && (asked.spawn != 0 || asked.strict)) {
    return refuse("--spawn and --strict are for --wire " + process_wires);
  }
  if (fabric && asked.spawn == 0 && !asked.node_sizes.empty()) {
    return refuse("--nodes needs --spawn: a launcher's hosts say which ranks share a node");
  }
  if (fabric && asked.schedule_given && config.schedule == run_mode::baton) {
    return refuse("--schedule baton needs all ranks in one process; libfabric has processes");
  }
  if (proxied && !asked.schedule_given && asked.exec == execution::cpu) {
    config.schedule = run_mode::free;
  }
  const bool gdaki = asked.wires.size() == 1 && asked.wires[0].starts_with("gdaki:");
  if (!gdaki && !asked.gdaki_option.empty()) {
    return refuse(asked.gdaki_option + " is for --wire " + with_commas(support::gdaki_wires()));
  }
  if (gdaki && asked.exec == execution::cpu && asked.nic == nic_place::block) {
    return refuse("--nic block needs --exec cuda; use thread");
  }
  if (gdaki && !asked.schedule_given && asked.exec == execution::cpu) {
    config.schedule = run_mode::free;
  }
  if (proxied && config.schedule == run_mode::baton) config.proxy.drive = proxy_drive::baton;
  const bool hybrid = asked.wires.front().starts_with("hybrid:");
  if (!hybrid && config.message == message_shape::per_node) {
    return refuse("--shape per_node is for --wire " + with_commas(support::hybrid_wires()) +
                  " or hybrid:shm+libfabric:PROVIDER");
  }
  if (hybrid && asked.exec == execution::cuda) {
    return refuse("--exec cuda drives no hybrid wire yet; use cpu");
  }
  const std::int64_t most = *std::max_element(config.tokens.begin(), config.tokens.end());
  if (!asked.mode_given && most > most_decode_tokens) config.mode = dispatch_mode::counted;
  const bool counted = config.mode == dispatch_mode::counted;
  const bool per_expert =
      config.layout == output_layout::expert_major || config.layout == output_layout::padded;
  const bool loads =
      std::all_of(asked.wires.begin(), asked.wires.end(),
                  [](const std::string& wire) { return wire == "nvlink" || wire == real_wire; });
  if (config.transfer == combine_transfer::pull && (!counted || per_expert || !loads)) {
    return refuse(
        "--transfer pull needs --mode counted, --wire nvlink or peer-memory, and --layout "
        "rank_major or in_place");
  }
  if (asked.exec == execution::cpu && asked.wires.front() == real_wire) {
    return refuse("--wire peer-memory needs --exec cuda");
  }
  if (config.landing && !counted) return refuse("--landing caller needs --mode counted");
  if (asked.exec == execution::cuda && config.schedule == run_mode::free) {
    return refuse("--schedule free and --memcpy-baseline are for --exec cpu");
  }
  if (config.tokens.size() != 1 && config.tokens.size() != static_cast<std::size_t>(config.ranks)) {
    return refuse("--tokens has " + std::to_string(config.tokens.size()) +
                  " counts, expected 1 or " + std::to_string(config.ranks));
  }
  return {.asked = std::move(asked), .status = exit_ok, .message = {}};
}

/// The negative control: what the check says of it must be "wrong".
void flip_a_bit(const support::tamper_point& at) {
  const bool here = at.rank == 0 && at.iteration == 0 && std::string(at.call) == "combine";
  if (here && !at.out.empty()) at.out.front() ^= 1U;
}

options defaults() {
  options asked;
  asked.wires = support::wires();
  asked.config.ranks = 8;
  asked.config.tokens = {16};
  asked.config.hidden = 7168;
  asked.config.top_k = 8;
  asked.config.experts = 256;
  asked.config.iterations = 20;
  asked.config.align_clocks = true;
  return asked;
}

}  // namespace

const char* name_of(output_layout layout) {
  return find_name(layouts, layout);
}
const char* name_of(message_shape shape) {
  return find_name(shapes, shape);
}
const char* name_of(dispatch_mode mode) {
  return find_name(modes, mode);
}
const char* name_of(delivery order) {
  return find_name(deliveries, order);
}
const char* name_of(element type) {
  return find_name(elements, type);
}
const char* name_of(combine_transfer transfer) {
  return find_name(transfers, transfer);
}

parsed parse(int count, const char* const* arguments) {
  options asked = defaults();
  for (int i = 1; i < count; ++i) {
    const std::string name = arguments[i];
    if (name == "--help" || name == "-h")
      return {.asked = {}, .status = exit_ok, .message = help()};
    if (name == "--quiet") {
      asked.quiet = true;
      continue;
    }
    if (name == "--tamper") {
      asked.config.tamper = flip_a_bit;
      continue;
    }
    if (name == "--strict") {
      asked.strict = true;
      continue;
    }
    if (name == "--memcpy-baseline") {
      asked.config.copy_baseline = true;
      continue;
    }
    const std::vector<option>& known = table();
    const auto found =
        std::find_if(known.begin(), known.end(), [&](const option& o) { return name == o.name; });
    if (found == known.end()) return refuse("no option '" + name + "'; --help lists them");
    if (i + 1 == count) return refuse(name + " needs a value: " + found->value);
    const std::string value = arguments[++i];
    const std::string wrong = found->set(asked, value);
    if (!wrong.empty()) return refuse(name + " '" + value + "': " + wrong);
    if (found->proxied) asked.proxied_option = name;
    if (found->gdaki) asked.gdaki_option = name;
  }
  return complete(std::move(asked));
}

}  // namespace eptransport::bench
