// SPDX-License-Identifier: Apache-2.0
/// @file
/// @brief Ranks that MPI has started tell each other where rank 0 waits. Optional: empty without
///        <mpi.h>.
#pragma once

#include <eptransport/core/config.hpp>
#include <eptransport/core/result.hpp>
#include <eptransport/proxy/bootstrap/listening_socket.hpp>
#include <eptransport/proxy/bootstrap/options.hpp>

#if __has_include(<mpi.h>)

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <mpi.h>
#include <string>
#include <system_error>
#include <unistd.h>

namespace eptransport {

/// Options of this process in a bootstrap over the ranks of a communicator; collective. Rank 0
/// listens at a free port and draws the token, so that neither need be set anywhere.
///
/// MPI is not used again: the communicator may be freed once this has returned.
///
/// @pre         MPI is initialised; the calling thread may call it
/// @param host  rank 0's address as the others reach it; empty: its host's name. Rank 0's counts
/// @par Errors  errno where rank 0 cannot listen or draw a token, on all ranks; `transport_failed`
///              where a call of MPI fails, which by default ends the process
[[nodiscard]] inline result<bootstrap_options> mpi_options(MPI_Comm communicator,
                                                           const std::string& host = {}) {
  const auto failed = [](const char* call) {
    return failure{errc::transport_failed, call, "MPI says so"};
  };
  bootstrap_options made;
  int rank = 0;
  int size = 0;
  if (MPI_Comm_rank(communicator, &rank) != MPI_SUCCESS) return failed("MPI_Comm_rank");
  if (MPI_Comm_size(communicator, &size) != MPI_SUCCESS) return failed("MPI_Comm_size");
  made.rank = rank;
  made.size = size;
  struct invitation {
    std::int32_t error = 0;
    std::uint16_t port = 0;
    std::array<unsigned char, 32> token{};
    std::array<char, 256> host{};
  } said;
  if (rank == 0) {
    if (host.empty()) {
      (void)::gethostname(said.host.data(), said.host.size() - 1);
    } else {
      host.copy(said.host.data(), said.host.size() - 1);
    }
    auto socket = listening_socket::open(said.host.data(), 0);
    if (!socket) {
      said.error = socket.error().code.value();
    } else if (::getentropy(said.token.data(), said.token.size()) != 0) {
      said.error = errno;
    } else {
      said.port = socket->port();
      made.listener = socket->release();
    }
  }
  if (MPI_Bcast(&said, static_cast<int>(sizeof said), MPI_BYTE, 0, communicator) != MPI_SUCCESS) {
    if (made.listener >= 0) (void)::close(made.listener);
    return failed("MPI_Bcast");
  }
  if (said.error != 0) {
    return failure{std::error_code(said.error, std::system_category()), "mpi_options",
                   "rank 0 could not listen"};
  }
  made.host = said.host.data();
  made.port = said.port;
  made.token.assign(reinterpret_cast<const char*>(said.token.data()), said.token.size());
  return made;
}

}  // namespace eptransport

#endif
