// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief JSON lines.
#include <eptransport/core/config.hpp>

#include <cinttypes>
#include <cmath>
#include <concepts>
#include <cstdio>
#include <sys/utsname.h>
#include <thread>

#include "ep_bench/cli.hpp"
#include "ep_bench/report.hpp"

#if !defined(EPT_GIT_COMMIT)
#define EPT_GIT_COMMIT ""
#endif
#if !defined(EPT_BUILD_TYPE)
#define EPT_BUILD_TYPE ""
#endif

namespace eptransport::bench {
namespace {

/// Writes one object; values are appended in order.
class object {
 public:
  object& add(const char* key, const std::string& value) { return raw(key, quote(value)); }
  object& add(const char* key, const char* value) { return raw(key, quote(value)); }
  object& add(const char* key, bool value) { return raw(key, value ? "true" : "false"); }
  object& add(const char* key, double value) {
    char text[40];
    std::snprintf(text, sizeof text, "%.12g", value);
    return raw(key, std::isfinite(value) ? text : "null");
  }
  template <std::integral T>
  object& add(const char* key, T value) {
    return raw(key, std::to_string(value));
  }
  object& add(const char* key, const object& value) { return raw(key, value.text()); }
  object& raw(const char* key, const std::string& value) {
    body_ += (body_.empty() ? "" : ", ") + quote(key) + ": " + value;
    return *this;
  }
  [[nodiscard]] std::string text() const { return "{" + body_ + "}"; }

 private:
  static std::string quote(const std::string& value) {
    std::string out = "\"";
    for (const char c : value) {
      char escaped[8] = {c, '\0'};
      if (c == '"' || c == '\\') std::snprintf(escaped, sizeof escaped, "\\%c", c);
      if (static_cast<unsigned char>(c) < 0x20) {
        std::snprintf(escaped, sizeof escaped, "\\u%04x", static_cast<unsigned>(c));
      }
      out += escaped;
    }
    return out + "\"";
  }

  std::string body_;
};

object build() {
#if defined(__clang__)
  const char* compiler = "clang";
#elif defined(__GNUC__)
  const char* compiler = "gcc";
#else
  const char* compiler = "unknown";
#endif
#if defined(__OPTIMIZE__)
  const bool optimised = true;
#else
  const bool optimised = false;
#endif
  object out;
  out.add("compiler", compiler)
      .add("compiler_version", __VERSION__)
      .add("build_type", EPT_BUILD_TYPE)
      .add("optimised", optimised)
      .add("library_version", version)
      .add("git_commit", EPT_GIT_COMMIT);
  return out;
}

object machine() {
  object out;
  utsname name{};
  if (uname(&name) == 0) {
    out.add("system", name.sysname).add("release", name.release).add("machine", name.machine);
  }
  out.add("cpus", std::thread::hardware_concurrency());
  return out;
}

object config_of(const options& asked) {
  const support::run_config& c = asked.config;
  std::string tokens;
  for (const std::int64_t t : c.tokens) tokens += (tokens.empty() ? "" : ", ") + std::to_string(t);
  object out;
  out.add("ranks", c.ranks)
      .raw("tokens", "[" + tokens + "]")
      .add("hidden", c.hidden)
      .add("topk", c.top_k)
      .add("experts", c.experts)
      .add("format", asked.format)
      .add("row_bytes", c.row.row_bytes)
      .add("scale_bytes", c.row.scale_bytes)
      .add("layout", name_of(c.layout))
      .add("shape", name_of(c.message))
      .add("mode", name_of(c.mode))
      .add("values", name_of(c.values))
      .add("returns", name_of(c.returns))
      .add("transfer", name_of(c.transfer))
      .add("landing", c.landing ? "caller" : "own")
      .add("schedule", c.schedule == run_mode::free ? "free" : "baton")
      .add("routing", c.routing)
      .add("iterations", c.iterations)
      .add("exec", asked.exec == execution::cpu ? "cpu" : "cuda")
      .add("workers", c.workers)
      .add("delivery", name_of(c.order));
  return out;
}

object call_of(const measurement& row, call_kind call) {
  const rooflines r = rooflines_of(row.result, call);
  const support::call_time& time =
      call == call_kind::dispatch ? row.result.dispatch : row.result.combine;
  object out;
  out.add("messages_per_rank", r.messages)
      .add("bytes_per_rank", r.bytes)
      .add("inter_messages_per_rank", r.inter_messages)
      .add("inter_bytes_per_rank", r.inter_bytes)
      .add("issue_ns", r.issue_ns)
      .add("bytes_ns", r.bytes_ns)
      .add("binds", r.binds())
      .add("mean_ns", time.mean_ns)
      .add("p99_ns", time.p99_ns)
      .add("max_rank_ns", time.max_rank_ns);
  const bandwidth moved = bandwidth_of(row.result, call);
  if (moved.payload > 0) {
    out.add("payload_bytes", moved.payload)
        .add("bytes_per_s", moved.bytes_per_s)
        .add("memcpy_bytes_per_s", moved.memcpy_bytes_per_s)
        .add("ratio_to_memcpy", moved.ratio());
  }
  return out;
}

object proxy_of(const options& asked, const support::run_result& r) {
  const support::proxy_config& p = asked.config.proxy;
  object out;
  out.add("comms", p.comms)
      .add("eager", p.engine.eager)
      .add("slot_bytes", r.slot_bytes)
      .add("post_ns", p.post_ns)
      .add("commands", r.commands)
      .add("messages", r.proxy_messages);
  return out;
}

}  // namespace

std::string json_of(const options& asked, const measurement& row) {
  const support::run_result& r = row.result;
  char hash[24];
  std::snprintf(hash, sizeof hash, "%016" PRIx64, r.trace_hash);
  object out;
  out.add("wire", row.wire).add("verified", r.verified);
  if (!r.verified) out.add("why", r.why());
  if (r.error.empty()) {
    out.add("shape", name_of(r.message))
        .add("reason", r.reason)
        .add("clock", row.clock)
        .add("dispatch", call_of(row, call_kind::dispatch))
        .add("combine", call_of(row, call_kind::combine))
        .add("wall_ns", r.wall_ns)
        .add("trace_hash", hash);
    if (!r.proxy_threads.empty()) out.add("proxy", proxy_of(asked, r));
  }
  out.add("seed", asked.config.seed)
      .add("config", config_of(asked))
      .add("build", build())
      .add("machine", machine());
  return out.text();
}

}  // namespace eptransport::bench
