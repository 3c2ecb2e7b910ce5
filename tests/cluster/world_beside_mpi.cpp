// Uses a World and an MPI library in one process, and starts and ends them in either order. Both
// talk to the launcher, and neither may disturb the other.
#include <mpi.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string_view>

#include "atoll/world.hpp"

namespace {

struct Order {
  bool mpi_starts_first = false;
  bool mpi_ends_first = false;
};

bool agree(Order order) {
  if (order.mpi_starts_first) MPI_Init(nullptr, nullptr);
  auto world = std::make_unique<atoll::World>(atoll::World::from_env());
  if (!order.mpi_starts_first) MPI_Init(nullptr, nullptr);
  int rank = -1;
  int size = -1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  MPI_Barrier(MPI_COMM_WORLD);
  world->barrier();
  const bool equal = rank == world->rank() && size == world->size();
  if (order.mpi_ends_first) MPI_Finalize();
  world.reset();
  if (!order.mpi_ends_first) {
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Finalize();
  }
  return equal;
}

}  // namespace

// The two arguments are "mpi" or "world". The first names the library that starts first, and the
// second names the library that ends first.
int main(int argc, char** argv) {
  if (argc != 3) return EXIT_FAILURE;
  const Order order{std::string_view(argv[1]) == "mpi", std::string_view(argv[2]) == "mpi"};
  try {
    const bool equal = agree(order);
    std::printf("%s\n", equal ? "equal" : "different");
    return equal ? EXIT_SUCCESS : EXIT_FAILURE;
  } catch (const atoll::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return EXIT_FAILURE;
  }
}
