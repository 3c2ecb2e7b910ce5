#include "in_place.hpp"

namespace atoll_mpi {

Sources agree(Comm& comm, Sources own) {
  // words[0] is 1 if this rank's data can count as `in_place`, and words[1] is 1 if it can count as
  // `elsewhere`; both are 1 if the rank has no data. words[2] and words[3] receive the minimum over
  // all ranks. The words are in scratch memory, because MPI may still access them after an aborted
  // wait.
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
