// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief ep_model: what dispatch and combine would cost on a wire, before anybody buys it.
#include <cstdio>
#include <string>
#include <vector>

#include "ep_model/cli.hpp"

namespace {

namespace model = eptransport::model;

struct command {
  const char* name;
  const char* help;
  int (*run)(const std::vector<std::string>&);
};

constexpr command commands[] = {
    {"seed", "every published figure: given, computed, difference", model::seed_command},
    {"plan", "which shape, mode, comms, lanes and SMs, and why", model::plan_command},
    {"sweep", "rooflines and stages over lists of works, as CSV or JSON", model::sweep_command},
    {"calibrate", "fits a wire's constants to ep_bench's JSON", model::calibrate_command},
    {"simulate", "plays it out event by event; tokens per second", model::simulate_command},
};

std::string help() {
  std::string out = "usage: ep_model COMMAND [OPTION...]\n\n";
  for (const command& c : commands) {
    out += "  " + std::string(c.name) + std::string(12 - std::string(c.name).size(), ' ') + c.help +
           "\n";
  }
  return out + "\nep_model COMMAND --help lists the options of one.\n";
}

}  // namespace

int main(int count, char** values) {
  const std::vector<std::string> given(values + 1, values + count);
  if (given.empty() || given[0] == "--help" || given[0] == "-h") {
    std::fputs(help().c_str(), given.empty() ? stderr : stdout);
    return given.empty() ? model::exit_refused : model::exit_ok;
  }
  for (const command& c : commands) {
    if (given[0] == c.name) return c.run({given.begin() + 1, given.end()});
  }
  std::fprintf(stderr, "ep_model: no command '%s'\n\n%s", given[0].c_str(), help().c_str());
  return model::exit_refused;
}
