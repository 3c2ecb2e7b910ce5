// A program that has initialized MPI with too little thread support: the mpi backend refuses and
// says why, and another backend works.
//
// mpi_threads single|funneled
#include <mpi.h>

#include <array>
#include <cstdio>
#include <string>
#include <string_view>

#include "atoll/communicator.hpp"
#include "suite.hpp"

namespace {

// Returns the error of a communicator on the mpi backend; empty if it opens.
std::string refusal(const atoll::Axis& axis) {
  try {
    const auto comm = atoll::Communicator::open(axis, {.backend = "mpi"});
    return "";
  } catch (const atoll::Error& error) {
    return error.what();
  }
}

int run(const std::string& expected) {
  auto world = atoll::World::from_env();
  const auto mesh = atoll::Mesh::make(world, {1, world.size()});
  const atoll::Axis& axis = mesh.axis("world");
  const std::string text = refusal(axis);
  if (text.find(expected) == std::string::npos) {
    std::printf("FAILED: \"%s\" instead of \"%s\"\n", text.c_str(), expected.c_str());
    return conformance::failed;
  }
  auto comm = atoll::Communicator::open(axis);
  auto stream = comm.device().stream();
  std::array<float, 1> sum{1.0f};
  comm.all_reduce(sum, sum, atoll::ReduceOp::sum, stream).synchronize();
  if (comm.backend() == "mpi" || sum[0] != static_cast<float>(world.size())) {
    std::printf("FAILED: a sum of %g on the backend %s\n", static_cast<double>(sum[0]),
                std::string(comm.backend()).c_str());
    return conformance::failed;
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const bool single = argc < 2 || std::string_view(argv[1]) == "single";
  if (single) {
    MPI_Init(&argc, &argv);
  } else {
    int provided = MPI_THREAD_SINGLE;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &provided);
  }
  int level = MPI_THREAD_SINGLE;
  MPI_Query_thread(&level);
  int status = conformance::skipped;
  if (level == (single ? MPI_THREAD_SINGLE : MPI_THREAD_FUNNELED)) {
    status = run(std::string("MPI was initialized with ") +
                 (single ? "MPI_THREAD_SINGLE" : "MPI_THREAD_FUNNELED"));
  } else {
    std::puts("skipped: this MPI library provides another level of thread support");
  }
  MPI_Finalize();
  return status;
}
