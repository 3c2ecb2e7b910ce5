// Trains 1,000 sharded weights towards the value 3; each rank holds one shard.
#include <atoll/optimizer.hpp>
#include <cstdio>

int main() {
  auto world = atoll::World::from_env();
  const auto mesh = atoll::Mesh::plan(atoll::Topology::discover(world), world);
  atoll::fsdp::Engine engine(mesh, {.strategy = atoll::fsdp::Strategy::full_shard,
                                    .gradients = atoll::fsdp::GradientScale::average});
  auto& layer = engine.add_unit("layer", {{.name = "w", .shape = {1000}}});
  engine.seal({"layer"});
  engine.initialize(/*seed=*/1);
  atoll::fsdp::Optimizer optimizer(engine);
  auto compute = engine.device().stream();
  for (int step = 0; step < 400; ++step) {
    auto pass = engine.begin({}, compute);
    {
      auto w = pass.forward(layer);  // gathered weights; a real layer enqueues its forward here
    }
    {
      auto w = pass.backward(layer);
      compute.enqueue([w = w["w"].as<float>(), g = w.grad("w").view.as<float>()] {
        for (int i = 0; i < 1000; ++i) g[i] = w[i] - 3;
      });
    }
    // The update waits for the reduction of the gradients, which overlaps compute.
    optimizer.step(0.05f, compute);
  }
  float last = 0;
  engine.visit([&](const auto&, const auto&, auto values) { last = values.back(); });
  std::printf("rank %d of %d: %.2f\n", world.rank(), world.size(), static_cast<double>(last));
}
