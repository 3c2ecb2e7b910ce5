#include "in_place.hpp"

namespace atoll_mpi {

Sources agree(Comm& comm, Sources own) {
  // words[0] and words[1] say whether this rank accepts in_place and elsewhere. They are in scratch
  // memory, because MPI may still write to them after a wait has been aborted.
  int* words = reinterpret_cast<int*>(comm.scratch(4 * sizeof(int)));
  words[0] = own != Sources::elsewhere ? 1 : 0;
  words[1] = own != Sources::in_place ? 1 : 0;
  comm.run("MPI_Iallreduce", [&](MPI_Request* request) {
    return MPI_Iallreduce(words, words + 2, 2, MPI_INT, MPI_MIN, comm.mpi(), request);
  });
  if (words[2] != 0) return Sources::in_place;
  return words[3] != 0 ? Sources::elsewhere : Sources::mixed;
}

}  // namespace atoll_mpi
