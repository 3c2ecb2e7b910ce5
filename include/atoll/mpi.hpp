// Makes a World of the processes of an MPI communicator. This header is the only part of atoll that
// uses MPI, and only programs that include it need MPI: libatoll does not link it.
//
//   MPI_Init(&argc, &argv);
//   auto world = atoll::world_from_mpi(MPI_COMM_WORLD);
//
// Destroy the World before MPI_Finalize. After this call atoll uses its own connections, not MPI,
// except for communicators on the backend `mpi`.
//
// Compile with the flags of the MPI library: mpicxx, or the target MPI::MPI_CXX of CMake. If you
// link with a plain -lmpi and Open MPI has C++ bindings, define OMPI_SKIP_MPICXX before <mpi.h> or
// with -DOMPI_SKIP_MPICXX; otherwise the symbols of these bindings (libmpi_cxx) are missing.
#pragma once

#include <mpi.h>

#include <cstddef>
#include <string>
#include <utility>

#include "atoll/world.hpp"

namespace atoll_v1::atoll {

// Each process has the same rank in the World as in `communicator`. Collective over the
// communicator. Throws Error(backend) if an MPI call fails and the communicator's error handler
// returns, and the errors of World::from_ranks().
inline World world_from_mpi(MPI_Comm communicator, Config config = Config::from_env()) {
  const auto check = [](int status, const char* call) {
    if (status == MPI_SUCCESS) return;
    char text[MPI_MAX_ERROR_STRING];
    int length = 0;
    MPI_Error_string(status, text, &length);
    throw Error(ErrorCode::backend,
                std::string(call) + ": " + std::string(text, static_cast<std::size_t>(length)));
  };
  int rank = 0, size = 0;
  check(MPI_Comm_rank(communicator, &rank), "MPI_Comm_rank");
  check(MPI_Comm_size(communicator, &size), "MPI_Comm_size");
  const auto broadcast = [&](const std::string& text) {
    int length = static_cast<int>(text.size());
    check(MPI_Bcast(&length, 1, MPI_INT, 0, communicator), "MPI_Bcast");
    std::string all = text;
    all.resize(static_cast<std::size_t>(length));
    check(MPI_Bcast(all.data(), length, MPI_CHAR, 0, communicator), "MPI_Bcast");
    return all;
  };
  return World::from_ranks(rank, size, broadcast, std::move(config));
}

}  // namespace atoll_v1::atoll
