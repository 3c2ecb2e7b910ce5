// Adds up one number of every rank.
#include <atoll/communicator.hpp>
#include <cstdio>

int main() {
  auto world = atoll::World::from_env();
  const auto mesh = atoll::Mesh::plan(atoll::Topology::discover(world), world);
  auto comm = atoll::Communicator::open(mesh.axis("world"));
  auto stream = comm.device().stream();
  auto memory = atoll::allocate(comm.device(), sizeof(float), {comm});
  const auto number = memory.view(atoll::DType::f32);
  number.as<float>()[0] = 1.0f + static_cast<float>(world.rank());
  comm.all_reduce(number, number, atoll::ReduceOp::sum, stream).synchronize();
  std::printf("rank %d of %d: the sum is %g\n", world.rank(), world.size(),
              static_cast<double>(number.as<float>()[0]));
}
