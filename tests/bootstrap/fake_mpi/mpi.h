// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief What mpi.hpp needs of MPI, between threads: machines that test have no MPI.
#pragma once

#include <barrier>
#include <cstring>

struct fake_world {
  explicit fake_world(int ranks) : size(ranks), all(ranks) {}
  int size;
  std::barrier<> all;
  const void* given = nullptr;
  int broken_call = 0;  ///< 1: of rank, 2: of size, 3: the broadcast
};
struct fake_rank {
  int rank;
  fake_world* world;
};

using MPI_Comm = fake_rank*;
using MPI_Datatype = int;
inline constexpr int MPI_SUCCESS = 0;
inline constexpr MPI_Datatype MPI_BYTE = 1;

inline int MPI_Comm_rank(MPI_Comm c, int* rank) {
  *rank = c->rank;
  return c->world->broken_call == 1 ? 1 : MPI_SUCCESS;
}
inline int MPI_Comm_size(MPI_Comm c, int* size) {
  *size = c->world->size;
  return c->world->broken_call == 2 ? 1 : MPI_SUCCESS;
}
inline int MPI_Bcast(void* buffer, int count, MPI_Datatype, int root, MPI_Comm c) {
  if (c->world->broken_call == 3) return 1;
  if (c->rank == root) c->world->given = buffer;
  c->world->all.arrive_and_wait();
  if (c->rank != root) std::memcpy(buffer, c->world->given, static_cast<std::size_t>(count));
  c->world->all.arrive_and_wait();
  return MPI_SUCCESS;
}
