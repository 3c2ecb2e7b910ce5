// Fits y = 3 x + 1 over all ranks of a job: a trainer of one's own, on the installed library.
#include <atoll/optimizer.hpp>
#include <cstdio>

int main() {
  namespace fsdp = atoll::fsdp;
  atoll::World world = atoll::World::from_env();
  const auto mesh = atoll::Mesh::plan(atoll::Topology::discover(world), world);
  fsdp::Engine engine(mesh, {.strategy = fsdp::Strategy::full_shard});
  fsdp::Unit& line = engine.add_unit("line", {{.name = "slope", .shape = {1}, .init = {}},
                                              {.name = "offset", .shape = {1}, .init = {}}});
  engine.freeze({"line"});
  engine.initialize(/*seed=*/1);
  fsdp::Optimizer optimizer(engine, {.kind = fsdp::OptimizerOptions::Kind::sgd, .max_norm = 0});
  auto compute = engine.device().stream({.name = "compute"});

  const int samples = 64;  // of one step; each rank takes every size-th of them
  float error = 0;
  for (int step = 0; step < 300; ++step) {
    auto pass = engine.begin({}, compute);
    { const auto w = pass.forward(line); }  // a deeper model computes its activations here
    const auto w = pass.backward(line);
    compute.enqueue([&, a = w["slope"].as<float>(), b = w["offset"].as<float>(),
                     da = w.grad("slope").view.as<float>(), db = w.grad("offset").view.as<float>()] {
      *da = *db = error = 0;
      for (int i = world.rank(); i < samples; i += world.size()) {
        const float x = static_cast<float>(i) / samples, off = *a * x + *b - (3 * x + 1);
        *da += off * x / samples, *db += off / samples, error += off * off / samples;
      }
    });
  }
  compute.synchronize();
  std::printf("rank %d of %d: error %.1e\n", world.rank(), world.size(), static_cast<double>(error));
  return error < 1e-6f ? 0 : 1;
}
