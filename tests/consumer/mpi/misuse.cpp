// Calls world_from_mpi() where MPI does not allow it. Prints the calls that do not give the
// expected error. Run it with 2 ranks.
#include <mpi.h>

#include <atoll/mpi.hpp>
#include <cstdio>
#include <string>
#include <thread>

namespace {

bool all_right = true;

void expect(const std::string& expected, MPI_Comm communicator) {
  std::string text = "no error";
  try {
    atoll::world_from_mpi(communicator);
  } catch (const atoll::Error& error) {
    text = error.what();
  }
  if (text == "world_from_mpi: " + expected) return;
  all_right = false;
  std::printf("expected \"%s\", but got \"%s\"\n", expected.c_str(), text.c_str());
}

}  // namespace

int main(int argc, char** argv) {
  expect("MPI is not initialized: call MPI_Init or MPI_Init_thread first", MPI_COMM_WORLD);
  int level = 0, rank = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &level);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  expect("the communicator is MPI_COMM_NULL: pass a communicator that contains this process",
         MPI_COMM_NULL);
  if (level < MPI_THREAD_SERIALIZED) {
    std::thread(expect,
                "MPI allows calls of the main thread only: call world_from_mpi() there, or "
                "initialize MPI with MPI_THREAD_SERIALIZED or MPI_THREAD_MULTIPLE",
                MPI_COMM_WORLD)
        .join();
  }
  MPI_Comm alone, both;
  MPI_Comm_split(MPI_COMM_WORLD, rank, 0, &alone);
  MPI_Intercomm_create(alone, 0, MPI_COMM_WORLD, 1 - rank, 0, &both);
  expect(
      "the communicator is an intercommunicator: pass an intracommunicator, such as the result of "
      "MPI_Intercomm_merge",
      both);
  MPI_Comm_free(&both);
  MPI_Comm_free(&alone);
  MPI_Finalize();
  expect("MPI_Finalize has been called: make and destroy the World before it", MPI_COMM_WORLD);
  return all_right ? 0 : 1;
}
