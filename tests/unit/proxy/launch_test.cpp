// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief What launchers leave in the environment, and what is missing from it.
#include <eptransport/proxy/bootstrap/launch.hpp>

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <utility>

namespace eptransport {
namespace {

using variables = std::map<std::string, std::string>;

result<rank_launch> read(const variables& given) {
  return rank_launch::from_environment([&](const char* name) -> const char* {
    const auto at = given.find(name);
    return at == given.end() ? nullptr : at->second.c_str();
  });
}

const variables torchrun = {{"RANK", "3"},
                            {"WORLD_SIZE", "8"},
                            {"LOCAL_RANK", "1"},
                            {"MASTER_ADDR", "node7"},
                            {"MASTER_PORT", "29500"},
                            {"TORCHELASTIC_RUN_ID", "run5"}};

variables changed(variables from, const std::string& name, const std::string& value) {
  from[name] = value;
  return from;
}

TEST(Launch, TorchrunLeavesItsStoresPortAlone) {
  const auto got = read(torchrun);
  ASSERT_TRUE(got) << got.error().message();
  EXPECT_EQ(got->launcher, "torchrun");
  EXPECT_EQ(got->rank, 3);
  EXPECT_EQ(got->size, 8);
  EXPECT_EQ(got->local_rank, 1);
  EXPECT_EQ(got->host, "node7");
  EXPECT_EQ(got->port, 29501);
  EXPECT_EQ(got->token, "run5");
  EXPECT_FALSE(got->secret);
  const bootstrap_options options = got->options();
  EXPECT_EQ(options.rank, 3);
  EXPECT_EQ(options.size, 8);
  EXPECT_EQ(options.host, "node7");
  EXPECT_EQ(options.port, 29501);
  EXPECT_EQ(options.token, "run5");
}

TEST(Launch, OwnVariablesOverride) {
  variables given = changed(torchrun, "EPT_BOOTSTRAP_PORT", "4000");
  given["EPT_BOOTSTRAP_HOST"] = "10.0.0.9";
  given["EPT_JOB_TOKEN"] = "s3cret";
  given.erase("MASTER_PORT");
  const auto got = read(given);
  ASSERT_TRUE(got) << got.error().message();
  EXPECT_EQ(got->host, "10.0.0.9");
  EXPECT_EQ(got->port, 4000);
  EXPECT_EQ(got->token, "s3cret");
  EXPECT_TRUE(got->secret);
}

TEST(Launch, SlurmsFirstHostIsRankZeros) {
  const variables given = {{"SLURM_PROCID", "9"},    {"SLURM_NTASKS", "16"},
                           {"SLURM_LOCALID", "1"},   {"SLURM_STEP_NODELIST", "gpu[007-009,12]"},
                           {"SLURM_JOB_ID", "4711"}, {"SLURM_STEP_ID", "0"}};
  const auto got = read(given);
  ASSERT_TRUE(got) << got.error().message();
  EXPECT_EQ(got->launcher, "slurm");
  EXPECT_EQ(got->rank, 9);
  EXPECT_EQ(got->size, 16);
  EXPECT_EQ(got->host, "gpu007");
  EXPECT_EQ(got->token, "4711.0");
  EXPECT_GE(got->port, 20000);
  EXPECT_LT(got->port, 30000);
  EXPECT_EQ(read(changed(given, "SLURM_PROCID", "0"))->port, got->port);  // all ranks derive it
  EXPECT_NE(read(changed(given, "SLURM_JOB_ID", "4712"))->port, got->port);
  for (const auto& [list, first] :
       {std::pair{"n1", "n1"}, std::pair{"n1,n2", "n1"}, std::pair{"a[3,7]b,c", "a3b"},
        std::pair{"r[1-2]n[05-10]", "r1n05"}, std::pair{"", ""}}) {
    EXPECT_EQ(first_slurm_host(list), first);
  }
}

TEST(Launch, MpirunOnOneHostNeedsNoAddress) {
  const variables open_mpi = {{"OMPI_COMM_WORLD_RANK", "1"},
                              {"OMPI_COMM_WORLD_SIZE", "2"},
                              {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                              {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                              {"PMIX_NAMESPACE", "2963275777"}};
  const auto got = read(open_mpi);
  ASSERT_TRUE(got) << got.error().message();
  EXPECT_EQ(got->host, "127.0.0.1");
  EXPECT_EQ(got->token, "2963275777");
  EXPECT_EQ(got->local_rank, 1);
  const auto two_hosts = read(changed(open_mpi, "OMPI_COMM_WORLD_LOCAL_SIZE", "1"));
  ASSERT_FALSE(two_hosts);
  EXPECT_NE(two_hosts.error().detail.find("EPT_BOOTSTRAP_HOST"), std::string::npos);

  const auto hydra = read({{"PMI_RANK", "0"},
                           {"PMI_SIZE", "4"},
                           {"EPT_BOOTSTRAP_HOST", "h"},
                           {"EPT_BOOTSTRAP_PORT", "5000"},
                           {"EPT_JOB_TOKEN", "t"}});
  ASSERT_TRUE(hydra) << hydra.error().message();
  EXPECT_EQ(hydra->size, 4);
  EXPECT_EQ(hydra->local_rank, -1);
}

TEST(Launch, WhatIsMissingIsNamed) {
  const auto complains = [](const variables& given, const char* about) {
    const auto got = read(given);
    ASSERT_FALSE(got) << about;
    EXPECT_NE(got.error().detail.find(about), std::string::npos) << got.error().message();
  };
  complains({}, "torchrun, srun or mpirun");
  EXPECT_EQ(read({}).error().code, errc::unsupported);
  complains(changed(torchrun, "RANK", "8"), "RANK is \"8\", expected a number from 0 to 7");
  complains(changed(torchrun, "RANK", "-1"), "RANK is \"-1\"");
  complains(changed(torchrun, "WORLD_SIZE", "8x"), "WORLD_SIZE is \"8x\"");
  complains(changed(torchrun, "MASTER_PORT", "65535"), "MASTER_PORT");
  complains(changed(torchrun, "MASTER_PORT", ""), "MASTER_PORT is not set");
  complains(changed(torchrun, "MASTER_ADDR", ""), "no address of rank 0");
  complains(changed(torchrun, "TORCHELASTIC_RUN_ID", ""), "EPT_JOB_TOKEN");
}

}  // namespace
}  // namespace eptransport
