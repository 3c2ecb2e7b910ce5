/* A library that is preloaded before an MPI library. It ends the job if some ranks of a collective
 * pass MPI_IN_PLACE and others do not, which MPI forbids and MPI libraries rarely notice. It also
 * ends the job in MPI_Finalize unless the program made calls with and calls without MPI_IN_PLACE,
 * because otherwise the test would have checked nothing. */
#include <mpi.h>
#include <stdio.h>

static long in_place_calls, other_calls;

static void check(const char* call, const void* buffer, MPI_Comm comm) {
  int flags[2], least[2];
  flags[0] = buffer == MPI_IN_PLACE;
  flags[1] = buffer != MPI_IN_PLACE;
  PMPI_Allreduce(flags, least, 2, MPI_INT, MPI_MIN, comm);
  __atomic_fetch_add(flags[0] ? &in_place_calls : &other_calls, 1, __ATOMIC_RELAXED);
  if (least[0] || least[1]) return;
  fprintf(stderr, "FAILED: %s: only some ranks pass MPI_IN_PLACE; this rank %s\n", call,
          flags[0] ? "does" : "does not");
  PMPI_Abort(MPI_COMM_WORLD, 1);
}

int MPI_Iallgather(const void* src, int n, MPI_Datatype from, void* dst, int m, MPI_Datatype to,
                   MPI_Comm comm, MPI_Request* request) {
  check("MPI_Iallgather", src, comm);
  return PMPI_Iallgather(src, n, from, dst, m, to, comm, request);
}

int MPI_Iallgatherv(const void* src, int n, MPI_Datatype from, void* dst, const int counts[],
                    const int starts[], MPI_Datatype to, MPI_Comm comm, MPI_Request* request) {
  check("MPI_Iallgatherv", src, comm);
  return PMPI_Iallgatherv(src, n, from, dst, counts, starts, to, comm, request);
}

int MPI_Iallreduce(const void* src, void* dst, int n, MPI_Datatype type, MPI_Op op, MPI_Comm comm,
                   MPI_Request* request) {
  check("MPI_Iallreduce", src, comm);
  return PMPI_Iallreduce(src, dst, n, type, op, comm, request);
}

int MPI_Ireduce_scatter(const void* src, void* dst, const int counts[], MPI_Datatype type,
                        MPI_Op op, MPI_Comm comm, MPI_Request* request) {
  check("MPI_Ireduce_scatter", src, comm);
  return PMPI_Ireduce_scatter(src, dst, counts, type, op, comm, request);
}

int MPI_Ireduce_scatter_block(const void* src, void* dst, int n, MPI_Datatype type, MPI_Op op,
                              MPI_Comm comm, MPI_Request* request) {
  check("MPI_Ireduce_scatter_block", src, comm);
  return PMPI_Ireduce_scatter_block(src, dst, n, type, op, comm, request);
}

int MPI_Finalize(void) {
  if (in_place_calls == 0 || other_calls == 0) {
    fprintf(stderr, "FAILED: %ld calls with MPI_IN_PLACE and %ld without: both kinds are needed\n",
            in_place_calls, other_calls);
    PMPI_Abort(MPI_COMM_WORLD, 1);
  }
  return PMPI_Finalize();
}
