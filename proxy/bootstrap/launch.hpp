// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Who this rank is and where rank 0 waits, as launchers say it in the environment.
///
/// | launcher | rank, size | rank 0's host | port |
/// |---|---|---|---|
/// | torchrun and alike | RANK, WORLD_SIZE, LOCAL_RANK | MASTER_ADDR | MASTER_PORT + 1 |
/// | Slurm | SLURM_PROCID, SLURM_NTASKS, SLURM_LOCALID | first of SLURM_STEP_NODELIST | of job id |
/// | mpirun | OMPI_COMM_WORLD_*, PMI_* | this host, if all ranks are on it | of job id |
///
/// The first whose rank and size are set. MASTER_PORT itself is where torch's store listens.
/// EPT_BOOTSTRAP_HOST and EPT_BOOTSTRAP_PORT override; EPT_JOB_TOKEN is the secret. Without it the
/// token is the launcher's job id, which keeps jobs apart but is known to others.
#pragma once

#include <eptransport/core/config.hpp>
#include <eptransport/core/result.hpp>
#include <eptransport/proxy/bootstrap/options.hpp>

#include <charconv>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

namespace eptransport {

/// The first host of a Slurm node list: "gpu[007-009,12],login1" begins with "gpu007".
[[nodiscard]] inline std::string first_slurm_host(std::string_view list) {
  std::string host;
  bool inside = false;
  bool skipping = false;  // what follows the first number of a bracket
  for (const char c : list) {
    if (!inside && c == ',') break;
    if (c == '[') {
      inside = true;
    } else if (c == ']') {
      inside = skipping = false;
    } else if (inside && (c == '-' || c == ',')) {
      skipping = true;
    } else if (!skipping) {
      host += c;
    }
  }
  return host;
}

/// What a launcher says of one rank.
struct rank_launch {
  std::string launcher;  ///< "torchrun", "slurm", "mpirun"
  std::int32_t rank = 0;
  std::int32_t size = 1;
  std::int32_t local_rank = -1;  ///< among the ranks of its host; -1: not said
  std::string host;              ///< rank 0's
  std::uint16_t port = 0;
  std::string token;
  bool secret = false;  ///< the token is EPT_JOB_TOKEN, not a job id

  /// To complete with a config, and to join.
  [[nodiscard]] bootstrap_options options() const {
    bootstrap_options made;
    made.rank = rank;
    made.size = size;
    made.host = host;
    made.port = port;
    made.token = token;
    return made;
  }

  /// The value of an environment variable, or null.
  using lookup = std::function<const char*(const char* name)>;

  /// @par Errors  `unsupported` where no launcher is seen; `invalid_argument` naming the variable
  ///              that is missing or makes no sense, and what to set
  [[nodiscard]] static result<rank_launch> from_environment(
      const lookup& get = [](const char* name) -> const char* { return std::getenv(name); });
};

namespace launch_detail {

/// Reads variables and keeps the first complaint.
class environment {
 public:
  explicit environment(const rank_launch::lookup& get) : get_(get) {}

  [[nodiscard]] std::string text(const char* name) const {
    const char* value = get_(name);
    return value == nullptr ? "" : value;
  }
  [[nodiscard]] bool has(const char* name) const { return !text(name).empty(); }
  /// The value, at least `least` and at most `most`; a complaint where it is missing or no number.
  std::int64_t number(const char* name, std::int64_t least, std::int64_t most) {
    const std::string value = text(name);
    std::int64_t read = 0;
    const auto end = value.data() + value.size();
    const auto [stop, error] = std::from_chars(value.data(), end, read);
    if (error == std::errc{} && stop == end && read >= least && read <= most) return read;
    complain(std::string(name) + (value.empty() ? " is not set" : " is \"" + value + "\"") +
             ", expected a number from " + std::to_string(least) + " to " + std::to_string(most));
    return least;
  }
  void complain(std::string what) {
    if (complaint_.empty()) complaint_ = std::move(what);
  }
  [[nodiscard]] const std::string& complaint() const noexcept { return complaint_; }

 private:
  const rank_launch::lookup& get_;
  std::string complaint_;
};

/// A port that all ranks of a job derive alike: below those that systems give to clients.
[[nodiscard]] inline std::uint16_t port_of(std::string_view job) {
  std::uint32_t hash = 2166136261U;
  for (const char c : job) hash = (hash ^ static_cast<unsigned char>(c)) * 16777619U;
  return static_cast<std::uint16_t>(20000U + hash % 10000U);
}

constexpr std::int64_t most_ranks = 1'000'000;

inline void read_who(environment& from, rank_launch& to, const char* rank, const char* size,
                     const char* local) {
  to.size = static_cast<std::int32_t>(from.number(size, 1, most_ranks));
  to.rank = static_cast<std::int32_t>(from.number(rank, 0, to.size - 1));
  if (from.has(local)) to.local_rank = static_cast<std::int32_t>(from.number(local, 0, most_ranks));
}

inline void read_torchrun(environment& from, rank_launch& to) {
  to.launcher = "torchrun";
  read_who(from, to, "RANK", "WORLD_SIZE", "LOCAL_RANK");
  to.host = from.text("MASTER_ADDR");
  to.token = from.text("TORCHELASTIC_RUN_ID");
  if (!from.has("EPT_BOOTSTRAP_PORT")) {
    to.port = static_cast<std::uint16_t>(from.number("MASTER_PORT", 1, 65534) + 1);
  }
}

inline void read_slurm(environment& from, rank_launch& to) {
  to.launcher = "slurm";
  read_who(from, to, "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID");
  const bool step = from.has("SLURM_STEP_NODELIST");
  to.host = first_slurm_host(from.text(step ? "SLURM_STEP_NODELIST" : "SLURM_JOB_NODELIST"));
  to.token = from.text("SLURM_JOB_ID");
  if (!to.token.empty()) to.token += "." + from.text("SLURM_STEP_ID");
}

inline void read_mpirun(environment& from, rank_launch& to) {
  to.launcher = "mpirun";
  const bool open_mpi = from.has("OMPI_COMM_WORLD_RANK");
  const char* on_node = open_mpi ? "OMPI_COMM_WORLD_LOCAL_SIZE" : "MPI_LOCALNRANKS";
  if (open_mpi) {
    read_who(from, to, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
             "OMPI_COMM_WORLD_LOCAL_RANK");
    to.token = from.text("PMIX_NAMESPACE");
  } else {
    read_who(from, to, "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID");
    to.token = from.text("HYDRA_JOBID");
  }
  if (from.has(on_node) && from.number(on_node, 1, most_ranks) == to.size) to.host = "127.0.0.1";
}

}  // namespace launch_detail

inline result<rank_launch> rank_launch::from_environment(const lookup& get) {
  launch_detail::environment from(get);
  rank_launch made;
  if (from.has("RANK") && from.has("WORLD_SIZE")) {
    launch_detail::read_torchrun(from, made);
  } else if (from.has("SLURM_PROCID") && from.has("SLURM_NTASKS")) {
    launch_detail::read_slurm(from, made);
  } else if (from.has("OMPI_COMM_WORLD_RANK") || from.has("PMI_RANK")) {
    launch_detail::read_mpirun(from, made);
  } else {
    return failure{errc::unsupported, "rank_launch::from_environment",
                   "no launcher: set RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, or start with "
                   "torchrun, srun or mpirun"};
  }
  if (from.has("EPT_BOOTSTRAP_HOST")) made.host = from.text("EPT_BOOTSTRAP_HOST");
  if (from.has("EPT_BOOTSTRAP_PORT")) {
    made.port = static_cast<std::uint16_t>(from.number("EPT_BOOTSTRAP_PORT", 1, 65535));
  } else if (made.port == 0 && !made.token.empty()) {
    made.port = launch_detail::port_of(made.token);
  }
  made.secret = from.has("EPT_JOB_TOKEN");
  if (made.secret) made.token = from.text("EPT_JOB_TOKEN");
  const auto demand = [&](bool there, const char* what) {
    if (!there) from.complain(std::string(what) + " for ranks started by " + made.launcher);
  };
  demand(!made.host.empty(), "no address of rank 0: set EPT_BOOTSTRAP_HOST (or MASTER_ADDR)");
  demand(!made.token.empty(), "no token and no job id: set EPT_JOB_TOKEN, the same on all ranks,");
  demand(made.port != 0, "no port of rank 0: set EPT_BOOTSTRAP_PORT, the same on all ranks,");
  if (!from.complaint().empty()) {
    return failure{errc::invalid_argument, "rank_launch::from_environment", from.complaint()};
  }
  return made;
}

}  // namespace eptransport
