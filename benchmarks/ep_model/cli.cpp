// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Parsing: every refused value is answered with what was expected.
#include "ep_model/cli.hpp"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <utility>

#include "ep_model/text.hpp"

namespace eptransport::model {
namespace {

template <class T>
bool read(const std::string& text, T least, T most, T& to) {
  T value{};
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (code != std::errc() || end != text.data() + text.size()) return false;
  if (!(value >= least && value <= most)) return false;
  to = value;
  return true;
}

int refuse(const std::string& why) {
  std::fprintf(stderr, "ep_model: %s\n", why.c_str());
  return exit_refused;
}

}  // namespace

arguments& arguments::option(const char* name, const char* value, const char* help, setter set) {
  entries_.push_back({name, value, help, std::move(set)});
  return *this;
}

arguments& arguments::flag(const char* name, const char* help, bool& to) {
  return option(name, nullptr, help, [&to](const std::string&) {
    to = true;
    return std::string();
  });
}

arguments& arguments::words(const char* name, std::vector<std::string>& to) {
  words_name_ = name;
  words_ = &to;
  return *this;
}

arguments& arguments::number(const char* name, const char* help, std::int64_t& to,
                             std::int64_t least, std::int64_t most) {
  return option(name, "N", help, [&to, least, most](const std::string& value) {
    return read(value, least, most, to) ? std::string()
                                        : "expected a whole number from " + std::to_string(least) +
                                              " to " + std::to_string(most);
  });
}

arguments& arguments::number(const char* name, const char* help, double& to, double least,
                             double most) {
  return option(name, "X", help, [&to, least, most](const std::string& value) {
    return read(value, least, most, to) ? std::string()
                                        : text("expected a number from %g to %g", least, most);
  });
}

int arguments::parse(const std::vector<std::string>& given) const {
  for (std::size_t i = 0; i < given.size(); ++i) {
    const std::string& name = given[i];
    if (name == "--help" || name == "-h") {
      std::fputs(help().c_str(), stdout);
      return exit_ok;
    }
    if (name.rfind("--", 0) != 0 && words_ != nullptr) {
      words_->push_back(name);
      continue;
    }
    const auto found = std::find_if(entries_.begin(), entries_.end(),
                                    [&name](const entry& e) { return name == e.name; });
    if (found == entries_.end()) return refuse("no option '" + name + "'; --help lists them");
    if (found->value == nullptr) {
      (void)found->set({});
      continue;
    }
    if (i + 1 == given.size()) return refuse(name + " needs a value: " + found->value);
    const std::string& value = given[++i];
    const std::string wrong = found->set(value);
    if (!wrong.empty()) return refuse(name + " '" + value + "': " + wrong);
  }
  return -1;
}

std::string arguments::help() const {
  std::string out = usage_ + "\n\n";
  if (words_name_ != nullptr) out += text("  %s\n", words_name_);
  for (const entry& e : entries_) {
    const std::string left =
        std::string(e.name) + (e.value != nullptr ? " " : "") + (e.value != nullptr ? e.value : "");
    out += text("  %-34s %s\n", left.c_str(), e.help);
  }
  return out + text("  %-34s %s\n", "--help", "this text");
}

arguments::setter list_of(std::vector<std::int64_t>& to, std::int64_t least, std::int64_t most) {
  return [&to, least, most](const std::string& value) {
    to.clear();
    for (std::size_t at = 0; at <= value.size();) {
      const std::size_t comma = std::min(value.find(',', at), value.size());
      std::int64_t number = 0;
      if (!read(value.substr(at, comma - at), least, most, number)) {
        return text("expected whole numbers from %lld to %lld with commas between",
                    static_cast<long long>(least), static_cast<long long>(most));
      }
      to.push_back(number);
      at = comma + 1;
    }
    return std::string();
  };
}

int write_file(const std::string& path, const std::string& content) {
  std::FILE* file = path == "-" ? stdout : std::fopen(path.c_str(), "w");
  if (file == nullptr) return refuse("cannot write " + path);
  const bool written = std::fwrite(content.data(), 1, content.size(), file) == content.size() &&
                       std::fflush(file) == 0;
  if (file != stdout) std::fclose(file);
  return written ? exit_ok : refuse("cannot write all of " + path);
}

}  // namespace eptransport::model
