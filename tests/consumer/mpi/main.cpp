// An MPI program that brings its own communicator, and a mesh with a third axis. Run it with a
// multiple of 4 ranks: each coordinate of the axis "tensor" trains a separate engine.
#include <mpi.h>

#include <array>
#include <atoll/mpi.hpp>
#include <atoll/optimizer.hpp>
#include <cstdio>

namespace fsdp = atoll::fsdp;

namespace {

// Trains weights towards `target` with the engine of this rank's coordinate on the other axes, and
// returns the last weight.
float train(const atoll::Mesh& mesh, float target) {
  constexpr int elements = 1000;
  fsdp::Engine engine(mesh, {.gradients = fsdp::GradientScale::average, .synchronous = true});
  auto& layer = engine.add_unit("layer", {{.name = "w", .shape = {elements}}});
  engine.seal({"layer"});
  engine.initialize(/*seed=*/1);
  fsdp::Optimizer sgd(engine, {.kind = fsdp::OptimizerOptions::Kind::sgd, .max_norm = 0});
  auto compute = engine.device().stream();
  for (int step = 0; step < 40; ++step) {
    auto pass = engine.begin({}, compute);
    { const auto scope = pass.forward(layer); }
    {
      const auto scope = pass.backward(layer);
      const float* weights = scope["w"].as<float>();
      float* gradient = scope.grad("w").view.as<float>();
      for (int i = 0; i < elements; ++i) gradient[i] = weights[i] - target;
    }
    sgd.step(0.5f, compute);
  }
  float last = 0;
  engine.visit([&](const auto&, const auto&, auto values) { last = values.back(); });
  return last;
}

}  // namespace

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int number = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &number);
  MPI_Comm reversed;
  MPI_Comm_split(MPI_COMM_WORLD, 0, -number, &reversed);
  {
    auto config = atoll::Config::from_env();
    config.backend = "host";
    auto world = atoll::world_from_mpi(reversed, config);
    const auto mesh =
        atoll::Mesh::make(world, {{"replicate", world.size() / 4}, {"shard", 2}, {"tensor", 2}});
    const atoll::Axis& axis = mesh.axis("tensor");
    auto tensor = atoll::Communicator::open(axis);
    auto stream = tensor.device().stream();
    std::array<float, 1> sum{static_cast<float>(axis.index + 1)};
    tensor.all_reduce(sum, sum, atoll::ReduceOp::sum, stream).synchronize();
    const float weight = train(mesh, static_cast<float>(3 + axis.index));
    std::printf("MPI rank %d is rank %d of %d: sum %.0f, weight %.2f\n", number, world.rank(),
                world.size(), static_cast<double>(sum[0]), static_cast<double>(weight));
  }
  MPI_Barrier(reversed);  // MPI belongs to the program, and works after the World
  MPI_Comm_free(&reversed);
  MPI_Finalize();
}
