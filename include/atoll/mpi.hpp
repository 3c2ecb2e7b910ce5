// Makes a World of the processes of an MPI communicator. This header is the only part of atoll that
// uses MPI, and only programs that include it need MPI: libatoll does not link it.
//
//   MPI_Init(&argc, &argv);
//   auto world = atoll::world_from_mpi(MPI_COMM_WORLD);
//
// Destroy the World before MPI_Finalize. After this call atoll uses its own connections, not MPI,
// except for communicators on the backend `mpi`, which needs MPI_THREAD_SERIALIZED or
// MPI_THREAD_MULTIPLE. Every other use of atoll works at any thread level.
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

// Throws the errors of world_from_mpi() about the state of MPI and the kind of the communicator.
// MPI ends the process if one of its functions is called in these cases.
inline void check_mpi(MPI_Comm communicator) {
  const auto require = [](bool condition, const char* problem) {
    if (!condition)
      throw Error(ErrorCode::invalid_argument, std::string("world_from_mpi: ") + problem);
  };
  int yes = 0;
  MPI_Initialized(&yes);
  require(yes != 0, "MPI is not initialized: call MPI_Init or MPI_Init_thread first");
  MPI_Finalized(&yes);
  require(yes == 0, "MPI_Finalize has been called: make and destroy the World before it");
  int level = MPI_THREAD_SINGLE;
  MPI_Query_thread(&level);
  MPI_Is_thread_main(&yes);
  require(
      yes != 0 || level >= MPI_THREAD_SERIALIZED,
      "MPI allows calls of the main thread only: call world_from_mpi() there, or initialize MPI "
      "with MPI_THREAD_SERIALIZED or MPI_THREAD_MULTIPLE");
  require(communicator != MPI_COMM_NULL,
          "the communicator is MPI_COMM_NULL: pass a communicator that contains this process");
  MPI_Comm_test_inter(communicator, &yes);
  require(yes == 0,
          "the communicator is an intercommunicator: pass an intracommunicator, such as the result "
          "of MPI_Intercomm_merge");
}

// Each process has the same rank in the World as in `communicator`. Collective over the
// communicator. Throws Error(invalid_argument) before MPI_Init and after MPI_Finalize, for
// MPI_COMM_NULL, for an intercommunicator, and on a thread other than the main thread of MPI if the
// thread level is below MPI_THREAD_SERIALIZED. Throws Error(backend) if an MPI call fails and the
// communicator's error handler returns, and the errors of World::from_ranks().
inline World world_from_mpi(MPI_Comm communicator, Config config = Config::from_env()) {
  const auto check = [](int status, const char* call) {
    if (status == MPI_SUCCESS) return;
    char text[MPI_MAX_ERROR_STRING];
    int length = 0;
    MPI_Error_string(status, text, &length);
    throw Error(ErrorCode::backend,
                std::string(call) + ": " + std::string(text, static_cast<std::size_t>(length)));
  };
  check_mpi(communicator);
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
