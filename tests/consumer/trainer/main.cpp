// Fits y = 3 x + 1 over all ranks of a job: a trainer of one's own on the installed library.
#include <atoll/optimizer.hpp>
#include <cstdio>

int main() {
  auto world = atoll::World::from_env();
  const auto mesh = atoll::Mesh::plan(atoll::Topology::discover(world), world);
  atoll::fsdp::Engine engine(mesh, {.strategy = atoll::fsdp::Strategy::full_shard});
  auto& line = engine.add_unit("line", {{.name = "w", .shape = {2}}});
  engine.freeze({"line"});
  engine.initialize(/*seed=*/1);
  atoll::fsdp::Optimizer optimizer(engine, {.weight_decay = 0});
  auto compute = engine.device().stream({.name = "compute"});

  float loss = 0;  // over this rank's share of 64 samples
  for (int step = 0; step < 300; ++step) {
    auto pass = engine.begin({}, compute);
    { const auto w = pass.forward(line); }  // a larger model computes its activations here
    {
      const auto w = pass.backward(line);
      compute.enqueue([&, p = w["w"].as<float>(), gradient = w.grad("w").view.as<float>()] {
        gradient[0] = gradient[1] = loss = 0;
        for (int i = world.rank(); i < 64; i += world.size()) {
          const float x = static_cast<float>(i) / 64, error = p[0] * x + p[1] - (3 * x + 1);
          gradient[0] += error * x / 64, gradient[1] += error / 64, loss += error * error / 64;
        }
      });
    }
    optimizer.step(0.05f, compute);
  }
  compute.synchronize();
  std::printf("rank %d of %d: loss %.1e\n", world.rank(), world.size(), static_cast<double>(loss));
  return loss < 1e-4f ? 0 : 1;
}
