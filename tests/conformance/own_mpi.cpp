// Runs the suite in a program that initialises MPI itself, with MPI_THREAD_SERIALIZED. This is the
// lowest thread support that the mpi backend accepts: MPI calls of different threads must not
// overlap.
#include <mpi.h>

#include <cstdio>

#include "suite.hpp"

int main(int argc, char** argv) {
  int level = MPI_THREAD_SINGLE;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_SERIALIZED, &level);
  if (level < MPI_THREAD_SERIALIZED) {
    std::puts("skipped: this MPI library has no MPI_THREAD_SERIALIZED");
    MPI_Finalize();
    return conformance::skipped;
  }
  const int status = conformance::run_rank(atoll::Config::from_env(), "mpi");
  int finalized = 0;
  MPI_Finalized(&finalized);
  if (finalized != 0) {
    std::puts("FAILED: the backend finalised an MPI that is not its own");
    return conformance::failed;
  }
  // After a failure, MPI_Finalize would wait for the other ranks.
  if (status == 0) MPI_Finalize();
  return status;
}
